"""What a person orders of batches beside a run: stop one, read what has ended, say which remote batch one is.

Accounts come from the sweep file that the store keeps, or from another one that is given. Nothing here sends a request,
and nothing is taken over that the provider does not prove.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from bench.batching import batching
from bench.generating import generation_job, prepare_generation
from bench.manifest import Manifest, check_unchanged, stored_manifest
from bench.run import Job, prepare, routes, sweep_job, user_catalog, views
from bench.sweepfile import (
    LoadedFile,
    LoadedGeneration,
    LoadedSweep,
    caps,
    load_generation,
    load_sweep,
    parse_generation,
    parse_sweep,
)
from engine.batch.conductor import Upstream
from engine.batch.ordering import lines_of
from engine.batch.provider import NOT_VISIBLE, BatchProvider, BatchState, RemoteBatch
from engine.batch.records import Batch
from engine.batch.stage import LIVE, Stage, Step
from engine.batch.store import BatchStore
from engine.batch.wiring import Run, build_conductor
from engine.clock import SystemClock
from engine.database import explained, open_reader
from engine.errors import ProviderError, UserError
from engine.events import Listener
from engine.inspection import BatchRow, read_batches
from engine.ledger import Ledger
from engine.progress import Progress
from engine.retry import RetryPolicy
from engine.scheduler import Scheduler
from engine.status import stage_counts
from engine.store import Store, Sweep
from instruments.generator import STAGE as PERSONA_STAGE
from providers.address import is_loopback
from providers.batch_registry import build_batch_providers
from providers.card import ModelCard

WITHOUT_PROOF: Final = frozenset({Stage.CREATING, Stage.IN_DOUBT})
"""Stages in which it is not known whether the batch exists at its provider."""

_SWEEP: Final = "SELECT id, name, simulated, manifest, plan_hash, planned FROM sweep WHERE name = ?"


class Harvested(msgspec.Struct, frozen=True, kw_only=True):
    """What a harvest came to.

    Attributes:
        read: batches that are over now and were not before.
        answers, failed: requests with an answer, and those that failed for good.
        open: batches that are not over.
        stopped: why an account could not be asked, or empty.
    """

    sweep: str
    read: int
    answers: int
    failed: int
    open: int
    stopped: str


class _Known(msgspec.Struct, frozen=True):
    """A sweep of a store with the file that describes it."""

    sweep: Sweep
    manifest: Manifest
    loaded: LoadedFile


async def cancel(path: Path, batch_id: int, file: Path | None = None) -> RemoteBatch | None:
    """Order a batch's provider to stop it; return what it says of the batch then, None when it does not say.

    The store is only looked at, so that a run may be working on it; that run, or the next one, reads what is finished.

    Raises:
        UserError: the batch is not at its provider, or the provider cannot be asked.
    """
    row = await _row(path, batch_id)
    if row.stage is not Stage.OPEN:
        raise UserError(f"batch {batch_id} is not at its provider: {_standing(row)}", where=str(path))
    async with _account(row, await _known(path, row.sweep, file)) as provider:
        try:
            await provider.cancel(row.remote_id)
        except ProviderError as error:
            raise UserError(f"batch {batch_id} could not be cancelled: {error}", where=row.remote_id) from error
        try:
            return await provider.poll(row.remote_id)
        except ProviderError:
            return None


async def attach(path: Path, batch_id: int, remote_id: str, file: Path | None = None) -> RemoteBatch:
    """Note that a batch in doubt is this remote one, once its marker or its rows prove it.

    Raises:
        UserError: the batch is not in doubt, nothing proves it, or a run is working on the store.
    """
    row = await _row(path, batch_id)
    if row.stage not in WITHOUT_PROOF:
        raise UserError(f"batch {batch_id} is not in doubt: {_standing(row)}", where=str(path))
    known = await _known(path, row.sweep, file)
    async with await Store.open(path) as store, _account(row, known) as provider:
        batches = BatchStore(store, known.sweep.id, 0)
        batch = next((each for each in await batches.live() if each.id == batch_id), None)
        if batch is None or batch.stage not in WITHOUT_PROOF:
            raise UserError(f"batch {batch_id} is no longer in doubt", where=str(path))
        await _check_unclaimed(path, row, remote_id)
        remote = await _proved(provider, batch, remote_id)
        now_ms = SystemClock().wall_ms()
        if batch.stage is Stage.CREATING:
            batch = await batches.advance(batch, Step.DOUBT, now_ms)
        await batches.advance(batch, Step.ACCEPT, now_ms, remote_id=remote.id, remote=remote)
    return remote


async def harvest(path: Path, file: Path | None = None, *, listen: Listener) -> list[Harvested]:
    """Look once at every batch at its provider and read those that have ended; nothing is sent.

    Args:
        path: the store; no run may be working on it.
        file: a sweep file to take accounts from.
        listen: hears what happens.

    Raises:
        UserError: a key is missing, the design is no longer what it was, or a run is working on the store.
    """
    live = [row for row in await read_batches(path) if row.stage in LIVE]
    found = []
    for name in dict.fromkeys(row.sweep for row in live):
        known = await _known(path, name, file)
        job = _job(known, path)
        check_unchanged(known.sweep, job.manifest, str(known.loaded.path))
        async with await Store.open(path, views()) as store:
            found.append(await _harvest(job, store, known.sweep, listen))
    return found


async def _harvest(job: Job, store: Store, sweep: Sweep, listen: Listener) -> Harvested:
    before = await BatchStore(store, sweep.id, 0).live()
    cards = {alias: job.catalog.card(alias) for alias in job.manifest.models}
    wanted = [card for card in cards.values() if card.provider in {batch.provider for batch in before}]
    accounts = build_batch_providers(wanted, os.environ)
    progress = Progress(await stage_counts(store.path, sweep.name))
    failures = progress.failures
    try:
        stopped = await _look_once(job, store, sweep, cards, accounts, progress, listen)
    finally:
        for account in accounts.values():
            await account.close()
    after = await BatchStore(store, sweep.id, 0).live()
    return Harvested(
        sweep=sweep.name,
        read=len(before) - len(after),
        answers=progress.calls,
        failed=progress.failures - failures,
        open=len(after),
        stopped="; ".join(stopped),
    )


async def _look_once(
    job: Job, store: Store, sweep: Sweep, cards: Mapping[str, ModelCard], accounts: Mapping[str, BatchProvider],
    progress: Progress, listen: Listener,
) -> list[str]:  # fmt: skip
    """Let the batches' conductor look once; return why accounts could not be asked."""
    clock, table = SystemClock(), job.loaded.sweep.retry
    retry = RetryPolicy(failures=table.failures, throttles=table.throttles)
    how = batching(job.loaded, cards, accounts, store=store.path, retry=retry, feeds=job.feeds)
    if how is None:
        return []
    ledger = Ledger(caps(job.loaded), *await store.used(sweep))
    scheduler = Scheduler(sweep=sweep.name, routes=routes(job), ledger=ledger, policy=retry, now=clock.now())
    run = Run(
        store=store, sweep_id=sweep.id, run_id=0, scheduler=scheduler, reader=job.reader, progress=progress,
        clock=clock, rng=Random(), listen=listen, expect=_ignore, requeued=_ignore,  # noqa: S311 - jitter
    )  # fmt: skip
    stopped: list[str] = []
    upstream = Upstream(job.feeds, lambda: True, lambda _, why: stopped.append(why), lambda: None)
    await build_conductor(how, run, upstream).harvest()
    await asyncio.sleep(0)  # what was told from threads is heard in the loop's next turn
    return list(dict.fromkeys(stopped))


def _ignore(*_: object) -> None:
    """Nothing else is running that would have to hear of it."""


# ----- proof


async def _proved(provider: BatchProvider, batch: Batch, remote_id: str) -> RemoteBatch:
    """Return the remote batch, once it is certain that it is ours.

    Raises:
        UserError: it is not there, or is not, or cannot be shown to be, this batch.
    """
    mend = "`mirage run` looks for it by itself"
    try:
        remote = await provider.poll(remote_id)
    except ProviderError as error:
        what = f"{batch.provider} knows no such batch" if error.code == NOT_VISIBLE else str(error)
        raise UserError(what, where=remote_id, mend=mend) from error
    if remote.marker == batch.marker:
        return remote
    if remote.marker:
        raise UserError(f"that is another batch: it carries the marker {remote.marker}", where=remote_id, mend=mend)
    if remote.state is not BatchState.ENDED:
        later = "wait until it has ended: its rows prove it then"
        raise UserError(f"nothing proves yet that this is batch {batch.id}", where=remote_id, mend=later)
    ours, others = await _rows_of(provider, remote, batch)
    if others or not ours:
        text = f"that is not batch {batch.id}: {ours} of its {ours + others} rows have its ids"
        raise UserError(text, where=remote_id, mend=mend)
    return remote


async def _rows_of(provider: BatchProvider, remote: RemoteBatch, batch: Batch) -> tuple[int, int]:
    """Return how many rows of a batch's results are of this batch, and how many are not."""
    with TemporaryDirectory(prefix="mirage-batch-") as folder:
        try:
            paths = await provider.download(remote, Path(folder))
        except ProviderError as error:
            raise UserError(f"its results cannot be had: {error}", where=remote.id, mend="try again later") from error
        return await asyncio.to_thread(_count_rows, provider, paths, batch)


def _count_rows(provider: BatchProvider, paths: Sequence[Path], batch: Batch) -> tuple[int, int]:
    marker = batch.read_marker
    # A row whose id cannot be read says nothing.
    rows = (row for path in paths for row in provider.rows(lines_of(path)))
    numbers = [marker.line_index(row.custom_id) for row in rows if row.custom_id]
    ours = sum(number is not None for number in numbers)
    return ours, len(numbers) - ours


async def _check_unclaimed(path: Path, row: BatchRow, remote_id: str) -> None:
    for other in await read_batches(path):
        if (other.provider, other.remote_id) == (row.provider, remote_id):
            raise UserError(f"that is batch {other.id} of this store already", where=remote_id)


# ----- accounts


async def _row(path: Path, batch_id: int) -> BatchRow:
    for row in await read_batches(path):
        if row.id == batch_id:
            return row
    raise UserError(
        f"the store has no batch {batch_id}", where=str(path), mend="`mirage batches STORE --all` lists them"
    )


def _standing(row: BatchRow) -> str:
    return f"it is {row.stage.replace('_', ' ')}" + (f" ({row.reason})" if row.reason else "")


@asynccontextmanager
async def _account(row: BatchRow, known: _Known) -> AsyncIterator[BatchProvider]:
    """Yield the batch API that a batch was sent to.

    Raises:
        UserError: the catalogue has no such model any more, or its key is missing.
    """
    cards = user_catalog(known.loaded).cards
    aliases = [alias for alias in known.manifest.models if alias in cards]
    wanted = [
        cards[alias] for alias in aliases if (cards[alias].provider, cards[alias].model) == (row.provider, row.model)
    ]
    accounts = build_batch_providers(wanted, os.environ)
    if row.provider not in accounts:
        raise UserError(
            f"the catalogue has no batches of {row.provider}/{row.model} any more",
            where=str(known.loaded.path),
            mend="give the sweep file that names it: --sweep FILE",
        )
    try:
        yield accounts[row.provider]
    finally:
        for account in accounts.values():
            await account.close()


async def _known(path: Path, name: str, file: Path | None) -> _Known:
    """Return a sweep of the store with the file that the store keeps, with the accounts of another one if given.

    Raises:
        UserError: a file cannot be used, or a simulated sweep's addresses are not known.
    """
    sweep = await _sweep(path, name)
    where = Path(f"{path}, sweep {name}")
    manifest = stored_manifest(sweep, str(where))
    parse = parse_generation if PERSONA_STAGE in manifest.stages else parse_sweep
    loaded = parse(manifest.sweep_file, where)
    if file is not None:
        given = _any_file(file).sweep
        accounts = msgspec.structs.replace(loaded.sweep, provider=given.provider, model=given.model)
        loaded = msgspec.structs.replace(loaded, sweep=accounts)
    elif sweep.simulated and not _of_this_machine(loaded, manifest):
        raise UserError(
            f"sweep `{name}` is simulated, and the store does not know where the simulator is",
            where=str(path),
            mend="give a sweep file with its addresses: --sweep FILE",
        )
    return _Known(sweep, manifest, loaded)


def _of_this_machine(loaded: LoadedFile, manifest: Manifest) -> bool:
    """Say whether all accounts of a sweep are addresses of this machine, as a simulator's are."""
    cards = user_catalog(loaded).cards
    return all(alias in cards and is_loopback(cards[alias].base_url) for alias in manifest.models)


def _any_file(file: Path) -> LoadedFile:
    """Return a sweep file, or one that describes a generation of personas."""
    try:
        return load_sweep(file)
    except UserError as error:
        with suppress(UserError):
            return load_generation(file)
        raise error from None


def _job(known: _Known, path: Path) -> Job:
    loaded, simulated = known.loaded, known.sweep.simulated
    if isinstance(loaded, LoadedSweep):
        return sweep_job(prepare(loaded, store=path, simulated=simulated))
    assert isinstance(loaded, LoadedGeneration)  # noqa: S101 - there are these two
    return generation_job(prepare_generation(loaded, store=path, simulated=simulated))


async def _sweep(path: Path, name: str) -> Sweep:
    connection = await open_reader(path)
    try:
        with explained(path):
            rows = list(await connection.execute_fetchall(_SWEEP, (name,)))
    finally:
        await connection.close()
    return msgspec.convert(dict(zip(Sweep.__struct_fields__, rows[0], strict=True)), Sweep, strict=False)
