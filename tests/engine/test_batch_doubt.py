"""Batches whose creation was not answered, hostile lists and wrong clocks."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.batch.provider import BatchState, Marker, RemoteBatch
from engine.batch.stage import Step
from engine.batch.store import BatchStore
from engine.batch.testing import LIMITS, QUICK, BatchFaults, ScriptedBatches
from engine.clock import SystemClock
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.events import Outcome
from engine.store import Store
from engine.testing import batched
from tests.engine.in_batches import hurry, paid_once, within

Rig = Any
LANE = "scripted/m-1 (batch)"
QUOTA = ProviderError(ErrorClass.QUOTA, "no money", status=402)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


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
    provider = rig.by_batch(BatchFaults(create_lost_after=True))
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
    provider = rig.by_batch(BatchFaults(create_lost_before=True), limits=limits, has_marker=False, kind=Alike)
    assert await within(rig, batched(range(5))) is Outcome.STOPPED
    assert await rig.query("SELECT stage FROM batch") == [("in_doubt",)]
    assert provider.created == []
    assert any("theirs" in text and "attach" in text for text in rig.told("provider_stopped"))


class Unproved(ScriptedBatches):
    """Can read no batch's rows while it looks for one: whatever has as many requests may be the one looked for."""

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return all of them, unproved."""
        found = [self._remote(each) for each in self._made.values() if len(each.job.lines) == count]
        proved = await super().find(marker, since, count)
        return found or proved


async def test_what_the_store_knows_of_is_no_candidate_for_a_batch_in_doubt(rig: Rig) -> None:
    """Of a long sweep there are hundreds of the same size, and not all of their rows can be read at every look."""
    provider = rig.by_batch(
        BatchFaults(), BatchFaults(create_lost_before=True), has_marker=False, kind=Unproved,
        policy=msgspec.structs.replace(QUICK, grace=0.05),
    )  # fmt: skip
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)
    stages = await rig.query("SELECT stage FROM batch ORDER BY id")
    assert stages[:2] == [("closed",), ("dropped",)]


class Doubled(ScriptedBatches):
    """Makes two of one create call; the newer one, which is listed first, was refused."""

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return a failed double ahead of the batch."""
        found = await super().find(marker, since, count)
        return [*(msgspec.structs.replace(each, id="double", state=BatchState.FAILED) for each in found), *found]


async def test_of_two_batches_the_one_that_runs_is_taken_over(rig: Rig) -> None:
    """The other would say that nothing ran."""
    provider = rig.by_batch(BatchFaults(create_lost_after=True), kind=Doubled)
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
    provider = rig.by_batch(BatchFaults(create_lost_after=True), kind=Nameless)
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
