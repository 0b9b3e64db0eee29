"""The table of OI rates corrected for the judge's errors.

References
----------
.. [1] "The Personalization Mirage", Appendix H.
"""

from collections.abc import Iterator
from typing import Final

from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Row, Table
from analysis.human import corrected_rate, people_notes
from analysis.judged import ALL_MODELS, MEAN_OF_MODELS, MODEL, falling, judged_notes
from analysis.notes import titled
from analysis.rates import OI, Totals, oi_macro, share_estimates

_CORRECTED: Final = 4
NO_LABELS: Final = "nobody has labelled claims of this judge: nothing to correct by (`mirage annotate`)"


def corrected(context: Context) -> Table:
    """Make the table of OI rates corrected for the judge's errors, worst first; empty without people's labels."""
    rows = [] if context.human is None else list(_rows(context))
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
        notes=(*(people_notes(context) if rows else [NO_LABELS]), *judged_notes(context)),
        simulated=context.data.sweep.simulated,
    )


def _rows(context: Context) -> Iterator[Row]:
    by_model = context.judged.sum(axis=2)
    judged = share_estimates(context.judged, context.resamples)
    macro, micro = (
        oi_macro(context.judged, context.resamples),
        share_estimates(context.judged, context.resamples, by=())[OI],
    )
    rows = [
        (model.label, model.family, *_cells(context, by_model[:, place], judged[place, OI]))
        for place, model in enumerate(context.subjects)
    ]
    yield from falling(rows, by=_CORRECTED)
    yield (MEAN_OF_MODELS, "", None, *_cells(context, by_model, macro)[1:])
    yield (ALL_MODELS, "", *_cells(context, by_model.sum(axis=1), micro))


def _cells(context: Context, counts: Totals, judged: Estimate) -> Row:
    found = corrected_rate(context, counts)
    if found is None:
        return (int(counts.sum()), judged, None, None, None)
    return (int(counts.sum()), judged, found, found.value - judged.value, found.n)
