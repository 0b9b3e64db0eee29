"""One call from its admission to its end on disk: attempt, exchange, settlement or failure. Never retries by itself."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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


class Calls:
    """Carries out admissions. Whatever an answer or a failure turns out to be, it reaches the store in one commit."""

    def __init__(
        self, *, store: Store, sweep_id: int, run_id: int, scheduler: Scheduler, providers: Mapping[str, Provider],
        prices: Mapping[str, Price], readings: Readings, clock: Clock, rng: Chance, progress: Progress, tell: Telling,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """`wake` is called when a call has ended on the wire, which the disk may learn later than the next can go."""
        self.held: set[int] = set()
        self.draining = False
        self.on_wire: set[asyncio.Task[None]] = set()
        self._store, self._sweep_id, self._run_id = store, sweep_id, run_id
        self._scheduler, self._providers, self._prices = scheduler, providers, prices
        self._readings, self._clock, self._rng, self._progress = readings, clock, rng, progress
        self._tell, self._wake = tell, wake
        self._defects: Counter[str] = Counter()
        self._turns: dict[Ticket, asyncio.Future[None]] = {}

    async def carry_out(self, ticket: Ticket) -> None:
        """Send an admitted request and store what came of it."""
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
        self._scheduler.committed(ticket, self._clock.now() - began)
        if ticket.ahead and not self.draining:
            await self._turn(ticket)
        if ticket.ahead or self.draining:
            await self._unsend(ticket)
            return
        await self._exchange(ticket)

    def let_go(self, tickets: Iterable[Ticket]) -> None:
        """Let requests go on whose attempts are on disk: to the provider, or back, as their lane has decided."""
        for ticket in tickets:
            turn = self._turns.get(ticket)
            if turn is not None and not turn.done():
                turn.set_result(None)

    def drain(self) -> None:
        """Send nothing more, what is on disk for it included."""
        self.draining = True
        self.let_go(list(self._turns))

    def hang_up(self) -> None:
        """Cancel the calls on the wire; their attempts stay open on disk and count as possibly billed."""
        for task in self.on_wire:
            task.cancel()

    async def _turn(self, ticket: Ticket) -> None:
        """Wait until there is room for a call, or none will be made."""
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        self.let_go(self._scheduler.departures(ticket, self._clock.now()))
        self._wake()
        try:
            await turn
        finally:
            del self._turns[ticket]

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

    async def _exchange(self, ticket: Ticket) -> None:
        started = self._clock.now()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are inside one
        self.on_wire.add(task)
        try:
            outcome = await self._complete(ticket)
        except asyncio.CancelledError:
            if task.cancelling():
                return
            outcome = ProviderError(ErrorClass.TRANSIENT, "the call was cancelled by its adapter", maybe_billed=True)
        finally:
            self.on_wire.discard(task)
        if isinstance(outcome, ProviderError):
            await self._failed(ticket, outcome)
        else:
            await self._settled(ticket, outcome, round((self._clock.now() - started) * 1000))

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

    async def _settled(self, ticket: Ticket, reply: Reply, latency_ms: int) -> None:
        completion, usage = reply.completion, reply.completion.usage
        tokens = max(0, usage.input_tokens + usage.output_tokens)
        paid = Amount(cost_nano(self._prices[ticket.leased.alias], usage), tokens)
        now = self._clock.now()
        warnings = self._scheduler.settle(ticket, usage, paid, reply.hints, now)
        self.let_go(self._scheduler.departures(ticket, now))
        self._wake()
        cells = ticket.leased.cells
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
        self._progress.settled(usage, paid.nano)
        for cell, read in zip(cells, reads, strict=True):
            self._readings.count(cell, read)
        self._tell.budget(warnings)

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
