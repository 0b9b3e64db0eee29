"""The self-audit: the model that wrote a response lists and labels its own claims (paper G.6).

A separate single turn to the same model, with the response quoted in the prompt and the model's own sample index.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from engine.cell import Reading
from engine.request import Completion, Role, chat
from instruments.answers import read_audit
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.schemas import decoding

VERSION: Final = 1
PROMPTS: Final = ("audit", "audit_task")


class AuditInstrument:
    """Asked only as a follow-up; nothing follows from its answers."""

    def plan(self, _design: Design, /) -> Iterator[Ask]:
        """Yield nothing: there is no response to audit yet."""
        yield from ()

    def read(self, completion: Completion, /) -> Reading:
        """Read the list of labelled claims; an explicit empty list is a complete reading of no claims."""
        return read_audit(completion, VERSION)

    def follow_up(
        self, _coords: Coords, _completion: Completion, _reading: Reading, _design: Design, /
    ) -> Sequence[Ask]:
        """Return nothing."""
        return ()


def audit_asks(design: Design, coords: Coords, response: str) -> list[Ask]:
    """Return the question to the response's author about its own claims, if the design audits at all."""
    if Stage.AUDIT not in design.stages:
        return []
    first, second, third = design.personas[coords.persona].facts
    task = design.prompts.fill("audit_task", prompt=design.tasks[coords.task].prompt)
    text = design.prompts.fill("audit", task=task, fact_1=first, fact_2=second, fact_3=third, response=response)
    return [
        Ask(
            alias=coords.model,
            stage=Stage.AUDIT,
            coords=msgspec.structs.replace(coords, prompt=design.prompts.tag(*PROMPTS)),
            messages=chat((Role.USER, text)),
            decoding=decoding(design, Stage.AUDIT),
        )
    ]
