"""Decides which requests go now and when to look again. Pure: the run loop acts on what it returns.

A request goes when its lane has a free slot and its rate limits allow it, and when the ledger could reserve its worst
case in every scope. Where calls end fast, its attempt is made durable before there is a free slot. One that a budget
refuses is withheld: it goes when money comes back from calls in flight, and stays planned when none does.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from engine.errors import BudgetExhausted, ErrorClass, ProviderError
from engine.lane import Lane, Leased, Ticket
from engine.ledger import ZERO, Amount, Budget, BudgetWarning, Ledger, Scope
from engine.limits import Cost, RateLimits
from engine.money import Price, worst_cost_nano
from engine.provider import RateHints
from engine.request import Usage, input_token_bound, input_token_estimate
from engine.retry import Chance, Decision, RetryAt, RetryPolicy, StopProvider, decide
from engine.state import Event

TYPICAL_OUTPUT_SHARE: Final = 0.5


class Route(NamedTuple):
    """How the requests of one alias are sent and paid for."""

    lane: str
    provider: str
    price: Price
    limits: RateLimits


class Schedule(NamedTuple):
    """What to do now, and when to ask again if nothing happens before.

    Attributes:
        sends: requests whose attempts are to be made durable.
        departs: requests with durable attempts for which there is room now.
        recalled: such requests which will not be sent in this run.
        wake_at: None means only an event can help.
    """

    sends: list[Ticket]
    departs: list[Ticket]
    recalled: list[Ticket]
    wake_at: float | None


class Failure(NamedTuple):
    """What becomes of a failed attempt's request, what the attempt costs, and the budget warnings that this caused."""

    decision: Decision
    paid: Amount
    warnings: list[BudgetWarning]


class Exhausted(NamedTuple):
    """The stages and model aliases whose own caps withhold requests of a lane; the others can go on."""

    stages: frozenset[str]
    aliases: frozenset[str]

    def any(self) -> bool:
        """Say whether anything is exhausted."""
        return bool(self.stages or self.aliases)

    def within(self, other: "Exhausted") -> bool:
        """Say whether everything exhausted here is so in `other` too."""
        return self.stages <= other.stages and self.aliases <= other.aliases


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
        self._budgets: dict[tuple[str, str], Budget] = {}
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
        sends, departs, recalled = list[Ticket](), list[Ticket](), list[Ticket]()
        wakes: list[float] = []
        for lane in self.lanes.values():
            if lane.stopped:
                recalled += lane.recall()
                continue
            departs += lane.depart(now)
            wake = lane.next_departure(now)
            if wake is None:
                wake = self._admit(lane, now, sends)
            wakes.extend(time for time in (wake, lane.next_later()) if time is not None)
        return Schedule(sends, departs, recalled, min(wakes, default=None))

    def committed(self, ticket: Ticket, seconds: float) -> None:
        """Note that a request's attempt is on disk, and how long that took."""
        self.lanes[ticket.leased.lane].committed(ticket, seconds)

    def departures(self, ticket: Ticket, now: float) -> list[Ticket]:
        """Return the requests with durable attempts for which there is room in this one's lane now."""
        return self.lanes[ticket.leased.lane].depart(now)

    def settle(
        self, ticket: Ticket, usage: Usage, paid: Amount, hints: RateHints | None, now: float
    ) -> list[BudgetWarning]:
        """Account for an answered call; return the budget warnings that it caused."""
        ticket.advance(Event.COMPLETE)
        self.lanes[ticket.leased.lane].settle(ticket, usage, hints, now)
        return self._commit(ticket, paid)

    def fail(self, ticket: Ticket, error: ProviderError, now: float, rng: Chance) -> Failure:
        """Account for a failed call and say what becomes of its request.

        An attempt that may have been billed costs its reservation, unless its model charges nothing.
        """
        lane = self.lanes[ticket.leased.lane]
        ticket.tries = ticket.tries.after(error.kind)
        decision = decide(error, ticket.tries, self._policy, now, rng)
        match error.kind:
            case ErrorClass.RATE:
                lane.throttle(now, error.retry_after, error.hints)
            case ErrorClass.TRANSIENT:
                lane.fail(now, error.retry_after)
            case _:
                lane.answer()
        paid = ticket.worst if error.maybe_billed and ticket.worst.nano else ZERO
        warnings = self._commit(ticket, paid)
        ticket.advance(Event.RETRY if isinstance(decision, RetryAt | StopProvider) else Event.FAIL)
        if isinstance(decision, StopProvider):
            self.stop_provider(self._routes[ticket.leased.alias].provider, decision.reason)
        return Failure(decision, paid, warnings)

    def retry(self, ticket: Ticket, at: float) -> None:
        """Put a failed request back in line, for a new attempt, once its failure is on disk."""
        ticket.attempt += 1
        self.lanes[ticket.leased.lane].offer_at(ticket, at)

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """Take back an admission whose request was not sent."""
        ticket.advance(Event.WITHDRAW)
        self.lanes[ticket.leased.lane].withdraw(ticket, now)
        self._release(ticket)

    def unsend(self, ticket: Ticket, now: float) -> None:
        """Take back an attempt that is on disk but did not leave; its request is planned again."""
        ticket.advance(Event.RETRY)
        self.lanes[ticket.leased.lane].withdraw(ticket, now)
        self._release(ticket)

    def postpone(self, ticket: Ticket, at: float) -> None:
        """Put a withdrawn request back in line for the same attempt."""
        self.lanes[ticket.leased.lane].offer_at(ticket, at)

    def idle(self) -> bool:
        """Say whether nothing is in flight or could go; stopped lanes and what no budget allows do not count."""
        return all(self._idle(lane) for lane in self.lanes.values())

    def wanted(self, lane: Lane) -> int:
        """Return how many more requests to lease for `lane`; none while a cap on the whole lane withholds some."""
        starved = any(not self._by_own_cap(ticket) for ticket in lane.withheld_heads())
        return 0 if starved else lane.wanted()

    def exhausted(self, lane: Lane) -> Exhausted:
        """Return what a lease for this lane must pass over, so that other stages and models can go on."""
        stages, aliases = set(), set()
        for ticket in lane.withheld_heads():
            if self._refuses(Scope("stage", ticket.leased.stage), ticket):
                stages.add(ticket.leased.stage)
            elif self._refuses(Scope("model", ticket.leased.alias), ticket):
                aliases.add(ticket.leased.alias)
        return Exhausted(frozenset(stages), frozenset(aliases))

    def withheld(self) -> list[tuple[Budget, Amount]]:
        """Return what the first of all requests that a budget withholds would take of which budget."""
        heads = (ticket for lane in self.lanes.values() for ticket in lane.withheld_heads())
        return [(ticket.budget, ticket.worst) for ticket in heads]

    def all_aliases(self) -> frozenset[str]:
        """Return the model aliases of this run."""
        return frozenset(self._routes)

    def aliases(self, lane: Lane) -> frozenset[str]:
        """Return the model aliases of this run that use a lane."""
        return frozenset(alias for alias, route in self._routes.items() if route.lane == lane.name)

    def in_flight(self) -> int:
        """Return the number of calls on the wire over all lanes."""
        return sum(lane.in_flight for lane in self.lanes.values())

    def recall(self) -> list[Ticket]:
        """Take out every request with a durable attempt that waits for room; each is still to be taken back."""
        return [ticket for lane in self.lanes.values() for ticket in lane.recall()]

    def drain(self) -> list[Ticket]:
        """Take out every request that is not in flight."""
        return [ticket for lane in self.lanes.values() for ticket in lane.drain()]

    def _admit(self, lane: Lane, now: float, sends: list[Ticket]) -> float | None:
        """Admit what may go from one lane; return when its limits allow the next."""
        while True:
            # The head is asked first in any case: it brings postponed requests whose time has come back into line.
            head = lane.head(now)
            ticket = self._affordable(lane) or head
            if ticket is None:
                return None
            ready = lane.ready_at(ticket, now)
            ahead = ready is None and lane.room_ahead()
            if not ahead and (ready is None or ready > now):
                return ready
            lane.pop(ticket)
            if not self._reserve(ticket):
                lane.withhold(ticket)
                continue
            ticket.advance(Event.ADMIT)
            if ahead:
                lane.prepare(ticket)
            else:
                lane.admit(ticket, now)
            sends.append(ticket)

    def _affordable(self, lane: Lane) -> Ticket | None:
        """Return a withheld request for which money has come back."""
        if lane.withheld:
            for ticket in lane.withheld_heads():
                if self.ledger.fits(ticket.budget, ticket.worst):
                    return ticket
        return None

    def _idle(self, lane: Lane) -> bool:
        if lane.in_flight or lane.prepared:
            return False
        return bool(lane.stopped) or (lane.idle() and self._affordable(lane) is None)

    def _refuses(self, scope: Scope, ticket: Ticket) -> bool:
        account = self.ledger.accounts().get(scope)
        return account is not None and account.room(ticket.worst) is not None

    def _by_own_cap(self, ticket: Ticket) -> bool:
        return self._refuses(Scope("stage", ticket.leased.stage), ticket) or self._refuses(
            Scope("model", ticket.leased.alias), ticket
        )

    def _reserve(self, ticket: Ticket) -> bool:
        try:
            ticket.reservation = self.ledger.reserve(ticket.budget, ticket.worst)
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

    def stop_provider(self, provider: str, reason: str) -> None:
        """Send nothing more to a provider in this run."""
        for lane in self._provider_lanes.get(provider, ()):
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
        return Ticket(leased, cost, worst, self.budget(leased.alias, leased.stage))

    def budget(self, alias: str, stage: str) -> Budget:
        """Return who pays for requests of a model and a stage."""
        budget = self._budgets.get((alias, stage))
        if budget is None:
            provider = self._routes[alias].provider
            scopes = (self._sweep, Scope("provider", provider), Scope("model", alias), Scope("stage", stage))
            budget = self._budgets[alias, stage] = self.ledger.budget(scopes)
        return budget
