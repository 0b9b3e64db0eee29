"""Turning real numbers into integers without losing their sums: the rounding rules of the simulated population.

Pure and deterministic: no randomness, ties go to the earlier place.
"""

from collections.abc import Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray

NEAR = 1e-9
WHOLE_TOLERANCE = 1e-4
SWEEPS = 200

Real = NDArray[np.float64]
Whole = NDArray[np.int64]


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Return integers that sum to `total`, proportional to `shares` (Hamilton's method)."""
    scale = total / sum(shares)
    exact = [share * scale for share in shares]
    whole = [floor(value + NEAR) for value in exact]
    order = sorted(range(len(exact)), key=lambda place: (whole[place] - exact[place], place))
    for place in order[: total - sum(whole)]:
        whole[place] += 1
    return whole


def spread(total: int, weights: Sequence[float], caps: Sequence[int]) -> list[int]:
    """Return integers that sum to `total`, proportional to `weights`, none above its cap.

    Raises:
        ValueError: the caps do not leave room for `total`.
    """
    if total > sum(caps) or total < 0:
        raise ValueError(f"{total} does not fit into caps that sum to {sum(caps)}")
    given = [0] * len(weights)
    open_places = [place for place, cap in enumerate(caps) if cap > 0]
    while total:
        shares = largest_remainder([max(weights[place], NEAR) for place in open_places], total)
        for place, share in zip(open_places, shares, strict=True):
            granted = min(share, caps[place] - given[place])
            given[place] += granted
            total -= granted
        open_places = [place for place in open_places if given[place] < caps[place]]
    return given


def fit(seed: Real, rows: Real, columns: Real) -> Real:
    """Return `seed` scaled to the margins `rows` and `columns` by iterative proportional fitting."""
    fitted = np.array(seed, dtype=np.float64)
    for _ in range(SWEEPS):
        fitted *= (rows / fitted.sum(axis=1))[:, None]
        fitted *= columns / fitted.sum(axis=0)
    fitted *= (rows / fitted.sum(axis=1))[:, None]
    return fitted


def controlled(matrix: Real) -> Whole:
    """Round every cell down or up so that the row and column sums, which must be whole, stay as they are.

    The cells to round up are found as a bipartite matching (augmenting paths), largest fraction first.

    Raises:
        ValueError: a row or column sum is not whole.
    """
    low = np.floor(matrix + NEAR).astype(np.int64)
    fraction = matrix - low
    need_rows, need_columns = _whole(fraction.sum(axis=1)), _whole(fraction.sum(axis=0))
    matching = _Matching(fraction, [int(need) for need in need_columns])
    for row, need in enumerate(need_rows):
        for _ in range(int(need)):
            if not matching.add(row, set()):
                raise ValueError(f"row {row} cannot be rounded")
    return low + matching.up


def _whole(sums: Real) -> Whole:
    rounded = np.rint(sums)
    if np.abs(sums - rounded).max() > WHOLE_TOLERANCE:
        raise ValueError(f"sums {sums} are not whole")
    return rounded.astype(np.int64)


class _Matching:
    """Which cells are rounded up, and how much room each column has left."""

    def __init__(self, fraction: Real, room: list[int]) -> None:
        self.up = np.zeros(fraction.shape, dtype=np.int64)
        self._room = room
        self._order = [[int(c) for c in np.argsort(-row, kind="stable") if row[c] > NEAR] for row in fraction]

    def add(self, row: int, seen: set[int]) -> bool:
        """Round one more cell of `row` up, moving others aside; return whether it worked."""
        for column in self._order[row]:
            if column in seen or self.up[row, column]:
                continue
            seen.add(column)
            if self._take(row, column, seen):
                return True
        return False

    def _take(self, row: int, column: int, seen: set[int]) -> bool:
        if self._room[column] > 0:
            self._room[column] -= 1
            self.up[row, column] = 1
            return True
        for other in np.flatnonzero(self.up[:, column]):
            if self.add(int(other), seen):
                self.up[other, column] = 0
                self.up[row, column] = 1
                return True
        return False
