"""Ratios of totals, their differences, and their clustered uncertainty: what nearly every table cell is.

A rate of claims, a mean over instances and a gap between two raters are all quotients of sums over personas. This
module knows numerators and denominators per cluster, not what they count.

References
----------
.. [1] Cochran, Sampling Techniques, 3rd edition, 1977, section 6.3 (linearised variance of a ratio).
"""

from typing import Final

import numpy as np

from analysis.estimates import LEVEL, NAN, Estimates, FloatArray, IntArray, Number
from analysis.resampling import Resamples

FEWEST_CLUSTERS: Final = 2
NO_DATA: Final = "no claims"
ONE_CLUSTER: Final = "fewer than two personas: no interval"
NO_VARIATION: Final = "no variation between personas: no interval"


def ratio_estimates(
    numerator: Number,
    denominator: Number,
    resamples: Resamples,
    *,
    method: str,
    level: float = LEVEL,
    empty: str = NO_DATA,
) -> Estimates:
    """Return ratios of totals with cluster-bootstrap intervals and linearised clustered standard errors.

    Parameters
    ----------
    numerator, denominator : ndarray, shape (clusters, ...)
        Totals per cluster; the denominator may broadcast against the numerator.
    resamples : Resamples
        Of the same clusters.
    method : str
        The statistic's name.
    level : float
        Nominal coverage.
    empty : str
        The reason given where the denominator is 0.

    Returns
    -------
    Estimates
        `n` is the denominator's total.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> drawn = draw_resamples(3, 500, np.random.default_rng(1))
    >>> ratio_estimates(np.array([1, 2, 3]), np.array([10, 10, 0]), drawn, method="rate")[()].value
    0.3
    """
    top, bottom = np.broadcast_arrays(numerator, denominator)
    value = divided(top.sum(axis=0), bottom.sum(axis=0))
    replicates = divided(resamples.sums(numerator), resamples.sums(denominator))
    return assemble(
        value=value,
        n=bottom.sum(axis=0),
        replicates=replicates,
        influence=_influence(top, bottom, value),
        clusters=(bottom > 0).sum(axis=0),
        resamples=resamples,
        method=method,
        level=level,
        empty=empty,
    )


def difference_estimates(
    first: tuple[Number, Number],
    second: tuple[Number, Number],
    resamples: Resamples,
    *,
    method: str,
    level: float = LEVEL,
    empty: str = "no claims on one side",
) -> Estimates:
    """Return differences of two ratios over the same resampled clusters, first minus second.

    Parameters
    ----------
    first, second : (numerator, denominator)
        Each of shape (clusters, ...), as in `ratio_estimates`.
    resamples, method, level, empty
        As in `ratio_estimates`.

    Returns
    -------
    Estimates
        `n` is the number of clusters with data on either side.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> drawn = draw_resamples(2, 500, np.random.default_rng(1))
    >>> tens = np.array([10, 10])
    >>> judge, self_audit = (np.array([4, 6]), tens), (np.array([1, 2]), tens)
    >>> round(difference_estimates(judge, self_audit, drawn, method="gap")[()].value, 6)
    0.35
    """
    sides = [np.broadcast_arrays(*side) for side in (first, second)]
    values = [divided(top.sum(axis=0), bottom.sum(axis=0)) for top, bottom in sides]
    drawn = [divided(resamples.sums(top), resamples.sums(bottom)) for top, bottom in (first, second)]
    pulls = [_influence(top, bottom, value) for (top, bottom), value in zip(sides, values, strict=True)]
    filled = [bottom > 0 for _, bottom in sides]
    return assemble(
        value=values[0] - values[1],
        n=(filled[0] | filled[1]).sum(axis=0),
        replicates=drawn[0] - drawn[1],
        influence=pulls[0] - pulls[1],
        clusters=np.minimum(filled[0].sum(axis=0), filled[1].sum(axis=0)),
        resamples=resamples,
        method=method,
        level=level,
        empty=empty,
    )


def assemble(
    *,
    value: FloatArray,
    n: IntArray,
    replicates: FloatArray,
    influence: FloatArray,
    clusters: IntArray,
    resamples: Resamples,
    method: str,
    level: float = LEVEL,
    empty: str = NO_DATA,
) -> Estimates:
    """Make `Estimates` of a statistic's values, replicates and per-cluster influence, with reasons where data lack.

    Parameters
    ----------
    value, n : ndarray, shape (...)
    replicates : ndarray of float, shape (..., resamples)
    influence : ndarray of float, shape (clusters, ...)
        Each cluster's pull on the value; the clustered standard error is its root sum of squares times G/(G-1).
    clusters : ndarray of int, shape (...)
        Clusters that have data.
    resamples, method, level, empty
        As in `ratio_estimates`.
    """
    value = np.asarray(value, dtype=np.float64)
    low, high, dropped = resamples.bounds(replicates, level)
    few = clusters < FEWEST_CLUSTERS
    still = ~(low < high) & ~few
    reason = np.select([np.isnan(value), few, still], [empty, ONE_CLUSTER, NO_VARIATION], default="")
    bare = reason != ""
    return Estimates(
        value=value,
        n=np.asarray(n),
        low=np.where(bare, NAN, low),
        high=np.where(bare, NAN, high),
        standard_error=np.where(few, NAN, clustered_standard_error(influence, clusters)),
        dropped=dropped,
        reason=np.asarray(reason, dtype=np.str_),
        method=method,
        interval_method=resamples.method,
        level=level,
        resamples=resamples.count,
        seed=resamples.seed,
    )


def clustered_standard_error(influence: FloatArray, clusters: IntArray) -> FloatArray:
    """Return the linearised standard error from per-cluster influences, shape (clusters, ...), of `clusters` with data.

    Examples
    --------
    >>> float(clustered_standard_error(np.array([0.1, -0.1]), np.array(2)))
    0.2
    """
    correction = divided(clusters, np.asarray(clusters) - 1)
    return np.asarray(np.sqrt(correction * (influence**2).sum(axis=0)))


def divided(numerator: Number, denominator: Number) -> FloatArray:
    """Return the quotient, `nan` where the denominator is 0.

    Examples
    --------
    >>> divided(np.array([1, 0]), np.array([2, 0])).tolist()
    [0.5, nan]
    """
    empty = np.full(np.broadcast(numerator, denominator).shape, NAN)
    return np.asarray(np.divide(numerator, denominator, out=empty, where=np.asarray(denominator) != 0))


def _influence(top: Number, bottom: Number, value: FloatArray) -> FloatArray:
    """Each cluster's pull on a ratio of totals; zero where the ratio is undefined."""
    total = np.asarray(bottom.sum(axis=0))
    pull = top - np.nan_to_num(value) * bottom
    return np.asarray(pull / np.where(total == 0, 1, total))
