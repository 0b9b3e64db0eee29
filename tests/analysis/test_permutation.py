"""Permutation tests between two ratios: exact on small designs, against scipy, and fair under the null."""

from itertools import product
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from analysis.estimates import Alternative
from analysis.permutation import group_tests, swap_tests, tail_probability


def test_swapping_counts_every_swap_of_a_small_design(rng: np.random.Generator) -> None:
    """Compared with a plain loop over all of them."""
    first, claims = np.array([5, 7, 2, 9, 4]), np.array([10, 12, 9, 15, 8])
    second, others = np.array([4, 3, 3, 5, 1]), np.array([11, 10, 9, 14, 9])

    def difference(swap: np.ndarray) -> float:
        tops = np.where(swap, second, first).sum(), np.where(swap, first, second).sum()
        bottoms = np.where(swap, others, claims).sum(), np.where(swap, claims, others).sum()
        return float(tops[0] / bottoms[0] - tops[1] / bottoms[1])

    observed = difference(np.zeros(5, dtype=bool))
    every = np.array([difference(np.array(swap, dtype=bool)) for swap in product([0, 1], repeat=5)])
    found = swap_tests((first, claims), (second, others), rng)[0]
    assert found.p == (np.abs(every) >= abs(observed) - 1e-12).mean()
    assert found.statistic == pytest.approx(observed)
    assert (found.method, found.permutations, found.seed) == ("exact, swaps within personas", 32, "")


def test_swapping_with_equal_denominators_is_scipys_paired_test(rng: np.random.Generator) -> None:
    """`scipy.stats.permutation_test` with paired samples."""
    first, second = rng.integers(0, 10, 9), rng.integers(0, 8, 9)
    tens = np.full(9, 10)
    reference = permutation_test(
        (first, second), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert swap_tests((first, tens), (second, tens), rng)[0].p == pytest.approx(reference.pvalue)


def test_relabelling_is_scipys_independent_test(rng: np.random.Generator) -> None:
    """`scipy.stats.permutation_test` with independent samples."""
    values, first = rng.integers(0, 10, 9), np.arange(9) < 4
    reference = permutation_test(
        (values[first], values[~first]),
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        vectorized=True,
        n_resamples=np.inf,
    )
    exact = np.abs(reference.null_distribution) >= abs(reference.statistic) - 1e-12
    assert group_tests(values, np.full(9, 10), first, rng)[0].p == pytest.approx(exact.mean())


@pytest.mark.parametrize("alternative", ["less", "greater"])
def test_one_sided_swaps_point_the_way_they_say(alternative: Alternative, rng: np.random.Generator) -> None:
    """The first model is clearly higher."""
    tens = np.full(8, 10)
    found = swap_tests((np.full(8, 7), tens), (np.full(8, 2), tens), rng, alternative=alternative)[0]
    assert found.p == (1 / 256 if alternative == "greater" else 1.0)


def test_drawn_swaps_agree_with_the_exact_test(rng: np.random.Generator) -> None:
    """Twenty personas have a million swaps; drawn p-values scatter around a stable value."""
    top, claims = rng.binomial(20, 0.5, (2, 20)), np.full(20, 20)
    one, other = (
        swap_tests((top[0], claims), (top[1], claims), np.random.default_rng(seed), permutations=40_000)[0]
        for seed in (1, 2)
    )
    assert one.method == "Monte Carlo, swaps within personas"
    assert one.seed == "1"
    assert one.p == pytest.approx(other.p, abs=4 * np.sqrt(0.5 / 40_000))


def test_a_drawn_p_value_is_never_zero(rng: np.random.Generator) -> None:
    """The observed labelling counts as one of the drawn ones."""
    tens = np.full(40, 10)
    assert swap_tests((tens, tens), (tens - 10, tens), rng, permutations=99)[0].p == 1 / 100
    first = np.arange(40) < 20
    assert group_tests(10 * first, tens, first, rng, permutations=99)[0].p == 1 / 100


def test_p_values_are_uniform_when_nothing_differs(rng: np.random.Generator) -> None:
    """Two hundred tests of exchangeable models reject about one in ten at 0.1."""
    claims = rng.poisson(60, (60, 200)) + 1
    others = rng.poisson(60, (60, 200)) + 1
    rate = np.repeat(rng.beta(4, 6, (60, 1)), 200, axis=1)
    found = swap_tests(
        (rng.binomial(claims, rate), claims), (rng.binomial(others, rate), others), rng, permutations=2000
    )
    rejected = np.mean([test.p <= 0.1 for test in found])
    assert 0.04 <= rejected <= 0.17


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 2), min_size=2, max_size=7))
@settings(deadline=None, max_examples=40)
def test_swapping_the_two_sides_keeps_a_two_sided_p(rows: list[tuple[int, int]]) -> None:
    """The test does not know which model is called the first."""
    first, second = np.array(rows).T
    tens, rng = np.full(len(rows), 10), np.random.default_rng(0)
    one, other = swap_tests((first, tens), (second, tens), rng)[0], swap_tests((second, tens), (first, tens), rng)[0]
    assert one.p == other.p
    assert one.statistic == -other.statistic


def test_no_claims_on_one_side_has_no_p(rng: np.random.Generator) -> None:
    """The p-value is nan, with a reason."""
    tens, none = np.full(3, 10), np.zeros(3, int)
    found = swap_tests((tens, tens), (none, none), rng)[0]
    assert isnan(found.p)
    assert found.reason == "no claims on one side"


def test_undefined_relabellings_count_as_extreme() -> None:
    """The cautious reading: they may not make p smaller."""
    assert float(tail_probability(np.array(1.0), np.array([np.nan, 0.0]), "two-sided", exact=True)) == 0.5
