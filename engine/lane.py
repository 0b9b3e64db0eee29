"""One lane: the requests that share a provider account and a model, and when the next of them may go. Pure."""

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Final

import msgspec

from engine.ahead import Ahead
from engine.concurrency import Concurrency
from engine.ledger import Amount, Budget, Reservation, Scope
from engine.limits import Buckets, Cost, RateLimits
from engine.provider import RateHints
from engine.request import Request, Usage
from engine.retry import Tries
from engine.state import Event, State, advance

WINDOW: Final = 256


class LeasedCell(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cell that waits for a leased request's answer."""

    id: int
    stage: str
    coords: bytes


class Leased(msgspec.Struct, frozen=True, kw_only=True):
    """A planned request as the store hands it out.

    Attributes:
        lane: `provider/model`.
        stage, alias: whose budget pays.
        attempts: attempts made so far, over all runs.
        size, messages: UTF-8 bytes and number of messages of the prompt.
        key: the request's content hash.
    """

    id: int
    lane: str
    stage: str
    alias: str
    request: Request
    cells: tuple[LeasedCell, ...]
    attempts: int
    tries: Tries
    size: int
    messages: int
    key: bytes = b""


class Ticket:
    """A leased request on its way through this process; `ahead` while its lane has no room for its call yet."""

    __slots__ = ("ahead", "attempt", "budget", "cost", "leased", "reservation", "state", "tries", "worst")

    def __init__(self, leased: Leased, cost: Cost, worst: Amount, budget: Budget) -> None:
        self.leased = leased
        self.ahead = False
        self.attempt = leased.attempts + 1
        self.cost = cost
        self.worst = worst
        self.budget = budget
        self.tries = leased.tries
        self.state = State.PLANNED
        self.reservation: Reservation | None = None

    def advance(self, event: Event) -> None:
        """Move along the transition table."""
        self.state = advance(self.state, event)


class LaneSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane looks like at one instant."""

    name: str
    queued: int
    in_flight: int
    concurrency: int
    sent: int
    throttled: int
    stopped: str
    paused_until: float


class Lane:
    """A window of requests, the limits that apply to them, and the calls in flight."""

    def __init__(self, name: str, limits: RateLimits, now: float) -> None:
        self.name = name
        self.stopped = ""
        self.sent = 0
        self.throttled = 0
        self.prepared = 0
        self.withheld: dict[tuple[Scope, ...], deque[Ticket]] = {}
        self._buckets = Buckets(limits, now)
        self._concurrency = Concurrency(limits)
        self._ahead = Ahead(now)
        self._written: deque[Ticket] = deque()
        self._queue: deque[Ticket] = deque()
        self._later: list[tuple[float, int, Ticket]] = []
        self._tie = count()

    def offer(self, ticket: Ticket) -> None:
        """Queue a request."""
        self._queue.append(ticket)

    def offer_at(self, ticket: Ticket, time: float) -> None:
        """Queue a request that may not go before `time`."""
        heapq.heappush(self._later, (time, next(self._tie), ticket))

    @property
    def counts_days(self) -> bool:
        """Whether calls of the last 24 hours count, those of earlier runs too."""
        return self._buckets.counts_days

    def remember_day(self, ago: Iterable[tuple[float, int]], now: float) -> None:
        """Note the calls of earlier runs, as (seconds ago, calls), the oldest first."""
        self._buckets.remember_day((now - seconds, calls) for seconds, calls in ago)

    def wanted(self) -> int:
        """Return how many more requests the window has room for."""
        return 0 if self.stopped else max(0, self._room() - len(self._queue) - len(self._later))

    def hungry(self) -> bool:
        """Say whether it is time to lease: the window is less than half full."""
        return 2 * (len(self._queue) + len(self._later)) < self._room()

    def head(self, now: float) -> Ticket | None:
        """Return the next request in line, if any; not yet admitted."""
        while self._later and self._later[0][0] <= now:
            self._queue.append(heapq.heappop(self._later)[2])
        return self._queue[0] if self._queue else None

    def ready_at(self, ticket: Ticket, now: float) -> float | None:
        """Return when `ticket` may go; None when only a call's end can tell."""
        if self.stopped or not self._concurrency.free():
            return None
        return max(now, self._concurrency.paused_until, self._buckets.ready_at(ticket.cost, now))

    def room_ahead(self) -> bool:
        """Say whether an attempt may be made durable before there is room for its call."""
        return not self.stopped and self.prepared < self._ahead.most(self._concurrency.limit)

    def next_later(self) -> float | None:
        """Return when the next postponed request comes back into line."""
        return self._later[0][0] if self._later and not self.stopped else None

    def withhold(self, ticket: Ticket) -> None:
        """Set aside a request that a budget refuses, in line behind those that the same budgets refuse."""
        self.withheld.setdefault(ticket.budget.scopes, deque()).append(ticket)

    def withheld_heads(self) -> list[Ticket]:
        """Return the first withheld request of every set of budgets."""
        return [group[0] for group in self.withheld.values()]

    def pop(self, ticket: Ticket) -> None:
        """Take a head out of its line, the queue's or a withheld one."""
        group = self.withheld.get(ticket.budget.scopes)
        if group is None or group[0] is not ticket:
            self._queue.popleft()
            return
        group.popleft()
        if not group:
            del self.withheld[ticket.budget.scopes]

    def admit(self, ticket: Ticket, now: float) -> None:
        """Charge the limits for a call that goes now."""
        self._buckets.take(ticket.cost, now)
        self._concurrency.start()
        self.sent += 1

    def prepare(self, ticket: Ticket) -> None:
        """Count a request whose attempt is made durable although there is no room for its call yet."""
        ticket.ahead = True
        self.prepared += 1

    def committed(self, ticket: Ticket, seconds: float) -> None:
        """Note that an attempt is on disk, and how long that took; one that is ahead waits for room from now on."""
        self._ahead.committed(seconds)
        if ticket.ahead:
            self._written.append(ticket)

    def depart(self, now: float) -> list[Ticket]:
        """Admit and return the calls that waited for room and may go now, in their order."""
        departed: list[Ticket] = []
        while self._written:
            ready = self.ready_at(self._written[0], now)
            if ready is None or ready > now:
                break
            ticket = self._written.popleft()
            self._count_out(ticket)
            self.admit(ticket, now)
            departed.append(ticket)
        return departed

    def next_departure(self, now: float) -> float | None:
        """Return when the first call that waits for room may go; None when only a call's end can tell."""
        return self.ready_at(self._written[0], now) if self._written else None

    def recall(self) -> list[Ticket]:
        """Take out the calls that wait for room, which will not go in this run; each is still to be withdrawn."""
        recalled = list(self._written)
        self._written.clear()
        return recalled

    def settle(self, ticket: Ticket, usage: Usage, hints: RateHints | None, now: float) -> None:
        """Count an answered call out, correct the limits by what it used and learn from its headers."""
        self._ahead.ended(now)
        self._concurrency.succeed()
        actual = Cost(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        self._buckets.correct(ticket.cost, actual, now)
        if hints is not None:
            self._learn(hints, now)

    def throttle(self, now: float, retry_after: float | None, hints: RateHints | None = None) -> None:
        """Count out a call that was refused for rate, and learn from the refusal's headers."""
        self.throttled += 1
        self._ahead.ended(now)
        self._concurrency.throttle(now, retry_after)
        if hints is not None:
            self._learn(hints, now)

    def fail(self, now: float, retry_after: float | None) -> None:
        """Count out a call that failed."""
        self._ahead.ended(now)
        self._concurrency.fail(now, retry_after)

    def answer(self) -> None:
        """Count out a call whose request a working provider refused for its own sake."""
        self._concurrency.answer()

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Count out a call that never left and give back what it took of the limits."""
        if ticket.ahead:
            self._count_out(ticket)
            return
        self._concurrency.cancel()
        self._buckets.give_back(ticket.cost, now)
        self.sent -= 1

    def stop(self, reason: str) -> None:
        """Send nothing more in this run."""
        self.stopped = reason

    @property
    def in_flight(self) -> int:
        """Calls on the wire."""
        return self._concurrency.in_flight

    def idle(self) -> bool:
        """Say whether the lane neither holds nor awaits anything that could still go."""
        return not self._queue and not self._later and self.in_flight == 0 and not self.prepared

    def drain(self) -> list[Ticket]:
        """Take out every request that is not in flight."""
        withheld = [ticket for group in self.withheld.values() for ticket in group]
        tickets = [*self._queue, *(ticket for _, _, ticket in self._later), *withheld]
        self._queue.clear()
        self._later.clear()
        self.withheld.clear()
        return tickets

    def snapshot(self) -> LaneSnapshot:
        """Return what the lane looks like now."""
        return LaneSnapshot(
            name=self.name,
            queued=len(self._queue) + len(self._later) + sum(map(len, self.withheld.values())),
            in_flight=self.in_flight,
            concurrency=self._concurrency.limit,
            sent=self.sent,
            throttled=self.throttled,
            stopped=self.stopped,
            paused_until=self._concurrency.paused_until,
        )

    def _count_out(self, ticket: Ticket) -> None:
        ticket.ahead = False
        self.prepared -= 1

    def _room(self) -> int:
        return max(WINDOW, 2 * self._concurrency.limit)

    def _learn(self, hints: RateHints, now: float) -> None:
        self._learn_one("requests", hints.requests_limit, hints.requests_remaining, now)
        self._learn_one("input_tokens", hints.input_tokens_limit, hints.input_tokens_remaining, now)
        self._learn_one("output_tokens", hints.output_tokens_limit, hints.output_tokens_remaining, now)
        self._learn_one("tokens", hints.tokens_limit, hints.tokens_remaining, now)

    def _learn_one(self, dimension: str, limit: int | None, remaining: int | None, now: float) -> None:
        if limit is not None and limit > 0:
            self._buckets.learn(dimension, limit, now)
        if remaining is not None:
            self._buckets.lower_to(dimension, remaining, now)
