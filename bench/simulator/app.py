"""The server: takes requests off the wire, lets things go wrong, keeps the limits, sends replies. Loopback only.

One task per request, nothing blocks: the work is a fraction of a millisecond of lookups. Routes other than single calls
(batches, files, control) are functions that a `Route` names; wire formats know nothing of the socket.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from bench.simulator.config import Config
from bench.simulator.delivery import CUT_OFF, hang_up, plain, send
from bench.simulator.desk import Desk
from bench.simulator.faults import CHARGED, Attempt, Fault, Faults, Rule
from bench.simulator.latency import seconds, uniform
from bench.simulator.limits import Gate, Gates, Limit, Limited
from bench.simulator.tokens import count_prompt
from bench.simulator.wire import (
    Answer,
    Call,
    Rejected,
    Reply,
    Tag,
    Trouble,
    Wire,
    digest,
    dump,
    parse,
)

HOST: Final = "127.0.0.1"
BIGGEST_BODY: Final = 512 * 1024 * 1024
LIMIT_FAULTS: Final = {
    Limit.REQUESTS: Fault.RATE_LIMITED,
    Limit.CONCURRENCY: Fault.RATE_LIMITED,
    Limit.DAY: Fault.RATE_LIMITED,
}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Route(msgspec.Struct, frozen=True):
    """Requests with this method (any, if empty) whose path begins and ends so; the longest beginning wins."""

    prefix: str
    handler: Handler
    method: str = ""
    suffix: str = ""


class Visit(msgspec.Struct, frozen=True):
    """One request on its way: where it came in, who it is, whose limits it uses."""

    request: web.BaseRequest
    wire: Wire
    tag: Tag
    call: Call
    gate: Gate
    rule: Rule | None


class App:
    """Serves all wire formats; `routes` adds more paths."""

    def __init__(
        self, config: Config, desk: Desk, wires: tuple[Wire, ...], *, seed: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.desk, self.faults = desk, Faults(config.faults.rules, config.faults.random, seed)
        self._config, self._seed, self._clock = config, seed, clock
        self._wires = wires
        self._gates = Gates(config.limits)
        self._attempts: dict[str, int] = {}
        self._born, self._count = int(clock() * 1000), 0
        self._routes: list[Route] = []

    def add(self, route: Route) -> None:
        """Serve more paths."""
        self._routes.append(route)
        self._routes.sort(key=lambda known: -len(known.prefix))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        path = request.rel_url.raw_path
        for route in self._routes:
            known = path.startswith(route.prefix) and path.endswith(route.suffix)
            if known and route.method in ("", request.method):
                return await route.handler(request)
        for wire in self._wires:
            if path.startswith(wire.prefix):
                return await self._serve(request, wire, path[len(wire.prefix) :])
        return plain(Reply(status=404, body=dump({"error": {"message": f"no such path: {path}"}})))

    async def _serve(self, request: web.BaseRequest, wire: Wire, path: str) -> web.StreamResponse:
        now = self._clock()
        tag = self._tag(now)
        body = await request.read()
        key = wire.key(request.headers)
        if not key or (self._config.keys and key not in self._config.keys):
            return plain(wire.trouble(Trouble(fault=Fault.AUTH), tag), _bare(wire, tag, now))
        try:
            call = wire.read(path, request.headers, parse(body, request.method))
        except Rejected as rejected:
            return plain(wire.reject(rejected, tag), wire.headers(tag, {}, now))
        if self.desk.gone(call.model):
            return plain(wire.trouble(Trouble(fault=Fault.GONE, model=call.model), tag), _bare(wire, tag, now))
        gate = self._gates.gate(wire.name, call.model, digest(key), now)
        return await self._visit(Visit(request, wire, tag, call, gate, self._misfortune(call)))

    async def _visit(self, visit: Visit) -> web.StreamResponse:
        rule = visit.rule
        if rule is not None and rule.fault not in CHARGED:
            return await self._refuse(visit, rule)
        tokens, allowance, output = count_prompt(visit.call.texts), visit.call.allowance or 0, 0
        limited = visit.gate.enter(self._clock(), prompt=tokens, allowance=allowance)
        if limited is not None:
            return self._limit(visit, limited)
        try:
            answer = self.desk.answer(visit.call, rule.fault if rule else None)
            output = answer.usage.output_tokens
            return await self._deliver(visit, answer)
        finally:
            visit.gate.leave(self._clock(), allowance=allowance, output=output)

    async def _deliver(self, visit: Visit, answer: Answer) -> web.StreamResponse:
        """Take the time it takes, charge, and send; the charge is on file before the first byte leaves."""
        wait = self._duration(visit.call, answer)
        if wait:
            await asyncio.sleep(wait)
        fault = visit.rule.fault if visit.rule else None
        dropped = fault in CUT_OFF
        charge = self.desk.charge(visit.call, answer, dropped=dropped, fault=fault or "", reply=visit.tag.id)
        if not dropped and (visit.request.transport is None or visit.request.transport.is_closing()):
            self.desk.bill.lost(charge)
        reply = visit.wire.write(visit.call, answer, visit.tag)
        return await send(visit.request, reply, self._headers(visit), visit.rule)

    async def _refuse(self, visit: Visit, rule: Rule) -> web.StreamResponse:
        """Send an error that is not charged, or cut the connection before any work."""
        if rule.seconds:
            await asyncio.sleep(rule.seconds)
        if rule.fault is Fault.DROP_BEFORE:
            return hang_up(visit.request)
        hinted = rule.fault in (Fault.RATE_LIMITED, Fault.RATE_LIMITED_TOKENS)
        trouble = Trouble(fault=rule.fault, model=visit.call.model, retry_after=rule.retry_after if hinted else None)
        return plain(visit.wire.trouble(trouble, visit.tag), self._headers(visit))

    def _limit(self, visit: Visit, limited: Limited) -> web.StreamResponse:
        fault = LIMIT_FAULTS.get(limited.limit, Fault.RATE_LIMITED_TOKENS)
        trouble = Trouble(fault=fault, limit=limited.limit, retry_after=limited.retry_after, model=visit.call.model)
        return plain(visit.wire.trouble(trouble, visit.tag), self._headers(visit))

    def _misfortune(self, call: Call) -> Rule | None:
        if not self.faults.active:
            return None
        number = self._attempts[call.hash] = self._attempts.get(call.hash, 0) + 1
        stage = self.desk.stage(call) if self.faults.rules else ""
        return self.faults.decide(Attempt(call.provider, call.model, stage, call.user, call.hash, number))

    def _duration(self, call: Call, answer: Answer) -> float:
        latency = self._config.latency_of(call.provider)
        if not latency.median_ms and not latency.token_ms:
            return 0.0
        number = self._attempts.get(call.hash, self.desk.bill.times(call.hash))
        return seconds(latency, uniform("latency", self._seed, call.hash, number), answer.usage.output_tokens)

    def _headers(self, visit: Visit) -> dict[str, str]:
        now = self._clock()
        return visit.wire.headers(visit.tag, visit.gate.standing(now), now)

    def _tag(self, now: float) -> Tag:
        self._count += 1
        return Tag(f"{self._born:012x}{self._count:012x}", int(now))


async def serve(app: App, port: int) -> tuple[web.ServerRunner, int]:
    """Listen on loopback; returns the runner, to clean up, and the port (a free one for 0)."""
    runner = web.ServerRunner(web.Server(app.handle, request_factory=_request), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port, backlog=1024).start()
    return runner, int(runner.addresses[0][1])


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """Return a request that may be as large as an uploaded batch."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BIGGEST_BODY)


def _bare(wire: Wire, tag: Tag, now: float) -> dict[str, str]:
    """Return headers without limits, as replies have them that come before any account or model is known."""
    return {name: value for name, value in wire.headers(tag, {}, now).items() if "ratelimit" not in name}
