"""How replies leave the simulator: whole, as an event stream, slowly, in half, or not at all. Knows no wire format."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from bench.simulator.faults import Fault, Rule
from bench.simulator.wire import BAD_GATEWAY_PAGE, MARK, Json, Reply, dump

SLOW_PIECES: Final = 10
LONG: Final = 3600.0
CUT_OFF: Final = (Fault.DROP_AFTER, Fault.TRUNCATED_BODY, Fault.STALL)


def plain(reply: Reply, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a reply that is sent as it is."""
    found = {**(headers or {}), **reply.headers, "content-type": reply.content_type, MARK[0]: MARK[1]}
    return web.Response(status=reply.status, body=reply.body, headers=found)


def json_reply(value: Json | list[Json], status: int = 200) -> web.Response:
    """Return a JSON reply of the simulator itself."""
    return plain(Reply(status=status, body=dump(value)))


def hang_up(request: web.BaseRequest) -> web.Response:
    """Cut the connection; the returned response goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def send(
    request: web.BaseRequest, reply: Reply, headers: Mapping[str, str], rule: Rule | None
) -> web.StreamResponse:
    """Send a reply whose work is done, well or as badly as `rule` wants."""
    fault, pause = (rule.fault, rule.seconds) if rule else (None, 0.0)
    if reply.frames:
        return await _stream(request, reply, headers, fault)
    match fault:
        case Fault.DROP_AFTER:
            await asyncio.sleep(pause)
            return hang_up(request)
        case Fault.SLOW_BODY:
            return await _trickle(request, reply, headers, pause)
        case Fault.TRUNCATED_BODY | Fault.STALL:
            return await _half(request, reply, headers, pause or (LONG if fault is Fault.STALL else 0.0))
        case _:
            return plain(msgspec.structs.replace(reply, body=_spoiled(reply.body, fault)), headers)


def _spoiled(body: bytes, fault: Fault | None) -> bytes:
    if fault is Fault.MALFORMED_JSON:
        return body[: len(body) * 2 // 3]
    return BAD_GATEWAY_PAGE if fault is Fault.HTML else body


async def _trickle(
    request: web.BaseRequest, reply: Reply, headers: Mapping[str, str], duration: float
) -> web.StreamResponse:
    response = await _open(request, reply, headers)
    size = len(reply.body) // SLOW_PIECES + 1
    for start in range(0, len(reply.body), size):
        await asyncio.sleep(duration / SLOW_PIECES)
        await response.write(reply.body[start : start + size])
    await response.write_eof()
    return response


async def _half(request: web.BaseRequest, reply: Reply, headers: Mapping[str, str], stall: float) -> web.StreamResponse:
    """Promise the whole body, send half of it, and close."""
    response = await _open(request, reply, headers)
    await response.write(reply.body[: len(reply.body) // 2])
    await asyncio.sleep(stall)
    if request.transport is not None:
        request.transport.close()
    return response


async def _open(request: web.BaseRequest, reply: Reply, headers: Mapping[str, str]) -> web.StreamResponse:
    known = {**headers, "content-type": reply.content_type, MARK[0]: MARK[1], "content-length": str(len(reply.body))}
    response = web.StreamResponse(status=reply.status, headers=known)
    await response.prepare(request)
    return response


async def _stream(
    request: web.BaseRequest, reply: Reply, headers: Mapping[str, str], fault: Fault | None
) -> web.StreamResponse:
    known = {**headers, "content-type": reply.content_type, "cache-control": "no-cache", MARK[0]: MARK[1]}
    response = web.StreamResponse(status=reply.status, headers=known)
    await response.prepare(request)
    broken = fault in CUT_OFF
    for frame in reply.frames[: len(reply.frames) // 2] if broken else reply.frames:
        await response.write(frame)
    if broken:
        if request.transport is not None:
            request.transport.close()
        return response
    await response.write_eof()
    return response
