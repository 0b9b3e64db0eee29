"""The run loop: plans, leases, sends, settles and reads until nothing is left. It acts; the scheduler decides.

The order of every call: lease from the store, admission by the scheduler, attempt on disk, the call itself, then in one
commit the completion, its cost, its readings and what follows from them. Nothing here retries or waits by itself.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Final

from engine.cell import Cell, Read, Reader, Reading, ReadingStatus
from engine.clock import Clock
from engine.errors import ProviderError, StoreError
from engine.events import Level, Listener, Notice, Outcome, Snapshot
from engine.lane import Lane, LeasedCell, Ticket
from engine.ledger import Amount, BudgetWarning
from engine.money import Price, cost_nano
from engine.progress import Progress
from engine.provider import Provider, Reply
from engine.request import Completion
from engine.retry import GiveUp, RetryAt
from engine.scheduler import Scheduler
from engine.state import Event, State
from engine.store import LEASE_MS, Store, Sweep
from engine.writes import lane_name

PLAN_CHUNK: Final = 200
UNREAD_CHUNK: Final = 500
LEASE_MOST: Final = 512
REFUSED_PATIENCE: Final = 60.0
REFUSED_PAUSE: Final = 0.5


class Runner:
    """One run of one sweep."""

    def __init__(
        self,
        *,
        store: Store,
        sweep: Sweep,
        run_id: int,
        scheduler: Scheduler,
        providers: Mapping[str, Provider],
        prices: Mapping[str, Price],
        reader: Reader,
        clock: Clock,
        rng: Random,
        progress: Progress,
        listen: Listener,
    ) -> None:
        """`providers` by provider name, `prices` by model alias."""
        self._store, self._sweep, self._run_id = store, sweep, run_id
        self._scheduler, self._providers, self._prices = scheduler, providers, prices
        self._reader, self._clock, self._rng = reader, clock, rng
        self._progress, self._listen = progress, listen
        self._wake = asyncio.Event()
        self._started = clock.now()
        self._planning = False
        self._draining = False
        self._more = set(scheduler.lanes)
        self._leasing: set[str] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._on_wire: set[asyncio.Task[None]] = set()
        self._held: dict[int, Ticket] = {}
        self._refused_since: float | None = None

    async def run(self, roots: Iterable[Cell]) -> Outcome:
        """Plan `roots`, then send and read until nothing is left or nothing more may be sent."""
        background = [asyncio.create_task(self._plan(roots)), asyncio.create_task(self._renew_leases())]
        self._planning = True
        try:
            await self._read_unread()
            await self._work(background[0])
            return self._outcome()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, *self._calls, return_exceptions=True)
            await self._release_rest()

    def drain(self) -> None:
        """Send nothing more; let the calls on the wire finish and be stored."""
        self._draining = True
        self._wake.set()

    def abort(self) -> None:
        """Drain, and hang up on the calls on the wire; they count as possibly billed."""
        self.drain()
        for task in self._on_wire:
            task.cancel()

    def snapshot(self) -> Snapshot:
        """Return what the run looks like now; free of side effects."""
        progress = self._progress
        return Snapshot(
            stages=progress.stages(),
            lanes=tuple(lane.snapshot() for lane in self._scheduler.lanes.values()),
            accounts=self._scheduler.ledger.accounts(),
            errors=dict(progress.errors),
            calls=progress.calls,
            input_tokens=progress.input_tokens,
            output_tokens=progress.output_tokens,
            spent_nano=progress.spent_nano,
            started=self._started,
            now=self._clock.now(),
            planning=self._planning,
            draining=self._draining,
            refused=str(self._store.refused or ""),
        )

    # ----- the loop

    async def _work(self, planning: asyncio.Task[None]) -> None:
        """Loop until nothing is left; cells that joined an answer late are read at the end and may bring more work."""
        while True:
            while not self._finished():
                await self._step(planning)
            if self._draining or self._store.refused is not None or not await self._read_unread():
                return

    async def _step(self, planning: asyncio.Task[None]) -> None:
        if planning.done() and not planning.cancelled() and (error := planning.exception()):
            raise error
        wake_at: float | None = None
        if self._store.refused is not None:
            wake_at = self._clock.now() + REFUSED_PAUSE
        elif not self._draining:
            self._refill()
            schedule = self._scheduler.schedule(self._clock.now())
            wake_at = schedule.wake_at
            for ticket in schedule.sends:
                self._start(ticket)
        if not self._finished():
            await self._wait(wake_at)

    async def _wait(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0.0, until - self._clock.now()), self._wake.set) if until is not None else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _finished(self) -> bool:
        if self._calls or self._leasing:
            return False
        if self._draining or self._given_up_on_disk():
            return True
        return not self._planning and not self._refillable() and self._scheduler.idle()

    def _given_up_on_disk(self) -> bool:
        if self._store.refused is None:
            self._refused_since = None
            return False
        if self._refused_since is None:
            self._refused_since = self._clock.now()
            self._notify("store_refused", Level.ERROR, f"{self._store.refused}; waiting for it")
        return self._clock.now() - self._refused_since > REFUSED_PATIENCE

    def _outcome(self) -> Outcome:
        lanes = self._scheduler.lanes.values()
        if self._store.refused is not None:
            return Outcome.REFUSED
        if self._draining:
            return Outcome.INTERRUPTED
        if any(lane.stopped for lane in lanes):
            return Outcome.STOPPED
        if any(lane.withheld for lane in lanes):
            return Outcome.BUDGET
        return Outcome.INCOMPLETE if self._progress.failures else Outcome.COMPLETE

    # ----- planning and leasing

    async def _plan(self, roots: Iterable[Cell]) -> None:
        iterator = iter(roots)
        reused = 0
        try:
            while chunk := list(islice(iterator, PLAN_CHUNK)):
                planned = await self._store.plan(self._sweep.id, chunk)
                reused += planned.offered - planned.added
                self._expect(chunk)
            await self._store.mark_planned(self._sweep.id)
            if reused:
                await self._read_unread()
        finally:
            self._planning = False
            self._wake.set()

    def _expect(self, cells: Sequence[Cell]) -> None:
        """Note that the store now holds requests for these cells' lanes."""
        self._more.update(lane_name(cell.request) for cell in cells)
        self._wake.set()

    def _refillable(self) -> list[Lane]:
        """Return lanes with room whose requests in the store may not be exhausted."""
        known = (self._scheduler.lanes[name] for name in self._more if name in self._scheduler.lanes)
        return [lane for lane in known if not lane.stopped and self._scheduler.wanted(lane)]

    def _refill(self) -> None:
        for lane in self._refillable():
            if lane.hungry() and lane.name not in self._leasing:
                self._more.discard(lane.name)
                self._leasing.add(lane.name)
                self._keep(self._lease(lane, min(self._scheduler.wanted(lane), LEASE_MOST)))

    async def _lease(self, lane: Lane, most: int) -> None:
        try:
            leased = await self._store.lease(
                sweep_id=self._sweep.id,
                run_id=self._run_id,
                lane=lane.name,
                most=most,
                now_ms=self._clock.wall_ms(),
                skip_stages=sorted(self._scheduler.exhausted_stages(lane)),
            )
        except StoreError:
            self._more.add(lane.name)
            return
        finally:
            self._leasing.discard(lane.name)
            self._wake.set()
        if len(leased) == most:
            self._more.add(lane.name)
        self._scheduler.offer(leased)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            if self._held and self._store.refused is None:
                await self._store.renew(self._run_id, list(self._held), self._clock.wall_ms())

    async def _release_rest(self) -> None:
        tickets = self._scheduler.drain()
        if self._store.refused is None and tickets:
            await self._store.release(self._run_id, [ticket.leased.id for ticket in tickets])

    # ----- one call

    def _start(self, ticket: Ticket) -> None:
        self._held[ticket.leased.id] = ticket
        self._keep(self._call(ticket))

    def _keep(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._notify("defect", Level.ERROR, f"a call ended in a defect of this program: {error!r}")
            self.drain()

    async def _call(self, ticket: Ticket) -> None:
        try:
            went = await self._store.send(ticket, self._run_id, self._clock.wall_ms())
        except StoreError:
            went = False
        if not went:
            self._scheduler.withdraw(ticket)
            if self._store.refused is not None:
                self._scheduler.postpone(ticket, self._clock.now() + REFUSED_PAUSE)
            return
        ticket.advance(Event.SEND)
        await self._exchange(ticket)

    async def _exchange(self, ticket: Ticket) -> None:
        provider = self._providers[ticket.leased.request.provider]
        started = self._clock.now()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are inside one
        self._on_wire.add(task)
        try:
            reply = await provider.complete(ticket.leased.request)
        except ProviderError as error:
            outcome: Reply | ProviderError = error
        except asyncio.CancelledError:
            return
        else:
            outcome = reply
        finally:
            self._on_wire.discard(task)
        if isinstance(outcome, ProviderError):
            await self._failed(ticket, outcome)
        else:
            await self._settled(ticket, outcome, round((self._clock.now() - started) * 1000))

    async def _settled(self, ticket: Ticket, reply: Reply, latency_ms: int) -> None:
        completion, usage = reply.completion, reply.completion.usage
        paid = Amount(cost_nano(self._prices[ticket.leased.alias], usage), usage.input_tokens + usage.output_tokens)
        warnings = self._scheduler.settle(ticket, usage, paid, reply.hints, self._clock.now())
        reads = [(cell, self._read(cell, completion)) for cell in ticket.leased.cells]
        await self._store.settle(
            ticket,
            completion,
            [(cell.id, read) for cell, read in reads],
            sweep_id=self._sweep.id,
            paid=paid,
            latency_ms=latency_ms,
            now_ms=self._clock.wall_ms(),
        )
        self._held.pop(ticket.leased.id, None)
        self._progress.settled(usage, paid.nano)
        for cell, read in reads:
            self._progress.read(cell.stage, read.reading)
            self._expect(read.follow_ups)
        self._warn(warnings)

    async def _failed(self, ticket: Ticket, error: ProviderError) -> None:
        decision = self._scheduler.fail(ticket, error, self._clock.now(), self._rng)
        failed = isinstance(decision, GiveUp)
        await self._store.fail(
            ticket,
            error,
            state=State.FAILED if failed else State.PLANNED,
            keep=isinstance(decision, RetryAt),
            paid=ticket.worst if error.maybe_billed else Amount(0, 0),
            now_ms=self._clock.wall_ms(),
        )
        self._progress.errors[error.kind.value] += 1
        if isinstance(decision, RetryAt):
            self._scheduler.retry(ticket, decision.time)
            return
        self._held.pop(ticket.leased.id, None)
        if failed:
            for cell in ticket.leased.cells:
                self._progress.failed(cell.stage, 1)
        self._report(ticket, error, failed=failed)

    # ----- reading

    def _read(self, cell: LeasedCell, completion: Completion) -> Read:
        """Read an answer; a defect in a reader must not lose what was paid for, so it becomes an unreadable reading."""
        try:
            return self._reader.read(cell.stage, cell.coords, completion)
        except Exception as error:  # noqa: BLE001 - any defect
            text = f"defect in the reader of {cell.stage}: {type(error).__name__}: {error}"
            self._notify("defect", Level.ERROR, text, cell=cell.id)
            return Read(reading=Reading(status=ReadingStatus.UNREADABLE, version=0, reason=text))

    async def _read_unread(self) -> int:
        """Read every stored answer that has not been read; return how many there were."""
        after = found = 0
        while unread := await self._store.unread(self._sweep.id, after, UNREAD_CHUNK):
            reads = [(each.cell, self._read(each.cell, each.completion)) for each in unread]
            await asyncio.gather(*(self._store.read(self._sweep.id, cell.id, read) for cell, read in reads))
            for cell, read in reads:
                self._progress.read(cell.stage, read.reading)
                self._expect(read.follow_ups)
            after, found = unread[-1].cell.id, found + len(unread)
        return found

    # ----- telling

    def _report(self, ticket: Ticket, error: ProviderError, *, failed: bool) -> None:
        request = ticket.leased.request
        if failed:
            text = f"{ticket.leased.stage} request to {request.model} failed ({error.kind}): {error}"
            self._notify("request_failed", Level.WARNING, text, request=ticket.leased.id, error_class=error.kind.value)
        else:
            text = f"{request.provider} takes no more calls in this run ({error.kind}): {error}"
            self._notify("provider_stopped", Level.ERROR, text, provider=request.provider, error_class=error.kind.value)

    def _warn(self, warnings: Sequence[BudgetWarning]) -> None:
        for warning in warnings:
            text = f"{warning.scope} has used {warning.percent} % of its budget"
            self._notify("budget", Level.WARNING, text, scope=str(warning.scope), percent=warning.percent)

    def _notify(self, kind: str, level: Level, text: str, **fields: str | float) -> None:
        self._listen(Notice(kind=kind, level=level, text=text, fields=fields))
