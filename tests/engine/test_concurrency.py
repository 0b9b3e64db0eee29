"""How many calls may be in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.concurrency import (
    BREAKER_FAILURES,
    COOLDOWN,
    DECREASE,
    PAUSE_BASE,
    PAUSE_CEILING,
    SLOW_START,
    Concurrency,
)
from engine.limits import RateLimits


def adaptive(ceiling: int = 100) -> Concurrency:
    """A fresh adaptive limit."""
    return Concurrency(RateLimits(concurrency=ceiling))


def fill(concurrency: Concurrency) -> int:
    """Start as many calls as are allowed; return how many."""
    count = 0
    while concurrency.free():
        concurrency.start()
        count += 1
    return count


def round_of_answers(concurrency: Concurrency) -> None:
    """Fill the limit and have every call answered."""
    for _ in range(fill(concurrency)):
        concurrency.succeed()


def test_a_fixed_limit_is_the_whole_ceiling_from_the_start() -> None:
    """An engine with a known capacity is used at once."""
    assert fill(Concurrency(RateLimits(concurrency=300, adaptive=False))) == 300


def test_an_adaptive_limit_starts_low() -> None:
    """Not with a burst into an unknown account."""
    assert fill(adaptive()) == SLOW_START
    assert fill(adaptive(ceiling=3)) == 3


def test_slow_start_about_doubles_with_every_round_up_to_the_ceiling() -> None:
    """One more for every answer while the limit is in use."""
    concurrency = adaptive(ceiling=70)
    limits = []
    for _ in range(4):
        round_of_answers(concurrency)
        limits.append(concurrency.limit)
    assert limits == [32, 64, 70, 70]


def test_slow_start_grows_as_fast_when_answers_trickle_in() -> None:
    """Every answer's slot is filled at once: the same number of answers gives the same growth."""
    concurrency = adaptive()
    fill(concurrency)
    for _ in range(SLOW_START):
        concurrency.succeed()
        fill(concurrency)
    assert concurrency.limit == 2 * SLOW_START


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    """Success at a trickle says nothing about a flood."""
    concurrency = adaptive()
    for _ in range(100):
        concurrency.start()
        concurrency.succeed()
    assert concurrency.limit == SLOW_START


def test_a_throttle_cuts_the_limit_once_per_cool_down() -> None:
    """A burst of refusals is one event; a later one is another."""
    concurrency = adaptive()
    fill(concurrency)
    for _ in range(3):
        concurrency.throttle(0.0, None)
    assert concurrency.limit == int(SLOW_START * DECREASE)
    concurrency.throttle(COOLDOWN, None)
    assert concurrency.limit == int(SLOW_START * DECREASE * DECREASE)


def test_after_a_throttle_the_limit_grows_by_one_a_round() -> None:
    """Additive increase."""
    concurrency = adaptive()
    fill(concurrency)
    concurrency.throttle(0.0, None)
    concurrency.in_flight = 0
    before = concurrency.limit
    for _ in range(4):
        round_of_answers(concurrency)
    assert before + 3 <= concurrency.limit <= before + 4


def test_a_failure_ends_slow_start_but_cuts_nothing() -> None:
    """An overloaded server is not a rate limit."""
    concurrency = adaptive()
    fill(concurrency)
    concurrency.fail(0.0)
    assert concurrency.limit == SLOW_START
    concurrency.succeed()
    assert concurrency.limit == SLOW_START


def test_a_fixed_limit_is_not_cut() -> None:
    """But it pauses like any other."""
    concurrency = Concurrency(RateLimits(concurrency=8, adaptive=False))
    fill(concurrency)
    concurrency.throttle(0.0, 2.0)
    assert (concurrency.limit, concurrency.paused_until) == (8, 2.0)


def test_a_throttle_pauses_for_as_long_as_the_provider_asks() -> None:
    """Retry-After is believed, and the longest of several counts."""
    concurrency = adaptive()
    fill(concurrency)
    concurrency.throttle(10.0, 7.0)
    concurrency.throttle(10.5, 1.0)
    assert concurrency.paused_until == 17.0


def test_a_burst_of_refusals_is_one_pause() -> None:
    """A hundred calls refused together must not add up to a minute."""
    concurrency = Concurrency(RateLimits(concurrency=100, adaptive=False))
    fill(concurrency)
    for _ in range(100):
        concurrency.throttle(1.0, None)
    assert concurrency.paused_until == 1.0 + PAUSE_BASE


def test_refusals_after_each_pause_double_it_up_to_a_ceiling() -> None:
    """A provider that keeps refusing is asked ever less often."""
    concurrency, now, pauses = adaptive(), 0.0, []
    for _ in range(10):
        concurrency.start()
        concurrency.throttle(now, None)
        pauses.append(concurrency.paused_until - now)
        now = concurrency.paused_until
    assert pauses[:4] == [PAUSE_BASE, 2 * PAUSE_BASE, 4 * PAUSE_BASE, 8 * PAUSE_BASE]
    assert pauses[-1] == PAUSE_CEILING


@pytest.mark.parametrize("kind", ["fail", "throttle"])
def test_a_run_of_failures_opens_the_breaker_and_lets_single_probes_through(kind: str) -> None:
    """Sustained refusals do not stall for ever and do not hammer either."""
    concurrency = adaptive()
    for _ in range(BREAKER_FAILURES):
        concurrency.start()
        if kind == "fail":
            concurrency.fail(0.0)
        else:
            concurrency.throttle(0.0, None)
    assert concurrency.paused_until > 0.0
    assert fill(concurrency) == 1


@pytest.mark.parametrize("answer", ["succeed", "answer"])
def test_a_probe_that_is_answered_closes_the_breaker(answer: str) -> None:
    """Even by a refusal of that one request: the provider is alive."""
    concurrency = Concurrency(RateLimits(concurrency=5, adaptive=False))
    for _ in range(BREAKER_FAILURES):
        concurrency.start()
        concurrency.fail(0.0)
    concurrency.start()
    getattr(concurrency, answer)()
    assert fill(concurrency) == 5


def test_a_probe_that_fails_keeps_the_breaker_open_and_pauses_longer() -> None:
    """The next probe comes later."""
    concurrency = adaptive()
    for _ in range(BREAKER_FAILURES):
        concurrency.start()
        concurrency.fail(0.0)
    first = concurrency.paused_until
    concurrency.start()
    concurrency.fail(first)
    assert concurrency.paused_until - first > first
    assert concurrency.limit == 1


def test_single_failures_between_answers_do_not_open_the_breaker() -> None:
    """Only a run without any answer does."""
    concurrency = adaptive()
    for _ in range(5 * BREAKER_FAILURES):
        concurrency.start()
        concurrency.fail(0.0)
        concurrency.start()
        concurrency.succeed()
    assert concurrency.limit > 1
    assert concurrency.paused_until <= 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["succeed", "answer", "throttle", "fail", "cancel"]), st.floats(0, 9)), max_size=60
    )
)
def test_the_limit_stays_between_one_and_the_ceiling_and_every_call_is_counted_out(
    steps: list[tuple[str, float]],
) -> None:
    """Whatever happens, in whatever order."""
    concurrency, now = adaptive(ceiling=40), 0.0
    for kind, wait in steps:
        now += wait
        started = fill(concurrency)
        assert concurrency.in_flight >= started
        if kind in {"throttle", "fail"}:
            getattr(concurrency, kind)(now, None)
        else:
            getattr(concurrency, kind)()
        assert 1 <= concurrency.limit <= concurrency.ceiling
        assert 0 <= concurrency.in_flight <= concurrency.ceiling
