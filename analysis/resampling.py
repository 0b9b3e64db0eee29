"""Cluster bootstrap by multinomial weights: all resamples of all cells of a table in one matrix product.

Claims of one persona are not independent, so whole personas (or whole model families) are resampled. A resample is a
row of multiplicities; the totals of every table under every resample are ``counts.T @ multiplicities.T``, and no row
of data is ever copied. Replicates carry the resample on their last axis.

This module knows clusters, not what is counted in them. Chance is an argument.

References
----------
.. [1] Davison and Hinkley, Bootstrap Methods and their Application, 1997, sections 2.4, 3.8 and 5.3.
.. [2] Fisher and Hall, Bootstrap algorithms for small samples, J. Stat. Plan. Inference 27, 1991 (enumeration).
"""

from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from analysis.estimates import LEVEL, NAN, FloatArray, IntArray, Interval, Number, seed_of

RESAMPLES: Final = 10_000
EXACT_LIMIT: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resamples:
    """Bootstrap resamples of clusters, reusable for any statistic of the same clusters.

    Parameters
    ----------
    multiplicities : ndarray, shape (resamples, clusters)
        How often each cluster occurs; whole numbers, rows sum to the number of clusters.
    probability : ndarray of float, shape (resamples,), or None
        Probability of each row where all possible resamples were enumerated, None where they were drawn.
    method, seed : str
        For the interval's description.
    """

    multiplicities: Number
    probability: FloatArray | None = None
    method: str
    seed: str = ""

    @property
    def count(self) -> int:
        """Number of resamples."""
        return len(self.multiplicities)

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.multiplicities.shape[1])

    def sums(self, values: Number) -> FloatArray:
        """Return the totals over clusters under every resample.

        Parameters
        ----------
        values : ndarray, shape (clusters, ...)
            Counts per cluster. Sums of whole numbers are exact (below 2**53).

        Returns
        -------
        ndarray of float, shape (..., resamples)
        """
        flat = np.asarray(values, dtype=np.float64).reshape(self.clusters, -1)
        return (flat.T @ np.asarray(self.multiplicities, dtype=np.float64).T).reshape(*values.shape[1:], self.count)

    def bounds(self, replicates: FloatArray, level: float = LEVEL) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        """Return low and high percentiles over the last axis, and how many replicates were `nan` and left out.

        Parameters
        ----------
        replicates : ndarray of float, shape (..., resamples)
        level : float
            Nominal coverage.

        Returns
        -------
        low, high : ndarray of float, shape (...)
            Linear interpolation between drawn replicates; for enumerated ones the smallest value that reaches the
            probability.
        dropped : ndarray of int, shape (...)
        """
        tails = np.array([(1 - level) / 2, (1 + level) / 2])
        order = None if self.probability is None else np.argsort(replicates, axis=-1)
        ascending = np.sort(replicates, axis=-1) if order is None else np.take_along_axis(replicates, order, axis=-1)
        kept = np.full(replicates.shape[:-1], self.count)
        if np.isnan(ascending[..., -1]).any():
            kept = (~np.isnan(ascending)).sum(axis=-1)
        if order is None or self.probability is None:
            low, high = (_interpolated(ascending, kept, tail) for tail in tails)
        else:
            low, high = (_reached(ascending, self.probability[order], kept, tail) for tail in tails)
        return low, high, self.count - kept

    def interval(self, replicates: FloatArray, level: float = LEVEL) -> Interval | None:
        """Return the percentile interval of one statistic, or None if no two replicates differ.

        Parameters
        ----------
        replicates : ndarray of float, shape (resamples,)
        """
        low, high, dropped = self.bounds(replicates, level)
        if not low < high:
            return None
        undefined = np.isnan(replicates)
        share = undefined.mean() if self.probability is None else self.probability[undefined].sum()
        return Interval(
            low=float(low),
            high=float(high),
            level=level,
            method=self.method,
            resamples=self.count,
            dropped=int(dropped),
            dropped_share=float(share),
        )


def draw_resamples(
    clusters: int, count: int, rng: np.random.Generator, *, strata: IntArray | None = None, unit: str = "persona"
) -> Resamples:
    """Draw bootstrap resamples of clusters.

    Parameters
    ----------
    clusters : int
        Number of clusters, for instance personas.
    count : int
        Number of resamples.
    rng : numpy.random.Generator
    strata : ndarray of int, shape (clusters,), optional
        Draw within strata, for instance persona groups whose sizes the design fixes.
    unit : str
        What a cluster is, for the description.

    Examples
    --------
    >>> drawn = draw_resamples(4, 1000, np.random.default_rng(1))
    >>> drawn.multiplicities.shape, float(drawn.multiplicities.sum(axis=1).min())
    ((1000, 4), 4.0)
    """
    if clusters < 1 or count < 1:
        raise ValueError(f"a bootstrap needs at least one cluster and one resample, not {clusters} and {count}")
    label = np.zeros(clusters, dtype=np.int64) if strata is None else np.asarray(strata)
    multiplicities = np.zeros((count, clusters))
    for stratum in np.unique(label):
        members = np.flatnonzero(label == stratum)
        picks = rng.integers(len(members), size=(count, len(members))) + np.arange(count)[:, None] * len(members)
        drawn = np.bincount(picks.ravel(), minlength=count * len(members))
        multiplicities[:, members] = drawn.reshape(count, len(members))
    within = "" if strata is None else " within groups"
    return Resamples(multiplicities=multiplicities, method=f"percentile, {unit} bootstrap{within}", seed=seed_of(rng))


def enumerate_resamples(clusters: int, *, unit: str = "persona") -> Resamples:
    """Return every possible bootstrap resample with its probability, so that percentiles have no Monte-Carlo error.

    There are C(2n - 1, n) of them: 1,716 for 7 families, 1,352,078 for 12 models.

    Examples
    --------
    >>> every = enumerate_resamples(2)
    >>> every.multiplicities.tolist(), every.probability.round(6).tolist()
    ([[0, 2], [1, 1], [2, 0]], [0.25, 0.5, 0.25])
    """
    rows = np.zeros((1, 0), dtype=np.int8)
    left = np.array([clusters])
    for _ in range(clusters - 1):
        parents = np.repeat(np.arange(len(left)), left + 1)
        taken = np.arange(len(parents)) - np.repeat(np.cumsum(left + 1) - left - 1, left + 1)
        rows = np.hstack([rows[parents], taken[:, None].astype(np.int8)])
        left = left[parents] - taken
    multiplicities = np.hstack([rows, left[:, None].astype(np.int8)])
    factorials = gammaln(np.arange(clusters + 1) + 1)
    logs = np.full(len(multiplicities), factorials[clusters] - clusters * np.log(clusters))
    for column in multiplicities.T:
        logs -= factorials[column]
    return Resamples(
        multiplicities=multiplicities, probability=np.exp(logs), method=f"percentile, exact {unit} bootstrap"
    )


def resamples_of(
    clusters: int, rng: np.random.Generator, *, count: int = RESAMPLES, limit: int = EXACT_LIMIT, unit: str = "persona"
) -> Resamples:
    """Return all resamples if there are at most `limit`, else `count` drawn ones."""
    if comb(2 * clusters - 1, clusters) <= limit:
        return enumerate_resamples(clusters, unit=unit)
    return draw_resamples(clusters, count, rng, unit=unit)


def _interpolated(ascending: FloatArray, kept: IntArray, tail: float) -> FloatArray:
    """Quantile of the first `kept` values by linear interpolation, `nan` if there are none."""
    place = np.maximum(kept - 1, 0) * tail
    below = np.floor(place).astype(np.int64)[..., None]
    above = np.minimum(below + 1, np.maximum(kept - 1, 0)[..., None])
    start, end = (np.take_along_axis(ascending, at, axis=-1)[..., 0] for at in (below, above))
    return np.asarray(np.where(kept == 0, NAN, start + (end - start) * (place - below[..., 0])))


def _reached(ascending: FloatArray, probability: FloatArray, kept: IntArray, tail: float) -> FloatArray:
    """Smallest value whose cumulative probability, among the first `kept`, reaches `tail`."""
    inside = np.arange(ascending.shape[-1]) < np.asarray(kept)[..., None]
    cumulative = np.cumsum(np.where(inside, probability, 0.0), axis=-1)
    at = (cumulative >= tail * cumulative[..., -1:]).argmax(axis=-1)[..., None]
    value = np.take_along_axis(ascending, at, axis=-1)[..., 0]
    return np.asarray(np.where(kept == 0, NAN, value))
