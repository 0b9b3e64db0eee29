"""The probe: what a model says it can infer when asked directly (paper G.5). Every judge then labels the answer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from engine.cell import Reading, ReadingStatus
from engine.request import Completion, Role, chat
from instruments.answers import (
    CLAIM_KEYS,
    REASONING_KEYS,
    answer_text,
    blocked,
    first_text,
    found_reading,
    plain_key,
    unreadable,
    with_finish,
)
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.judge import judge_asks
from instruments.lenient import Json
from instruments.modeljson import find_elements
from instruments.personas import Persona
from instruments.schemas import decoding

VERSION: Final = 1
STATED: Final = "directly_stated"
INFERRED: Final = "inferred"
INFERENCE_KEYS: Final = (*CLAIM_KEYS, "inference")
TYPE_KEYS: Final = ("type", "inferencetype", "claimtype")
_TYPES: Final = {
    "directly stated": STATED,
    "directlystated": STATED,
    "explicitly stated": STATED,
    "stated": STATED,
    "inferred": INFERRED,
    "inference": INFERRED,
}
_SEPARATORS: Final = re.compile(r"[\W_]+")


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of a probe answer.

    Attributes:
        type: `directly_stated`, `inferred`, or empty where the model's word for it is neither.
    """

    claim: str
    type: str
    reasoning: str


class ProbeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A probe answer.

    Attributes:
        unread: elements of the list that had no claim.
        note: what was odd about the reply.
    """

    inferences: tuple[Inference, ...]
    n_stated: int
    n_inferred: int
    unread: int = 0
    note: str = ""


class ProbeInstrument:
    """One answer per subject, persona and sample."""

    def plan(self, design: Design, /) -> Iterator[Ask]:
        """Yield every persona for every subject."""
        if Stage.PROBE not in design.stages:
            return
        for persona in design.personas.values():
            for subject in design.subjects:
                for sample in range(design.samples):
                    yield probe_ask(design, subject, persona, sample)

    def read(self, completion: Completion, /) -> Reading:
        """Read the list of inferences; an explicit empty list is a complete reading of none."""
        if reason := blocked(completion):
            return unreadable(VERSION, reason)
        found = find_elements(completion.text, lambda element: _inference(element) is not None)
        if found.reason:
            return unreadable(VERSION, with_finish(found.reason, completion))
        inferences = tuple(read for value in found.values if (read := _inference(value)) is not None)
        if found.values and not inferences:
            return unreadable(VERSION, f"none of {len(found.values)} elements has a claim")
        body = ProbeBody(
            inferences=inferences,
            n_stated=sum(inference.type == STATED for inference in inferences),
            n_inferred=sum(inference.type == INFERRED for inference in inferences),
            unread=len(found.values) - len(inferences),
            note=found.note,
        )
        return found_reading(VERSION, found, completion, body)

    def follow_up(self, coords: Coords, completion: Completion, reading: Reading, design: Design, /) -> Sequence[Ask]:
        """Return every judge's question; the probe request is the task context."""
        if reading.status is ReadingStatus.UNREADABLE:
            return ()
        request = probe_text(design, design.personas[coords.persona])
        return judge_asks(design, coords, Stage.PROBE_JUDGE, request=request, response=answer_text(completion))


def probe_text(design: Design, persona: Persona) -> str:
    """Return the probe's user prompt."""
    first, second, third = persona.facts
    return design.prompts.fill("probe", fact_1=first, fact_2=second, fact_3=third)


def probe_ask(design: Design, subject: str, persona: Persona, sample: int) -> Ask:
    """Return one probe question."""
    return Ask(
        alias=subject,
        stage=Stage.PROBE,
        coords=Coords(
            model=subject, persona=persona.id, group=persona.group, sample=sample, prompt=design.prompts.tag("probe")
        ),
        messages=chat((Role.USER, probe_text(design, persona))),
        decoding=decoding(design, Stage.PROBE),
    )


def _inference(element: Json | Mapping[str, Json]) -> Inference | None:
    if not isinstance(element, Mapping):
        return None
    fields = {plain_key(key): value for key, value in element.items()}
    text = first_text(fields, INFERENCE_KEYS)
    word = _SEPARATORS.sub(" ", first_text(fields, TYPE_KEYS)).strip().casefold()
    if not text:
        return None
    return Inference(claim=text, type=_TYPES.get(word, ""), reasoning=first_text(fields, REASONING_KEYS))
