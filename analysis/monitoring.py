"""Tables that set a model's own account beside the judge's: self-audit and probe.

References
----------
.. [1] "The Personalization Mirage", Table 2, section "The Self-Monitoring Inversion", Appendix B (gap).
"""

from fractions import Fraction
from typing import Final

import numpy as np

from analysis import rates
from analysis.context import Context
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import ANSWERS, MEAN_OF_MODELS, MODEL, falling, judged_notes, of_model, sizes
from analysis.macro import mean_differences, mean_ratios
from analysis.notes import coverage, denominators_note, titled
from analysis.pairing import both_read
from analysis.rates import Totals
from analysis.ratios import difference_estimates, ratio_estimates
from analysis.records import INCORRECT, NOT_GIVEN, Audits, Counts, Probes, Records

CALIBRATED_BELOW: Final = Fraction(5, 100)


def self_audit(context: Context) -> Table:
    """Make the comparison of self-audit and judge per model, largest gap first (Table 2).

    Both sides use all answers of their own that were read, as the paper does; `paired_delta` uses only those task
    answers for which both were read.
    """
    judged = rates.share_estimates(context.judged, context.resamples)
    audited = rates.share_estimates(context.audited, context.resamples)
    gaps = rates.gap_estimates(context.judged, context.audited, context.resamples)
    records, audits = both_read(context)
    paired = rates.gap_estimates(_tallied(context, records), _tallied(context, audits), context.resamples)
    patterns = _patterns(context.judged, context.audited)
    rows: list[Row] = [
        (
            model.label,
            model.family,
            len(context.read(of_model(context.audits, place))),
            audited[place, rates.OI],
            len(context.read(of_model(context.records, place))),
            judged[place, rates.OI],
            gaps[place],
            patterns[place],
            int((records.model == place).sum()),
            paired[place],
        )
        for place, model in enumerate(context.subjects)
    ]
    return Table(
        name="self_audit",
        title=titled(context, "Self-audit against judge"),
        columns=(
            *MODEL,
            Column("audits", Kind.COUNT, "answers"),
            Column("self_oi", Kind.SHARE, "share", "self OI"),
            Column("records", Kind.COUNT, "answers"),
            Column("judge_oi", Kind.SHARE, "share", "judge OI"),
            Column("delta", Kind.POINTS, "share"),
            Column("pattern", Kind.TEXT),
            Column("paired", Kind.COUNT, "answers"),
            Column("paired_delta", Kind.POINTS, "share"),
        ),
        rows=tuple(falling(rows, by=6)),
        notes=(
            *judged_notes(context),
            *coverage(context, context.audits, "self-audits"),
            *denominators_note(context, ("records", context.records), ("self-audits", context.audits)),
            "delta: judge minus self; Under: the model admits less than the judge finds; Over: more",
            "Calib: the two differ by less than 5 percentage points",
            "paired: task answers with both a verdict and a self-audit; the two extract their claims independently",
        ),
        simulated=context.data.sweep.simulated,
    )


def probe(context: Context) -> Table:
    """Make the probe's error and OI rates per model and their gaps to the task stage's OI rate (section 5.2)."""
    kept = context.read(context.probes)
    shape = context.probed.shape[:2]
    wrong = _summed(kept, kept.accuracy[:, INCORRECT], shape)
    assessed = _summed(kept, kept.claims - kept.accuracy[:, NOT_GIVEN], shape)
    task, direct = rates.over_inferred(context.judged), rates.over_inferred(context.probed)
    draws = context.resamples
    error, share = "share of claims that are incorrect", "share of claims"
    gap_error, gap_oi = "task OI rate minus probe error rate", "task OI rate minus probe OI rate"
    columns = (
        ratio_estimates(wrong, assessed, draws, method=error),
        ratio_estimates(*direct, draws, method=share),
        ratio_estimates(*task, draws, method=share),
        difference_estimates(task, (wrong, assessed), draws, method=gap_error),
        difference_estimates(task, direct, draws, method=gap_oi),
    )
    rows: list[Row] = []
    for place, model in enumerate(context.subjects):
        mine = of_model(context.probes, place)
        rows.append((model.label, model.family, *sizes(context, mine), *(column[place] for column in columns)))
    average: Row = (
        mean_ratios(wrong, assessed, draws, method=error)[()],
        mean_ratios(*direct, draws, method=share)[()],
        mean_ratios(*task, draws, method=share)[()],
        mean_differences(task, (wrong, assessed), draws, method=gap_error)[()],
        mean_differences(task, direct, draws, method=gap_oi)[()],
    )
    mean: Row = (MEAN_OF_MODELS, "", *[None] * len(ANSWERS), *average)
    not_given = int(kept.accuracy[:, NOT_GIVEN].sum())
    return Table(
        name="probe",
        title=titled(context, "Probe: direct elicitation against task generation"),
        columns=(
            *MODEL,
            *ANSWERS,
            Column("error", Kind.SHARE, "share"),
            Column("probe_oi", Kind.SHARE, "share", "probe OI"),
            Column("task_oi", Kind.SHARE, "share", "task OI"),
            Column("gap_to_error", Kind.POINTS, "share", brief=True),
            Column("gap_to_oi", Kind.POINTS, "share", "gap to OI", brief=True),
        ),
        rows=(*falling(rows, by=-2), mean),
        notes=(
            *coverage(context, context.probes, "judged probes"),
            f"error: claims that contradict the ground truth, of all claims assessed; {not_given:,} were not assessed",
            "gaps: task OI rate minus the probe's error rate, and minus the probe's OI rate",
            *judged_notes(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def _tallied(context: Context, rows: Records | Audits) -> Totals:
    return rates.tally(rows.persona, rows.model, rows.task, rows.labels, context.judged.shape[:3])


def _summed(rows: Probes, claims: Counts, shape: tuple[int, int]) -> Counts:
    totals = np.zeros(shape, np.int64)
    np.add.at(totals, (rows.persona, rows.model), claims)
    return totals


def _patterns(judged: Totals, audited: Totals) -> list[str | None]:
    """Return each model's pattern, decided on whole numbers so that rounding cannot."""
    sides = [rates.over_inferred(counts) for counts in (judged, audited)]
    totals = np.stack([count.sum(axis=0) for side in sides for count in side], axis=1)
    return [_pattern(*map(int, row)) for row in totals]


def _pattern(judge_over: int, judge_claims: int, self_over: int, self_claims: int) -> str | None:
    if not (judge_claims and self_claims):
        return None
    delta = Fraction(judge_over, judge_claims) - Fraction(self_over, self_claims)
    if abs(delta) < CALIBRATED_BELOW:
        return "Calib"
    return "Under" if delta > 0 else "Over"
