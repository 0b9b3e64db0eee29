"""httpx's transport interface over aiohttp's connection pool, and a short way through it for whole bodies.

The interface is what file transfers, tests and anything that brings its own transport use. The short way is for calls:
a request that is bytes and a reply that is bytes need no request, response and stream objects around them, which cost
more processor time than sending and receiving. Both use the same session. Must not know: keys, wire formats.
"""

import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import AiohttpResponseStream

from providers.address import is_loopback
from providers.prompt import REQUEST_CLASS

# Lanes bound concurrency; a pool that made calls wait would hide its queue from them.
MOST_CONNECTIONS: Final = 4096
# Common servers close idle connections after 5 s; reusing one in that instant loses the request.
KEEP_IDLE: Final = 4.0


class PooledTransport(AiohttpTransport):
    """A transport that keeps no cookies, follows no redirects and uses the environment's proxies, except to itself."""

    def __init__(self, base_url: str, timeout: aiohttp.ClientTimeout, headers: Mapping[str, str]) -> None:
        """`timeout` bounds the steps of a call that goes the short way, `headers` go with it."""
        parts = urlsplit(base_url)
        # Loading the certificates takes long; without TLS an empty, strict context stands in.
        context = httpx.create_ssl_context() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        proxies = {} if is_loopback(base_url) or proxy_bypass(parts.netloc) else getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")

        def session() -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEEP_IDLE, ssl=context)
            return aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                timeout=timeout,
                auto_decompress=False,
                request_class=REQUEST_CLASS,
            )

        super().__init__(verify=context, client=session, proxy=httpx.Proxy(proxy) if proxy else None)

    async def send(self, method: str, address: str, content: bytes | None) -> aiohttp.ClientResponse:
        """Send a request the short way, which knows no proxy, and return its reply once the headers are there.

        Whoever calls this reads the reply and releases it.
        """
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self.get_client()
        return await self.client.request(method, address, data=content, allow_redirects=False)


def as_httpx(reply: aiohttp.ClientResponse) -> httpx.Response:
    """Return a reply as httpx's, its body still to be read."""
    return httpx.Response(status_code=reply.status, headers=reply.raw_headers, stream=AiohttpResponseStream(reply))
