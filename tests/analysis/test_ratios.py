"""Ratios of totals: against scipy's bootstrap, and where there is too little data."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from analysis.ratios import clustered_standard_error, difference_estimates, divided, ratio_estimates
from analysis.resampling import draw_resamples, enumerate_resamples


def totals(rng: np.random.Generator, personas: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Over-inferred and all claims of personas that differ."""
    claims = rng.poisson(80, personas)
    return rng.binomial(claims, rng.beta(8, 12, personas)), claims


def test_the_interval_is_scipys_clustered_bootstrap_within_chance(rng: np.random.Generator) -> None:
    """`scipy.stats.bootstrap` on paired persona totals is the same thing, slowly."""
    over, claims = totals(rng)
    reference = bootstrap(
        (over, claims),
        lambda top, bottom, axis: top.sum(axis=axis) / bottom.sum(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    )
    found = ratio_estimates(over, claims, draw_resamples(150, 20_000, rng), method="OI")[()]
    assert found.interval is not None
    width = found.interval.high - found.interval.low
    assert found.interval.low == pytest.approx(reference.confidence_interval.low, abs=0.02 * width)
    assert found.interval.high == pytest.approx(reference.confidence_interval.high, abs=0.02 * width)
    assert found.standard_error == pytest.approx(reference.standard_error, rel=0.03)


def test_the_standard_error_of_equal_denominators_is_the_textbook_one(rng: np.random.Generator) -> None:
    """With one claim per persona the clustered error is the sample's."""
    over = rng.binomial(1, 0.3, 40)
    found = ratio_estimates(over, np.ones(40, dtype=int), draw_resamples(40, 10, rng), method="OI")[()]
    assert found.standard_error == pytest.approx(np.std(over, ddof=1) / np.sqrt(40))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=5), st.integers(2, 9))
@settings(deadline=None, max_examples=50)
def test_rates_do_not_depend_on_the_unit_of_counting(rows: list[tuple[int, int]], factor: int) -> None:
    """Scaling numerators and denominators alike changes neither value nor interval."""
    top, rest = np.array(rows).T
    every = enumerate_resamples(len(rows))
    one = ratio_estimates(top, top + rest, every, method="OI")
    scaled = ratio_estimates(factor * top, factor * (top + rest), every, method="OI")
    np.testing.assert_array_equal(one.value, scaled.value)
    np.testing.assert_array_equal([one.low, one.high], [scaled.low, scaled.high])


def test_cells_without_claims_are_nan_with_a_reason(rng: np.random.Generator) -> None:
    """No claims is not a rate of 0."""
    found = ratio_estimates(np.zeros((3, 2), int), np.array([[1, 0]] * 3), draw_resamples(3, 50, rng), method="OI")
    assert found.value[0] == 0
    assert isnan(found[1].value)
    assert (found[1].n, found[1].reason, found[1].interval) == (0, "no claims", None)


def test_one_persona_has_a_rate_but_no_interval(rng: np.random.Generator) -> None:
    """Nothing is known about other personas."""
    found = ratio_estimates(np.array([3, 0]), np.array([10, 0]), draw_resamples(2, 50, rng), method="OI")[()]
    assert found.value == 0.3
    assert found.interval is None
    assert isnan(found.standard_error)
    assert found.reason == "fewer than two personas: no interval"


def test_personas_that_agree_fully_give_no_interval(rng: np.random.Generator) -> None:
    """An interval of width 0 would claim certainty."""
    found = ratio_estimates(np.array([0, 0, 0]), np.array([5, 6, 7]), draw_resamples(3, 50, rng), method="OI")[()]
    assert (found.value, found.interval) == (0.0, None)
    assert found.reason == "no variation between personas: no interval"


def test_resamples_without_claims_are_dropped_and_counted(rng: np.random.Generator) -> None:
    """Two of four personas have claims: a resample may miss both."""
    resamples = draw_resamples(4, 4000, rng)
    found = ratio_estimates(np.array([1, 3, 0, 0]), np.array([10, 10, 0, 0]), resamples, method="OI")[()]
    assert found.interval is not None
    assert found.interval.dropped == (resamples.multiplicities[:, :2].sum(axis=1) == 0).sum()
    assert (found.interval.low, found.interval.high) == (0.1, 0.3)


def test_a_difference_uses_the_same_personas_on_both_sides(rng: np.random.Generator) -> None:
    """Two raters that differ by a constant differ by it in every resample."""
    over, claims = totals(rng, 30)
    resamples = draw_resamples(30, 500, rng)
    found = difference_estimates((over + claims, claims), (over, claims), resamples, method="gap")[()]
    assert found.value == pytest.approx(1)
    assert found.standard_error == pytest.approx(0, abs=1e-12)


def test_the_error_of_a_difference_between_groups_adds_their_variances(rng: np.random.Generator) -> None:
    """Disjoint groups are independent."""
    over, claims = totals(rng, 400)
    first = np.arange(400) < 200
    resamples = draw_resamples(400, 10, rng)
    sides = [(over * mask, claims * mask) for mask in (first, ~first)]
    one, other = (ratio_estimates(*side, resamples, method="OI")[()].standard_error for side in sides)
    found = difference_estimates(sides[0], sides[1], resamples, method="delta")[()]
    assert found.standard_error == pytest.approx(np.hypot(one, other), rel=1e-2)
    assert found.n == 400


def test_a_difference_with_an_empty_side_has_a_reason(rng: np.random.Generator) -> None:
    """The self-audit may be missing altogether."""
    tens, none = np.full(3, 10), np.zeros(3, int)
    found = difference_estimates((tens, tens), (none, none), draw_resamples(3, 20, rng), method="gap")[()]
    assert isnan(found.value)
    assert found.reason == "no claims on one side"


def test_dividing_by_nothing_is_nan_without_a_warning() -> None:
    """Zero over zero and one over zero alike."""
    assert np.isnan(divided(np.array([0, 1]), np.array([0, 0]))).all()


def test_a_single_cluster_has_no_standard_error() -> None:
    """One degree of freedom less than one is none."""
    assert isnan(clustered_standard_error(np.array([0.1]), np.array(1)))
