"""The table of how well a model's self-audit ranks its own answers.

References
----------
.. [1] "The Personalization Mirage", Table 6, section "The Self-Monitoring Inversion", Appendix D.
"""

from math import isnan
from typing import Final

from analysis.auroc import Auroc, Pairs, pairs, self_audit_auroc, self_audit_spearman
from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import MODEL, falling, of_model
from analysis.notes import interval_note, titled
from analysis.pairing import both_read
from analysis.words import plural

CLEAR: Final = 0.75
_ESTIMATED: Final = 3


def within_model(context: Context) -> Table:
    """Make the within-model table: Spearman's rho and AUROC of self-audit OI against judge OI (Table 6)."""
    rows: list[Row] = []
    found: list[Auroc] = []
    for model, records in zip(context.subjects, paired_rates(context), strict=True):
        ranked = self_audit_auroc(records, context.resamples)
        found.append(ranked)
        rows.append(
            (
                model.label,
                model.family,
                len(records),
                self_audit_spearman(records, context.resamples),
                ranked.estimate,
                ranked.positives,
                ranked.positives_at_least - ranked.positives,
                ranked.at_least,
                None if ranked.median is None else float(ranked.median),
                records.left_out,
            )
        )
    return Table(
        name="within_model",
        title=titled(context, "Self-audit as a ranking of a model's own answers"),
        columns=(
            *MODEL,
            Column("records", Kind.COUNT, "answers"),
            Column("rho", Kind.NUMBER, "", "Spearman's rho"),
            Column("auroc", Kind.NUMBER, "", "AUROC"),
            Column("positives", Kind.COUNT, "answers"),
            Column("at_median", Kind.COUNT, "answers"),
            Column("auroc_at_least", Kind.NUMBER, "", "AUROC, at least median"),
            Column("median", Kind.SHARE, "share", "median judge OI"),
            Column("left_out", Kind.COUNT, "answers"),
        ),
        rows=tuple(falling(rows, by=_ESTIMATED)),
        notes=(
            *_ranges(found),
            "records: task answers with a verdict and a self-audit, and a claim in both; left out: no claim in one",
            "AUROC: chance that an answer above the model's median judge OI has the higher self-audit OI, ties half",
            "at median: answers exactly there, not positive; `at least` counts them as positive",
            "the two list their claims independently, so answers are ranked, never single claims",
            f"{interval_note(context)}; medians as observed",
        ),
        simulated=context.data.sweep.simulated,
    )


def paired_rates(context: Context) -> list[Pairs]:
    """Return, for every model under test, its answers that judge and self-audit have both read."""
    records, audits = both_read(context)
    found = []
    for place in range(len(context.subjects)):
        mine, own = of_model(records, place), of_model(audits, place)
        found.append(pairs(mine.persona, own.over_inferred, own.claims, mine.over_inferred, mine.claims))
    return found


def _ranges(found: list[Auroc]) -> tuple[str, ...]:
    """Say in words where the AUROCs lie and how many are clearly above one half."""
    known = [ranked.estimate for ranked in found if not isnan(ranked.estimate.value)]
    if not known:
        return ()
    values = [estimate.value for estimate in known]
    high = sum(value > CLEAR for value in values)
    unclear = sum(_holds(estimate, 0.5) for estimate in known)
    lines = [
        f"AUROC from {min(values):.2f} to {max(values):.2f}; above {CLEAR} in {high} of {plural(len(known), 'models')}"
    ]
    if unclear:
        lines.append(f"for {plural(unclear, 'models')} the interval holds 0.5: no better than chance, as far as seen")
    return tuple(lines)


def _holds(estimate: Estimate, value: float) -> bool:
    return estimate.interval is not None and estimate.interval.low <= value <= estimate.interval.high
