"""Permutation tests between two ratios of totals: two raters or models on the same clusters, or two groups of clusters.

All relabellings are counted when there are few, else some are drawn; either way they are one matrix product. This
module knows numerators and denominators per cluster, not what they count. Chance is an argument.

References
----------
.. [1] Phipson and Smyth, Permutation p-values should never be zero, Stat. Appl. Genet. Mol. Biol. 9, 2010.
"""

from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from analysis.estimates import NAN, Alternative, BoolArray, FloatArray, Number, PValue, seed_of
from analysis.ratios import divided
from analysis.resampling import RESAMPLES

ENUMERATE: Final = 20_000
ROUNDING: Final = 1e-12


def swap_tests(
    first: tuple[Number, Number],
    second: tuple[Number, Number],
    rng: np.random.Generator,
    *,
    permutations: int = RESAMPLES,
    alternative: Alternative = "two-sided",
) -> tuple[PValue, ...]:
    """Test whether two ratios over the same clusters differ, by swapping the two within clusters.

    Parameters
    ----------
    first, second : (numerator, denominator)
        Integer totals per cluster, each of shape (clusters,) or (clusters, tests).
    rng : numpy.random.Generator
    permutations : int
        Number to draw when there are more than 20,000 swaps in all.
    alternative : {"two-sided", "less", "greater"}
        About first minus second.

    Returns
    -------
    tuple of PValue
        One per test; `statistic` is the first ratio minus the second, `n` the clusters with data on both sides.

    Notes
    -----
    The null hypothesis is that within a cluster the two are exchangeable.

    Examples
    --------
    >>> tens = np.full(6, 10)
    >>> result = swap_tests((np.arange(4, 10), tens), (np.arange(1, 7), tens), np.random.default_rng(1))
    >>> result[0].statistic.__round__(6), result[0].p, result[0].method
    (0.3, 0.03125, 'exact, swaps within personas')
    """
    (top, bottom), (other_top, other_bottom) = (
        [np.asarray(part, dtype=np.float64).reshape(len(part), -1) for part in side] for side in (first, second)
    )
    clusters = len(top)
    exact = 2**clusters <= ENUMERATE
    swaps = _all_swaps(clusters) if exact else rng.integers(2, size=(permutations, clusters)).astype(np.float64)
    moved_top, moved_bottom = swaps @ (other_top - top), swaps @ (other_bottom - bottom)
    tops, bottoms = top.sum(axis=0) + moved_top, bottom.sum(axis=0) + moved_bottom
    other_tops, other_bottoms = other_top.sum(axis=0) - moved_top, other_bottom.sum(axis=0) - moved_bottom
    observed = divided(top.sum(axis=0), bottom.sum(axis=0)) - divided(other_top.sum(axis=0), other_bottom.sum(axis=0))
    return _results(
        observed,
        divided(tops, bottoms) - divided(other_tops, other_bottoms),
        n=((bottom > 0) & (other_bottom > 0)).sum(axis=0).tolist(),
        exact=exact,
        what="swaps within personas",
        alternative=alternative,
        rng=rng,
    )


def group_tests(
    numerator: Number,
    denominator: Number,
    first: BoolArray,
    rng: np.random.Generator,
    *,
    permutations: int = RESAMPLES,
    alternative: Alternative = "two-sided",
) -> tuple[PValue, ...]:
    """Test whether a ratio differs between two groups of clusters, by relabelling the clusters.

    Parameters
    ----------
    numerator, denominator : ndarray of int, shape (clusters,) or (clusters, tests)
        Totals of the clusters of both groups, and of no other.
    first : ndarray of bool, shape (clusters,)
        True in the first group.
    rng, permutations, alternative
        As in `swap_tests`.

    Returns
    -------
    tuple of PValue
        One per test; `statistic` is the first group's ratio minus the second's, `n` the clusters.

    Examples
    --------
    >>> high = np.array([True, True, True, False, False, False])
    >>> group_tests(np.array([9, 8, 7, 3, 2, 1]), np.full(6, 10), high, np.random.default_rng(1))[0].p
    0.1
    """
    top, bottom = (np.asarray(part, dtype=np.float64).reshape(len(first), -1) for part in (numerator, denominator))
    size = int(first.sum())
    exact = comb(len(first), size) <= ENUMERATE
    chosen = _all_choices(len(first), size) if exact else _drawn_choices(len(first), size, permutations, rng)
    observed = _split(np.asarray(first, dtype=np.float64)[None], top, bottom)[0]
    return _results(
        observed,
        _split(chosen, top, bottom),
        n=[len(first)] * top.shape[1],
        exact=exact,
        what="relabelled personas",
        alternative=alternative,
        rng=rng,
    )


def tail_probability(observed: FloatArray, drawn: FloatArray, alternative: Alternative, *, exact: bool) -> FloatArray:
    """Return the share of relabellings at least as extreme as the observed, over the first axis.

    Drawn ones count the observed labelling itself, so that p is never 0 [1]_. Undefined ones count as extreme.

    Examples
    --------
    >>> float(tail_probability(np.array(2.0), np.array([0.0, 2.0, -3.0]), "two-sided", exact=False))
    0.75
    """
    sign = -1.0 if alternative == "less" else 1.0
    seen, others = (np.abs(part) if alternative == "two-sided" else sign * part for part in (observed, drawn))
    hits = (~(others < seen - ROUNDING)).sum(axis=0)
    share = hits / len(drawn) if exact else (hits + 1) / (len(drawn) + 1)
    return np.asarray(np.where(np.isnan(observed), NAN, share))


def _results(
    observed: FloatArray,
    drawn: FloatArray,
    *,
    n: list[int],
    exact: bool,
    what: str,
    alternative: Alternative,
    rng: np.random.Generator,
) -> tuple[PValue, ...]:
    """One `PValue` per column of `drawn`, shape (permutations, tests)."""
    shares = tail_probability(observed, drawn, alternative, exact=exact)
    return tuple(
        PValue(
            p=float(p),
            statistic=float(statistic),
            n=count,
            alternative=alternative,
            method=f"{'exact' if exact else 'Monte Carlo'}, {what}",
            permutations=len(drawn),
            seed="" if exact else seed_of(rng),
            reason="no claims on one side" if np.isnan(statistic) else "",
        )
        for p, statistic, count in zip(shares, observed, n, strict=True)
    )


def _all_swaps(clusters: int) -> FloatArray:
    """Every 0/1 vector of the given length, one a row."""
    return np.asarray((np.arange(2**clusters)[:, None] >> np.arange(clusters)) & 1, dtype=np.float64)


def _all_choices(clusters: int, size: int) -> FloatArray:
    """Every 0/1 vector with `size` ones, one a row."""
    picks = np.array(list(combinations(range(clusters), size)), dtype=np.int64).reshape(-1, size)
    chosen = np.zeros((len(picks), clusters))
    np.put_along_axis(chosen, picks, 1.0, axis=1)
    return chosen


def _drawn_choices(clusters: int, size: int, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw `count` 0/1 vectors with `size` ones, one a row."""
    chosen = np.tile((np.arange(clusters) < size).astype(np.float64), (count, 1))
    return rng.permuted(chosen, axis=1)


def _split(chosen: FloatArray, top: FloatArray, bottom: FloatArray) -> FloatArray:
    """Ratio inside the choice minus the ratio outside, shape (choices, tests)."""
    inside_top, inside_bottom = chosen @ top, chosen @ bottom
    outside = divided(top.sum(axis=0) - inside_top, bottom.sum(axis=0) - inside_bottom)
    return divided(inside_top, inside_bottom) - outside
