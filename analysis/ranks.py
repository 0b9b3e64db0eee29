"""Spearman's rho under many resamples at once. Knows pairs, clusters and weights, not what they measure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from analysis.estimates import NAN, FloatArray, IntArray, Number

# Cells worked on at a time: a few arrays of this size stay in a core's own cache.
_CELLS: Final = 2**17
# Ranks are half numbers; below this many pairs they are exact in single precision, which is twice as fast. Their
# products are not quite: good enough for the percentiles of many resamples, not for a point estimate.
_SINGLE_BELOW: Final = 1_000_000
_MANY: Final = 100


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
    Tied values form blocks. A block's average rank follows from the weights of the blocks below it, and its ranks' sum
    of squares from the weights alone: (N**3 - sum of cubes) / 12 about the mean.
    """
    single = len(x) < _SINGLE_BELOW and len(multiplicities) >= _MANY
    blocks = [np.unique(side, return_inverse=True)[1] for side in (x, y)]
    held = [_incidence(cluster, block, multiplicities.shape[1], single=single) for block in blocks]
    pairs, repeats = np.unique(np.stack([cluster, *blocks]), axis=1, return_counts=True)
    chunk = max(_CELLS // len(repeats), 1)
    kind: type[np.floating] = np.float32 if single else np.float64
    result = np.empty(len(multiplicities))
    for start in range(0, len(multiplicities), chunk):
        part = np.ascontiguousarray(multiplicities[start : start + chunk].T).astype(kind)
        result[start : start + chunk] = _weighted_rho(part, held, pairs, repeats.astype(part.dtype))
    return result


def _weighted_rho(part: NDArray[np.floating], held: list[csr_array], pairs: IntArray, repeats: Number) -> FloatArray:
    """Rho under each column of weights `part`, shape (clusters, resamples)."""
    weights = [side @ part for side in held]
    size = weights[0].sum(axis=0)
    first, second = (_centred_ranks(weight, size) for weight in weights)
    product = first[pairs[1]]
    product *= second[pairs[2]]
    product *= part[pairs[0]]
    spread = [(_cubed(size) - _cubed(weight).sum(axis=0)) / 12 for weight in weights]
    return centred_quotient(np.asarray(repeats @ product, dtype=np.float64), *spread)


def _centred_ranks(weight: NDArray[np.floating], size: NDArray[np.floating]) -> NDArray[np.floating]:
    """Average rank of each block less the mean rank, shape (blocks, resamples)."""
    ranks = np.cumsum(weight, axis=0)
    ranks -= weight / 2
    ranks -= size / 2
    return np.asarray(ranks)


def _cubed(values: NDArray[np.floating]) -> FloatArray:
    """Cubes in double precision; a power would be many times slower."""
    exact = values.astype(np.float64)
    return exact * exact * exact


def centred_quotient(joint: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return correlations from joint and own sums of squares about the mean; `nan` where a side has no spread.

    Examples
    --------
    >>> centred_quotient(np.array([3.0, 0.0]), np.array([9.0, 0.0]), np.array([4.0, 1.0])).tolist()
    [0.5, nan]
    """
    spread = np.sqrt(first * second)
    return np.asarray(np.divide(joint, spread, out=np.full(joint.shape, NAN), where=spread > 0))


def _incidence(cluster: IntArray, block: IntArray, clusters: int, *, single: bool) -> csr_array:
    """Count pairs per (block, cluster)."""
    ones = np.ones(len(block), np.float32 if single else np.float64)
    held = csr_array((ones, (block, cluster)), shape=(int(block.max()) + 1, clusters))
    held.sum_duplicates()
    return held
