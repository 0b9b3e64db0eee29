"""Lines and rows of Anthropic's batches, and whose a batch without a marker may be."""

import json
from pathlib import Path

import httpx
import pytest

from engine.batch.provider import QUEUE_FULL, BatchLine, BatchState, Marker, RemoteBatch, Shard, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, chat
from providers.anthropic_batch import AnthropicBatches
from providers.batch_link import BatchLink
from providers.classify import ErrorTable
from providers.dialect import DIALECTS
from providers.http import HttpEndpoint

MARKER = Marker(run="r1", shard=3, attempt=0, digest="0123456789abcdef")
BORN = "2026-11-30T10:00:00.044758+00:00"
BORN_AT = 1_796_032_800.044758
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "model": "claude-1",
    "content": [{"type": "text", "text": "Yes."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 12, "cache_read_input_tokens": 3, "output_tokens": 5, "service_tier": "batch"},
}
ERRORS = [
    ("invalid_request_error", "temperature: this model takes none", ErrorClass.BAD_REQUEST),
    ("invalid_request_error", "the model cannot do that", ErrorClass.BAD_REQUEST),
    ("invalid_request_error", "Your credit balance is too low", ErrorClass.QUOTA),
    ("not_found_error", "model: claude-0", ErrorClass.GONE),
    ("rate_limit_error", "slow", ErrorClass.RATE),
    ("api_error", "oops", ErrorClass.TRANSIENT),
    ("overloaded_error", "Overloaded", ErrorClass.TRANSIENT),
    ("a word of next year", "?", ErrorClass.TRANSIENT),
]


async def no_wait(seconds: float) -> None:
    """Do not wait."""


def adapter(*replies: httpx.Response, calls: list[httpx.Request] | None = None) -> AnthropicBatches:
    """Return an adapter on a network that gives these replies in turn."""
    left = list(replies)

    def answer(call: httpx.Request) -> httpx.Response:
        if calls is not None:
            calls.append(call)
        return left.pop(0)

    endpoint = HttpEndpoint("anthropic", "https://llm.example", transport=httpx.MockTransport(answer))
    link = BatchLink(endpoint, ErrorTable.ANTHROPIC, per_second=1000, sleep=no_wait)
    return AnthropicBatches(link, dialects={"m": DIALECTS["anthropic"], "m2": DIALECTS["anthropic"]})


def line(index: int, *, model: str = "m", text: str = "hi") -> BatchLine:
    """Return a line."""
    messages = chat((Role.SYSTEM, "s"), (Role.USER, text))
    return BatchLine(
        MARKER.line_id(index), Request(provider="p", model=model, messages=messages, decoding=Decoding(max_tokens=8))
    )


def batch(status: str = "in_progress", *, count: int = 2, **more: object) -> dict[str, object]:
    """Return a Message Batch object."""
    counts = {"processing": count, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    return {
        "id": "msgbatch_1",
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": BORN,
        "expires_at": "2026-12-01T10:00:00.044758+00:00",
        "results_url": None,
        **more,
    }


def page(*batches: dict[str, object], more: bool = False) -> httpx.Response:
    """Return a page of the list."""
    last = batches[-1]["id"] if batches else None
    return httpx.Response(200, json={"data": list(batches), "has_more": more, "last_id": last})


def outcome(result: object) -> Completion | ProviderError | Unpaid:
    """Return how a row reads."""
    (row,) = adapter().rows(iter([json.dumps({"custom_id": "a", "result": result}).encode()]))
    assert row.custom_id == "a"
    return row.outcome


async def polled(**body: object) -> RemoteBatch:
    """Return what a batch object reads as."""
    return await adapter(httpx.Response(200, json=batch(**body))).poll("msgbatch_1")  # type: ignore[arg-type]


def test_a_line_is_an_id_and_the_single_call_s_body() -> None:
    """Without a stream."""
    found = json.loads(adapter().encode_line(line(7)))
    assert (found["custom_id"], found["params"]["model"], found["params"]["max_tokens"]) == ("r1-3-0-7", "m", 8)
    assert (found["params"]["system"], "stream" in found["params"]) == ("s", False)


@pytest.mark.parametrize(("custom_id", "model"), [("a b", "m"), ("", "m"), ("x" * 65, "m"), ("a", "other")])
def test_a_line_that_would_be_refused_is_not_written(custom_id: str, model: str) -> None:
    """A bad id is refused at once, for the whole batch."""
    with pytest.raises(ProviderError):
        adapter().encode_line(BatchLine(custom_id, line(0, model=model).request))


@pytest.mark.parametrize("end", [b"\n", b""], ids=["with a last line end", "without"])
async def test_the_create_call_holds_the_lines_as_a_list(end: bytes, tmp_path: Path) -> None:
    """Streamed from the file, with the length that was promised."""
    path, calls = tmp_path / "in.jsonl", []
    texts = [line(index, text="a\nb") for index in range(3)]
    path.write_bytes(b"\n".join(adapter().encode_line(each) for each in texts) + end)
    made = await adapter(httpx.Response(200, json=batch()), calls=calls).create(MARKER, "", path, Shard(count=3))
    sent = json.loads(calls[0].content)
    assert [each["custom_id"] for each in sent["requests"]] == [MARKER.line_id(index) for index in range(3)]
    assert int(calls[0].headers["content-length"]) == len(calls[0].content)
    assert (made.id, made.state) == ("msgbatch_1", BatchState.OPEN)


async def test_a_long_file_travels_in_pieces_that_fit_together(tmp_path: Path) -> None:
    """Line ends lie anywhere in a piece."""
    path, calls = tmp_path / "in.jsonl", []
    path.write_bytes(b"".join(b'{"n":%d,"x":"%s"}\n' % (n, b"y" * 700_000) for n in range(5)))
    await adapter(httpx.Response(200, json=batch()), calls=calls).create(MARKER, "", path, Shard(count=5))
    assert [each["n"] for each in json.loads(calls[0].content)["requests"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        (429, {"type": "rate_limit_error", "message": "queue"}, ErrorClass.RATE, QUEUE_FULL),
        (
            429,
            {"type": "rate_limit_error", "message": "-", "details": {"error_code": "enforced_spend_limit_reached"}},
            ErrorClass.QUOTA,
            "rate_limit_error",
        ),
        (
            400,
            {"type": "invalid_request_error", "message": "custom_id"},
            ErrorClass.BAD_REQUEST,
            "invalid_request_error",
        ),
    ],
    ids=["queue", "spend limit", "refused"],
)
async def test_a_refused_create_call_made_nothing(
    status: int, error: dict[str, object], kind: ErrorClass, code: str, tmp_path: Path
) -> None:
    """And says what to do with the shard."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    reply = httpx.Response(status, json={"type": "error", "error": error})
    with pytest.raises(ProviderError) as caught:
        await adapter(reply).create(MARKER, "", path, Shard(count=1))
    assert (caught.value.kind, caught.value.code, caught.value.maybe_billed) == (kind, code, False)


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(529), httpx.Response(200, content=b"<html>")])
async def test_a_create_call_with_an_open_outcome_is_in_doubt(reply: httpx.Response, tmp_path: Path) -> None:
    """It may have made a batch; one reply only, so a second call would fail this test."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(ProviderError) as caught:
        await adapter(reply).create(MARKER, "", path, Shard(count=1))
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.TRANSIENT, True)


def test_a_success_is_a_completion() -> None:
    """Cached tokens are part of the prompt; the message is kept as it came."""
    found = outcome({"type": "succeeded", "message": MESSAGE})
    assert isinstance(found, Completion)
    assert (found.text, found.usage.input_tokens, json.loads(found.raw)) == ("Yes.", 15, MESSAGE)


def test_a_refusal_is_a_success() -> None:
    """And billed."""
    refused = MESSAGE | {
        "content": [],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "bio"},
    }
    found = outcome({"type": "succeeded", "message": refused})
    assert isinstance(found, Completion)
    assert found.finish is Finish.REFUSED


@pytest.mark.parametrize(("kind", "message", "expected"), ERRORS)
def test_an_error_row_has_the_class_of_the_single_call_s_error(kind: str, message: str, expected: ErrorClass) -> None:
    """Though it names no HTTP status; it is not charged."""
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
    found = outcome({"type": "errored", "error": error})
    assert isinstance(found, ProviderError)
    assert (found.kind, found.maybe_billed) == (expected, False)


@pytest.mark.parametrize(("kind", "unpaid"), [("canceled", Unpaid.CANCELLED), ("expired", Unpaid.EXPIRED)])
def test_a_request_that_never_ran_is_unpaid(kind: str, unpaid: Unpaid) -> None:
    """Each has a row of its own."""
    assert outcome({"type": kind}) is unpaid


@pytest.mark.parametrize(
    "result",
    [None, {}, {"type": "a word of next year"}, {"type": "succeeded"}, {"type": "succeeded", "message": {}}],
    ids=["none", "empty", "unknown", "no message", "empty message"],
)
def test_a_row_that_says_nothing_may_have_been_charged(result: object) -> None:
    """Unknown is not failed."""
    found = outcome(result)
    assert isinstance(found, ProviderError)
    assert found.maybe_billed


async def test_counters_add_up_to_the_size_and_say_nothing_else() -> None:
    """All of them are processing until the end."""
    running = await polled()
    assert (running.state, running.count, running.results) == (BatchState.OPEN, 2, ())
    assert (running.created_at, running.expires_at - running.created_at) == (BORN_AT, 86_400)


async def test_an_ended_batch_has_results_though_their_address_is_not_told_yet() -> None:
    """The address follows from the id."""
    assert (await polled(status="ended")).results == ("msgbatch_1",)


async def test_an_archived_batch_has_no_results_any_more() -> None:
    """After 29 days."""
    found = await polled(status="ended", archived_at="2026-12-29T10:00:00Z")
    assert (found.state, found.results) == (BatchState.ENDED, ())


@pytest.mark.parametrize(
    ("row", "ids"),
    [
        ({"custom_id": "r1-3-0-1"}, ["msgbatch_1"]),
        ({"custom_id": "r1-3-1-1"}, []),
        ({"custom_id": "somebody-else"}, []),
    ],
    ids=["ours", "another attempt", "a stranger"],
)
async def test_an_ended_batch_is_ours_by_its_first_row(row: dict[str, str], ids: list[str]) -> None:
    """Which is all that is fetched of it."""
    results = httpx.Response(200, content=json.dumps(row).encode() + b"\n{}\n")
    found = await adapter(page(batch("ended")), results).find(MARKER, BORN_AT, 2)
    assert [each.id for each in found] == ids
    assert all(each.marker == MARKER.token for each in found)


async def test_an_ended_batch_that_cannot_be_read_yet_stays_a_candidate() -> None:
    """Neither ours nor another's."""
    (found,) = await adapter(page(batch("ended")), httpx.Response(404)).find(MARKER, BORN_AT, 2)
    assert found.marker == ""


async def test_the_list_is_read_back_to_the_time_of_the_intent() -> None:
    """Page by page, no further; clocks may differ by a quarter of an hour."""
    calls: list[httpx.Request] = []
    old = batch(created_at="2026-11-30T09:00:00Z") | {"id": "msgbatch_0"}
    replies = [page(batch(), more=True), page(old, more=True)]
    found = await adapter(*replies, calls=calls).find(MARKER, BORN_AT + 600, 2)
    assert [each.id for each in found] == ["msgbatch_1"]
    assert [call.url.params.get("after_id") for call in calls] == [None, "msgbatch_1"]
