"""What people's labels make of a sweep's OI rates: finds the labels in a store, and corrects the rates by them.

References
----------
.. [1] "The Personalization Mirage", Appendix H.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from analysis.annotations import VIEWS, Validation, ValidationError, read_validation
from analysis.context import Context
from analysis.correction import corrected_oi_bootstrap
from analysis.estimates import LEVEL
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import ALL_MODELS, MODEL, falling, judged_notes
from analysis.notes import titled
from analysis.rates import OI, Totals, share_estimates, shares

_CORRECTED: Final = 4
NO_LABELS: Final = "nobody has labelled claims of this judge: nothing to correct by (`mirage annotate`)"


def find_validation(path: Path, sweep: str, judge: str) -> Validation | None:
    """Return people's labels of this judge's claims in this sweep, those of the newest sample that has any.

    Parameters
    ----------
    path : Path
        The store; a folder of exported files has none.
    sweep, judge : str
        The sweep's name and the judge's alias.
    """
    for sample in _samples(path, sweep, judge) if path.is_file() else ():
        try:
            return read_validation(path, sample)
        except ValidationError:
            continue
    return None


def corrected(context: Context) -> Table:
    """Make the table of OI rates corrected for the judge's errors, worst first; empty without people's labels."""
    human = context.human
    rows = [] if human is None else list(_corrected_rows(context, human))
    return Table(
        name="corrected",
        title=titled(context, "OI rate, corrected for the judge's errors by people's labels"),
        columns=(
            *MODEL,
            Column("claims", Kind.COUNT, "claims"),
            Column("judge_oi", Kind.SHARE, "share", "judge OI"),
            Column("corrected_oi", Kind.SHARE, "share", "corrected OI"),
            Column("correction", Kind.POINTS, "share"),
            Column("human_items", Kind.COUNT, "items"),
        ),
        rows=tuple(rows),
        notes=(*_notes(context), *judged_notes(context)),
        simulated=context.data.sweep.simulated,
    )


def _corrected_rows(context: Context, human: Totals) -> Iterator[Row]:
    by_model = context.judged.sum(axis=2)
    judged = share_estimates(context.judged, context.resamples)
    rows = [
        (
            model.label,
            model.family,
            int(by_model[:, place].sum()),
            judged[place, OI],
            *_cells(context, by_model[:, place], human),
        )
        for place, model in enumerate(context.subjects)
    ]
    yield from falling(rows, by=_CORRECTED)
    whole = by_model.sum(axis=1)
    pooled = share_estimates(context.judged, context.resamples, by=())[OI]
    yield (ALL_MODELS, "", int(whole.sum()), pooled, *_cells(context, whole, human))


def _cells(context: Context, counts: Totals, human: Totals) -> Row:
    # The same draw of people's items for every model, so that rows can be compared.
    rng = np.random.default_rng(context.settings.seed)
    found = corrected_oi_bootstrap(counts, human, context.resamples, rng)
    return (found, found.value - float(shares(counts.sum(axis=0))[OI]), found.n)


def _notes(context: Context) -> Iterator[str]:
    if context.human is None or context.validation is None:
        yield NO_LABELS
        return
    name, _ = context.validation.reference()
    yield f"people's labels: sample {context.validation.sample.name}, {name}, {int(context.human.sum())} items"
    yield "weighted by the judge's labels in each row; it assumes that the judge errs alike on all models"
    yield f"intervals: {LEVEL:.0%}, over personas and over people's items within the judge's labels"


def _samples(path: Path, sweep: str, judge: str) -> list[str]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        views = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
        if not views >= VIEWS:
            return []
        query = "SELECT sample FROM annotation_samples WHERE sweep = ? AND judge = ? ORDER BY created_ms DESC"
        return [str(name) for (name,) in connection.execute(query, (sweep, judge))]
