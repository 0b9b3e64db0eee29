"""Tables of the cross-model relation between what models admit and what the judge finds.

References
----------
.. [1] "The Personalization Mirage", Table 2, section "The Self-Monitoring Inversion", Appendix A.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Final

import numpy as np
from scipy.stats import kendalltau

from analysis import rates
from analysis.context import Context
from analysis.correction import corrected_oi
from analysis.correlation import (
    FEWEST_PAIRS,
    LeftOut,
    leave_one_out,
    spearman,
    spearman_interval,
    spearman_over,
    spearman_p,
)
from analysis.estimates import Estimate, FloatArray, PValue, TextArray, missing
from analysis.frames import Column, Kind, Row, Table
from analysis.notes import denominators_note, interval_note, titled
from analysis.words import plural

FEW_MODELS: Final = 30
SHIFT: Final = 0.1
RHO: Final = "Spearman's rho"
MODELS: Final = "models"
FAMILIES: Final = "whole families"
PERSONAS: Final = "personas, models fixed"
NO_HUMAN: Final = "no human labels for this judge: the relation to judge-corrected OI is not here"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rates:
    """Self-audit and judge OI of the models that have both, observed and under every resample; and their families."""

    audited: FloatArray
    judged: FloatArray
    families: TextArray

    @property
    def pairs(self) -> tuple[FloatArray, FloatArray]:
        """The observed rates."""
        return self.audited[:, 0], self.judged[:, 0]


def inversion(context: Context) -> Table:
    """Make the table of rank correlations between self-audit OI and judge OI over models (Table 2's caption)."""
    found = _rates(context)
    lines = list(_statistics(context, found))
    return Table(
        name="inversion",
        title=titled(context, "Self-audit OI against judge OI over models"),
        columns=(
            Column("statistic", Kind.TEXT),
            Column("value", Kind.NUMBER),
            Column("n", Kind.COUNT, "models"),
            Column("p", Kind.NUMBER, digits=4),
            Column("interval_over", Kind.TEXT),
            Column("test", Kind.TEXT),
        ),
        rows=tuple(lines),
        notes=(
            *_cautions(context, found),
            *denominators_note(context, ("records", context.records), ("self-audits", context.audits)),
            interval_note(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def inversion_by_family(context: Context) -> Table:
    """Make the table of rho without each model family in turn."""
    found = _rates(context)
    whole = spearman(*found.pairs)
    rows: list[Row] = [
        (left.family, int((found.families == left.family).sum()), left.estimate, _change(left.estimate, whole))
        for left in leave_one_out(*found.pairs, found.families)
    ]
    return Table(
        name="inversion_by_family",
        title=titled(context, "Self-audit OI against judge OI over models, without one family"),
        columns=(
            Column("left_out", Kind.TEXT, label="family left out"),
            Column("models", Kind.COUNT, "models"),
            Column("rho", Kind.NUMBER, label="Spearman's rho"),
            Column("change", Kind.NUMBER),
        ),
        rows=tuple(rows),
        notes=(*_cautions(context, found), "models: those of the family; change: against rho over all families"),
        simulated=context.data.sweep.simulated,
    )


def _rates(context: Context) -> _Rates:
    sides = [rates.oi_replicates(counts, context.resamples) for counts in (context.audited, context.judged)]
    known = ~np.isnan(np.stack([side[:, 0] for side in sides])).any(axis=0)
    families = np.array([model.family or model.label for model in context.subjects], dtype=np.str_)
    return _Rates(audited=sides[0][known], judged=sides[1][known], families=families[known])


def _statistics(context: Context, found: _Rates) -> Iterator[Row]:
    audited, judged = found.pairs
    # Streams of their own, so that a line does not depend on how many come before it.
    models, families, orders = np.random.default_rng(context.settings.seed).spawn(3)
    test = spearman_p(audited, judged, orders, permutations=context.settings.resamples)
    naive = spearman_interval(audited, judged, models, count=context.settings.resamples)
    clustered = spearman_interval(audited, judged, families, families=found.families, count=context.settings.resamples)
    over = spearman_over(found.audited, found.judged, context.resamples) if len(audited) >= FEWEST_PAIRS else naive
    yield _row(RHO, naive, MODELS, test)
    yield _row(RHO, clustered, FAMILIES)
    yield _row(RHO, over, PERSONAS)
    yield _kendall(audited, judged)
    if context.human is not None:
        corrected = corrected_oi(_totals(context), context.human).value
        yield _row(
            f"{RHO}, judge-corrected OI",
            spearman(audited, corrected),
            "",
            spearman_p(audited, corrected, orders, permutations=context.settings.resamples),
        )


def _row(name: str, estimate: Estimate, unit: str, test: PValue | None = None) -> Row:
    p = None if test is None or isnan(test.p) else test.p
    return (name, estimate, estimate.n, p, unit, "" if p is None else _method(test))


def _method(test: PValue | None) -> str:
    return "" if test is None else f"{test.alternative}, {test.method}, {test.permutations:,}"


def _kendall(audited: FloatArray, judged: FloatArray) -> Row:
    name, n = "Kendall's tau", len(audited)
    if n < FEWEST_PAIRS:
        return _row(name, missing(f"{plural(n, 'pairs')}: fewer than {FEWEST_PAIRS}", method=name, n=n), "")
    result = kendalltau(audited, judged)
    estimate = Estimate(value=float(result.statistic), n=n, method=name)
    return (name, estimate, n, float(result.pvalue), "", "two-sided")


def _totals(context: Context) -> FloatArray:
    """Return the judge's labels of the models that have both rates, shape (models, 4)."""
    totals = context.judged.sum(axis=(0, 2))
    known = (totals.sum(axis=-1) > 0) & (context.audited.sum(axis=(0, 2, 3)) > 0)
    return np.asarray(totals[known], dtype=np.float64)


def _change(estimate: Estimate, whole: Estimate) -> float:
    return estimate.value - whole.value


def _cautions(context: Context, found: _Rates) -> Iterator[str]:
    """Say in plain words how little such a correlation can bear."""
    n, families = len(found.families), len(np.unique(found.families))
    if n < FEWEST_PAIRS:
        yield f"{plural(n, 'models')} with both rates: too few to correlate"
        return
    whole = spearman(*found.pairs).value
    if n < FEW_MODELS:
        yield (
            f"exploratory: {plural(n, 'models')} of {plural(families, 'families')}, not independent of each other;"
            " one coefficient over so few says little about other models"
        )
    if families > 1:
        yield from _dependence(leave_one_out(*found.pairs, found.families), whole)
    if context.data.sweep.toy_judge:
        yield "the judge is a toy: so is this"
    if context.human is None:
        yield NO_HUMAN


def _dependence(left_out: tuple[LeftOut, ...], whole: float) -> Iterator[str]:
    """Say by how much rho hangs on single families."""
    known = [(left.estimate.value, left.family) for left in left_out if not isnan(left.estimate.value)]
    if not known:
        return
    (low, without_low), (high, without_high) = min(known), max(known)
    if high - low > SHIFT:
        yield (
            f"rho is {whole:.2f} with all models, {high:.2f} without {without_high}, {low:.2f} without {without_low}:"
            " it hangs on single families"
        )
    else:
        yield f"leaving out one family moves rho between {low:.2f} and {high:.2f}"
