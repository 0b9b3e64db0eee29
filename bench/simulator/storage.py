"""Files on their way into and out of simulated batch APIs: forms, downloads that go well or badly, accounts."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from bench.simulator.batchjobs import File
from bench.simulator.delivery import hang_up, plain
from bench.simulator.wire import BAD_GATEWAY_PAGE, MARK, Rejected, Reply, Wire, digest

OK: Final = 200
PARTIAL: Final = 206
OCTETS: Final = "application/octet-stream"


def owner_of(wire: Wire, request: web.BaseRequest, keys: Sequence[str]) -> bytes | None:
    """Return what stands for the key of a request, None for a key that is not let in."""
    key = wire.key(request.headers)
    return None if not key or (keys and key not in keys) else digest(key)


def gateway_page() -> web.Response:
    """Return the page of a proxy that has lost the service behind it."""
    return plain(Reply(status=502, body=BAD_GATEWAY_PAGE, content_type="text/html"))


def unanswered(request: web.BaseRequest, how: str) -> web.Response:
    """Leave a call without its answer: cut the connection, or let a proxy speak."""
    return gateway_page() if how == "gateway" else hang_up(request)


async def uploaded(request: web.BaseRequest) -> tuple[str, str, bytes]:
    """Return name, purpose and bytes of a form's file; raises Rejected."""
    form = await request.post()
    file, purpose = form.get("file"), form.get("purpose")
    if not isinstance(file, web.FileField):
        raise Rejected("'file' is a required property", param="file")
    return file.filename, str(purpose), file.file.read()


async def download(request: web.BaseRequest, file: File, content_type: str = OCTETS) -> web.StreamResponse:
    """Send a file: whole, or in half if it is to break off, or without its last lines if it is to end early.

    A range is honoured, as file stores do; whether the real services do so is not documented.
    """
    headers = {"content-type": content_type, MARK[0]: MARK[1]}
    headers["content-disposition"] = f'attachment; filename="{file.name}"'
    start = _start(request, len(file.data))
    if start:
        headers["content-range"] = f"bytes {start}-{len(file.data) - 1}/{len(file.data)}"
    status, data = (PARTIAL if start else OK), file.data[start:]
    if file.cut > 0:
        file.cut -= 1
        return await _half(request, data, headers, status)
    if file.short > 0:
        file.short -= 1
        return await _short(request, data, headers, status)
    return web.Response(body=data, headers=headers, status=status)


def _start(request: web.BaseRequest, size: int) -> int:
    """Return where the asked range begins, 0 for none or for one that makes no sense."""
    try:
        start = request.http_range.start or 0
    except ValueError:
        return 0
    return start if 0 < start < size else 0


async def _half(request: web.BaseRequest, data: bytes, headers: dict[str, str], status: int) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers | {"content-length": str(len(data))})
    await response.prepare(request)
    await response.write(data[: len(data) // 2])
    return hang_up(request)


async def _short(request: web.BaseRequest, data: bytes, headers: dict[str, str], status: int) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(b"".join(data.splitlines(keepends=True)[:-1]) or data[: len(data) // 2])
    await response.write_eof()
    return response
