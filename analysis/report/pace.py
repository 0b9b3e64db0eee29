"""The table of throughput: how fast each model answered while it was busy."""

from typing import Final

import numpy as np

from analysis.context import Context
from analysis.estimates import NAN
from analysis.frames import Column, Kind, Row, Table
from analysis.notes import titled
from analysis.records import Ints, Mask
from analysis.report.reading import Settled

ALL: Final = "all models"
SECOND_MS: Final = 1000
MINUTE_S: Final = 60
SLOW: Final = 0.95


def throughput(settled: Settled, context: Context) -> Table:
    """Make the table of answers and tokens per busy time, and of latencies.

    Parameters
    ----------
    settled : Settled
        One row per answered request.
    context : Context
        Names models and sweep.
    """
    simulated = context.data.sweep.simulated
    rows: list[Row] = []
    for place, model in enumerate(settled.models):
        rows.append((context.label(model), *_cells(settled, settled.model == place)))
    if len(rows) > 1:
        rows.append((ALL, *_cells(settled, settled.model >= 0)))
    return Table(
        name="throughput",
        title=titled(context, "Throughput by answering model"),
        columns=(
            Column("model", Kind.TEXT),
            Column("answers", Kind.COUNT, "answers"),
            Column("busy_minutes", Kind.NUMBER, "minutes"),
            Column("answers_per_minute", Kind.NUMBER, "answers per busy minute", "answers / min", digits=1),
            Column("tokens_per_second", Kind.NUMBER, "output tokens per busy second", "output tokens / s", digits=1),
            Column("median_latency", Kind.NUMBER, "seconds", "median latency, s"),
            Column("slow_latency", Kind.NUMBER, "seconds", "95th percentile, s"),
        ),
        rows=tuple(rows),
        notes=(
            "busy: at least one answered call of the model was under way; pauses between runs do not count",
            "latency: of the attempt that brought the answer, waiting for its turn left out",
            *(("times of a simulator, not of any provider",) if simulated else ()),
        ),
        simulated=simulated,
    )


def busy_ms(start: Ints, end: Ints) -> int:
    """Return for how long at least one of some intervals lasted.

    Examples
    --------
    >>> busy_ms(np.array([0, 5, 30]), np.array([10, 12, 31]))
    13
    """
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    first, last = start[order], np.maximum.accumulate(end[order])
    seen = np.concatenate([[first[0]], last[:-1]])
    return int(np.maximum(last - np.maximum(first, seen), 0).sum())


def _cells(settled: Settled, mine: Mask) -> Row:
    settled_ms, latency_ms = settled.settled_ms[mine], settled.latency_ms[mine]
    busy = busy_ms(settled_ms - latency_ms, settled_ms) / SECOND_MS
    median, slow = np.quantile(latency_ms, (0.5, SLOW)) / SECOND_MS if len(latency_ms) else (NAN, NAN)
    return (
        len(settled_ms),
        busy / MINUTE_S,
        len(settled_ms) * MINUTE_S / busy if busy else NAN,
        int(settled.output_tokens[mine].sum()) / busy if busy else NAN,
        float(median),
        float(slow),
    )
