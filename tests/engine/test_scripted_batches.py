"""The scripted batch provider: what it charges, what it refuses, what can go wrong with it.

What it has in common with real providers is tested beside their adapters, by one contract for all of them.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.batch.ordering import lines_of
from engine.batch.provider import (
    QUEUE_FULL,
    RESULTS_NOT_READY,
    BatchLine,
    BatchState,
    LineError,
    Marker,
    RemoteBatch,
    Row,
    Shard,
    Unpaid,
)
from engine.batch.testing import LIMITS, BatchAnswer, BatchFaults, BatchScript, ScriptedBatches
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, request_key
from engine.testing import ManualClock, make_completion, make_request

MARKER = Marker(run="r1", shard=0, attempt=0, digest="0123456789abcdef")
Sent = list[BatchLine]


def scripted(
    *faults: BatchFaults,
    script: BatchScript = lambda request, times: "Yes.",
    polls: int = 1,
    tap: Callable[[str, bool], None] | None = None,
    **limits: object,
) -> ScriptedBatches:
    """Return a provider with these faults."""
    found = msgspec.structs.replace(LIMITS, **limits)
    return ScriptedBatches(script, now=ManualClock(1_000.0).now, polls=polls, limits=found, faults=faults, tap=tap)


def lines(count: int, *, marker: Marker = MARKER, model: str = "m-1") -> Sent:
    """Return different lines."""
    return [BatchLine(marker.line_id(n), make_request(f"q {n}", model=model)) for n in range(count)]


async def submit(
    provider: ScriptedBatches, folder: Path, sent: Sent, *, marker: Marker = MARKER, count: int | None = None
) -> RemoteBatch:
    """Write, upload and create."""
    path = folder / "in.jsonl"
    path.write_bytes(b"".join(provider.encode_line(line) + b"\n" for line in sent))
    file_id = await provider.upload(marker, path)
    return await provider.create(marker, file_id, path, Shard(count=len(sent) if count is None else count))


async def harvest(provider: ScriptedBatches, folder: Path, batch: RemoteBatch) -> list[Row]:
    """Poll, download and read."""
    paths = await provider.download(await provider.poll(batch.id), folder / "out")
    return [row for path in paths for row in provider.rows(lines_of(path))]


async def test_nothing_is_charged_before_a_batch_ends(tmp_path: Path) -> None:
    """At its last poll."""
    provider = scripted(polls=2)
    batch = await submit(provider, tmp_path, lines(2))
    assert ((await provider.poll(batch.id)).state, provider.bill) == (BatchState.OPEN, Counter())
    assert (await provider.poll(batch.id)).state is BatchState.ENDED
    assert provider.bill == Counter(request_key(line.request) for line in lines(2))


async def test_a_batch_that_nobody_looks_at_is_charged_all_the_same(tmp_path: Path) -> None:
    """So a shard that was sent twice shows on the bill."""
    provider = scripted()
    for _ in range(2):
        await submit(provider, tmp_path, lines(1))
    provider.run_out()
    provider.run_out()
    assert provider.bill == {request_key(lines(1)[0].request): 2}
    assert provider.created == [(MARKER.token, 1)] * 2


async def test_the_script_decides_what_a_row_says(tmp_path: Path) -> None:
    """Every kind of answer; only completions are charged."""
    error = ProviderError(ErrorClass.RATE, "slow", status=429, code="c", maybe_billed=True)
    answers: list[BatchAnswer] = ["Yes.", make_completion("No."), error, Unpaid.EXPIRED, None]
    provider = scripted(script=lambda request, times: answers[int(request.messages[0].content[2:])])
    found = await harvest(provider, tmp_path, await submit(provider, tmp_path, lines(5)))
    outcomes = {MARKER.line_index(row.custom_id): row.outcome for row in found}
    told = outcomes.pop(2)
    assert outcomes == {0: make_completion("Yes."), 1: make_completion("No."), 3: Unpaid.EXPIRED}
    assert isinstance(told, ProviderError)
    assert (told.kind, told.message, told.status, told.code, told.maybe_billed) == (
        ErrorClass.RATE,
        "slow",
        429,
        "c",
        True,
    )
    assert provider.bill.total() == 2


async def test_the_script_knows_how_often_a_request_ran(tmp_path: Path) -> None:
    """A second answer can be another one."""
    provider = scripted(script=lambda request, times: f"answer {times}")
    texts = []
    for attempt in range(2):
        marker = msgspec.structs.replace(MARKER, attempt=attempt)
        batch = await submit(provider, tmp_path, lines(1, marker=marker), marker=marker)
        (row,) = await harvest(provider, tmp_path, batch)
        assert isinstance(row.outcome, Completion)
        texts.append(row.outcome.text)
    assert texts == ["answer 0", "answer 1"]


async def test_a_lost_row_is_charged(tmp_path: Path) -> None:
    """And a batch may have lost all of them, its results file too."""
    provider = scripted(BatchFaults(missing_rows=1), BatchFaults(missing_rows=9))
    first = await submit(provider, tmp_path, lines(2))
    assert [MARKER.line_index(row.custom_id) for row in await harvest(provider, tmp_path, first)] == [1]
    second = await provider.poll((await submit(provider, tmp_path, lines(2))).id)
    assert (second.state, second.results, provider.bill.total()) == (BatchState.ENDED, (), 4)


async def test_an_expired_batch_ran_as_far_as_it_came(tmp_path: Path) -> None:
    """The rest are unpaid rows."""
    provider = scripted(BatchFaults(expires=1))
    batch = await submit(provider, tmp_path, lines(3))
    rows = await harvest(provider, tmp_path, batch)
    assert [row.outcome is Unpaid.EXPIRED for row in rows] == [False, True, True]
    assert ((await provider.poll(batch.id)).status, provider.bill.total()) == ("expired", 1)


async def test_rows_can_be_shuffled_and_unreadable(tmp_path: Path) -> None:
    """Every line is a row; one that cannot be read has no id and may be charged."""
    provider = scripted(BatchFaults(shuffled=True, garbled_rows=1))
    rows = await harvest(provider, tmp_path, await submit(provider, tmp_path, lines(20)))
    ids = [row.custom_id for row in rows[:-1]]
    assert sorted(ids) == sorted(line.custom_id for line in lines(20))
    assert ids != [line.custom_id for line in lines(20)]
    broken = rows[-1].outcome
    assert isinstance(broken, ProviderError)
    assert (rows[-1].custom_id, broken.maybe_billed) == ("", True)


async def test_a_batch_that_fails_runs_nothing(tmp_path: Path) -> None:
    """For the reasons that it was told."""
    reasons = (LineError(code=QUEUE_FULL, message="full"),)
    provider = scripted(BatchFaults(fails=reasons))
    batch = await submit(provider, tmp_path, lines(2))
    assert (batch.state, batch.queue_full, batch.line_errors) == (BatchState.FAILED, True, reasons)
    provider.run_out()
    assert (provider.bill.total(), (await provider.poll(batch.id)).state) == (0, BatchState.FAILED)


@pytest.mark.parametrize(
    ("limits", "sent", "count", "code"),
    [
        ({"max_requests": 1}, lines(2), 2, "too_many_requests"),
        ({"max_bytes": 300}, lines(3), 3, "too_many_bytes"),
        ({}, lines(1) + lines(1), 2, "duplicate_custom_id"),
        ({}, lines(2), 3, "wrong_count"),
        ({}, lines(1) + lines(2, model="m-2")[1:], 2, "mismatched_model"),
        ({"one_thinking_mode": True}, None, 2, "mismatched_thinking"),
    ],
    ids=["requests", "bytes", "ids", "count", "models", "thinking"],
)
async def test_a_batch_beyond_its_limits_fails(
    limits: dict[str, object], sent: Sent | None, count: int, code: str, tmp_path: Path
) -> None:
    """Whoever makes shards is held to them."""
    if sent is None:
        decodings = [Decoding(max_tokens=1, thinking=on) for on in (True, False)]
        requests = [msgspec.structs.replace(make_request(), decoding=each) for each in decodings]
        sent = [BatchLine(MARKER.line_id(n), request) for n, request in enumerate(requests)]
    batch = await submit(scripted(**limits), tmp_path, sent, count=count)
    assert [error.code for error in batch.line_errors] == [code]


async def test_an_input_that_is_not_there_sinks_the_batch(tmp_path: Path) -> None:
    """As when it was deleted before the create call."""
    provider = scripted()
    batch = await provider.create(MARKER, "gone", tmp_path, Shard(count=0))
    assert (batch.state, batch.line_errors[0].code) == (BatchState.FAILED, "no_such_file")


@pytest.mark.parametrize(
    "limits",
    [{"live_batches": 1}, {"enqueued_requests": 3}, {"enqueued_tokens": 25}],
    ids=lambda found: next(iter(found)),
)
async def test_a_batch_for_which_there_is_no_room_is_refused(limits: dict[str, object], tmp_path: Path) -> None:
    """Until those before it have ended."""
    provider = scripted(**limits)
    first = await submit(provider, tmp_path, lines(2))
    with pytest.raises(ProviderError) as caught:
        await submit(provider, tmp_path, lines(2))
    assert (caught.value.code, caught.value.kind, caught.value.maybe_billed) == (QUEUE_FULL, ErrorClass.RATE, False)
    await provider.poll(first.id)
    assert (await submit(provider, tmp_path, lines(2))).state is BatchState.OPEN


async def test_a_line_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    """As by real adapters."""
    with pytest.raises(ProviderError) as caught:
        scripted(max_line_bytes=20).encode_line(lines(1)[0])
    assert caught.value.kind is ErrorClass.BAD_REQUEST


async def test_faults_belong_to_one_create_call_each(tmp_path: Path) -> None:
    """In their order; afterwards all is well."""
    provider = scripted(BatchFaults(create_lost_before=True))
    provider.plague(BatchFaults(create_refused=ProviderError(ErrorClass.QUOTA, "no money")))
    for kind in (ErrorClass.TRANSIENT, ErrorClass.QUOTA):
        with pytest.raises(ProviderError) as caught:
            await submit(provider, tmp_path, lines(1))
        assert caught.value.kind is kind
    assert (await submit(provider, tmp_path, lines(1))).state is BatchState.OPEN
    assert (provider.calls["create"], provider.created) == (3, [(MARKER.token, 1)])


async def test_polls_that_fail_are_not_looks(tmp_path: Path) -> None:
    """The batch ends at the same number of answers."""
    provider = scripted(BatchFaults(poll_errors=2))
    batch = await submit(provider, tmp_path, lines(1))
    for _ in range(2):
        with pytest.raises(ProviderError):
            await provider.poll(batch.id)
    assert (await provider.poll(batch.id)).state is BatchState.ENDED


async def test_results_are_gone_once_they_were_cleaned_away(tmp_path: Path) -> None:
    """Whoever deletes before he has read loses them."""
    provider = scripted()
    batch = await submit(provider, tmp_path, lines(1))
    ended = await provider.poll(batch.id)
    assert list(provider.files) == [ended.input_file]
    await provider.clean(ended)
    with pytest.raises(ProviderError) as caught:
        await provider.download(ended, tmp_path / "out")
    assert (caught.value.code, provider.files) == (RESULTS_NOT_READY, {})


@pytest.mark.parametrize(("after", "made"), [(False, 0), (True, 1)], ids=["before", "after"])
async def test_a_tap_can_end_the_sender_at_any_step(after: bool, made: int, tmp_path: Path) -> None:
    """Before a call takes effect, or when it has and nobody was told."""

    class Crash(Exception):
        """The process is gone."""

    def tap(call: str, done: bool) -> None:
        if (call, done) == ("create", after):
            raise Crash

    provider = scripted(tap=tap)
    with pytest.raises(Crash):
        await submit(provider, tmp_path, lines(1))
    provider.tap = None
    assert len(await provider.find(MARKER, 0.0, 1)) == made


@pytest.mark.parametrize("documented", [True, False])
async def test_a_provider_may_say_that_what_has_no_row_is_unpaid(documented: bool, tmp_path: Path) -> None:
    """Once the batch has ended."""
    provider = scripted(BatchFaults(unpaid_rest=documented), script=lambda request, times: None)
    batch = await submit(provider, tmp_path, lines(1))
    assert (batch.unpaid_rest, (await provider.poll(batch.id)).unpaid_rest) == (False, documented)
