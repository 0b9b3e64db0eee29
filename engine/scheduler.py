"""Decides which requests go now and when to look again. Pure: the run loop acts on what it returns.

A request goes when its lane has a free slot and its rate limits allow it, and when the ledger could reserve its worst
case in every scope. One that a budget refuses is withheld: it goes when money comes back from calls in flight, and
stays planned when none does.
"""

from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

from engine.errors import BudgetExhausted, ErrorClass, ProviderError
from engine.lane import Lane, Leased, Ticket
from engine.ledger import Amount, BudgetWarning, Ledger, Scope
from engine.limits import Cost, RateLimits
from engine.money import Price, worst_cost_nano
from engine.provider import RateHints
from engine.request import Usage, input_token_bound, input_token_estimate
from engine.retry import Decision, RetryAt, RetryPolicy, StopProvider, decide
from engine.state import Event

TYPICAL_OUTPUT_SHARE = 0.5


class Route(NamedTuple):
    """How the requests of one alias are sent and paid for."""

    lane: str
    provider: str
    price: Price
    limits: RateLimits


class Schedule(NamedTuple):
    """What to send now, and when to ask again if nothing happens before; None means only an event can help."""

    sends: list[Ticket]
    wake_at: float | None


class Scheduler:
    """Lanes and a ledger under one roof."""

    def __init__(
        self, *, sweep: str, routes: Mapping[str, Route], ledger: Ledger, policy: RetryPolicy, now: float
    ) -> None:
        """`routes` by model alias; aliases that share a provider account and a model share a lane."""
        self.ledger = ledger
        self.lanes: dict[str, Lane] = {}
        self._routes = routes
        self._policy = policy
        self._sweep = Scope("sweep", sweep)
        self._provider_lanes: dict[str, list[Lane]] = {}
        for route in routes.values():
            if route.lane not in self.lanes:
                lane = self.lanes[route.lane] = Lane(route.lane, route.limits, now)
                self._provider_lanes.setdefault(route.provider, []).append(lane)

    def offer(self, leased: Iterable[Leased]) -> None:
        """Take leased requests into their lanes' windows."""
        for each in leased:
            self.lanes[each.lane].offer(self._ticket(each))

    def schedule(self, now: float) -> Schedule:
        """Admit everything that may go at `now`."""
        sends: list[Ticket] = []
        wakes: list[float] = []
        for lane in self.lanes.values():
            if lane.stopped:
                continue
            wake = self._admit(lane, now, sends)
            wakes.extend(time for time in (wake, lane.next_later()) if time is not None)
        return Schedule(sends, min(wakes, default=None))

    def settle(
        self, ticket: Ticket, usage: Usage, paid: Amount, hints: RateHints | None, now: float
    ) -> list[BudgetWarning]:
        """Account for an answered call; return the budget warnings that it caused."""
        ticket.advance(Event.COMPLETE)
        self.lanes[ticket.leased.lane].settle(ticket, usage, hints, now)
        return self._commit(ticket, paid)

    def fail(self, ticket: Ticket, error: ProviderError, now: float, rng: Random) -> Decision:
        """Account for a failed call and say what becomes of its request."""
        lane = self.lanes[ticket.leased.lane]
        ticket.tries = ticket.tries.after(error.kind)
        decision = decide(error, ticket.tries, self._policy, now, rng)
        match error.kind:
            case ErrorClass.RATE:
                lane.throttle(now, error.retry_after)
            case ErrorClass.TRANSIENT:
                lane.fail(now, error.retry_after)
            case _:
                lane.cancel()
        if error.maybe_billed:
            self._commit(ticket, ticket.worst)
        else:
            self._release(ticket)
        ticket.advance(Event.RETRY if isinstance(decision, RetryAt | StopProvider) else Event.FAIL)
        if isinstance(decision, StopProvider):
            self._stop_provider(ticket, decision.reason)
        return decision

    def retry(self, ticket: Ticket, at: float) -> None:
        """Put a failed request back in line, for a new attempt, once its failure is on disk."""
        ticket.attempt += 1
        self.lanes[ticket.leased.lane].offer_at(ticket, at)

    def withdraw(self, ticket: Ticket) -> None:
        """Take back an admission whose request was not sent."""
        ticket.advance(Event.WITHDRAW)
        self.lanes[ticket.leased.lane].cancel()
        self._release(ticket)

    def postpone(self, ticket: Ticket, at: float) -> None:
        """Put a withdrawn request back in line for the same attempt."""
        self.lanes[ticket.leased.lane].offer_at(ticket, at)

    def idle(self) -> bool:
        """Say whether nothing is in flight and nothing could go; withheld requests and stopped lanes do not count."""
        return all(lane.in_flight == 0 and (lane.idle() or bool(lane.stopped)) for lane in self.lanes.values())

    def wanted(self, lane: Lane) -> int:
        """Return how many more requests to lease for `lane`; none once a cap other than a stage's withholds some."""
        starved = lane.withheld and len(self.exhausted_stages(lane)) == 0
        return 0 if starved else lane.wanted()

    def exhausted_stages(self, lane: Lane) -> frozenset[str]:
        """Return the stages whose own cap withholds requests of this lane, so that other stages can go on."""
        accounts = self.ledger.accounts()
        found = set()
        for ticket in lane.withheld:
            scope = Scope("stage", ticket.leased.stage)
            if (account := accounts.get(scope)) is not None and account.room(ticket.worst):
                found.add(ticket.leased.stage)
        return frozenset(found)

    def in_flight(self) -> int:
        """Return the number of calls on the wire over all lanes."""
        return sum(lane.in_flight for lane in self.lanes.values())

    def drain(self) -> list[Ticket]:
        """Take out every request that is not in flight."""
        return [ticket for lane in self.lanes.values() for ticket in lane.drain()]

    def _admit(self, lane: Lane, now: float, sends: list[Ticket]) -> float | None:
        """Admit what may go from one lane; return when its limits allow the next."""
        while lane.withheld:
            ticket = lane.withheld[0]
            ready = lane.ready_at(ticket, now)
            if ready is None or ready > now or not self._reserve(ticket):
                break
            self._go(lane, lane.withheld.popleft(), now, sends)
        while (ticket_or_none := lane.head(now)) is not None:
            ticket = ticket_or_none
            ready = lane.ready_at(ticket, now)
            if ready is None:
                return None
            if ready > now:
                return ready
            lane.pop()
            if self._reserve(ticket):
                self._go(lane, ticket, now, sends)
            else:
                lane.withheld.append(ticket)
        return None

    def _go(self, lane: Lane, ticket: Ticket, now: float, sends: list[Ticket]) -> None:
        ticket.advance(Event.ADMIT)
        lane.admit(ticket, now)
        sends.append(ticket)

    def _reserve(self, ticket: Ticket) -> bool:
        try:
            ticket.reservation = self.ledger.reserve(ticket.scopes, ticket.worst)
        except BudgetExhausted:
            return False
        return True

    def _commit(self, ticket: Ticket, paid: Amount) -> list[BudgetWarning]:
        reservation, ticket.reservation = ticket.reservation, None
        return self.ledger.commit(reservation, paid) if reservation is not None else []

    def _release(self, ticket: Ticket) -> None:
        reservation, ticket.reservation = ticket.reservation, None
        if reservation is not None:
            self.ledger.release(reservation)

    def _stop_provider(self, ticket: Ticket, reason: str) -> None:
        provider = self._routes[ticket.leased.alias].provider
        for lane in self._provider_lanes[provider]:
            lane.stop(reason)

    def _ticket(self, leased: Leased) -> Ticket:
        route = self._routes[leased.alias]
        allowance = leased.request.decoding.max_tokens
        bound = input_token_bound(leased.size, leased.messages)
        cost = Cost(
            input_tokens=input_token_estimate(leased.size, leased.messages),
            output_tokens=int(allowance * TYPICAL_OUTPUT_SHARE),
        )
        worst = Amount(worst_cost_nano(route.price, bound, allowance), bound + allowance)
        by_kind = {"provider": route.provider, "model": leased.alias, "stage": leased.stage}
        scopes = (self._sweep, *(Scope(kind, name) for kind, name in by_kind.items()))
        return Ticket(leased, cost, worst, scopes)
