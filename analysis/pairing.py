"""Task answers that two labellers have both read, lined up row by row. Computes no statistic."""

from typing import TypeAlias, TypeVar

import numpy as np

from analysis.context import Context
from analysis.records import Audits, Counts, Records

Labelled: TypeAlias = Records | Audits
One = TypeVar("One", Records, Audits)
Other = TypeVar("Other", Records, Audits)


def both_read(context: Context) -> tuple[Records, Audits]:
    """Return those task answers for which verdict and self-audit were both read, in the same order."""
    return lined_up(context.read(context.records), context.read(context.audits))


def lined_up(first: One, second: Other) -> tuple[One, Other]:
    """Return the rows of both whose model, persona, task and sample are in the other too, in the same order."""
    shape = tuple(_extent(first, second, name) for name in ("persona", "model", "task", "sample"))
    _, here, there = np.intersect1d(_keys(first, shape), _keys(second, shape), assume_unique=True, return_indices=True)
    return first.at(here), second.at(there)


def _extent(first: Labelled, second: Labelled, name: str) -> int:
    """Return how many positions an axis has."""
    return int(max(np.max(getattr(rows, name), initial=0) for rows in (first, second))) + 1


def _keys(rows: Labelled, shape: tuple[int, ...]) -> Counts:
    return np.ravel_multi_index((rows.persona, rows.model, rows.task, rows.sample), shape).astype(np.int64)
