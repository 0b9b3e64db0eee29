"""One lane: its window, its lines and when the next request may go."""

import pytest

from engine.lane import WINDOW, Lane
from engine.ledger import Amount, Budget, Scope
from engine.limits import PACE, RateLimits
from engine.provider import RateHints
from engine.request import Usage
from engine.testing import make_leased, make_ticket


def make_lane(limits: RateLimits | None = None) -> Lane:
    """A lane that begins at time zero."""
    return Lane("scripted/m-1", limits or RateLimits(concurrency=2, adaptive=False), 0.0)


def fill(lane: Lane, count: int) -> None:
    """Queue so many requests."""
    for number in range(count):
        lane.offer(make_ticket(make_leased(number)))


def admit_next(lane: Lane, now: float) -> bool:
    """Admit the head if it may go."""
    ticket = lane.head(now)
    if ticket is None or lane.ready_at(ticket, now) != now:
        return False
    lane.pop(ticket)
    lane.admit(ticket, now)
    return True


def test_requests_go_in_the_order_of_the_queue() -> None:
    """First in, first out."""
    lane = make_lane()
    fill(lane, 3)
    heads = []
    while (ticket := lane.head(0.0)) is not None:
        heads.append(ticket.leased.id)
        lane.pop(ticket)
    assert heads == [0, 1, 2]


def test_a_full_lane_cannot_say_when_the_next_call_may_go() -> None:
    """Only a call's end can tell."""
    lane = make_lane()
    fill(lane, 3)
    assert admit_next(lane, 0.0)
    assert admit_next(lane, 0.0)
    ticket = lane.head(0.0)
    assert ticket is not None
    assert lane.ready_at(ticket, 0.0) is None


def test_second_request_waits_for_its_limit() -> None:
    """A lane with one request a second lets one through and names the moment for the next."""
    lane = make_lane(RateLimits(requests=60))
    fill(lane, 2)
    assert admit_next(lane, 0.0)
    ticket = lane.head(0.0)
    assert ticket is not None
    assert lane.ready_at(ticket, 0.25) == pytest.approx(1.0 / PACE)


def test_a_postponed_request_comes_back_into_line_at_its_time() -> None:
    """Not before, and behind those already there."""
    lane = make_lane()
    late = make_ticket(make_leased(7))
    lane.offer_at(late, 5.0)
    assert lane.head(4.9) is None
    assert lane.next_later() == 5.0
    assert lane.head(5.0) is late
    assert lane.next_later() is None


def test_a_paused_lane_waits_for_the_pause_to_end() -> None:
    """Retry-After holds for every request of the lane, not only for the refused one."""
    lane = make_lane()
    fill(lane, 2)
    admit_next(lane, 0.0)
    lane.throttle(0.0, 30.0)
    ticket = lane.head(1.0)
    assert ticket is not None
    assert lane.ready_at(ticket, 1.0) == 30.0


def test_a_stopped_lane_wants_nothing_and_sends_nothing() -> None:
    """What it holds is given back by `drain`."""
    lane = make_lane()
    fill(lane, 2)
    lane.offer_at(make_ticket(make_leased(7)), 3.0)
    lane.stop("no money")
    ticket = lane.head(0.0)
    assert ticket is not None
    assert lane.ready_at(ticket, 0.0) is None
    assert (lane.wanted(), lane.next_later()) == (0, None)
    assert len(lane.drain()) == 3


def test_the_window_bounds_what_a_lane_holds() -> None:
    """Memory does not grow with the sweep: a lane leases until its window is full and again when it is half empty."""
    lane = make_lane()
    assert lane.wanted() == WINDOW
    fill(lane, WINDOW // 2)
    assert not lane.hungry()
    assert lane.wanted() == WINDOW // 2
    fill(lane, WINDOW // 2)
    assert lane.wanted() == 0


def test_a_fast_lane_has_a_wider_window() -> None:
    """Twice its concurrency, so that it never runs dry while leasing."""
    assert make_lane(RateLimits(concurrency=1_000, adaptive=False)).wanted() == 2_000


def test_withheld_requests_wait_in_a_line_for_each_set_of_budgets() -> None:
    """One stage's empty budget does not stand before another's."""
    lane = make_lane()
    first, second, other = (make_ticket(make_leased(number)) for number in range(3))
    other.budget = Budget((Scope("stage", "judge"),), ())
    for ticket in (first, second, other):
        lane.withhold(ticket)
    assert lane.withheld_heads() == [first, other]
    lane.pop(first)
    assert lane.withheld_heads() == [second, other]
    lane.pop(second)
    assert lane.withheld_heads() == [other]


def test_drain_takes_out_everything_that_is_not_in_flight() -> None:
    """Queued, postponed and withheld requests alike, once."""
    lane = make_lane()
    fill(lane, 3)
    admit_next(lane, 0.0)
    lane.offer_at(make_ticket(make_leased(10)), 9.0)
    lane.withhold(make_ticket(make_leased(11)))
    assert sorted(ticket.leased.id for ticket in lane.drain()) == [1, 2, 10, 11]
    assert lane.drain() == []
    assert lane.in_flight == 1


def test_a_withdrawn_call_gives_its_place_and_its_share_of_the_limits_back() -> None:
    """As if it had never been admitted."""
    lane = make_lane(RateLimits(requests=60, concurrency=1, adaptive=False))
    fill(lane, 2)
    ticket = lane.head(0.0)
    assert ticket is not None
    lane.pop(ticket)
    lane.admit(ticket, 0.0)
    lane.withdraw(ticket, 0.0)
    assert (lane.in_flight, lane.sent) == (0, 0)
    assert admit_next(lane, 0.0)


@pytest.mark.parametrize(
    "hints",
    [
        pytest.param(RateHints(requests_limit=60), id="requests"),
        pytest.param(RateHints(input_tokens_limit=60), id="input tokens"),
        pytest.param(RateHints(output_tokens_limit=60), id="output tokens"),
        pytest.param(RateHints(tokens_limit=60), id="tokens"),
        pytest.param(RateHints(requests_limit=120, requests_remaining=0), id="nothing remains"),
    ],
)
def test_a_lane_learns_from_the_headers_of_every_answer(hints: RateHints) -> None:
    """Also of successes: the next call waits."""
    lane = make_lane(RateLimits(concurrency=9, adaptive=False))
    ticket = make_ticket(make_leased(1))
    ticket.cost = ticket.cost.__class__(input_tokens=30, output_tokens=30)
    lane.admit(ticket, 0.0)
    lane.settle(ticket, Usage(input_tokens=30, output_tokens=30), hints, 0.0)
    lane.admit(ticket, 0.0)
    ready = lane.ready_at(ticket, 0.0)
    assert ready is not None
    assert ready > 0.0


@pytest.mark.parametrize("limit", [0, -5])
def test_a_nonsensical_announced_limit_is_ignored(limit: int) -> None:
    """It would divide by zero or block for ever."""
    lane = make_lane()
    ticket = make_ticket(make_leased(1))
    lane.admit(ticket, 0.0)
    lane.settle(ticket, Usage(), RateHints(requests_limit=limit), 0.0)
    assert lane.ready_at(ticket, 0.0) == 0.0


def test_a_snapshot_counts_what_the_lane_holds() -> None:
    """For the display."""
    lane = make_lane()
    fill(lane, 3)
    admit_next(lane, 0.0)
    lane.withhold(make_ticket(make_leased(9), nano=5))
    lane.throttle(0.0, 2.0)
    shot = lane.snapshot()
    assert (shot.queued, shot.in_flight, shot.sent, shot.throttled, shot.paused_until) == (3, 0, 1, 1, 2.0)
    assert Amount(5, 100) in [ticket.worst for ticket in lane.withheld_heads()]


def test_a_lane_learns_from_the_headers_of_a_refusal() -> None:
    """It says best of all how much is allowed."""
    lane = make_lane(RateLimits(concurrency=64))
    fill(lane, 3)
    assert admit_next(lane, 0.0)
    lane.throttle(0.0, 0.0, RateHints(requests_limit=60))
    assert admit_next(lane, 0.0)
    ticket = lane.head(0.0)
    assert ticket is not None
    assert lane.ready_at(ticket, 0.0) == pytest.approx(1.0 / PACE)


def test_a_lane_remembers_the_calls_of_earlier_runs_for_the_day() -> None:
    """They come back a day after they were sent."""
    lane = make_lane(RateLimits(requests_per_day=2))
    lane.remember_day([(80_000.0, 1), (10.0, 1)], 0.0)
    fill(lane, 1)
    ticket = lane.head(0.0)
    assert ticket is not None
    assert lane.counts_days
    assert lane.ready_at(ticket, 0.0) == 6_400.0
