"""The HTTP gate against real sockets: what each kind of broken connection means, and what never gets through."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import httpx
import pytest
from aiohttp.client_reqrep import ConnectionKey

from engine.errors import ErrorClass, ProviderError, UserError
from providers import http
from providers.address import check_base_url
from providers.http import MOST_ERROR_BYTES, HttpEndpoint, HttpReply, Timeouts
from providers.keys import Secret
from providers.troubles import explained

KEY = "sk-live-0123456789abcdef0123"
QUICK = Timeouts(connect=2.0, silence=0.05, total=2.0)
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(
    body: bytes, *, status: str = "200 OK", headers: Sequence[str] = (), length: int | None = None, date: bool = True
) -> bytes:
    """Return a reply as bytes on the wire."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    if date:
        lines.append("Date: Mon, 30 Nov 2026 17:00:00 GMT")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def replying(*replies: bytes) -> Script:
    """Return a script that answers one request after the other, then hangs up."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await take(reader)
            writer.write(reply)
            await writer.drain()

    return script


async def take(reader: asyncio.StreamReader) -> bytes:
    """Read one request whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(size[0]) if size else 0)


@asynccontextmanager
async def served(
    script: Script, *, secret: Secret | None = None, timeouts: Timeouts | None = None
) -> AsyncIterator[HttpEndpoint]:
    """Yield an endpoint whose server follows `script` on every connection."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = HttpEndpoint("p", f"http://127.0.0.1:{port}/v1", secret=secret, timeouts=timeouts)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        server.close()


async def failure(script: Script, *, timeouts: Timeouts | None = None) -> ProviderError:
    """Return the error that a server following `script` leads to."""
    async with served(script, timeouts=timeouts) as endpoint:
        with pytest.raises(ProviderError) as caught:
            await endpoint.post("/x", b"{}")
    return caught.value


async def reply_to(script: Script, *, secret: Secret | None = None) -> HttpReply:
    """Return the reply of a server following `script`."""
    async with served(script, secret=secret) as endpoint:
        return await endpoint.post("/x", b"{}")


async def test_a_request_arrives_whole_with_its_key() -> None:
    """Path below the base address, JSON, key as bearer token, no compression asked for."""
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await take(reader))
        writer.write(answer(b"{}"))

    async with served(script, secret=Secret(KEY)) as endpoint:
        reply = await endpoint.post("/chat", b'{"a":1}')
    text = seen[0].decode().lower()
    assert reply.status == 200
    assert text.startswith("post /v1/chat http/1.1\r\n")
    assert f"authorization: bearer {KEY}" in text
    assert "accept-encoding: identity" in text
    assert text.endswith('{"a":1}')


async def test_connections_are_reused() -> None:
    """Ten calls one after the other need one connection."""
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await replying(*[answer(b"{}")] * 10)(reader, writer)

    async with served(script) as endpoint:
        for _ in range(10):
            await endpoint.get("/x")
    assert connections == 1


async def test_header_names_are_lower_case_and_a_date_is_always_there() -> None:
    """Readers look names up in one spelling, and compare moments with the date."""
    reply = await reply_to(replying(answer(b"{}", headers=["X-Request-Id: r1"], date=False)))
    assert reply.headers["x-request-id"] == "r1"
    assert reply.headers["date"].endswith("GMT")


async def test_error_statuses_are_replies_not_exceptions() -> None:
    """Classifying them is the adapter's business."""
    assert (await reply_to(replying(answer(b"busy", status="503 Service Unavailable")))).status == 503


async def test_a_redirect_is_not_followed() -> None:
    """A key must not travel to another host."""
    reply = await reply_to(replying(answer(b"", status="307 Temporary Redirect", headers=["Location: http://x.test/"])))
    assert reply.status == 307


async def test_a_refused_connection_was_not_billed() -> None:
    """Nothing was sent."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    endpoint = HttpEndpoint("p", f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ProviderError) as caught:
        await endpoint.post("/x", b"{}")
    await endpoint.close()
    assert (caught.value.kind, caught.value.code, caught.value.maybe_billed) == (
        ErrorClass.TRANSIENT,
        "connect",
        False,
    )


async def test_a_failed_tls_handshake_was_not_billed() -> None:
    """A server that speaks no TLS on an https address."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 this is no TLS\r\n")

    async with served(greet) as plain:
        endpoint = HttpEndpoint("p", plain._base.replace("http://", "https://"))
        with pytest.raises(ProviderError) as caught:
            await endpoint.post("/x", b"{}")
        await endpoint.close()
    assert (caught.value.code, caught.value.maybe_billed) == ("connect", False)


def test_certificates_are_checked() -> None:
    """There is no switch to turn it off."""
    transport = HttpEndpoint("p", "https://llm.example/v1")._transport
    context = transport.ssl_context  # type: ignore[attr-defined]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and close without a word."""
    await take(reader)


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and reset the connection."""
    await take(reader)
    writer.transport.abort()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    await take(reader)
    await reader.read()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (hang_up, "dropped"),
        (reset, "dropped"),
        (silent, "timeout"),
        (replying(answer(b'{"half":', length=100)), "dropped"),
        (replying(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n'), "dropped"),
        (replying(b"garbage garbage\r\n\r\n"), "dropped"),
        (replying(answer(b"not gzip", headers=["Content-Encoding: gzip"])), "dropped"),
    ],
    ids=["hung up", "reset", "silent", "short body", "cut chunks", "not HTTP", "bad compression"],
)
async def test_trouble_after_sending_may_have_been_billed(script: Script, code: str) -> None:
    """The request arrived; an answer may have been made and charged."""
    error = await failure(script, timeouts=QUICK)
    assert (error.kind, error.code, error.maybe_billed) == (ErrorClass.TRANSIENT, code, True)


async def test_a_server_that_drips_for_ever_meets_the_total_bound() -> None:
    """Keep-alive bytes count as life, but not without end."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    error = await failure(drip, timeouts=Timeouts(silence=1.0, total=0.15))
    assert (error.code, error.maybe_billed) == ("timeout", True)


async def test_keep_alive_blank_lines_are_kept_for_the_reader() -> None:
    """Blank lines before the body are part of it."""
    assert (await reply_to(replying(answer(b'\n\n\n{"a":1}')))).body == b'\n\n\n{"a":1}'


async def test_a_compressed_reply_is_unpacked() -> None:
    """Nobody asked for it, but proxies do it."""
    reply = await reply_to(replying(answer(gzip.compress(b'{"a":1}'), headers=["Content-Encoding: gzip"])))
    assert reply.body == b'{"a":1}'


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "compressed"])
async def test_an_endless_reply_is_cut(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; the call will not be made again, and may have been billed."""
    monkeypatch.setattr(http, "MOST_BYTES", 10_000)
    body = b" " * 20_000
    reply = answer(gzip.compress(body), headers=["Content-Encoding: gzip"]) if packed else answer(body)
    error = await failure(replying(reply))
    assert (error.kind, error.code, error.maybe_billed) == (ErrorClass.BAD_REQUEST, "too_large", True)


async def test_an_echoed_key_is_masked_in_body_and_headers() -> None:
    """Nothing downstream ever sees it."""
    echo = answer(f"bad key {KEY}".encode(), status="401 Unauthorized", headers=[f"X-Echo: {KEY}"])
    reply = await reply_to(replying(echo), secret=Secret(KEY))
    assert reply.body == b"bad key [key]"
    assert reply.headers["x-echo"] == "[key]"


async def test_a_piece_of_the_key_is_masked_in_errors_and_left_in_answers() -> None:
    """An answer may hold anything; an error has no business to."""
    piece = KEY[-12:].encode()
    refused, answered = answer(piece, status="401 Unauthorized", headers=[f"X-Echo: {KEY[-12:]}"]), answer(piece)
    error, reply = [await reply_to(replying(each), secret=Secret(KEY)) for each in (refused, answered)]
    assert (error.body, error.headers["x-echo"]) == (b"[key]", "[key]")
    assert reply.body == piece


async def test_an_endless_error_is_cut() -> None:
    """Looking for pieces of the key in megabytes would hold up every other call."""
    reply = await reply_to(replying(answer(b"x" * 2 * MOST_ERROR_BYTES, status="400 Bad Request")), secret=Secret(KEY))
    assert len(reply.body) == MOST_ERROR_BYTES


async def test_cancelling_closes_the_connection() -> None:
    """A cancelled call must not leave a reply for the next one to read."""
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        arrived.set()
        await reader.read()
        gone.set()

    async with served(script) as endpoint:
        call = asyncio.create_task(endpoint.post("/x", b"{}"))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(gone.wait(), 2.0)


async def test_closing_twice_is_safe() -> None:
    """Shutdown paths meet."""
    endpoint = HttpEndpoint("p", "http://127.0.0.1:1/v1")
    await endpoint.close()
    await endpoint.close()


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("x"), httpx.ConnectTimeout("x"), httpx.PoolTimeout("x"), httpx.ProxyError("x")]
)
async def test_errors_of_connecting_are_unbilled_whatever_the_transport(error: httpx.TransportError) -> None:
    """The native transport names them without aiohttp's causes."""
    assert not (await transport_error(error)).maybe_billed


@pytest.mark.parametrize(
    "error", [httpx.ReadError("x"), httpx.ReadTimeout("x"), httpx.WriteError("x"), httpx.RemoteProtocolError("x")]
)
async def test_errors_of_reading_may_be_billed_whatever_the_transport(error: httpx.TransportError) -> None:
    """Everything after connecting."""
    assert (await transport_error(error)).maybe_billed


async def transport_error(error: httpx.TransportError) -> ProviderError:
    """Return what a transport's error becomes."""

    def broken(_: httpx.Request) -> httpx.Response:
        raise error

    endpoint = HttpEndpoint("p", "https://llm.example/v1", transport=httpx.MockTransport(broken))
    with pytest.raises(ProviderError) as caught:
        await endpoint.post("/x", b"{}")
    return caught.value


async def test_an_exceptions_text_is_made_safe() -> None:
    """Texts of foreign exceptions may quote headers or control characters."""
    error = await transport_error(httpx.ConnectError("\x1b[31m Bearer abcdef0123456789"))
    assert error.message.isprintable()
    assert "abcdef" not in error.message


@pytest.mark.parametrize("script", [hang_up, replying(b"garbage garbage\r\n\r\n")], ids=["hung up", "not HTTP"])
async def test_no_foreign_exception_hangs_on_ours(script: Script) -> None:
    """Some of them carry the request's headers, and the key with them, into whatever walks the chain."""
    async with served(script, secret=Secret(KEY)) as endpoint:
        with pytest.raises(ProviderError) as caught:
            await endpoint.post("/x", b"{}")
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert KEY not in str(caught.value)


class Refusal(aiohttp.ClientConnectorError):
    """A connection that failed for a reason of the operating system."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(ConnectionKey("h.example", 443, True, True, None, None, None), reason)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            Refusal(ConnectionRefusedError(111, "refused")),
            "could not connect: h.example:443 takes no connections; is a",
        ),
        (Refusal(OSError(113, "No route to host")), "could not connect: h.example:443 cannot be reached: No route"),
        (aiohttp.ConnectionTimeoutError("x"), "could not connect: the host did not take the connection in time"),
        (aiohttp.ServerDisconnectedError(), "the connection broke before the answer was whole: the server hung up"),
        (aiohttp.ClientOSError(104, "reset by peer"), "before the answer was whole: the server cut the connection"),
        (aiohttp.ClientPayloadError("<x>"), "before the answer was whole: the reply ended early"),
        (aiohttp.SocketTimeoutError("x"), "no answer within the time allowed"),
        (aiohttp.InvalidURL("http://["), "the address cannot be called: http://["),
        (httpx.ReadError("odd"), "before the answer was whole: odd"),
    ],
    ids=["refused", "no route", "slow", "hung up", "reset", "short", "silent", "address", "unknown"],
)
def test_what_went_wrong_is_said_in_plain_words(error: Exception, words: str) -> None:
    """Not in those of the library that found it."""
    assert words in explained(error).message


async def test_a_proxy_is_gone_through_by_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way knows none."""
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await take(reader))
        writer.write(answer(b"{}"))

    async with served(proxy) as behind:
        monkeypatch.setenv("http_proxy", behind._base.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        endpoint = HttpEndpoint("p", "http://llm.example/v1")
        reply = await endpoint.post("/chat", b"{}")
        await endpoint.close()
    assert reply.status == 200
    assert seen[0].startswith(b"POST http://llm.example/v1/chat HTTP/1.1")


async def test_the_proxy_of_the_environment_is_used_except_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Institutes often have one; local servers are never reached through it."""
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    far = HttpEndpoint("p", "https://llm.example/v1")._transport
    near = HttpEndpoint("p", "http://127.0.0.1:8000/v1")._transport
    assert str(far.proxy.url) == "http://proxy.example:3128"  # type: ignore[attr-defined]
    assert near.proxy is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "llm.example/v1",
        "ftp://llm.example",
        "https://",
        "https://u:p@h/v1",
        "https://h/v1?k=v",
        "https://h/#a",
        "https://h:99999/v1",
        "https://[oops",
    ],
)
def test_addresses_that_cannot_be_called_are_refused(url: str) -> None:
    """Before any call, with a mend."""
    with pytest.raises(UserError, match="base_url"):
        check_base_url(url, where="p")
