"""What the calls cost without an engine: bare clients that send the same requests to the same server.

`httpx` is httpx's client over aiohttp's transport, the floor that the engine is compared with; `aiohttp` is that
session itself with orjson, about the least that Python can do today. Both decode the reply and forget it: nothing is
planned, limited, budgeted, stored or resumed. Run as a child, one client a process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Literal

import aiohttp
import httpx
import msgspec
import orjson
from httpx_aiohttp import HttpxAiohttpClient

from bench.throughput.lab import KEY, card_at, question
from bench.throughput.process import Window, answer, peak_mb
from engine.request import Request

Client = Literal["httpx", "aiohttp", "engine"]
Post = Callable[[bytes], Awaitable[bytes]]
PATH: Final = "/chat/completions"
_TIMEOUT: Final = 60.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: so many calls through one client.

    Attributes:
        base_url: of the loopback server, with its latency.
        warm: calls before measuring begins.
        folder: where the engine's store lies; unused by bare clients.
        profile: file for a cProfile of the event loop's thread, empty for none.
    """

    client: Client
    base_url: str
    concurrency: int
    calls: int
    warm: int
    folder: str = ""
    profile: str = ""

    @property
    def total(self) -> int:
        """Calls sent in all: the tail keeps the wire busy until the last measured call."""
        return self.warm + self.calls + self.concurrency


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement found; `plan_cpu_s_per_1000` is included in `cpu_s_per_1000`."""

    cpu_s_per_1000: float
    requests_per_s: float
    peak_mb: float
    plan_cpu_s_per_1000: float = 0.0


async def measure(order: Order) -> Measured:
    """Send the calls of `order` through its bare client."""
    run = _through_httpx if order.client == "httpx" else _through_aiohttp
    window = Window(order.warm, order.warm + order.calls)
    await run(order, window)
    return Measured(cpu_s_per_1000=window.cpu_s_per_1000(), requests_per_s=window.per_s(), peak_mb=peak_mb())


def body_of(request: Request) -> bytes:
    """Return the JSON body that the adapter would send too."""
    return orjson.dumps(
        {
            "model": request.model,
            "messages": [{"role": each.role.value, "content": each.content} for each in request.messages],
            "max_completion_tokens": request.decoding.max_tokens,
            "temperature": request.decoding.temperature,
        }
    )


async def _through_httpx(order: Order, window: Window) -> None:
    limits = httpx.Limits(max_connections=order.concurrency, max_keepalive_connections=order.concurrency)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    timeout = httpx.Timeout(_TIMEOUT, pool=None)
    async with HttpxAiohttpClient(limits=limits, timeout=timeout, headers=headers, trust_env=False) as client:
        url = order.base_url + PATH

        async def post(body: bytes) -> bytes:
            response = await client.post(url, content=body)
            response.raise_for_status()
            return response.content

        await _work(order, post, window)


async def _through_aiohttp(order: Order, window: Window) -> None:
    connector = aiohttp.TCPConnector(limit=order.concurrency)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        url = order.base_url + PATH

        async def post(body: bytes) -> bytes:
            async with session.post(url, data=body) as response:
                response.raise_for_status()
                return await response.read()

        await _work(order, post, window)


async def _work(order: Order, post: Post, window: Window) -> None:
    numbers = iter(range(order.total))
    card = card_at(order.base_url)
    requests = (question(card, number).request for number in numbers)
    await asyncio.gather(*(_worker(requests, post, window) for _ in range(order.concurrency)))


async def _worker(requests: Iterator[Request], post: Post, window: Window) -> None:
    for request in requests:
        reply = orjson.loads(await post(body_of(request)))
        assert reply["choices"][0]["message"]["content"]  # noqa: S101 - a floor that got no answers is none
        window.tick()


if __name__ == "__main__":
    answer(Order, measure)
