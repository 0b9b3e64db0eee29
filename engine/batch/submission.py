"""Takes one batch from its file to its end at the provider. Each step is on disk before it is taken.

A create call is sent once. When its answer is lost the batch is in doubt, and only the provider's own list says what
became of it: nothing is submitted on faith, neither this batch again nor, where batches carry no marker, another one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.building import INPUT, folder_of
from engine.batch.lane import BatchLane, Load
from engine.batch.policy import BatchPolicy
from engine.batch.provider import NOT_VISIBLE, QUEUE_FULL, BatchProvider, BatchState, LineError, RemoteBatch, Shard
from engine.batch.records import Batch
from engine.batch.stage import Stage, Step
from engine.batch.store import BatchStore
from engine.clock import Clock
from engine.errors import ErrorClass, ProviderError
from engine.events import Level
from engine.retry import FATAL, STOPS_PROVIDER
from engine.telling import Telling

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 300.0
REFUSALS_MOST: Final = 2
TOO_LARGE: Final = 413
TROUBLES_MOST: Final = 12
# Beside the time that a list may lag, so many looks at it: after a restart the time may have passed unseen.
LEAST_LOOKS: Final = 4
# A provider's clock and ours may differ by so much: a batch that is not listed is sent again, and paid for.
CLOCK_SLACK: Final = 86_400.0
# A look at a batch comes after this share of its age: late enough to be cheap, early enough not to matter.
POLL_SHARE: Final = 0.05
# A provider may say that a batch expires later than its window, but not later than after so many of them.
LATEST_WINDOWS: Final = 2

Wait = Callable[[float], Awaitable[None]]


class Stopped(Exception):
    """No more batches go to the provider in this run; this one stays where it is.

    Attributes:
        account: no calls either: a quota or a key stands in the way.
    """

    def __init__(self, why: str, *, account: bool = False) -> None:
        super().__init__(why)
        self.account = account


class Dropped(NamedTuple):
    """The batch never ran.

    Attributes:
        blame: the error that its requests get, or None when they are not to blame.
        culprits: complaints about single lines; then only those requests get an error, if there are such lines.
        smaller: coming batches of the lane should be.
        stops: the provider would refuse others alike; no more batches go to it in this run.
    """

    reason: str
    blame: ProviderError | None = None
    culprits: tuple[LineError, ...] = ()
    smaller: bool = False
    stops: bool = False


class Submission:
    """One batch on its way. `wait` sleeps, and ends the task when the run stops."""

    def __init__(
        self, batch: Batch, *, store: BatchStore, provider: BatchProvider, lane: BatchLane, policy: BatchPolicy,
        folder: Path, clock: Clock, wait: Wait, tell: Telling, turn: asyncio.Lock | None, seen: Callable[[Batch], None],
    ) -> None:  # fmt: skip
        """Take a batch on.

        `turn` is held while a create may be in doubt, where the provider's batches carry no marker; `seen` hears of
        every change.
        """
        self.batch = batch
        self._unseen = False
        self._store, self._provider, self._lane, self._policy = store, provider, lane, policy
        self._fresh, self._refusals = False, 0
        self._input = folder_of(folder, batch.id) / INPUT
        self._clock, self._wait, self._tell, self._turn, self._seen = clock, wait, tell, turn, seen

    async def see_through(self) -> Dropped | None:
        """Go on from wherever the batch stands until the provider is done with it; None when it has ended.

        Raises:
            Stopped: the provider takes no more batches in this run; this one stays where it is.
            OSError: the input file cannot be used.
            UserError: as above.
        """
        begin = {
            Stage.READY: self._submit,
            Stage.UPLOADED: self._submit,
            Stage.CREATING: self._resolve,
            Stage.IN_DOUBT: self._resolve,
        }.get(self.batch.stage)
        dropped = await self._in_turn(begin) if begin is not None else None
        return await self._watch() if dropped is None and self.batch.stage is Stage.OPEN else dropped

    async def _in_turn(self, act: Callable[[], Awaitable[Dropped | None]]) -> Dropped | None:
        if self._turn is None:
            return await act()
        async with self._turn:
            return await act()

    # ----- to the provider

    async def _submit(self) -> Dropped | None:
        pause = min(FIRST_PAUSE, self._policy.first_poll)
        for _ in range(TROUBLES_MOST):
            try:
                if self._needs_input() and not await self._has_input():
                    return Dropped("its input file is missing or has changed")
                if self.batch.stage is Stage.READY:
                    await self._upload()
                await self._create()
            except ProviderError as error:
                if error.kind in STOPS_PROVIDER:
                    raise Stopped(str(error), account=True) from error
                if self.batch.stage is Stage.IN_DOUBT:
                    return await self._resolve()
                if (dropped := self._refused(error)) is not None:
                    return dropped
                if error.kind in FATAL:
                    # The provider may have thrown the input away.
                    await self._advance(Step.RENEW)
                    continue
                await self._pause(error, pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            else:
                return None
        raise Stopped(f"batch {self.batch.id} could not be submitted in {TROUBLES_MOST} tries")

    def _refused(self, error: ProviderError) -> Dropped | None:
        """Return why the batch is given back, or None when it is worth another try."""
        if error.status == TOO_LARGE and self.batch.count > 1:
            return Dropped("the provider found it too large", smaller=True)
        if error.kind in FATAL and (self._fresh or self.batch.stage is not Stage.UPLOADED):
            return Dropped(f"the provider refuses it: {error}", stops=True)
        self._refusals += error.code == QUEUE_FULL and self._lane.alone(self.batch.id)
        if self._refusals >= REFUSALS_MOST and self.batch.count > 1:
            return Dropped("the provider's queue has no room for so many", smaller=True)
        return None

    def _needs_input(self) -> bool:
        """Say whether the file here is still to be sent, by itself or with the create call."""
        return self.batch.stage is Stage.READY or not self.batch.file_id

    async def _has_input(self) -> bool:
        return await asyncio.to_thread(_size, self._input) == self.batch.bytes

    async def _upload(self) -> None:
        file_id = await self._provider.upload(self.batch.read_marker, self._input)
        await self._advance(Step.UPLOAD, file_id=file_id)
        self._fresh = True

    async def _create(self) -> None:
        batch = self.batch
        await self._advance(Step.CREATE)
        try:
            remote = await self._provider.create(
                batch.read_marker, batch.file_id, self._input, Shard(count=batch.count, model=batch.model)
            )
        except ProviderError as error:
            await self._advance(Step.DOUBT if error.maybe_billed else Step.REFUSE)
            raise
        await self._accept(remote)

    async def _accept(self, remote: RemoteBatch) -> None:
        await self._advance(Step.ACCEPT, remote_id=remote.id, remote=remote)
        said = f"batch {self.batch.id}: {self.batch.count} requests to {self.batch.model} ({remote.id})"
        self._tell.notify("batch_created", Level.INFO, said, batch=self.batch.id, requests=self.batch.count)

    async def _pause(self, error: ProviderError, pause: float) -> None:
        """Wait before the next try; a full queue also opens when another batch of the lane ends."""
        if error.code != QUEUE_FULL:
            await self._wait(max(pause, min(LONGEST_PAUSE, error.retry_after or 0.0)))
            return
        until, live = self._lane.queue_full(self._clock.now()), self._lane.live
        while self._clock.now() < until and self._lane.live >= live:
            await self._wait(min(self._policy.first_poll, until - self._clock.now()))

    # ----- in doubt

    async def _resolve(self) -> Dropped | None:
        """Ask the provider's list until it shows the batch, or has had time enough to.

        The time counts from here: how long the create call was on its way, or when a killed run sent it, is not known.
        """
        if self.batch.stage is Stage.CREATING:
            await self._advance(Step.DOUBT)
        batch = self.batch
        said = f"batch {batch.id}: the answer to its creation was lost; looking for it at {batch.provider}"
        self._tell.notify("batch_in_doubt", Level.WARNING, said, batch=batch.id)
        pause, looks = min(self._policy.first_poll, self._policy.grace), 0
        until = self._clock.now() + self._policy.grace
        while True:
            found = await self._list()
            if found is not None:
                looks += 1
                proved = [remote for remote in found if remote.marker == batch.marker]
                if proved:
                    await self._adopt(proved)
                    return None
                if not found and self._clock.now() >= until and looks >= LEAST_LOOKS:
                    return Dropped("it was never created")
                if found and self._clock.wall_ms() / 1000 >= self._latest():
                    alike = ", ".join(remote.id for remote in found[:3])
                    mend = f"`mirage batches attach` says which it is (perhaps {alike})"
                    raise Stopped(f"batch {batch.id} is in doubt and nothing tells whether it exists; {mend}")
            await self._wait(pause)
            pause = min(self._policy.longest_poll, pause * 2)

    async def _list(self) -> list[RemoteBatch] | None:
        """Return what may be this batch, or None when the list cannot be had now or is not to be used."""
        batch = self.batch
        try:
            since = max(0.0, batch.created_ms / 1000 - CLOCK_SLACK)
            found = await self._provider.find(batch.read_marker, since, batch.count)
        except ProviderError as error:
            if error.kind in STOPS_PROVIDER:
                raise Stopped(str(error), account=True) from error
            return None
        if not all(remote.id for remote in found):
            return None
        others = await self._store.remote_ids(batch.provider)
        return [remote for remote in found if remote.id not in others]

    async def _adopt(self, proved: list[RemoteBatch]) -> None:
        """Take the first batch over that may run; a provider that made two of one call is told to stop the other."""
        first, *others = sorted(proved, key=lambda remote: remote.state is BatchState.FAILED)
        await self._accept(first)
        for other in others:
            try:
                await self._provider.cancel(other.id)
            except ProviderError as error:
                said = f"batch {self.batch.id} exists twice and {other.id} could not be cancelled: {error}"
                self._tell.notify("batch_twice", Level.ERROR, said, batch=self.batch.id)

    # ----- at the provider

    async def _watch(self) -> Dropped | None:
        """Look at the batch until it has ended; order its cancellation when its time is up."""
        given_up = None
        while True:
            remote = await self._look()
            # Only rows count: what has results has run, whatever it is called.
            if remote is not None and remote.state is BatchState.FAILED and not remote.results:
                return self._failed(remote)
            if remote is not None and remote.state is not BatchState.OPEN:
                await self._advance(Step.END, remote=remote)
                self._lane.accepted()
                return None
            now = self._clock.wall_ms() / 1000
            if given_up is not None and now >= given_up:
                await self._advance(Step.END)
                return None
            # A batch that has not heard of its cancellation runs on, and is paid for: it is not given up.
            if given_up is None and now >= self._due() and (await self._cancel() or now >= self._latest()):
                given_up = now + self._policy.results_patience
            await self._wait(self._until_next_look(remote, now))

    async def _look(self) -> RemoteBatch | None:
        batch = self.batch
        try:
            remote = await self._provider.poll(batch.remote_id)
        except ProviderError as error:
            if error.kind in STOPS_PROVIDER:
                raise Stopped(str(error), account=True) from error
            self._tell_unseen(error)
            return None
        self._unseen = False
        if batch.remote is None or remote.status != batch.remote.status:
            self._changed(await self._store.note(batch, remote, cancelled=False))
        return remote

    def _tell_unseen(self, error: ProviderError) -> None:
        """Tell once that a batch cannot be looked at; a fresh one may not be known everywhere yet."""
        age = self._clock.wall_ms() / 1000 - self.batch.created_ms / 1000
        if not self._unseen and (error.code != NOT_VISIBLE or age >= self._policy.grace):
            self._unseen = True
            said = f"batch {self.batch.id} cannot be looked at: {error}"
            self._tell.notify("batch_unseen", Level.WARNING, said, batch=self.batch.id)

    async def _cancel(self) -> bool:
        """Order the batch's cancellation; return whether the provider has heard it."""
        if not self.batch.cancelled:
            said = f"batch {self.batch.id} is late: cancelled, what it has finished is kept"
            self._tell.notify("batch_late", Level.WARNING, said, batch=self.batch.id)
        try:
            await self._provider.cancel(self.batch.remote_id)
        except ProviderError:
            return False
        remote = self.batch.remote or RemoteBatch(id=self.batch.remote_id, state=BatchState.OPEN)
        self._changed(await self._store.note(self.batch, remote, cancelled=True))
        return True

    def _due(self) -> float:
        """Return when the batch must have ended by the user's wish, in Unix seconds."""
        latest, deadline = self._latest(), self._policy.deadline
        return latest if deadline is None else min(latest, self.batch.created_ms / 1000 + deadline)

    def _latest(self) -> float:
        """Return when the provider must have ended the batch, in Unix seconds; its own word has bounds."""
        created, window, remote = self.batch.created_ms / 1000, self._lane.limits.window, self.batch.remote
        expires = min(remote.expires_at if remote else 0.0, created + LATEST_WINDOWS * window)
        return max(created + window, expires) + self._policy.results_patience

    def _until_next_look(self, remote: RemoteBatch | None, now: float) -> float:
        age = max(0.0, now - self.batch.created_ms / 1000)
        policy = self._policy
        pause = min(policy.longest_poll, max(policy.first_poll, POLL_SHARE * age))
        asked = remote.retry_after if remote else None
        return max(pause, min(asked or 0.0, policy.longest_poll))

    def _failed(self, remote: RemoteBatch) -> Dropped:
        if remote.queue_full:
            alone = self._lane.alone(self.batch.id)
            # It leaves first: its own end makes no room for others.
            self._lane.leave(self.batch.id)
            self._lane.queue_full(self._clock.now())
            text = "the provider's queue was full"
            # One request alone cannot become a smaller batch: its tries are counted.
            hopeless = ProviderError(ErrorClass.TRANSIENT, text, code=QUEUE_FULL)
            return Dropped(text, hopeless if alone and self.batch.count == 1 else None, smaller=alone)
        culprits = tuple(error for error in remote.line_errors if error.line is not None)
        said = "; ".join(error.message or error.code for error in remote.line_errors[:3]) or remote.status
        blame = ProviderError(ErrorClass.TRANSIENT, f"the batch was refused whole: {said}", code="batch_failed")
        return Dropped(f"failed: {said}", blame, culprits, smaller=not culprits)

    async def _advance(self, event: Step, **found: object) -> None:
        self._changed(await self._store.advance(self.batch, event, self._clock.wall_ms(), **found))

    def _changed(self, batch: Batch) -> None:
        self.batch = batch
        self._seen(batch)


def load_of(batch: Batch) -> Load:
    """Return what a batch puts into the provider's queue."""
    return Load(batch.count, batch.tokens)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1
