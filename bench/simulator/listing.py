"""Which models an account may call, in each wire format, page by page. A read: not charged, not limited.

Listed are the models that the settings price by name and that are not gone, or the paper's where only `*` has a price.
"""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from bench.simulator.answers import NAMES
from bench.simulator.app import Handler, Route
from bench.simulator.config import ANY, Config
from bench.simulator.delivery import json_reply, plain
from bench.simulator.faults import Fault
from bench.simulator.wire import Json, Tag, Trouble, Wire

PATHS: Final = {"anthropic": ("/v1/models",), "gemini": ("/v1beta/models", "/v1/models")}
PATH: Final = ("/models",)
MOST: Final = 1000
BORN: Final = "2026-01-01T00:00:00Z"


def routes(config: Config, wires: Sequence[Wire]) -> list[Route]:
    """Return the routes of all wire formats."""
    named = sorted(name for name in config.prices if name != ANY) or sorted(NAMES)
    names = [name for name in named if not name.startswith(config.gone)]
    return [
        Route(wire.prefix + path, _handler(wire, names, config.keys), method="GET")
        for wire in wires
        for path in PATHS.get(wire.name, PATH)
    ]


def page(style: str, names: Sequence[str], query: dict[str, str]) -> Json:
    """Return one page of the list of models in a provider's style."""
    match style:
        case "anthropic":
            start = names.index(query["after_id"]) + 1 if query.get("after_id") in names else 0
            shown = names[start : start + _size(query, "limit", 20)]
            data = [{"type": "model", "id": name, "display_name": name, "created_at": BORN} for name in shown]
            more = start + len(shown) < len(names)
            ends = (shown[0], shown[-1]) if shown else (None, None)
            return {"data": data, "has_more": more, "first_id": ends[0], "last_id": ends[1]}
        case "gemini":
            token = query.get("pageToken", "")
            start = int(token) if token.isdigit() else 0
            shown = names[start : start + _size(query, "pageSize", 50)]
            following = start + len(shown)
            models = [{"name": f"models/{name}", "supportedGenerationMethods": ["generateContent"]} for name in shown]
            return {"models": models} | ({"nextPageToken": str(following)} if following < len(names) else {})
        case _:
            listed: list[Json] = [
                {"id": name, "object": "model", "created": 0, "owned_by": "simulated"} for name in names
            ]
            return {"object": "list", "data": listed}


def _handler(wire: Wire, names: Sequence[str], keys: Sequence[str]) -> Handler:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        key = wire.key(request.headers)
        if not key or (keys and key not in keys):
            return plain(wire.trouble(Trouble(fault=Fault.AUTH), Tag("0", 0)))
        return json_reply(page(wire.name, names, dict(request.query)))

    return handle


def _size(query: dict[str, str], name: str, default: int) -> int:
    asked = query.get(name, "")
    return min(max(int(asked), 1), MOST) if asked.isdigit() else default
