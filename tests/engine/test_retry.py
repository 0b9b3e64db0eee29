"""What to do after a failed attempt."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.retry import Decision, GiveUp, RetryAt, RetryPolicy, StopProvider, Tries, backoff, decide

POLICY = RetryPolicy(failures=3, throttles=5, base=1.0, ceiling=8.0, patience=100.0)


class Certain:
    """Chance that always gives the same number."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        """Return it."""
        return self._number


@pytest.mark.parametrize(
    ("kind", "tries", "decision"),
    [
        pytest.param(ErrorClass.RATE, Tries(throttles=1), RetryAt(11.0), id="a throttle is retried"),
        pytest.param(ErrorClass.RATE, Tries(throttles=4, failures=9), RetryAt(18.0), id="failures do not count here"),
        pytest.param(
            ErrorClass.RATE, Tries(throttles=5), GiveUp("x (given up after 5 tries)"), id="too many throttles"
        ),
        pytest.param(ErrorClass.TRANSIENT, Tries(failures=1), RetryAt(11.0), id="a failure is retried"),
        pytest.param(ErrorClass.TRANSIENT, Tries(failures=2, throttles=50), RetryAt(12.0), id="throttles do not count"),
        pytest.param(
            ErrorClass.TRANSIENT, Tries(failures=3), GiveUp("x (given up after 3 tries)"), id="too many failures"
        ),
        pytest.param(ErrorClass.QUOTA, Tries(failures=1), StopProvider("x"), id="quota stops the provider"),
        pytest.param(ErrorClass.AUTH, Tries(failures=1), StopProvider("x"), id="a bad key stops the provider"),
        pytest.param(ErrorClass.BAD_REQUEST, Tries(failures=1), GiveUp("x"), id="a bad request fails"),
        pytest.param(ErrorClass.CONTENT, Tries(failures=1), GiveUp("x"), id="blocked content fails"),
        pytest.param(ErrorClass.GONE, Tries(failures=1), GiveUp("x"), id="a missing model fails the request"),
    ],
)
def test_each_error_class_says_what_to_do(kind: ErrorClass, tries: Tries, decision: Decision) -> None:
    """The table of decisions, without jitter, at time 10."""
    assert decide(ProviderError(kind, "x"), tries, POLICY, 10.0, Certain(0.0)) == decision


def test_every_error_class_has_a_decision() -> None:
    """A class that is added later cannot be forgotten."""
    for kind in ErrorClass:
        assert decide(ProviderError(kind, "x"), Tries(failures=1, throttles=1), POLICY, 0.0, Certain(0.0))


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(kind, Tries(throttles=1) if kind is ErrorClass.RATE else Tries(failures=1)) for kind in ErrorClass],
    ids=str,
)
def test_a_throttle_never_uses_up_the_tries_for_failures(kind: ErrorClass, counted: Tries) -> None:
    """They are counted apart."""
    assert Tries().after(kind) == counted


@pytest.mark.parametrize("kind", [ErrorClass.RATE, ErrorClass.TRANSIENT], ids=str)
def test_retry_after_is_a_lower_bound(kind: ErrorClass) -> None:
    """The provider's word counts for more than our back-off."""
    error = ProviderError(kind, "x", retry_after=30.0)
    assert decide(error, Tries(failures=1, throttles=1), POLICY, 10.0, Certain(0.9)) == RetryAt(40.0)


@pytest.mark.parametrize("seconds", [100.5, 86_400.0, inf])
def test_a_provider_that_asks_for_too_long_a_wait_is_stopped(seconds: float) -> None:
    """A day's pause is a quota under another name; the run must not sit it out in silence."""
    error = ProviderError(ErrorClass.RATE, "x", retry_after=seconds)
    assert isinstance(decide(error, Tries(throttles=1), POLICY, 0.0, Certain(0.0)), StopProvider)


@pytest.mark.parametrize(
    ("count", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (1_000_000, 8.0)], ids=str
)
def test_waiting_doubles_up_to_the_ceiling(count: int, seconds: float) -> None:
    """Without jitter."""
    assert backoff(count, POLICY, Certain(0.0)) == seconds


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_jitter_only_shortens_a_wait_and_by_a_quarter_at_most(count: int, seed: int) -> None:
    """So that a crowd spreads out and nobody waits longer than promised."""
    full = backoff(count, POLICY, Certain(0.0))
    assert 0.75 * full <= backoff(count, POLICY, Random(seed)) <= full  # noqa: S311
