"""Conducts the batches of one run: forms new ones when they are ripe, sees each through, and reads what it brings.

A task a batch; a look at the lanes every moment. When the run stops, batches stay where they are at their providers,
and the next run goes on with them.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from engine.batch.building import Builder, Purse, folder_of
from engine.batch.harvesting import Harvester
from engine.batch.lane import BatchLane, Waiting
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchProvider, BatchState, LineError, RemoteBatch
from engine.batch.records import Batch
from engine.batch.settling import Settler
from engine.batch.stage import Stage, Step
from engine.batch.store import BatchStore
from engine.batch.submission import Dropped, Stopped, Submission, load_of
from engine.clock import Clock
from engine.errors import ErrorClass, ProviderError, StoreError, UserError
from engine.events import BatchView, Level
from engine.ledger import Amount, Budget, Reservation
from engine.telling import Telling

LOOK_EVERY: Final = 0.25
DOWNLOAD_PAUSE: Final = 5.0
# So many complaints about single lines are heard of one batch; its other culprits show in the next.
CULPRITS_MOST: Final = 1_000
_ALL: Final = 1 << 30


class Upstream(NamedTuple):
    """What the rest of the run is doing.

    Attributes:
        feeds: stage to the stages whose answers can add requests to it.
        quiet: says whether nothing but batches can bring new requests.
        stop: tells the run that a provider can do nothing more.
        wake: tells the run that something has changed.
    """

    feeds: Mapping[str, frozenset[str]]
    quiet: Callable[[], bool]
    stop: Callable[[str, str], None]
    wake: Callable[[], None]


class Conductor:
    """The batches of one run."""

    def __init__(
        self, *, store: BatchStore, providers: Mapping[str, BatchProvider], lanes: Mapping[str, BatchLane],
        purse: Purse, settler: Settler, policy: BatchPolicy, folder: Path, run: str, clock: Clock, tell: Telling,
        upstream: Upstream,
    ) -> None:  # fmt: skip
        self._store, self._providers, self._lanes, self._purse = store, providers, lanes, purse
        self._settler, self._policy, self._folder, self._run = settler, policy, folder, run
        self._clock, self._tell, self._upstream = clock, tell, upstream
        self._harvester = Harvester(
            store=store, providers=providers, settler=settler, policy=policy, folder=folder, clock=clock, tell=tell,
            wait=self._wait,
        )  # fmt: skip
        self._draining = asyncio.Event()
        # By batch, and by lane where one is being formed.
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._batches: dict[int, Batch] = {}
        self._turns = {name: asyncio.Lock() for name in providers}
        self._creating: set[int] = set()
        self._resumed = False
        self._left_alone = False
        self._error: BaseException | None = None

    # ----- what the run asks

    def expect(self, lane: str) -> None:
        """Note that the store holds new requests for a lane, if it is one of batches."""
        if lane in self._lanes:
            self._lanes[lane].maybe_more = True

    def idle(self) -> bool:
        """Say whether nothing is under way and nothing waits that could go."""
        lanes = self._lanes.values()
        waiting = any(self._money_came_back(lane) for lane in lanes)
        return self._resumed and not self._tasks and not waiting and all(lane.idle() for lane in lanes)

    def withheld(self) -> list[tuple[Budget, Amount]]:
        """Return what requests that a budget withholds would take of which budget."""
        refused = (each for lane in self._lanes.values() for each in lane.exhausted.items())
        return [(self._purse.budget(*pair), worst) for pair, worst in refused]

    def stopped(self) -> bool:
        """Say whether a provider takes no more batches in this run, or batches are left that it cannot go on with."""
        return self._left_alone or any(lane.stopped for lane in self._lanes.values())

    def submitting(self) -> bool:
        """Say whether a create call is on the wire, whose answer is worth waiting for."""
        return bool(self._creating & self._tasks.keys())

    def drain(self) -> None:
        """Form and submit nothing more; batches at their providers stay there. Only create calls may finish."""
        self._draining.set()
        for batch_id, task in self._tasks.items():
            if batch_id not in self._creating:
                task.cancel()

    def hang_up(self) -> None:
        """Drain, and hang up on create calls; what became of them is asked at the next start."""
        self.drain()
        for task in self._tasks.values():
            task.cancel()

    def snapshot(self) -> tuple[BatchView, ...]:
        """Return what is under way."""
        return tuple(_view(batch) for batch in self._batches.values())

    # ----- the work

    async def run(self) -> None:
        """Go on with what earlier runs left, then form batches until the run drains.

        Raises:
            Exception: a defect in a batch's task; the others have been left where they stand.
        """
        try:
            while not await self._undisturbed(self._resume()):
                await self._wait(LOOK_EVERY)
            while True:
                await self._undisturbed(self._look())
                await self._wait(LOOK_EVERY)
                if self._error is not None:
                    raise self._error
        except _Drained:
            pass
        finally:
            self._resumed = True
            self.drain()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def harvest(self) -> None:
        """Look once at every batch at its provider and read those that have ended; nothing is formed or submitted.

        A batch that may have been created is looked for once, too. What is not over yet stays for the next run.

        Raises:
            Exception: a defect in a batch's task; the others have been left where they stand.
        """
        self._draining.set()
        for batch, lane in await self._usable(await self._store.live()):
            if batch.stage not in (Stage.READY, Stage.UPLOADED):
                self._start(batch, lane)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._error is not None:
            raise self._error

    async def _resume(self) -> None:
        live = await self._store.live()
        for batch in live:
            if batch.stage is Stage.READY and batch.provider in self._providers:
                # It may have been uploaded before the crash; that copy would stay there for nothing.
                with contextlib.suppress(ProviderError):
                    keep = {each.file_id for each in live}
                    await self._providers[batch.provider].tidy(batch.read_marker.run, keep)
        for batch, lane in await self._usable(live):
            self._start(batch, lane)
        self._resumed = True

    async def _usable(self, batches: Sequence[Batch]) -> list[tuple[Batch, BatchLane]]:
        """Return the batches that this run can go on with, and tell of the others.

        A sweep may have lost models since: whose answers have no price and no budget any more cannot be paid for here.
        """
        usable = []
        for batch in batches:
            lane = self._lanes.get(batch.lane)
            aliases = {share.alias for share in await self._store.shares(batch)}
            if lane is not None and aliases <= self._purse.prices.keys():
                usable.append((batch, lane))
                continue
            self._left_alone = True
            lacking = ", ".join(sorted(aliases - self._purse.prices.keys())) or batch.lane
            said = f"batch {batch.id} needs {lacking}, which this run does not have; it is left alone"
            self._tell.notify("batch_left", Level.WARNING, said, batch=batch.id)
        return usable

    async def _undisturbed(self, work: Awaitable[None]) -> bool:
        """Do `work` unless the disk refuses, which is waited for elsewhere; say whether it was done."""
        try:
            await work
        except StoreError:
            if self._store.store.refused is None:
                raise
            return False
        return True

    async def _look(self) -> None:
        """Form a batch in every lane where one is ripe."""
        for lane in self._lanes.values():
            # Not for every dollar that comes back: that would make batches of a few requests each.
            if self._money_came_back(lane) and not self._tasks and self._upstream.quiet():
                lane.try_budget_again()
            if lane.ready(self._clock.now()) and (room := lane.room()) is not None:
                waiting = await self._store.waiting(lane.name, lane.exhausted, min(room.requests, _ALL))
                if not waiting.requests:
                    lane.maybe_more = False
                    self._upstream.wake()
                if lane.ripe(waiting, room, upstream=await self._more_to_come(lane, waiting), now=self._clock.now()):
                    lane.building = True
                    self._keep(lane.name, self._form(lane))

    def _money_came_back(self, lane: BatchLane) -> bool:
        return bool(lane.exhausted) and not lane.stopped and self._purse.ledger.releases != lane.exhausted_at

    async def _more_to_come(self, lane: BatchLane, waiting: Waiting) -> bool:
        """Say whether answers still under way can add to what waits in a lane."""
        if not waiting.requests:
            return True
        stages = await self._store.stages_waiting(lane.name)
        upstream = {each for stage in stages for each in self._upstream.feeds.get(stage, frozenset())}
        if not await self._store.any_pending(upstream):
            return False
        # What waits upstream may itself wait for what only a person can change: a budget, a key.
        return bool(self._batches) or not self._upstream.quiet()

    async def _form(self, lane: BatchLane) -> None:
        try:
            if not await self._undisturbed(self._build(lane)):
                await self._take_down_unfinished(lane)
        except OSError as error:
            lane.stop(f"batches cannot be written: {error.strerror}")
            self._tell.notify("batch_disk", Level.ERROR, f"{lane.stopped} ({self._folder})")
            await self._take_down_unfinished(lane)
        finally:
            lane.building = False
            self._upstream.wake()

    async def _build(self, lane: BatchLane) -> None:
        room = lane.room()
        if room is None:
            return
        built = await self._builder(lane).build(room)
        lane.formed()
        lane.maybe_more = built.more
        if built.batch is not None:
            self._start(built.batch, lane)
        elif built.more and lane.live:
            lane.crowded(self._clock.now())

    def _builder(self, lane: BatchLane) -> Builder:
        return Builder(
            store=self._store, provider=self._providers[lane.provider], lane=lane, purse=self._purse,
            folder=self._folder, run=self._run, clock=self._clock,
            refused=lambda candidate, error: self._settler.refused(candidate.stage, error),
        )  # fmt: skip

    async def _take_down_unfinished(self, lane: BatchLane) -> None:
        """Give back what a batch holds that could not be built, as soon as the disk takes it."""
        with contextlib.suppress(_Drained):
            while not await self._undisturbed(self._drop_unfinished(lane)):
                await self._wait(LOOK_EVERY)

    async def _drop_unfinished(self, lane: BatchLane) -> None:
        for batch in await self._store.live():
            if batch.lane == lane.name and batch.stage is Stage.BUILDING:
                await self._drop(batch, Dropped("it could not be written"))

    def _start(self, batch: Batch, lane: BatchLane) -> None:
        self._batches[batch.id] = batch
        if batch.stage not in (Stage.ENDED, Stage.SETTLED):
            lane.enter(batch.id, load_of(batch))
        self._keep(batch.id, self._conduct(batch, lane))

    async def _conduct(self, batch: Batch, lane: BatchLane) -> None:
        """See one batch through to its end, or to the end of the run."""
        try:
            done = await self._undisturbed(self._carry_on(batch, lane))
            while not done:
                await self._wait(min(DOWNLOAD_PAUSE, self._policy.first_poll))
                done = await self._undisturbed(self._carry_on_again(batch.id, lane))
        except _Drained:
            return
        except Stopped as stopped:
            self._stop(lane, str(stopped), account=stopped.account)
        except StoreError:
            raise
        except (OSError, UserError) as error:
            self._stop(lane, f"the files of batch {batch.id} cannot be used: {error}")
        finally:
            self._batches.pop(batch.id, None)
            self._creating.discard(batch.id)
            lane.leave(batch.id)
            lane.maybe_more = True
            self._upstream.wake()

    async def _carry_on_again(self, batch_id: int, lane: BatchLane) -> None:
        """Go on from what is on disk, after the disk has refused."""
        batch = await self._store.one(batch_id)
        if batch is not None:
            await self._carry_on(batch, lane)

    async def _carry_on(self, batch: Batch, lane: BatchLane) -> None:
        if batch.stage is Stage.BUILDING:
            await self._drop(batch, Dropped("it was not finished when the run ended"))
            return
        submission = self._submission(batch, lane)
        dropped = await submission.see_through()
        batch = self._batches[batch.id] = submission.batch
        if dropped is not None:
            if dropped.smaller:
                lane.shrink(batch.count)
            await self._drop(batch, dropped)
            if dropped.stops:
                self._stop(lane, f"batch {batch.id} was given back: {dropped.reason}")
            return
        lane.leave(batch.id)
        whole = True
        if batch.stage is Stage.ENDED:
            whole, stop = await self._harvester.harvest(batch, lane.limits.results_kept)
            if stop:
                self._stop(lane, stop, account=True)
            batch = self._batches[batch.id] = await self._advance(batch, Step.SETTLE)
        await self._close(batch, clean=whole)

    def _submission(self, batch: Batch, lane: BatchLane) -> Submission:
        return Submission(
            batch, store=self._store, provider=self._providers[batch.provider], lane=lane, policy=self._policy,
            folder=self._folder, clock=self._clock, wait=self._wait, tell=self._tell,
            turn=None if lane.limits.has_marker else self._turns[batch.provider], seen=self._seen,
        )  # fmt: skip

    def _seen(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        if batch.stage is Stage.CREATING:
            self._creating.add(batch.id)
        else:
            self._creating.discard(batch.id)

    # ----- ends

    async def _drop(self, batch: Batch, dropped: Dropped) -> None:
        """Give the requests of a batch that never ran back, and say why where they or the provider are to blame."""
        if not await self._blame(batch, dropped.culprits) and dropped.blame is not None:
            await self._settler.close(batch, dropped.blame)
        await self._disown(batch)
        shares = await self._store.shares(batch)
        await self._store.drop(batch, dropped.reason, self._clock.wall_ms())
        for share in shares:
            budget = self._purse.budget(share.alias, share.stage)
            self._purse.ledger.release(Reservation(budget, share.reserved))
        said = f"batch {batch.id} ({batch.model}) was not run: {dropped.reason}"
        self._tell.notify("batch_dropped", Level.WARNING, said, batch=batch.id)
        await asyncio.to_thread(shutil.rmtree, folder_of(self._folder, batch.id), ignore_errors=True)

    async def _blame(self, batch: Batch, culprits: tuple[LineError, ...]) -> bool:
        """Fail the requests whose lines sank the batch, if there are such lines; say whether there are."""
        named = {each.line: each for each in culprits if each.line is not None and 0 < each.line <= batch.count}
        places = list(named)[:CULPRITS_MOST]
        if not places:
            return False
        for place, number in (await self._store.lines_at(batch, places)).items():
            culprit = named[place]
            error = ProviderError(ErrorClass.BAD_REQUEST, culprit.message or culprit.code, code=culprit.code)
            await self._settler.refuse(batch, [number], error)
        return True

    async def _disown(self, batch: Batch) -> None:
        """Delete the input of a batch that never ran; should it turn up at the provider after all, it cannot run."""
        if batch.file_id:
            remote = batch.remote or RemoteBatch(id=batch.remote_id, state=BatchState.FAILED)
            with contextlib.suppress(ProviderError):
                await self._providers[batch.provider].clean(
                    msgspec.structs.replace(remote, input_file=batch.file_id, results=())
                )

    async def _close(self, batch: Batch, *, clean: bool) -> None:
        """Clean up at the provider, unless its files may still tell something, and here; what stays costs nothing."""
        if clean and batch.remote is not None:
            with contextlib.suppress(ProviderError):
                await self._providers[batch.provider].clean(batch.remote)
        await self._advance(batch, Step.CLOSE)
        await asyncio.to_thread(shutil.rmtree, folder_of(self._folder, batch.id), ignore_errors=True)

    async def _advance(self, batch: Batch, event: Step) -> Batch:
        return await self._store.advance(batch, event, self._clock.wall_ms())

    def _stop(self, lane: BatchLane, why: str, *, account: bool = False) -> None:
        """Send the provider no more batches in this run, and no calls either if its `account` is to blame."""
        for each in self._lanes.values():
            if each.provider == lane.provider and not each.stopped:
                each.stop(why)
        said = f"{lane.provider} takes no more batches in this run: {why}"
        self._tell.notify("provider_stopped", Level.ERROR, said, provider=lane.provider)
        if account:
            self._upstream.stop(lane.provider, why)

    # ----- tasks and time

    async def _wait(self, seconds: float) -> None:
        """Sleep; raise when the run drains."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), seconds)
        if self._draining.is_set():
            raise _Drained

    def _keep(self, name: int | str, coroutine: Coroutine[None, None, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(coroutine)
        task.add_done_callback(lambda ended: self._ended(name, ended))

    def _ended(self, name: int | str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
        self._upstream.wake()


class _Drained(Exception):
    """The run stops; whatever waits is left as it is."""


def _view(batch: Batch) -> BatchView:
    return BatchView(
        id=batch.id,
        lane=batch.lane,
        stage=batch.stage.value,
        requests=batch.count,
        status=batch.remote.status if batch.remote else "",
        created_ms=batch.created_ms,
    )
