"""Spearman's rho under many resamples at once. Knows pairs, clusters and weights, not what they measure."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from analysis.estimates import NAN, FloatArray, IntArray, Number

# Cells worked on at a time: a few arrays of this size stay in a core's own cache.
_CELLS: Final = 2**18
# Ranks are half numbers; below this many pairs they are exact in single precision, which is twice as fast. Their
# products are not quite: good enough for the percentiles of many resamples, not for a point estimate.
_SINGLE_BELOW: Final = 1_000_000
_MANY: Final = 100
# From so many pairs on the sum over triples of clusters is cheaper than the sum over pairs: clusters**3 over this, or
# the least. Up to so many clusters its table of triples is of a reasonable size.
_TRIPLES_PER_PAIR: Final = 256
_LEAST_PAIRS: Final = 4_000
_MOST_CLUSTERS: Final = 300

_Reals = NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """One of two variables: the block of equal values of each pair, and how many pairs each (block, cluster) has."""

    block: IntArray
    held: csr_array

    @property
    def blocks(self) -> int:
        """Return how many blocks there are."""
        return int(self.held.shape[0])

    def centred(self) -> FloatArray:
        """Return each cluster's share in each block's average rank less the mean rank, shape (blocks, clusters)."""
        counts = np.asarray(self.held.toarray(), dtype=np.float64)
        return np.asarray(np.cumsum(counts, axis=0) - counts / 2 - counts.sum(axis=0) / 2)


def resampled_spearman(x: Number, y: Number, cluster: IntArray, multiplicities: Number) -> FloatArray:
    """Return rho of every resample, ranks taken anew, without building one.

    Parameters
    ----------
    x, y : ndarray, shape (n,)
        No `nan`.
    cluster : ndarray of int, shape (n,)
        The cluster of each pair.
    multiplicities : ndarray, shape (resamples, clusters)
        Whole numbers.

    Returns
    -------
    ndarray of float, shape (resamples,)
        `nan` where a side is constant. Exact until the last division for few pairs or few resamples, else to about six
        digits.

    Notes
    -----
    Tied values form blocks. A block's average rank follows from the weights of the blocks below it, so it is linear in
    the multiplicities, and the ranks' sum of squares about the mean is (N**3 - sum of cubed block weights) / 12. The
    sum of rank products is taken over pairs or, where these are many, as a cubic form over triples of clusters.
    """
    single = len(x) < _SINGLE_BELOW and len(multiplicities) >= _MANY
    kind: type[np.floating] = np.float32 if single else np.float64
    clusters = multiplicities.shape[1]
    first, second = (_side(values, cluster, clusters, kind) for values in (x, y))
    pairs, repeats = _distinct((cluster, first.block, second.block), (clusters, first.blocks, second.blocks))
    most = max(clusters**3 // _TRIPLES_PER_PAIR, _LEAST_PAIRS)
    many = len(repeats) > most and clusters <= _MOST_CLUSTERS
    triples = _folded_triples(first, second, cluster, clusters, kind) if many else None
    chunk = max(_CELLS // (clusters if many else len(repeats)), 1)
    result = np.empty(len(multiplicities))
    for start in range(0, len(multiplicities), chunk):
        part = np.ascontiguousarray(multiplicities[start : start + chunk].T).astype(kind)
        weights = [side.held @ part for side in (first, second)]
        if triples is None:
            joint = _over_pairs(part, weights, pairs, repeats.astype(kind))
        else:
            joint = _over_triples(part, triples)
        size = _cubed(weights[0].sum(axis=0))
        spread = [(size - _cubed(weight).sum(axis=0)) / 12 for weight in weights]
        result[start : start + chunk] = centred_quotient(joint, *spread)
    return result


def centred_quotient(joint: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return correlations from joint and own sums of squares about the mean; `nan` where a side has no spread.

    Examples
    --------
    >>> centred_quotient(np.array([3.0, 0.0]), np.array([9.0, 0.0]), np.array([4.0, 1.0])).tolist()
    [0.5, nan]
    """
    spread = np.sqrt(first * second)
    return np.asarray(np.divide(joint, spread, out=np.full(joint.shape, NAN), where=spread > 0))


def _side(values: Number, cluster: IntArray, clusters: int, kind: type[np.floating]) -> _Side:
    block = np.unique(values, return_inverse=True)[1]
    held = csr_array((np.ones(len(block), kind), (block, cluster)), shape=(int(block.max()) + 1, clusters))
    held.sum_duplicates()
    return _Side(block=block, held=held)


def _distinct(places: tuple[IntArray, ...], shape: tuple[int, ...]) -> tuple[list[IntArray], IntArray]:
    """Return the different combinations of places, a list of arrays, and how often each occurs."""
    keys, counts = np.unique(np.ravel_multi_index(places, shape), return_counts=True)
    return list(np.unravel_index(keys, shape)), counts


def _over_pairs(part: _Reals, weights: list[_Reals], pairs: list[IntArray], repeats: _Reals) -> FloatArray:
    """Sum of centred rank products under each column of weights `part`, pair by pair."""
    size = weights[0].sum(axis=0)
    first, second = (_centred_ranks(weight, size) for weight in weights)
    product = first[pairs[1]]
    product *= second[pairs[2]]
    product *= part[pairs[0]]
    return np.asarray(repeats @ product, dtype=np.float64)


def _centred_ranks(weight: _Reals, size: _Reals) -> _Reals:
    """Average rank of each block less the mean rank, shape (blocks, resamples)."""
    ranks = weight.copy()
    # Down the rows; `cumsum` would go down one column after the other, several times as slowly.
    for place in range(1, len(ranks)):
        ranks[place] += ranks[place - 1]
    ranks -= weight / 2
    ranks -= size / 2
    return ranks


def _folded_triples(
    first: _Side, second: _Side, cluster: IntArray, clusters: int, kind: type[np.floating]
) -> list[_Reals]:
    """Coefficients of the sum of rank products as a cubic form in the multiplicities.

    Entry (p, q, r) of the full table is the sum, over the pairs of cluster p, of q's share in the one rank and r's in
    the other. The form does not care for the order of the three, so all are added up under the largest index: the
    result's p-th matrix is over the indices up to p.
    """
    shares = [side.centred() for side in (first, second)]
    order = np.argsort(cluster, kind="stable")
    ends = np.searchsorted(cluster[order], np.arange(clusters + 1))
    table = np.empty((clusters, clusters, clusters))
    for place in range(clusters):
        rows = order[ends[place] : ends[place + 1]]
        table[place] = shares[0][first.block[rows]].T @ shares[1][second.block[rows]]
    folded = []
    for place in range(clusters):
        matrix = table[place, : place + 1, : place + 1].copy()
        matrix[:place] += table[:place, place, : place + 1]
        matrix[:place, :place] += table[:place, :place, place]
        folded.append(matrix.astype(kind))
    return folded


def _over_triples(part: _Reals, triples: list[_Reals]) -> FloatArray:
    """Sum of centred rank products under each column of weights `part`, from the folded coefficients."""
    total = np.zeros(part.shape[1])
    for place, matrix in enumerate(triples):
        inner = matrix @ part[: place + 1]
        inner *= part[: place + 1]
        total += part[place] * inner.sum(axis=0)
    return total


def _cubed(values: _Reals) -> FloatArray:
    """Cubes in double precision; a power would be many times slower."""
    exact = values.astype(np.float64)
    return exact * exact * exact
