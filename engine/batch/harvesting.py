"""Harvests a batch that has ended: fetches its results, has them settled, and says when no more can come.

An answer that exists is paid for. So nothing is given up while the way to the provider is cut off, and nothing is sent
again on the word that the rest never ran, unless everything that the provider has was read and understood.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.building import INPUT, folder_of
from engine.batch.policy import BatchPolicy
from engine.batch.provider import NOT_VISIBLE, RESULTS_NOT_READY, BatchProvider, Unpaid
from engine.batch.records import Batch
from engine.batch.settling import Harvest, Settler
from engine.batch.store import BatchStore
from engine.batch.submission import Stopped
from engine.clock import Clock
from engine.errors import ErrorClass, ProviderError
from engine.events import Level
from engine.retry import FATAL, STOPS_PROVIDER
from engine.telling import Telling

FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 900.0


class Harvested(NamedTuple):
    """How a harvest ended.

    Attributes:
        whole: every request has a row or is known not to have run; the provider's files can tell nothing more.
        stop: why the account can do nothing more in this run, or empty.
    """

    whole: bool
    stop: str


class Harvester:
    """Harvests the batches of one run; `wait` sleeps, and ends the task when the run stops."""

    def __init__(
        self, *, store: BatchStore, providers: Mapping[str, BatchProvider], settler: Settler, policy: BatchPolicy,
        folder: Path, clock: Clock, tell: Telling, wait: Callable[[float], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._store, self._providers, self._settler, self._policy = store, providers, settler, policy
        self._folder, self._clock, self._tell, self._wait = folder, clock, tell, wait

    async def harvest(self, batch: Batch, results_kept: float) -> Harvested:
        """Read every results file; wait for rows that are missing, and then say that their outcome is not known.

        Args:
            batch: has ended.
            results_kept: seconds from its creation after which nobody need hope for its results.

        Raises:
            Stopped: quota or key; what has been read is settled.
            OSError: the files here cannot be used.
            UserError: as above.
        """
        found, pause = Harvest(), min(FIRST_PAUSE, self._policy.first_poll)
        since: float | None = None
        reached = True
        while True:
            fetched = await self._fetch(batch)
            found = found.plus(fetched.harvest)
            if not await self._store.open_numbers(batch, -1, 1):
                whole = True
                break
            # Patience is for what the provider lacks, not for the way to it.
            since = (since or self._clock.now()) if reached and not fetched.cut_off else None
            if self._no_more_come(batch, fetched, found, since, results_kept):
                outcome = absent(batch, found.strange)
                found = found.plus(await self._settler.close(batch, outcome))
                whole = isinstance(outcome, Unpaid)
                break
            await self._wait(min(pause, self._policy.results_patience))
            pause = min(LONGEST_PAUSE, 2 * pause)
            refreshed = await self._refreshed(batch)
            reached, batch = refreshed is not None, refreshed or batch
        self._tell_found(batch, found)
        return Harvested(whole, found.stop)

    async def _fetch(self, batch: Batch) -> "_Fetched":
        provider, folder = self._providers[batch.provider], folder_of(self._folder, batch.id)
        if batch.remote is None:
            return _Fetched(read=True)
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            paths = await provider.download(batch.remote, folder)
        except ProviderError as error:
            if error.kind in STOPS_PROVIDER:
                raise Stopped(str(error), account=True) from error
            if error.code == RESULTS_NOT_READY:
                return _Fetched()
            said = f"batch {batch.id}: its results could not be fetched: {error}; trying again"
            self._tell.notify("batch_download", Level.WARNING, said, batch=batch.id)
            return _Fetched(cut_off=error.kind not in FATAL)
        return _Fetched(await self._settler.harvest(batch, provider, paths), read=True)

    def _no_more_come(
        self, batch: Batch, fetched: "_Fetched", found: Harvest, since: float | None, results_kept: float
    ) -> bool:
        """Say whether rows that are missing now are waited for in vain; `since` they are known to be missing."""
        if fetched.read and isinstance(absent(batch, found.strange), Unpaid):
            return True
        if since is not None:
            return self._clock.now() - since >= self._policy.results_patience
        kept_until = batch.created_ms / 1000 + results_kept + self._policy.results_patience
        return self._clock.wall_ms() / 1000 >= kept_until

    async def _refreshed(self, batch: Batch) -> Batch | None:
        """Ask for the batch again: results may be announced late. Results that have been read are fetched anew.

        Return None when the provider could not be asked; one that knows the batch no longer has answered.
        """
        try:
            remote = await self._providers[batch.provider].poll(batch.remote_id)
        except ProviderError as error:
            if error.kind in STOPS_PROVIDER:
                raise Stopped(str(error), account=True) from error
            return batch if error.code == NOT_VISIBLE or error.kind in FATAL else None
        await asyncio.to_thread(_forget_results, folder_of(self._folder, batch.id))
        return await self._store.note(batch, remote, cancelled=False)

    def _tell_found(self, batch: Batch, found: Harvest) -> None:
        parts = [f"{found.completed} answers"]
        parts += [f"{found.failed} failed"] if found.failed else []
        parts += [f"{found.left} to be sent again"] if found.left else []
        parts += [f"{found.strange} rows of other batches"] if found.strange else []
        text = f"batch {batch.id} ({batch.model}): {', '.join(parts)}"
        level = Level.WARNING if found.failed or found.left or found.strange else Level.INFO
        self._tell.notify("batch_read", level, text, batch=batch.id, completed=found.completed)


class _Fetched(NamedTuple):
    """What came of fetching results.

    Attributes:
        read: every results file that the provider names was read.
        cut_off: the provider could not be asked properly; whether it has results is not known.
    """

    harvest: Harvest = Harvest()
    read: bool = False
    cut_off: bool = False


def absent(batch: Batch, strange: int = 0) -> ProviderError | Unpaid:
    """Return the outcome of requests that have no row, when `strange` rows may be anybody's."""
    if batch.remote is not None and batch.remote.unpaid_rest and not strange:
        # Somebody else may have ordered it: a person, at the provider's own site.
        cancelled = batch.cancelled or "cancel" in batch.remote.status.lower()
        return Unpaid.CANCELLED if cancelled else Unpaid.EXPIRED
    text = "the batch ended without a row for this request: it may have run and been billed"
    return ProviderError(ErrorClass.TRANSIENT, text, code="no_row", maybe_billed=True)


def _forget_results(folder: Path) -> None:
    for path in folder.glob("*"):
        if path.name != INPUT:
            path.unlink(missing_ok=True)
