"""The table behind the accumulation curves: memory sizes after every round, not only after the first and the last."""

from typing import Final

import numpy as np

from analysis.context import Context
from analysis.estimates import LEVEL, FloatArray
from analysis.frames import Column, Kind, Row, Table
from analysis.memory import EXACT_LIMIT, MEMORIES
from analysis.notes import FEW_PERSONAS, few_personas, missing_note, titled
from analysis.ratios import ratio_estimates
from analysis.records import Ints, Memories
from analysis.resampling import Resamples, resamples_of

ROUND: Final = "round_"
NO_MEMORY: Final = "no memory of this round"


def accumulation_rounds(context: Context) -> Table:
    """Make the table of mean memory sizes by model, prompt and round."""
    memories = context.memories
    rounds = int(np.max(memories.round, initial=0))
    personas = np.unique(memories.persona)
    rows: list[Row] = []
    if rounds:
        rng = np.random.default_rng(context.settings.seed)
        drawn = resamples_of(len(personas), rng, count=context.settings.resamples, limit=EXACT_LIMIT)
        for model, prompt in np.unique(np.stack([memories.model, memories.prompt]), axis=1).T.tolist():
            mine = memories.where((memories.model == model) & (memories.prompt == prompt))
            name, variant = context.subjects[model].label, memories.prompts[prompt]
            rows.append((name, variant, len(np.unique(mine.persona)), *_means(mine, personas, rounds, drawn)))
    return Table(
        name="accumulation_rounds",
        title=titled(context, "Inferred attributes in memory after every round"),
        columns=(
            Column("model", Kind.TEXT),
            Column("prompt", Kind.TEXT),
            Column("personas", Kind.COUNT, "personas"),
            *(
                Column(f"{ROUND}{place}", Kind.NUMBER, "attributes", f"R{place}", brief=True, digits=1)
                for place in range(1, rounds + 1)
            ),
        ),
        rows=tuple(rows),
        notes=_notes(memories, len(personas)),
        simulated=context.data.sweep.simulated,
    )


def _means(memories: Memories, personas: Ints, rounds: int, drawn: Resamples) -> Row:
    """Return the mean size of whole memories for every round, over conversations, resampling personas."""
    whole = memories.where(memories.complete)
    sizes: FloatArray = np.zeros((len(personas), rounds))
    known = np.zeros((len(personas), rounds), np.int64)
    place = (np.searchsorted(personas, whole.persona), whole.round - 1)
    np.add.at(sizes, place, whole.size)
    np.add.at(known, place, 1)
    found = ratio_estimates(sizes, known, drawn, method="attributes in memory", empty=NO_MEMORY)
    return tuple(found[at] for at in range(rounds))


def _notes(memories: Memories, personas: int) -> tuple[str, ...]:
    read = int(memories.complete.sum())
    few = [few_personas(personas)] if 0 < personas < FEW_PERSONAS else []
    return (
        f"{read:,} of {len(memories):,} {MEMORIES} read; each round is the mean over the memories read of that round",
        *missing_note(memories, MEMORIES, truncated=False),
        f"intervals: {LEVEL:.0%}, over whole personas",
        *few,
    )
