"""Admission: what goes now, what waits for what, and that nothing is lost or passes a cap on the way."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.lane import Ticket
from engine.ledger import Amount, BudgetWarning, Cap, Ledger, Scope
from engine.limits import PACE, RateLimits
from engine.money import FREE, Price
from engine.request import Usage
from engine.retry import RetryAt, RetryPolicy, StopProvider
from engine.scheduler import Route, Scheduler
from engine.state import Event, State
from engine.testing import make_leased

PRICE = Price(input=1_000_000, output=1_000_000)
OPEN = RateLimits(concurrency=1_000, adaptive=False)
# Aliases: two of them share a lane, one has a lane of its own at the same provider, one is at another provider.
LANES = {"m": "scripted/m-1", "n": "scripted/m-1", "o": "scripted/m-2", "p": "other/m-3"}


def make_scheduler(
    caps: Mapping[Scope, Cap] | None = None,
    *,
    limits: RateLimits = OPEN,
    price: Price = PRICE,
    policy: RetryPolicy | None = None,
    spent: Mapping[Scope, Amount] | None = None,
) -> Scheduler:
    """A scheduler over the four aliases."""
    routes = {alias: Route(lane, lane.partition("/")[0], price, limits) for alias, lane in LANES.items()}
    return Scheduler(
        sweep="s", routes=routes, ledger=Ledger(caps or {}, spent or {}), policy=policy or RetryPolicy(), now=0.0
    )


def offer(scheduler: Scheduler, numbers: Iterable[int], *, stage: str = "task", alias: str = "m") -> None:
    """Offer requests."""
    scheduler.offer(make_leased(number, stage=stage, alias=alias, lane=LANES[alias]) for number in numbers)


def send(scheduler: Scheduler, now: float = 0.0) -> list[Ticket]:
    """Schedule and send what may go."""
    tickets = scheduler.schedule(now).sends
    for ticket in tickets:
        ticket.advance(Event.SEND)
    return tickets


def chance(seed: int = 0) -> Random:
    """Jitter that a test can repeat."""
    return Random(seed)  # noqa: S311 - nothing is kept secret by it


def ids(tickets: Iterable[Ticket]) -> list[int]:
    """The requests of some tickets."""
    return [ticket.leased.id for ticket in tickets]


def worst() -> int:
    """The worst-case cost of one request of `make_leased`."""
    scheduler = make_scheduler()
    offer(scheduler, [1])
    return scheduler.schedule(0.0).sends[0].worst.nano


STAGE = Scope("stage", "task")
SWEEP = Scope("sweep", "s")


def test_everything_goes_when_nothing_stands_in_the_way() -> None:
    """In order, reserved and admitted."""
    scheduler = make_scheduler()
    offer(scheduler, range(3))
    schedule = scheduler.schedule(0.0)
    assert ids(schedule.sends) == [0, 1, 2]
    assert schedule.wake_at is None
    assert {ticket.state for ticket in schedule.sends} == {State.ADMITTED}
    assert scheduler.ledger.accounts()[SWEEP].reserved_nano == 3 * worst()


def test_a_schedule_names_the_moment_for_the_next_request() -> None:
    """The earliest over all lanes."""
    scheduler = make_scheduler(limits=RateLimits(requests=30))
    offer(scheduler, range(2))
    offer(scheduler, range(5, 7), alias="p")
    assert ids(scheduler.schedule(0.0).sends) == [0, 5]
    assert scheduler.schedule(0.5).wake_at == pytest.approx(2.0 / PACE)
    assert ids(scheduler.schedule(2.0 / PACE).sends) == [1, 6]


@pytest.mark.parametrize(
    "scope",
    [SWEEP, Scope("provider", "scripted"), Scope("model", "m"), STAGE],
    ids=lambda scope: scope.kind,
)
@pytest.mark.parametrize("unit", ["nano", "tokens"])
def test_a_cap_in_any_scope_withholds_what_would_pass_it(scope: Scope, unit: str) -> None:
    """Two fit, the third stays."""
    probe = make_scheduler()
    offer(probe, [1])
    amount = probe.schedule(0.0).sends[0].worst
    cap = Cap(nano=2 * amount.nano) if unit == "nano" else Cap(tokens=2 * amount.tokens)
    scheduler = make_scheduler({scope: cap})
    offer(scheduler, range(3))
    assert ids(send(scheduler)) == [0, 1]
    assert ids(scheduler.drain()) == [2]


def test_a_withheld_request_goes_when_money_comes_back() -> None:
    """A call that cost less than its reservation makes room."""
    scheduler = make_scheduler({SWEEP: Cap(nano=worst() + 1)})
    offer(scheduler, range(2))
    (first,) = send(scheduler)
    assert send(scheduler) == []
    scheduler.settle(first, Usage(), Amount(1, 1), None, 0.0)
    assert ids(send(scheduler)) == [1]


def test_money_that_comes_back_in_one_lane_lets_another_lane_go_on() -> None:
    """They share the sweep's budget."""
    scheduler = make_scheduler({SWEEP: Cap(nano=worst())})
    offer(scheduler, [1])
    offer(scheduler, [2], alias="p")
    (first,) = send(scheduler)
    scheduler.settle(first, Usage(), Amount(0, 1), None, 0.0)
    assert ids(send(scheduler)) == [2]


def test_an_affordable_request_that_waits_for_its_limit_is_woken_for() -> None:
    """Money came back while the lane pauses: the schedule names the end of the pause and the run does not end."""
    scheduler = make_scheduler({SWEEP: Cap(nano=2 * worst())})
    offer(scheduler, range(3))
    first, second = send(scheduler)
    scheduler.fail(first, ProviderError(ErrorClass.CONTENT, "no"), 0.0, chance())
    scheduler.fail(second, ProviderError(ErrorClass.RATE, "slow", retry_after=9.0), 0.0, chance())
    schedule = scheduler.schedule(1.0)
    assert (schedule.sends, schedule.wake_at) == ([], 9.0)
    assert not scheduler.idle()
    assert ids(send(scheduler, 9.0)) == [2]


def test_a_postponed_request_whose_time_has_come_wakes_nobody_while_another_waits_for_a_place() -> None:
    """Otherwise the run loop would spin until the place is free."""
    scheduler = make_scheduler({SWEEP: Cap(nano=worst())}, limits=RateLimits(concurrency=1, adaptive=False))
    offer(scheduler, [1, 2])
    (first,) = send(scheduler)
    scheduler.schedule(0.0)
    scheduler.postpone(scheduler.drain()[0], 0.0)
    offer(scheduler, [3])
    scheduler.schedule(0.0)
    scheduler.fail(first, ProviderError(ErrorClass.TRANSIENT, "oops", retry_after=5.0), 0.0, chance())
    scheduler.retry(first, 1.0)
    assert scheduler.schedule(2.0).wake_at == 5.0


def test_what_no_budget_allows_does_not_keep_the_run_alive() -> None:
    """It stays planned for a run with more money."""
    scheduler = make_scheduler({SWEEP: Cap(nano=worst() - 1)})
    offer(scheduler, [1])
    assert send(scheduler) == []
    assert scheduler.idle()


@pytest.mark.parametrize("scope", [STAGE, Scope("model", "m")], ids=lambda scope: scope.kind)
def test_a_stage_or_model_without_money_does_not_starve_the_others_of_its_lane(scope: Scope) -> None:
    """In whatever order they are queued, before or behind the withheld ones."""
    scheduler = make_scheduler({scope: Cap(nano=0)})
    offer(scheduler, [1])
    offer(scheduler, [2], stage="judge", alias="n")
    offer(scheduler, [3])
    offer(scheduler, [4], stage="judge", alias="n")
    assert ids(send(scheduler)) == [2, 4]


def test_withheld_requests_of_one_stage_do_not_stand_before_those_of_another() -> None:
    """The sweep's money comes back: the stage that has no money of its own is passed over."""
    scheduler = make_scheduler({STAGE: Cap(nano=0), SWEEP: Cap(nano=worst() * 3 // 2)})
    offer(scheduler, [1])
    offer(scheduler, [2, 3], stage="judge")
    (first,) = send(scheduler)
    assert send(scheduler) == []
    scheduler.settle(first, Usage(), Amount(0, 1), None, 0.0)
    assert ids(send(scheduler)) == [3]


def test_a_lane_leases_past_an_exhausted_stage() -> None:
    """And says which stages and models to pass over."""
    scheduler = make_scheduler({STAGE: Cap(nano=0), Scope("model", "n"): Cap(nano=0)})
    lane = scheduler.lanes["scripted/m-1"]
    offer(scheduler, [1])
    offer(scheduler, [2], stage="judge", alias="n")
    send(scheduler)
    assert scheduler.exhausted(lane) == (frozenset({"task"}), frozenset({"n"}))
    assert scheduler.wanted(lane) > 0


def test_a_lane_leases_nothing_while_the_whole_sweeps_money_is_reserved() -> None:
    """Otherwise it would take the whole sweep into memory to withhold it."""
    scheduler = make_scheduler({SWEEP: Cap(nano=0), STAGE: Cap(nano=0)})
    lane = scheduler.lanes["scripted/m-1"]
    offer(scheduler, [1])
    offer(scheduler, [2], stage="judge")
    send(scheduler)
    assert scheduler.wanted(lane) == 0


def test_a_lanes_aliases_are_those_of_this_run() -> None:
    """A lease asks for nothing that this run has no price for."""
    scheduler = make_scheduler()
    assert scheduler.aliases(scheduler.lanes["scripted/m-1"]) == {"m", "n"}


@pytest.mark.parametrize("kind", [ErrorClass.QUOTA, ErrorClass.AUTH], ids=str)
def test_a_provider_that_refuses_for_good_stops_all_its_lanes_and_no_other(kind: ErrorClass) -> None:
    """Its requests stay planned; other providers go on."""
    scheduler = make_scheduler()
    offer(scheduler, [1])
    (first,) = send(scheduler)
    failure = scheduler.fail(first, ProviderError(kind, "no"), 0.0, chance())
    assert isinstance(failure.decision, StopProvider)
    assert first.state is State.PLANNED
    offer(scheduler, [2])
    offer(scheduler, [3], alias="o")
    offer(scheduler, [4], alias="p")
    assert ids(send(scheduler)) == [4]


def test_a_throttle_does_not_use_up_the_tries_for_failures() -> None:
    """Fifty refusals for rate, and a transient failure is still the first."""
    scheduler = make_scheduler(policy=RetryPolicy(failures=2, throttles=100))
    offer(scheduler, [1])
    now = 0.0
    for _ in range(50):
        (ticket,) = send(scheduler, now)
        decision = scheduler.fail(ticket, ProviderError(ErrorClass.RATE, "slow"), now, chance()).decision
        assert isinstance(decision, RetryAt)
        scheduler.retry(ticket, decision.time)
        now = max(decision.time, scheduler.lanes["scripted/m-1"].snapshot().paused_until)
    (ticket,) = send(scheduler, now)
    decision = scheduler.fail(ticket, ProviderError(ErrorClass.TRANSIENT, "oops"), now, chance()).decision
    assert isinstance(decision, RetryAt)


@pytest.mark.parametrize(
    ("price", "billed", "share"),
    [
        pytest.param(PRICE, True, 1, id="a cut-off call counts at its reservation"),
        pytest.param(PRICE, False, 0, id="a refused call costs nothing"),
        pytest.param(FREE, True, 0, id="a cut-off call of a free model costs nothing"),
    ],
)
def test_a_failed_attempt_costs_what_it_may_have_been_billed(price: Price, billed: bool, share: int) -> None:
    """In money and in tokens."""
    scheduler = make_scheduler(price=price)
    offer(scheduler, [1])
    (ticket,) = send(scheduler)
    error = ProviderError(ErrorClass.TRANSIENT, "gone", maybe_billed=billed)
    failure = scheduler.fail(ticket, error, 0.0, chance())
    account = scheduler.ledger.accounts()[SWEEP]
    assert failure.paid == Amount(share * ticket.worst.nano, share * ticket.worst.tokens)
    assert (account.spent_nano, account.spent_tokens, account.reserved_nano) == (*failure.paid, 0)


def test_a_failed_attempt_that_was_billed_warns_of_the_budget_too() -> None:
    """Not only answers use money up."""
    scheduler = make_scheduler({SWEEP: Cap(nano=worst())})
    offer(scheduler, [1])
    (ticket,) = send(scheduler)
    error = ProviderError(ErrorClass.TRANSIENT, "gone", maybe_billed=True)
    assert scheduler.fail(ticket, error, 0.0, chance()).warnings == [BudgetWarning(SWEEP, 95)]


@pytest.mark.parametrize("sent", [False, True], ids=["withdrawn", "unsent"])
def test_what_did_not_leave_gives_everything_back(sent: bool) -> None:
    """Its money, its place and its share of the limits."""
    scheduler = make_scheduler(limits=RateLimits(requests=60))
    offer(scheduler, [1, 2])
    (ticket,) = scheduler.schedule(0.0).sends
    if sent:
        ticket.advance(Event.SEND)
        scheduler.unsend(ticket, 0.0)
    else:
        scheduler.withdraw(ticket, 0.0)
    assert ticket.state is State.PLANNED
    assert scheduler.ledger.accounts()[SWEEP].reserved_nano == 0
    assert scheduler.in_flight() == 0
    assert ids(scheduler.schedule(0.0).sends) == [2]


def test_one_lanes_long_queue_does_not_delay_another_lane() -> None:
    """Each has its own window, limits and line."""
    scheduler = make_scheduler(limits=RateLimits(requests=60, concurrency=4, adaptive=False))
    offer(scheduler, range(1_000))
    offer(scheduler, [5_000], alias="p")
    assert 5_000 in ids(send(scheduler))


class World:
    """Calls on the wire that end at random, in a time of their own."""

    def __init__(self, scheduler: Scheduler, rng: Random, weights: tuple[int, ...]) -> None:
        self.scheduler, self.rng, self.weights = scheduler, rng, weights
        self.now = 0.0
        self.wire: list[tuple[float, int, Ticket]] = []
        self.fates: dict[int, str] = {}
        self.spent = 0
        self.sent: list[tuple[float, str]] = []
        self._tie = count()

    def run(self) -> None:
        """Go on until nothing can happen any more."""
        for _ in range(3_000):
            schedule = self.scheduler.schedule(self.now)
            for ticket in schedule.sends:
                self._send(ticket)
            self._check()
            moments = [time for time in (schedule.wake_at, self.wire[0][0] if self.wire else None) if time is not None]
            if not moments:
                assert self.scheduler.idle()
                return
            assert not self.scheduler.idle()
            self.now = max(self.now, min(moments))
            while self.wire and self.wire[0][0] <= self.now:
                self._end(heapq.heappop(self.wire)[2])
        raise AssertionError("the world does not come to rest")

    def _send(self, ticket: Ticket) -> None:
        number = ticket.leased.id
        assert number not in {each.leased.id for _, _, each in self.wire}, "one call at a time"
        assert number not in self.fates, "what has ended is never sent again"
        ticket.advance(Event.SEND)
        lane = self.scheduler.lanes[ticket.leased.lane].snapshot()
        assert lane.in_flight <= lane.concurrency
        self.sent.append((self.now, lane.name))
        heapq.heappush(self.wire, (self.now + self.rng.uniform(0.01, 20), next(self._tie), ticket))

    def _end(self, ticket: Ticket) -> None:
        kinds = ("answer", ErrorClass.RATE, ErrorClass.TRANSIENT, ErrorClass.CONTENT, ErrorClass.QUOTA)
        kind = self.rng.choices(kinds, self.weights)[0]
        if kind == "answer":
            paid = Amount(self.rng.randint(0, ticket.worst.nano), self.rng.randint(0, ticket.worst.tokens))
            self.scheduler.settle(ticket, Usage(output_tokens=self.rng.randint(0, 10)), paid, None, self.now)
            self.spent += paid.nano
            self.fates[ticket.leased.id] = "answered"
            return
        retry_after = self.rng.choice([None, self.rng.uniform(0, 40)])
        error = ProviderError(ErrorClass(kind), "x", retry_after=retry_after, maybe_billed=self.rng.random() < 0.3)
        failure = self.scheduler.fail(ticket, error, self.now, self.rng)
        self.spent += failure.paid.nano
        if isinstance(failure.decision, RetryAt):
            assert failure.decision.time >= self.now + (retry_after or 0.0)
            self.scheduler.retry(ticket, failure.decision.time)
        else:
            self.fates[ticket.leased.id] = type(failure.decision).__name__

    def _check(self) -> None:
        for account in self.scheduler.ledger.accounts().values():
            if account.cap.nano is not None:
                assert account.spent_nano + account.reserved_nano <= account.cap.nano
            if account.cap.tokens is not None:
                assert account.spent_tokens + account.reserved_tokens <= account.cap.tokens
        if self.sent:
            assert self.scheduler.ledger.accounts()[SWEEP].spent_nano == self.spent


@st.composite
def capped_scopes(draw: st.DrawFn) -> dict[Scope, Cap]:
    """Caps from nothing to plenty, in any scope."""
    scopes = [SWEEP, Scope("provider", "scripted"), Scope("model", "m"), STAGE]
    size = worst()
    return {
        scope: Cap(nano=draw(st.none() | st.integers(0, 60 * size)), tokens=draw(st.none() | st.integers(0, 8_000)))
        for scope in draw(st.lists(st.sampled_from(scopes), unique=True, max_size=3))
    }


def offer_randomly(scheduler: Scheduler, rng: Random, requests: int) -> None:
    """Offer requests of every alias and stage."""
    for number in range(requests):
        offer(scheduler, [number], stage=rng.choice(["task", "judge"]), alias=rng.choice(list(LANES)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    requests=st.integers(0, 80),
    caps=capped_scopes(),
    limits=st.builds(
        RateLimits,
        requests=st.none() | st.integers(20, 600),
        tokens=st.none() | st.integers(1_000, 100_000),
        requests_per_day=st.none() | st.integers(5, 100),
        concurrency=st.integers(1, 30),
        adaptive=st.booleans(),
    ),
    weights=st.tuples(st.integers(1, 9), *[st.integers(0, 3)] * 3, st.integers(0, 1)),
)
def test_in_a_random_world_nothing_is_lost_and_no_cap_is_passed(
    seed: int, requests: int, caps: dict[Scope, Cap], limits: RateLimits, weights: tuple[int, ...]
) -> None:
    """Random answers, refusals, failures and budgets: every request ends, or is handed back planned."""
    rng = chance(seed)
    scheduler = make_scheduler(caps, limits=limits, policy=RetryPolicy(failures=3, throttles=4))
    offer_randomly(scheduler, rng, requests)
    world = World(scheduler, rng, weights)
    world.run()
    left = scheduler.drain()
    fates = Counter([*world.fates, *ids(left)])
    assert fates == Counter(range(requests))
    stopped = {name for name, lane in scheduler.lanes.items() if lane.stopped}
    for ticket in left:
        assert ticket.state is State.PLANNED
        assert ticket.leased.lane in stopped or not scheduler.ledger.fits(ticket.budget, ticket.worst)
    assert all(account.reserved_nano == 0 for account in scheduler.ledger.accounts().values())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), limit=st.integers(30, 900))
def test_in_a_random_world_no_minute_holds_more_calls_than_the_limit_and_a_seconds_share(seed: int, limit: int) -> None:
    """Over every window of a minute, in every lane."""
    rng = chance(seed)
    scheduler = make_scheduler(limits=RateLimits(requests=limit, concurrency=200, adaptive=False))
    offer_randomly(scheduler, rng, 120)
    world = World(scheduler, rng, (8, 1, 1, 0, 0))
    world.run()
    for lane in LANES.values():
        times = [time for time, name in world.sent if name == lane]
        for begin in times:
            assert sum(begin <= time < begin + 60 for time in times) <= limit + max(1, limit / 60) + 1
