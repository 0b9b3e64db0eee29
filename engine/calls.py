"""One call from its admission to its end on disk: attempt, exchange, settlement or failure. Never retries by itself.

Attempts, exchanges and settlements take turns of their own. When a call ends, the next one whose attempt is on disk
leaves at once, in the same turn of the event loop and before the answer is read and stored: every turn between would be
one behind whatever came meanwhile, so that calls would leave, and be answered, in ever larger clumps.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Final

from engine.clock import Clock
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.lane import Ticket
from engine.ledger import ZERO, Amount
from engine.money import Price, cost_nano
from engine.progress import Progress
from engine.provider import WITHDRAWN, Provider, Reply
from engine.readings import Readings
from engine.retry import Chance, GiveUp, RetryAt, StopProvider
from engine.scheduler import Scheduler
from engine.state import Event, State
from engine.store import Store
from engine.telling import Telling

# A request withheld by a refusing disk is tried again after this many seconds.
REFUSED_PAUSE: Final = 0.5
# An adapter that fails on its own account so often without an answer in between is broken, not unlucky.
DEFECTS_MOST: Final = 10

Keep = Callable[[Coroutine[None, None, None]], object]


class Calls:
    """Carries out admissions. Whatever an answer or a failure turns out to be, it reaches the store in one commit."""

    def __init__(
        self, *, store: Store, sweep_id: int, run_id: int, scheduler: Scheduler, providers: Mapping[str, Provider],
        prices: Mapping[str, Price], readings: Readings, clock: Clock, rng: Chance, progress: Progress, tell: Telling,
        keep: Keep, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """`keep` runs something as a task of the run.

        `wake` is called when a call has ended on the wire, which the disk may learn later than the next can go.
        """
        self.held: set[int] = set()
        self.draining = False
        self.on_wire: set[asyncio.Task[None]] = set()
        self._store, self._sweep_id, self._run_id = store, sweep_id, run_id
        self._scheduler, self._providers, self._prices = scheduler, providers, prices
        self._readings, self._clock, self._rng, self._progress = readings, clock, rng, progress
        self._tell, self._keep, self._wake = tell, keep, wake
        self._defects: Counter[str] = Counter()

    async def carry_out(self, ticket: Ticket) -> None:
        """Make an admitted request's attempt durable; send it then, or leave it to `depart` where it is ahead."""
        if self.draining:
            self._postpone(ticket)
            return
        began = self._clock.now()
        try:
            went = await self._store.send(ticket, self._run_id, self._clock.wall_ms())
        except StoreError:
            self._postpone(ticket)
            return
        if not went:
            self._scheduler.withdraw(ticket, self._clock.now())
            self.held.discard(ticket.leased.id)
            return
        ticket.advance(Event.SEND)
        if self.draining:
            await self._unsend(ticket)
            return
        now = self._clock.now()
        self._scheduler.committed(ticket, now - began)
        if ticket.ahead:
            self.depart(self._scheduler.departures(ticket, now))
            self._wake()
            return
        await self._carry(ticket)

    def depart(self, tickets: Iterable[Ticket]) -> None:
        """Send requests whose attempts are on disk and which have been let go by their lane."""
        for ticket in tickets:
            self._keep(self._carry(ticket))

    def take_back(self, tickets: Iterable[Ticket]) -> None:
        """Undo attempts that are on disk and will not be sent in this run."""
        for ticket in tickets:
            self._keep(self._unsend(ticket))

    def drain(self) -> None:
        """Send nothing more, what is on disk for it included."""
        self.draining = True
        self.take_back(self._scheduler.recall())

    def hang_up(self) -> None:
        """Cancel the calls on the wire; their attempts stay open on disk and count as possibly billed."""
        for task in self.on_wire:
            task.cancel()

    def _postpone(self, ticket: Ticket) -> None:
        now = self._clock.now()
        self._scheduler.withdraw(ticket, now)
        self._scheduler.postpone(ticket, now + REFUSED_PAUSE)

    async def _unsend(self, ticket: Ticket) -> None:
        """Undo an attempt whose request was stopped between the disk and the wire."""
        self._scheduler.unsend(ticket, self._clock.now())
        error = ProviderError(ErrorClass.TRANSIENT, "not sent: the run was stopped")
        await self._store.fail(ticket, error, state=State.PLANNED, keep=False, paid=ZERO, now_ms=self._clock.wall_ms())
        self.held.discard(ticket.leased.id)

    async def _carry(self, ticket: Ticket) -> None:
        """Send a request, and one after the other those for which there is room when the last has been answered."""
        following: Ticket | None = ticket
        while following is not None:
            if self.draining:
                await self._unsend(following)
                return
            following = await self._exchange(following)

    async def _exchange(self, ticket: Ticket) -> Ticket | None:
        """Send a request and see to what comes of it; return one that is to leave now in its place."""
        started = self._clock.now()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are inside one
        self.on_wire.add(task)
        try:
            outcome = await self._complete(ticket)
        except asyncio.CancelledError:
            if task.cancelling():
                return None
            outcome = ProviderError(ErrorClass.TRANSIENT, "the call was cancelled by its adapter", maybe_billed=True)
        finally:
            self.on_wire.discard(task)
        if isinstance(outcome, ProviderError):
            await self._failed(ticket, outcome)
            return None
        now = self._clock.now()
        settling = self._settled(ticket, outcome, self._account(ticket, outcome, now), round((now - started) * 1000))
        leaving = self._scheduler.departures(ticket, now)
        self._wake()
        if not leaving:
            await settling
            return None
        self._keep(settling)
        self.depart(leaving[1:])
        return leaving[0]

    async def _complete(self, ticket: Ticket) -> Reply | ProviderError:
        name = ticket.leased.request.provider
        try:
            reply = await self._providers[name].complete(ticket.leased.request)
        except ProviderError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect in an adapter fails one request, not the run
            self._defects[name] += 1
            text = f"defect in the adapter of {name}: {type(error).__name__}: {error}"
            self._tell.defect(text, request=ticket.leased.id)
            broken = self._defects[name] >= DEFECTS_MOST
            kind = ErrorClass.QUOTA if broken else ErrorClass.BAD_REQUEST
            return ProviderError(kind, text, maybe_billed=True)
        self._defects[name] = 0
        return reply

    def _account(self, ticket: Ticket, reply: Reply, now: float) -> Amount:
        """Tell limits and ledger of an answered call; return what it cost."""
        usage = reply.completion.usage
        tokens = max(0, usage.input_tokens + usage.output_tokens)
        paid = Amount(cost_nano(self._prices[ticket.leased.alias], usage), tokens)
        self._tell.budget(self._scheduler.settle(ticket, usage, paid, reply.hints, now))
        return paid

    async def _settled(self, ticket: Ticket, reply: Reply, paid: Amount, latency_ms: int) -> None:
        """Read an answer and store it with what follows from it."""
        completion, cells = reply.completion, ticket.leased.cells
        reads = [self._readings.read(cell, completion) for cell in cells]
        now_ms = self._clock.wall_ms()
        for last in (False, True):
            pairs = [(cell.id, read) for cell, read in zip(cells, reads, strict=True)]
            try:
                await self._store.settle(
                    ticket, completion, pairs,
                    sweep_id=self._sweep_id, paid=paid, latency_ms=latency_ms, now_ms=now_ms,
                )  # fmt: skip
                break
            except StoreError:
                raise
            except Exception as error:
                if last:
                    raise
                # The database or the codec would not take a reading: keep what was paid for, and say so.
                reads = [self._readings.defective(cell, error) for cell in cells]
        self.held.discard(ticket.leased.id)
        self._progress.settled(completion.usage, paid.nano)
        for cell, read in zip(cells, reads, strict=True):
            self._readings.count(cell, read)

    async def _failed(self, ticket: Ticket, error: ProviderError) -> None:
        if error.code == WITHDRAWN:
            await self._unsend(ticket)
            return
        decision, paid, warnings = self._scheduler.fail(ticket, error, self._clock.now(), self._rng)
        self._wake()
        failed = isinstance(decision, GiveUp)
        await self._store.fail(
            ticket,
            error,
            state=State.FAILED if failed else State.PLANNED,
            keep=isinstance(decision, RetryAt),
            paid=paid,
            now_ms=self._clock.wall_ms(),
        )
        self._progress.errors[error.kind.value] += 1
        self._progress.spent_nano += paid.nano
        self._tell.budget(warnings)
        match decision:
            case RetryAt(time):
                self._tell.tried_again(ticket.leased.request.provider, error)
                self._scheduler.retry(ticket, time)
                return
            case GiveUp():
                for cell in ticket.leased.cells:
                    self._progress.failed(cell.stage, 1)
                self._tell.failed(ticket.leased, error)
            case StopProvider():
                self._tell.stopped(ticket.leased.request.provider, error)
        self.held.discard(ticket.leased.id)
