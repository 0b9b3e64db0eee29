"""Paths of the simulator itself, under `/_sim`: the bill, the faults, the right answer. Nothing of a provider.

GET    /_sim                   what is running
GET    /_sim/bill?hash=H       charges of one content
GET    /_sim/bill/summary      sums over the bill
GET    /_sim/faults            scripted rules;  POST adds one (a `faults.Rule` as JSON);  DELETE forgets all
GET    /_sim/known             the right answer: counts by model, task and group
"""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from bench.simulator.app import App, Route
from bench.simulator.delivery import json_reply, plain
from bench.simulator.faults import Rule
from bench.simulator.population import known_answer
from bench.simulator.wire import Reply

PREFIX: Final = "/_sim"


class Control:
    """Answers questions about the simulator."""

    def __init__(self, app: App, seed: int) -> None:
        self._app, self._seed = app, seed

    def route(self) -> Route:
        """Return the route that leads here."""
        return Route(PREFIX, self.handle)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        match request.method, request.path.removeprefix(PREFIX).rstrip("/"):
            case "GET", "":
                return json_reply({"simulated": True, "seed": self._seed, "calls": self._app.desk.bill.calls})
            case "GET", "/bill":
                charges = await asyncio.to_thread(self._app.desk.bill.find, request.query.get("hash", ""))
                return _json(charges)
            case "GET", "/bill/summary":
                return _json(await asyncio.to_thread(self._app.desk.bill.summary))
            case "GET", "/known":
                return _json(known_answer())
            case method, "/faults":
                return await self._faults(request, method)
            case _:
                return json_reply({"error": "no such path"}, status=404)

    async def _faults(self, request: web.BaseRequest, method: str) -> web.StreamResponse:
        if method == "POST":
            try:
                self._app.faults.add(msgspec.json.decode(await request.read(), type=Rule))
            except msgspec.MsgspecError as error:
                return json_reply({"error": str(error)}, status=400)
        elif method == "DELETE":
            self._app.faults.clear()
        return _json(self._app.faults.rules)


def _json(value: object) -> web.Response:
    return plain(Reply(body=msgspec.json.encode(value)))
