"""Tables that compare models on the same personas: paired differences, ranks, and what clustering costs.

References
----------
.. [1] "The Personalization Mirage", Table 1 (whose order of models these tables put in doubt where they should).
"""

from typing import Final

import numpy as np

from analysis import rates
from analysis.comparison import PairedDifference, design_effects, ranks
from analysis.comparison import paired_differences as compared
from analysis.context import Context
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import MODEL, judged_notes
from analysis.notes import titled
from analysis.rates import Totals
from analysis.records import Mask
from analysis.words import plural

ALPHA: Final = 0.05


def paired_differences(context: Context) -> Table:
    """Make the table of differences in OI rate between all pairs of models, on the answers that both have."""
    counts, present = _by_answer(context)
    rng = np.random.default_rng(context.settings.seed)
    found = compared(counts, context.resamples, rng, present=present, permutations=context.settings.resamples)
    rows: list[Row] = [
        (
            *(context.labels[place] for place in (pair.first, pair.second)),
            pair.records,
            pair.difference,
            pair.test.p,
            pair.test.adjusted,
        )
        for pair in sorted(found, key=lambda pair: -abs(np.nan_to_num(pair.difference.value)))
    ]
    return Table(
        name="paired_differences",
        title=titled(context, "Differences in OI rate between models, answer by answer"),
        columns=(
            Column("first", Kind.TEXT),
            Column("second", Kind.TEXT),
            Column("records", Kind.COUNT, "answers"),
            Column("difference", Kind.POINTS, "share"),
            Column("p", Kind.NUMBER, digits=4),
            Column("p_holm", Kind.NUMBER, label="p, Holm", digits=4),
        ),
        rows=tuple(rows),
        notes=(
            *_verdict(found),
            "first minus second, over task answers that both models have; intervals are not widened for their number",
            f"p: {found[0].test.method if found else 'no pair'}; Holm's correction for {plural(len(found), 'pairs')}",
            *judged_notes(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def model_ranks(context: Context) -> Table:
    """Make the table of ranks by OI rate, 1 for the highest, with their intervals over resampled personas."""
    by_model = rates.share_estimates(context.judged, context.resamples)
    found = ranks(context.judged, context.resamples)
    rows: list[Row] = [
        (
            model.label,
            model.family,
            by_model[place, rates.OI],
            found[place].rank,
            found[place].chance_highest,
            found[place].chance_lowest,
        )
        for place, model in enumerate(context.subjects)
    ]
    rows.sort(key=lambda row: found[context.labels.index(str(row[0]))].rank.value)
    return Table(
        name="model_ranks",
        title=titled(context, "Ranks of models by OI rate"),
        columns=(
            *MODEL,
            Column("oi", Kind.SHARE, "share", "OI"),
            Column("rank", Kind.NUMBER, digits=1),
            Column("chance_highest", Kind.SHARE, "share"),
            Column("chance_lowest", Kind.SHARE, "share"),
        ),
        rows=tuple(rows),
        notes=(
            "rank 1: highest OI rate; the interval holds the rank in 95% of resamples of the personas",
            "chance highest, lowest: share of resamples in which the model stands there",
            *judged_notes(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def clustering(context: Context) -> Table:
    """Make the table of design effects: what it costs that claims of one persona are alike."""
    rows: list[Row] = [
        (
            model.label,
            model.family,
            effect.claims,
            effect.standard_error,
            effect.independent_standard_error,
            effect.effect,
            effect.effective_claims,
        )
        for model, effect in zip(context.subjects, design_effects(context.judged, context.resamples), strict=True)
    ]
    return Table(
        name="clustering",
        title=titled(context, "What clustering by persona does to the uncertainty of OI rates"),
        columns=(
            *MODEL,
            Column("claims", Kind.COUNT, "claims"),
            Column("standard_error", Kind.NUMBER, "share", digits=4),
            Column("if_independent", Kind.NUMBER, "share", digits=4),
            Column("design_effect", Kind.NUMBER),
            Column("effective_claims", Kind.NUMBER, "claims", digits=0),
        ),
        rows=tuple(sorted(rows, key=lambda row: str(row[0]))),
        notes=(
            "design effect: variance with whole personas as the unit over that of as many independent claims",
            "effective claims: independent claims that would tell as much",
            *judged_notes(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def _by_answer(context: Context) -> tuple[Totals, Mask]:
    """Return claims by label, and which answers were read, with every sample of a task as a task of its own."""
    kept = context.read(context.records)
    samples = int(np.max(kept.sample, initial=0)) + 1
    shape = (*context.judged.shape[:2], context.judged.shape[2] * samples)
    answer = kept.task * samples + kept.sample
    present = np.zeros(shape, np.bool_)
    present[kept.persona, kept.model, answer] = True
    return rates.tally(kept.persona, kept.model, answer, kept.labels, shape), present


def _verdict(found: tuple[PairedDifference, ...]) -> tuple[str, ...]:
    """Say in words how many pairs can be told apart."""
    if not found:
        return ()
    apart = sum(pair.test.adjusted < ALPHA for pair in found)
    return (f"{apart} of {plural(len(found), 'pairs')} differ at the 5% level after Holm's correction",)
