"""Full queues, refusals, late and eternal batches."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.batch.lane import BatchLane
from engine.batch.provider import QUEUE_FULL, LineError, RemoteBatch
from engine.batch.records import Batch
from engine.batch.store import BatchStore
from engine.batch.testing import LIMITS, QUICK, BatchFaults, ScriptedBatches
from engine.errors import ErrorClass, ProviderError
from engine.events import Outcome
from engine.request import input_token_estimate, prompt_bytes
from engine.testing import batched, make_cell, make_request
from tests.engine.in_batches import hurry, paid_once, within

Rig = Any
LANE = "scripted/m-1 (batch)"
QUOTA = ProviderError(ErrorClass.QUOTA, "no money", status=402)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def folder(rig: Rig) -> Path:
    """Where the files of the rig's batches lie."""
    path: Path = rig.path.with_suffix(".batches")
    return path


async def test_a_queue_that_fails_batches_is_left_alone_for_a_while(rig: Rig) -> None:
    """A failed batch's own leaving does not count as room in the queue."""
    policy = msgspec.structs.replace(QUICK, first_poll=0.1)
    full = LineError(code=QUEUE_FULL, message="too much waits")
    at: list[float] = []
    provider = rig.by_batch(BatchFaults(fails=(full,)), policy=policy,
        tap=lambda name, done: at.append(time.monotonic()) if (name, done) == ("create", False) else None,
    )  # fmt: skip
    assert await within(rig, batched(range(8))) is Outcome.COMPLETE
    assert at[1] - at[0] >= 0.6
    assert paid_once(rig, provider, 8)


async def test_a_request_for_which_no_queue_has_room_is_not_tried_for_ever(rig: Rig) -> None:
    """A batch of one cannot be made smaller."""
    full = BatchFaults(fails=(LineError(code=QUEUE_FULL, message="too much waits"),))
    rig.by_batch(*[full] * 40, policy=msgspec.structs.replace(QUICK, first_poll=0.001))
    assert await within(rig, batched(range(1))) is Outcome.COMPLETE
    assert rig.calls == ["task 0"]


async def test_a_queue_with_too_little_room_makes_no_empty_batches(rig: Rig) -> None:
    """The next request waits for a batch to end; until then nothing is written."""
    small, large = make_cell(1), make_cell(2, request=make_request("x" * 400))
    most = input_token_estimate(prompt_bytes(large.request), 1)
    provider = rig.by_batch(limits=msgspec.structs.replace(LIMITS, enqueued_tokens=most, max_requests=1), polls=40)
    cells = [msgspec.structs.replace(each, batch=True) for each in (small, large)]
    assert await within(rig, cells) is Outcome.COMPLETE
    assert paid_once(rig, provider, 2)
    assert len(await rig.query("SELECT 1 FROM batch WHERE stage = 'dropped'")) <= 1
    assert list(folder(rig).iterdir()) == []


@pytest.mark.parametrize("line", [0, 11, -1, 1 << 70])
async def test_complaints_about_lines_that_are_not_there_blame_the_batch(rig: Rig, line: int) -> None:
    """Else the same batch would be made again and again."""
    faults = [BatchFaults(fails=(LineError(code="invalid", message="wrong", line=line),))] * 50
    rig.by_batch(*faults)
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert len(rig.calls) == 10


async def test_a_crash_while_blaming_blames_no_neighbour(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines keep their numbers although some have an outcome."""
    culprits = tuple(LineError(code="invalid", message=f"line {n} is wrong", line=n) for n in (2, 3))
    rig.by_batch(BatchFaults(fails=culprits))
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
    rig.by_batch(*[no] * 10)
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
    provider = rig.by_batch(BatchFaults(stuck=True), policy=policy, polls=1_000, kind=Deaf)
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
    provider = rig.by_batch(BatchFaults(stuck=True), limits=limits, polls=1_000, kind=Eternal)
    assert await within(rig, batched(range(3))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 3)


async def test_a_refusal_that_asks_to_wait_for_a_week_is_asked_again_earlier(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints have bounds."""
    monkeypatch.setattr("engine.batch.submission.LONGEST_PAUSE", 0.05)
    rig.by_batch(BatchFaults(create_refused=ProviderError(ErrorClass.RATE, "later", status=429, retry_after=604_800.0)))
    assert await within(rig, batched(range(3))) is Outcome.COMPLETE


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
