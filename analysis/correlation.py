"""Spearman's rank correlation: exact permutation p, naive and family-clustered intervals, leave-one-family-out.

Ranks are average ranks, and every resample is ranked anew. This module knows pairs of numbers, not what they measure.

References
----------
.. [1] "The Personalization Mirage", Tables 2 and 6, section "The Self-Monitoring Inversion", Appendix D.
.. [2] Held and Karp, A dynamic programming approach to sequencing problems, J. SIAM 10, 1962 (sums over subsets).
"""

from dataclasses import dataclass, replace
from math import factorial, gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from analysis.estimates import (
    LEVEL,
    NAN,
    Alternative,
    Estimate,
    FloatArray,
    IntArray,
    Number,
    PValue,
    TextArray,
    missing,
    seed_of,
)
from analysis.ranks import centred_quotient, resampled_spearman
from analysis.resampling import EXACT_LIMIT, RESAMPLES, Resamples, resamples_of
from analysis.words import plural

EXACT_PAIRS: Final = 14
FEWEST_PAIRS: Final = 3
METHOD: Final = "Spearman's rho"
ONE_CONSTANT: Final = "one side is constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rho without one family: how much the correlation hangs on it."""

    family: str
    estimate: Estimate


def spearman(x: Number, y: Number) -> Estimate:
    """Return Spearman's rho over pairs; pairs with a `nan` are left out and counted.

    Parameters
    ----------
    x, y : ndarray, shape (n,)

    Returns
    -------
    Estimate
        `n` is the number of pairs. `nan` for fewer than 3 pairs or when one side is constant.

    Examples
    --------
    >>> spearman(np.array([1, 2, 3, 4]), np.array([2, 1, 4, 3])).value
    0.6
    >>> spearman(np.array([1, 1, 1]), np.array([1, 2, 3])).reason
    'one side is constant'
    """
    known = _known(x, y)
    n, left_out = int(known.sum()), int((~known).sum())
    if n < FEWEST_PAIRS:
        return missing(f"{plural(n, 'pairs')}: fewer than {FEWEST_PAIRS}", method=METHOD, n=n)
    rho = float(resampled_spearman(x[known], y[known], np.arange(n), np.ones((1, n)))[0])
    note = f"{plural(left_out, 'pairs')} without a value left out" if left_out else ""
    return Estimate(value=rho, n=n, method=METHOD, reason=ONE_CONSTANT if np.isnan(rho) else note)


def spearman_interval(
    x: Number,
    y: Number,
    rng: np.random.Generator,
    *,
    families: IntArray | TextArray | None = None,
    count: int = RESAMPLES,
    limit: int = EXACT_LIMIT,
    level: float = LEVEL,
    unit: str = "model",
) -> Estimate:
    """Return rho with a percentile bootstrap interval over pairs, or over whole families of pairs.

    Parameters
    ----------
    x, y : ndarray, shape (n,)
    rng : numpy.random.Generator
    families : ndarray, shape (n,), optional
        Family of each pair; whole families are then resampled, so that resamples differ in size.
    count, limit : int
        All resamples are enumerated when there are at most `limit`, so that the ends carry no Monte-Carlo error;
        else `count` are drawn.
    level : float
        Nominal coverage.
    unit : str
        What a pair is, for the description.

    Returns
    -------
    Estimate
        Resamples with a constant side have no rho; they are dropped and counted.

    Examples
    --------
    >>> families = np.array(["a", "a", "b", "b", "c"])
    >>> x, y = np.array([1, 2, 3, 4, 5]), np.array([2, 1, 5, 3, 4])
    >>> interval = spearman_interval(x, y, np.random.default_rng(1), families=families).interval
    >>> interval.low, interval.high, interval.resamples, interval.dropped
    (-1.0, 0.7777777777777778, 10, 1)
    """
    point = spearman(x, y)
    if np.isnan(point.value):
        return point
    known = _known(x, y)
    names = np.arange(len(x)) if families is None else np.asarray(families)
    labels, cluster = np.unique(names[known], return_inverse=True)
    resamples = resamples_of(len(labels), rng, count=count, limit=limit, unit=unit if families is None else "family")
    replicates = resampled_spearman(x[known], y[known], cluster, resamples.multiplicities)
    interval = resamples.interval(replicates, level)
    reason = point.reason if interval else f"resamples of {plural(len(labels), 'clusters')} do not vary: no interval"
    return replace(point, interval=interval, seed=resamples.seed, reason=reason)


def spearman_p(
    x: Number,
    y: Number,
    rng: np.random.Generator,
    *,
    permutations: int = RESAMPLES,
    alternative: Alternative = "two-sided",
) -> PValue:
    """Return the permutation p-value of rho, exact for up to 14 pairs, with or without ties.

    Parameters
    ----------
    x, y : ndarray, shape (n,)
    rng : numpy.random.Generator
        Used for more than 14 pairs only.
    permutations : int
        Number to draw for more than 14 pairs; the observed order is counted in, so that p is never 0.
    alternative : {"two-sided", "less", "greater"}
        Two-sided counts every order whose absolute rho is at least the observed one.

    Notes
    -----
    The sum of rank products decides rho. Its distribution over all n! orders comes from a dynamic programme over
    subsets [2]_: place the first k of one side on every k-subset of the other. It costs n 2**n steps, not n!, and
    everything is compared as integers.

    Examples
    --------
    >>> result = spearman_p(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4]), np.random.default_rng(1))
    >>> result.p.__round__(6), result.permutations
    (0.083333, 24)
    """
    point = spearman(x, y)
    if np.isnan(point.value):
        return PValue(
            p=NAN, statistic=NAN, n=point.n, alternative=alternative, method="permutation", reason=point.reason
        )
    known = _known(x, y)
    first, second = _scores(x[known]), _scores(y[known])
    exact = point.n <= EXACT_PAIRS
    if exact:
        hits, total = _exact_hits(first, second, alternative)
    else:
        hits, total = _drawn_hits(first, second, alternative, permutations, rng)
    return PValue(
        p=hits / total,
        statistic=point.value,
        n=point.n,
        alternative=alternative,
        method="exact, all orders" if exact else "Monte Carlo, drawn orders",
        permutations=total if exact else permutations,
        seed="" if exact else seed_of(rng),
        reason=point.reason,
    )


def leave_one_out(x: Number, y: Number, families: TextArray) -> tuple[LeftOut, ...]:
    """Return rho without each family in turn, in alphabetical order.

    Examples
    --------
    >>> x, y, families = np.arange(5), np.array([0, 1, 2, 3, -9]), np.array(list("aabbc"))
    >>> [(row.family, row.estimate.value) for row in leave_one_out(x, y, families)]
    [('a', -0.5), ('b', -0.5), ('c', 1.0)]
    """
    return tuple(
        LeftOut(family=str(family), estimate=spearman(x[families != family], y[families != family]))
        for family in np.unique(families)
    )


def spearman_over(x: FloatArray, y: FloatArray, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return rho between two sets of rates, with an interval over the resamples in which the rates were recomputed.

    The interval says how far rho moves with other personas; the models stay the same.

    Parameters
    ----------
    x, y : ndarray of float, shape (models, 1 + resamples)
        The observed rate first, then its replicates.
    resamples : Resamples
        Those of the replicates.
    """
    ranks = [rankdata(side, axis=0, nan_policy="propagate") for side in (x, y)]
    centred = [rank - rank.mean(axis=0) for rank in ranks]
    rho = centred_quotient((centred[0] * centred[1]).sum(axis=0), *[(side**2).sum(axis=0) for side in centred])
    return Estimate(
        value=float(rho[0]),
        n=len(x),
        interval=resamples.interval(rho[1:], level),
        method=METHOD,
        seed=resamples.seed,
        reason="a rate is missing or one side is constant" if np.isnan(rho[0]) else "",
    )


def pearson_over(x: FloatArray, y: FloatArray, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return Pearson's r between two sets of rates, with an interval over the resamples; see `spearman_over`.

    Parameters
    ----------
    x, y : ndarray of float, shape (models, 1 + resamples)
        The observed rate first, then its replicates; a model without one is left out.
    resamples : Resamples
        Those of the replicates.
    level : float
        Nominal coverage.
    """
    known = ~np.isnan(x[:, 0] + y[:, 0])
    n, method = int(known.sum()), "Pearson's r"
    if n < FEWEST_PAIRS:
        return missing(f"{plural(n, 'models')}: fewer than {FEWEST_PAIRS}", method=method, n=n)
    first, second = (side[known] - side[known].mean(axis=0) for side in (x, y))
    r = centred_quotient((first * second).sum(axis=0), (first**2).sum(axis=0), (second**2).sum(axis=0))
    interval = resamples.interval(r[1:], level)
    return Estimate(
        value=float(r[0]),
        n=n,
        interval=interval,
        method=method,
        seed=resamples.seed if interval else "",
        reason=ONE_CONSTANT if np.isnan(r[0]) else "" if interval else "no variation between personas: no interval",
    )


def pearson(x: Number, y: Number, cluster: IntArray, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return Pearson's correlation over records with a cluster-bootstrap interval.

    Parameters
    ----------
    x, y : ndarray, shape (n,)
        Records with a `nan` are left out and counted.
    cluster : ndarray of int, shape (n,)
        The cluster (persona) of each record.
    resamples : Resamples
        Of the clusters.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimate
        `n` is the number of records. `nan` for fewer than 3 records or when one side is constant.
    """
    method = "Pearson's r"
    known = _known(x, y)
    n, left_out = int(known.sum()), int((~known).sum())
    if n < FEWEST_PAIRS:
        return missing(f"{plural(n, 'pairs')}: fewer than {FEWEST_PAIRS}", method=method, n=n)
    if np.ptp(x[known]) == 0 or np.ptp(y[known]) == 0:
        return missing(ONE_CONSTANT, method=method, n=n)
    first, second = x[known] - x[known].mean(), y[known] - y[known].mean()
    parts = np.stack([np.ones(n), first, second, first**2, second**2, first * second], axis=1)
    held = np.zeros((resamples.clusters, parts.shape[1]))
    np.add.at(held, cluster[known], parts)
    interval = resamples.interval(_pearson_of_sums(resamples.sums(held)), level)
    note = f"{plural(left_out, 'pairs')} without a value left out" if left_out else ""
    return Estimate(
        value=float(_pearson_of_sums(held.sum(axis=0)[:, None])[0]),
        n=n,
        interval=interval,
        method=method,
        seed=resamples.seed if interval else "",
        reason=note if interval else "no variation between personas: no interval",
    )


def _pearson_of_sums(sums: FloatArray) -> FloatArray:
    """Correlation from count, sums, sums of squares and of products, shape (6, resamples)."""
    n, sx, sy, sxx, syy, sxy = sums
    return centred_quotient(n * sxy - sx * sy, n * sxx - sx * sx, n * syy - sy * sy)


def _known(x: Number, y: Number) -> NDArray[np.bool_]:
    """Pairs without `nan`."""
    return np.asarray(~(np.isnan(x) | np.isnan(y)))


def _scores(side: Number) -> NDArray[np.int64]:
    """Average ranks as the smallest whole numbers that have the same order and spacing."""
    doubled = (2 * rankdata(side)).astype(np.int64)
    doubled -= doubled.min()
    return np.asarray(doubled // gcd(*doubled.tolist()))


def _extreme(sums: Number, first: IntArray, second: IntArray, alternative: Alternative) -> NDArray[np.bool_]:
    """Which sums of products are at least as extreme as the observed one, compared as integers."""
    away = len(first) * sums - first.sum() * second.sum()
    seen = len(first) * (first @ second) - first.sum() * second.sum()
    if alternative == "two-sided":
        return np.asarray(np.abs(away) >= abs(seen))
    return np.asarray(away <= seen) if alternative == "less" else np.asarray(away >= seen)


def _exact_hits(first: IntArray, second: IntArray, alternative: Alternative) -> tuple[int, int]:
    """Count the extreme orders among all n! of them."""
    counts = _sums_over_orders(first, second)
    extreme = _extreme(np.arange(len(counts)), first, second, alternative)
    return int(counts[extreme].sum()), factorial(len(first))


def _sums_over_orders(first: IntArray, second: IntArray) -> NDArray[np.int64]:
    """How many orders give each sum of products; index is the sum."""
    n, width = len(first), int(np.sort(first) @ np.sort(second)) + 1
    subsets = np.arange(2**n)
    sizes = np.bitwise_count(subsets)
    row = np.empty(2**n, dtype=np.int64)
    row[np.argsort(sizes, kind="stable")] = np.concatenate([np.arange(size) for size in np.bincount(sizes)])
    level = np.zeros((1, width), dtype=np.int64)
    level[0, 0] = 1
    for placed, score in enumerate(np.sort(first).tolist()):
        members = subsets[sizes == placed]
        grown = np.zeros((int((sizes == placed + 1).sum()), width), dtype=np.int64)
        for place, other in enumerate(second.tolist()):
            free = np.flatnonzero((members >> place) & 1 == 0)
            shift = score * other
            grown[row[members[free] | (1 << place)], shift:] += level[free, : width - shift]
        level = grown
    return np.asarray(level[0])


def _drawn_hits(
    first: IntArray, second: IntArray, alternative: Alternative, permutations: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Count the extreme orders among drawn ones and the observed one."""
    orders = rng.permuted(np.tile(second, (permutations, 1)), axis=1)
    return int(_extreme(orders @ first, first, second, alternative).sum()) + 1, permutations + 1
