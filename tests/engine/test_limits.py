"""Rate limits: what a lane may send in any span of time, and when the next call may go."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.limits import DAY, MINUTE, PACE, SLICE, Buckets, Cost, DayWindow, RateLimits, TokenBucket

ONE = Cost(input_tokens=100, output_tokens=50)
costs = st.integers(1, 500)
waits = st.floats(0, 30, allow_nan=False)
rates = st.floats(0.05, 200, allow_nan=False)
capacities = st.floats(1, 300, allow_nan=False)


def take_all(bucket: TokenBucket | DayWindow, steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Take every cost as early as the bucket allows, after an idle wait; return (time, cost)."""
    now, taken = 0.0, []
    for wait, cost in steps:
        now = bucket.ready_at(cost, now + wait)
        bucket.take(cost, now)
        taken.append((now, cost))
    return taken


@given(rates, capacities, st.lists(st.tuples(waits, costs), max_size=25))
def test_over_any_span_a_bucket_gives_its_capacity_and_its_rate(
    rate: float, capacity: float, steps: list[tuple[float, int]]
) -> None:
    """Plus at most one item's excess over the capacity."""
    taken = take_all(TokenBucket(rate, capacity, 0.0), steps)
    for first, last in combinations_with_replacement(range(len(taken)), 2):
        span = taken[last][0] - taken[first][0]
        total = sum(cost for _, cost in taken[first : last + 1])
        excess = max(0.0, *(cost - capacity for _, cost in taken[first : last + 1]), 0.0)
        assert total <= capacity + rate * span + excess + 1e-6 * (1 + total)


@given(rates, capacities, st.lists(st.tuples(waits, costs), max_size=10), costs)
def test_a_bucket_names_the_earliest_moment(
    rate: float, capacity: float, steps: list[tuple[float, int]], cost: int
) -> None:
    """At that moment it is ready, a moment before it was not."""
    bucket = TokenBucket(rate, capacity, 0.0)
    now = max((time for time, _ in take_all(bucket, steps)), default=0.0)
    ready = bucket.ready_at(cost, now)
    if ready > now:
        before = now + (ready - now) * 0.99
        assert bucket.ready_at(cost, before) > before
    assert bucket.ready_at(cost, ready) <= ready + 1e-6


def test_an_item_dearer_than_the_whole_bucket_goes_from_a_full_one_and_leaves_a_debt() -> None:
    """It is not refused for ever, and what follows waits for the debt."""
    bucket = TokenBucket(10.0, 20.0, 0.0)
    bucket.take(5, 0.0)
    assert bucket.ready_at(100, 0.0) == pytest.approx(0.5)
    bucket.take(100, 0.5)
    assert bucket.ready_at(1, 0.5) == pytest.approx(0.5 + 8.1)


def test_what_was_not_used_comes_back_at_once() -> None:
    """A refund lets the next item go earlier."""
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.take(10, 0.0)
    bucket.give_back(4, 0.0)
    assert bucket.ready_at(4, 0.0) == 0.0
    assert bucket.ready_at(5, 0.0) == pytest.approx(1.0)


def test_a_refund_never_fills_a_bucket_beyond_its_capacity() -> None:
    """Otherwise a burst could be saved up."""
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.give_back(1_000, 0.0)
    bucket.take(10, 0.0)
    assert bucket.ready_at(1, 0.0) == pytest.approx(1.0)


def test_what_was_used_beyond_the_estimate_is_charged() -> None:
    """A negative refund takes more."""
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.give_back(-15, 0.0)
    assert bucket.ready_at(1, 0.0) == pytest.approx(6.0)


def test_a_new_rate_holds_from_now_on_and_keeps_the_debt() -> None:
    """Raising the limit does not forgive what was taken."""
    bucket = TokenBucket(1.0, 10.0, 0.0)
    bucket.take(30, 0.0)
    bucket.retune(4.0, 40.0, 0.0)
    assert bucket.ready_at(1, 0.0) == pytest.approx(21 / 4)


def test_a_smaller_bucket_is_not_fuller_than_full() -> None:
    """Lowering the limit also lowers the burst."""
    bucket = TokenBucket(10.0, 100.0, 0.0)
    bucket.retune(1.0, 5.0, 0.0)
    bucket.take(5, 0.0)
    assert bucket.ready_at(1, 0.0) == pytest.approx(1.0)


def test_a_clock_that_stands_still_or_steps_back_gives_nothing() -> None:
    """Only time that passes refills."""
    bucket = TokenBucket(1.0, 1.0, 100.0)
    bucket.take(1, 100.0)
    assert bucket.ready_at(1, 50.0) > 50.0
    assert bucket.ready_at(1, 100.0) == pytest.approx(101.0)


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 20_000, allow_nan=False), st.integers(1, 3)), max_size=60),
)
def test_in_any_day_no_more_than_the_days_limit_goes(limit: int, steps: list[tuple[float, int]]) -> None:
    """Over every window of 24 hours, wherever it begins."""
    taken = take_all(DayWindow(limit), [(wait, min(cost, limit)) for wait, cost in steps])
    for begin, _ in taken:
        assert sum(cost for time, cost in taken if begin <= time < begin + DAY) <= limit


def test_a_days_allowance_may_go_at_once() -> None:
    """It is a count, not a rate: nobody has to wait 8.64 seconds between 10,000 calls a day."""
    window = DayWindow(10_000)
    assert all(time == 0.0 for time, _ in take_all(window, [(0.0, 1)] * 10_000))
    assert window.ready_at(1, 0.0) == DAY


def test_a_days_calls_come_back_as_they_were_made() -> None:
    """Not all at midnight: those of an hour ago come back an hour later than those before."""
    window = DayWindow(2)
    take_all(window, [(0.0, 1), (3_600.0, 1)])
    assert window.ready_at(1, 7_200.0) == DAY
    assert window.ready_at(2, 7_200.0) == DAY + 3_600.0


def test_a_day_is_remembered_in_slices() -> None:
    """A million calls a day need no list of a million moments: those of a minute come back together."""
    window = DayWindow(3)
    take_all(window, [(0.0, 1), (SLICE / 2, 1), (SLICE / 4, 1)])
    assert window.ready_at(1, 100.0) == DAY + SLICE * 0.75


def test_a_call_that_never_left_does_not_count_for_the_day() -> None:
    """It is given back to its slice."""
    window = DayWindow(1)
    window.take(1, 0.0)
    window.give_back(1, 0.0)
    assert window.ready_at(1, 0.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "burst"),
    [
        pytest.param(RateLimits(requests=600), 8, id="requests"),
        pytest.param(RateLimits(input_tokens=60_000), 8, id="input tokens"),
        pytest.param(RateLimits(output_tokens=30_000), 8, id="output tokens"),
        pytest.param(RateLimits(tokens=90_000), 8, id="tokens of both directions"),
        pytest.param(RateLimits(requests=600, input_tokens=6_000), 1, id="the tightest counts"),
        pytest.param(RateLimits(requests=1), 1, id="at least one call goes at once"),
        pytest.param(RateLimits(requests=6_000, requests_per_day=7), 7, id="requests a day"),
    ],
)
def test_each_dimension_limits_the_calls_of_a_second(limits: RateLimits, burst: int) -> None:
    """Less than a second's share of the minute goes at once, then each call waits."""
    buckets = Buckets(limits, -MINUTE)
    for _ in range(burst):
        assert buckets.ready_at(ONE, 0.0) == 0.0
        buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) > 0.0


def test_the_first_calls_leave_tokens_over() -> None:
    """Providers set a whole output allowance aside for each of them."""
    buckets = Buckets(RateLimits(tokens=90_000), 0.0)
    for _ in range(4):
        assert buckets.ready_at(ONE, 0.0) == 0.0
        buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) > 0.0


def test_without_limits_everything_goes_at_once() -> None:
    """No limit is not a limit of zero."""
    buckets = Buckets(RateLimits(), 0.0)
    buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == 0.0


@pytest.mark.parametrize(
    "limits",
    [RateLimits(requests=60), RateLimits(tokens=9_000), RateLimits(requests_per_day=1)],
    ids=["requests", "tokens", "day"],
)
def test_a_call_that_never_left_is_given_back_in_every_dimension(limits: RateLimits) -> None:
    """As if it had not been admitted."""
    buckets = Buckets(limits, -MINUTE)
    buckets.take(ONE, 0.0)
    buckets.give_back(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        pytest.param(RateLimits(input_tokens=6_000), 0.1, id="less input than expected"),
        pytest.param(RateLimits(output_tokens=6_000), 1.0, id="more output than expected"),
        pytest.param(RateLimits(tokens=12_000), 0.55, id="both together"),
    ],
)
def test_an_estimate_is_replaced_by_what_was_used(limits: RateLimits, seconds: float) -> None:
    """100 tokens each way were expected, 10 and 150 came; each direction is corrected for itself."""
    buckets = Buckets(limits, -MINUTE, burst_seconds=1.0)
    buckets.take(Cost(input_tokens=100, output_tokens=100), 0.0)
    buckets.correct(Cost(input_tokens=100, output_tokens=100), Cost(input_tokens=10, output_tokens=150), 0.0)
    assert buckets.ready_at(Cost(input_tokens=100, output_tokens=50), 0.0) == pytest.approx(seconds / PACE)


def test_an_announced_limit_fills_a_gap() -> None:
    """A lane without a limit takes over the provider's."""
    buckets = Buckets(RateLimits(), 0.0)
    buckets.learn("requests", 60, 0.0)
    buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == pytest.approx(1.0 / PACE)


@pytest.mark.parametrize(("announced", "seconds"), [(30, 2.0), (6_000, 1.0)], ids=["lower", "higher"])
def test_an_announced_limit_may_lower_a_given_one_but_never_raise_it(announced: int, seconds: float) -> None:
    """Who sets a limit keeps the rest of the account for something else."""
    buckets = Buckets(RateLimits(requests=60), 0.0)
    buckets.learn("requests", announced, 0.0)
    buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == pytest.approx(seconds / PACE)


def test_a_lowered_limit_rises_again_with_the_announcement() -> None:
    """Up to the given one."""
    buckets = Buckets(RateLimits(requests=60), 0.0)
    buckets.learn("requests", 6, 0.0)
    buckets.learn("requests", 600, 0.0)
    buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == pytest.approx(1.0 / PACE)


def test_a_remaining_allowance_below_ours_is_believed() -> None:
    """Somebody else uses the account too."""
    buckets = Buckets(RateLimits(requests=600), 0.0)
    buckets.lower_to("requests", 0, 0.0)
    buckets.lower_to("unheard-of", 0, 0.0)
    buckets.take(ONE, 0.0)  # what is announced is rounded down to whole requests
    assert buckets.ready_at(ONE, 0.0) == pytest.approx(0.1 / PACE)


@given(st.integers(600, 60_000), st.lists(st.floats(0, 0.15), min_size=30, max_size=30))
def test_calls_that_arrive_unevenly_pass_a_provider_that_counts_seconds(limit: int, late: list[float]) -> None:
    """Each up to 0.15 s late, or not: none is one too many."""
    ours, now, arrivals = Buckets(RateLimits(requests=limit), 0.0), 0.0, []
    theirs = TokenBucket(limit / 60, limit / 60, 0.0)
    for delay in late:
        now = ours.ready_at(ONE, now)
        ours.take(ONE, now)
        arrivals.append(now + delay)
    for at in sorted(arrivals):
        assert theirs.ready_at(1, at) <= at
        theirs.take(1, at)


def test_what_earlier_runs_took_counts_for_the_day() -> None:
    """A restart gives nobody a second allowance."""
    buckets = Buckets(RateLimits(requests_per_day=10), 1_000.0)
    buckets.remember_day([(-80_000.0, 6), (900.0, 4)])
    assert buckets.ready_at(ONE, 1_000.0) == DAY - 80_000.0
    buckets.take(ONE, DAY - 80_000.0)
    assert buckets.ready_at(ONE, DAY - 80_000.0) == DAY - 80_000.0


def test_without_a_limit_for_the_day_nothing_is_remembered() -> None:
    """Nothing counts days."""
    buckets = Buckets(RateLimits(requests=6_000), 0.0)
    buckets.remember_day([(-1.0, 100)])
    assert not buckets.counts_days
    assert buckets.ready_at(ONE, 0.0) == 0.0


@pytest.mark.parametrize(
    "limits",
    [RateLimits(requests=600, share=0.5), RateLimits(share=0.5), RateLimits(requests=300)],
    ids=["given", "announced", "as if half were given"],
)
def test_a_share_is_taken_of_given_and_announced_limits(limits: RateLimits) -> None:
    """Whoever has the other half can use it."""
    buckets = Buckets(limits, 0.0)
    buckets.learn("requests", 600, 0.0)
    for _ in range(4):
        assert buckets.ready_at(ONE, 0.0) == 0.0
        buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == pytest.approx(0.2 / PACE)


def test_a_share_of_the_day_lets_at_least_one_call_through() -> None:
    """A part of one call is one call."""
    buckets = Buckets(RateLimits(requests_per_day=3, share=0.1), 0.0)
    assert buckets.ready_at(ONE, 0.0) == 0.0
    buckets.take(ONE, 0.0)
    assert buckets.ready_at(ONE, 0.0) == DAY


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5], ids=["none", "negative", "more than all"])
def test_a_share_is_a_part(share: float) -> None:
    """Of nothing there is no share, and nobody has more than all."""
    with pytest.raises(ValueError, match="share"):
        RateLimits(share=share)


@pytest.mark.parametrize("name", [name for name in RateLimits.__struct_fields__ if name not in ("adaptive", "share")])
def test_a_limit_below_one_is_refused(name: str) -> None:
    """It would let nothing through and leave a run waiting for ever."""
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, not 0"):
        RateLimits(**{name: 0})
