"""Tables of what becomes of remembered inferences that a later message contradicts.

References
----------
.. [1] "The Personalization Mirage", section "Inference Accumulates in a Multi-Turn Pilot", Appendix F (no inference was
   retracted because a later message contradicted it).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analysis.accumulation import Retraction, sharing_words
from analysis.accumulation import retraction as retracted
from analysis.context import Context
from analysis.frames import Column, Kind, Row, Table
from analysis.memory import model_prompts
from analysis.notes import titled
from analysis.records import Contradiction, Memories

NO_SCRIPTS: Final = "the sweep's manifest names no message that contradicts an earlier assumption"
SCREEN: Final = (
    "found by shared words (two or more of four letters): it misses paraphrases and takes accidents for hits, so read"
    " contradicted_attributes beside it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One conversation with a contradicting message: what bore the contradicted assumption, and what became of it."""

    contradiction: Contradiction
    sample: int
    states: tuple[frozenset[str] | None, ...]
    bearing: frozenset[str]


def retraction(context: Context) -> Table:
    """Make the table of contradicted attributes that were retracted, beside the removal of all others."""
    rows: list[Row] = []
    for label, family, prompt, cases in _by_model(context):
        found = _together(cases)
        rows.append(
            (
                label,
                family,
                prompt,
                len(cases),
                found.held,
                found.retracted,
                found.rate,
                found.retracted_by_end,
                found.other_held,
                found.other_removed,
                found.other_rate,
            )
        )
    return Table(
        name="retraction",
        title=titled(context, "Inferences that a later message contradicts: are they taken back?"),
        columns=(
            *(Column(name, Kind.TEXT) for name in ("model", "family", "prompt")),
            Column("conversations", Kind.COUNT, "conversations"),
            Column("held", Kind.COUNT, "attributes"),
            Column("retracted", Kind.COUNT, "attributes"),
            Column("retraction", Kind.SHARE, "share"),
            Column("retracted_by_end", Kind.COUNT, "attributes"),
            Column("other_held", Kind.COUNT, "attributes"),
            Column("other_removed", Kind.COUNT, "attributes"),
            Column("other_removal", Kind.SHARE, "share"),
        ),
        rows=tuple(rows),
        notes=(
            *([] if context.data.sweep.contradictions else [NO_SCRIPTS]),
            "held: attributes in memory just before the contradicting message that bear what it contradicts",
            "retracted: absent right after it; other: all other attributes in the same step, to compare with",
            SCREEN,
        ),
        simulated=context.data.sweep.simulated,
    )


def contradicted_attributes(context: Context) -> Table:
    """Make the list of attributes that `retraction` rests on, and what became of each."""
    rows: list[Row] = [
        (
            label,
            prompt,
            case.contradiction.persona,
            case.sample,
            case.contradiction.round,
            case.contradiction.statement,
            attribute,
            _fate(case, attribute),
        )
        for label, _, prompt, cases in _by_model(context)
        for case in cases
        for attribute in sorted(case.bearing)
    ]
    return Table(
        name="contradicted_attributes",
        title=titled(context, "Remembered attributes that a later message contradicts"),
        columns=(
            *(Column(name, Kind.TEXT) for name in ("model", "prompt", "persona")),
            Column("sample", Kind.COUNT),
            Column("round", Kind.COUNT),
            *(Column(name, Kind.TEXT) for name in ("contradicts", "attribute", "fate")),
        ),
        rows=tuple(rows),
        notes=(
            *([] if context.data.sweep.contradictions else [NO_SCRIPTS]),
            "fate: retracted at once, retracted later, or kept to the end",
            SCREEN,
        ),
        simulated=context.data.sweep.simulated,
    )


def _by_model(context: Context) -> Iterator[tuple[str, str, str, list[_Case]]]:
    """Yield label, family, prompt and cases of every model and memory prompt."""
    memories = context.memories
    if not context.data.sweep.contradictions:
        return
    for model, prompt in model_prompts(memories):
        mine = memories.where((memories.model == model) & (memories.prompt == prompt))
        info = context.subjects[model]
        cases = [case for told in context.data.sweep.contradictions for case in _cases(context, mine, told)]
        yield info.label, info.family, memories.prompts[prompt], cases


def _cases(context: Context, memories: Memories, told: Contradiction) -> Iterator[_Case]:
    """Yield the conversations of the contradiction's persona whose memory is known on both sides of it."""
    names = context.data.axes.personas
    if told.persona not in names or told.round < 2:  # noqa: PLR2004 - the first message has nothing to contradict
        return
    mine = memories.where(memories.persona == names.index(told.persona))
    for sample in np.unique(mine.sample).tolist():
        states = _states(mine.where(mine.sample == sample))
        if told.round > len(states) or None in states[told.round - 2 : told.round]:
            continue
        before = states[told.round - 2] or frozenset()
        bearing = sharing_words(before, told.statement)
        yield _Case(contradiction=told, sample=sample, states=states, bearing=bearing)


def _states(memories: Memories) -> tuple[frozenset[str] | None, ...]:
    """Return one conversation's memories by round, None where one is missing."""
    states: list[frozenset[str] | None] = [None] * int(np.max(memories.round, initial=0))
    for row in np.flatnonzero(memories.complete).tolist():
        texts = memories.pool.texts
        states[memories.round[row] - 1] = frozenset(texts[code] for code in memories.attributes(row).tolist())
    return tuple(states)


def _together(cases: Sequence[_Case]) -> Retraction:
    told = [(place, case.contradiction.round, case.bearing) for place, case in enumerate(cases)]
    return retracted([case.states for case in cases], told)


def _fate(case: _Case, attribute: str) -> str:
    after = case.states[case.contradiction.round - 1] or frozenset()
    last = next(state for state in reversed(case.states) if state is not None)
    if attribute not in after:
        return "retracted at once"
    return "kept to the end" if attribute in last else "retracted later"
