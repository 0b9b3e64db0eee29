"""Every batch adapter against the simulator, end to end: nothing is lost, nothing is made twice, the bill agrees.

The simulator's batches stand still until a test moves their time; adapters do not wait between tries.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import accounts
from engine.batching import (
    NOT_VISIBLE,
    QUEUE_FULL,
    BatchLine,
    BatchProvider,
    BatchState,
    Marker,
    RemoteBatch,
    Row,
    Shard,
    Unpaid,
)
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Request, Role, chat
from providers.batch_registry import build_batch_providers
from providers.card import ModelCard
from providers.catalog import load_catalog

KEY = "SIMULATOR_KEY"
SETTINGS = """
[batches]
speed = 0.0
"""
RUNS = iter(range(100_000))


async def no_wait(seconds: float) -> None:
    """Take a turn instead of waiting."""
    await asyncio.sleep(0)


def card_of(simulator: Running, alias: str, *, model: str = "") -> ModelCard:
    """Return a catalogue card that leads to the simulator, with batches on."""
    card = load_catalog(accounts(simulator, KEY)).card(alias)
    return msgspec.structs.replace(card, batch=True, model=model or card.model)


class Account:
    """One adapter with a shard of work, and the simulator behind it."""

    def __init__(self, simulator: Running, card: ModelCard, provider: BatchProvider, folder: Path, key: str) -> None:
        self.simulator, self.card, self.provider, self.folder, self.key = simulator, card, provider, folder, key
        self.marker = Marker(run=f"t{next(RUNS)}", shard=1, attempt=0, digest=blake2b(b"", digest_size=8).hexdigest())

    def lines(self, count: int = 4, *, text: str = "", **decoding: object) -> list[BatchLine]:
        """Return so many different lines."""
        settings = Decoding(max_tokens=64, **decoding)  # type: ignore[arg-type]
        return [
            BatchLine(
                self.marker.line_id(index),
                Request(
                    provider=self.card.provider,
                    model=self.card.model,
                    messages=chat((Role.USER, f"{self.marker.run} {text} {index}")),
                    decoding=settings,
                ),
            )
            for index in range(count)
        ]

    def write(self, lines: Sequence[BatchLine]) -> Path:
        """Write an input file as the engine would."""
        path = self.folder / f"{self.marker.token}.jsonl"
        path.write_bytes(b"".join(self.provider.encode_line(line) + b"\n" for line in lines))
        return path

    async def submit(self, lines: Sequence[BatchLine]) -> RemoteBatch:
        """Check, upload and create."""
        assert self.provider.check(lines) == []
        path = self.write(lines)
        file_id = await self.provider.upload(self.marker, path)
        shard = Shard(count=len(lines), model=self.card.model)
        return await self.provider.create(self.marker, file_id, path, shard)

    async def harvest(self, batch: RemoteBatch) -> list[Row]:
        """Download all results and return their rows."""
        paths = await self.provider.download(batch, self.folder / "results")
        return [row for path in paths for row in self.provider.rows(path)]

    def indices(self, rows: Sequence[Row]) -> list[int]:
        """Return the index of every row, -1 for a stranger's."""
        found = [self.marker.line_index(row.custom_id) for row in rows]
        return [-1 if index is None else index for index in found]

    def advance(self, seconds: float) -> None:
        """Let the batches' time pass."""
        self._post("/advance", {"seconds": seconds})

    def quirks(self, **quirks: object) -> None:
        """Set what is odd about the next batches."""
        self._post("", {"provider": self.card.provider, **quirks})

    def fault(self, fault: str, contains: str) -> None:
        """Let a line whose prompt holds `contains` go wrong."""
        reply = httpx.post(f"{self.simulator.address}/_sim/faults", json={"fault": fault, "contains": contains})
        assert reply.status_code == 200, reply.text

    def charges(self, batch_id: str) -> list[Charge]:
        """Return what was charged for a batch."""
        return [line for line in read_bill(self.simulator.bill) if isinstance(line, Charge) and line.batch == batch_id]

    def jobs(self) -> int:
        """Return how many batches exist at the simulator."""
        return len(httpx.get(f"{self.simulator.address}/_sim/batches").json())

    def status(self, path: str) -> int:
        """Return the status that the account's `path` answers."""
        url = self.simulator.url(self.card.provider) + path
        return httpx.get(url, headers={"authorization": f"Bearer {self.key}"}).status_code

    def _post(self, path: str, body: dict[str, object]) -> None:
        reply = httpx.post(f"{self.simulator.address}/_sim/batches{path}", json=body)
        assert reply.status_code == 200, reply.text


ALIASES = {
    "openai": "gpt-5.4-nano",
    "dashscope": "qwen3.6-plus",
    "zhipu": "glm-5.1",
    "moonshot": "kimi-k2.5",
    "anthropic": "claude-opus-4-6",
    "gemini": "gemini-3-flash",
}
DAY = 86_400
REFUSED_AT_ONCE = ("anthropic", "gemini")


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One simulator for all."""
    folder = tmp_path_factory.mktemp("batches")
    (folder / "settings.toml").write_text(SETTINGS)
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


async def opened(simulator: Running, provider: str, folder: Path) -> AsyncIterator[Account]:
    """Yield an account of a provider; quirks and faults end with it."""
    card = card_of(simulator, ALIASES[provider])
    key = f"account-{next(RUNS)}"
    (adapter,) = build_batch_providers([card], {KEY: key}, per_second=1000, sleep=no_wait).values()
    yield Account(simulator, card, adapter, folder, key)
    await adapter.close()
    reset(simulator)


def reset(simulator: Running) -> None:
    """Forget quirks and faults."""
    for path in ("batches", "faults"):
        httpx.delete(f"{simulator.address}/_sim/{path}")


@pytest_asyncio.fixture(params=list(ALIASES))
async def desk(request: pytest.FixtureRequest, simulator: Running, tmp_path: Path) -> AsyncIterator[Account]:
    """Every provider with a batch API in turn."""
    async for found in opened(simulator, request.param, tmp_path):
        yield found


@pytest_asyncio.fixture
async def only(request: pytest.FixtureRequest, simulator: Running, tmp_path: Path) -> AsyncIterator[Account]:
    """The provider that the test names."""
    async for found in opened(simulator, request.param, tmp_path):
        yield found


def on(*providers: str) -> pytest.MarkDecorator:
    """Run a test on these providers."""
    return pytest.mark.parametrize("only", providers, indirect=True)


async def lost(desk: Account, lines: Sequence[BatchLine]) -> ProviderError:
    """Submit and return the error."""
    with pytest.raises(ProviderError) as caught:
        await desk.submit(lines)
    return caught.value


# What every adapter does.


async def test_every_request_comes_back_answered_and_charged_once(desk: Account) -> None:
    """Rows carry ids, texts and token counts; their usage is the bill's."""
    batch = await desk.submit(desk.lines(5))
    assert batch.state is BatchState.OPEN
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    assert ended.state is BatchState.ENDED
    rows = await desk.harvest(ended)
    assert sorted(desk.indices(rows)) == [0, 1, 2, 3, 4]
    answers = [row.outcome for row in rows if isinstance(row.outcome, Completion)]
    assert len(answers) == 5
    assert all(answer.text and answer.raw for answer in answers)
    usages = sorted((each.usage.input_tokens, each.usage.output_tokens) for each in answers)
    charged = desk.charges(batch.id)
    assert sorted((each.usage.input_tokens, each.usage.output_tokens) for each in charged) == usages


@pytest.mark.parametrize("how", ["after", "gateway"])
async def test_a_batch_whose_creation_was_never_told_is_found(how: str, desk: Account) -> None:
    """The answer is lost, or a proxy's page, after the batch was made: in doubt, then found, never made twice."""
    desk.quirks(lose_create=how)
    began = time.time()
    error = await lost(desk, desk.lines(3))
    assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, True)
    (found,) = await desk.provider.find(desk.marker, began, 3)
    desk.advance(DAY - 1)
    rows = await desk.harvest(await desk.provider.poll(found.id))
    assert sorted(desk.indices(rows)) == [0, 1, 2]
    assert len(desk.charges(found.id)) == 3


async def test_a_batch_that_was_never_made_is_not_found(desk: Account) -> None:
    """The connection is cut before the create call took effect: as much in doubt, and nothing is found."""
    desk.quirks(lose_create="before")
    began = time.time()
    error = await lost(desk, desk.lines(3))
    assert error.maybe_billed
    assert await desk.provider.find(desk.marker, began, 3) == []


async def test_a_create_call_is_sent_once(desk: Account) -> None:
    """Whatever happens to it; a second attempt would find the connection whole."""
    before = desk.jobs()
    desk.quirks(lose_create="before")
    await lost(desk, desk.lines(1))
    assert desk.jobs() == before


async def test_a_batch_of_another_attempt_is_not_ours(desk: Account) -> None:
    """Its marker looks alike, or its rows do; comparison is exact."""
    first = await desk.submit(desk.lines(2))
    desk.advance(DAY - 1)
    desk.marker = msgspec.structs.replace(desk.marker, attempt=1)
    assert first.id not in [batch.id for batch in await desk.provider.find(desk.marker, time.time() - 60, 2)]


async def test_a_fresh_id_that_is_not_known_yet_is_no_lost_batch(desk: Account) -> None:
    """404 is transient and says so; the next look finds it."""
    desk.quirks(fresh_404=1)
    batch = await desk.submit(desk.lines(2))
    with pytest.raises(ProviderError) as caught:
        await desk.provider.poll(batch.id)
    assert (caught.value.kind, caught.value.code) == (ErrorClass.TRANSIENT, NOT_VISIBLE)
    assert (await desk.provider.poll(batch.id)).id == batch.id


async def test_a_batch_that_is_late_on_the_list_is_found_later(desk: Account) -> None:
    """Not to be found at once is no proof of not being there."""
    desk.quirks(lose_create="after", list_lag=1)
    began = time.time()
    await lost(desk, desk.lines(2))
    assert await desk.provider.find(desk.marker, began, 2) == []
    assert len(await desk.provider.find(desk.marker, began, 2)) == 1


async def test_a_full_queue_puts_the_shard_back(desk: Account) -> None:
    """At the create call or by a failed batch; either way nothing ran."""
    desk.quirks(queue_full=True)
    lines = desk.lines(2)
    if desk.card.provider in REFUSED_AT_ONCE:
        error = await lost(desk, lines)
        assert (error.code, error.kind, error.maybe_billed) == (QUEUE_FULL, ErrorClass.RATE, False)
    else:
        batch = await desk.submit(lines)
        desk.advance(60)
        failed = await desk.provider.poll(batch.id)
        assert (failed.state, failed.queue_full, failed.results) == (BatchState.FAILED, True, ())
        assert desk.charges(batch.id) == []


async def test_results_that_appear_late_are_waited_for(desk: Account) -> None:
    """The batch has ended, its file answers 404 at first."""
    desk.quirks(late_results=2)
    batch = await desk.submit(desk.lines(3))
    desk.advance(DAY - 1)
    assert len(await desk.harvest(await desk.provider.poll(batch.id))) == 3


@pytest.mark.parametrize("quirk", ["cut_downloads", "short_downloads"])
async def test_a_download_that_ends_early_is_fetched_again(quirk: str, desk: Account) -> None:
    """Broken off in the middle, or closed properly after a whole line."""
    desk.quirks(**{quirk: 1})
    batch = await desk.submit(desk.lines(4))
    desk.advance(DAY - 1)
    assert len(await desk.harvest(await desk.provider.poll(batch.id))) == 4


async def test_a_download_that_never_comes_whole_leaves_no_file(desk: Account) -> None:
    """A later try must not take a half for the whole."""
    desk.quirks(cut_downloads=100)
    batch = await desk.submit(desk.lines(4))
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    with pytest.raises(ProviderError) as caught:
        await desk.harvest(ended)
    assert caught.value.kind is ErrorClass.TRANSIENT
    assert not list((desk.folder / "results").glob("*.jsonl"))


async def test_a_file_that_was_brought_is_not_fetched_again(desk: Account) -> None:
    """A restart between download and settling costs nothing."""
    batch = await desk.submit(desk.lines(2))
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    first = await desk.provider.download(ended, desk.folder / "results")
    stamps = [path.stat().st_mtime_ns for path in first]
    again = await desk.provider.download(ended, desk.folder / "results")
    assert (again, [path.stat().st_mtime_ns for path in again]) == (first, stamps)


async def test_a_proxy_s_pages_are_read_past(desk: Account) -> None:
    """Reads are tried again; a 502 changes no state."""
    batch = await desk.submit(desk.lines(2))
    desk.quirks(bad_gateways=2)
    assert (await desk.provider.poll(batch.id)).state is BatchState.OPEN
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    desk.quirks(bad_gateways=2)
    assert len(await desk.harvest(ended)) == 2


async def test_repeated_rows_come_as_they_are(desk: Account) -> None:
    """Whoever settles them does so by id."""
    desk.quirks(repeat_rows=2)
    batch = await desk.submit(desk.lines(3))
    desk.advance(DAY - 1)
    rows = await desk.harvest(await desk.provider.poll(batch.id))
    assert (len(rows), set(desk.indices(rows))) == (5, {0, 1, 2})


async def test_a_line_that_the_model_refuses_fails_alone(desk: Account) -> None:
    """An error row with its class; the others are answered."""
    desk.fault("bad_request", f"{desk.marker.run} odd")
    lines = [*desk.lines(3), *desk.lines(4, text="odd")[3:]]
    batch = await desk.submit(lines)
    desk.advance(DAY - 1)
    rows = {
        desk.marker.line_index(row.custom_id): row.outcome
        for row in await desk.harvest(await desk.provider.poll(batch.id))
    }
    error = rows[3]
    assert isinstance(error, ProviderError)
    assert (error.kind, error.maybe_billed) == (ErrorClass.BAD_REQUEST, False)
    assert all(isinstance(rows[index], Completion) for index in range(3))
    assert len(desk.charges(batch.id)) == 3


async def test_a_cancelled_batch_is_harvested(desk: Account) -> None:
    """What finished is paid and is there, unless the provider has lost it."""
    batch = await desk.submit(desk.lines(10))
    desk.advance(10)
    await desk.provider.cancel(batch.id)
    desk.advance(60)
    ended = await desk.provider.poll(batch.id)
    assert ended.state is BatchState.ENDED
    paid = [row for row in await desk.harvest(ended) if not isinstance(row.outcome, Unpaid)]
    assert len(paid) <= len(desk.charges(batch.id)) == 5


async def test_cancelling_what_has_ended_is_no_error(desk: Account) -> None:
    """The order comes too late."""
    batch = await desk.submit(desk.lines(1))
    desk.advance(DAY - 1)
    await desk.provider.cancel(batch.id)
    assert (await desk.provider.poll(batch.id)).state is BatchState.ENDED


async def test_cleaning_twice_is_no_error(desk: Account) -> None:
    """A crash may come between cleaning and noting it."""
    batch = await desk.submit(desk.lines(1))
    desk.advance(DAY - 1)
    ended = await desk.provider.poll(batch.id)
    await desk.harvest(ended)
    await desk.provider.clean(ended)
    await desk.provider.clean(ended)


async def test_another_account_s_batch_is_not_seen(desk: Account, simulator: Running) -> None:
    """Batches belong to a key."""
    batch = await desk.submit(desk.lines(1))
    (other,) = build_batch_providers([desk.card], {KEY: "stranger"}, per_second=1000, sleep=no_wait).values()
    try:
        with pytest.raises(ProviderError):
            await other.poll(batch.id)
        assert await other.find(desk.marker, time.time() - 60, 1) == []
    finally:
        await other.close()


# Anthropic: no marker.


@on("anthropic")
async def test_a_running_batch_without_marker_is_a_candidate_and_an_ended_one_is_proved(only: Account) -> None:
    """By its first row's id."""
    batch = await only.submit(only.lines(3))
    (running,) = await only.provider.find(only.marker, batch.created_at, 3)
    assert (running.id, running.marker) == (batch.id, "")
    only.advance(DAY - 1)
    (ended,) = await only.provider.find(only.marker, batch.created_at, 3)
    assert (ended.id, ended.marker) == (batch.id, only.marker.token)


@on("anthropic")
async def test_a_batch_of_another_size_or_time_is_no_candidate(only: Account) -> None:
    """Nothing else can be compared while it runs."""
    batch = await only.submit(only.lines(3))
    assert await only.provider.find(only.marker, batch.created_at, 4) == []
    assert await only.provider.find(only.marker, batch.created_at + DAY, 3) == []


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


@on("openai")
async def test_a_paid_line_may_be_in_neither_file(only: Account) -> None:
    """A missing row is an unknown outcome: the bill has one more than the files."""
    only.quirks(lose_rows=1)
    batch = await only.submit(only.lines(3))
    only.advance(DAY - 1)
    rows = await only.harvest(await only.provider.poll(batch.id))
    assert (len(rows), len(only.charges(batch.id))) == (2, 3)


@on("openai")
async def test_a_batch_that_is_stuck_stays_open(only: Account) -> None:
    """Past its window; cancelling ends it."""
    only.quirks(stuck=True)
    batch = await only.submit(only.lines(2))
    only.advance(3 * DAY)
    assert (await only.provider.poll(batch.id)).state is BatchState.OPEN
    await only.provider.cancel(batch.id)
    only.advance(60)
    assert (await only.provider.poll(batch.id)).state is BatchState.ENDED


@on("openai", "dashscope", "zhipu", "moonshot")
async def test_a_bad_line_sinks_the_batch_and_is_named(only: Account) -> None:
    """A batch made around our own check; nothing ran."""
    path = only.write([*only.lines(2), only.lines(1)[0]])
    file_id = await only.provider.upload(only.marker, path)
    batch = await only.provider.create(only.marker, file_id, path, Shard(count=3))
    only.advance(60)
    failed = await only.provider.poll(batch.id)
    (complaint,) = failed.line_errors
    assert (failed.state, complaint.code, complaint.line) == (BatchState.FAILED, "duplicate_custom_id", 3)
    assert only.charges(batch.id) == []


@on("openai")
async def test_an_upload_whose_answer_is_lost_is_free_to_repeat(only: Account) -> None:
    """Nothing was made that costs anything."""
    only.quirks(lose_upload="after")
    error = await lost(only, only.lines(1))
    assert (error.kind, error.maybe_billed) == (ErrorClass.TRANSIENT, False)
    assert (await only.submit(only.lines(1))).state is BatchState.OPEN


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
