"""Broken disks, changed sweeps, stops: the next run goes on."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.batch.provider import QUEUE_FULL, LineError, Marker, RemoteBatch, Shard
from engine.batch.store import BatchStore
from engine.batch.testing import LIMITS, BatchFaults, ScriptedBatches
from engine.errors import ErrorClass, ProviderError, StoreError, UserError
from engine.events import Outcome
from engine.ledger import Cap, Scope
from engine.store import Store
from engine.testing import batched, make_cell
from tests.engine.in_batches import hurry, paid_once, within

Rig = Any
PAID = 7_000
QUOTA = ProviderError(ErrorClass.QUOTA, "no money", status=402)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def folder(rig: Rig) -> Path:
    """Where the files of the rig's batches lie."""
    path: Path = rig.path.with_suffix(".batches")
    return path


def until(runner: Any, condition: Callable[[], bool]) -> None:
    """Drain a run once a condition holds."""

    async def watch() -> None:
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        runner.drain()

    runner.watcher = asyncio.get_running_loop().create_task(watch())


async def test_a_vanished_input_of_lines_that_travel_with_the_call_is_built_anew(rig: Rig) -> None:
    """Somebody deleted the folder between two runs."""
    provider = rig.by_batch(BatchFaults(create_refused=QUOTA), has_marker=False)
    assert await within(rig, batched(range(5))) is Outcome.STOPPED
    shutil.rmtree(folder(rig))
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert await rig.query("SELECT stage FROM batch ORDER BY id") == [("dropped",), ("closed",)]
    assert paid_once(rig, provider, 5)


async def test_a_vanished_folder_does_not_matter_to_a_batch_that_runs(rig: Rig) -> None:
    """Results are fetched into a new one."""
    provider = rig.by_batch(polls=10_000)
    rig.started = lambda runner: until(runner, lambda: bool(provider.created))
    assert await within(rig, batched(range(5))) is Outcome.INTERRUPTED
    shutil.rmtree(folder(rig))
    provider.run_out()
    rig.started = lambda runner: None
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)


class Vanishing(ScriptedBatches):
    """Results disappear from the disk before they are read, twice."""

    lost = 2

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring the results and delete them."""
        paths = await super().download(batch, folder)
        if self.lost:
            self.lost -= 1
            shutil.rmtree(folder)
        return paths


async def test_results_that_vanish_before_they_are_read_are_fetched_again(rig: Rig) -> None:
    """The provider has them still."""
    provider = rig.by_batch(kind=Vanishing)
    assert await within(rig, batched(range(5))) in (Outcome.STOPPED, Outcome.COMPLETE)
    for _ in range(2):
        await within(rig, batched(range(5)))
    assert await rig.states() == {"read": 5}
    assert paid_once(rig, provider, 5)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), UserError("a batch file cannot be used")], ids=str)
@pytest.mark.parametrize("call", ["upload", "create", "download"])
async def test_a_disk_that_fails_an_adapter_stops_the_batches_and_not_the_calls(
    rig: Rig, call: str, error: Exception
) -> None:
    """The batch stays where it is, and the next run goes on with it."""
    provider = rig.by_batch()
    failures = iter([error])

    def tap(name: str, done: bool) -> None:
        if (name, done) == (call, False) and (found := next(failures, None)):
            raise found

    provider.tap = tap
    calls = [make_cell(number, stage="probe") for number in range(20, 60)]
    rig.provider._latency = 0.05
    assert await within(rig, [*batched(range(5)), *calls]) is Outcome.STOPPED
    assert len(rig.calls) == 40
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert len(provider.bill) == 5
    assert paid_once(rig, provider, 45)


async def test_a_store_that_refuses_for_a_moment_does_not_end_the_building_of_a_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full and is not any more."""
    provider = rig.by_batch()
    enlist = BatchStore.enlist
    times = 0

    async def refuse(self: BatchStore, *given: Any) -> frozenset[int]:
        nonlocal times
        times += 1
        if times > 1:
            return await enlist(self, *given)
        writer = self.store._writer
        writer.refused = StoreError("the disk is full")
        asyncio.get_running_loop().call_later(0.1, setattr, writer, "refused", None)
        raise writer.refused

    monkeypatch.setattr(BatchStore, "enlist", refuse)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert await rig.query("SELECT stage FROM batch ORDER BY id") == [("dropped",), ("closed",)]
    assert paid_once(rig, provider, 5)


async def test_a_removed_alias_of_a_model_stops_nothing_else(rig: Rig) -> None:
    """Its requests wait for it; those of the same model go."""
    provider = rig.by_batch(BatchFaults(create_refused=QUOTA))
    assert await within(rig, []) is Outcome.COMPLETE
    async with await Store.open(rig.path) as store:
        sweep = await store.find_sweep("s")
        assert sweep is not None
        await store.plan(sweep.id, [*batched(range(3)), *batched(range(10, 13), alias="n")])
    del rig.aliases["n"]
    provider._faults.clear()
    assert await within(rig, []) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 3, "planned": 3}


async def test_a_batch_with_requests_of_a_removed_alias_waits_for_it(rig: Rig) -> None:
    """Nobody could say what its answers cost; nothing of it is lost, and the run does not call itself complete."""
    provider = rig.by_batch(polls=10_000)
    cells = [*batched(range(3)), *batched(range(10, 13), alias="n")]
    rig.started = lambda runner: until(runner, lambda: bool(provider.created))
    assert await within(rig, cells) is Outcome.INTERRUPTED
    provider.run_out()
    rig.started = lambda runner: None
    aliases, rig.aliases = rig.aliases, {"m": "scripted/m-1"}
    assert await within(rig, batched(range(3))) is not Outcome.COMPLETE
    assert any("batch 1" in text for text in rig.told("batch_left"))
    rig.aliases = aliases
    assert await within(rig, cells) is Outcome.COMPLETE
    assert paid_once(rig, provider, 6)


class Slow(ScriptedBatches):
    """Makes batches, and answers only when it is told to."""

    answers = asyncio.Event()

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Make the batch and keep silent."""
        remote = await super().create(marker, file_id, path, shard)
        await self.answers.wait()
        return remote


async def test_the_first_stop_waits_for_a_create_call_that_is_on_the_wire(rig: Rig) -> None:
    """Its answer saves a search."""
    provider = rig.by_batch(kind=Slow, polls=1_000)
    provider.answers = asyncio.Event()

    def stop(runner: Any) -> None:
        until(runner, lambda: bool(provider.created))
        asyncio.get_running_loop().call_later(0.5, provider.answers.set)

    rig.started = stop
    assert await within(rig, batched(range(5))) is Outcome.INTERRUPTED
    assert provider.answers.is_set()
    assert await rig.query("SELECT stage FROM batch") == [("open",)]


async def test_the_second_stop_hangs_up_and_the_next_run_looks_for_the_batch(rig: Rig) -> None:
    """It exists, and is not created again."""
    provider = rig.by_batch(kind=Slow)
    provider.answers = asyncio.Event()

    def stop(runner: Any) -> None:
        until(runner, lambda: bool(provider.created))
        asyncio.get_running_loop().call_later(0.5, runner.abort)

    rig.started = stop
    assert await within(rig, batched(range(5))) is Outcome.INTERRUPTED
    assert await rig.query("SELECT stage FROM batch") == [("creating",)]
    provider.answers.set()
    rig.started = lambda runner: None
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert len(provider.created) == 1
    assert paid_once(rig, provider, 5)


@pytest.mark.parametrize("moment", ["upload", "create", "poll", "download", "clean"])
async def test_a_run_can_be_stopped_at_any_moment_and_goes_on_later(rig: Rig, moment: str) -> None:
    """Also twice in a row."""
    provider = rig.by_batch()

    def start(runner: Any) -> None:
        def tap(name: str, done: bool) -> None:
            if (name, done) == (moment, False):
                provider.tap = None
                runner.drain()
                runner.abort()

        provider.tap = tap

    rig.started = start
    assert await within(rig, batched(range(5))) is Outcome.INTERRUPTED
    rig.started = lambda runner: None
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert len(provider.created) == 1
    assert paid_once(rig, provider, 5)
    assert await rig.spent() == 5 * PAID


FAULTS = (
    BatchFaults(),
    BatchFaults(create_lost_before=True),
    BatchFaults(create_lost_after=True, list_lag=2),
    BatchFaults(upload_errors=1, fresh_404=2),
    BatchFaults(expires=3, torn_downloads=2, unpaid_rest=True),
    BatchFaults(expires=5, shuffled=True, results_late=2),
    BatchFaults(repeated_rows=4, torn_downloads=3),
    BatchFaults(fails=(LineError(code=QUEUE_FULL, message="too much waits"),)),
    BatchFaults(create_refused=QUOTA),
)


@pytest.mark.parametrize("has_marker", [True, False], ids=["marker", "no marker"])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_in_whatever_order_everything_is_answered_and_paid_once(
    rig: Rig, seed: int, *, has_marker: bool
) -> None:
    """Faults and stops at random, run after run, until nothing is left; the books agree after each."""
    chance = random.Random(seed)  # noqa: S311 - which test case it is
    limits = msgspec.structs.replace(LIMITS, max_requests=8, live_batches=3)
    provider = rig.by_batch(*chance.choices(FAULTS, k=14), limits=limits, has_marker=has_marker)

    def start(runner: Any) -> None:
        left = chance.randrange(4, 40)

        def tap(name: str, done: bool) -> None:
            nonlocal left
            left -= 1
            if name == "find":
                provider.run_out()
            if left == 0:
                runner.drain()
                runner.abort()

        provider.tap = tap

    rig.started = start
    rig.caps = {Scope("sweep", "s"): Cap(nano=10**9)}
    for _ in range(40):
        if await within(rig, batched(range(30))) is Outcome.COMPLETE:
            break
        account = rig.last.accounts[Scope("sweep", "s")]
        assert account.spent_nano + account.reserved_nano <= 10**9
        await rig.spent()
    assert await rig.states() == {"read": 30}
    assert paid_once(rig, provider, 30)
    assert await rig.spent() == 30 * PAID
