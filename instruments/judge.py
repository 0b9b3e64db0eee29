"""The judge: every claim of a response, labelled from the evidence alone and checked against the profile (paper G.2).

One instrument serves two stages. `judge` labels task responses; `probe_judge` labels probe answers in the same way,
with the probe request as the task context. Each judge of the design is asked once for every answer, with the answer's
own sample index. The response under evaluation is hostile text: it stands in the prompt only.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from engine.cell import Reading
from engine.request import Completion, Message, Role, chat
from instruments.answers import read_judgement
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.personas import Persona
from instruments.prompts import numbered
from instruments.schemas import decoding

VERSION: Final = 1
PROMPTS: Final = ("judge_system", "judge_user", "judge_instruction")


class JudgeInstrument:
    """Asked only as a follow-up; nothing follows from its answers."""

    def plan(self, _design: Design, /) -> Iterator[Ask]:
        """Yield nothing: there is no answer to judge yet."""
        yield from ()

    def read(self, completion: Completion, /) -> Reading:
        """Read the list of labelled claims; an explicit empty list is a complete reading of no claims."""
        return read_judgement(completion, VERSION)

    def follow_up(
        self, _coords: Coords, _completion: Completion, _reading: Reading, _design: Design, /
    ) -> Sequence[Ask]:
        """Return nothing."""
        return ()


def judge_asks(design: Design, coords: Coords, stage: Stage, *, request: str, response: str) -> list[Ask]:
    """Return the questions to all judges about one answer.

    Args:
        design: the sweep's design.
        coords: those of the answer.
        stage: `judge` or `probe_judge`; nothing is asked when the design leaves it out.
        request: the words that the answer responds to; context, not evidence.
        response: the answer.
    """
    if stage not in design.stages:
        return []
    messages = judge_messages(design, design.personas[coords.persona], request, response)
    settings, tag = decoding(design, stage), design.prompts.tag(*PROMPTS)
    return [
        Ask(
            alias=judge,
            stage=stage,
            coords=msgspec.structs.replace(coords, judge=judge, prompt=tag),
            messages=messages,
            decoding=settings,
        )
        for judge in design.judges
    ]


def judge_messages(design: Design, persona: Persona, request: str, response: str) -> tuple[Message, ...]:
    """Return the judge's system and user prompt; our instruction follows the paper's blocks after a blank line."""
    blocks = design.prompts.fill(
        "judge_user",
        revealed_facts=numbered(persona.facts),
        task=request,
        ground_truth=persona.ground_truth(),
        response=response,
    )
    instruction = design.prompts.fill("judge_instruction")
    return chat((Role.SYSTEM, design.prompts.fill("judge_system")), (Role.USER, f"{blocks}\n\n{instruction}"))
