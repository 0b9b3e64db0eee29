"""The run loop: plans, leases, sends, settles and reads until nothing is left. It acts; the scheduler decides.

The order of every call: lease from the store, admission by the scheduler, attempt on disk, the call itself, then in one
commit the completion, its cost, its readings and what follows from them. Nothing here retries or waits by itself.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Final

from engine.batch.conductor import Conductor, Upstream
from engine.batch.wiring import Batching, Run, build_conductor
from engine.calls import REFUSED_PAUSE, Calls
from engine.cell import Cell, Reader
from engine.clock import Clock
from engine.errors import StoreError
from engine.events import Level, Listener, Outcome, Snapshot
from engine.lane import Lane
from engine.ledger import Shortage
from engine.money import Price
from engine.progress import Progress
from engine.provider import Provider
from engine.readings import Readings
from engine.rows import lane_name
from engine.scheduler import Exhausted, Scheduler
from engine.store import LEASE_MS, Store, Sweep
from engine.telling import Telling

PLAN_CHUNK: Final = 200
PLAN_CHUNKS: Final = 5
LEASE_MOST: Final = 512
REFUSED_PATIENCE: Final = 60.0
LOOK_EVERY: Final = 2.0
DAY_MS: Final = 86_400_000
# Leases are renewed every so many looks.
RENEW_EVERY: Final = LEASE_MS // 3000 // int(LOOK_EVERY)


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
        batching: Batching | None = None,
        patience: float = REFUSED_PATIENCE,
        look_every: float = LOOK_EVERY,
    ) -> None:
        """Prepare a run.

        Args:
            store: the open store, recovered.
            sweep: what to run.
            run_id: this start of the program, from `begin_run`.
            scheduler: lanes and ledger, which knows what earlier runs spent.
            providers: by provider name.
            prices: by model alias.
            reader: reads the answers.
            clock: the machine's clocks.
            rng: jitter.
            progress: counters, which know what earlier runs finished.
            listen: hears of what people should know.
            batching: how requests of batch lanes are sent; None where there are none.
            patience: seconds that a refusing disk is waited for.
            look_every: seconds between looks for answers that cells joined late.

        Raises:
            ValueError: a model has no price.
        """
        if unpriced := scheduler.all_aliases() - set(prices):
            raise ValueError(f"no price for {', '.join(sorted(unpriced))}: an answer could not be paid for")
        self._store, self._sweep, self._run_id = store, sweep, run_id
        self._scheduler, self._clock, self._progress = scheduler, clock, progress
        self._patience, self._look_every = patience, look_every
        self._tell = Telling(listen)
        self._readings = Readings(
            store=store, sweep_id=sweep.id, reader=reader, progress=progress, tell=self._tell, expect=self._expect
        )
        self._wake = asyncio.Event()
        self._calls = Calls(
            store=store, sweep_id=sweep.id, run_id=run_id, scheduler=scheduler, providers=providers, prices=prices,
            readings=self._readings, clock=clock, rng=rng, progress=progress, tell=self._tell,
            keep=self._keep, wake=self._wake.set,
        )  # fmt: skip
        self._conductor: Conductor | None = None
        if batching is not None:
            run = Run(
                store=store, sweep_id=sweep.id, run_id=run_id, scheduler=scheduler, reader=reader, progress=progress,
                clock=clock, rng=rng, listen=listen, expect=self._expect, requeued=self._expect_lane,
            )  # fmt: skip
            upstream = Upstream(batching.feeds, self._quiet, scheduler.stop_provider, self._wake.set)
            self._conductor = build_conductor(batching, run, upstream)
        self._started = clock.now()
        self._planning = False
        self._error: BaseException | None = None
        self._short: tuple[Shortage, ...] = ()
        self._more = set(scheduler.lanes)
        self._passed_over: dict[str, Exhausted] = {}
        self._leasing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_since: float | None = None

    async def run(self, roots: Iterable[Cell]) -> Outcome:
        """Plan `roots`, then send and read until nothing is left or nothing more may be sent.

        Raises:
            Exception: what `roots` or a defect of this program raised, once the calls on the wire are stored.
        """
        self._planning = True
        background = [asyncio.create_task(self._plan(roots)), asyncio.create_task(self._chores())]
        if self._conductor is not None:
            background.append(asyncio.create_task(self._conduct(self._conductor)))
        try:
            await self._remember_day()
            await self._adopt()
            await self._catch_up()
            await self._work()
            outcome = await self._outcome()
        finally:
            await self._wind_up(background)
        if self._error is not None:
            raise self._error
        return outcome

    async def _adopt(self) -> None:
        """Take over what other sweeps have left of our cells' requests, as soon as the disk lets us."""
        while not self._given_up_on_disk():
            try:
                await self._store.adopt(self._sweep.id)
            except StoreError:
                if self._store.refused is None:
                    raise
                await asyncio.sleep(REFUSED_PAUSE)
            else:
                return

    async def _remember_day(self) -> None:
        """Tell lanes with a limit for the day what earlier runs sent in the last 24 hours."""
        now, wall_ms = self._clock.now(), self._clock.wall_ms()
        for lane in self._scheduler.lanes.values():
            if lane.counts_days:
                sent = await self._store.sent_lately(lane.name, wall_ms - DAY_MS)
                lane.remember_day([((wall_ms - at) / 1000, calls) for at, calls in sent], now)

    def drain(self) -> None:
        """Send nothing more; let the calls on the wire finish and be stored."""
        self._calls.drain()
        if self._conductor is not None:
            self._conductor.drain()
        self._wake.set()

    def abort(self) -> None:
        """Drain, and hang up on the calls on the wire; they count as possibly billed."""
        self.drain()
        self._calls.hang_up()
        if self._conductor is not None:
            self._conductor.hang_up()

    def snapshot(self) -> Snapshot:
        """Return what the run looks like now; free of side effects."""
        progress = self._progress
        return Snapshot(
            stages=progress.stages(),
            lanes=tuple(lane.snapshot() for lane in self._scheduler.lanes.values()),
            accounts=self._scheduler.ledger.snapshot(),
            errors=dict(progress.errors),
            calls=progress.calls,
            input_tokens=progress.input_tokens,
            output_tokens=progress.output_tokens,
            spent_nano=progress.spent_nano,
            started=self._started,
            now=self._clock.now(),
            planning=self._planning,
            draining=self._calls.draining,
            refused=str(self._store.refused or ""),
            batches=() if self._conductor is None else self._conductor.snapshot(),
            short=self._short,
        )

    # ----- the loop

    async def _work(self) -> None:
        """Loop until nothing is left; answers that cells joined late are read before the end and can bring more."""
        while True:
            while not self._finished():
                await self._step()
            if self._calls.draining or self._store.refused is not None:
                return
            # What a look in the background was reading meanwhile may have brought work too.
            if not await self._catch_up() and self._finished():
                return

    async def _step(self) -> None:
        wake_at: float | None = None
        if self._store.refused is not None:
            wake_at = self._clock.now() + REFUSED_PAUSE
        elif not self._calls.draining:
            self._refill()
            schedule = self._scheduler.schedule(self._clock.now())
            wake_at = schedule.wake_at
            self._calls.depart(schedule.departs)
            self._calls.take_back(schedule.recalled)
            for ticket in schedule.sends:
                self._keep(self._calls.carry_out(ticket))
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
        if self._given_up_on_disk():
            return not self._calls.on_wire
        if self._tasks:
            return False
        if self._calls.draining:
            return self._conductor is None or not self._conductor.submitting()
        return self._quiet() and (self._conductor is None or self._conductor.idle())

    def _quiet(self) -> bool:
        """Say whether nothing is under way or could go, batches aside."""
        return not self._planning and not self._tasks and not self._refillable() and self._scheduler.idle()

    def _given_up_on_disk(self) -> bool:
        """Say whether the disk has refused for too long; writes that get through in between do not start it anew."""
        if self._store.refused is None:
            return False
        if self._refused_since is None:
            self._refused_since = self._clock.now()
            waiting = f"waiting {self._patience:.0f} s for it; do not kill this process, it holds answers"
            self._tell.notify("store_refused", Level.ERROR, f"{self._store.refused}; {waiting}")
        # Whoever asks to stop is not made to wait: what the disk refused goes to a rescue file.
        return self._calls.draining or self._clock.now() - self._refused_since > self._patience

    async def _outcome(self) -> Outcome:
        lanes = self._scheduler.lanes.values()
        if self._store.refused is not None:
            return Outcome.REFUSED
        if self._calls.draining:
            return Outcome.INTERRUPTED
        batches = self._conductor
        if any(lane.stopped for lane in lanes) or (batches is not None and batches.stopped()):
            return Outcome.STOPPED
        if withheld := [*self._scheduler.withheld(), *([] if batches is None else batches.withheld())]:
            self._short = self._scheduler.ledger.shortages(withheld)
            self._tell.short(self._short)
            return Outcome.BUDGET
        if waiting := await self._store.waiting(self._sweep.id):
            text = f"{sum(waiting.values())} requests wait for models that this run does not use: {', '.join(waiting)}"
            self._tell.notify("left_waiting", Level.WARNING, text, requests=sum(waiting.values()))
            return Outcome.INCOMPLETE
        return Outcome.INCOMPLETE if self._progress.failures else Outcome.COMPLETE

    async def _wind_up(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Let every call end, give the leases back, and leave no task behind."""
        self._calls.drain()
        given_up = list(self._tasks) if self._given_up_on_disk() else []
        # What waits for the disk has its rows with the writer already; only the waiting is cancelled.
        for task in (*background, *given_up):
            task.cancel()
        await asyncio.gather(*background, *self._tasks, return_exceptions=True)
        tickets = self._scheduler.drain()
        if self._store.refused is None and tickets:
            with contextlib.suppress(StoreError):
                await self._store.release(self._run_id, [ticket.leased.id for ticket in tickets])

    def _keep(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop_for(error)

    def _stop_for(self, error: BaseException) -> None:
        """Drain because of an error, and remember the first one for the caller."""
        if self._error is None:
            self._error = error
            self._tell.notify("error", Level.ERROR, f"the run stops: {type(error).__name__}: {error}")
        self.drain()

    # ----- planning and leasing

    async def _plan(self, roots: Iterable[Cell]) -> None:
        try:
            iterator = iter(roots)
            while chunks := await self._chunks(iterator):
                await asyncio.gather(*map(self._plan_chunk, chunks))
            await self._store.mark_planned(self._sweep.id)
        except Exception as error:  # noqa: BLE001 - whatever the plan raises is the caller's to hear
            # A disk that refuses is waited for elsewhere; a plan that is not marked as finished is only made again.
            if not (isinstance(error, StoreError) and self._store.refused is not None):
                self._stop_for(error)
        finally:
            self._planning = False
            self._wake.set()

    async def _chunks(self, iterator: Iterator[Cell]) -> list[list[Cell]]:
        """Return the cells of one commit; the plan's own work is done in pieces, so that calls can go on in between."""
        chunks: list[list[Cell]] = []
        while len(chunks) < PLAN_CHUNKS and (chunk := list(islice(iterator, PLAN_CHUNK))):
            chunks.append(chunk)
            await asyncio.sleep(0)
        return chunks

    async def _plan_chunk(self, cells: Sequence[Cell]) -> None:
        """Plan cells, however long the disk refuses; the run's end cancels the waiting."""
        while True:
            try:
                await self._store.plan(self._sweep.id, cells)
            except StoreError:
                if self._store.refused is None:
                    raise
                await asyncio.sleep(REFUSED_PAUSE)
            else:
                self._expect(cells)
                return

    def _expect(self, cells: Sequence[Cell]) -> None:
        """Note that the store now holds requests for these cells' lanes."""
        for lane in {lane_name(cell.request, batch=cell.batch) for cell in cells}:
            self._expect_lane(lane)

    def _expect_lane(self, lane: str) -> None:
        """Note that the store holds requests for a lane, of calls or of batches."""
        self._more.add(lane)
        if self._conductor is not None:
            self._conductor.expect(lane)
        self._wake.set()

    def _refillable(self) -> list[Lane]:
        """Return lanes with room whose requests in the store may not be exhausted."""
        for name, then in list(self._passed_over.items()):
            if not then.within(self._scheduler.exhausted(self._scheduler.lanes[name])):
                del self._passed_over[name]
                self._more.add(name)
        known = (self._scheduler.lanes[name] for name in self._more if name in self._scheduler.lanes)
        return [lane for lane in known if not lane.stopped and self._scheduler.wanted(lane)]

    def _refill(self) -> None:
        for lane in self._refillable():
            if lane.hungry() and lane.name not in self._leasing:
                self._more.discard(lane.name)
                self._leasing.add(lane.name)
                self._keep(self._lease(lane, min(self._scheduler.wanted(lane), LEASE_MOST)))

    async def _lease(self, lane: Lane, most: int) -> None:
        exhausted = self._scheduler.exhausted(lane)
        try:
            leased = await self._store.lease(
                sweep_id=self._sweep.id,
                run_id=self._run_id,
                lane=lane.name,
                most=most,
                now_ms=self._clock.wall_ms(),
                skip_stages=sorted(exhausted.stages),
                aliases=sorted(self._scheduler.aliases(lane) - exhausted.aliases),
            )
        except StoreError:
            self._more.add(lane.name)
            if self._store.refused is None:
                raise
            return
        finally:
            self._leasing.discard(lane.name)
        if len(leased) == most:
            self._more.add(lane.name)
        elif exhausted.any():
            self._passed_over[lane.name] = exhausted
        self._calls.held.update(each.id for each in leased)
        self._scheduler.offer(leased)

    # ----- in the background

    async def _conduct(self, conductor: Conductor) -> None:
        try:
            await conductor.run()
        except Exception as error:  # noqa: BLE001 - a defect must not end the batches in silence
            self._stop_for(error)
        finally:
            self._wake.set()

    async def _catch_up(self) -> int:
        return await self._readings.catch_up(lambda: not self._calls.draining)

    async def _chores(self) -> None:
        """Read answers that cells joined late, so that what follows need not wait for the end, and renew leases."""
        looks = 0
        while True:
            await asyncio.sleep(self._look_every)
            # Also the loop's heartbeat: a disk that begins to refuse ends no call and would wake nobody.
            self._wake.set()
            looks += 1
            try:
                await self._catch_up()
                if looks % RENEW_EVERY == 0 and self._calls.held:
                    await self._store.renew(self._run_id, list(self._calls.held), self._clock.wall_ms())
            except StoreError:
                continue
            except Exception as error:  # noqa: BLE001 - a defect must not end the chores in silence
                self._stop_for(error)
                return
