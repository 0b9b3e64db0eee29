"""Anthropic's official client, as it is, drives Message Batches and finds nothing wrong with the simulator."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch

from bench.simulator.launch import Running, running

MODEL = "claude-opus-4-6"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A simulator whose batches stand still until told."""
    folder = tmp_path_factory.mktemp("sdk-batches")
    (folder / "settings.toml").write_text('[batches]\nspeed = 0.0\n[batches.enqueued_tokens]\n"anthropic/tight" = 40\n')
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


@pytest.fixture
def client(standing: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=standing.url("anthropic"), api_key="good", max_retries=0) as found:
        yield found


def request(custom_id: str, **params: Any) -> Any:
    asked = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": custom_id}]}
    return {"custom_id": custom_id, "params": asked | params}


def submit(client: Anthropic, *requests: Any) -> MessageBatch:
    return client.messages.batches.create(requests=list(requests))


def advance(simulator: Running, seconds: float) -> None:
    httpx.post(f"{simulator.address}/_sim/batches/advance", json={"seconds": seconds})


def test_a_batch_goes_from_requests_to_results(client: Anthropic, standing: Running) -> None:
    """Create, poll, stream the results."""
    batch = submit(client, request("a1"), request("a2"))
    assert (batch.processing_status, batch.results_url, batch.request_counts.processing) == ("in_progress", None, 2)
    advance(standing, 1000)
    batch = client.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.request_counts.succeeded) == ("ended", 2)
    rows = {row.custom_id: row.result for row in client.messages.batches.results(batch.id)}
    assert set(rows) == {"a1", "a2"}
    assert rows["a1"].type == "succeeded"
    assert rows["a1"].message.usage.service_tier == "batch"
    assert rows["a1"].message.content


def test_counters_stand_still_until_the_end(client: Anthropic, standing: Running) -> None:
    """Their sum is always the size."""
    batch = submit(client, request("a1"), request("a2"))
    advance(standing, 6.5)
    assert client.messages.batches.retrieve(batch.id).request_counts.processing == 2


def test_bad_parameters_fail_alone_and_late(client: Anthropic, standing: Running) -> None:
    """The create call takes them."""
    bad = [request("hot", temperature=3), request("stream", stream=True), request("none", max_tokens=0)]
    batch = submit(client, request("fine"), *bad)
    advance(standing, 1000)
    rows = {row.custom_id: row.result for row in client.messages.batches.results(batch.id)}
    assert {custom_id: row.type for custom_id, row in rows.items()} == {
        "fine": "succeeded",
        "hot": "errored",
        "stream": "errored",
        "none": "errored",
    }
    assert rows["hot"].type == "errored"
    assert rows["hot"].error.error.type == "invalid_request_error"


@pytest.mark.parametrize(
    "requests",
    [[], [request("a1"), request("a1")], [request("ä")], [request("x" * 65)]],
    ids=["none", "twice", "letters", "long"],
)
def test_bad_ids_are_refused_at_once(requests: list[Any], client: Anthropic) -> None:
    """With 400."""
    with pytest.raises(anthropic.BadRequestError):
        submit(client, *requests)


def test_a_full_queue_is_a_rate_limit(client: Anthropic, standing: Running) -> None:
    """Until the live batches have ended."""
    submit(client, request("q1", model="tight"))
    with pytest.raises(anthropic.RateLimitError):
        submit(client, request("q2", model="tight"))
    advance(standing, 1000)
    assert submit(client, request("q2", model="tight")).id


def test_a_canceled_batch_ends_with_what_it_has(client: Anthropic, standing: Running) -> None:
    """Canceling first; results of both kinds."""
    batch = submit(client, *(request(f"c{n}") for n in range(4)))
    advance(standing, 7.5)
    canceling = client.messages.batches.cancel(batch.id)
    assert (canceling.processing_status, canceling.cancel_initiated_at is not None) == ("canceling", True)
    advance(standing, 10)
    counts = client.messages.batches.retrieve(batch.id).request_counts
    assert (counts.processing, counts.succeeded, counts.canceled) == (0, 2, 2)


def test_results_before_the_end_are_refused(client: Anthropic) -> None:
    """The SDK does not even ask; nor would it get them."""
    batch = submit(client, request("early"))
    with pytest.raises(anthropic.AnthropicError):
        client.messages.batches.results(batch.id)
    with pytest.raises(anthropic.BadRequestError):
        client.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)


def test_batches_are_listed_newest_first_through_the_sdk_s_paging(client: Anthropic) -> None:
    """Two at a time."""
    made = [submit(client, request("l1")).id for _ in range(3)]
    assert [batch.id for batch in client.messages.batches.list(limit=2)][:3] == made[::-1]


def test_only_an_ended_batch_can_be_deleted(client: Anthropic, standing: Running) -> None:
    """And is gone then."""
    batch = submit(client, request("d1"))
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.delete(batch.id)
    advance(standing, 1000)
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


def test_only_what_succeeded_is_charged_at_half_price(client: Anthropic, standing: Running) -> None:
    """By batch id on the bill."""
    batch = submit(client, request("fine"), request("hot", temperature=3))
    advance(standing, 1000)
    client.messages.batches.retrieve(batch.id)
    lines = [json.loads(text) for text in standing.bill.read_text().splitlines()]
    (charge,) = [line for line in lines if line.get("batch") == batch.id]
    tokens = charge["usage"]
    # A dollar and four a million tokens, halved.
    full = tokens["input_tokens"] * 1000 + tokens["output_tokens"] * 4000
    assert charge["nano"] == full // 2
