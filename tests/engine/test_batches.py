"""Whole runs by batch: a scripted batch API, a real store file, crashes between any two steps."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.batch.provider import QUEUE_FULL, LineError, Unpaid
from engine.batch.testing import LIMITS, QUICK, BatchFaults, ScriptedBatches
from engine.errors import ErrorClass, ProviderError
from engine.events import Outcome, StageCount
from engine.ledger import Cap, Scope
from engine.request import Completion, Request, request_key
from engine.testing import EchoReader, batched, make_cell, make_request

Rig = Any
LANE = "scripted/m-1 (batch)"
SWEEP = Scope("sweep", "s")
PAID = 7_000


def paid_once(provider: ScriptedBatches) -> bool:
    """Whether nothing was charged twice."""
    return all(times == 1 for times in provider.bill.values())


# ----- the plain way through


async def test_a_sweep_goes_by_batch_and_is_read(rig: Rig) -> None:
    """One create call, an answer for every request, and the books agree."""
    provider = rig.by_batch()
    assert await rig.run(batched(range(50))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 50}
    assert (provider.calls["create"], len(provider.bill), await rig.spent()) == (1, 50, 50 * PAID)
    assert rig.last.stages == {"task": StageCount(read=50)}
    assert rig.calls == []


async def test_files_are_cleaned_up_here_and_there(rig: Rig) -> None:
    """A finished batch leaves only its rows."""
    provider = rig.by_batch()
    await rig.run(batched(range(5)))
    assert provider.files == {}
    assert [path for path in rig.path.with_suffix(".batches").rglob("*") if path.is_file()] == []
    assert await rig.query("SELECT stage, requests, completed, open FROM batches") == [("closed", 5, 5, 0)]


async def test_more_than_a_batch_holds_goes_into_several(rig: Rig) -> None:
    """The provider's count is kept to."""
    provider = rig.by_batch(limits=msgspec.structs.replace(LIMITS, max_requests=20))
    assert await rig.run(batched(range(50))) is Outcome.COMPLETE
    assert sorted(size for _, size in provider.created) == [10, 20, 20]


async def test_a_batch_keeps_to_the_providers_bytes(rig: Rig) -> None:
    """Bytes are those of the lines, ends included."""
    provider = rig.by_batch(limits=msgspec.structs.replace(LIMITS, max_bytes=2_000))
    assert await rig.run(batched(range(50))) is Outcome.COMPLETE
    assert len(provider.created) > 2
    assert paid_once(provider)
    assert len(provider.bill) == 50


async def test_batches_and_calls_go_side_by_side(rig: Rig) -> None:
    """Each request goes the way of its lane."""
    provider = rig.by_batch()
    cells = [*batched(range(10)), *(make_cell(number, stage="probe") for number in range(10))]
    assert await rig.run(cells) is Outcome.COMPLETE
    assert (len(provider.bill), len(rig.calls)) == (10, 10)


async def test_dependent_stages_go_in_waves(rig: Rig) -> None:
    """Judgements are sent together once no task can bring another."""
    provider = rig.by_batch(
        limits=msgspec.structs.replace(LIMITS, max_requests=20), feeds={"judge": frozenset({"task"})}
    )
    rig.reader = EchoReader(
        lambda stage, coords, completion: (
            batched(range(n := number(coords), n + 1), stage="judge") if stage == "task" else []
        )
    )
    assert await rig.run(batched(range(40))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 80}
    assert [size for _, size in provider.created] == [20, 20, 20, 20]


def number(coords: bytes) -> int:
    """The number of a cell."""
    return int(msgspec.json.decode(coords)["n"])


async def test_what_waits_long_enough_goes_although_more_may_come(rig: Rig) -> None:
    """A slow upstream does not hold a batch back for ever."""
    policy = msgspec.structs.replace(QUICK, flush_after=0.0)
    provider = rig.by_batch(policy=policy, feeds={"task": frozenset({"probe"})})
    rig.provider._latency = 0.3
    await rig.run([*batched(range(3)), make_cell(9, stage="probe")])
    assert [size for _, size in provider.created] == [3]


# ----- money


async def test_a_cap_withholds_what_it_cannot_hold(rig: Rig) -> None:
    """The rest stays planned, and goes once the cap is raised."""
    worst = rig.price.output // 1_000_000 * 100
    rig.by_batch()
    rig.caps = {SWEEP: Cap(nano=3 * worst)}
    assert await rig.run(batched(range(50))) is Outcome.BUDGET
    first = await rig.states()
    assert first["planned"] > 0
    assert await rig.spent() <= 3 * worst
    assert rig.last is not None
    assert [(short.scope, short.cap) for short in rig.last.short] == [(SWEEP, 3 * worst)]
    rig.caps = {}
    assert await rig.run(batched(range(50))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 50}


async def test_what_is_under_way_counts_against_the_cap_of_the_next_run(rig: Rig) -> None:
    """A batch that a killed run left at the provider keeps its reservation."""
    provider = rig.by_batch(polls=10_000)
    rig.started = lambda runner: stop_when(runner, lambda: bool(provider.created))
    assert await rig.run(batched(range(10))) is Outcome.INTERRUPTED
    held = await rig.spent()
    assert held > 10 * PAID
    provider.run_out()
    rig.started = lambda runner: None
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert await rig.spent() == 10 * PAID
    assert rig.last.accounts[SWEEP].reserved_nano == 0
    assert rig.last.accounts[SWEEP].spent_nano == 10 * PAID


def stop_when(runner: Any, condition: Callable[[], bool]) -> None:
    """Drain a run once a condition holds."""

    async def watch() -> None:
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        runner.drain()

    runner.watcher = asyncio.get_running_loop().create_task(watch())


# ----- what goes wrong at the provider


FAULTS = {
    "list lag": BatchFaults(create_lost_after=True, list_lag=3),
    "create lost before": BatchFaults(create_lost_before=True),
    "create lost after": BatchFaults(create_lost_after=True),
    "refused for a moment": BatchFaults(create_refused=ProviderError(ErrorClass.TRANSIENT, "busy", status=503)),
    "upload breaks off": BatchFaults(upload_errors=2),
    "unknown at first": BatchFaults(fresh_404=3),
    "bad gateways": BatchFaults(poll_errors=3),
    "results late": BatchFaults(results_late=3),
    "torn download": BatchFaults(torn_downloads=2),
    "repeated rows": BatchFaults(repeated_rows=5),
    "shuffled": BatchFaults(shuffled=True),
    "expired": BatchFaults(expires=4),
    "failed for the queue": BatchFaults(fails=(LineError(code=QUEUE_FULL, message="too much waits"),)),
    "failed for no reason": BatchFaults(fails=(LineError(code="x", message="something"),)),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
async def test_every_request_is_answered_and_paid_once_whatever_happens(
    rig: Rig, faults: BatchFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost answers, late lists, expired batches: the end is the same."""
    monkeypatch.setattr("engine.batch.submission.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("engine.batch.lane.FIRST_WAIT", 0.05)
    monkeypatch.setattr("engine.batch.conductor.DOWNLOAD_PAUSE", 0.02)
    provider = rig.by_batch(faults)
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 20}
    assert paid_once(provider)
    assert len(provider.bill) + len(rig.calls) == 20
    assert await rig.spent() == 20 * PAID


async def test_a_request_without_a_row_fails_with_a_reason_and_is_not_sent_again(rig: Rig) -> None:
    """It may have run: whoever sends it again may pay twice."""
    provider = rig.by_batch(BatchFaults(missing_rows=3))
    assert await rig.run(batched(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 7, "failed": 3}
    assert paid_once(provider)
    assert await rig.query("SELECT DISTINCT outcome FROM attempt WHERE error_class IS NOT NULL") == [("assumed",)]
    assert "without a row" in str((await rig.query("SELECT error FROM request WHERE state = 'failed'"))[0])


async def test_a_request_without_a_row_goes_again_where_the_provider_says_that_it_did_not_run(rig: Rig) -> None:
    """Some providers say that what an ended batch lacks was not run."""
    rig.by_batch(BatchFaults(unpaid_rest=True), script=lambda request, times: None)
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 10}
    assert len(rig.calls) == 10


async def test_a_line_that_sinks_the_batch_fails_alone(rig: Rig) -> None:
    """The others go again without it."""
    culprit = LineError(code="invalid", message="line 3 is wrong", line=3)
    provider = rig.by_batch(BatchFaults(fails=(culprit,)))
    assert await rig.run(batched(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 9, "failed": 1}
    assert [size for _, size in provider.created] == [10, 9]


async def test_rows_with_errors_are_classified(rig: Rig) -> None:
    """What can never work fails; what can is sent again, by the lane of leftovers."""
    kinds = {0: ErrorClass.CONTENT, 1: ErrorClass.TRANSIENT, 2: ErrorClass.RATE}

    def script(request: Request, times: int) -> str | ProviderError:
        kind = kinds.get(int(request.messages[0].content.split()[-1]))
        return ProviderError(kind, "trouble") if kind else "hi"

    rig.by_batch(script=script)
    assert await rig.run(batched(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 9, "failed": 1}
    assert sorted(rig.calls) == ["task 1", "task 2"]


async def test_leftovers_go_by_batch_where_the_user_wants_it(rig: Rig) -> None:
    """An expired batch's rest goes into another one."""
    provider = rig.by_batch(BatchFaults(expires=4), policy=msgspec.structs.replace(QUICK, leftovers="batch"))
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert [size for _, size in provider.created] == [10, 6]
    assert rig.calls == []


async def test_a_batch_that_is_late_is_cancelled_and_its_rest_sent_again(rig: Rig) -> None:
    """What it had finished is kept."""
    policy = msgspec.structs.replace(QUICK, deadline=0.1)
    provider = rig.by_batch(BatchFaults(stuck=True), policy=policy, polls=1_000)
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert provider.calls["cancel"] == 1
    assert len(provider.bill) + len(rig.calls) == 10


async def test_a_provider_without_quota_stops_and_its_batch_is_kept(rig: Rig) -> None:
    """The next run submits the same file."""
    error = ProviderError(ErrorClass.QUOTA, "no money", status=402)
    provider = rig.by_batch(BatchFaults(create_refused=error))
    assert await rig.run(batched(range(10))) is Outcome.STOPPED
    assert await rig.query("SELECT stage FROM batch") == [("uploaded",)]
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert (provider.calls["upload"], len(provider.created)) == (1, 1)


async def test_a_full_queue_makes_the_batch_smaller_when_nothing_of_ours_is_in_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice refused, a batch is formed anew with half of its requests."""
    monkeypatch.setattr("engine.batch.lane.FIRST_WAIT", 0.02)
    full = ProviderError(ErrorClass.RATE, "full", status=429, code=QUEUE_FULL)
    provider = rig.by_batch(BatchFaults(create_refused=full), BatchFaults(create_refused=full))
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert [size for _, size in provider.created] == [10, 10]


async def test_without_markers_only_one_submission_is_in_doubt_at_a_time(rig: Rig) -> None:
    """The second create waits until the first one's fate is known."""
    limits = msgspec.structs.replace(LIMITS, max_requests=10)
    provider = rig.by_batch(
        BatchFaults(create_lost_after=True, list_lag=2), limits=limits, has_marker=False, tap=ending(rig)
    )
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert paid_once(provider)
    assert [size for _, size in provider.created] == [10, 10]


async def test_a_line_that_cannot_be_written_fails_before_anything_is_sent(rig: Rig) -> None:
    """One bad line cannot sink a batch."""
    provider = rig.by_batch(limits=msgspec.structs.replace(LIMITS, max_line_bytes=400))
    long = make_cell(99, request=make_request("x" * 1_000))
    assert await rig.run([*batched(range(5)), msgspec.structs.replace(long, batch=True)]) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 5, "failed": 1}
    assert [size for _, size in provider.created] == [5]


def ending(rig: Rig) -> Callable[[str, bool], None]:
    """A tap that lets batches end while they are looked for, as they do whether anybody polls or not."""

    def tap(name: str, done: bool) -> None:
        if name == "find" and not done:
            rig.batching().providers["scripted"].run_out()

    return tap


# ----- crashes


class Crash(Exception):
    """The process ends here."""


STEPS = [(name, after) for name in ("upload", "create", "poll", "download", "clean") for after in (False, True)]


@pytest.mark.parametrize("has_marker", [True, False], ids=["marker", "no marker"])
@pytest.mark.parametrize(("call", "after"), [step for step in STEPS if step != ("poll", True)])
async def test_a_crash_at_any_step_loses_nothing_and_pays_nothing_twice(
    rig: Rig, call: str, *, after: bool, has_marker: bool
) -> None:
    """Whatever was under way is found where it was, at the provider's list if need be."""
    if call == "upload" and not has_marker and after:
        pytest.skip("lines travel with the create call there")
    crashed = False

    def tap(name: str, done: bool) -> None:
        nonlocal crashed
        if name == "find":
            provider.run_out()
        if not crashed and (name, done) == (call, after):
            crashed = True
            raise Crash

    provider = rig.by_batch(has_marker=has_marker, tap=tap)
    with pytest.raises(Crash):
        await rig.run(batched(range(20)))
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 20}
    assert paid_once(provider)
    assert len(provider.bill) == 20
    assert rig.calls == []
    assert await rig.spent() == 20 * PAID


async def test_a_batch_that_was_being_built_at_the_crash_is_built_again(rig: Rig) -> None:
    """Nothing of it had been sent."""
    provider = rig.by_batch()
    encode = provider.encode_line
    provider.encode_line = lambda line: (_ for _ in ()).throw(Crash)  # type: ignore[method-assign]
    with pytest.raises(Crash):
        await rig.run(batched(range(20)))
    provider.encode_line = encode  # type: ignore[method-assign]
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 20}
    assert await rig.query("SELECT stage FROM batch ORDER BY id") == [("dropped",), ("closed",)]


async def test_results_read_in_part_before_a_crash_are_not_read_twice(rig: Rig) -> None:
    """A line that has an outcome is passed over."""
    provider = rig.by_batch()
    rows = provider.rows
    crashed = False

    def torn(path: Path) -> Any:
        nonlocal crashed
        for place, row in enumerate(rows(path)):
            if place == 5 and not crashed:
                crashed = True
                raise Crash
            yield row

    provider.rows = torn  # type: ignore[method-assign]
    with pytest.raises(Crash):
        await rig.run(batched(range(20)))
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert await rig.spent() == 20 * PAID


async def test_a_stopped_run_leaves_its_batch_at_the_provider(rig: Rig) -> None:
    """The next run goes on with it and creates nothing."""
    provider = rig.by_batch(polls=10_000)
    rig.started = lambda runner: stop_when(runner, lambda: bool(provider.created))
    assert await rig.run(batched(range(10))) is Outcome.INTERRUPTED
    assert await rig.query("SELECT stage FROM batch") == [("open",)]
    provider.run_out()
    rig.started = lambda runner: None
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert provider.calls["create"] == 1


def charged(provider: ScriptedBatches, request: Request) -> int:
    """How often a request was charged."""
    return provider.bill[request_key(request)]


async def test_an_answer_comes_out_as_it_went_in(rig: Rig) -> None:
    """Text and usage are those of the row."""
    seen: list[Completion] = []
    rig.by_batch(script=lambda request, times: f"answer to {request.messages[0].content}")
    rig.reader = EchoReader(lambda stage, coords, completion: seen.append(completion) or [])  # type: ignore[func-returns-value]
    await rig.run(batched(range(3)))
    assert sorted(completion.text for completion in seen) == [f"answer to task {n}" for n in range(3)]


async def test_expired_again_and_again_a_request_fails(rig: Rig) -> None:
    """Patience is bounded."""
    rig.by_batch(script=lambda request, times: Unpaid.EXPIRED, policy=msgspec.structs.replace(QUICK, leftovers="batch")
    )  # fmt: skip
    assert await rig.run(batched(range(2))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 2}


async def test_an_input_that_the_provider_threw_away_is_uploaded_again(rig: Rig) -> None:
    """A run that goes on much later finds its file gone."""
    provider = rig.by_batch(BatchFaults(create_refused=ProviderError(ErrorClass.QUOTA, "no money", status=402)))
    assert await rig.run(batched(range(5))) is Outcome.STOPPED
    provider.files.clear()
    provider.plague(BatchFaults(create_refused=ProviderError(ErrorClass.BAD_REQUEST, "no such file", status=400)))
    assert await rig.run(batched(range(5))) is Outcome.COMPLETE
    assert (provider.calls["upload"], paid_once(provider)) == (2, True)


async def test_a_provider_that_refuses_batches_stops_and_fails_no_request(rig: Rig) -> None:
    """A refusal of the whole is not the requests' fault."""
    rig.by_batch(BatchFaults(create_refused=ProviderError(ErrorClass.BAD_REQUEST, "no batches for you", status=400)))
    assert await rig.run(batched(range(5))) is Outcome.STOPPED
    assert set(await rig.states()) <= {"sent", "planned"}
    assert any("no batches for you" in text for text in rig.told("provider_stopped"))


async def test_an_upload_that_was_not_recorded_is_deleted(rig: Rig) -> None:
    """The crash came between the upload and its record."""
    provider = rig.by_batch()
    provider.tap = crash_once(("upload", True))
    with pytest.raises(Crash):
        await rig.run(batched(range(5)))
    assert len(provider.files) == 1
    assert await rig.run(batched(range(5))) is Outcome.COMPLETE
    assert provider.files == {}


def crash_once(step: tuple[str, bool]) -> Callable[[str, bool], None]:
    """A tap that ends the process at one step, once."""
    steps = {step}

    def tap(name: str, done: bool) -> None:
        if (name, done) in steps:
            steps.clear()
            raise Crash

    return tap
