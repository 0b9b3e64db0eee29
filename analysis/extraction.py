"""Tables of how many claims are taken out of an answer, by whom, and whether longer answers over-infer more.

References
----------
.. [1] "The Personalization Mirage", Appendix D (claims per record), section "The verbosity trap".
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from analysis.context import Context
from analysis.correlation import pearson, pearson_over
from analysis.estimates import Estimate, FloatArray
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import ALL_MODELS, MODEL, falling, judged_notes, of_model
from analysis.notes import coverage, titled
from analysis.pairing import both_read
from analysis.ratios import divided, ratio_estimates
from analysis.records import Answers, Audits, Counts, Ints, Records
from analysis.words import plural

BETWEEN: Final = "between models"
_RATIO: Final = 5


def claims_per_answer(context: Context) -> Table:
    """Make the table of claims per answer by judge and by self-audit, and their ratios (Appendix D)."""
    records, audits = both_read(context)
    shape = (len(context.personas), len(context.subjects))
    judged, audited = (_summed(rows, rows.claims, shape) for rows in (records, audits))
    answers = _summed(records, np.ones(len(records), np.int64), shape)
    known = records.characters >= 0
    lengths = _summed(records, np.where(known, records.characters, 0), shape)
    measured = _summed(records, known.astype(np.int64), shape)
    draws = context.resamples
    columns = (
        ratio_estimates(judged, answers, draws, method="claims per answer", empty="no answer"),
        ratio_estimates(audited, answers, draws, method="claims per answer", empty="no answer"),
        ratio_estimates(audited, judged, draws, method="self-audit claims over judge claims"),
        ratio_estimates(judged, audited, draws, method="judge claims over self-audit claims"),
        ratio_estimates(lengths, measured, draws, method="characters per answer", empty="no length"),
    )
    rows: list[Row] = [
        (model.label, model.family, int(answers[:, place].sum()), *(column[place] for column in columns))
        for place, model in enumerate(context.subjects)
    ]
    return Table(
        name="claims_per_answer",
        title=titled(context, "Claims per answer, by judge and by self-audit"),
        columns=(
            *MODEL,
            Column("records", Kind.COUNT, "answers"),
            Column("judge_claims", Kind.NUMBER, "claims per answer"),
            Column("self_claims", Kind.NUMBER, "claims per answer"),
            Column("self_to_judge", Kind.NUMBER),
            Column("judge_to_self", Kind.NUMBER),
            Column("characters", Kind.NUMBER, "characters per answer", digits=0),
        ),
        rows=tuple(falling(rows, by=_RATIO)),
        notes=(
            "over answers that both have read; the two list claims independently, so rates compare, counts do not",
            *judged_notes(context),
            *coverage(context, context.audits, "self-audits"),
        ),
        simulated=context.data.sweep.simulated,
    )


def verbosity(context: Context) -> Table:
    """Make the table of correlations between an answer's length and its OI rate (section "The verbosity trap")."""
    records, audits = context.read(context.records), context.read(context.audits)
    rows: list[Row] = []
    for place, model in enumerate(context.subjects):
        mine, own = of_model(records, place), of_model(audits, place)
        rows.append((model.label, len(mine), *_correlations(context, mine, own)))
    pooled: Row = (ALL_MODELS, len(records), *_correlations(context, records, audits))
    between: Row = (BETWEEN, len(context.subjects), *_between(context, records, audits))
    return Table(
        name="verbosity",
        title=titled(context, "Length of an answer against its OI rate"),
        columns=(
            Column("model", Kind.TEXT),
            Column("records", Kind.COUNT, "answers"),
            Column("judge_claims", Kind.NUMBER, label="r, judge's claims and OI"),
            Column("characters", Kind.NUMBER, label="r, characters and judge OI"),
            Column("self_claims", Kind.NUMBER, label="r, self-audit's claims and OI"),
        ),
        rows=(*falling(rows, by=2), pooled, between),
        notes=(
            "Pearson's r over answers with a claim; a rate of few claims is noisy, which pulls r toward 0",
            f"{BETWEEN!r}: over means of {plural(len(context.subjects), 'models')}; interval over personas alone",
            *judged_notes(context),
            *coverage(context, context.audits, "self-audits"),
        ),
        simulated=context.data.sweep.simulated,
    )


def _correlations(context: Context, records: Records, audits: Audits) -> Row:
    lengths = np.where(records.characters >= 0, records.characters, np.nan)
    return (
        _correlation(context, records, records.claims.astype(np.float64)),
        _correlation(context, records, lengths),
        _correlation(context, audits, audits.claims.astype(np.float64)),
    )


def _correlation(context: Context, rows: Answers, lengths: FloatArray) -> Estimate:
    some = rows.claims > 0
    oi = divided(rows.over_inferred[some], rows.claims[some])
    return pearson(lengths[some], oi, rows.persona[some], context.resamples)


def _between(context: Context, records: Records, audits: Audits) -> Iterator[Estimate]:
    """Yield the three correlations over models' means."""
    known = records.where(records.characters >= 0)
    for rows, sizes, labelled in (
        (records, records.claims, records),
        (known, known.characters, records),
        (audits, audits.claims, audits),
    ):
        means = _replicates(context, rows, sizes, np.ones(len(rows), np.int64))
        oi = _replicates(context, labelled, labelled.over_inferred, labelled.claims)
        yield pearson_over(means, oi, context.resamples)


def _replicates(context: Context, rows: Records | Audits, top: Ints, bottom: Ints) -> FloatArray:
    """Return each model's quotient of totals, observed and under every resample, shape (models, 1 + resamples)."""
    shape = (len(context.personas), len(context.subjects))
    sums = [_summed(rows, part, shape) for part in (top, bottom)]
    observed = divided(sums[0].sum(axis=0), sums[1].sum(axis=0))
    return np.column_stack([observed, divided(*(context.resamples.sums(part) for part in sums))])


def _summed(rows: Records | Audits, values: Ints, shape: tuple[int, int]) -> Counts:
    totals = np.zeros(shape, np.int64)
    np.add.at(totals, (rows.persona, rows.model), values)
    return totals
