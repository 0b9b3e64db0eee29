"""Means over models that weigh every model equally."""

import numpy as np
import pytest

from analysis.macro import NO_MODEL, mean_differences, mean_ratios
from analysis.rates import oi_macro
from analysis.resampling import draw_resamples


def test_it_agrees_with_the_macro_oi_rate(rng: np.random.Generator) -> None:
    """Value, interval and standard error are those of the statistic that was there first."""
    counts = rng.integers(0, 9, size=(20, 4, 3, 4))
    counts[:, 1] = 0
    drawn = draw_resamples(20, 500, rng)
    wanted = oi_macro(counts, drawn)
    totals = counts.sum(axis=2)
    found = mean_ratios(totals[..., 2:].sum(axis=-1), totals.sum(axis=-1), drawn, method="mean")[()]
    assert wanted.interval is not None
    assert found.interval is not None
    assert (found.value, found.n) == (pytest.approx(wanted.value), 3)
    assert found.standard_error == pytest.approx(wanted.standard_error)
    assert (found.interval.low, found.interval.high) == pytest.approx((wanted.interval.low, wanted.interval.high))


def test_differences_rest_on_models_that_have_both(rng: np.random.Generator) -> None:
    """A model without one side moves neither mean."""
    first, second = rng.integers(1, 5, size=(2, 10, 3)), np.full((10, 3), 8)
    second[:, 2] = 0
    drawn = draw_resamples(10, 300, rng)
    found = mean_differences((first[0], np.full((10, 3), 8)), (first[1], second), drawn, method="gap")[()]
    rates = first[:, :, :2].sum(axis=1) / 80
    assert found.value == pytest.approx((rates[0] - rates[1]).mean())
    assert found.n == 2
    assert found.interval is not None
    assert found.interval.low < found.value < found.interval.high


def test_without_a_model_there_is_a_reason(rng: np.random.Generator) -> None:
    """Nothing divided by nothing is no rate."""
    nothing = np.zeros((4, 2), dtype=int)
    found = mean_ratios(nothing, nothing, draw_resamples(4, 100, rng), method="mean")[()]
    assert np.isnan(found.value)
    assert found.reason == NO_MODEL
