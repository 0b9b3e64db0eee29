"""The table of memory growth and revision over conversation rounds.

References
----------
.. [1] "The Personalization Mirage", Tables 4 and 8, Appendices B and F.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Final, TypeAlias

import numpy as np

from analysis.accumulation import growth, line, revision_rate
from analysis.context import Context
from analysis.estimates import LEVEL, Estimate, FloatArray
from analysis.frames import Column, Kind, Row, Table
from analysis.notes import FEW_PERSONAS, few_personas, missing_note, titled
from analysis.records import Ints, Memories
from analysis.resampling import Resamples, resamples_of

EXACT_LIMIT: Final = 10_000
MEMORIES: Final = "memories"
NOTHING_HELD: Final = "no memory holds an inferred attribute: 0 is what the models wrote, in every round"

States: TypeAlias = list[list[frozenset[int] | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Conversations:
    """All memories of one model under one prompt.

    `sizes` has shape (conversations, rounds), `nan` where a memory is missing; `persona` is each conversation's
    position among the resampled personas.
    """

    persona: Ints
    sizes: FloatArray
    states: States


def accumulation(context: Context) -> Table:
    """Make the table of memory growth per model, steepest first (Tables 4 and 8)."""
    memories = context.memories
    rounds = int(np.max(memories.round, initial=0))
    personas = np.unique(memories.persona)
    rows: list[Row] = []
    if rounds:
        rng = np.random.default_rng(context.settings.seed)
        drawn = resamples_of(len(personas), rng, count=context.settings.resamples, limit=EXACT_LIMIT)
        for model, prompt in model_prompts(memories):
            mine = memories.where((memories.model == model) & (memories.prompt == prompt))
            found = _conversations(mine, personas, rounds)
            info = context.subjects[model]
            rows.append((info.label, info.family, memories.prompts[prompt], *_cells(found, drawn)))
    return Table(
        name="accumulation",
        title=titled(context, "Inferred attributes in memory over the rounds of a conversation"),
        columns=(
            Column("model", Kind.TEXT),
            Column("family", Kind.TEXT),
            Column("prompt", Kind.TEXT),
            Column("personas", Kind.COUNT, "personas"),
            Column("missing", Kind.COUNT, "memories"),
            Column("first", Kind.NUMBER, "attributes", "R1"),
            Column("last", Kind.NUMBER, "attributes", f"R{rounds}"),
            Column("growth", Kind.NUMBER, "attributes"),
            Column("per_round", Kind.NUMBER, "attributes per round"),
            Column("points", Kind.COUNT, "memories"),
            Column("slope", Kind.NUMBER, "attributes per round"),
            Column("r2", Kind.NUMBER, "", "R²"),
            Column("removal", Kind.SHARE, "share"),
        ),
        rows=tuple(sorted(rows, key=_steepest)),
        notes=_notes(memories, len(personas)),
        simulated=context.data.sweep.simulated,
    )


def model_prompts(memories: Memories) -> Sequence[tuple[int, int]]:
    """Return the (model, prompt) pairs that occur."""
    pairs = np.unique(np.stack([memories.model, memories.prompt]), axis=1)
    return [(int(model), int(prompt)) for model, prompt in pairs.T]


def _conversations(memories: Memories, personas: Ints, rounds: int) -> _Conversations:
    whole = memories.where(memories.complete)
    keys, place = np.unique(np.stack([memories.persona, memories.sample]), axis=1, return_inverse=True)
    place = place[memories.complete]
    sizes = np.full((keys.shape[1], rounds), np.nan)
    sizes[place, whole.round - 1] = whole.size
    states: States = [[None] * rounds for _ in range(keys.shape[1])]
    for row, at in enumerate(place):
        states[at][whole.round[row] - 1] = frozenset(whole.attributes(row).tolist())
    return _Conversations(persona=np.searchsorted(personas, keys[0]), sizes=sizes, states=states)


def _cells(found: _Conversations, drawn: Resamples) -> Row:
    # A persona's conversations are drawn together: each takes its persona's multiplicity.
    resamples = replace(drawn, multiplicities=drawn.multiplicities[:, found.persona])
    grown, fitted = growth(found.sizes, resamples), line(found.sizes, resamples)
    return (
        len(np.unique(found.persona)),
        int(np.isnan(found.sizes).sum()),
        grown.first,
        grown.last,
        grown.growth,
        grown.per_round,
        fitted.slope.n,
        fitted.slope,
        fitted.r2,
        revision_rate(found.states, resamples),
    )


def _steepest(row: Row) -> tuple[bool, float, str]:
    growth_cell = row[7]
    value = growth_cell.value if isinstance(growth_cell, Estimate) else np.nan
    return isnan(value), 0.0 if isnan(value) else -value, str(row[0])


def _notes(memories: Memories, personas: int) -> tuple[str, ...]:
    read = int(memories.complete.sum())
    few = [few_personas(personas)] if 0 < personas < FEW_PERSONAS else []
    return (
        f"{read:,} of {len(memories):,} {MEMORIES} read; one cut short is missing, it would pass for one that forgot",
        *missing_note(memories, MEMORIES, truncated=False),
        "R1, last round, growth: means over personas with both ends; slope and R²: least squares over (persona, round)",
        "removal: share of a round's unique attributes absent in the next, mean over rounds, then personas",
        f"intervals: {LEVEL:.0%}, over whole personas",
        *few,
        *([NOTHING_HELD] if read and not int(memories.size[memories.complete].sum()) else []),
    )
