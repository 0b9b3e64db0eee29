"""What is particular about every batch adapter, against the simulator, end to end: spellings, files, bad connections.

What all of them have in common is in `test_batch_contract.py`.
"""

import time
from typing import Any

import msgspec
import pytest

from engine.batch.provider import BatchState, Shard, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion
from providers import batch_files

Account = Any
DAY = 86_400


def on(*providers: str) -> pytest.MarkDecorator:
    """Run a test on these providers."""
    return pytest.mark.parametrize("only", providers, indirect=True)


# What every adapter does.


async def test_the_usage_of_rows_is_the_bill_s(desk: Account) -> None:
    """Token by token."""
    batch = await desk.submit(desk.lines(5))
    rows = await desk.harvest(await desk.ended(batch))
    answers = [row.outcome for row in rows if isinstance(row.outcome, Completion)]
    usages = sorted((each.usage.input_tokens, each.usage.output_tokens) for each in answers)
    charged = desk.charges(batch.id)
    assert sorted((each.usage.input_tokens, each.usage.output_tokens) for each in charged) == usages


async def test_a_proxy_s_page_for_a_create_call_leaves_it_in_doubt(desk: Account) -> None:
    """The batch was made behind it, and is found."""
    desk.quirks(lose_create="gateway")
    began = time.time()
    error = await desk.lost(desk.lines(3))
    assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, True)
    assert len(await desk.provider.find(desk.marker, began, 3)) == 1


async def test_a_create_call_is_sent_once(desk: Account) -> None:
    """Whatever happens to it; a second attempt would find the connection whole."""
    before = desk.jobs()
    desk.quirks(lose_create="before")
    await desk.lost(desk.lines(1))
    assert desk.jobs() == before


async def test_a_download_that_is_closed_after_a_whole_line_is_fetched_again(desk: Account) -> None:
    """Nothing in it says that more should have come."""
    desk.quirks(short_downloads=1)
    batch = await desk.submit(desk.lines(4))
    ended = await desk.ended(batch)
    assert len(await desk.provider.download(ended, desk.folder / "results")) == 1
    assert len(await desk.harvest(ended)) == 4


async def test_a_long_download_that_broke_off_goes_on(desk: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the same file in the end."""
    monkeypatch.setattr(batch_files, "SHORTEST_RESUMED", 256)
    monkeypatch.setattr(batch_files, "OVERLAP", 32)
    desk.quirks(cut_downloads=2)
    batch = await desk.submit(desk.lines(40))
    ended = await desk.ended(batch)
    assert len(await desk.provider.download(ended, desk.folder / "results")) == 1
    assert sorted(desk.indices(await desk.harvest(ended))) == list(range(40))


async def test_a_proxy_s_pages_are_read_past(desk: Account) -> None:
    """Reads are tried again; a 502 changes no state."""
    batch = await desk.submit(desk.lines(2))
    desk.quirks(bad_gateways=2)
    assert (await desk.provider.poll(batch.id)).state is BatchState.OPEN
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    desk.quirks(bad_gateways=2)
    assert len(await desk.provider.download(ended, desk.folder / "results")) == 1


async def test_another_account_s_batch_is_not_seen(desk: Account) -> None:
    """Batches belong to a key."""
    batch = await desk.submit(desk.lines(1))
    other = desk.stranger()
    try:
        with pytest.raises(ProviderError):
            await other.poll(batch.id)
        assert await other.find(desk.marker, time.time() - 60, 1) == []
    finally:
        await other.close()


# Anthropic: no marker.


@on("anthropic")
async def test_results_come_although_their_address_is_late(only: Account) -> None:
    """`results_url` is null for a while after the end."""
    only.quirks(no_files=True)
    batch = await only.submit(only.lines(2))
    only.advance(DAY - 1)
    assert len(await only.harvest(await only.provider.poll(batch.id))) == 2


@on("anthropic")
async def test_an_ended_batch_holds_all_kinds_of_rows(only: Account) -> None:
    """Answered, refused for good, refused for now, cancelled; counters say nothing before the end."""
    only.fault("bad_request", f"{only.marker.run} odd")
    only.fault("overloaded", f"{only.marker.run} busy")
    lines = [*only.lines(1, text="odd"), *only.lines(2, text="busy")[1:], *only.lines(6)[2:]]
    batch = await only.submit(lines)
    only.advance(9)
    assert (await only.provider.poll(batch.id)).retry_after == 10.0
    await only.provider.cancel(batch.id)
    only.advance(60)
    rows = await only.harvest(await only.provider.poll(batch.id))
    kinds = {only.marker.line_index(row.custom_id): row.outcome for row in rows}
    assert [getattr(kinds[index], "kind", None) for index in (0, 1)] == [ErrorClass.BAD_REQUEST, ErrorClass.TRANSIENT]
    assert [kinds[index] for index in (4, 5)] == [Unpaid.CANCELLED] * 2
    assert len(only.charges(batch.id)) == 2


@on("anthropic")
async def test_archived_results_are_gone(only: Account) -> None:
    """After 29 days from creation; the batch is still there."""
    batch = await only.submit(only.lines(1))
    only.advance(30 * DAY)
    ended = await only.provider.poll(batch.id)
    assert (ended.state, ended.results) == (BatchState.ENDED, ())


@on("anthropic")
async def test_requests_that_the_day_did_not_reach_are_expired_rows(only: Account) -> None:
    """Unpaid, each with a row."""
    only.quirks(slow=DAY / 4)
    batch = await only.submit(only.lines(6))
    only.advance(2 * DAY)
    rows = await only.harvest(await only.provider.poll(batch.id))
    assert (len(rows), len([row for row in rows if row.outcome is Unpaid.EXPIRED])) == (6, 3)
    assert len(only.charges(batch.id)) == 3


# Gemini: jobs over files with names of our own.


@on("gemini")
async def test_a_repeated_create_call_makes_two_jobs_and_both_are_found(only: Account) -> None:
    """Why it must not be repeated, and how one sees that it was."""
    path = only.write(only.lines(1))
    file_id = await only.provider.upload(only.marker, path)
    shard = Shard(count=1, model=only.card.model)
    made = [await only.provider.create(only.marker, file_id, path, shard) for _ in range(2)]
    found = await only.provider.find(only.marker, made[0].created_at, 1)
    assert {batch.id for batch in found} == {batch.id for batch in made}
    assert {batch.marker for batch in found} == {only.marker.token}


@on("gemini")
async def test_a_repeated_upload_finds_its_own_file(only: Account) -> None:
    """The name is taken by the same bytes."""
    path = only.write(only.lines(2))
    first = await only.provider.upload(only.marker, path)
    assert await only.provider.upload(only.marker, path) == first == f"files/{only.marker.token}"


@on("gemini")
async def test_a_name_taken_by_other_bytes_is_refused(only: Account) -> None:
    """It is not what we wanted to send."""
    await only.provider.upload(only.marker, only.write(only.lines(2)))
    with pytest.raises(ProviderError) as caught:
        await only.provider.upload(only.marker, only.write(only.lines(3)))
    assert caught.value.status == 409


@on("gemini")
async def test_a_bad_row_refuses_the_create_call(only: Account) -> None:
    """At once, and nothing was made."""
    path = only.write(only.lines(2))
    path.write_bytes(path.read_bytes() + b"{}\n")
    file_id = await only.provider.upload(only.marker, path)
    with pytest.raises(ProviderError) as caught:
        await only.provider.create(only.marker, file_id, path, Shard(count=3, model=only.card.model))
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.BAD_REQUEST, False)
    assert await only.provider.find(only.marker, time.time(), 3) == []


@on("gemini")
@pytest.mark.parametrize("quirk", ["job_states", "file_in_metadata", "key_last", "lying_counts"])
async def test_a_job_reads_the_same_in_all_its_spellings(quirk: str, only: Account) -> None:
    """Both state prefixes, both places of the file, keys last, counters that lie."""
    only.quirks(**{quirk: True})
    batch = await only.submit(only.lines(3))
    only.advance(DAY)
    rows = await only.harvest(await only.provider.poll(batch.id))
    assert sorted(only.indices(rows)) == [0, 1, 2]


@on("gemini")
async def test_an_expired_job_has_ended_without_results(only: Account) -> None:
    """What ran may have been charged; there is nothing to fetch."""
    only.quirks(slow=DAY)
    batch = await only.submit(only.lines(4))
    only.advance(3 * DAY)
    ended = await only.provider.poll(batch.id)
    assert (ended.state, ended.status, ended.results) == (BatchState.ENDED, "EXPIRED", ())
    assert len(only.charges(batch.id)) == 1


# OpenAI and its kin.


@on("openai", "zhipu", "moonshot")
async def test_requests_that_a_window_did_not_reach_are_unpaid_rows(only: Account) -> None:
    """An expired batch: finished lines in the output file and charged, the others in the error file."""
    only.quirks(slow=DAY / 4)
    batch = await only.submit(only.lines(6))
    only.advance(2 * DAY)
    ended = await only.provider.poll(batch.id)
    rows = await only.harvest(ended)
    unpaid = [row for row in rows if row.outcome is Unpaid.EXPIRED]
    assert (ended.status, len(rows), len(unpaid)) == ("expired", 6, 3)
    assert len(only.charges(batch.id)) == 3


@on("dashscope")
async def test_requests_that_a_window_did_not_reach_may_have_no_row(only: Account) -> None:
    """DashScope: only what finished is there."""
    only.quirks(slow=DAY / 4)
    batch = await only.submit(only.lines(6))
    only.advance(2 * DAY)
    ended = await only.provider.poll(batch.id)
    assert (ended.state, len(await only.harvest(ended))) == (BatchState.ENDED, 3)


@on("openai")
async def test_a_completed_batch_may_name_no_file(only: Account) -> None:
    """Then there are no rows, and that is for the engine to judge."""
    only.quirks(no_files=True)
    batch = await only.submit(only.lines(2))
    only.advance(DAY - 1)
    ended = await only.provider.poll(batch.id)
    assert (ended.state, ended.results, await only.harvest(ended)) == (BatchState.ENDED, (), [])


@on("openai")
async def test_all_lines_failed_is_a_completed_batch_with_an_error_file(only: Account) -> None:
    """Complete says nothing about success."""
    only.fault("bad_request", only.marker.run)
    batch = await only.submit(only.lines(1))
    only.advance(DAY - 1)
    ended = await only.provider.poll(batch.id)
    (row,) = await only.harvest(ended)
    assert (ended.status, isinstance(row.outcome, ProviderError)) == ("completed", True)


@on("openai", "dashscope", "zhipu", "moonshot")
async def test_a_bad_line_sinks_the_batch_and_is_named(only: Account) -> None:
    """Ids that repeat are the shard maker's to avoid; nothing ran."""
    path = only.write([*only.lines(2), only.lines(1)[0]])
    file_id = await only.provider.upload(only.marker, path)
    batch = await only.provider.create(only.marker, file_id, path, Shard(count=3))
    only.advance(60)
    failed = await only.provider.poll(batch.id)
    (complaint,) = failed.line_errors
    assert (failed.state, complaint.code, complaint.line) == (BatchState.FAILED, "duplicate_custom_id", 3)
    assert only.charges(batch.id) == []


@on("dashscope")
async def test_a_list_too_many_is_a_rate_limit(only: Account) -> None:
    """A hundred a minute; the adapter's own pace stays below."""
    for _ in range(100):
        await only.provider.find(only.marker, time.time(), 1)
    with pytest.raises(ProviderError) as caught:
        await only.provider.find(only.marker, time.time(), 1)
    assert caught.value.kind is ErrorClass.RATE


@on("zhipu")
async def test_the_input_file_stays_until_we_delete_it(only: Account) -> None:
    """Zhipu would delete it by itself at a moment of its own."""
    batch = await only.submit(only.lines(1))
    only.advance(DAY - 1)
    ended = await only.provider.poll(batch.id)
    assert only.status(f"/files/{ended.input_file}") == 200
    await only.provider.clean(ended)
    assert only.status(f"/files/{ended.input_file}") == 404


@on("openai")
async def test_our_batch_is_found_behind_pages_of_others(only: Account) -> None:
    """The list is read page by page."""
    began = time.time()
    ours = await only.submit(only.lines(1))
    marker, path = only.marker, only.write(only.lines(1))
    file_id = await only.provider.upload(marker, path)
    for attempt in range(1, 105):
        other = msgspec.structs.replace(marker, attempt=attempt)
        await only.provider.create(other, file_id, path, Shard(count=1))
    assert [batch.id for batch in await only.provider.find(marker, began, 1)] == [ours.id]
