"""Tables that set several judges of the same answers side by side.

Judges list the claims of an answer independently. They are therefore compared by answer, and claim by claim only where
both happen to word a claim alike.

References
----------
.. [1] "The Personalization Mirage", Appendix A (the cross-judge check that the paper leaves to future work).
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from analysis import rates
from analysis.agreement import collapsed, kappa_values
from analysis.context import Context
from analysis.correlation import spearman
from analysis.estimates import Estimate, missing
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import ANSWERS, sizes
from analysis.macro import mean_ratios
from analysis.notes import interval_note, titled
from analysis.pairing import lined_up
from analysis.ranks import resampled_spearman
from analysis.rates import LABELS, Totals
from analysis.ratios import difference_estimates, divided
from analysis.records import Counts, Ints, Records

ONE_JUDGE: Final = "one judge only: how far its labels depend on the judge is not known"
NO_MATCH: Final = "no claim that both word alike"
NO_INTERVAL: Final = "no variation between personas: no interval"
CLAIM_WORDS: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Worded:
    """Claims told apart by row and wording: one number for both, the claim's label, and its row."""

    keys: Counts
    labels: Ints
    rows: Ints


def judges(context: Context) -> Table:
    """Make the table of judges: what each read and found over all models."""
    rows: list[Row] = []
    for judge in context.data.axes.judges:
        records = context.judged_by(judge)
        counts = _tallied(context, context.read(records))
        over, claims = rates.over_inferred(counts)
        macro = mean_ratios(over, claims, context.resamples, method="mean of models' OI rates")[()]
        micro = rates.oi_micro(counts, context.resamples)
        rows.append((context.label(judge), *sizes(context, records), macro, micro))
    return Table(
        name="judges",
        title=titled(context, "OI rate by judge"),
        columns=(
            Column("judge", Kind.TEXT),
            *ANSWERS,
            Column("oi_macro", Kind.SHARE, "share", "OI, mean of models"),
            Column("oi_micro", Kind.SHARE, "share", "OI, all claims"),
        ),
        rows=tuple(rows),
        notes=(*([ONE_JUDGE] if len(rows) == 1 else []), interval_note(context)),
        simulated=context.data.sweep.simulated,
    )


def judge_models(context: Context) -> Table:
    """Make the table of every model's OI rate by every judge."""
    names = context.data.axes.judges
    found = [
        rates.share_estimates(_tallied(context, context.read(context.judged_by(judge))), context.resamples)
        for judge in names
    ]
    return Table(
        name="judge_models",
        title=titled(context, "OI rate by model and judge"),
        columns=(
            Column("judge", Kind.TEXT),
            Column("model", Kind.TEXT),
            Column("claims", Kind.COUNT, "claims"),
            Column("oi", Kind.SHARE, "share", "OI"),
        ),
        rows=tuple(
            (context.label(judge), label, int(shares.n[place, rates.OI]), shares[place, rates.OI])
            for judge, shares in zip(names, found, strict=True)
            for place, label in enumerate(context.labels)
        ),
        notes=(*([ONE_JUDGE] if len(names) == 1 else []), interval_note(context)),
        simulated=context.data.sweep.simulated,
    )


def judge_pairs(context: Context) -> Table:
    """Make the table of agreement between judges, one row per pair; empty with one judge."""
    rows = [_pair(context, *pair) for pair in combinations(context.data.axes.judges, 2)]
    return Table(
        name="judge_pairs",
        title=titled(context, "Agreement of judges with each other"),
        columns=(
            Column("first", Kind.TEXT),
            Column("second", Kind.TEXT),
            Column("records", Kind.COUNT, "answers"),
            Column("difference", Kind.POINTS, "share", "difference in OI"),
            Column("rho_models", Kind.NUMBER, label="rho over models"),
            Column("rho_records", Kind.NUMBER, label="rho over answers"),
            Column("kappa_records", Kind.NUMBER, label="kappa, mostly OI"),
            Column("claims_alike", Kind.COUNT, "claims"),
            Column("share_alike", Kind.SHARE, "share"),
            Column("kappa_claims", Kind.NUMBER, label="kappa, four labels"),
            Column("kappa_oi", Kind.NUMBER, label="kappa, OI or not"),
        ),
        rows=tuple(rows),
        notes=(
            *([] if rows else [ONE_JUDGE]),
            "difference: first minus second, over answers that both have read",
            "rho over models, over answers: Spearman's, between the OI rates that the two judges give",
            "kappa, mostly OI: whether more than half of an answer's claims are over-inferred",
            "claims alike: worded alike by both judges but for case and spaces; the plain ones, so no fair sample",
            interval_note(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def _pair(context: Context, one: str, other: str) -> Row:
    sides = lined_up(context.read(context.judged_by(one)), context.read(context.judged_by(other)))
    counts = [_tallied(context, side) for side in sides]
    one_total, other_total = (rates.over_inferred(count, by=()) for count in counts)
    by_model = [rates.shares(count.sum(axis=(0, 2)))[:, rates.OI] for count in counts]
    tables = _claim_tables(context, *sides)
    alike, all_claims = int(tables.sum()), int(min(side.claims.sum() for side in sides))
    binary = np.stack([collapsed(table) for table in tables]) if len(tables) else tables
    return (
        context.label(one),
        context.label(other),
        len(sides[0]),
        difference_estimates(one_total, other_total, context.resamples, method="difference in OI between judges")[()],
        spearman(*by_model),
        _record_rho(context, *sides),
        _clustered_kappa(context, _record_tables(context, *sides)),
        alike,
        alike / all_claims if all_claims else None,
        _clustered_kappa(context, tables),
        _clustered_kappa(context, binary),
    )


def _tallied(context: Context, rows: Records) -> Totals:
    return rates.tally(rows.persona, rows.model, rows.task, rows.labels, context.judged.shape[:3])


def _record_rho(context: Context, first: Records, second: Records) -> Estimate:
    both = (first.claims > 0) & (second.claims > 0)
    one, other = (divided(side.over_inferred[both], side.claims[both]) for side in (first, second))
    point = spearman(one, other)
    if np.isnan(point.value):
        return point
    drawn = resampled_spearman(one, other, first.persona[both], context.resamples.multiplicities)
    interval = context.resamples.interval(drawn)
    return Estimate(
        value=point.value,
        n=point.n,
        interval=interval,
        method=point.method,
        seed=context.resamples.seed,
        reason="" if interval else NO_INTERVAL,
    )


def _record_tables(context: Context, first: Records, second: Records) -> Totals:
    """Count answers by both judges' verdict whether they are mostly over-inferred, shape (personas, 2, 2)."""
    mostly = [(2 * side.over_inferred > side.claims).astype(np.int64) for side in (first, second)]
    tables = np.zeros((len(context.personas), 2, 2), np.int64)
    np.add.at(tables, (first.persona, *mostly), 1)
    return tables


def _claim_tables(context: Context, first: Records, second: Records) -> Totals:
    """Count claims that both judges word alike by both labels, shape (personas, 4, 4)."""
    one, other = _worded(first), _worded(second)
    _, here, there = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    tables = np.zeros((len(context.personas), len(LABELS), len(LABELS)), np.int64)
    np.add.at(tables, (first.persona[one.rows[here]], one.labels[here], other.labels[there]), 1)
    return tables


def _worded(rows: Records) -> _Worded:
    """Return the different wordings of every row; of a wording that occurs twice in a row, the first."""
    owner = np.repeat(np.arange(len(rows)), rows.worded)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(rows.worded) - rows.worded, rows.worded)
    at = rows.start[owner] + within
    labels = rows.wordings.labels[at]
    known = labels >= 0
    mixed = rows.wordings.words[at].astype(np.uint64) + owner.astype(np.uint64) * np.uint64(CLAIM_WORDS)
    keys, places = np.unique(mixed[known], return_index=True)
    return _Worded(keys=keys.astype(np.int64), labels=labels[known][places], rows=owner[known][places])


def _clustered_kappa(context: Context, tables: Totals) -> Estimate:
    """Return kappa of all tables together, with an interval over personas."""
    whole = tables.sum(axis=0)
    n, method = int(whole.sum()), "Cohen's kappa"
    if not n:
        return missing(NO_MATCH, method=method)
    value = float(kappa_values(whole))
    if np.isnan(value):
        return missing("both judges use one and the same label", method=method, n=n)
    drawn = np.moveaxis(context.resamples.sums(tables), -1, 0)
    interval = context.resamples.interval(kappa_values(drawn))
    return Estimate(
        value=value,
        n=n,
        interval=interval,
        method=method,
        seed=context.resamples.seed,
        reason="" if interval else NO_INTERVAL,
    )
