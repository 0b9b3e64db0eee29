"""Comparing models on the same personas: paired differences, rank intervals, and what clustering costs.

Models answer for the same personas and tasks, so they are compared within them; all pairs and all ranks come from the
same resamples. This module knows counts over (persona, model, task, label), not models' names.

References
----------
.. [1] Holm, A simple sequentially rejective multiple test procedure, Scand. J. Stat. 6, 1979.
.. [2] Kish, Survey Sampling, 1965, section 8.2 (design effect).
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.stats import rankdata

from analysis.estimates import LEVEL, NAN, BoolArray, Estimate, FloatArray, IntArray, Interval, PValue
from analysis.permutation import swap_tests
from analysis.rates import OI as OI_COLUMN
from analysis.rates import OVER_INFERRED, Totals, over_inferred, share_estimates
from analysis.ratios import difference_estimates, divided
from analysis.resampling import RESAMPLES, Resamples


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Two models on the records that both have.

    Parameters
    ----------
    first, second : int
        Positions of the models.
    difference : Estimate
        First OI rate minus the second; `n` is the number of personas.
    test : PValue
        By swapping the two models within personas; `adjusted` is Holm's, over all pairs compared.
    records : int
        (persona, task) records that both have.
    """

    first: int
    second: int
    difference: Estimate
    test: PValue
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Where a model stands, 1 for the highest OI rate.

    Parameters
    ----------
    rank : Estimate
        Average rank among tied models; its interval holds the rank in `level` of the resamples. `n` is the number of
        models that have a rate.
    chance_highest, chance_lowest : float
        Share of resamples in which it has the highest or the lowest OI rate, ties shared.
    """

    rank: Estimate
    chance_highest: float
    chance_lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignEffect:
    """What clustering by persona does to the uncertainty of an OI rate.

    Parameters
    ----------
    effect : float
        Variance with whole personas as the unit over that of as many independent claims; `nan` without variation.
    standard_error, independent_standard_error : float
        By persona, and as if claims were independent.
    effective_claims : float
        Independent claims that would tell as much.
    claims : int
    """

    effect: float
    standard_error: float
    independent_standard_error: float
    effective_claims: float
    claims: int


def paired_differences(
    counts: IntArray,
    resamples: Resamples,
    rng: np.random.Generator,
    *,
    present: BoolArray | None = None,
    permutations: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[PairedDifference, ...]:
    """Compare the OI rates of all pairs of models, each pair on the records that both have.

    Parameters
    ----------
    counts : ndarray of int, shape (personas, models, tasks, 4)
    resamples : Resamples
        Of the personas.
    rng : numpy.random.Generator
        For the permutation tests.
    present : ndarray of bool, shape (personas, models, tasks), optional
        Which records were read; all by default. A record that only one of two models has is left out of their
        comparison, so that a difference here may depart from the difference of two published rates.
    permutations : int
        Swaps drawn per pair.
    level : float
        Nominal coverage of each interval; intervals are not widened for the number of pairs.

    Returns
    -------
    tuple of PairedDifference
        In the order (0, 1), (0, 2), ..., (1, 2), ...

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> rng = np.random.default_rng(1)
    >>> counts = np.zeros((8, 2, 1, 4), dtype=int)
    >>> counts[:, 0, 0], counts[:, 1, 0] = [4, 2, 1, 3], [7, 2, 0, 1]
    >>> found = paired_differences(counts, draw_resamples(8, 200, rng), rng)[0]
    >>> round(found.difference.value, 6), found.test.p, found.records
    (0.3, 0.0078125, 8)
    """
    couples = list(combinations(range(counts.shape[1]), 2))
    if not couples:
        return ()
    seen = np.ones(counts.shape[:3], dtype=np.bool_) if present is None else present
    first, second, records = _on_common_records(counts, seen, couples)
    differences = difference_estimates(first, second, resamples, method="paired difference in OI rate", level=level)
    tests = swap_tests(first, second, rng, permutations=permutations)
    adjusted = holm(np.array([test.p for test in tests]))
    return tuple(
        PairedDifference(
            first=one,
            second=other,
            difference=differences[place],
            test=replace(tests[place], adjusted=float(adjusted[place])),
            records=int(records[place]),
        )
        for place, (one, other) in enumerate(couples)
    )


def ranks(counts: IntArray, resamples: Resamples, *, level: float = LEVEL) -> tuple[Rank, ...]:
    """Return each model's rank by OI rate, with intervals over resampled personas.

    Parameters
    ----------
    counts, resamples, level
        As in `paired_differences`.

    Returns
    -------
    tuple of Rank
        In the order of the models; models without claims have none.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts = np.array([[[[4, 2, 1, 3]], [[7, 2, 0, 1]]], [[[5, 2, 1, 2]], [[6, 3, 1, 0]]]])
    >>> [row.rank.value for row in ranks(counts, draw_resamples(2, 200, np.random.default_rng(1)))]
    [1.0, 2.0]
    """
    over, claims = over_inferred(counts)
    observed = _descending_ranks(divided(over.sum(axis=0), claims.sum(axis=0)))
    replicates = _descending_ranks(divided(resamples.sums(over), resamples.sums(claims)))
    low, high, dropped = resamples.bounds(replicates, level)
    models = int((~np.isnan(observed)).sum())
    highest = _share_at(replicates, replicates == np.nanmin(replicates, axis=0, initial=np.inf))
    lowest = _share_at(replicates, replicates == np.nanmax(replicates, axis=0, initial=-np.inf))
    return tuple(
        Rank(
            rank=Estimate(
                value=float(observed[place]),
                n=models,
                interval=None
                if np.isnan(observed[place])
                else Interval(
                    low=float(low[place]),
                    high=float(high[place]),
                    level=level,
                    method=resamples.method,
                    resamples=resamples.count,
                    dropped=int(dropped[place]),
                    dropped_share=int(dropped[place]) / resamples.count,
                ),
                method="rank by OI rate",
                seed=resamples.seed,
                reason="no claims" if np.isnan(observed[place]) else "",
            ),
            chance_highest=float(highest[place]),
            chance_lowest=float(lowest[place]),
        )
        for place in range(len(observed))
    )


def design_effects(counts: IntArray, resamples: Resamples) -> tuple[DesignEffect, ...]:
    """Return what clustering by persona does to each model's OI rate.

    Parameters
    ----------
    counts, resamples
        As in `paired_differences`.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts = np.array([[[[1, 0, 0, 9]]], [[[9, 0, 0, 1]]], [[[5, 0, 0, 5]]]])
    >>> round(design_effects(counts, draw_resamples(3, 200, np.random.default_rng(1)))[0].effect, 6)
    6.4
    """
    found = share_estimates(counts, resamples)
    rate, error, claims = found.value[:, OI_COLUMN], found.standard_error[:, OI_COLUMN], found.n[:, OI_COLUMN]
    independent = np.sqrt(divided(rate * (1 - rate), claims))
    effect = divided(error**2, independent**2)
    effective = divided(np.asarray(claims, dtype=np.float64), effect)
    return tuple(
        DesignEffect(
            effect=float(effect[place]),
            standard_error=float(error[place]),
            independent_standard_error=float(independent[place]),
            effective_claims=float(effective[place]),
            claims=int(claims[place]),
        )
        for place in range(len(rate))
    )


def holm(p: FloatArray) -> FloatArray:
    """Return Holm's adjusted p-values [1]_; `nan` stays `nan` and does not count as a test.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03])).round(6).tolist()
    [0.03, 0.06, 0.06]
    """
    adjusted = np.full(len(p), NAN)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def _on_common_records(
    counts: IntArray, seen: BoolArray, couples: list[tuple[int, int]]
) -> tuple[tuple[Totals, Totals], tuple[Totals, Totals], IntArray]:
    """Over-inferred and all claims of both models of each pair, shape (personas, pairs), on records that both have."""
    one, other = np.array(couples).T
    over, claims = counts[..., OVER_INFERRED].sum(axis=-1), counts.sum(axis=-1)
    common = seen[:, one] & seen[:, other]
    sides = [tuple((part[:, at] * common).sum(axis=-1) for part in (over, claims)) for at in (one, other)]
    return (sides[0][0], sides[0][1]), (sides[1][0], sides[1][1]), common.sum(axis=(0, 2))


def _descending_ranks(rates: FloatArray) -> FloatArray:
    """Rank along the first axis, 1 for the highest, ties averaged; `nan` keeps no rank and takes none."""
    return np.asarray(rankdata(-rates, axis=0, nan_policy="omit"), dtype=np.float64)


def _share_at(replicates: FloatArray, chosen: BoolArray) -> FloatArray:
    """Share of resamples in which each model is chosen, ties shared equally."""
    held = chosen / np.maximum(chosen.sum(axis=0), 1)
    return np.asarray(np.where(np.isnan(replicates).all(axis=-1), NAN, held.mean(axis=-1)))
