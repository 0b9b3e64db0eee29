"""Conducts the batches of one run: forms new ones when they are ripe, sees each through, and reads what it brings.

A task a batch; a look at the lanes every moment. When the run stops, batches stay where they are at their providers,
and the next run goes on with them.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.building import Builder, Purse, folder_of
from engine.batch.lane import BatchLane, Waiting
from engine.batch.policy import BatchPolicy
from engine.batch.records import Batch
from engine.batch.settling import Harvest, Settler
from engine.batch.stage import Stage, Step
from engine.batch.store import BatchStore
from engine.batch.submission import Dropped, Stopped, Submission, load_of
from engine.batching import RESULTS_NOT_READY, BatchProvider, LineError, Unpaid
from engine.clock import Clock
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.events import BatchView, Level
from engine.ledger import Reservation
from engine.retry import STOPS_PROVIDER
from engine.telling import Telling

LOOK_EVERY: Final = 0.25
DOWNLOAD_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 900.0
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
        self._draining = asyncio.Event()
        # By batch, and by lane where one is being formed.
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._batches: dict[int, Batch] = {}
        self._turns = {name: asyncio.Lock() for name in providers}
        self._creating: set[int] = set()
        self._resumed = False
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

    def withheld(self) -> bool:
        """Say whether a budget withholds requests."""
        return any(lane.exhausted for lane in self._lanes.values())

    def stopped(self) -> bool:
        """Say whether a provider takes no more batches in this run."""
        return any(lane.stopped for lane in self._lanes.values())

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
            await self._resume()
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
        for batch in await self._store.live():
            if batch.stage not in (Stage.READY, Stage.UPLOADED):
                self._start(batch)
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
        for batch in live:
            self._start(batch)
        self._resumed = True

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
            room = lane.room()
            built = await self._builder(lane).build(room) if room is not None else None
            if built is not None:
                lane.formed()
                lane.maybe_more = built.more
                if built.batch is not None:
                    self._start(built.batch)
        except OSError as error:
            lane.stop(f"batches cannot be written: {error.strerror}")
            self._tell.notify("batch_disk", Level.ERROR, f"{lane.stopped} ({self._folder})")
            await self._take_down_unfinished(lane)
        finally:
            lane.building = False
            self._upstream.wake()

    def _builder(self, lane: BatchLane) -> Builder:
        return Builder(
            store=self._store, provider=self._providers[lane.provider], lane=lane, purse=self._purse,
            folder=self._folder, run=self._run, clock=self._clock,
            refused=lambda candidate, error: self._settler.refused(candidate.stage, error),
        )  # fmt: skip

    async def _take_down_unfinished(self, lane: BatchLane) -> None:
        for batch in await self._store.live():
            if batch.lane == lane.name and batch.stage is Stage.BUILDING:
                await self._drop(batch, Dropped("it could not be written"))

    def _start(self, batch: Batch) -> None:
        lane = self._lanes.get(batch.lane)
        if lane is None:
            said = f"batch {batch.id} belongs to {batch.lane}, which this run does not use; it is left alone"
            self._tell.notify("batch_left", Level.WARNING, said, batch=batch.id)
            return
        self._batches[batch.id] = batch
        if batch.stage not in (Stage.ENDED, Stage.SETTLED):
            lane.enter(batch.id, load_of(batch))
        self._keep(batch.id, self._conduct(batch, lane))

    async def _conduct(self, batch: Batch, lane: BatchLane) -> None:
        """See one batch through to its end, or to the end of the run."""
        try:
            while not await self._undisturbed(self._carry_on(batch, lane)):
                await self._wait(min(DOWNLOAD_PAUSE, self._policy.first_poll))
                batch = await self._store.one(batch.id)
        except _Drained:
            return
        except Stopped as stopped:
            self._stop(lane, str(stopped))
        finally:
            self._batches.pop(batch.id, None)
            self._creating.discard(batch.id)
            lane.leave(batch.id)
            lane.maybe_more = True
            self._upstream.wake()

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
            return
        lane.leave(batch.id)
        if batch.stage is Stage.ENDED:
            await self._harvest(batch, lane)
            batch = self._batches[batch.id] = await self._advance(batch, Step.SETTLE)
        await self._close(batch)

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

    # ----- results

    async def _harvest(self, batch: Batch, lane: BatchLane) -> None:
        """Read every results file; wait for rows that are missing, and then say that their outcome is not known."""
        found, started, pause = Harvest(), self._clock.now(), min(DOWNLOAD_PAUSE, self._policy.first_poll)
        while True:
            found = found.plus(await self._harvested(batch, lane))
            missing = await self._store.open_numbers(batch, -1, 1)
            if not missing:
                break
            if self._clock.now() - started >= self._policy.results_patience or self._final(batch):
                found = found.plus(await self._settler.close(batch, _absent(batch)))
                break
            await self._wait(min(pause, self._policy.results_patience))
            pause = min(LONGEST_PAUSE, 2 * pause)
            batch = await self._refreshed(batch)
        self._tell_harvest(batch, found)
        if found.stop:
            self._stop(lane, found.stop)

    async def _harvested(self, batch: Batch, lane: BatchLane) -> Harvest:
        provider, folder = self._providers[batch.provider], folder_of(self._folder, batch.id)
        if batch.remote is None:
            return Harvest()
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            paths = await provider.download(batch.remote, folder)
        except ProviderError as error:
            if error.kind in STOPS_PROVIDER:
                raise Stopped(str(error)) from error
            if error.code != RESULTS_NOT_READY:
                said = f"batch {batch.id}: its results could not be fetched: {error}; trying again"
                self._tell.notify("batch_download", Level.WARNING, said, batch=batch.id)
            return Harvest()
        except OSError as error:
            self._stop(lane, f"results cannot be written: {error.strerror}")
            raise Stopped(lane.stopped) from error
        return await self._settler.harvest(batch, provider, paths)

    def _final(self, batch: Batch) -> bool:
        """Say whether rows that are missing now will not come: the provider says that the rest was never run."""
        return batch.remote is not None and batch.remote.unpaid_rest

    async def _refreshed(self, batch: Batch) -> Batch:
        """Ask for the batch again: results may be announced late. Results that have been read are fetched anew."""
        try:
            remote = await self._providers[batch.provider].poll(batch.remote_id)
        except ProviderError:
            return batch
        await asyncio.to_thread(_forget_results, folder_of(self._folder, batch.id))
        return await self._store.note(batch, remote, cancelled=False)

    def _tell_harvest(self, batch: Batch, found: Harvest) -> None:
        parts = [f"{found.completed} answers"]
        parts += [f"{found.failed} failed"] if found.failed else []
        parts += [f"{found.left} to be sent again"] if found.left else []
        parts += [f"{found.strange} rows of other batches"] if found.strange else []
        text = f"batch {batch.id} ({batch.model}): {', '.join(parts)}"
        level = Level.WARNING if found.failed or found.left or found.strange else Level.INFO
        self._tell.notify("batch_read", level, text, batch=batch.id, completed=found.completed)

    # ----- ends

    async def _drop(self, batch: Batch, dropped: Dropped) -> None:
        """Give the requests of a batch that never ran back, and say why where they or the provider are to blame."""
        if dropped.culprits:
            await self._blame(batch, dropped.culprits)
        elif dropped.blame is not None:
            await self._settler.close(batch, dropped.blame)
        shares = await self._store.shares(batch)
        await self._store.drop(batch, dropped.reason, self._clock.wall_ms())
        for share in shares:
            budget = self._purse.budget(share.alias, share.stage)
            self._purse.ledger.release(Reservation(budget, share.reserved))
        said = f"batch {batch.id} ({batch.model}) was not run: {dropped.reason}"
        self._tell.notify("batch_dropped", Level.WARNING, said, batch=batch.id)
        await asyncio.to_thread(shutil.rmtree, folder_of(self._folder, batch.id), ignore_errors=True)

    async def _blame(self, batch: Batch, culprits: tuple[LineError, ...]) -> None:
        """Fail the requests whose lines sank the batch; complaints count the lines of the file from 1."""
        numbers = await self._store.open_numbers(batch, -1, _ALL)
        for culprit in culprits:
            if culprit.line is not None and 0 < culprit.line <= len(numbers):
                error = ProviderError(ErrorClass.BAD_REQUEST, culprit.message or culprit.code, code=culprit.code)
                await self._settler.refuse(batch, [numbers[culprit.line - 1]], error)

    async def _close(self, batch: Batch) -> None:
        """Clean up at the provider and here; what stays behind there costs nothing."""
        if batch.remote is not None:
            with contextlib.suppress(ProviderError):
                await self._providers[batch.provider].clean(batch.remote)
        await self._advance(batch, Step.CLOSE)
        await asyncio.to_thread(shutil.rmtree, folder_of(self._folder, batch.id), ignore_errors=True)

    async def _advance(self, batch: Batch, event: Step) -> Batch:
        return await self._store.advance(batch, event, self._clock.wall_ms())

    def _stop(self, lane: BatchLane, why: str) -> None:
        for each in self._lanes.values():
            if each.provider == lane.provider and not each.stopped:
                each.stop(why)
        said = f"{lane.provider} takes no more batches in this run: {why}"
        self._tell.notify("provider_stopped", Level.ERROR, said, provider=lane.provider)
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


def _absent(batch: Batch) -> ProviderError | Unpaid:
    """Return the outcome of requests that have no row."""
    if batch.remote is not None and batch.remote.unpaid_rest:
        # Somebody else may have ordered it: a person, at the provider's own site.
        cancelled = batch.cancelled or "cancel" in batch.remote.status.lower()
        return Unpaid.CANCELLED if cancelled else Unpaid.EXPIRED
    text = "the batch ended without a row for this request: it may have run and been billed"
    return ProviderError(ErrorClass.TRANSIENT, text, code="no_row", maybe_billed=True)


def _forget_results(folder: Path) -> None:
    for path in folder.glob("*"):
        if path.name != "input.jsonl":
            path.unlink(missing_ok=True)


def _view(batch: Batch) -> BatchView:
    return BatchView(
        id=batch.id,
        lane=batch.lane,
        stage=batch.stage.value,
        requests=batch.count,
        status=batch.remote.status if batch.remote else "",
        created_ms=batch.created_ms,
    )
