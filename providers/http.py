"""One account at one endpoint over HTTP: a bounded, quiet client and the one gate that foreign exceptions pass.

httpx's transport API over aiohttp's connection pool; httpx's client, which would add redirects, cookies and logging to
every call, is not used. Replies are of bounded size. The key is put into a header here and masked in whatever comes
back, so that nothing downstream can store or log it.
Must not know: wire formats, requests, completions.

What an exception says about money: before the connection stood, nothing was sent, so nothing was billed. After that an
answer may have been made, and charged, without reaching us.
"""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from engine.errors import ErrorClass, ProviderError
from providers.address import check_base_url, is_loopback
from providers.errorbody import safe_line
from providers.keys import SHORTEST_IN_ERRORS, SHORTEST_SECRET, Secret

MOST_BYTES: Final = 32 << 20
# Lanes bound concurrency; a pool that made calls wait would hide its queue from them.
MOST_CONNECTIONS: Final = 4096
# Common servers close idle connections after 5 s; reusing one in that instant loses the request.
KEEP_IDLE: Final = 4.0
MOST_KEPT_URLS: Final = 64
FIRST_ERROR: Final = 300
# In front of a path: beside the versioned base address, not below it, as Gemini's uploads and downloads are.
ABOVE: Final = "^"

# TimeoutError, the bound on the whole exchange, is an OSError.
FOREIGN: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, aiohttp.ClientError, OSError)

T = TypeVar("T")

# Takes a piece of a reply; returns False when it has enough.
Sink = Callable[[bytes], Awaitable[bool]]

_UNSENT_CAUSES: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_VERSION: Final = re.compile(r"v\d+(?:alpha|beta)?")
_UNSENT: Final = (httpx.ConnectError, httpx.ProxyError, httpx.PoolTimeout)
_BASE_HEADERS: Final = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "miragebench",
}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds: to connect, between two pieces of a reply, and for the whole exchange."""

    connect: float = 15.0
    silence: float = 600.0
    total: float = 900.0


class HttpReply(msgspec.Struct, frozen=True):
    """A reply as it came, header names in lower case; a `date` is always there."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpEndpoint:
    """An account at a base address.

    Args:
        name: how messages call it.
        base_url: absolute address without query; `https`, or `http` where the user (or a loopback address) says so.
        secret: the key, or None for an endpoint that wants none.
        key_header: header that carries the key; `authorization` carries it as a bearer token.
        headers: further headers of every call.
        transport: replaces the network, for tests.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        secret: Secret | None = None,
        key_header: str = "authorization",
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        check_base_url(base_url, where=name)
        self.name, self._base, self._secret = name, base_url.rstrip("/"), secret
        self._timeouts = timeouts or Timeouts()
        self._headers = _headers(headers or {}, secret, key_header)
        self._extensions = {"timeout": _httpx_timeout(self._timeouts).as_dict()}
        self._transport = transport or _transport(base_url)
        self._urls: dict[str, httpx.URL] = {}

    @property
    def root(self) -> str:
        """The base address without a final part that names a version; `ABOVE` before a path leads there."""
        head, _, tail = self._base.rpartition("/")
        return head if _VERSION.fullmatch(tail) else self._base

    async def post(self, path: str, body: bytes) -> HttpReply:
        """Send `body` once and return the reply, whatever its status; raises ProviderError."""
        return await self._exchange("POST", path, body)

    async def get(self, path: str) -> HttpReply:
        """Fetch `path` once and return the reply, whatever its status; raises ProviderError."""
        return await self._exchange("GET", path, None)

    async def delete(self, path: str) -> HttpReply:
        """Delete `path` once and return the reply, whatever its status; raises ProviderError."""
        return await self._exchange("DELETE", path, None)

    async def send(
        self, path: str, content: AsyncIterable[bytes], *, length: int, headers: Mapping[str, str]
    ) -> HttpReply:
        """Post `length` bytes piece by piece, once, and return the reply, whatever its status; raises ProviderError.

        `headers` go before the endpoint's own, `content-type` among them.
        """
        request = httpx.Request(
            "POST",
            self._url(path),
            headers={**self._headers, **headers, "content-length": str(length)},
            content=content,
            extensions=self._extensions,
        )
        return await map_errors(self._call(request))

    async def fetch(self, path: str, sink: Sink) -> HttpReply:
        """Fetch `path` once, handing the body of a success to `sink` piece by piece, and return the reply without it.

        The body of any other status is in the reply, and `sink` sees nothing. Pieces come with the key masked.

        Raises:
            ProviderError: the reply broke off; a length that was promised and not kept counts as that.
        """
        return await map_errors(self._pour(self._request("GET", path, None), sink))

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._transport.aclose()

    async def _pour(self, request: httpx.Request, sink: Sink) -> HttpReply:
        async with asyncio.timeout(self._timeouts.total):
            response = await self._transport.handle_async_request(request)
            try:
                if response.status_code >= FIRST_ERROR:
                    return self._masked(response, await _bounded(response))
                async for piece in _masked_pieces(_pieces(response), self._secret):
                    if not await sink(piece):
                        break
                return self._masked(response, b"")
            finally:
                await response.aclose()

    async def _exchange(self, method: str, path: str, content: bytes | None) -> HttpReply:
        return await map_errors(self._call(self._request(method, path, content)))

    async def _call(self, request: httpx.Request) -> HttpReply:
        async with asyncio.timeout(self._timeouts.total):
            response = await self._transport.handle_async_request(request)
            try:
                return self._masked(response, await _bounded(response))
            finally:
                await response.aclose()

    def _request(self, method: str, path: str, content: bytes | None) -> httpx.Request:
        request = httpx.Request(
            method, self._url(path), headers=self._headers, content=content, extensions=self._extensions
        )
        request.headers.encoding = "ascii"  # or httpx guesses it anew at every look
        return request

    def _url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:
            url = httpx.URL((self.root if path.startswith(ABOVE) else self._base) + path.removeprefix(ABOVE))
            if len(self._urls) < MOST_KEPT_URLS:
                self._urls[path] = url
        return url

    def _masked(self, response: httpx.Response, body: bytes) -> HttpReply:
        raw = response.headers.raw
        if self._secret is not None:
            shortest = SHORTEST_IN_ERRORS if response.status_code >= FIRST_ERROR else SHORTEST_SECRET
            body = self._secret.mask(body, shortest=shortest)
            raw = [(name, self._secret.mask(value, shortest=shortest)) for name, value in raw]
        headers = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in raw}
        if "date" not in headers:
            headers["date"] = formatdate(time.time(), usegmt=True)
        return HttpReply(response.status_code, headers, body)


async def map_errors(call: Awaitable[T]) -> T:
    """Await `call`, turning every exception of the HTTP layers into a ProviderError; the one place that knows theirs.

    The foreign exception is not chained: some carry the request's headers, and so the key.
    """
    try:
        return await call
    except FOREIGN as error:
        failure = _translated(error)
    raise failure


def _translated(error: Exception) -> ProviderError:
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return ProviderError(ErrorClass.BAD_REQUEST, f"the address cannot be called: {_reason(error)}", code="address")
    if _unsent(error):
        return ProviderError(ErrorClass.TRANSIENT, f"could not connect: {_reason(error)}", code="connect")
    if isinstance(error, (TimeoutError, httpx.TimeoutException)) and not _dropped(error):
        return ProviderError(
            ErrorClass.TRANSIENT, "no answer within the time allowed", code="timeout", maybe_billed=True
        )
    return ProviderError(
        ErrorClass.TRANSIENT,
        f"the connection broke before the answer was whole: {_reason(error)}",
        code="dropped",
        maybe_billed=True,
    )


def _unsent(error: Exception) -> bool:
    """Return whether the connection never stood.

    The transport reports a connection dropped while waiting as ConnectTimeout too, hence the look at the cause.
    """
    if isinstance(error.__cause__, aiohttp.ClientError):
        return isinstance(error.__cause__, _UNSENT_CAUSES)
    return isinstance(error, (*_UNSENT, httpx.ConnectTimeout))


def _dropped(error: Exception) -> bool:
    cause = error.__cause__
    return isinstance(cause, aiohttp.ClientError) and not isinstance(cause, aiohttp.ServerTimeoutError)


def _reason(error: Exception) -> str:
    return safe_line(str(error)) or type(error).__name__


async def _bounded(response: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in _pieces(response):
        size += len(chunk)
        if size > MOST_BYTES:
            raise ProviderError(
                ErrorClass.BAD_REQUEST,
                f"the reply is larger than {MOST_BYTES >> 20} MiB",
                status=response.status_code,
                code="too_large",
                maybe_billed=response.status_code < FIRST_ERROR,
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _pieces(response: httpx.Response) -> AsyncIterable[bytes]:
    """Return the body's pieces; a server that compresses unasked costs the slower way."""
    stream = response.stream
    if isinstance(stream, httpx.AsyncByteStream) and "content-encoding" not in response.headers:
        return stream
    return response.aiter_bytes()


async def _masked_pieces(pieces: AsyncIterable[bytes], secret: Secret | None) -> AsyncIterable[bytes]:
    """Yield `pieces` with the key masked, also where it lies across two of them."""
    if secret is None:
        async for piece in pieces:
            yield piece
        return
    held, tail = b"", len(secret.reveal()) - 1
    async for piece in pieces:
        held = secret.mask(held + piece)
        cut = max(0, len(held) - tail)
        yield held[:cut]
        held = held[cut:]
    yield held


def _headers(extra: Mapping[str, str], secret: Secret | None, key_header: str) -> httpx.Headers:
    headers = {**_BASE_HEADERS, **extra}
    if secret is not None:
        bearer = "Bearer " if key_header == "authorization" else ""
        headers[key_header] = bearer + secret.reveal()
    return httpx.Headers(headers)


def _httpx_timeout(timeouts: Timeouts) -> httpx.Timeout:
    return httpx.Timeout(timeouts.silence, connect=timeouts.connect, pool=timeouts.connect)


def _transport(base_url: str) -> AiohttpTransport:
    """Return a pooled transport that keeps no cookies and follows the environment's proxies, except to this machine."""
    parts = urlsplit(base_url)
    # Loading the certificates takes long; without TLS an empty, strict context stands in.
    context = httpx.create_ssl_context() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    proxies = {} if is_loopback(base_url) or proxy_bypass(parts.netloc) else getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEEP_IDLE, ssl=context)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    return AiohttpTransport(verify=context, client=session, proxy=httpx.Proxy(proxy) if proxy else None)
