"""Rounding keeps sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.rounding import controlled, fit, largest_remainder, spread

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


@given(WEIGHTS, st.integers(0, 10_000))
def test_largest_remainder_gives_the_total_and_stays_within_one(shares: list[float], total: int) -> None:
    """Every place gets its exact share rounded down or up."""
    whole = largest_remainder(shares, total)
    assert sum(whole) == total
    assert all(abs(n - share * total / sum(shares)) < 1 for n, share in zip(whole, shares, strict=True))


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 20)), min_size=1, max_size=20), st.data())
def test_spread_gives_the_total_and_passes_no_cap(places: list[tuple[float, int]], data: st.DataObject) -> None:
    """Whatever the weights, caps hold and nothing is lost."""
    caps = [cap for _, cap in places]
    total = data.draw(st.integers(0, sum(caps)))
    given_out = spread(total, [weight for weight, _ in places], caps)
    assert sum(given_out) == total
    assert all(0 <= n <= cap for n, cap in zip(given_out, caps, strict=True))


def test_spread_refuses_more_than_the_caps_hold() -> None:
    """A total that does not fit is an error, not a silent loss."""
    with pytest.raises(ValueError, match="does not fit"):
        spread(4, [1.0, 1.0], [1, 2])


@given(st.integers(2, 8), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_controlled_rounding_keeps_margins_and_moves_no_cell_by_one(rows: int, columns: int, seed: int) -> None:
    """Row and column sums are as they were; every cell is its floor or its ceiling."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(1, 50, (rows, columns)).astype(float)
    matrix = fit(rng.uniform(0.1, 5, (rows, columns)), whole.sum(axis=1), whole.sum(axis=0))
    rounded = controlled(matrix)
    assert (rounded.sum(axis=1) == whole.sum(axis=1)).all()
    assert (rounded.sum(axis=0) == whole.sum(axis=0)).all()
    assert np.abs(rounded - matrix).max() < 1


def test_controlled_rounding_refuses_margins_that_are_not_whole() -> None:
    """Nothing can be kept if the sums are fractions."""
    with pytest.raises(ValueError, match="not whole"):
        controlled(np.array([[0.25, 0.5], [0.25, 0.5]]))
