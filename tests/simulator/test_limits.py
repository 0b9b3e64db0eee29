"""Token buckets: time is an argument, so every second of a minute can be looked at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.limits import DAY, Bucket, Gate, Gates, Limit, Limited, Rates

ARRIVALS = st.lists(st.floats(0, 5), min_size=1, max_size=200)


def enter(gate: Gate, now: float, *, prompt: int = 10, allowance: int = 0) -> Limited | None:
    return gate.enter(now, prompt=prompt, allowance=allowance)


@given(ARRIVALS, st.integers(1, 120))
def test_no_stretch_of_time_sees_more_than_a_burst_and_the_rate(gaps: list[float], per_minute: int) -> None:
    """Admitted calls never exceed one full bucket plus what the time since then has refilled."""
    gate, now, admitted = Gate(Rates(requests_per_minute=per_minute), 0.0), 0.0, 0
    for gap in gaps:
        now += gap
        admitted += enter(gate, now) is None
        assert admitted <= per_minute + now * per_minute / 60 + 1e-6


@given(ARRIVALS, st.integers(1, 60))
def test_a_client_that_obeys_the_hint_is_let_in(gaps: list[float], per_minute: int) -> None:
    """Coming back after the named seconds always works when nobody else comes."""
    gate, now = Gate(Rates(requests_per_minute=per_minute), 0.0), 0.0
    for gap in gaps:
        now += gap
        limited = enter(gate, now)
        if limited is not None:
            assert limited.retry_after is not None
            now += limited.retry_after + 1e-6
            assert enter(gate, now) is None


def test_tokens_are_reserved_at_the_door_and_corrected_at_the_exit() -> None:
    """The allowance counts until the call ends; what it did not use is there for the next one."""
    gate = Gate(Rates(tokens_per_minute=1000), 0.0)
    assert enter(gate, 0.0, prompt=100, allowance=800) is None
    assert enter(gate, 0.0, prompt=200) == Limited(Limit.TOKENS, 6.0)
    gate.leave(0.0, allowance=800, output=50)
    assert enter(gate, 0.0, prompt=200) is None


def test_output_tokens_are_a_debt_for_the_next_call() -> None:
    """A long answer is let out whole; then the lane waits until the debt is paid."""
    gate = Gate(Rates(output_tokens_per_minute=600), 0.0)
    assert enter(gate, 0.0) is None
    gate.leave(0.0, allowance=0, output=900)
    assert enter(gate, 0.0) == Limited(Limit.OUTPUT_TOKENS, 30.0)
    assert enter(gate, 30.1) is None


def test_a_call_larger_than_the_limit_never_fits() -> None:
    """There is no moment to name."""
    assert enter(Gate(Rates(tokens_per_minute=100), 0.0), 0.0, prompt=101) == Limited(Limit.TOKENS, None)


def test_the_day_ends_at_midnight() -> None:
    """The second call of a day waits for the next day; then the count starts over."""
    gate = Gate(Rates(requests_per_day=1), DAY - 10)
    assert enter(gate, DAY - 10) is None
    assert enter(gate, DAY - 4) == Limited(Limit.DAY, 4.0)
    assert enter(gate, DAY + 1) is None


def test_concurrency_counts_calls_that_have_not_ended() -> None:
    """The place is free again when the call leaves."""
    gate = Gate(Rates(concurrency=1), 0.0)
    assert enter(gate, 0.0) is None
    refused = enter(gate, 0.0)
    assert refused is not None
    assert refused.limit is Limit.CONCURRENCY
    gate.leave(1.0, allowance=0, output=5)
    assert enter(gate, 1.0) is None


def test_a_window_of_a_second_lets_no_minute_burst_through() -> None:
    """Sixty a minute in slices: one at once, the next a second later."""
    gate = Gate(Rates(requests_per_minute=60, window=1.0), 0.0)
    assert enter(gate, 0.0) is None
    assert enter(gate, 0.5) == Limited(Limit.REQUESTS, 0.5)
    assert enter(gate, 1.0) is None


def test_refused_calls_can_use_up_the_limit_too() -> None:
    """A client that hammers keeps itself out."""
    gate = Gate(Rates(requests_per_minute=60, window=1.0, count_refused=True), 0.0)
    waits = [getattr(enter(gate, 0.0), "retry_after", 0.0) for _ in range(3)]
    assert waits == pytest.approx([0.0, 1.0, 2.0])


def test_headers_show_limit_rest_and_seconds_until_full() -> None:
    """Half a minute's worth is missing, so it takes half a minute."""
    bucket = Bucket(60, 60.0, 0.0)
    bucket.take(30, 0.0)
    standing = bucket.standing(0.0)
    assert (standing.limit, standing.remaining, standing.reset) == (60, 30, 30.0)


def test_keys_and_models_have_their_own_gates_and_the_nearest_settings() -> None:
    """Model before provider before everything; other keys are not touched."""
    gates = Gates(
        {"*": Rates(requests_per_minute=9), "a": Rates(requests_per_minute=5), "a/m": Rates(requests_per_minute=1)}
    )
    assert gates.gate("a", "m", b"1", 0.0).rates.requests_per_minute == 1
    assert gates.gate("a", "n", b"1", 0.0).rates.requests_per_minute == 5
    assert gates.gate("b", "m", b"1", 0.0).rates.requests_per_minute == 9
    assert gates.gate("a", "m", b"1", 0.0) is gates.gate("a", "m", b"1", 5.0)
    assert gates.gate("a", "m", b"1", 0.0) is not gates.gate("a", "m", b"2", 0.0)
