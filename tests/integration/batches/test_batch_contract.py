"""What every batch provider must do, the scripted one as well as every adapter in front of the simulator.

Tests of the engine's batches stand on `ScriptedBatches`; this is why they say something about real providers.
"""

import time
from typing import Any

import msgspec
import pytest

from engine.batch.provider import NOT_VISIBLE, QUEUE_FULL, BatchState, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion

Desk = Any


async def test_every_request_comes_back_answered_and_charged_once(batches: Desk) -> None:
    """Open first; then rows with ids, texts and token counts."""
    batch = await batches.submit(batches.lines(5))
    assert (batch.state, batch.results) == (BatchState.OPEN, ())
    ended = await batches.ended(batch)
    rows = await batches.harvest(ended)
    assert (ended.state, sorted(batches.indices(rows))) == (BatchState.ENDED, [0, 1, 2, 3, 4])
    answers = [row.outcome for row in rows if isinstance(row.outcome, Completion)]
    assert all(answer.text and answer.raw and answer.usage.input_tokens for answer in answers)
    assert (len(answers), batches.charged(batch)) == (5, 5)


async def test_a_batch_whose_creation_was_never_told_is_found(batches: Desk) -> None:
    """In doubt, then found, never made twice."""
    batches.plague(create_lost_after=True)
    began = time.time()
    error = await batches.lost(batches.lines(3))
    assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, True)
    (found,) = await batches.provider.find(batches.marker, began, 3)
    rows = await batches.harvest(await batches.ended(found))
    assert sorted(batches.indices(rows)) == [0, 1, 2]
    assert batches.charged(found) == 3


async def test_a_batch_that_was_never_made_is_not_found(batches: Desk) -> None:
    """The connection is cut before the create call took effect: as much in doubt, and nothing is found."""
    batches.plague(create_lost_before=True)
    began = time.time()
    error = await batches.lost(batches.lines(3))
    assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, True)
    assert await batches.provider.find(batches.marker, began, 3) == []


async def test_a_batch_of_another_attempt_is_not_ours(batches: Desk) -> None:
    """Its marker looks alike, or its rows do; comparison is exact."""
    first = await batches.submit(batches.lines(2))
    batches.let_end()
    await batches.provider.poll(first.id)
    batches.marker = msgspec.structs.replace(batches.marker, attempt=1)
    assert first.id not in [batch.id for batch in await batches.provider.find(batches.marker, time.time() - 60, 2)]


async def test_a_batch_without_marker_is_a_candidate_by_size_and_time_until_its_rows_prove_it(batches: Desk) -> None:
    """One with a marker is proved at once."""
    batch = await batches.submit(batches.lines(3))
    (found,) = await batches.provider.find(batches.marker, batch.created_at, 3)
    assert (found.id, found.marker) == (batch.id, batches.marker.token if batches.has_marker else "")
    if not batches.has_marker:
        assert await batches.provider.find(batches.marker, batch.created_at, 4) == []
        assert await batches.provider.find(batches.marker, batch.created_at + 86_400, 3) == []
    await batches.ended(batch)
    (found,) = await batches.provider.find(batches.marker, batch.created_at, 3)
    assert (found.id, found.marker) == (batch.id, batches.marker.token)


async def test_a_fresh_id_that_is_not_known_yet_is_no_lost_batch(batches: Desk) -> None:
    """404 is transient and says so; the next look finds it."""
    batches.plague(fresh_404=1)
    batch = await batches.submit(batches.lines(2))
    with pytest.raises(ProviderError) as caught:
        await batches.provider.poll(batch.id)
    assert (caught.value.kind, caught.value.code) == (ErrorClass.TRANSIENT, NOT_VISIBLE)
    assert (await batches.provider.poll(batch.id)).id == batch.id


async def test_a_batch_that_is_late_on_the_list_is_found_later(batches: Desk) -> None:
    """Not to be found at once is no proof of not being there."""
    batches.plague(create_lost_after=True, list_lag=1)
    began = time.time()
    await batches.lost(batches.lines(2))
    assert await batches.provider.find(batches.marker, began, 2) == []
    assert len(await batches.provider.find(batches.marker, began, 2)) == 1


async def test_a_full_queue_puts_the_shard_back(batches: Desk) -> None:
    """At the create call or by a failed batch; either way nothing ran."""
    batches.plague(queue_full=True)
    try:
        batch = await batches.submit(batches.lines(2))
    except ProviderError as error:
        assert (error.code, error.kind, error.maybe_billed) == (QUEUE_FULL, ErrorClass.RATE, False)  # noqa: PT017
        return
    failed = await batches.ended(batch)
    assert (failed.state, failed.queue_full, failed.results) == (BatchState.FAILED, True, ())
    assert batches.charged(batch) == 0


async def test_a_failed_upload_is_free_to_repeat(batches: Desk) -> None:
    """Nothing was made that costs anything."""
    batches.plague(upload_errors=1)
    path = batches.write(batches.lines(1))
    try:
        await batches.provider.upload(batches.marker, path)
    except ProviderError as error:
        assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, False)  # noqa: PT017
    assert (await batches.submit(batches.lines(1))).state is BatchState.OPEN


async def test_results_that_appear_late_are_waited_for(batches: Desk) -> None:
    """The batch has ended, its file is not there at first."""
    batches.plague(results_late=2)
    batch = await batches.submit(batches.lines(3))
    assert len(await batches.harvest(await batches.ended(batch))) == 3


async def test_a_download_that_breaks_off_is_fetched_again(batches: Desk) -> None:
    """In the end it is whole."""
    batches.plague(torn_downloads=1)
    batch = await batches.submit(batches.lines(4))
    assert len(await batches.harvest(await batches.ended(batch))) == 4


async def test_a_download_that_never_comes_whole_leaves_no_file(batches: Desk) -> None:
    """A later try must not take a half for the whole."""
    batches.plague(torn_downloads=1_000)
    batch = await batches.submit(batches.lines(4))
    ended = await batches.ended(batch)
    with pytest.raises(ProviderError) as caught:
        await batches.provider.download(ended, batches.folder / "results")
    assert caught.value.kind is ErrorClass.TRANSIENT
    assert not list((batches.folder / "results").glob("*.jsonl"))


async def test_a_file_that_was_brought_is_not_fetched_again(batches: Desk) -> None:
    """A restart between download and settling costs nothing."""
    batch = await batches.submit(batches.lines(2))
    ended = await batches.ended(batch)
    first = await batches.provider.download(ended, batches.folder / "results")
    stamps = [path.stat().st_mtime_ns for path in first]
    again = await batches.provider.download(ended, batches.folder / "results")
    assert (again, [path.stat().st_mtime_ns for path in again]) == (first, stamps)


async def test_repeated_rows_come_as_they_are(batches: Desk) -> None:
    """Whoever settles them does so by id."""
    batches.plague(repeated_rows=2)
    batch = await batches.submit(batches.lines(3))
    rows = await batches.harvest(await batches.ended(batch))
    assert (len(rows), set(batches.indices(rows))) == (5, {0, 1, 2})


async def test_a_paid_request_may_have_no_row(batches: Desk) -> None:
    """A missing row is an unknown outcome: the bill has one more than the file, and nothing says unpaid."""
    batches.plague(missing_rows=1)
    batch = await batches.submit(batches.lines(3))
    ended = await batches.ended(batch)
    assert (len(await batches.harvest(ended)), batches.charged(batch), ended.unpaid_rest) == (2, 3, False)


async def test_a_line_that_the_model_refuses_fails_alone(batches: Desk) -> None:
    """An error row with its class; the others are answered."""
    batches.plague(refuse="odd")
    batch = await batches.submit([*batches.lines(3), *batches.lines(4, text="odd")[3:]])
    rows = await batches.harvest(await batches.ended(batch))
    found = dict(zip(batches.indices(rows), [row.outcome for row in rows], strict=True))
    error = found.pop(3)
    assert isinstance(error, ProviderError)
    assert (error.kind, error.maybe_billed) == (ErrorClass.BAD_REQUEST, False)
    assert all(isinstance(outcome, Completion) for outcome in found.values())
    assert (len(found), batches.charged(batch)) == (3, 3)


async def test_a_cancelled_batch_is_harvested(batches: Desk) -> None:
    """What finished is paid and is there, unless the provider has lost it; the rest never ran."""
    batch = await batches.submit(batches.lines(10))
    await batches.let_half_run(batch)
    await batches.provider.cancel(batch.id)
    ended = await batches.ended(batch)
    rows = await batches.harvest(ended)
    paid = [row for row in rows if not isinstance(row.outcome, Unpaid)]
    assert {row.outcome for row in rows if isinstance(row.outcome, Unpaid)} <= {Unpaid.CANCELLED}
    assert (ended.state, batches.charged(batch)) == (BatchState.ENDED, 5)
    assert len(paid) <= 5


async def test_cancelling_what_has_ended_is_no_error(batches: Desk) -> None:
    """The order comes too late."""
    batch = await batches.submit(batches.lines(1))
    await batches.ended(batch)
    await batches.provider.cancel(batch.id)
    ended = await batches.provider.poll(batch.id)
    assert (ended.state, len(await batches.harvest(ended))) == (BatchState.ENDED, 1)


async def test_a_batch_that_is_stuck_stays_open_until_it_is_cancelled(batches: Desk) -> None:
    """However long one waits."""
    batches.plague(stuck=True)
    batch = await batches.submit(batches.lines(2))
    for _ in range(3):
        assert (await batches.ended(batch)).state is BatchState.OPEN
    await batches.provider.cancel(batch.id)
    assert (await batches.ended(batch)).state is BatchState.ENDED


async def test_cleaning_twice_is_no_error(batches: Desk) -> None:
    """A crash may come between cleaning and noting it."""
    batch = await batches.submit(batches.lines(1))
    ended = await batches.ended(batch)
    await batches.harvest(ended)
    await batches.provider.clean(ended)
    await batches.provider.clean(ended)


async def test_uploads_that_became_no_batch_are_tidied_away(batches: Desk) -> None:
    """All of the run's, but for those that are still needed, and nobody else's."""
    path = batches.write(batches.lines(1))
    mine = {await batches.provider.upload(batches.marker, path) for _ in range(2)} - {""}
    marker = msgspec.structs.replace(batches.marker, run=f"{batches.marker.run}x")
    await batches.provider.upload(marker, path)
    kept = set(list(mine)[:1])
    assert await batches.provider.tidy(batches.marker.run, kept) == len(mine - kept)
    assert await batches.provider.tidy(batches.marker.run, ()) == len(kept)
    assert await batches.provider.tidy(batches.marker.run, ()) == 0
