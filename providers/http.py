"""One account at one endpoint over HTTP: a bounded, quiet client and the one gate that foreign exceptions pass.

httpx's transport interface over aiohttp's connection pool (see pooled.py); httpx's client, which would add redirects,
cookies and logging to every call, is not used. Replies are of bounded size. The key is put into a header here and
masked in whatever comes back, so that nothing downstream can store or log it.
Must not know: wire formats, requests, completions.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from email.utils import formatdate
from itertools import chain
from typing import Final, TypeVar, cast

import aiohttp
import httpx
import msgspec

from engine.errors import ErrorClass, ProviderError
from providers.address import check_base_url
from providers.keys import Secret
from providers.pooled import PooledTransport, as_httpx
from providers.troubles import FOREIGN, explained

MOST_BYTES: Final = 32 << 20
# What an error has to say, it says in far less.
MOST_ERROR_BYTES: Final = 1 << 18
MOST_KEPT_URLS: Final = 64
FIRST_ERROR: Final = 300
PARTIAL: Final = 206
# No header's name or value holds one: names and values are masked and decoded in one piece, since there are many.
SEPARATOR: Final = b"\n"
# In front of a path: beside the versioned base address, not below it, as Gemini's uploads and downloads are.
ABOVE: Final = "^"

T = TypeVar("T")

# Takes a piece of a reply; returns False when it has enough.
Sink = Callable[[bytes], Awaitable[bool]]
# Hears how many seconds after its request a reply began, and its status.
Heard = Callable[[float, int], None]

_VERSION: Final = re.compile(r"v\d+(?:alpha|beta)?")
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
        heard: is told when a reply begins, for measurements.
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
        heard: Heard | None = None,
    ) -> None:
        check_base_url(base_url, where=name)
        self._heard = heard
        self.name, self._base, self._secret = name, base_url.rstrip("/"), secret
        self._timeouts = timeouts or Timeouts()
        self._headers = _headers(headers or {}, secret, key_header)
        self._extensions = {"timeout": _httpx_timeout(self._timeouts).as_dict()}
        self._transport = transport or PooledTransport(base_url, _aiohttp_timeout(self._timeouts), dict(self._headers))
        # Without a proxy, calls go the short way.
        pooled = isinstance(self._transport, PooledTransport) and self._transport.proxy is None
        self._short = cast("PooledTransport", self._transport) if pooled else None
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

    async def fetch(self, path: str, sink: Sink, *, start: int = 0) -> HttpReply:
        """Fetch `path` once, handing the body of a success to `sink` piece by piece, and return the reply without it.

        The body of any other status is in the reply, and `sink` sees nothing. Pieces come with the key masked. The
        first `start` bytes are not asked for, and are left out where the server sends them all the same.

        Raises:
            ProviderError: the reply broke off; a length that was promised and not kept counts as that.
        """
        request = self._request("GET", path, None)
        if start:
            request.headers["range"] = f"bytes={start}-"
        return await map_errors(self._pour(request, sink, start))

    def hide(self, text: str) -> str:
        """Return the words of an error without pieces of the key, wherever they were found, in an answer too."""
        return text if self._secret is None else self._secret.mask_fragments(text.encode()).decode()

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._transport.aclose()

    async def _pour(self, request: httpx.Request, sink: Sink, start: int) -> HttpReply:
        async with asyncio.timeout(self._timeouts.total):
            response = await self._transport.handle_async_request(request)
            try:
                if response.status_code >= FIRST_ERROR:
                    return self._masked(response.status_code, response.headers.raw, await _bounded(response))
                skip = 0 if response.status_code == PARTIAL else start
                async for piece in _masked_pieces(_pieces(response), self._secret):
                    if skip < len(piece) and not await sink(piece[skip:]):
                        break
                    skip = max(0, skip - len(piece))
                return self._masked(response.status_code, response.headers.raw, b"")
            finally:
                await response.aclose()

    async def _exchange(self, method: str, path: str, content: bytes | None) -> HttpReply:
        if self._short is not None:
            return await map_errors(self._call_short(self._short, method, path, content))
        return await map_errors(self._call(self._request(method, path, content)))

    async def _call_short(self, transport: PooledTransport, method: str, path: str, content: bytes | None) -> HttpReply:
        began = time.perf_counter()
        reply = await transport.send(method, self._address(path), content)
        self._tell(began, reply.status)
        async with reply:
            length = MOST_BYTES + 1 if reply.content_length is None else reply.content_length
            whole = length <= MOST_BYTES and "content-encoding" not in reply.headers
            body = await reply.read() if whole else await _bounded(as_httpx(reply))
        return self._masked(reply.status, reply.raw_headers, body)

    async def _call(self, request: httpx.Request) -> HttpReply:
        async with asyncio.timeout(self._timeouts.total):
            began = time.perf_counter()
            response = await self._transport.handle_async_request(request)
            self._tell(began, response.status_code)
            try:
                return self._masked(response.status_code, response.headers.raw, await _bounded(response))
            finally:
                await response.aclose()

    def _tell(self, began: float, status: int) -> None:
        if self._heard is not None:
            self._heard(time.perf_counter() - began, status)

    def _request(self, method: str, path: str, content: bytes | None) -> httpx.Request:
        request = httpx.Request(
            method, self._url(path), headers=self._headers, content=content, extensions=self._extensions
        )
        request.headers.encoding = "ascii"  # or httpx guesses it anew at every look
        return request

    def _url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:
            url = httpx.URL(self._address(path))
            if len(self._urls) < MOST_KEPT_URLS:
                self._urls[path] = url
        return url

    def _address(self, path: str) -> str:
        return self.root + path.removeprefix(ABOVE) if path.startswith(ABOVE) else self._base + path

    def _masked(self, status: int, raw: Iterable[tuple[bytes, bytes]], body: bytes) -> HttpReply:
        joined = SEPARATOR.join(chain.from_iterable(raw))
        if self._secret is not None:
            mask = self._secret.mask_fragments if status >= FIRST_ERROR else self._secret.mask
            body = mask(body[:MOST_ERROR_BYTES] if status >= FIRST_ERROR else body)
            joined = mask(joined)
        texts = joined.decode("latin-1").split(SEPARATOR.decode())
        headers = dict(zip(map(str.lower, texts[::2]), texts[1::2], strict=False))
        if "date" not in headers:
            headers["date"] = formatdate(time.time(), usegmt=True)
        return HttpReply(status, headers, body)


async def map_errors(call: Awaitable[T]) -> T:
    """Await `call`, turning every exception of the HTTP layers into a ProviderError; the one place that knows theirs.

    The foreign exception is not chained: some carry the request's headers, and so the key.
    """
    try:
        return await call
    except FOREIGN as error:
        failure = explained(error)
    raise failure


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


def _aiohttp_timeout(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(
        connect=timeouts.connect, sock_connect=timeouts.connect, sock_read=timeouts.silence, total=timeouts.total
    )


def _httpx_timeout(timeouts: Timeouts) -> httpx.Timeout:
    return httpx.Timeout(timeouts.silence, connect=timeouts.connect, pool=timeouts.connect)
