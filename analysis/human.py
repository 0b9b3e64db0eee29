"""What people's labels make of OI rates: finds the labels in a store, and corrects rates by them. Knows no table.

References
----------
.. [1] "The Personalization Mirage", Appendix H.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.annotations import VIEWS, Validation, ValidationError, read_validation
from analysis.context import Context
from analysis.correction import corrected_oi_bootstrap
from analysis.database import names_of, reading
from analysis.estimates import LEVEL, Estimate
from analysis.rates import Totals


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


def corrected_rate(context: Context, counts: Totals) -> Estimate | None:
    """Return an OI rate corrected for the judge's errors by people's labels; None where there are none.

    Parameters
    ----------
    context : Context
    counts : ndarray of int, shape (personas, 4) or (personas, models, 4)
        As in `corrected_oi_bootstrap`.
    """
    if context.human is None:
        return None
    # The same draw of people's items for every model, so that rows can be compared.
    rng = np.random.default_rng(context.settings.seed)
    return corrected_oi_bootstrap(counts, context.human, context.resamples, rng)


def people_notes(context: Context) -> Iterator[str]:
    """Yield whose labels a corrected rate rests on; nothing where there are none."""
    if context.human is None or context.validation is None:
        return
    people = context.validation.annotators
    name = people[0] if len(people) == 1 else f"{len(people)} annotators who count alike"
    items = round(float(context.human.sum()))
    yield (
        f"corrected OI: by people's labels (sample {context.validation.sample.name}, {name}, {items} items), weighted"
        " by the judge's labels of each row; it assumes that the judge errs alike on all models"
    )
    yield f"its intervals: {LEVEL:.0%}, over personas and over people's items within the judge's labels"


def _samples(path: Path, sweep: str, judge: str) -> list[str]:
    with reading(path) as connection:
        if not names_of(connection) >= VIEWS:
            return []
        query = "SELECT sample FROM annotation_samples WHERE sweep = ? AND judge = ? ORDER BY created_ms DESC"
        return [str(name) for (name,) in connection.execute(query, (sweep, judge))]
