"""The whole benchmark as one reader and one plan: which instrument serves which stage. Pure; calls no model.

The plan goes persona by persona, and for each persona subject by subject. Questions with equal beginnings follow each
other in every subject's queue, all subjects advance together, and a sweep that runs out of money halfway has whole
personas for every subject instead of all personas for the first.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from engine.cell import Cell, Read
from engine.errors import UserError
from engine.request import Completion
from instruments.accum import AccumInstrument, round_count
from instruments.audit import AuditInstrument
from instruments.instrument import Ask, Coords, Design, Instrument, Stage
from instruments.judge import JudgeInstrument
from instruments.probe import ProbeInstrument
from instruments.task import TaskInstrument

INSTRUMENTS: Final[Mapping[Stage, Instrument]] = MappingProxyType(
    {
        Stage.PROBE: ProbeInstrument(),
        Stage.PROBE_JUDGE: JudgeInstrument(),
        Stage.TASK: TaskInstrument(),
        Stage.AUDIT: AuditInstrument(),
        Stage.JUDGE: JudgeInstrument(),
        Stage.ACCUM: AccumInstrument(),
    }
)
# Which stage's answers a follow-up is asked about.
FOLLOWS: Final[Mapping[Stage, Stage]] = MappingProxyType(
    {Stage.PROBE_JUDGE: Stage.PROBE, Stage.AUDIT: Stage.TASK, Stage.JUDGE: Stage.TASK}
)
ROOTS: Final = (Stage.PROBE, Stage.TASK, Stage.ACCUM)
_coords = msgspec.json.Decoder(Coords)


class SweepReader:
    """Reads completions for one design (the engine's `Reader`).

    Args:
        compose: turns a question into a cell, that is, resolves an alias to its provider and snapshot.
    """

    def __init__(self, design: Design, compose: Callable[[Ask], Cell]) -> None:
        self._design, self._compose = design, compose

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return the reading of an answer and the cells that follow from it; never raises on a model's words.

        Raises:
            UserError: the cell belongs to another design: its stage, persona, task or script is not in this one.
        """
        instrument, place = self._instrument(stage), self._place(coords)
        reading = instrument.read(completion)
        asks = instrument.follow_up(place, completion, reading, self._design)
        return Read(reading=reading, follow_ups=tuple(self._compose(ask) for ask in asks))

    def _instrument(self, stage: str) -> Instrument:
        try:
            return INSTRUMENTS[Stage(stage)]
        except ValueError:
            mend = f"the stages are {', '.join(Stage)}"
            raise UserError(f"no instrument reads stage {stage!r}", where="store", mend=mend) from None

    def _place(self, coords: bytes) -> Coords:
        place = _coords.decode(coords)
        design = self._design
        strangers = [
            *([f"persona {place.persona!r}"] if place.persona not in design.personas else []),
            *([f"task {place.task!r}"] if place.task and place.task not in design.tasks else []),
            *([f"the script of {place.persona!r}"] if place.round and place.persona not in design.scripts else []),
        ]
        if strangers:
            mend = "read it with the design that it was planned with"
            raise UserError(f"the design does not have {', '.join(strangers)}", where="store", mend=mend)
        return place


def coords_json(coords: Coords) -> bytes:
    """Return the canonical JSON of coordinates: fields in one order, defaults left out."""
    return msgspec.json.encode(coords)


def plan(design: Design) -> Iterator[Ask]:
    """Yield every question that needs no earlier answer."""
    for persona in design.personas.values():
        for subject in design.subjects:
            part = msgspec.structs.replace(design, personas={persona.id: persona}, subjects=(subject,))
            for stage in ROOTS:
                yield from INSTRUMENTS[stage].plan(part)


def count_asks(design: Design) -> dict[tuple[Stage, str], int]:
    """Return the number of questions by stage and alias if every answer can be read and no two cells share a call."""
    counts: Counter[tuple[Stage, str]] = Counter()
    probes = len(design.personas) * design.samples
    tasks = probes * len(design.tasks)
    rounds = sum(round_count(design, persona) for persona in design.personas if persona in design.scripts)
    own = {Stage.PROBE: probes, Stage.TASK: tasks, Stage.AUDIT: tasks, Stage.ACCUM: rounds * design.samples}
    judged = {Stage.PROBE_JUDGE: probes * len(design.subjects), Stage.JUDGE: tasks * len(design.subjects)}
    for stage in _reachable(design):
        aliases = design.judges if stage in judged else design.subjects
        for alias in aliases:
            counts[stage, alias] += judged.get(stage, own.get(stage, 0))
    return {key: count for key, count in counts.items() if count}


def feeds(design: Design) -> dict[str, frozenset[str]]:
    """Return, for every stage, the stages whose answers can lead to more of its questions; roots have none.

    While any of these has an answer to come, the stage may still grow. A round of accumulation leads to the next one.
    """
    own = {Stage.ACCUM: {Stage.ACCUM}} if design.rounds > 1 else {}
    parents = {stage: {parent} for stage, parent in FOLLOWS.items()}
    found: dict[Stage, set[Stage]] = {**parents, **own}
    return {
        stage.value: frozenset(parent.value for parent in found.get(stage, ()) if stage in design.stages)
        for stage in Stage
    }


def _reachable(design: Design) -> Iterator[Stage]:
    """Yield the design's stages that some answer leads to."""
    for stage in Stage:
        if stage in design.stages and FOLLOWS.get(stage, stage) in design.stages:
            yield stage
