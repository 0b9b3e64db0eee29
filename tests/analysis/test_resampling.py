"""Cluster bootstrap: drawn and enumerated resamples, sums and percentiles."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.resampling import Resamples, _weighted_ends, draw_resamples, enumerate_resamples, resamples_of


def drawn(multiplicities: np.ndarray) -> Resamples:
    """Resamples with given multiplicities."""
    return Resamples(multiplicities=multiplicities, method="test")


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_every_resample_has_as_many_clusters_as_the_data(clusters: int, count: int, seed: int) -> None:
    """Rows of multiplicities are whole numbers that sum to the number of clusters."""
    found = draw_resamples(clusters, count, np.random.default_rng(seed)).multiplicities
    assert found.shape == (count, clusters)
    assert (found.sum(axis=1) == clusters).all()
    assert (found == np.floor(found)).all()
    assert (found >= 0).all()


def test_drawn_multiplicities_follow_the_multinomial(rng: np.random.Generator) -> None:
    """Mean 1, variance 1 - 1/n, covariance -1/n."""
    found = draw_resamples(10, 200_000, rng).multiplicities
    covariance = np.cov(found.T)
    assert np.abs(found.mean(axis=0) - 1).max() < 0.02
    assert np.abs(covariance - (np.eye(10) - 0.1)).max() < 0.02


def test_strata_keep_their_sizes(rng: np.random.Generator) -> None:
    """Persona groups whose sizes the design fixes are resampled within themselves."""
    strata = np.array([0, 1, 1, 2, 2, 2])
    found = draw_resamples(6, 500, rng, strata=strata)
    for stratum, size in ((0, 1), (1, 2), (2, 3)):
        assert (found.multiplicities[:, strata == stratum].sum(axis=1) == size).all()
    assert found.method == "percentile, persona bootstrap within groups"


def test_the_same_seed_draws_the_same_resamples() -> None:
    """Chance is an argument and nothing else."""
    one, other = (draw_resamples(5, 20, np.random.default_rng(9)).multiplicities for _ in range(2))
    assert (one == other).all()


@pytest.mark.parametrize(("clusters", "count"), [(0, 10), (3, 0)], ids=["no clusters", "no resamples"])
def test_an_empty_bootstrap_is_refused(clusters: int, count: int, rng: np.random.Generator) -> None:
    """There is nothing to draw."""
    with pytest.raises(ValueError, match="at least one cluster and one resample"):
        draw_resamples(clusters, count, rng)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5, 7])
def test_enumerated_resamples_are_all_and_their_probabilities_sum_to_one(clusters: int) -> None:
    """There are C(2n - 1, n) distinct rows."""
    found = enumerate_resamples(clusters)
    assert found.probability is not None
    assert found.count == comb(2 * clusters - 1, clusters) == len(np.unique(found.multiplicities, axis=0))
    assert (found.multiplicities.sum(axis=1) == clusters).all()
    assert found.probability.sum() == pytest.approx(1)


def test_enumerated_probabilities_match_counting_every_ordered_draw() -> None:
    """Four clusters have 256 ordered draws."""
    draws = np.array([np.bincount(draw, minlength=4) for draw in product(range(4), repeat=4)])
    rows, times = np.unique(draws, axis=0, return_counts=True)
    counted = dict(zip(map(tuple, rows.tolist()), (times / 256).tolist(), strict=True))
    found = enumerate_resamples(4)
    assert found.probability is not None
    for row, probability in zip(found.multiplicities.tolist(), found.probability.tolist(), strict=True):
        assert probability == pytest.approx(counted[tuple(row)])


def test_resamples_are_enumerated_only_while_there_are_few(rng: np.random.Generator) -> None:
    """Seven families have 1,716 resamples, above the limit they are drawn."""
    assert resamples_of(7, rng, limit=1716).probability is not None
    sampled = resamples_of(7, rng, limit=1715, count=50)
    assert sampled.probability is None
    assert sampled.count == 50


@given(
    arrays(np.int64, st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 3)), elements=st.integers(0, 50))
)
@settings(deadline=None, max_examples=40)
def test_sums_equal_adding_up_the_resampled_rows(counts: np.ndarray) -> None:
    """One matrix product stands for copying rows."""
    found = draw_resamples(len(counts), 7, np.random.default_rng(0))
    for place, row in enumerate(found.multiplicities.astype(int)):
        copied = counts[np.repeat(np.arange(len(counts)), row)].sum(axis=0)
        assert (found.sums(counts)[..., place] == copied).all()


@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 60)), elements=st.floats(-1e6, 1e6)),
    st.sampled_from([0.5, 0.9, 0.95]),
)
@settings(deadline=None, max_examples=60)
def test_percentiles_of_drawn_replicates_are_numpys(replicates: np.ndarray, level: float) -> None:
    """Linear interpolation, as in `numpy.quantile`."""
    low, high, dropped = drawn(np.ones((replicates.shape[1], 1))).bounds(replicates, level)
    expected = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2], axis=-1)
    np.testing.assert_allclose([low, high], expected, rtol=1e-9, atol=1e-9)
    assert (dropped == 0).all()


def test_undefined_replicates_are_left_out_and_counted() -> None:
    """One nan must not make the interval nan, nor count as a number."""
    replicates = np.array([[3.0, np.nan, 1.0, 2.0, np.nan], [np.nan] * 5])
    low, high, dropped = drawn(np.ones((5, 1))).bounds(replicates, 0.9)
    np.testing.assert_allclose([low[0], high[0]], np.nanquantile(replicates[0], [0.05, 0.95]))
    assert np.isnan([low[1], high[1]]).all()
    assert dropped.tolist() == [2, 5]


def test_percentiles_of_enumerated_replicates_are_weighted() -> None:
    """They equal numpy's inverse of the weighted distribution."""
    every = enumerate_resamples(5)
    assert every.probability is not None
    replicates = every.multiplicities @ np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    low, high, _ = every.bounds(replicates, 0.9)
    expected = np.quantile(replicates, [0.05, 0.95], weights=every.probability, method="inverted_cdf")
    np.testing.assert_allclose([low, high], expected)


def test_enumerated_replicates_drop_undefined_ones_and_their_probability() -> None:
    """The share dropped is a probability, not a count over a count."""
    every = enumerate_resamples(3)
    assert every.probability is not None
    same = (every.multiplicities == 3).any(axis=1)
    replicates = np.where(same, np.nan, every.multiplicities @ np.array([1.0, 2.0, 3.0]))
    found = every.interval(replicates)
    assert found is not None
    assert found.dropped == 3
    assert found.dropped_share == pytest.approx(3 / 27)
    expected = np.quantile(replicates[~same], [0.025, 0.975], weights=every.probability[~same], method="inverted_cdf")
    assert [found.low, found.high] == pytest.approx(expected)


@pytest.mark.parametrize("replicates", [[1.0, 1.0, 1.0], [np.nan] * 3], ids=["all equal", "all undefined"])
def test_replicates_that_do_not_vary_give_no_interval(replicates: list[float]) -> None:
    """An interval of width 0 would claim certainty."""
    assert drawn(np.ones((3, 1))).interval(np.array(replicates)) is None


@pytest.mark.parametrize("largest", [3, 700, 800, 2**40], ids=str)
def test_sums_of_whole_numbers_are_exact_whatever_the_precision(largest: int) -> None:
    """Many cells are summed in single precision only where that holds every total."""
    rng = np.random.default_rng(4)
    drawn = draw_resamples(150, 300, rng)
    values = rng.integers(largest + 1, size=(150, 40))
    values[0], values[1] = largest, -largest
    wanted = values.T @ drawn.multiplicities.T.astype(np.int64)
    assert np.array_equal(drawn.sums(values).astype(np.int64), wanted)


@pytest.mark.parametrize("clusters", [1, 2, 5, 8])
def test_every_resample_is_enumerated_once(clusters: int) -> None:
    """As counting all ordered draws gives them: the same rows, the same probabilities, in order."""
    found = enumerate_resamples(clusters)
    assert found.probability is not None
    draws = np.array(np.meshgrid(*[np.arange(clusters)] * clusters)).reshape(clusters, -1).T if clusters < 8 else None
    if draws is None:
        assert found.count == comb(2 * clusters - 1, clusters)
    else:
        rows = np.stack([np.bincount(draw, minlength=clusters) for draw in draws])
        unique, counts = np.unique(rows, axis=0, return_counts=True)
        assert np.array_equal(found.multiplicities, unique)
        assert found.probability == pytest.approx(counts / len(draws), rel=1e-12)
    assert found.probability.sum() == pytest.approx(1)


@given(
    arrays(np.float64, st.integers(1, 60), elements=st.one_of(st.floats(-1, 1, width=16), st.just(float("nan")))),
    st.integers(0, 2**32),
)
@settings(deadline=None)
def test_ends_of_very_many_replicates_are_those_of_few(values: np.ndarray, seed: int) -> None:
    """Finding the ends bin by bin gives what sorting everything gives."""
    probability = np.random.default_rng(seed).random(len(values)) + 0.01
    every = Resamples(multiplicities=np.ones((len(values), 1)), probability=probability, method="test")
    low, high, dropped = every.bounds(values)
    found = _weighted_ends(values, probability, np.array([0.025, 0.975]))
    assert np.array_equal(found[0], low, equal_nan=True)
    assert np.array_equal(found[1], high, equal_nan=True)
    assert int(found[2]) == int(dropped)
