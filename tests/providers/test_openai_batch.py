"""Lines and rows of batches of OpenAI's shape: what is written, what is refused, and how every kind of row reads."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from engine.batch.ordering import lines_of
from engine.batch.provider import QUEUE_FULL, BatchLine, BatchState, Marker, RemoteBatch, Shard, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Message, Request, Role, chat
from providers.batch_dialect import BATCH_DIALECTS
from providers.batch_link import BatchLink
from providers.classify import ErrorTable
from providers.dialect import DIALECTS
from providers.http import HttpEndpoint
from providers.openai_batch import OpenAIBatches

MARKER = Marker(run="r1", shard=3, attempt=0, digest="0123456789abcdef")
NAMES = {
    "openai": ErrorTable.OPENAI,
    "dashscope": ErrorTable.DASHSCOPE,
    "zhipu": ErrorTable.ZHIPU,
    "kimi": ErrorTable.KIMI,
}
CHAT = {
    "id": "chatcmpl-1",
    "model": "m-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
}
CLASSES = [
    (
        "openai",
        400,
        {"message": "no", "type": "invalid_request_error", "code": "unsupported_value"},
        ErrorClass.BAD_REQUEST,
    ),
    ("openai", 429, {"message": "slow", "type": "tokens", "code": "rate_limit_exceeded"}, ErrorClass.RATE),
    ("openai", 500, {"message": "oops", "type": "server_error", "code": None}, ErrorClass.TRANSIENT),
    ("dashscope", 400, {"message": "bad words", "code": "data_inspection_failed"}, ErrorClass.CONTENT),
    ("dashscope", 429, {"message": "TPM", "code": "insufficient_quota"}, ErrorClass.RATE),
    ("zhipu", 400, {"message": "bad words", "code": "1301"}, ErrorClass.CONTENT),
    ("zhipu", 429, {"message": "no money", "code": "1113"}, ErrorClass.QUOTA),
    ("kimi", 429, {"message": "busy", "type": "engine_overloaded_error"}, ErrorClass.TRANSIENT),
]


def adapter(name: str = "openai", network: httpx.AsyncBaseTransport | None = None) -> OpenAIBatches:
    """Return an adapter that knows one model, on a scripted network."""
    table = NAMES[name]
    endpoint = HttpEndpoint(name, "https://llm.example/v1", transport=network or httpx.MockTransport(nobody))
    dialects = {"m": DIALECTS[name], "m2": DIALECTS[name]}
    return OpenAIBatches(
        BatchLink(endpoint, table, per_second=1000, sleep=no_wait), BATCH_DIALECTS[table], dialects=dialects
    )


def nobody(call: httpx.Request) -> httpx.Response:
    """Answer nothing: these tests are pure."""
    raise AssertionError(call.url)


async def no_wait(seconds: float) -> None:
    """Do not wait."""


def line(index: int = 0, *, custom_id: str = "", model: str = "m", text: str = "hi", **decoding: object) -> BatchLine:
    """Return a line."""
    settings = Decoding(max_tokens=8, **decoding)  # type: ignore[arg-type]
    request = Request(provider="p", model=model, messages=chat((Role.USER, text)), decoding=settings)
    return BatchLine(custom_id or MARKER.line_id(index), request)


def refusal(name: str, bad: BatchLine) -> ProviderError:
    """Return what the adapter says of a line that it does not write."""
    with pytest.raises(ProviderError) as caught:
        adapter(name).encode_line(bad)
    return caught.value


def outcome(name: str, **row: object) -> Completion | ProviderError | Unpaid:
    """Return how a row reads."""
    (found,) = adapter(name).rows(iter([json.dumps({"custom_id": "a", **row}).encode()]))
    assert found.custom_id == "a"
    return found.outcome


def polled(
    body: dict[str, object], name: str = "openai", headers: dict[str, str] | None = None
) -> "httpx.MockTransport":
    """Return a network that answers every call with a batch object."""
    return httpx.MockTransport(lambda _: httpx.Response(200, json={"id": "batch_1", **body}, headers=headers))


async def described(name: str = "openai", headers: dict[str, str] | None = None, **body: object) -> RemoteBatch:
    """Return what a batch object reads as."""
    return await adapter(name, polled(body, name, headers)).poll("batch_1")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("openai", "/v1/chat/completions"),
        ("dashscope", "/v1/chat/completions"),
        ("zhipu", "/v4/chat/completions"),
        ("kimi", "/v1/chat/completions"),
    ],
)
def test_a_line_is_the_single_call_s_body_in_an_envelope(name: str, url: str) -> None:
    """Id, method, URL, body; one line of JSON."""
    encoded = adapter(name).encode_line(line(7))
    assert b"\n" not in encoded
    found = json.loads(encoded)
    assert (found["custom_id"], found["method"], found["url"]) == ("r1-3-0-7", "POST", url)
    assert found["body"]["messages"] == [{"role": "user", "content": "hi"}]
    assert "stream" not in found["body"]


def test_a_text_with_line_ends_stays_one_line() -> None:
    """JSONL breaks at the first real one."""
    encoded = adapter().encode_line(line(text="a\nb\r\u2028c"))
    assert len(encoded.splitlines()) == 1
    assert json.loads(encoded)["body"]["messages"][0]["content"] == "a\nb\r\u2028c"


@pytest.mark.parametrize(
    ("name", "bad", "kind", "word"),
    [
        ("openai", line(custom_id="ä"), ErrorClass.BAD_REQUEST, "the id 'ä' is not 1 to 64"),
        ("openai", line(custom_id="x" * 65), ErrorClass.BAD_REQUEST, "is not 1 to 64"),
        ("openai", line(custom_id="a\n"), ErrorClass.BAD_REQUEST, "is not 1 to 64"),
        ("zhipu", line(custom_id="short"), ErrorClass.BAD_REQUEST, "the id 'short' is not 6 to 64"),
        ("openai", line(model="other"), ErrorClass.GONE, "no model 'other'"),
        ("dashscope", line(text="x" * 1_000_001), ErrorClass.BAD_REQUEST, "the provider takes 1,000,000"),
        ("kimi", line(temperature=0.7), ErrorClass.BAD_REQUEST, "no temperature"),
        ("kimi", line(top_p=0.9, temperature=1.0), ErrorClass.BAD_REQUEST, "no temperature and no top_p"),
        ("zhipu", line(schema='{"type":"object"}'), ErrorClass.BAD_REQUEST, "json"),
    ],
    ids=["letters", "long", "line end", "short", "unknown", "bytes", "kimi", "kimi-two", "encode"],
)
def test_a_line_that_would_sink_the_batch_is_not_written(
    name: str, bad: BatchLine, kind: ErrorClass, word: str
) -> None:
    """These services refuse everything for one line."""
    found = refusal(name, bad)
    assert (found.kind, found.maybe_billed) == (kind, False)
    assert word in found.message


@pytest.mark.parametrize(
    ("name", "status", "output", "unpaid"),
    [
        ("dashscope", "expired", "file-o", True),
        ("dashscope", "cancelled", "file-o", True),
        ("dashscope", "cancelled", None, False),
        ("dashscope", "completed", "file-o", False),
        ("openai", "cancelled", "file-o", False),
        ("openai", "expired", "file-o", False),
        ("zhipu", "expired", "file-o", False),
        ("kimi", "cancelled", "file-o", False),
    ],
)
async def test_only_model_studio_says_that_what_has_no_row_is_unpaid(
    name: str, status: str, output: str | None, unpaid: bool
) -> None:
    """And only when the finished part is there to be seen; elsewhere a missing row is an unknown outcome."""
    assert (await described(name, status=status, output_file_id=output)).unpaid_rest is unpaid


async def test_uploads_of_a_run_that_no_batch_uses_are_deleted() -> None:
    """By the marker in their names, page by page; others' files and those that are still needed stay."""
    names = {
        "f1": f"{MARKER.token}.jsonl",
        "f2": f"{MARKER.token}.jsonl",
        "f3": "r10-3-0-0123456789abcdef.jsonl",
        "f4": "r1.jsonl",
        "f5": None,
        "f6": f"{msgspec.structs.replace(MARKER, shard=9).token}(1).jsonl",
    }
    data = [{"id": file_id, "filename": name} for file_id, name in names.items()]
    pages = [{"data": data[:4], "has_more": True}, {"data": data[4:], "has_more": False}]
    deleted = [httpx.Response(200, json={}) for _ in range(2)]
    calls, network = calls_of(*[httpx.Response(200, json=page) for page in pages], *deleted)
    assert await adapter("openai", network).tidy("r1", ["f2"]) == 2
    assert calls[1].url.params["after"] == "f4"
    assert [call.url.path for call in calls if call.method == "DELETE"] == ["/v1/files/f1", "/v1/files/f6"]


@pytest.mark.parametrize("name", NAMES)
def test_a_success_is_a_completion(name: str) -> None:
    """Read by the single call's own decoder, body kept as it came."""
    found = outcome(name, id="batch_req_1", response={"status_code": 200, "request_id": "q1", "body": CHAT}, error=None)
    assert isinstance(found, Completion)
    assert (found.text, found.usage.input_tokens, found.provider_request_id) == ("Yes.", 12, "q1")
    assert json.loads(found.raw) == CHAT


def test_a_row_without_an_error_key_and_without_a_request_id_reads_too() -> None:
    """Zhipu and Moonshot."""
    found = outcome("kimi", id="a", response={"status_code": 200, "request_id": "", "body": CHAT})
    assert isinstance(found, Completion)
    assert found.provider_request_id == "chatcmpl-1"


def test_a_success_need_not_be_an_answer() -> None:
    """HTTP 200 with a filter's word."""
    choice = {"index": 0, "message": {"content": ""}, "finish_reason": "content_filter"}
    found = outcome("openai", response={"status_code": 200, "body": CHAT | {"choices": [choice]}})
    assert isinstance(found, Completion)
    assert found.finish is Finish.FILTERED


@pytest.mark.parametrize(("name", "status", "error", "kind"), CLASSES)
def test_an_error_row_is_classified_as_the_call_would_be(
    name: str, status: int, error: dict[str, object], kind: ErrorClass
) -> None:
    """And is not charged."""
    found = outcome(name, response={"status_code": status, "request_id": "q", "body": {"error": error}}, error=None)
    assert isinstance(found, ProviderError)
    assert (found.kind, found.status, found.maybe_billed) == (kind, status, False)


@pytest.mark.parametrize(
    ("error", "unpaid"),
    [
        ({"code": "batch_expired", "message": "too late"}, Unpaid.EXPIRED),
        ({"code": "batch_cancelled", "message": "stopped"}, Unpaid.CANCELLED),
        ({"error_code": "batch_expired", "error_message": "too late"}, Unpaid.EXPIRED),
    ],
    ids=["expired", "cancelled", "other spelling"],
)
def test_a_request_that_never_ran_is_unpaid(error: dict[str, str], unpaid: Unpaid) -> None:
    """Its row says so in plain words."""
    assert outcome("dashscope", response=None, error=error) is unpaid


@pytest.mark.parametrize("spelling", [("code", "message"), ("error_code", "error_message")])
def test_an_error_without_a_response_is_read_in_both_spellings(spelling: tuple[str, str]) -> None:
    """The provider's documents disagree with themselves."""
    found = outcome(
        "dashscope", response=None, error=dict(zip(spelling, ("data_inspection_failed", "bad words"), strict=True))
    )
    assert isinstance(found, ProviderError)
    assert (found.kind, found.code) == (ErrorClass.CONTENT, "data_inspection_failed")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"response": None, "error": None},
        {"response": {"status_code": 200, "body": None}},
        {"response": {"status_code": 200, "body": {}}},
    ],
    ids=["bare", "nulls", "no body", "empty body"],
)
def test_a_row_that_says_nothing_may_have_been_charged(row: dict[str, object]) -> None:
    """Unknown is not failed."""
    found = outcome("openai", **row)
    assert isinstance(found, ProviderError)
    assert (found.kind, found.maybe_billed) == (ErrorClass.TRANSIENT, True)


def test_a_line_that_cannot_be_read_is_a_row_without_an_id() -> None:
    """The rows around it are read."""
    good = json.dumps({"custom_id": "a", "response": {"status_code": 200, "body": CHAT}}).encode()
    rows = list(adapter().rows(iter([good, b"{oops", b"[]", good])))
    assert [row.custom_id for row in rows] == ["a", "", "", "a"]
    assert all(isinstance(row.outcome, ProviderError) for row in rows[1:3])


def test_ids_of_digits_stay_text() -> None:
    """`007` is not 7."""
    (row,) = adapter().rows(iter([b'{"custom_id":"007","response":null,"error":{"code":"batch_expired"}}']))
    assert row.custom_id == "007"


def test_a_file_is_read_line_by_line_with_or_without_a_last_line_end(tmp_path: Path) -> None:
    """Blank lines and carriage returns do not matter."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"custom_id":"a"}\r\n\n{"custom_id":"b"}')
    assert [row.custom_id for row in adapter().rows(lines_of(path))] == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("validating", BatchState.OPEN),
        ("in_progress", BatchState.OPEN),
        ("finalizing", BatchState.OPEN),
        ("cancelling", BatchState.OPEN),
        ("completed", BatchState.ENDED),
        ("expired", BatchState.ENDED),
        ("cancelled", BatchState.ENDED),
        ("failed", BatchState.FAILED),
        ("a word of next year", BatchState.OPEN),
    ],
)
async def test_a_status_says_whether_anything_can_still_run(status: str, state: BatchState) -> None:
    """An unknown word may still run."""
    assert (await described(status=status)).state is state


async def test_a_batch_with_the_required_fields_only_can_be_read() -> None:
    """Everything else is optional."""
    batch = await described(status="validating", created_at=1736425728)
    assert (batch.expires_at, batch.results, batch.count, batch.marker) == (1736425728 + 86_400, (), None, "")


async def test_both_files_are_results_in_every_state() -> None:
    """Also of a batch that failed."""
    batch = await described(status="failed", output_file_id="file-o", error_file_id="file-e")
    assert batch.results == ("file-o", "file-e")


async def test_counters_of_a_batch_that_is_validated_are_not_believed() -> None:
    """They are zero then."""
    assert (
        await described(status="validating", request_counts={"total": 0, "completed": 0, "failed": 0})
    ).count is None


async def test_the_first_bad_line_is_named() -> None:
    """With its code and place."""
    error = {"code": "mismatched_model", "message": "two models", "param": "body.model", "line": 2}
    batch = await described(status="failed", errors={"object": "list", "data": [error]})
    assert [(each.code, each.line) for each in batch.line_errors] == [("mismatched_model", 2)]


@pytest.mark.parametrize("errors", ["oops", ["oops"], [{"message": "oops"}], {"data": "oops"}], ids=str)
async def test_reasons_in_another_shape_are_kept_as_text(errors: object) -> None:
    """Where one provider puts them is not documented."""
    batch = await described(status="failed", errors=errors)
    assert "oops" in batch.line_errors[0].message


@pytest.mark.parametrize("value", [None, 7, ["x"], {"a": 1}], ids=str)
async def test_metadata_of_another_shape_is_nobody_s_marker(value: object) -> None:
    """Other people's batches are on the same list."""
    assert (await described(status="completed", metadata={"mirage": value})).marker == ""


async def test_a_token_limit_is_a_full_queue() -> None:
    """Nothing ran; the shard goes back."""
    error = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "param": None, "line": None}
    batch = await described(status="failed", errors={"data": [error]})
    assert (batch.queue_full, batch.line_errors[0].code) == (True, QUEUE_FULL)


@pytest.mark.parametrize(("name", "key"), [("openai", "mirage"), ("dashscope", "ds_name")])
async def test_the_marker_is_read_back_from_its_place(name: str, key: str) -> None:
    """Metadata, or Model Studio's task name."""
    batch = await described(name, status="validating", metadata={key: MARKER.token, "other": "x"})
    assert batch.marker == MARKER.token


async def test_the_wait_asked_for_comes_with_the_batch() -> None:
    """For the next poll."""
    assert (await described(status="validating", headers={"retry-after": "30"})).retry_after == 30.0


def calls_of(*replies: httpx.Response) -> tuple[list[httpx.Request], httpx.MockTransport]:
    """Return a network that answers in turn, and its calls."""
    calls: list[httpx.Request] = []
    left: Iterator[httpx.Response] = iter(replies)

    def answer(call: httpx.Request) -> httpx.Response:
        calls.append(call)
        return next(left)

    return calls, httpx.MockTransport(answer)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("openai", {"metadata": {"mirage": MARKER.token}}),
        ("dashscope", {"metadata": {"ds_name": MARKER.token}}),
        ("zhipu", {"auto_delete_input_file": False}),
    ],
)
async def test_the_create_call_carries_the_marker(name: str, extra: dict[str, object], tmp_path: Path) -> None:
    """In the provider's own field."""
    calls, network = calls_of(httpx.Response(200, json={"id": "batch_1", "status": "validating"}))
    await adapter(name, network).create(MARKER, "file-1", tmp_path, Shard(count=1))
    body = json.loads(calls[0].content)
    assert body | extra == body
    assert (body["input_file_id"], body["completion_window"]) == ("file-1", "24h")


async def test_model_studio_is_asked_for_its_own_name_and_a_day_more() -> None:
    """Fuzzy names, and a time zone that nobody knows; what comes back is compared exactly."""
    like = {"id": "b2", "status": "completed", "created_at": 1_800_000_000, "metadata": {"ds_name": MARKER.token + "0"}}
    ours = like | {"id": "b1", "metadata": {"ds_name": MARKER.token}}
    calls, network = calls_of(httpx.Response(200, json={"data": [like, ours], "has_more": False}))
    found = await adapter("dashscope", network).find(MARKER, 1_800_000_000, 1)
    assert [batch.id for batch in found] == ["b1"]
    assert (calls[0].url.params["ds_name"], calls[0].url.params["create_after"]) == (MARKER.token, "20270114074500")


async def test_a_list_is_not_read_beyond_the_time_of_the_intent() -> None:
    """Older batches cannot be ours."""
    old = {"id": "b0", "status": "completed", "created_at": 1_000}
    calls, network = calls_of(httpx.Response(200, json={"data": [old], "has_more": True}))
    assert await adapter("openai", network).find(MARKER, 1_800_000_000, 1) == []
    assert len(calls) == 1


async def test_a_page_that_leads_back_to_itself_ends_the_list() -> None:
    """A broken cursor must not hold us for ever."""
    page = {"data": [{"id": "b1", "status": "completed", "created_at": 1_800_000_000}], "has_more": True}
    calls, network = calls_of(*[httpx.Response(200, json=page)] * 2)
    assert await adapter("openai", network).find(MARKER, 1_800_000_000, 1) == []
    assert len(calls) == 2


async def test_an_upload_that_arrived_short_is_not_used(tmp_path: Path) -> None:
    """The file object tells its bytes; a cut file would sink the batch."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n" * 100)
    short = {"id": "file-1", "bytes": 299}
    calls, network = calls_of(httpx.Response(200, json=short), httpx.Response(200, json=short), httpx.Response(200))
    with pytest.raises(ProviderError) as caught:
        await adapter("openai", network).upload(MARKER, path)
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.TRANSIENT, False)
    assert [call.method for call in calls] == ["POST", "GET", "DELETE"]


async def test_an_upload_waits_until_its_id_is_known(tmp_path: Path) -> None:
    """A create call that comes too early would fail for a file that nobody knows."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    told = {"id": "file-1", "bytes": 3}
    replies = [httpx.Response(200, json=told), httpx.Response(404), httpx.Response(404), httpx.Response(200, json=told)]
    calls, network = calls_of(*replies)
    assert await adapter("openai", network).upload(MARKER, path) == "file-1"
    assert len(calls) == 4


async def test_the_input_file_is_named_by_the_marker(tmp_path: Path) -> None:
    """So that a human can tell whose it is."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    calls, network = calls_of(*[httpx.Response(200, json={"id": "file-1", "bytes": 3})] * 2)
    await adapter("openai", network).upload(MARKER, path)
    sent = calls[0].content
    assert f'filename="{MARKER.token}.jsonl"'.encode() in sent
    assert int(calls[0].headers["content-length"]) == len(sent)
    assert b"\r\n\r\n{}\n\r\n--" in sent


def test_messages_of_every_role_travel_in_a_line() -> None:
    """System text in the role that the model wants."""
    request = Request(
        provider="p",
        model="m",
        messages=(Message(Role.SYSTEM, "s"), Message(Role.USER, "u")),
        decoding=Decoding(max_tokens=1),
    )
    found = json.loads(adapter().encode_line(BatchLine("a", request)))
    assert [turn["role"] for turn in found["body"]["messages"]] == ["system", "user"]
