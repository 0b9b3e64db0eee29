"""Spearman's rho under many resamples at once. Knows pairs, clusters and weights, not what they measure."""

from typing import Final

import numpy as np

from analysis.estimates import NAN, FloatArray, IntArray, Number

_CHUNK: Final = 512


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
        `nan` where a side is constant.

    Notes
    -----
    Tied values form blocks. A block's average rank follows from the weights of the blocks below it, and those weights
    are a matrix product. All sums are of whole or quarter numbers, hence exact until the last division.
    """
    blocks = [np.unique(side, return_inverse=True)[1] for side in (x, y)]
    held = [_incidence(cluster, block, multiplicities.shape[1]) for block in blocks]
    pairs, repeats = np.unique(np.stack([cluster, *blocks]), axis=1, return_counts=True)
    result = np.empty(len(multiplicities))
    for start in range(0, len(multiplicities), _CHUNK):
        part = np.asarray(multiplicities[start : start + _CHUNK].T, dtype=np.float64)
        result[start : start + _CHUNK] = _weighted_rho(part, held, pairs, repeats)
    return result


def _weighted_rho(part: FloatArray, held: list[FloatArray], pairs: IntArray, repeats: IntArray) -> FloatArray:
    """Rho under each column of weights `part`, shape (clusters, resamples)."""
    weights = [side @ part for side in held]
    size = weights[0].sum(axis=0)
    ranks = [np.cumsum(weight, axis=0) - (weight + size) / 2 for weight in weights]
    spread = [np.einsum("br,br,br->r", weight, rank, rank) for weight, rank in zip(weights, ranks, strict=True)]
    product = ranks[0][pairs[1]]
    product *= ranks[1][pairs[2]]
    product *= part[pairs[0]]
    return centred_quotient(repeats @ product, *spread)


def centred_quotient(joint: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return correlations from joint and own sums of squares about the mean; `nan` where a side has no spread.

    Examples
    --------
    >>> centred_quotient(np.array([3.0, 0.0]), np.array([9.0, 0.0]), np.array([4.0, 1.0])).tolist()
    [0.5, nan]
    """
    spread = np.sqrt(first * second)
    return np.asarray(np.divide(joint, spread, out=np.full(joint.shape, NAN), where=spread > 0))


def _incidence(cluster: IntArray, block: IntArray, clusters: int) -> FloatArray:
    """Count pairs per (block, cluster)."""
    held = np.zeros((int(block.max()) + 1, clusters))
    np.add.at(held, (block, cluster), 1.0)
    return held
