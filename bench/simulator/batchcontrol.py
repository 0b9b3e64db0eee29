"""Paths of the simulator for its batches, under `/_sim/batches`, and the assembly of the batch APIs.

GET    /_sim/batches           every batch: id, provider, stage, lines, what the client wrote on it
POST   /_sim/batches           replaces what is odd about coming batches (`batchrules.Quirks`, one or a list)
DELETE /_sim/batches           coming batches are ordinary again
POST   /_sim/batches/advance   lets `{"seconds": n}` of the batches' time pass at once
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from bench.simulator.anthropic import Anthropic
from bench.simulator.anthropic_batch import AnthropicBatchDesk
from bench.simulator.app import Route
from bench.simulator.batches import Batches
from bench.simulator.batchrules import Quirks
from bench.simulator.config import Config
from bench.simulator.delivery import json_reply
from bench.simulator.gemini import Gemini
from bench.simulator.gemini_batch import GeminiBatchDesk
from bench.simulator.openai import OpenAI
from bench.simulator.openai_batch import OpenAIBatchDesk
from bench.simulator.openai_lines import SPELLINGS
from bench.simulator.wire import Wire

PREFIX: Final = "/_sim/batches"


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float


_quirks: Final = msgspec.json.Decoder(Quirks | list[Quirks])
_step: Final = msgspec.json.Decoder(_Step)


class BatchControl:
    """Answers questions about batches, and moves their time."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request."""
        try:
            match request.method, request.path.removeprefix(PREFIX).strip("/"):
                case "GET", "":
                    return json_reply(self._all())
                case "POST", "":
                    found = _quirks.decode(await request.read())
                    self._batches.odd.order(found if isinstance(found, list) else [found])
                case "DELETE", "":
                    self._batches.odd.order([])
                case "POST", "advance":
                    self._batches.advance(_step.decode(await request.read()).seconds)
                case _:
                    return json_reply({"error": "no such path"}, status=404)
        except msgspec.MsgspecError as error:
            return json_reply({"error": str(error)}, status=400)
        return json_reply({"now": self._batches.now()})

    def _all(self) -> list[dict[str, object]]:
        return [
            {
                "id": job.id,
                "provider": job.provider,
                "stage": self._batches.stage(job).value,
                "lines": len(job.lines),
                "label": job.label,
            }
            for job in self._batches.jobs.values()
        ]


def routes(config: Config, wires: Sequence[Wire], batches: Batches) -> list[Route]:
    """Return the routes of all batch APIs and of their control."""
    found = [Route(PREFIX, BatchControl(batches).handle)]
    for wire in wires:
        if isinstance(wire, OpenAI) and wire.name in SPELLINGS:
            found += OpenAIBatchDesk(wire, batches, config.keys).routes()
        elif isinstance(wire, Anthropic):
            found += AnthropicBatchDesk(wire, batches, config.keys).routes()
        elif isinstance(wire, Gemini):
            found += GeminiBatchDesk(wire, batches, config.keys).routes()
    return found
