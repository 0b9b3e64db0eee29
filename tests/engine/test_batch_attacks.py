"""Whole runs by batch against hostile providers, wrong clocks, broken disks and changed sweeps."""

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.batch.lane import BatchLane
from engine.batch.policy import BatchPolicy
from engine.batch.records import Batch
from engine.batch.stage import Step
from engine.batch.store import BatchStore
from engine.batch.wiring import Batching
from engine.batch_testing import LIMITS, BatchFaults, BatchScript, ScriptedBatches
from engine.batching import QUEUE_FULL, BatchLimits, BatchState, LineError, Marker, RemoteBatch, Row, Shard, Unpaid
from engine.cell import Cell
from engine.clock import SystemClock
from engine.errors import ErrorClass, ProviderError, StoreError, UserError
from engine.events import Outcome
from engine.ledger import Cap, Scope
from engine.request import input_token_estimate, prompt_bytes
from engine.retry import RetryPolicy
from engine.store import Store
from engine.testing import make_cell, make_request

Rig = Any
LANE = "scripted/m-1 (batch)"
PAID = 7_000
QUICK = BatchPolicy(flush_after=60.0, first_poll=0.01, longest_poll=0.05, grace=0.1, results_patience=0.2)
QUOTA = ProviderError(ErrorClass.QUOTA, "no money", status=402)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for seconds."""
    monkeypatch.setattr("engine.batch.submission.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("engine.batch.conductor.DOWNLOAD_PAUSE", 0.01)
    monkeypatch.setattr("engine.batch.harvesting.LONGEST_PAUSE", 0.05)


def batched(numbers: range, *, stage: str = "task", alias: str = "m") -> list[Cell]:
    """Cells that go by batch."""
    return [msgspec.structs.replace(make_cell(number, stage=stage, alias=alias), batch=True) for number in numbers]


def desk(
    rig: Rig, *faults: BatchFaults, script: BatchScript = lambda request, times: "hi", policy: BatchPolicy = QUICK,
    limits: BatchLimits = LIMITS, aliases: str = "mno", kind: type[ScriptedBatches] = ScriptedBatches, **options: Any,
) -> Any:  # fmt: skip
    """Give a rig a batch API that outlives its runs; every run has its own lanes and token."""
    provider = kind(script, now=time.time, limits=limits, faults=faults, **options)
    runs = iter(range(1_000))

    def batching() -> Batching:
        lane = BatchLane(LANE, provider="scripted", model="m-1", limits=provider.limits("m-1"), policy=policy)
        return Batching(
            providers={"scripted": provider}, lanes={LANE: lane}, prices=dict.fromkeys(rig.aliases, rig.price),
            policy=policy, retry=RetryPolicy(failures=3, base=0.001),
            leftovers={LANE: LANE if policy.leftovers == "batch" else "scripted/m-1"},
            feeds={}, folder=folder(rig), run=f"run{next(runs)}",
        )  # fmt: skip

    rig.batching = batching
    return provider


def folder(rig: Rig) -> Path:
    """Where the files of the rig's batches lie."""
    path: Path = rig.path.with_suffix(".batches")
    return path


def paid_once(rig: Rig, provider: ScriptedBatches, calls: int) -> bool:
    """Whether every request was charged once, by batch or by call."""
    by_batch = all(times == 1 for times in provider.bill.values())
    return by_batch and len(provider.bill) + len(rig.calls) == calls and len(set(rig.calls)) == len(rig.calls)


async def within(rig: Rig, cells: list[Cell], seconds: float = 20.0) -> Outcome:
    """Run, and fail if it does not end."""
    async with asyncio.timeout(seconds):
        outcome: Outcome = await rig.run(cells)
    return outcome


def until(runner: Any, condition: Callable[[], bool]) -> None:
    """Drain a run once a condition holds."""

    async def watch() -> None:
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        runner.drain()

    runner.watcher = asyncio.get_running_loop().create_task(watch())


# ----- results: nothing is given up, and nothing sent again, before they were read


async def test_results_that_could_not_be_fetched_are_not_taken_for_results_without_rows(rig: Rig) -> None:
    """The provider says that what has no row was not run; the rows have to be looked at first."""
    provider = desk(rig, BatchFaults(expires=6, unpaid_rest=True, torn_downloads=2))
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)
    assert len(rig.calls) == 4


async def test_a_row_that_cannot_be_read_casts_doubt_on_what_has_no_row(rig: Rig) -> None:
    """It may be the answer of any of them: none is bought a second time."""
    provider = desk(rig, BatchFaults(missing_rows=1, garbled_rows=1, unpaid_rest=True))
    assert await within(rig, batched(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 9, "failed": 1}
    assert paid_once(rig, provider, 10)


async def test_an_outage_that_outlasts_patience_loses_no_answer(rig: Rig) -> None:
    """Patience is for rows that a provider does not have, not for a network that is down."""
    provider = desk(rig, BatchFaults(torn_downloads=30))
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)
    assert await rig.spent() == 10 * PAID


async def test_files_of_a_batch_whose_rows_never_came_stay_at_the_provider(rig: Rig) -> None:
    """They are all that could still tell."""
    provider = desk(rig, BatchFaults(missing_rows=2))
    assert await within(rig, batched(range(5))) is Outcome.INCOMPLETE
    assert (provider.calls["clean"], len(provider.files)) == (0, 1)


class Twice(ScriptedBatches):
    """Says first of every request that it failed, far ahead of its answer."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Yield errors, then what the file says."""
        found = list(super().rows(path))
        yield from (Row(row.custom_id, ProviderError(ErrorClass.TRANSIENT, "oops", status=500)) for row in found)
        yield from found


async def test_an_answer_counts_whatever_another_row_says_of_its_request(rig: Rig) -> None:
    """It was paid for."""
    provider = desk(rig, kind=Twice)
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert rig.calls == []
    assert paid_once(rig, provider, 10)


class Failing(ScriptedBatches):
    """Calls every batch that has ended failed."""

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch with another state."""
        remote = await super().poll(batch_id)
        failed = remote.state is BatchState.ENDED
        return msgspec.structs.replace(remote, state=BatchState.FAILED) if failed else remote


async def test_a_failed_batch_with_results_is_read(rig: Rig) -> None:
    """Any status: only rows count."""
    provider = desk(rig, kind=Failing)
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)


@pytest.mark.parametrize(
    "index", ["9" * 30, "9" * 5_000, str(1 << 63), str(1 << 64)], ids=["30 digits", "5,000", "63 bits", "64 bits"]
)
def test_no_index_is_too_large_to_be_refused(index: str) -> None:
    """Rows are hostile text."""
    marker = Marker(run="run0", shard=1, attempt=0, digest="0" * 16)
    assert marker.line_index(f"run0-1-0-{index}") is None


class Strange(ScriptedBatches):
    """Adds rows that no line of ours has."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Yield strange rows, then what the file says."""
        found = list(super().rows(path))
        head = found[0].custom_id.rpartition("-")[0]
        for custom_id in (f"{head}-{10**30}", f"{head}-99999", "../../x", "\x1b[2J", head, f"{head}-٣", ""):
            yield Row(custom_id, found[0].outcome)
        yield from found


async def test_rows_with_strange_ids_are_passed_over(rig: Rig) -> None:
    """Whatever they claim to be."""
    provider = desk(rig, kind=Strange)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)


async def test_a_row_with_a_status_beyond_all_measure_is_an_error_like_others(rig: Rig) -> None:
    """The store's integers end somewhere."""
    error = ProviderError(ErrorClass.CONTENT, "no", status=(1 << 63) + 5)
    desk(rig, script=lambda request, times: error)
    assert await within(rig, batched(range(3))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 3}


async def test_cancelled_again_and_again_a_request_fails(rig: Rig) -> None:
    """Patience is bounded, whoever cancels."""
    policy = msgspec.structs.replace(QUICK, leftovers="batch")
    desk(rig, script=lambda request, times: Unpaid.CANCELLED, policy=policy)
    assert await within(rig, batched(range(2))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 2}


# ----- in doubt


class OffsetClock(SystemClock):
    """A wall clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def wall_ms(self) -> int:
        """Return the wrong time."""
        return super().wall_ms() + round(1000 * self.seconds)


@pytest.mark.parametrize("hours", [-5, 5], ids=["slow", "fast"])
async def test_a_wrong_clock_does_not_hide_a_batch_in_doubt(rig: Rig, hours: int) -> None:
    """It would be paid for twice."""
    rig.clock = OffsetClock(3600.0 * hours)
    provider = desk(rig, BatchFaults(create_lost_after=True))
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert len(provider.created) == 1
    assert paid_once(rig, provider, 5)


class Alike(ScriptedBatches):
    """Lists a batch of somebody else's that can never be told apart."""

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return one candidate."""
        self.calls["find"] += 1
        await asyncio.sleep(0)
        return [RemoteBatch(id="theirs", state=BatchState.ENDED, count=count)]


async def test_a_batch_that_cannot_be_told_from_anothers_does_not_hold_the_run_for_ever(rig: Rig) -> None:
    """It stays in doubt for a person to say; nothing is sent again."""
    limits = msgspec.structs.replace(LIMITS, window=0.1)
    provider = desk(rig, BatchFaults(create_lost_before=True), limits=limits, has_marker=False, kind=Alike)
    assert await within(rig, batched(range(5))) is Outcome.STOPPED
    assert await rig.query("SELECT stage FROM batch") == [("in_doubt",)]
    assert provider.created == []
    assert any("theirs" in text and "attach" in text for text in rig.told("provider_stopped"))


class Doubled(ScriptedBatches):
    """Makes two of one create call; the newer one, which is listed first, was refused."""

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return a failed double ahead of the batch."""
        found = await super().find(marker, since, count)
        return [*(msgspec.structs.replace(each, id="double", state=BatchState.FAILED) for each in found), *found]


async def test_of_two_batches_the_one_that_runs_is_taken_over(rig: Rig) -> None:
    """The other would say that nothing ran."""
    provider = desk(rig, BatchFaults(create_lost_after=True), kind=Doubled)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)


class Nameless(ScriptedBatches):
    """Lists batches without ids."""

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the batch without its id once, then with it."""
        found = await super().find(marker, since, count)
        return [msgspec.structs.replace(each, id="") for each in found] if self.calls["find"] == 1 else found


async def test_a_listed_batch_without_an_id_is_looked_for_again(rig: Rig) -> None:
    """What has no name cannot be taken over."""
    provider = desk(rig, BatchFaults(create_lost_after=True), kind=Nameless)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)


async def test_requests_of_a_batch_that_is_elsewhere_than_thought_are_not_given_back(
    store: Store, seat: Callable[..., Any]
) -> None:
    """A stale record must not plan again what is at the provider."""
    found = await seat(store)
    await found.plan(*batched(range(2)))
    batches = BatchStore(store, found.sweep.id, found.run_id)
    stale = await batches.add(LANE, "scripted", "m-1", 1)
    candidates = await batches.candidates(LANE, (), (0, 0), 10)
    await batches.enlist([(each, place, (5, 5)) for place, each in enumerate(candidates)], stale, 1)  # type: ignore[misc]
    ready = await batches.advance(stale, Step.SEAL, 1, marker="r-1-0-0123456789abcdef", count=2)
    with pytest.raises(StoreError):
        await batches.drop(stale, "stale", 2)
    assert len(await batches.open_numbers(ready, -1, 10)) == 2
    assert await batches.candidates(LANE, (), (0, 0), 10) == []


# ----- queues and refusals


async def test_a_queue_that_fails_batches_is_left_alone_for_a_while(rig: Rig) -> None:
    """A failed batch's own leaving does not count as room in the queue."""
    policy = msgspec.structs.replace(QUICK, first_poll=0.1)
    full = LineError(code=QUEUE_FULL, message="too much waits")
    at: list[float] = []
    provider = desk(
        rig, BatchFaults(fails=(full,)), policy=policy,
        tap=lambda name, done: at.append(time.monotonic()) if (name, done) == ("create", False) else None,
    )  # fmt: skip
    assert await within(rig, batched(range(8))) is Outcome.COMPLETE
    assert at[1] - at[0] >= 0.6
    assert paid_once(rig, provider, 8)


async def test_a_request_for_which_no_queue_has_room_is_not_tried_for_ever(rig: Rig) -> None:
    """A batch of one cannot be made smaller."""
    full = BatchFaults(fails=(LineError(code=QUEUE_FULL, message="too much waits"),))
    desk(rig, *[full] * 40, policy=msgspec.structs.replace(QUICK, first_poll=0.001))
    assert await within(rig, batched(range(1))) is Outcome.COMPLETE
    assert rig.calls == ["task 0"]


async def test_a_queue_with_too_little_room_makes_no_empty_batches(rig: Rig) -> None:
    """The next request waits for a batch to end; until then nothing is written."""
    small, large = make_cell(1), make_cell(2, request=make_request("x" * 400))
    most = input_token_estimate(prompt_bytes(large.request), 1)
    provider = desk(rig, limits=msgspec.structs.replace(LIMITS, enqueued_tokens=most, max_requests=1), polls=40)
    cells = [msgspec.structs.replace(each, batch=True) for each in (small, large)]
    assert await within(rig, cells) is Outcome.COMPLETE
    assert paid_once(rig, provider, 2)
    assert len(await rig.query("SELECT 1 FROM batch WHERE stage = 'dropped'")) <= 1
    assert list(folder(rig).iterdir()) == []


@pytest.mark.parametrize("line", [0, 11, -1, 1 << 70])
async def test_complaints_about_lines_that_are_not_there_blame_the_batch(rig: Rig, line: int) -> None:
    """Else the same batch would be made again and again."""
    faults = [BatchFaults(fails=(LineError(code="invalid", message="wrong", line=line),))] * 50
    desk(rig, *faults)
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert len(rig.calls) == 10


async def test_a_crash_while_blaming_blames_no_neighbour(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines keep their numbers although some have an outcome."""
    culprits = tuple(LineError(code="invalid", message=f"line {n} is wrong", line=n) for n in (2, 3))
    desk(rig, BatchFaults(fails=culprits))
    drop = BatchStore.drop

    async def crash(self: BatchStore, batch: Batch, why: str, now_ms: int) -> None:
        monkeypatch.setattr(BatchStore, "drop", drop)
        raise RuntimeError("the process ends here")

    monkeypatch.setattr(BatchStore, "drop", crash)
    with pytest.raises(RuntimeError):
        await within(rig, batched(range(10)))
    await within(rig, batched(range(10)))
    assert await rig.states() == {"read": 8, "failed": 2}


async def test_a_batch_that_is_always_refused_gives_its_requests_back_and_lets_calls_go_on(rig: Rig) -> None:
    """A model without batches is no reason to stop its calls, nor to keep requests in a batch that can never be."""
    no = BatchFaults(create_refused=ProviderError(ErrorClass.BAD_REQUEST, "no batches for you", status=400))
    desk(rig, *[no] * 10)
    calls = [make_cell(number, stage="probe") for number in range(20, 60)]
    rig.provider._latency = 0.05
    assert await within(rig, [*batched(range(5)), *calls]) is Outcome.STOPPED
    assert len(rig.calls) == 40
    assert await rig.states() == {"planned": 5, "read": 40}


class Deaf(ScriptedBatches):
    """Hears a cancellation only when it is said often."""

    async def cancel(self, batch_id: str) -> None:
        """Fail three times."""
        if self.calls["cancel"] < 3:
            self.calls["cancel"] += 1
            raise ProviderError(ErrorClass.TRANSIENT, "busy", status=503)
        await super().cancel(batch_id)


async def test_a_cancellation_that_was_not_heard_is_repeated(rig: Rig) -> None:
    """A batch that goes on running is not given up."""
    policy = msgspec.structs.replace(QUICK, deadline=0.05, results_patience=2.0)
    provider = desk(rig, BatchFaults(stuck=True), policy=policy, polls=1_000, kind=Deaf)
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert provider.calls["cancel"] == 4
    assert paid_once(rig, provider, 10)


class Eternal(ScriptedBatches):
    """Says that batches expire in another age."""

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch with another end."""
        return msgspec.structs.replace(await super().poll(batch_id), expires_at=1e18)


async def test_a_provider_cannot_make_a_run_wait_for_ever(rig: Rig) -> None:
    """Its word on when a batch ends has bounds."""
    limits = msgspec.structs.replace(LIMITS, window=0.1)
    provider = desk(rig, BatchFaults(stuck=True), limits=limits, polls=1_000, kind=Eternal)
    assert await within(rig, batched(range(3))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 3)


async def test_a_refusal_that_asks_to_wait_for_a_week_is_asked_again_earlier(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints have bounds."""
    monkeypatch.setattr("engine.batch.submission.LONGEST_PAUSE", 0.05)
    desk(rig, BatchFaults(create_refused=ProviderError(ErrorClass.RATE, "later", status=429, retry_after=604_800.0)))
    assert await within(rig, batched(range(3))) is Outcome.COMPLETE


# ----- disks


async def test_a_vanished_input_of_lines_that_travel_with_the_call_is_built_anew(rig: Rig) -> None:
    """Somebody deleted the folder between two runs."""
    provider = desk(rig, BatchFaults(create_refused=QUOTA), has_marker=False)
    assert await within(rig, batched(range(5))) is Outcome.STOPPED
    shutil.rmtree(folder(rig))
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert await rig.query("SELECT stage FROM batch ORDER BY id") == [("dropped",), ("closed",)]
    assert paid_once(rig, provider, 5)


async def test_a_vanished_folder_does_not_matter_to_a_batch_that_runs(rig: Rig) -> None:
    """Results are fetched into a new one."""
    provider = desk(rig, polls=10_000)
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
    provider = desk(rig, kind=Vanishing)
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
    provider = desk(rig)
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
    provider = desk(rig)
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


# ----- sweeps that change between runs


async def test_a_removed_alias_of_a_model_stops_nothing_else(rig: Rig) -> None:
    """Its requests wait for it; those of the same model go."""
    provider = desk(rig, BatchFaults(create_refused=QUOTA))
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
    provider = desk(rig, polls=10_000)
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


# ----- stopping


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
    provider = desk(rig, kind=Slow, polls=1_000)
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
    provider = desk(rig, kind=Slow)
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
    provider = desk(rig)

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
    provider = desk(rig, *chance.choices(FAULTS, k=14), limits=limits, has_marker=has_marker)

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


@pytest.mark.parametrize(("most", "sizes"), [(None, [50, 100, 200]), (80, [50, 80, 80])], ids=["no bound", "a bound"])
def test_batches_grow_again_once_the_queue_holds_them(most: int | None, sizes: list[int]) -> None:
    """A crowd at the provider passes; batches of a few requests would be sent for the rest of the run."""
    policy = msgspec.structs.replace(QUICK, most_requests=most)
    lane = BatchLane(LANE, provider="scripted", model="m-1", limits=LIMITS, policy=policy)
    lane.shrink(100)
    found = []
    for _ in sizes:
        room = lane.room()
        assert room is not None
        found.append(room.requests)
        lane.accepted()
    assert found == sizes


class Silent(ScriptedBatches):
    """Ends batches, names their results only later, and cannot be reached in between."""

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch without results, then nothing for long, then all."""
        remote = await super().poll(batch_id)
        if 1 < self.calls["poll"] < 20:
            raise ProviderError(ErrorClass.TRANSIENT, "no route to host")
        return msgspec.structs.replace(remote, results=()) if self.calls["poll"] == 1 else remote


async def test_results_that_are_named_late_outlast_an_outage(rig: Rig) -> None:
    """A provider that cannot be asked has not said that it has none."""
    provider = desk(rig, kind=Silent)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)
