"""The frozen results: a number keeps its n, method, interval and reason."""

from dataclasses import FrozenInstanceError
from math import isnan

import numpy as np
import pytest

from analysis.estimates import Estimate, Estimates, missing, seed_of


def two_estimates() -> Estimates:
    """The second of the two has no value."""
    return Estimates(
        value=np.array([0.5, np.nan]),
        n=np.array([10, 0]),
        low=np.array([0.4, np.nan]),
        high=np.array([0.6, np.nan]),
        standard_error=np.array([0.05, np.nan]),
        dropped=np.array([2, 4]),
        reason=np.array(["", "no claims"]),
        method="share",
        interval_method="percentile",
        resamples=4,
        seed="7",
    )


def test_indexing_many_estimates_gives_one_with_its_interval() -> None:
    """Shared fields and the element's own meet in one `Estimate`."""
    found = two_estimates()[0]
    assert (found.value, found.n, found.method, found.seed, found.reason) == (0.5, 10, "share", "7", "")
    assert found.interval is not None
    assert (found.interval.low, found.interval.high, found.interval.dropped, found.interval.dropped_share) == (
        0.4,
        0.6,
        2,
        0.5,
    )


def test_an_estimate_without_data_is_nan_with_a_reason_and_no_interval() -> None:
    """It is never 0."""
    found = two_estimates()[1]
    assert isnan(found.value)
    assert found.interval is None
    assert found.reason == "no claims"


def test_an_estimate_cannot_be_changed() -> None:
    """Results are frozen."""
    with pytest.raises(FrozenInstanceError):
        missing("none", method="share").value = 0.0  # type: ignore[misc]


def test_missing_keeps_the_number_of_units_that_were_there() -> None:
    """Two pairs are too few for rho, but they are two."""
    found = missing("2 pairs: fewer than 3", method="rho", n=2)
    assert isinstance(found, Estimate)
    assert (found.n, found.reason) == (2, "2 pairs: fewer than 3")


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        pytest.param(np.random.default_rng(42), "42", id="whole number"),
        pytest.param(np.random.default_rng([1, 2]), "1,2", id="several words"),
        pytest.param(np.random.default_rng(42).spawn(3)[2], "42/2", id="spawned"),
    ],
)
def test_a_generators_seed_can_be_printed(generator: np.random.Generator, expected: str) -> None:
    """What is printed is enough to make the generator again."""
    assert seed_of(generator) == expected


def test_a_generator_without_a_seed_sequence_prints_none() -> None:
    """A bit generator restored from a legacy state does not know what seeded it."""
    legacy = np.random.MT19937()
    legacy._legacy_seeding(3)
    generator = np.random.Generator(legacy)
    assert seed_of(generator) == seed_of(np.random.Generator(legacy))
