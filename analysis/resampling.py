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
EXACT_SINGLE: Final = 2**24
MANY_CELLS: Final = 24
#: From so many on, sorting all of them is most of the work, and only those about the two ends matter.
MANY_REPLICATES: Final = 100_000
BINS: Final = 4096


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
        kind = self._kind(values)
        flat = np.asarray(values, dtype=kind).reshape(self.clusters, -1)
        sums = flat.T @ np.asarray(self.multiplicities, dtype=kind).T
        return np.asarray(sums, dtype=np.float64).reshape(*values.shape[1:], self.count)

    def _kind(self, values: Number) -> type[np.floating]:
        """Return single precision, twice as fast for many cells, where it holds every sum of whole numbers exactly."""
        whole = np.issubdtype(values.dtype, np.integer) and values.size >= MANY_CELLS * self.clusters
        # No cluster occurs more often than there are clusters, so no total is larger than this.
        largest = self.clusters**2 * int(np.abs(values).max(initial=0)) if whole else EXACT_SINGLE
        return np.float32 if largest < EXACT_SINGLE else np.float64

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
        if self.probability is not None and replicates.ndim == 1 and self.count > MANY_REPLICATES:
            return _weighted_ends(replicates, self.probability, tails)
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
    factorials = gammaln(np.arange(clusters + 1) + 1)
    left, logs = np.array([clusters]), np.array([factorials[clusters] - clusters * np.log(clusters)])
    columns = []
    for after in range(clusters - 1, -1, -1):
        # The first of the remaining clusters occurs 0 to `left` times; the last one as often as is left.
        branches = left + 1 if after else np.ones_like(left)
        parents = np.repeat(np.arange(len(left)), branches)
        taken = np.arange(len(parents)) - np.repeat(np.cumsum(branches) - branches, branches) if after else left
        left = left[parents] - taken
        logs = logs[parents] - factorials[taken]
        # Each goes on in so many ways, one row each.
        columns.append(np.repeat(taken.astype(np.int8), _ways(clusters, after)[left]))
    multiplicities = np.stack(columns, axis=1)
    return Resamples(
        multiplicities=multiplicities, probability=np.exp(logs), method=f"percentile, exact {unit} bootstrap"
    )


def _ways(most: int, clusters: int) -> IntArray:
    """Return in how many ways 0, 1, ... `most` draws fall on so many clusters."""
    return np.array([comb(draws + clusters - 1, draws) if clusters else int(draws == 0) for draws in range(most + 1)])


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


def _weighted_ends(
    values: FloatArray, weights: FloatArray, tails: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """As `_reached` for both ends of one statistic, sorting only the values that may be an end."""
    known = ~np.isnan(values)
    dropped = np.asarray(len(values) - known.sum())
    kept, weight = (values, weights) if known.all() else (values[known], weights[known])
    low = kept.min(initial=np.inf)
    width = kept.max(initial=-np.inf) - low
    if not width > 0:
        end = np.asarray(low if len(kept) else NAN)
        return end, end, dropped
    # Bins keep the order; where the mass reaches a tail says in which bin the end lies.
    place = np.minimum((kept - low) * (BINS / width), BINS - 1).astype(np.int64)
    mass = np.bincount(place, weights=weight, minlength=BINS)
    reached = np.cumsum(mass)
    ends = []
    for target in tails * reached[-1]:
        at = int(np.searchsorted(reached, target))
        inside = np.flatnonzero(place == at)
        order = inside[np.argsort(kept[inside])]
        within = reached[at] - mass[at] + np.cumsum(weight[order])
        ends.append(np.asarray(kept[order[min(int(np.searchsorted(within, target)), len(order) - 1)]]))
    return ends[0], ends[1], dropped
