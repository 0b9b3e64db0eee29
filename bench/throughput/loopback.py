"""`python -m bench.throughput.loopback`: the cheapest server that speaks chat completions, in a process of its own.

It understands just enough HTTP for a client that is measured against it: the length of a request and the latency that
its path asks for (`/200/v1/chat/completions` answers after 200 ms). Every reply is the same, with the headers that a
real provider sends. Prints its port as JSON and stops when its standard input ends.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

import msgspec
import orjson

from bench.loop import run_loop
from bench.throughput.process import environment

HOST: Final = "127.0.0.1"
BACKLOG: Final = 1024
ANSWER: Final = ("What was asked is answered here in a few plain sentences of usual length. " * 7)[:500]
HEADERS: Final = {
    "content-type": "application/json",
    "date": "Mon, 30 Nov 2026 00:00:00 GMT",
    "x-request-id": "req_0123456789abcdef01234567",
    "openai-version": "2020-10-01",
    "openai-processing-ms": "12",
    "openai-organization": "loopback",
    "x-ratelimit-limit-requests": "3000000",
    "x-ratelimit-limit-tokens": "1500000000",
    "x-ratelimit-remaining-requests": "2999999",
    "x-ratelimit-remaining-tokens": "1499999000",
    "x-ratelimit-reset-requests": "1ms",
    "x-ratelimit-reset-tokens": "0s",
    "server": "loopback",
}
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"


class Ready(msgspec.Struct, frozen=True):
    """The line that the server prints when it serves."""

    port: int


class Answering(asyncio.Protocol):
    """One connection; requests follow each other, they are not pipelined."""

    def __init__(self, reply: bytes, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._reply, self._later = reply, later
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer when a request is whole."""
        self._data += data
        head, found, body = self._data.partition(_END)
        if not found:
            return
        lower = head.lower()
        start = lower.find(_LENGTH) + len(_LENGTH)
        end = lower.find(b"\r\n", start)
        if len(body) < int(lower[start : end if end >= 0 else None]):
            return
        self._data = b""
        latency = int(head[head.index(b"/") + 1 : head.index(b"/v1")]) / 1000
        if latency:
            self._later(latency, self._answer)
        else:
            self._answer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._transport = None

    def _answer(self) -> None:
        if self._transport is not None:
            self._transport.write(self._reply)


@contextmanager
def serving() -> Iterator[int]:
    """Run the server for the length of a block and give its port."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.throughput.loopback"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert server.stdout is not None  # noqa: S101 - asked for above
        yield msgspec.json.decode(server.stdout.readline(), type=Ready).port
    finally:
        server.communicate()


def base_url(port: int, latency_ms: int) -> str:
    """Return the address at which every answer takes so long."""
    return f"http://{HOST}:{port}/{latency_ms}/v1"


def reply() -> bytes:
    """Return the bytes of the one reply."""
    body = orjson.dumps(
        {
            "id": "chatcmpl-0123456789abcdef01234567",
            "object": "chat.completion",
            "created": 1_796_000_000,
            "model": "gpt-4o-mini-2024-07-18",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": ANSWER, "refusal": None, "annotations": []},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 105,
                "completion_tokens": 125,
                "total_tokens": 230,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
            "service_tier": "default",
            "system_fingerprint": "fp_loopback",
        }
    )
    lines = [f"{name}: {value}" for name, value in {**HEADERS, "content-length": str(len(body))}.items()]
    return b"HTTP/1.1 200 OK\r\n" + "\r\n".join(lines).encode() + _END + body


async def serve() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    answer, stop = reply(), asyncio.Event()
    server = await loop.create_server(lambda: Answering(answer, loop.call_later), HOST, 0, backlog=BACKLOG)
    loop.add_reader(sys.stdin.fileno(), stop.set)
    sys.stdout.write(f'{{"port": {server.sockets[0].getsockname()[1]}}}\n')
    sys.stdout.flush()
    await stop.wait()
    server.close()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(serve())
