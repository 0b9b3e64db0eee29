"""Lines, jobs and rows of Gemini's batches in all their spellings."""

import json
from pathlib import Path

import httpx
import pytest

from engine.batch.provider import NOT_VISIBLE, QUEUE_FULL, BatchLine, BatchState, Marker, RemoteBatch, Shard
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, chat
from providers.batch_link import BatchLink
from providers.classify import ErrorTable
from providers.dialect import DIALECTS
from providers.gemini_batch import GeminiBatches
from providers.http import HttpEndpoint

MARKER = Marker(run="r1", shard=3, attempt=0, digest="0123456789abcdef")
BASE = "https://llm.example/v1beta"
RESPONSE = {
    "candidates": [{"content": {"parts": [{"text": "Yes."}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5, "thoughtsTokenCount": 2},
    "modelVersion": "gemini-1",
}
ERRORS = [
    (400, "bad", ErrorClass.BAD_REQUEST),
    (3, "bad", ErrorClass.BAD_REQUEST),
    (9, "billing is off", ErrorClass.QUOTA),
    (8, "exhausted", ErrorClass.RATE),
    (429, "exhausted", ErrorClass.RATE),
    (13, "oops", ErrorClass.TRANSIENT),
    (14, "overloaded", ErrorClass.TRANSIENT),
    (503, "overloaded", ErrorClass.TRANSIENT),
    (4, "too slow", ErrorClass.TRANSIENT),
    (1, "stopped", ErrorClass.TRANSIENT),
    (0, "?", ErrorClass.TRANSIENT),
]


async def no_wait(seconds: float) -> None:
    """Do not wait."""


def adapter(*replies: httpx.Response, calls: list[httpx.Request] | None = None) -> GeminiBatches:
    """Return an adapter on a network that gives these replies in turn."""
    left = list(replies)

    def answer(call: httpx.Request) -> httpx.Response:
        if calls is not None:
            calls.append(call)
        return left.pop(0)

    endpoint = HttpEndpoint("gemini", BASE, transport=httpx.MockTransport(answer))
    link = BatchLink(endpoint, ErrorTable.GEMINI, per_second=1000, sleep=no_wait)
    return GeminiBatches(link, dialects={"m": DIALECTS["gemini"]}, enqueued_tokens={"m": 3_000_000})


def line(index: int = 0) -> BatchLine:
    """Return a line."""
    messages = chat((Role.SYSTEM, "s"), (Role.USER, "hi"))
    return BatchLine(
        MARKER.line_id(index), Request(provider="p", model="m", messages=messages, decoding=Decoding(max_tokens=8))
    )


def job(state: str = "BATCH_STATE_RUNNING", **more: object) -> dict[str, object]:
    """Return a job; further fields go beside its metadata."""
    metadata = {
        "model": "models/m",
        "displayName": MARKER.token,
        "createTime": "2026-11-30T10:00:00.123456789Z",
        "inputConfig": {"fileName": "files/in"},
        "batchStats": {"requestCount": "2"},
        "state": state,
    }
    return {"name": "batches/b1", "metadata": metadata, **more}


async def polled(found: dict[str, object]) -> RemoteBatch:
    """Return what a job reads as."""
    return await adapter(httpx.Response(200, json=found)).poll("batches/b1")


def rows(*texts: str) -> list[tuple[str, object]]:
    """Return ids and outcomes of rows."""
    return [(row.custom_id, row.outcome) for row in adapter().rows(iter(text.encode() for text in texts))]


def test_a_line_is_a_key_and_the_single_call_s_body() -> None:
    """The model stands in the job's path."""
    found = json.loads(adapter().encode_line(line(7)))
    assert (found["key"], set(found["request"])) == ("r1-3-0-7", {"contents", "generationConfig", "systemInstruction"})


def test_a_line_without_a_proper_id_is_not_written() -> None:
    """Rows come back by it."""
    with pytest.raises(ProviderError):
        adapter().encode_line(BatchLine("a b", line(0).request))


async def test_uploads_of_a_run_that_no_job_uses_are_deleted() -> None:
    """By the marker that is their name; those that are still needed stay."""
    other = Marker(run="r2", shard=3, attempt=0, digest="0123456789abcdef")
    kept = Marker(run="r1", shard=4, attempt=0, digest="0123456789abcdef")
    names = [f"files/{marker.token}" for marker in (MARKER, other, kept)]
    first = httpx.Response(200, json={"files": [{"name": names[0]}], "nextPageToken": "t"})
    second = httpx.Response(200, json={"files": [{"name": name} for name in names[1:]]})
    calls: list[httpx.Request] = []
    found = adapter(first, second, httpx.Response(200, json={}), calls=calls)
    assert await found.tidy("r1", [names[2]]) == 1
    assert calls[1].url.params["pageToken"] == "t"
    assert [call.url.path for call in calls if call.method == "DELETE"] == [f"/v1beta/{names[0]}"]


def test_the_token_ceiling_is_the_model_s() -> None:
    """From the catalogue."""
    assert adapter().limits("m").enqueued_tokens == 3_000_000
    assert adapter().limits("other").enqueued_tokens is None


@pytest.mark.parametrize("key_first", [True, False])
def test_a_success_is_a_completion_in_either_order(key_first: bool) -> None:
    """Thoughts are part of the output."""
    said = {"response": RESPONSE}
    row = {"key": "a", **said} if key_first else {**said, "key": "a"}
    ((key, found),) = rows(json.dumps(row))
    assert isinstance(found, Completion)
    assert (key, found.text, found.usage.output_tokens, json.loads(found.raw)) == ("a", "Yes.", 7, RESPONSE)


def test_a_key_inside_metadata_is_found() -> None:
    """As inlined requests have it."""
    assert rows(json.dumps({"metadata": {"key": "a"}, "response": RESPONSE}))[0][0] == "a"


def test_a_blocked_prompt_is_a_response_without_candidates() -> None:
    """Filtered, and counted."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 8}}
    ((_, found),) = rows(json.dumps({"key": "a", "response": blocked}))
    assert isinstance(found, Completion)
    assert found.finish is Finish.FILTERED


@pytest.mark.parametrize(("code", "message", "kind"), ERRORS)
def test_an_error_row_is_read_in_both_number_spaces(code: int, message: str, kind: ErrorClass) -> None:
    """HTTP statuses and google.rpc codes."""
    ((_, found),) = rows(json.dumps({"key": "a", "error": {"code": code, "message": message}}))
    assert isinstance(found, ProviderError)
    assert (found.kind, found.maybe_billed) == (kind, False)


@pytest.mark.parametrize("row", ['{"key":"a"}', '{"key":"a","response":{}}', '{"key":"a","error":"oops"}'])
def test_a_row_that_says_nothing_may_have_been_charged(row: str) -> None:
    """Unknown is not failed."""
    ((key, found),) = rows(row)
    assert isinstance(found, ProviderError)
    assert (key, found.maybe_billed) == ("a", True)


@pytest.mark.parametrize(
    ("state", "expected", "word"),
    [
        ("BATCH_STATE_PENDING", BatchState.OPEN, "PENDING"),
        ("JOB_STATE_PENDING", BatchState.OPEN, "PENDING"),
        ("JOB_STATE_QUEUED", BatchState.OPEN, "QUEUED"),
        ("JOB_STATE_CANCELLING", BatchState.OPEN, "CANCELLING"),
        ("JOB_STATE_PAUSED", BatchState.OPEN, "PAUSED"),
        ("BATCH_STATE_UNSPECIFIED", BatchState.OPEN, "UNSPECIFIED"),
        ("JOB_STATE_SUCCEEDED", BatchState.ENDED, "SUCCEEDED"),
        ("JOB_STATE_PARTIALLY_SUCCEEDED", BatchState.ENDED, "PARTIALLY_SUCCEEDED"),
        ("BATCH_STATE_FAILED", BatchState.ENDED, "FAILED"),
        ("BATCH_STATE_CANCELLED", BatchState.ENDED, "CANCELLED"),
        ("BATCH_STATE_EXPIRED", BatchState.ENDED, "EXPIRED"),
        ("BATCH_STATE_OF_NEXT_YEAR", BatchState.OPEN, "OF_NEXT_YEAR"),
    ],
)
async def test_a_state_is_read_with_either_prefix(state: str, expected: BatchState, word: str) -> None:
    """A job that failed may have run and been charged in part: it has ended, it was not refused."""
    found = await polled(job(state))
    assert (found.state, found.status) == (expected, word)


async def test_numbers_that_are_strings_are_read() -> None:
    """And moments with nine decimals."""
    found = await polled(job())
    assert (found.count, found.created_at, found.marker, found.input_file) == (
        2,
        1_796_032_800.123456,
        MARKER.token,
        "files/in",
    )
    assert found.expires_at - found.created_at == 48 * 3600


@pytest.mark.parametrize(
    ("beside", "inside", "results"),
    [
        ({"response": {"responsesFile": "files/o"}}, {}, ("files/o",)),
        ({}, {"output": {"responsesFile": "files/o"}}, ("files/o",)),
        ({"response": {}}, {"output": {"responsesFile": "files/o"}}, ("files/o",)),
        ({"response": {"inlinedResponses": {}}}, {}, ()),
        ({}, {}, ()),
    ],
    ids=["response", "metadata", "empty response", "inlined", "nowhere"],
)
async def test_the_results_file_is_found_in_either_place(
    beside: dict[str, object], inside: dict[str, object], results: tuple[str, ...]
) -> None:
    """Or nowhere."""
    found = job("BATCH_STATE_SUCCEEDED", done=True, **beside)
    found["metadata"] = {**found["metadata"], **inside}  # type: ignore[dict-item]
    assert (await polled(found)).results == results


async def test_the_reason_of_a_failed_job_is_kept() -> None:
    """For people."""
    found = await polled(job("BATCH_STATE_FAILED", done=True, error={"code": 13, "message": "oops"}))
    assert [(each.code, each.message) for each in found.line_errors] == [("13", "oops")]


@pytest.mark.parametrize(
    ("status", "error", "kind", "code"),
    [
        (429, {"message": "Resource has been exhausted", "status": "RESOURCE_EXHAUSTED"}, ErrorClass.RATE, QUEUE_FULL),
        (
            429,
            {"message": "Enqueued tokens: check your plan and billing", "status": "RESOURCE_EXHAUSTED"},
            ErrorClass.RATE,
            QUEUE_FULL,
        ),
        (
            429,
            {"message": "check your plan and billing", "status": "RESOURCE_EXHAUSTED"},
            ErrorClass.QUOTA,
            "RESOURCE_EXHAUSTED",
        ),
        (400, {"message": "row 2", "status": "INVALID_ARGUMENT"}, ErrorClass.BAD_REQUEST, "INVALID_ARGUMENT"),
    ],
    ids=["queue", "queue by name", "no money", "bad row"],
)
async def test_a_refused_create_call_made_nothing(
    status: int, error: dict[str, object], kind: ErrorClass, code: str, tmp_path: Path
) -> None:
    """And says what to do with the shard."""
    reply = httpx.Response(status, json={"error": error | {"code": status}})
    with pytest.raises(ProviderError) as caught:
        await adapter(reply).create(MARKER, "files/in", tmp_path, Shard(count=1, model="m"))
    assert (caught.value.kind, caught.value.code, caught.value.maybe_billed) == (kind, code, False)


async def test_the_create_call_names_file_and_marker(tmp_path: Path) -> None:
    """Below the model's own path."""
    calls: list[httpx.Request] = []
    await adapter(httpx.Response(200, json=job()), calls=calls).create(
        MARKER, "files/in", tmp_path, Shard(count=1, model="m")
    )
    assert str(calls[0].url) == f"{BASE}/models/m:batchGenerateContent"
    assert json.loads(calls[0].content) == {
        "batch": {"displayName": MARKER.token, "inputConfig": {"fileName": "files/in"}}
    }


async def test_a_job_that_is_not_known_yet_is_not_lost() -> None:
    """404 is transient."""
    with pytest.raises(ProviderError) as caught:
        await adapter(httpx.Response(404)).poll("batches/b1")
    assert (caught.value.kind, caught.value.code) == (ErrorClass.TRANSIENT, NOT_VISIBLE)


def opened(where: str) -> httpx.Response:
    """Return the reply that opens an upload."""
    return httpx.Response(200, headers={"x-goog-upload-url": where})


async def test_an_upload_goes_beside_the_version_and_never_to_another_host(tmp_path: Path) -> None:
    """The address comes from a reply; the key must not follow it."""
    path, calls = tmp_path / "in.jsonl", []
    path.write_bytes(b"{}\n")
    name = f"files/{MARKER.token}"
    done = httpx.Response(200, json={"file": {"name": name, "sizeBytes": "3", "state": "ACTIVE"}})
    seen = httpx.Response(200, json={"name": name, "sizeBytes": "3", "state": "ACTIVE"})
    replies = [opened("https://evil.example/upload/v1beta/files?upload_id=u1"), done, httpx.Response(403), seen]
    assert await adapter(*replies, calls=calls).upload(MARKER, path) == name
    assert [str(call.url) for call in calls] == [
        "https://llm.example/upload/v1beta/files",
        "https://llm.example/upload/v1beta/files?upload_id=u1",
        f"{BASE}/{name}",
        f"{BASE}/{name}",
    ]
    assert json.loads(calls[0].content) == {"file": {"name": name, "displayName": MARKER.token}}
    assert (calls[1].content, calls[1].headers["x-goog-upload-command"]) == (b"{}\n", "upload, finalize")


async def test_an_input_file_that_failed_is_not_used(tmp_path: Path) -> None:
    """It is deleted, so that its name is free again."""
    path, calls = tmp_path / "in.jsonl", []
    path.write_bytes(b"{}\n")
    failed = {"name": "files/x", "sizeBytes": "3", "state": "FAILED"}
    replies = [opened("https://llm.example/up?u=1"), httpx.Response(200, json={"file": failed})]
    replies += [httpx.Response(200, json=failed), httpx.Response(200, json={})]
    with pytest.raises(ProviderError) as caught:
        await adapter(*replies, calls=calls).upload(MARKER, path)
    assert (caught.value.kind, calls[-1].method) == (ErrorClass.TRANSIENT, "DELETE")


async def test_a_list_is_read_page_by_page_back_to_the_time_of_the_intent() -> None:
    """By token."""
    calls: list[httpx.Request] = []
    other = job() | {"name": "batches/b0"}
    other["metadata"] = {**other["metadata"], "displayName": MARKER.token + "0", "createTime": "2026-11-29T10:00:00Z"}  # type: ignore[dict-item]
    pages = [{"operations": [job()], "nextPageToken": "t/1"}, {"operations": [other], "nextPageToken": "t2"}]
    replies = [httpx.Response(200, json=page) for page in pages]
    found = await adapter(*replies, calls=calls).find(MARKER, 1_796_032_800, 2)
    assert [batch.id for batch in found] == ["batches/b1"]
    assert [call.url.params.get("pageToken") for call in calls] == [None, "t/1"]
