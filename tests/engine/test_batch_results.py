"""What the rows of a batch say, whatever else goes wrong: nothing is given up or sent again before they were read."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from engine.batch.provider import BatchState, Marker, RemoteBatch, Row, Unpaid
from engine.batch.settling import CHUNK
from engine.batch.testing import QUICK, BatchFaults, ScriptedBatches
from engine.errors import ErrorClass, ProviderError
from engine.events import Outcome
from engine.testing import batched
from tests.engine.in_batches import hurry, paid_once, within

Rig = Any
PAID = 7_000
QUOTA = ProviderError(ErrorClass.QUOTA, "no money", status=402)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def test_results_that_could_not_be_fetched_are_not_taken_for_results_without_rows(rig: Rig) -> None:
    """The provider says that what has no row was not run; the rows have to be looked at first."""
    provider = rig.by_batch(BatchFaults(expires=6, unpaid_rest=True, torn_downloads=2))
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)
    assert len(rig.calls) == 4


async def test_a_row_that_cannot_be_read_casts_doubt_on_what_has_no_row(rig: Rig) -> None:
    """It may be the answer of any of them: none is bought a second time."""
    provider = rig.by_batch(BatchFaults(missing_rows=1, garbled_rows=1, unpaid_rest=True))
    assert await within(rig, batched(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"read": 9, "failed": 1}
    assert paid_once(rig, provider, 10)


async def test_an_outage_that_outlasts_patience_loses_no_answer(rig: Rig) -> None:
    """Patience is for rows that a provider does not have, not for a network that is down."""
    provider = rig.by_batch(BatchFaults(torn_downloads=30))
    assert await within(rig, batched(range(10))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 10)
    assert await rig.spent() == 10 * PAID


async def test_files_of_a_batch_whose_rows_never_came_stay_at_the_provider(rig: Rig) -> None:
    """They are all that could still tell."""
    provider = rig.by_batch(BatchFaults(missing_rows=2))
    assert await within(rig, batched(range(5))) is Outcome.INCOMPLETE
    assert (provider.calls["clean"], len(provider.files)) == (0, 1)


class Twice(ScriptedBatches):
    """Says first of every request that it failed, far ahead of its answer."""

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield errors, then what the file says."""
        found = list(super().rows(lines))
        yield from (Row(row.custom_id, ProviderError(ErrorClass.TRANSIENT, "oops", status=500)) for row in found)
        yield from found


@pytest.mark.parametrize("requests", [10, CHUNK + 100], ids=["few", "more than are kept"])
async def test_an_answer_counts_whatever_another_row_says_of_its_request(rig: Rig, requests: int) -> None:
    """It was paid for."""
    provider = rig.by_batch(kind=Twice)
    assert await within(rig, batched(range(requests))) is Outcome.COMPLETE
    assert rig.calls == []
    assert paid_once(rig, provider, requests)


class Failing(ScriptedBatches):
    """Calls every batch that has ended failed."""

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch with another state."""
        remote = await super().poll(batch_id)
        failed = remote.state is BatchState.ENDED
        return msgspec.structs.replace(remote, state=BatchState.FAILED) if failed else remote


async def test_a_failed_batch_with_results_is_read(rig: Rig) -> None:
    """Any status: only rows count."""
    provider = rig.by_batch(kind=Failing)
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

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield strange rows, then what the file says."""
        found = list(super().rows(lines))
        head = found[0].custom_id.rpartition("-")[0]
        for custom_id in (f"{head}-{10**30}", f"{head}-99999", "../../x", "\x1b[2J", head, f"{head}-٣", ""):
            yield Row(custom_id, found[0].outcome)
        yield from found


async def test_rows_with_strange_ids_are_passed_over(rig: Rig) -> None:
    """Whatever they claim to be."""
    provider = rig.by_batch(kind=Strange)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)


async def test_a_row_with_a_status_beyond_all_measure_is_an_error_like_others(rig: Rig) -> None:
    """The store's integers end somewhere."""
    error = ProviderError(ErrorClass.CONTENT, "no", status=(1 << 63) + 5)
    rig.by_batch(script=lambda request, times: error)
    assert await within(rig, batched(range(3))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 3}


async def test_cancelled_again_and_again_a_request_fails(rig: Rig) -> None:
    """Patience is bounded, whoever cancels."""
    policy = msgspec.structs.replace(QUICK, leftovers="batch")
    rig.by_batch(script=lambda request, times: Unpaid.CANCELLED, policy=policy)
    assert await within(rig, batched(range(2))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 2}


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
    provider = rig.by_batch(kind=Silent)
    assert await within(rig, batched(range(5))) is Outcome.COMPLETE
    assert paid_once(rig, provider, 5)
