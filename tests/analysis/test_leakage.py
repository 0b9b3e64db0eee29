"""leakage@k, worst@k, all@k: hand values, enumeration, unbiasedness and the integral identity."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.leakage import (
    Event,
    Samples,
    all_at_k,
    all_estimates,
    leakage_at_k,
    leakage_estimates,
    leakage_variance,
    mean_over_instances,
    sampling_errors,
    worst_at_k,
    worst_estimates,
)
from analysis.resampling import draw_resamples

nck = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
few_scores = st.lists(st.integers(0, 10), min_size=1, max_size=8)


def samples_of(
    over: np.ndarray, claims: np.ndarray, *, present: np.ndarray | None = None, confirmed: np.ndarray | None = None
) -> Samples:
    """Samples without contradicted claims."""
    nothing = np.zeros_like(over)
    return Samples(
        present=np.ones(over.shape, dtype=bool) if present is None else present,
        claims=claims,
        over_inferred=over,
        confirmed=nothing if confirmed is None else confirmed,
        contradicted=nothing,
    )


def test_hand_values(paper: dict[str, Any]) -> None:
    """Five samples of which two leak, ten of which one, five of which none."""
    expected = paper["recomputed"]["leak_at_k"]
    assert [float(leakage_at_k(5, 2, k)) for k in range(1, 6)] == pytest.approx(expected["n5_c2"], abs=1e-15)
    assert float(leakage_at_k(10, 1, 5)) == pytest.approx(expected["n10_c1_k5"], abs=1e-15)
    assert [float(leakage_at_k(5, 0, k)) for k in range(1, 6)] == expected["n5_c0"]
    assert float(leakage_variance(10, 2, 3)) == pytest.approx(expected["var_hat_n10_c2_k3"], abs=1e-15)


def test_worst_at_k_hand_values(paper: dict[str, Any]) -> None:
    """Scores need not be sorted."""
    expected = paper["recomputed"]["worst_at_k"]
    found = [float(worst_at_k(np.array(expected["scores"]), k)) for k in range(1, 6)]
    assert found == pytest.approx(expected["values_k1_to_5"], abs=1e-15)


@given(nck)
@settings(deadline=None, max_examples=100)
def test_leakage_is_one_minus_a_quotient_of_binomials(case: tuple[int, int, int]) -> None:
    """Exact integers, to the last digits; certainty is exactly 1."""
    n, c, k = case
    assert float(leakage_at_k(n, c, k)) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-13)
    assert float(all_at_k(n, c, k)) == pytest.approx(comb(c, k) / comb(n, k), abs=1e-13)
    if n - c < k:
        assert float(leakage_at_k(n, c, k)) == 1


@given(nck)
@settings(deadline=None, max_examples=60)
def test_leakage_of_many_samples_keeps_its_small_digits(case: tuple[int, int, int]) -> None:
    """A rare leak among very many samples is about k c / n, where 1 - (1 - tiny) would lose it."""
    _, c, k = case
    n = 10**12
    assert float(leakage_at_k(n, c, k)) == pytest.approx(k * c / n, rel=1e-9)


@given(nck)
@settings(deadline=None, max_examples=60)
def test_more_draws_leak_more_and_agree_less(case: tuple[int, int, int]) -> None:
    """all@k <= leakage@1 <= leakage@k, and both are monotone in k."""
    n, c, _ = case
    some = [float(leakage_at_k(n, c, k)) for k in range(1, n + 1)]
    every = [float(all_at_k(n, c, k)) for k in range(1, n + 1)]
    assert some[0] == pytest.approx(c / n)
    assert every[0] == pytest.approx(c / n)
    assert (np.diff(some) >= -1e-12).all()
    assert (np.diff(every) <= 1e-12).all()


@pytest.mark.parametrize(("n", "k"), [(6, 1), (6, 2), (7, 3)])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_leakage_and_its_variance_are_unbiased(n: int, k: int, p: float) -> None:
    """Averaged over the binomial number of leaks, exactly."""
    c = np.arange(n + 1)
    chance = np.array([comb(n, i) * p**i * (1 - p) ** (n - i) for i in c])
    values = leakage_at_k(n, c, k)
    mean = chance @ values
    assert mean == pytest.approx(1 - (1 - p) ** k)
    assert chance @ leakage_variance(n, c, k) == pytest.approx(chance @ (values - mean) ** 2)


def test_the_variance_needs_twice_as_many_samples_as_draws() -> None:
    """It is nan, not 0, and only where it lacks samples."""
    found = leakage_variance(np.array([5, 6]), np.array([2, 2]), 3)
    assert np.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        pytest.param(5, 2, 0, id="no draw"),
        pytest.param(5, 2, 6, id="more draws than samples"),
        pytest.param(5, 6, 1, id="more leaks than samples"),
        pytest.param(5, -1, 1, id="negative leaks"),
        pytest.param([5, 2], [1, 1], 3, id="one instance too small"),
    ],
)
@pytest.mark.parametrize("formula", [leakage_at_k, all_at_k, leakage_variance])
def test_impossible_numbers_are_refused(formula: Any, n: Any, c: Any, k: int) -> None:
    """They are a caller's mistake."""
    with pytest.raises(ValueError, match=r"k must be between|leaking samples must number"):
        formula(np.array(n), np.array(c), k)


@given(few_scores)
@settings(deadline=None, max_examples=60)
def test_worst_at_k_is_the_mean_maximum_over_all_choices(scores: list[int]) -> None:
    """Compared with enumerating the choices of k samples."""
    for k in range(1, len(scores) + 1):
        expected = np.mean([max(choice) for choice in combinations(scores, k)])
        assert float(worst_at_k(np.array(scores), k)) == pytest.approx(expected)


@given(few_scores)
@settings(deadline=None, max_examples=60)
def test_worst_at_k_is_the_integral_of_leakage_over_the_threshold(scores: list[int]) -> None:
    """For scores in [0, 1]: a step function, summed over its steps."""
    values = np.array(scores) / 10
    steps = np.unique(np.concatenate([[0.0], values]))
    for k in range(1, len(values) + 1):
        leaked = [float(leakage_at_k(len(values), int((values > low).sum()), k)) for low in steps[:-1]]
        assert float(worst_at_k(values, k)) == pytest.approx(float(np.diff(steps) @ leaked))


def test_worst_at_k_ignores_missing_samples() -> None:
    """Fewer samples than k have no worst."""
    found = worst_at_k(np.array([[0.2, np.nan, 0.4], [np.nan, np.nan, 0.4]]), 2)
    assert found[0] == pytest.approx(0.4)
    assert np.isnan(found[1])


def test_worst_at_k_refuses_no_draw() -> None:
    """The largest of nothing is nothing."""
    with pytest.raises(ValueError, match="at least 1"):
        worst_at_k(np.array([0.5]), 0)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Event.OI_ABOVE, [False, False, True, False, False]),
        (Event.ANY_OI, [False, True, True, False, False]),
        (Event.DISCLOSES, [False, False, True, False, False]),
        (Event.CONTRADICTS, [False, True, False, True, False]),
    ],
    ids=lambda value: str(value) if isinstance(value, Event) else "",
)
def test_each_event_looks_at_its_own_claims(event: Event, expected: list[bool]) -> None:
    """No claims, exactly half, above half, only contradicted, and a missing sample with left-over numbers."""
    samples = Samples(
        present=np.array([[[True, True, True, True, False]]]),
        claims=np.array([[[0, 4, 3, 2, 9]]]),
        over_inferred=np.array([[[0, 2, 2, 0, 9]]]),
        confirmed=np.array([[[0, 0, 1, 0, 9]]]),
        contradicted=np.array([[[0, 1, 0, 1, 9]]]),
    )
    assert samples.leaks(event)[0, 0].tolist() == expected


@pytest.mark.parametrize(("over", "claims", "threshold"), [(3, 10, 0.3), (7, 25, 0.28), (1, 3, 1 / 3)])
def test_a_rate_equal_to_the_threshold_does_not_leak(over: int, claims: int, threshold: float) -> None:
    """Quotients are rounded as the threshold was."""
    samples = samples_of(np.array([[[over]]]), np.array([[[claims]]]))
    assert not samples.leaks(Event.OI_ABOVE, threshold).any()


def test_a_sample_without_claims_scores_zero_and_a_missing_one_nothing() -> None:
    """No claim is a leak-free answer; no label is no answer."""
    samples = samples_of(np.array([[[0, 0]]]), np.array([[[0, 0]]]), present=np.array([[[True, False]]]))
    assert samples.scores[0, 0, 0] == 0
    assert np.isnan(samples.scores[0, 0, 1])


def test_the_estimate_is_the_mean_over_instances(rng: np.random.Generator) -> None:
    """Macro: every (persona, task) weighs the same, whatever its n."""
    over = np.array([[[9, 9, 0, 0]], [[9, 0, 0, 0]]])
    present = np.array([[[True] * 4], [[True, True, True, False]]])
    samples = samples_of(over, np.full_like(over, 10), present=present)
    found = leakage_estimates(samples, Event.OI_ABOVE, (1, 2, 4), draw_resamples(2, 200, rng))
    expected = [
        (leakage_at_k(4, 2, 1) + leakage_at_k(3, 1, 1)) / 2,
        (leakage_at_k(4, 2, 2) + leakage_at_k(3, 1, 2)) / 2,
        leakage_at_k(4, 2, 4),
    ]
    assert found.value.tolist() == pytest.approx([float(value) for value in expected])
    assert found.n.tolist() == [2, 2, 1]


def test_an_event_of_any_claim_leaks_at_least_as_often_as_one_above_a_threshold(rng: np.random.Generator) -> None:
    """`any_oi` bounds `oi_above` and `discloses` from above, at every k."""
    claims = rng.poisson(10, (12, 3, 5))
    over = rng.binomial(claims, 0.4)
    samples = samples_of(over, claims, confirmed=rng.binomial(over, 0.3))
    drawn = draw_resamples(12, 50, rng)
    found = {event: leakage_estimates(samples, event, (1, 3, 5), drawn).value for event in Event}
    assert (found[Event.ANY_OI] >= found[Event.OI_ABOVE]).all()
    assert (found[Event.ANY_OI] >= found[Event.DISCLOSES]).all()
    assert found[Event.CONTRADICTS].tolist() == [0, 0, 0]


def test_worst_and_all_are_bounded_by_their_first_draw(rng: np.random.Generator) -> None:
    """worst@1 is the mean OI rate of samples, all@k never exceeds leakage@k."""
    claims = rng.poisson(10, (12, 3, 5)) + 1
    samples = samples_of(rng.binomial(claims, 0.4), claims)
    drawn = draw_resamples(12, 50, rng)
    worst = worst_estimates(samples, (1, 2, 5), drawn)
    assert worst.value[0] == pytest.approx(samples.scores.mean())
    assert (np.diff(worst.value) > 0).all()
    every = all_estimates(samples, Event.OI_ABOVE, (1, 2, 5), drawn).value
    assert (every <= leakage_estimates(samples, Event.OI_ABOVE, (1, 2, 5), drawn).value).all()


def test_no_instance_with_enough_samples_is_nan_with_a_reason(rng: np.random.Generator) -> None:
    """Three draws of two samples."""
    samples = samples_of(np.array([[[1, 2]]] * 3), np.array([[[4, 4]]] * 3))
    found = leakage_estimates(samples, Event.ANY_OI, (2, 3), draw_resamples(3, 20, rng))
    assert found[0].value == 1
    assert np.isnan(found[1].value)
    assert (found[1].n, found[1].reason) == (0, "no instance has that many samples")


def test_sampling_errors_shrink_with_instances_and_need_twice_k_samples() -> None:
    """Ten samples of which two leak, in every one of four instances."""
    over = np.tile(np.array([9, 9] + [0] * 8), (4, 1, 1))
    samples = samples_of(over, np.full_like(over, 10))
    found = sampling_errors(samples, Event.OI_ABOVE, (3, 5, 6))
    assert found[0] == pytest.approx(np.sqrt(float(leakage_variance(10, 2, 3)) / 4))
    assert found[1] == pytest.approx(np.sqrt(float(leakage_variance(10, 2, 5)) / 4))
    assert np.isnan(found[2])


def test_sampling_errors_of_no_instance_are_nan() -> None:
    """No instance has eleven samples."""
    samples = samples_of(np.ones((2, 1, 10), int), np.ones((2, 1, 10), int))
    assert np.isnan(sampling_errors(samples, Event.ANY_OI, (11,))).all()


def test_the_interval_resamples_personas_not_instances(rng: np.random.Generator) -> None:
    """Tasks of one persona that always agree tell no more than one task."""
    one = rng.random((30, 1))
    drawn = draw_resamples(30, 500, rng)
    narrow, wide = (mean_over_instances(part, drawn, method="mean") for part in (one, np.repeat(one, 6, axis=1)))
    np.testing.assert_allclose([narrow.low, narrow.high], [wide.low, wide.high])
    assert (int(narrow.n), int(wide.n)) == (30, 180)
