"""OpenAI's official client, as it is, drives files and batches of four providers and finds nothing wrong."""

import io
import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from bench.simulator.launch import Running, running

ENDPOINTS = {
    "openai": "/v1/chat/completions",
    "dashscope": "/v1/chat/completions",
    "zhipu": "/v4/chat/completions",
    "moonshot": "/v1/chat/completions",
}
MODEL = "gpt-4o-mini"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A simulator whose batches stand still until told."""
    folder = tmp_path_factory.mktemp("sdk-batches")
    (folder / "settings.toml").write_text('[batches]\nspeed = 0.0\n[batches.enqueued_tokens]\n"openai/tight" = 40\n')
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found
        httpx.delete(f"{found.address}/_sim/batches")


@pytest.fixture
def client(standing: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=standing.url("openai"), api_key="good", max_retries=0) as found:
        yield found


def line(custom_id: str, provider: str = "openai", **body: object) -> str:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": custom_id}]} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINTS[provider], "body": asked})


def submit(client: OpenAI, *lines: str, provider: str = "openai") -> Batch:
    file = client.files.create(file=("in.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")
    endpoint = ENDPOINTS[provider]
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        metadata={"who": "us"},
    )


def advance(simulator: Running, seconds: float) -> None:
    httpx.post(f"{simulator.address}/_sim/batches/advance", json={"seconds": seconds})


def rows(client: OpenAI, file_id: str | None) -> list[dict[str, object]]:
    assert file_id is not None
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


@pytest.mark.parametrize("provider", ENDPOINTS)
def test_a_batch_goes_from_file_to_rows(provider: str, standing: Running) -> None:
    """Upload, create, poll, read."""
    with OpenAI(base_url=standing.url(provider), api_key="good", max_retries=0) as client:
        batch = submit(client, line("first-1", provider), line("second-2", provider), provider=provider)
        assert (batch.status, batch.metadata) == ("validating", {"who": "us"})
        advance(standing, 1000)
        batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        found = rows(client, batch.output_file_id)
    assert {row["custom_id"] for row in found} == {"first-1", "second-2"}


def test_a_batch_passes_through_all_its_stages(client: OpenAI, standing: Running) -> None:
    """Validating, in progress, finalizing, completed."""
    batch = submit(client, line("stage-1"), line("stage-2"))
    seen = [batch.status]
    for seconds in (5.5, 2, 5):
        advance(standing, seconds)
        seen.append(client.batches.retrieve(batch.id).status)
    assert seen == ["validating", "in_progress", "finalizing", "completed"]


@pytest.mark.parametrize(
    ("lines", "code", "place"),
    [
        ([line("a1"), line("a1")], "duplicate_custom_id", 2),
        ([line("a1"), "{oops"], "invalid_json_line", 2),
        (["\ufeff" + line("a1")], "invalid_json_line", 1),
        ([line("a1"), "", line("a2")], "invalid_json_line", 2),
        ([line("a1"), line("a2", model="gpt-5.5")], "mismatched_model", 2),
        ([line("a1", "zhipu")], "invalid_url", 1),
        ([line("a1", stream=True)], "streaming_unsupported", 1),
        ([line("")], "missing_required_parameter", 1),
    ],
    ids=["duplicate", "json", "bom", "blank", "models", "url", "stream", "no id"],
)
def test_a_bad_line_fails_the_batch_later(
    lines: list[str], code: str, place: int, client: OpenAI, standing: Running
) -> None:
    """The create call says nothing."""
    batch = submit(client, *lines)
    assert batch.status == "validating"
    advance(standing, 10)
    failed = client.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert (failed.status, failed.errors.data[0].code, failed.errors.data[0].line) == ("failed", code, place)


def test_a_file_that_nobody_knows_fails_the_batch_later(client: OpenAI, standing: Running) -> None:
    """Create answers 200 all the same."""
    batch = client.batches.create(input_file_id="file-none", endpoint="/v1/chat/completions", completion_window="24h")
    advance(standing, 10)
    failed = client.batches.retrieve(batch.id)
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert (failed.status, failed.errors.data[0].param) == ("failed", "file_id")


def test_the_queue_is_full_until_a_batch_has_ended(client: OpenAI, standing: Running) -> None:
    """Enqueued prompt tokens of all live batches of a model."""
    first = submit(client, line("queue-1", model="tight"))
    second = submit(client, line("queue-2", model="tight"))
    advance(standing, 1000)
    third = submit(client, line("queue-3", model="tight"))
    advance(standing, 1000)
    states = [client.batches.retrieve(batch.id) for batch in (first, second, third)]
    assert [batch.status for batch in states] == ["completed", "failed", "completed"]
    assert states[1].errors is not None
    assert states[1].errors.data is not None
    assert states[1].errors.data[0].code == "token_limit_exceeded"


def test_a_line_that_the_model_refuses_is_in_the_error_file(client: OpenAI, standing: Running) -> None:
    """The other is in the output file."""
    batch = submit(client, line("fine-1"), line("hot-2", temperature=9))
    advance(standing, 1000)
    batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (row,) = rows(client, batch.error_file_id)
    assert isinstance(row["response"], dict)
    assert (row["custom_id"], row["response"]["status_code"]) == ("hot-2", 400)


def test_a_cancelled_batch_says_what_did_not_run(client: OpenAI, standing: Running) -> None:
    """Cancelling first, then cancelled."""
    batch = submit(client, *(line(f"stop-{n}") for n in range(4)))
    advance(standing, 7)
    assert client.batches.cancel(batch.id).status == "cancelling"
    advance(standing, 10)
    batch = client.batches.retrieve(batch.id)
    codes = [row["error"] for row in rows(client, batch.error_file_id)]
    assert (batch.status, len(codes), len(rows(client, batch.output_file_id))) == ("cancelled", 2, 2)
    assert isinstance(codes[0], dict)
    assert codes[0]["code"] == "batch_cancelled"
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)


def test_batches_are_listed_newest_first_through_the_sdk_s_paging(client: OpenAI) -> None:
    """Two at a time."""
    made = [submit(client, line(f"list-{n}")).id for n in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:3] == made[::-1]


def test_files_can_be_listed_and_deleted(client: OpenAI) -> None:
    """And are gone then."""
    file = client.files.create(file=("gone.jsonl", io.BytesIO(b"{}")), purpose="batch")
    assert file.id in [each.id for each in client.files.list(purpose="batch")]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_an_unknown_batch_is_not_found(client: OpenAI) -> None:
    """404 with the service's sentence."""
    with pytest.raises(openai.NotFoundError, match="No batch found"):
        client.batches.retrieve("batch_none")


@pytest.mark.parametrize(("provider", "window"), [("openai", "48h"), ("moonshot", "8d"), ("dashscope", "12h")])
def test_a_window_that_is_not_offered_is_refused(provider: str, window: str, standing: Running) -> None:
    """At once, with 400."""
    with (
        OpenAI(base_url=standing.url(provider), api_key="good", max_retries=0) as client,
        pytest.raises(openai.BadRequestError),
    ):
        client.batches.create(
            input_file_id="x",
            endpoint="/v1/chat/completions",
            completion_window=window,  # type: ignore[arg-type]
        )


def test_batches_cost_half_and_say_so_on_the_bill(client: OpenAI, standing: Running) -> None:
    """The discount of the settings, and the batch's id."""
    single = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "price-1"}])
    assert single.choices
    batch = submit(client, line("price-1"))
    advance(standing, 1000)
    client.batches.retrieve(batch.id)
    charges = [json.loads(text) for text in standing.bill.read_text().splitlines()]
    (charge,) = [each for each in charges if each.get("batch") == batch.id]
    (full,) = [each for each in charges if each["hash"] == charge["hash"] and not each.get("batch")]
    assert charge["nano"] == -(-full["nano"] // 2)


def test_a_batch_nobody_looks_at_is_charged_when_its_time_has_come(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A client that was killed pays as well; here a second is a day."""
    folder = tmp_path_factory.mktemp("fast")
    (folder / "settings.toml").write_text("[batches]\nspeed = 86400.0\n")
    with running(folder / "state", config=folder / "settings.toml") as simulator:
        with OpenAI(base_url=simulator.url("openai"), api_key="good", max_retries=0) as client:
            submit(client, line("alone-1"))
        calls = 0
        while calls == 0:
            calls = httpx.get(f"{simulator.address}/_sim").json()["calls"]
    assert calls == 1
