"""Attempts that are on disk before there is room for their calls: how many, when they leave, and how they come back."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from engine.ahead import SPAN, Ahead
from engine.errors import ErrorClass, ProviderError
from engine.events import Outcome
from engine.lane import Ticket
from engine.ledger import Ledger, Scope
from engine.limits import PACE, RateLimits
from engine.money import Price
from engine.request import Usage
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.state import Event, State
from engine.testing import EchoReader, ScriptedProvider, make_cells, make_leased

LIMIT = 8
USED = Usage(input_tokens=5, output_tokens=2)
SWEEP = Scope("sweep", "s")


def paced(calls_per_s: float, commit_s: float, *, spans: int = 3) -> Ahead:
    """What a lane knows after some time of such a pace."""
    ahead = Ahead(0.0)
    for call in range(int(spans * SPAN * calls_per_s) + 1):
        ahead.ended(call / calls_per_s)
    for _ in range(100):
        ahead.committed(commit_s)
    return ahead


def test_as_many_attempts_are_ready_as_calls_end_during_two_commits() -> None:
    """Two thousand calls a second and commits of ten milliseconds."""
    assert paced(2_000, 0.010).most(500) == pytest.approx(40, abs=2)


def test_nothing_is_ready_ahead_where_calls_end_slowly() -> None:
    """A crash would count it as possibly billed for no gain."""
    assert paced(20, 0.010).most(500) == 0


def test_no_more_than_a_quarter_of_the_lane_is_ready_ahead() -> None:
    """Whatever the disk needs."""
    assert paced(2_000, 5.0).most(100) == 25


def test_nothing_is_ready_ahead_before_anything_is_known() -> None:
    """A lane's first calls wait for the disk."""
    assert Ahead(0.0).most(1_000) == 0


class Desk:
    """A busy lane of `LIMIT` calls, with time for a pace behind it."""

    def __init__(self, **limits: Any) -> None:
        route = Route("scripted/m-1", "scripted", Price(input=1, output=1), RateLimits(concurrency=LIMIT, **limits))
        self.scheduler = Scheduler(sweep="s", routes={"m": route}, ledger=Ledger({}, {}), policy=RetryPolicy(), now=0.0)
        self.lane = self.scheduler.lanes["scripted/m-1"]
        self.now = 0.0
        self.numbers: Iterator[int] = iter(range(1_000_000))
        self.wire: list[Ticket] = []

    def offer(self, count: int) -> None:
        """Queue requests."""
        self.scheduler.offer([make_leased(next(self.numbers)) for _ in range(count)])

    def schedule(self) -> list[Ticket]:
        """Schedule; return the attempts that are to be written."""
        schedule = self.scheduler.schedule(self.now)
        self.wire += schedule.departs
        return schedule.sends

    def write(self, tickets: list[Ticket], seconds: float = 0.05) -> None:
        """Have attempts on disk."""
        for ticket in tickets:
            ticket.advance(Event.SEND)
            self.scheduler.committed(ticket, seconds)
            if not ticket.ahead:
                self.wire.append(ticket)

    def answer(self) -> None:
        """Let the oldest call on the wire end."""
        ticket = self.wire.pop(0)
        self.scheduler.settle(ticket, USED, ticket.worst, None, self.now)
        self.wire += self.scheduler.departures(ticket, self.now)

    def run_in(self) -> None:
        """Work for a while, so that the lane knows its pace, and fill it."""
        for _ in range(600):
            self.offer(1)
            self.write(self.schedule())
            if len(self.wire) == LIMIT:
                self.now += 0.002
                self.answer()
        while len(self.wire) < LIMIT:
            self.offer(1)
            self.write(self.schedule())


@pytest.fixture
def desk() -> Desk:
    """A full lane that ends 500 calls a second."""
    made = Desk(adaptive=False)
    made.run_in()
    made.offer(20)
    return made


def test_a_full_lane_has_attempts_written_that_wait_for_room(desk: Desk) -> None:
    """They are reserved for and not on the wire."""
    before = desk.lane.prepared
    tickets = desk.schedule()
    assert before + len(tickets) == desk.lane.prepared == LIMIT // 4
    desk.write(tickets)
    assert (len(desk.wire), desk.lane.in_flight) == (LIMIT, LIMIT)
    reserved = desk.scheduler.ledger.accounts()[SWEEP].reserved_tokens
    assert reserved == (LIMIT + LIMIT // 4) * desk.wire[0].worst.tokens


def test_the_oldest_of_them_leaves_when_a_call_ends(desk: Desk) -> None:
    """At once, and the lane is as full as before."""
    desk.write(desk.schedule())
    first = next(iter(desk.lane.recall()))
    desk.lane.committed(first, 0.0)
    desk.answer()
    assert (desk.wire[-1], first.ahead) == (first, False)
    assert desk.lane.in_flight == LIMIT


def test_one_whose_lane_has_room_by_then_leaves_when_it_is_on_disk(desk: Desk) -> None:
    """It does not wait for another call to end."""
    tickets = desk.schedule()
    desk.answer()
    desk.write(tickets)
    assert desk.scheduler.departures(tickets[0], desk.now) == tickets[:1]


def test_a_rate_limit_holds_for_what_is_written_ahead() -> None:
    """The limits are asked when a call leaves, not when its attempt is written."""
    desk = Desk(adaptive=False, requests=30_000)
    desk.run_in()
    desk.offer(20)
    desk.write(desk.schedule())
    waiting = desk.lane.prepared
    assert waiting
    lowered = desk.lane._buckets
    lowered.lower_to("requests", 0, desk.now)
    lowered.lower_to("requests", -2, desk.now)
    left = len(desk.wire)
    desk.answer()
    assert (len(desk.wire), desk.lane.prepared) == (left - 1, waiting)
    wake = desk.scheduler.schedule(desk.now).wake_at
    assert wake is not None
    assert desk.now < wake < desk.now + 10 * 60 / (PACE * 30_000) + 1


def test_what_waits_for_room_in_a_stopped_lane_is_recalled(desk: Desk) -> None:
    """It gives its reservation back and is planned again."""
    desk.write(desk.schedule())
    for ticket in list(desk.wire):
        error = ProviderError(ErrorClass.AUTH, "no")
        desk.scheduler.fail(ticket, error, desk.now, Random(0))  # noqa: S311 - jitter
    recalled = desk.scheduler.schedule(desk.now).recalled
    assert len(recalled) == LIMIT // 4
    assert not desk.scheduler.idle()
    for ticket in recalled:
        desk.scheduler.unsend(ticket, desk.now)
        assert ticket.state is State.PLANNED
    assert desk.scheduler.idle()
    assert desk.scheduler.ledger.accounts()[SWEEP].reserved_tokens == 0


# ----- whole runs


def fast(rig: Any, **more: Any) -> ScriptedProvider:
    """A provider that ends some thousand calls a second, in a lane of few."""
    rig.limits = RateLimits(concurrency=LIMIT, adaptive=False)
    provider = rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.001, **more)
    return provider


def most_ahead(rig: Any) -> list[int]:
    """Watch how many attempts wait for room."""
    seen = [0]

    def watch(runner: Runner) -> None:
        lane = runner._scheduler.lanes["scripted/m-1"]
        seen[0] = max(seen[0], lane.prepared)
        asyncio.get_running_loop().call_later(0.001, watch, runner)

    rig.started = watch
    return seen


async def test_no_more_calls_are_on_the_wire_than_the_lane_allows(rig: Any) -> None:
    """Although more attempts are on disk, and every request is answered once."""
    provider, ahead = fast(rig), most_ahead(rig)
    assert await rig.run(make_cells(range(4_000))) is Outcome.COMPLETE
    assert provider.most_in_flight <= LIMIT
    assert ahead[0] > 0
    assert len(rig.calls) == len(set(rig.calls)) == 4_000
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome <> 'completed'") == [(0,)]


async def test_what_waits_for_room_when_a_run_is_stopped_costs_nothing(rig: Any) -> None:
    """It is planned again, and the next run sends it."""
    provider = fast(rig)

    def watch(runner: Runner) -> None:
        if runner._scheduler.lanes["scripted/m-1"].prepared and len(provider.seen) > 1_000:
            runner.drain()
        else:
            asyncio.get_running_loop().call_later(0.0, watch, runner)

    rig.started = watch
    assert await rig.run(make_cells(range(8_000))) is Outcome.INTERRUPTED
    assert set(await rig.states()) <= {"planned", "read"}
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome IN ('open', 'in_doubt', 'assumed')") == [(0,)]
    rig.started = lambda runner: None
    assert await rig.run(make_cells(range(8_000))) is Outcome.COMPLETE
    assert (rig.recovery.calls, len(set(rig.calls)), len(rig.calls)) == (0, 8_000, 8_000)


async def test_the_next_call_leaves_before_the_answer_that_made_room_for_it_is_read(rig: Any) -> None:
    """Reading takes time in which its place would be empty."""
    provider, in_flight = fast(rig), list[int]()

    def look(*_: object) -> tuple[()]:
        in_flight.append(provider.in_flight)
        return ()

    rig.reader = EchoReader(look)
    assert await rig.run(make_cells(range(4_000))) is Outcome.COMPLETE
    assert max(in_flight) == LIMIT
