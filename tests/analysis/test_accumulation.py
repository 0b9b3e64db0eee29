"""Memory growth, its line, and what is taken back."""

from math import isnan
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import linregress

from analysis.accumulation import (
    States,
    growth,
    line,
    normalised,
    removal_shares,
    retraction,
    revision_rate,
    sharing_words,
)
from analysis.resampling import draw_resamples

memories = st.lists(
    st.lists(st.none() | st.frozensets(st.integers(0, 6), max_size=5), min_size=2, max_size=6),
    min_size=1,
    max_size=4,
)


def test_growth_is_the_papers(paper: dict[str, Any]) -> None:
    """Table 4: last minus first, and over seven steps; the printed rate is rounded to 0.1."""
    for row in paper["table4_accumulation"].values():
        sizes = np.full((1, 8), np.nan)
        sizes[0, 0], sizes[0, -1] = row["r1"], row["r8"]
        found = growth(sizes)
        assert found.growth.value == row["growth"]
        assert found.per_round.value == pytest.approx(row["per_round"], abs=0.0501)


def test_published_slopes_are_close_to_growth_per_round(paper: dict[str, Any]) -> None:
    """Table 8 against Table 4: never more than 0.25 attributes apart; nine fits have R2 above 0.90."""
    slopes, ends = paper["table8_accum_regression"], paper["table4_accumulation"]
    apart = max(abs(slopes[model]["slope"] - ends[model]["growth"] / 7) for model in slopes)
    expected = paper["recomputed"]["table8_vs_table4"]
    assert apart <= expected["max_abs_slope_minus_growth_over_7"]
    assert sum(row["r2"] > 0.9 for row in slopes.values()) == expected["r2_gt_090"]


def test_growth_averages_over_personas_that_have_both_ends() -> None:
    """A persona whose last memory is unreadable is left out, and n says so."""
    found = growth(np.array([[10.0, 30.0], [20.0, 60.0], [90.0, np.nan]]))
    assert (found.first.value, found.last.value, found.growth.value) == (15.0, 45.0, 30.0)
    assert (found.first.n, found.growth.n) == (2, 2)


def test_growth_without_both_ends_is_nan_with_a_reason() -> None:
    """No persona is complete."""
    found = growth(np.array([[10.0, np.nan]]))
    assert isnan(found.growth.value)
    assert found.growth.reason == "no persona has both its first and its last memory"


def test_one_round_has_no_rate() -> None:
    """There is no step to divide by."""
    assert isnan(growth(np.array([[10.0]])).per_round.value)


def test_the_line_is_scipys_over_all_points(rng: np.random.Generator) -> None:
    """Sixteen points of two personas, one missing."""
    sizes = 10 + 5 * np.arange(1.0, 9) + rng.normal(0, 4, (2, 8))
    sizes[1, 3] = np.nan
    rounds = np.broadcast_to(np.arange(1.0, 9), (2, 8))
    known = ~np.isnan(sizes)
    reference = linregress(rounds[known], sizes[known])
    ols = sm.OLS(sizes[known], sm.add_constant(rounds[known])).fit()
    found = line(sizes)
    assert found.slope.value == pytest.approx(reference.slope)
    assert found.intercept == pytest.approx(reference.intercept)
    assert found.slope.standard_error == pytest.approx(ols.bse[1])
    assert found.r2.value == pytest.approx(ols.rsquared)
    assert found.slope.n == 15


@given(st.floats(-5, 5), st.floats(0, 20), st.integers(2, 10))
@settings(deadline=None, max_examples=40)
def test_a_memory_that_grows_linearly_has_its_rate_as_slope(rate: float, start: float, rounds: int) -> None:
    """The two definitions of the accumulation rate agree on a line."""
    sizes = start + rate * np.arange(rounds, dtype=np.float64)[None]
    assert line(sizes).slope.value == pytest.approx(growth(sizes).per_round.value, abs=1e-9)


def test_a_flat_memory_has_slope_zero_and_no_r2() -> None:
    """Nothing varies: there is nothing to explain."""
    found = line(np.full((2, 5), 7.0))
    assert found.slope.value == 0
    assert isnan(found.r2.value)
    assert found.r2.reason == "the sizes do not vary"


@pytest.mark.parametrize("sizes", [[[5.0, np.nan, np.nan]], [[np.nan, np.nan]]], ids=["one round", "nothing"])
def test_fewer_than_two_rounds_have_no_line(sizes: list[list[float]]) -> None:
    """The reason counts the points."""
    found = line(np.array(sizes))
    assert isnan(found.slope.value)
    assert found.slope.reason.endswith("fewer than two rounds")


def test_the_slopes_interval_refits_every_resample_of_personas(rng: np.random.Generator) -> None:
    """Sums per persona stand for copying its points."""
    sizes = 10 + rng.uniform(2, 8, (6, 1)) * np.arange(1.0, 9) + rng.normal(0, 3, (6, 8))
    sizes[2, 5] = np.nan
    drawn = draw_resamples(6, 50, rng)
    expected = []
    for row in drawn.multiplicities.astype(int):
        copied = sizes[np.repeat(np.arange(6), row)]
        expected.append(line(copied).slope.value)
    found = line(sizes, drawn).slope.interval
    assert found is not None
    np.testing.assert_allclose([found.low, found.high], np.quantile(expected, [0.025, 0.975]))


def test_growth_has_an_interval_over_personas(rng: np.random.Generator) -> None:
    """Two personas are few, but they vary."""
    found = growth(np.array([[10.0, 30.0], [20.0, 60.0]]), draw_resamples(2, 100, rng))
    assert found.growth.interval is not None
    assert (found.growth.interval.low, found.growth.interval.high) == (20, 40)


def test_removal_counts_unique_attributes_of_the_earlier_round() -> None:
    """Additions do not count; a missing or empty memory gives no step."""
    states: States = [[{"a", "b", "c"}, {"a", "d"}, set(), {"a"}], [{"a"}, None, {"b"}, {"b"}]]
    found = removal_shares(states)
    np.testing.assert_array_equal(found, [[2 / 3, 1.0, np.nan], [np.nan, np.nan, 0.0]])


def test_the_revision_rate_averages_over_steps_then_personas() -> None:
    """A persona with fewer steps weighs as much as another."""
    found = revision_rate([[{1, 2}, {2}, {2}], [{1}, set(), None]])
    assert found.value == (0.25 + 1.0) / 2
    assert found.n == 2


@given(memories)
@settings(deadline=None, max_examples=60)
def test_the_revision_rate_is_a_share(states: list[list[frozenset[int] | None]]) -> None:
    """Between 0 and 1, or nan with a reason."""
    found = revision_rate(states)
    if found.n:
        assert 0 <= found.value <= 1
    else:
        assert isnan(found.value)
        assert found.reason == "no two successive memories to compare"


@given(st.lists(st.frozensets(st.integers(0, 9), max_size=4), min_size=2, max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_memory_that_only_grows_is_never_revised(additions: list[frozenset[int]]) -> None:
    """Union after union removes nothing."""
    states = [frozenset().union(*additions[: place + 1]) for place in range(len(additions))]
    shares = removal_shares([states])
    assert (shares[~np.isnan(shares)] == 0).all()


def test_no_memory_at_all_has_no_revision_rate() -> None:
    """Nothing was asked."""
    assert isnan(revision_rate([]).value)


def test_retraction_is_set_beside_the_removal_of_everything_else() -> None:
    """A model that forgets half of everything has not heeded the contradiction."""
    memory = [{"city", "tea", "cats"}, {"city", "tea", "cats", "opera"}, {"city", "tea"}, {"tea"}]
    found = retraction([memory], [(0, 3, {"city", "unknown"})])
    assert (found.held, found.retracted, found.retracted_by_end) == (1, 0, 1)
    assert (found.other_held, found.other_removed) == (3, 2)


def test_a_contradiction_of_nothing_held_counts_nothing() -> None:
    """Also when a memory beside it is missing, and when there is no round before it."""
    states: States = [[{"a"}, None, {"a"}], [{"a"}, {"a"}]]
    found = retraction(states, [(0, 2, {"a"}), (0, 3, {"a"}), (1, 2, {"b"}), (1, 1, {"a"})])
    assert (found.held, found.other_held) == (0, 1)


def test_attributes_that_differ_in_case_and_spacing_are_one() -> None:
    """Case folding, not lower case: a sharp s too."""
    assert normalised(" Große\tStadt ") == normalised("GROSSE  stadt")


def test_the_lexical_screen_needs_enough_shared_words() -> None:
    """Short words and the rest of a sentence do not count."""
    memory = ["eats meaty meals", "eats at home", "roadside photography"]
    assert sharing_words(memory, "eats meaty meals at roadside diners") == {"eats meaty meals"}
    assert sharing_words(memory, "eats meaty meals at roadside diners", least=1) == set(memory)
