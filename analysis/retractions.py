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
from analysis.estimates import LEVEL, Estimate
from analysis.frames import Column, Kind, Row, Table
from analysis.memory import EXACT_LIMIT, model_prompts
from analysis.notes import titled
from analysis.ratios import ratio_estimates
from analysis.records import Contradiction, Memories
from analysis.resampling import Resamples, resamples_of

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
    personas = sorted({told.persona for told in context.data.sweep.contradictions})
    rng = np.random.default_rng(context.settings.seed)
    drawn = resamples_of(len(personas) or 1, rng, count=context.settings.resamples, limit=EXACT_LIMIT)
    for label, family, prompt, cases, gone in _by_model(context):
        found = _together(cases)
        at_once, others = _shares(cases, personas, drawn)
        rows.append(
            (
                label,
                family,
                prompt,
                len(cases),
                gone,
                found.held,
                found.retracted,
                at_once,
                found.retracted_by_end,
                found.other_held,
                found.other_removed,
                others,
            )
        )
    return Table(
        name="retraction",
        title=titled(context, "Inferences that a later message contradicts: are they taken back?"),
        columns=(
            *(Column(name, Kind.TEXT) for name in ("model", "family", "prompt")),
            Column("conversations", Kind.COUNT, "conversations"),
            Column("missing", Kind.COUNT, "conversations"),
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
            "missing: conversations with such a message, but without a whole memory before or after it",
            "held: attributes in memory just before the contradicting message that bear what it contradicts",
            "retracted: absent right after it; other: all other attributes in the same step, to compare with",
            f"intervals: {LEVEL:.0%}, over whole personas",
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
        for label, _, prompt, cases, _ in _by_model(context)
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


def _by_model(context: Context) -> Iterator[tuple[str, str, str, list[_Case], int]]:
    """Yield label, family, prompt, cases and how many cases are missing, of every model and memory prompt."""
    memories = context.memories
    if not context.data.sweep.contradictions:
        return
    for model, prompt in model_prompts(memories):
        mine = memories.where((memories.model == model) & (memories.prompt == prompt))
        info = context.subjects[model]
        told = [case for each in context.data.sweep.contradictions for case in _cases(context, mine, each)]
        cases = [case for case in told if case is not None]
        yield info.label, info.family, memories.prompts[prompt], cases, len(told) - len(cases)


def _cases(context: Context, memories: Memories, told: Contradiction) -> Iterator[_Case | None]:
    """Yield the conversations of the contradiction's persona; None where a memory on either side of it is missing."""
    names, rounds = context.data.axes.personas, int(np.max(context.memories.round, initial=0))
    # The first message has nothing to contradict, and one after the last was never said.
    if told.persona not in names or not 2 <= told.round <= rounds:  # noqa: PLR2004
        return
    mine = memories.where(memories.persona == names.index(told.persona))
    for sample in np.unique(mine.sample).tolist():
        states = _states(mine.where(mine.sample == sample))
        before, after = (states[at] if at < len(states) else None for at in (told.round - 2, told.round - 1))
        if before is None or after is None:
            yield None
        else:
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


def _shares(cases: Sequence[_Case], personas: Sequence[str], drawn: Resamples) -> tuple[Estimate, Estimate]:
    """Return the shares of contradicted and of other attributes that were removed at once, over personas."""
    counts = np.zeros((4, len(personas)), np.int64)
    for case in cases:
        one = _together([case])
        held = (one.retracted, one.held, one.other_removed, one.other_held)
        counts[:, personas.index(case.contradiction.persona)] += held
    method, empty = "share of attributes removed at once", "no such attribute held"
    first, second = (
        ratio_estimates(counts[at], counts[at + 1], drawn, method=method, empty=empty)[()] for at in (0, 2)
    )
    return first, second


def _fate(case: _Case, attribute: str) -> str:
    after = case.states[case.contradiction.round - 1] or frozenset()
    last = next(state for state in reversed(case.states) if state is not None)
    if attribute not in after:
        return "retracted at once"
    return "kept to the end" if attribute in last else "retracted later"
