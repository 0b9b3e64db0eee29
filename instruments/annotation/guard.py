"""What stands between the page and the network: right host, right origin, small bodies, strict headers, plain errors.

The page listens on the loopback interface only, yet any web site open in the same browser can send requests there. Such
a request names another host (DNS rebinding) or another origin, and is refused before anything looks at it. Pure ASGI.
"""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY_BYTES: Final = 64 * 1024
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FORBIDDEN: Final = 403
_TOO_LARGE: Final = 413
_UNSUPPORTED: Final = 415


class Guard:
    """Refuses what does not come from the page itself and keeps tracebacks away from people.

    Args:
        app: what to protect.
        hosts: names under which the page is reached, without port; `*` stands for every numeric address.
        port: the port under which it is reached.
        report: takes one line for whoever started the server.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], port: int, report: Callable[[str], None]) -> None:
        self._app, self._hosts, self._port, self._report = app, frozenset(hosts), port, report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_strictly)
            return
        try:
            await self._app(scope, receive, send_strictly)
        except Exception as error:  # noqa: BLE001 - starlette has answered already; people get one line
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._report(f"{scope['method']} {scope['path']}: {what}")

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            return _problem(_FORBIDDEN, "this address is not the page's own")
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"} and scope["path"] != "/":
            return _problem(_FORBIDDEN, "another site may not ask for this")
        if scope["method"] not in {"GET", "HEAD"}:
            return self._body_refusal(headers)
        return None

    def _body_refusal(self, headers: Headers) -> JSONResponse | None:
        if headers.get("origin", "") != f"http://{headers['host']}":
            return _problem(_FORBIDDEN, "another site may not send this")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return _problem(_UNSUPPORTED, "only JSON is understood")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > MOST_BODY_BYTES:
            return _problem(_TOO_LARGE, "too much at once")
        return None

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "80")
        if port != str(self._port):
            return False
        bare = name.strip("[]").lower()
        return bare in self._hosts or ("*" in self._hosts and _is_numeric(bare))


def _is_numeric(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _problem(status: int, what: str) -> JSONResponse:
    return JSONResponse({"error": what}, status_code=status)
