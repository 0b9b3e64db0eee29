"""Every row of the providers' error tables, and error bodies of every shape."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from providers.classify import TABLES, ErrorTable, classify

WIRE = Path(__file__).parent / "wire"
T = ErrorTable
RATE, TRANSIENT, QUOTA = ErrorClass.RATE, ErrorClass.TRANSIENT, ErrorClass.QUOTA
AUTH, BAD, CONTENT, GONE = ErrorClass.AUTH, ErrorClass.BAD_REQUEST, ErrorClass.CONTENT, ErrorClass.GONE


def body(code: object = None, kind: str | None = None, message: str = "m", **more: object) -> bytes:
    """Return an OpenAI-shaped error body."""
    return json.dumps({"error": {"message": message, "type": kind, "code": code, **more}}).encode()


def claude(kind: str, message: str = "m", error_code: str | None = None) -> bytes:
    """Return an Anthropic-shaped error body."""
    error: dict[str, object] = {"type": kind, "message": message}
    if error_code:
        error["details"] = {"error_code": error_code}
    return json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()


def google(code: int, status: str, message: str = "m") -> bytes:
    """Return a Gemini-shaped error body."""
    return json.dumps({"error": {"code": code, "message": message, "status": status}}).encode()


def native(code: str, message: str = "m") -> bytes:
    """Return a DashScope native error body."""
    return json.dumps({"code": code, "message": message, "request_id": "r"}).encode()


ROWS = [
    *[(T.OPENAI, 429, body(code), RATE) for code in ("rate_limit_exceeded", "slow_down")],
    (T.OPENAI, 429, body(None, "insufficient_quota"), QUOTA),
    *[
        (T.OPENAI, 429, body(code), QUOTA)
        for code in (
            "insufficient_quota",
            "billing_hard_limit_reached",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
        )
    ],
    (T.OPENAI, 429, body(None, "tokens"), RATE),
    *[(T.OPENAI, status, body("server_error"), TRANSIENT) for status in (500, 502, 503, 504, 408, 409)],
    *[(T.OPENAI, status, body("invalid_api_key"), AUTH) for status in (401, 403)],
    *[(T.OPENAI, status, body("unsupported_value", "invalid_request_error"), BAD) for status in (400, 404, 413, 422)],
    (T.OPENAI, 400, body("content_policy_violation"), CONTENT),
    (T.OPENAI, 404, body("model_not_found", "invalid_request_error"), GONE),
    (T.ANTHROPIC, 429, claude("rate_limit_error"), RATE),
    (T.ANTHROPIC, 429, claude("rate_limit_error", error_code="ramp_limit_exceeded"), RATE),
    (T.ANTHROPIC, 429, claude("rate_limit_error", error_code="enforced_spend_limit_reached"), QUOTA),
    (T.ANTHROPIC, 429, claude("rate_limit_error", error_code="contract_spend_limit_reached"), QUOTA),
    (T.ANTHROPIC, 402, claude("billing_error"), QUOTA),
    (T.ANTHROPIC, 400, claude("invalid_request_error", "You have reached your specified API usage limits."), QUOTA),
    (T.ANTHROPIC, 400, claude("invalid_request_error", "You have reached your workspace API usage limits."), QUOTA),
    (T.ANTHROPIC, 400, claude("invalid_request_error", "Your credit balance is too low to go on."), QUOTA),
    (T.ANTHROPIC, 400, claude("invalid_request_error", "Output blocked by content filtering policy"), CONTENT),
    (T.ANTHROPIC, 529, claude("overloaded_error"), TRANSIENT),
    (T.ANTHROPIC, 500, claude("api_error"), TRANSIENT),
    (T.ANTHROPIC, 504, claude("timeout_error"), TRANSIENT),
    (T.ANTHROPIC, 409, claude("conflict_error"), TRANSIENT),
    (T.ANTHROPIC, 401, claude("authentication_error"), AUTH),
    (T.ANTHROPIC, 403, claude("permission_error"), AUTH),
    (T.ANTHROPIC, 400, claude("invalid_request_error", "temperature: Extra inputs are not permitted"), BAD),
    (T.ANTHROPIC, 404, claude("not_found_error", "no such batch"), BAD),
    (T.ANTHROPIC, 404, claude("not_found_error", "model: claude-old"), GONE),
    (T.ANTHROPIC, 413, b"<html><head><title>413</title></head><body>Request Entity Too Large</body></html>", BAD),
    (T.GEMINI, 429, (WIRE / "gemini_quota_minute.json").read_bytes(), RATE),
    (T.GEMINI, 429, (WIRE / "gemini_quota_day.json").read_bytes(), QUOTA),
    (T.GEMINI, 429, (WIRE / "gemini_no_billing.json").read_bytes(), QUOTA),
    (T.GEMINI, 429, google(429, "RESOURCE_EXHAUSTED", "Too many requests."), RATE),
    (T.GEMINI, 500, google(500, "INTERNAL"), TRANSIENT),
    (T.GEMINI, 503, google(503, "UNAVAILABLE"), TRANSIENT),
    (T.GEMINI, 504, google(504, "DEADLINE_EXCEEDED"), TRANSIENT),
    (T.GEMINI, 408, b"", TRANSIENT),
    (T.GEMINI, 502, b"<html>Bad Gateway</html>", TRANSIENT),
    (T.GEMINI, 400, (WIRE / "gemini_bad_key.json").read_bytes(), AUTH),
    (T.GEMINI, 400, google(400, "FAILED_PRECONDITION"), QUOTA),
    (T.GEMINI, 400, google(400, "INVALID_ARGUMENT"), BAD),
    (T.GEMINI, 404, google(404, "NOT_FOUND", "no such file"), BAD),
    (T.GEMINI, 404, google(404, "NOT_FOUND", "models/x is not found for API version v1beta"), GONE),
    (T.GEMINI, 403, google(403, "PERMISSION_DENIED"), AUTH),
    (T.DEEPSEEK, 402, body("insufficient_balance"), QUOTA),
    (T.DEEPSEEK, 429, body("rate_limit"), RATE),
    (T.DEEPSEEK, 500, body(), TRANSIENT),
    (T.DEEPSEEK, 503, body(), TRANSIENT),
    (T.DEEPSEEK, 400, body("invalid_request_error"), BAD),
    (T.DEEPSEEK, 422, body("invalid_request_error"), BAD),
    (T.DEEPSEEK, 401, body("authentication_error"), AUTH),
    *[
        (T.DASHSCOPE, 429, native(code), RATE)
        for code in (
            "Throttling",
            "Throttling.RateQuota",
            "LimitRequests",
            "limit_requests",
            "Throttling.BurstRate",
            "limit_burst_rate",
            "Throttling.AllocationQuota",
            "insufficient_quota",
        )
    ],
    (T.DASHSCOPE, 429, body("Throttling.AllocationQuota", message="Free allocated quota exceeded."), QUOTA),
    (T.DASHSCOPE, 400, native("Arrearage"), QUOTA),
    *[
        (T.DASHSCOPE, 429, native(code), QUOTA)
        for code in ("PrepaidBillOverdue", "PostpaidBillOverdue", "CommodityNotPurchased")
    ],
    (T.DASHSCOPE, 403, native("AllocationQuota.FreeTierOnly"), QUOTA),
    (T.DASHSCOPE, 400, body("data_inspection_failed"), CONTENT),
    (T.DASHSCOPE, 400, native("DataInspectionFailed"), CONTENT),
    *[
        (T.DASHSCOPE, 500, native(code), TRANSIENT)
        for code in ("InternalError", "InternalError.Algo", "SystemError", "ModelServiceFailed", "RequestTimeOut")
    ],
    *[(T.DASHSCOPE, 503, native(code), TRANSIENT) for code in ("ModelServingError", "ModelUnavailable")],
    (T.DASHSCOPE, 400, body("invalid_parameter_error"), BAD),
    (T.ZHIPU, 429, body("1113"), QUOTA),
    *[(T.ZHIPU, 429, body(code), RATE) for code in ("1302", "1303", "1305", "1312")],
    *[(T.ZHIPU, 429, body(code), QUOTA) for code in ("1304", "1308", "1310", "1309", "1311", "1313")],
    (T.ZHIPU, 400, body("1301"), CONTENT),
    *[(T.ZHIPU, 400, body(code), BAD) for code in ("1210", "1214", "1261")],
    *[(T.ZHIPU, 401, body(code), AUTH) for code in ("1000", "1003", "1005")],
    *[(T.ZHIPU, 429, body(code), AUTH) for code in ("1110", "1112", "1121")],
    (T.ZHIPU, 434, body(), AUTH),
    (T.ZHIPU, 435, body(), BAD),
    (T.ZHIPU, 500, body("500"), TRANSIENT),
    (T.ZHIPU, 400, body("1234"), TRANSIENT),
    (T.KIMI, 429, body(None, "exceeded_current_quota_error"), QUOTA),
    (T.KIMI, 403, body(None, "exceeded_current_quota_error"), QUOTA),
    (T.KIMI, 429, body(None, "rate_limit_reached_error", "max RPM: 3"), RATE),
    (T.KIMI, 429, body(None, "rate_limit_reached_error", "max TPD: 1500000"), QUOTA),
    (T.KIMI, 429, body(None, "engine_overloaded_error"), TRANSIENT),
    (T.KIMI, 400, body("content_filter"), CONTENT),
    (T.KIMI, 400, body(None, "invalid_request_error"), BAD),
    (T.KIMI, 401, body(None, "incorrect_api_key_error"), AUTH),
    (T.KIMI, 404, body(None, "resource_not_found_error", "Not found the model kimi-old"), GONE),
    (T.VLLM, 400, body(400, "BadRequestError"), BAD),
    (T.VLLM, 404, body(404, "NotFoundError", "The model `x` does not exist."), GONE),
    (T.VLLM, 503, b"", TRANSIENT),
    *[(T.VLLM, status, b"", GONE) for status in (301, 308, 410)],
    *[(T.VLLM, status, b"", TRANSIENT) for status in (302, 307)],
]


@pytest.mark.parametrize(
    ("table", "status", "reply", "kind"),
    ROWS,
    ids=[f"{row[0].value}-{row[1]}-{n}-{row[3].value}" for n, row in enumerate(ROWS)],
)
def test_each_row_has_its_class(table: ErrorTable, status: int, reply: bytes, kind: ErrorClass) -> None:
    """The table of the providers' documents, row by row; a status error is never billed."""
    error = classify(table, status, {}, reply)
    assert (error.kind, error.status, error.maybe_billed) == (kind, status, False)


def test_the_same_word_means_opposite_things() -> None:
    """`insufficient_quota` is money at OpenAI and tokens per minute at DashScope."""
    reply = body("insufficient_quota")
    assert classify(T.OPENAI, 429, {}, reply).kind is QUOTA
    assert classify(T.DASHSCOPE, 429, {}, reply).kind is RATE


@pytest.mark.parametrize("status", [418, 451, 499])
def test_unknown_client_errors_never_work(status: int) -> None:
    """What no row names in the 400s is the request's own fault."""
    assert classify(T.OPENAI, status, {}, b"").kind is BAD


@pytest.mark.parametrize("status", [520, 524, 599, 0, 600])
def test_unknown_server_errors_are_tried_again(status: int) -> None:
    """What no row names beyond is passing trouble."""
    assert classify(T.OPENAI, status, {}, b"").kind is TRANSIENT


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (400, "true", TRANSIENT),
        (429, "false", QUOTA),
        (503, "false", BAD),
        (503, "true", TRANSIENT),
        (401, "true", AUTH),
    ],
)
def test_x_should_retry_overrules_the_table(status: int, said: str, kind: ErrorClass) -> None:
    """The provider's explicit word beats our reading of the status, except about keys and money."""
    assert classify(T.OPENAI, status, {"x-should-retry": said}, b"").kind is kind


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (b'{"error":{"message":"No","type":"t","code":"c"}}', "c", "No"),
        (b'{"error":{"message":"No","type":"t","code":null}}', "t", "No"),
        (b'{"error":"No"}', "", "No"),
        (b'{"code":"Throttling","message":"No","request_id":"r"}', "Throttling", "No"),
        (b'{"error":{"code":"1302","message":"\xe8\xb6\x85\xe9\x80\x9f"}}', "1302", "\u8d85\u901f"),
        (b'[{"error":{"code":503,"message":"No","status":"UNAVAILABLE"}}]', "UNAVAILABLE", "No"),
        (b'{"detail":"Not Found"}', "", "Not Found"),
        (b'{"error":{"message":"No","code":"c","details":"odd","type":{"a":1}}}', "", '{"error":{"message":"No"'),
        (b'{"error":{"message":"No","code":"c","details":"odd"}}', "c", "No"),
        (b"\n\n <html><style>p{}</style><h1>502 Bad</h1> Gateway</html>", "", "502 Bad Gateway"),
        (b"upstream connect error", "", "upstream connect error"),
        (b"\xff\xfe\x00", "", ""),
        (b"", "", ""),
        (b"null", "", "null"),
        (b"[" * 100_000, "", "[[["),
    ],
)
def test_every_shape_of_error_body_is_read(reply: bytes, code: str, message: str) -> None:
    """The discriminator and the message are found, or the text is kept."""
    error = classify(T.OPENAI, 500, {}, reply)
    assert error.code == code
    assert message in error.message


@given(st.binary(max_size=300), st.sampled_from(list(T)), st.integers(0, 999))
def test_no_body_breaks_the_classifier(reply: bytes, table: ErrorTable, status: int) -> None:
    """Whatever arrives becomes an error of some class, with a printable one-line message."""
    error = classify(table, status, {}, reply)
    assert isinstance(error, ProviderError)
    assert error.message.isprintable()


def test_messages_are_one_short_safe_line() -> None:
    """Terminal escapes, direction marks, line breaks, keys and endless texts do not get through."""
    hostile = "\x1b[31mred\x1b[0m \u202eright-to-left\nsk-abcdefghijklmnop " + "long " * 500
    error = classify(T.OPENAI, 400, {}, body("c\x1b[0m" * 50, message=hostile))
    assert error.message.isprintable()
    assert "sk-abc" not in error.message
    assert len(error.message) < 400
    assert len(error.code) <= 64


def test_a_wait_named_in_the_body_is_used() -> None:
    """Gemini's RetryInfo counts where no header does; a header goes before it."""
    reply = (WIRE / "gemini_quota_minute.json").read_bytes()
    assert classify(T.GEMINI, 429, {}, reply).retry_after == 33.0
    assert classify(T.GEMINI, 429, {"retry-after": "5"}, reply).retry_after == 5.0


def test_an_exhausted_limit_names_the_wait_of_a_rate_error() -> None:
    """Without Retry-After, the reset of the limit that ran out is the wait."""
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}
    assert classify(T.OPENAI, 429, headers, body("rate_limit_exceeded")).retry_after == 360.0
    assert classify(T.OPENAI, 500, headers, b"").retry_after is None


def test_an_error_inside_a_success_is_judged_by_its_words_and_may_be_billed() -> None:
    """A 200 status says nothing, the code in the body does."""
    error = classify(T.OPENAI, 200, {}, body("insufficient_quota"))
    assert (error.kind, error.maybe_billed) == (QUOTA, True)
    assert classify(T.OPENAI, 200, {}, body(429, message="slow down")).kind is RATE
    assert classify(T.OPENAI, 200, {}, body("odd")).kind is TRANSIENT
    assert classify(T.OPENAI, 202, {}, b"").maybe_billed


def test_a_redirect_names_its_target_without_the_query() -> None:
    """The user learns the new address; what stands in the query may be secret."""
    error = classify(T.OPENAI, 308, {"location": "https://new.example/v1?token=abc"}, b"")
    assert "https://new.example/v1" in error.message
    assert "abc" not in error.message


def test_every_table_exists() -> None:
    """No provider falls back to another's rules by accident."""
    assert set(TABLES) == set(ErrorTable)


def test_a_refusal_for_rate_brings_the_limits_that_its_headers_announce() -> None:
    """An error of another kind says nothing about them."""
    headers = {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0"}
    hints = classify(T.OPENAI, 429, headers, body("rate_limit_exceeded")).hints
    assert hints is not None
    assert (hints.requests_limit, hints.requests_remaining) == (60, 0)
    assert classify(T.OPENAI, 500, headers, b"").hints is None
