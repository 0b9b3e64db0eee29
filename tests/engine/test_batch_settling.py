"""Settling a batch's rows together: one bad reading, or one answer too many, takes no other with it."""

import time
from typing import Any

import msgspec
import pytest

from engine.applying import AnsweredAlreadyError
from engine.batch.lane import BatchLane
from engine.batch.policy import BatchPolicy
from engine.batch.testing import BatchFaults, ScriptedBatches
from engine.batch.wiring import Batching
from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.clock import SystemClock
from engine.events import Outcome, StageCount
from engine.request import Completion
from engine.retry import RetryPolicy
from engine.rows import CompletionRow, ReadRows
from engine.store import Store
from engine.testing import EchoReader, make_cell
from engine.writes import SettleMany

Rig = Any
LANE = "scripted/m-1 (batch)"
PAID = 7_000
QUICK = BatchPolicy(flush_after=60.0, first_poll=0.01, longest_poll=0.05, grace=0.2, results_patience=0.3)


def batched(numbers: range) -> list[Cell]:
    """Cells that go by batch."""
    return [msgspec.structs.replace(make_cell(each), batch=True) for each in numbers]


def number(coords: bytes) -> int:
    """The number of a cell."""
    return int(msgspec.json.decode(coords)["n"])


def paid_once(provider: ScriptedBatches) -> bool:
    """Whether nothing was charged twice."""
    return all(times == 1 for times in provider.bill.values())


def desk(rig: Rig, *faults: BatchFaults, policy: BatchPolicy = QUICK) -> ScriptedBatches:
    """Give a rig a batch API."""
    provider = ScriptedBatches(lambda request, times: "hi", now=time.time, faults=faults)

    def batching() -> Batching:
        lane = BatchLane(LANE, provider="scripted", model="m-1", limits=provider.limits("m-1"), policy=policy)
        return Batching(
            providers={"scripted": provider}, lanes={LANE: lane}, prices={"m": rig.price}, policy=policy,
            retry=RetryPolicy(failures=3, base=0.001), leftovers={LANE: LANE}, feeds={},
            folder=rig.path.with_suffix(".batches"), run="run",
        )  # fmt: skip

    rig.batching = batching
    return provider


class Clumsy(EchoReader):
    """A reader with a defect for one cell."""

    def __init__(self, defect: str) -> None:
        super().__init__()
        self._defect = defect

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Raise, or return what no store can take."""
        if stage != "task" or number(coords) != 3:
            return super().read(stage, coords, completion)
        reading = Reading(status=ReadingStatus.COMPLETE, version=1)
        bad = msgspec.structs.replace(make_cell(1, stage="judge"), coords=b"{")
        match self._defect:
            case "raises":
                raise ZeroDivisionError("oops")
            case "body":
                return Read(reading=msgspec.structs.replace(reading, body=b"no json"))
            case "bytes":
                return Read(reading=msgspec.structs.replace(reading, body=b"\xff"))
            case _:
                return Read(reading=reading, follow_ups=[bad])


@pytest.mark.parametrize("defect", ["raises", "body", "bytes", "follow-up"])
async def test_a_defect_in_a_reader_keeps_every_paid_answer_of_a_batch(rig: Rig, defect: str) -> None:
    """The one is unreadable, with the reason; the others are read, and nothing is sent again."""
    provider = desk(rig)
    rig.reader = Clumsy(defect)
    assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    assert rig.last.stages == {"task": StageCount(read=10, unreadable=1)}
    rows = await rig.query("SELECT coords, reading_reason FROM cell WHERE reading_status = 'unreadable'")
    assert [row[0] for row in rows] == ['{"n":3}']
    assert str(rows[0][1]).startswith("defect in the reader of task: ")
    assert paid_once(provider)
    assert await rig.spent() == 10 * PAID


async def test_readings_that_differ_are_kept_apart(rig: Rig) -> None:
    """Status, reason and version are each cell's own, although many are written together."""

    class Moody(EchoReader):
        def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
            place = number(coords)
            status = ReadingStatus.UNREADABLE if place % 3 == 0 else ReadingStatus.COMPLETE
            return Read(reading=Reading(status=status, version=place % 2, reason=f"because {place % 3}"))

    desk(rig)
    rig.reader = Moody()
    await rig.run(batched(range(30)))
    rows = await rig.query("SELECT coords, reading_status, reading_reason, reading_version FROM cell")
    assert len(rows) == 30
    for coords, status, reason, version in rows:
        place = number(str(coords).encode())
        assert (status, reason, version) == (
            "unreadable" if place % 3 == 0 else "complete",
            f"because {place % 3}",
            place % 2,
        )


async def test_many_settlements_are_refused_together_when_one_request_is_answered_already(rig: Rig) -> None:
    """Nothing of them is written: whoever settles does it one by one then."""
    desk(rig)
    await rig.run(batched(range(3)))
    async with await Store.open(rig.path) as store:
        rows = [
            CompletionRow(each, 1, "again", "", "stop", "", "", "", 1, 0, 0, 1, 0, 1, 1, 1, b"") for each in (1, 2, 3)
        ]
        with pytest.raises(AnsweredAlreadyError):
            await store.put(SettleMany(rows, ReadRows(), []))
    assert await rig.query("SELECT DISTINCT text FROM completion") == [("hi",)]
    assert await rig.spent() == 3 * PAID


async def test_a_list_that_lags_behind_the_grace_is_asked_often_enough(rig: Rig) -> None:
    """A batch whose creation was not told is not made again because the first looks do not show it."""
    provider = desk(
        rig, BatchFaults(create_lost_after=True, list_lag=3), policy=msgspec.structs.replace(QUICK, grace=0.0)
    )
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert (len(provider.created), paid_once(provider)) == (1, True)
    assert await rig.spent() == 20 * PAID


class Jumpy(SystemClock):
    """A clock on the wall that can be set forward."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        """Return the time on the wall."""
        return super().wall_ms() + self.ahead_ms


async def test_the_grace_counts_from_the_loss_of_the_answer(rig: Rig) -> None:
    """A batch whose create call took longer than the grace may still be new to the list when its answer is lost."""
    rig.clock = clock = Jumpy()
    provider = desk(
        rig, BatchFaults(create_lost_after=True, list_lag=7), policy=msgspec.structs.replace(QUICK, grace=1.0)
    )

    def tap(name: str, done: bool) -> None:
        if (name, done) == ("create", False):
            clock.ahead_ms = 10_000

    provider.tap = tap
    assert await rig.run(batched(range(20))) is Outcome.COMPLETE
    assert (len(provider.created), paid_once(provider)) == (1, True)
