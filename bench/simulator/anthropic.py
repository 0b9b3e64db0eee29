"""Anthropic Messages on the wire.

Facts: Anthropic's API reference and SDK types, November 2026. `input_tokens` leaves cached tokens out; newer models
refuse sampling parameters; the later API version refuses them for every model.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from bench.simulator.answers import Shape
from bench.simulator.bill import content_hash
from bench.simulator.faults import Fault
from bench.simulator.limits import Limit, Standing
from bench.simulator.wire import (
    BAD_GATEWAY_PAGE,
    Answer,
    Call,
    Finish,
    Json,
    Rejected,
    Reply,
    Tag,
    Trouble,
    content_text,
    dump,
    is_number,
    pieces,
    shape_of,
)

MESSAGES: Final = "/v1/messages"
VERSIONS: Final = ("2023-06-01", "2026-10-21")
SAMPLING: Final = ("temperature", "top_p", "top_k")
NO_SAMPLING: Final = re.compile(r"^claude-(opus-4-[78]|sonnet-5|opus-5|haiku-5-5|fable|mythos)")
NO_BUDGET: Final = re.compile(r"^claude-(opus-4-[78]|sonnet-5|opus-5|haiku-5-5|fable|mythos)")
NO_ADAPTIVE: Final = re.compile(r"^claude-(\w+-4-5|haiku-4|opus-4-[015]|sonnet-4-[05])")
NO_PREFILL: Final = re.compile(r"^claude-(\w+-4-[6-9]|\w+-[5-9])")
LEAST_BUDGET: Final = 1024
THOUSAND: Final = 1000
CACHE_UNIT: Final = 1024

FINISH: Final = {
    Finish.STOP: "end_turn",
    Finish.LENGTH: "max_tokens",
    Finish.REFUSAL: "refusal",
    Finish.FILTERED: "refusal",
    Finish.INTERRUPTED: "pause_turn",
}
# status, type, message, details.error_code
ERRORS: Final[Mapping[Fault, tuple[int, str, str, str | None]]] = {
    Fault.AUTH: (401, "authentication_error", "invalid x-api-key", None),
    Fault.GONE: (404, "not_found_error", "model not found", None),
    Fault.BAD_REQUEST: (400, "invalid_request_error", "the request cannot be served as it is", None),
    Fault.BLOCKED: (400, "invalid_request_error", "Output blocked by content filtering policy", None),
    Fault.RATE_LIMITED: (
        429,
        "rate_limit_error",
        "This request would exceed the rate limit of requests per minute.",
        None,
    ),
    Fault.RATE_LIMITED_BLIND: (429, "rate_limit_error", "Traffic grew too fast.", "ramp_limit_exceeded"),
    Fault.RATE_LIMITED_TOKENS: (
        429,
        "rate_limit_error",
        "This request would exceed the limit of tokens per minute.",
        None,
    ),
    Fault.QUOTA: (429, "rate_limit_error", "The spend limit has been reached.", "enforced_spend_limit_reached"),
    Fault.OVERLOADED: (529, "overloaded_error", "Overloaded", None),
    Fault.SERVER_ERROR: (500, "api_error", "Internal server error", None),
    Fault.UNAVAILABLE: (503, "api_error", "Service unavailable", None),
    Fault.TIMEOUT: (504, "timeout_error", "The request timed out.", None),
}
KINDS: Final = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
SHOWN: Final = (
    ("requests", Limit.REQUESTS, Standing(4000, 3999, 0.0)),
    ("tokens", Limit.TOKENS, Standing(4_800_000, 4_800_000, 0.0)),
    ("input-tokens", Limit.INPUT_TOKENS, Standing(4_000_000, 4_000_000, 0.0)),
    ("output-tokens", Limit.OUTPUT_TOKENS, Standing(800_000, 800_000, 0.0)),
)


class Anthropic:
    """The Messages endpoint."""

    name = "anthropic"
    prefix = "/anthropic"

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict

    def key(self, headers: Mapping[str, str]) -> str:
        """Return `x-api-key`, else the bearer token."""
        return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ").strip()

    def read(self, path: str, headers: Mapping[str, str], body: Json) -> Call:
        """Understand a Messages request; raises Rejected."""
        if path != MESSAGES:
            raise Rejected("Not Found", status=404)
        version = headers.get("anthropic-version", "")
        if version not in VERSIONS:
            raise Rejected("anthropic-version: header is required")
        return self.understand(body, version)

    def understand(self, body: Json, version: str) -> Call:
        """Understand the body of a single call, or the params of a batch's; raises Rejected."""
        model, allowance, messages = _required(body)
        if self._strict:
            _check(model, body, version)
        texts = [content_text(message.get("content")) for message in messages]
        users = [text for message, text in zip(messages, texts, strict=True) if message["role"] == "user"]
        system = content_text(body.get("system"))
        return Call(
            provider=self.name,
            model=model,
            hash=content_hash(model, body),
            system=system,
            user=users[-1] if users else "",
            texts=[system, *texts] if system else texts,
            allowance=allowance,
            thinking=_thinks(body),
            shape=_shape(body),
            stream=body.get("stream") is True,
            cached_unit=CACHE_UNIT if "cache_control" in str(body.get("system")) else 0,
        )

    def write(self, call: Call, answer: Answer, tag: Tag) -> Reply:
        """Word an answer, whole or as an event stream."""
        if call.stream:
            return Reply(
                frames=tuple(_events(self.message(call, answer, tag))), content_type="text/event-stream; charset=utf-8"
            )
        return Reply(body=dump(self.message(call, answer, tag)))

    def message(self, call: Call, answer: Answer, tag: Tag) -> Json:
        """Return the Message object."""
        refused = answer.finish in (Finish.REFUSAL, Finish.FILTERED)
        details = {"type": "refusal", "category": None, "explanation": None} if refused else None
        return {
            "id": f"msg_{tag.id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [] if refused else _blocks(answer),
            "stop_reason": FINISH[answer.finish],
            "stop_sequence": None,
            "stop_details": details,
            "usage": _usage(answer),
        }

    def trouble(self, trouble: Trouble, tag: Tag) -> Reply:
        """Word an error."""
        if trouble.fault is Fault.BAD_GATEWAY:
            return Reply(status=502, body=BAD_GATEWAY_PAGE, content_type="text/html")
        status, kind, message, code = ERRORS[trouble.fault]
        hints = {} if trouble.retry_after is None else {"retry-after": str(max(1, -int(-trouble.retry_after // 1)))}
        return Reply(status=status, headers=hints, body=_error(kind, message, code, tag))

    def reject(self, rejected: Rejected, tag: Tag) -> Reply:
        """Word a refusal of the request itself."""
        kind = KINDS.get(rejected.status, "invalid_request_error")
        return Reply(status=rejected.status, body=_error(kind, rejected.message, None, tag))

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return request id and limits; remaining tokens are rounded to thousands, resets are whole seconds."""
        found = {"request-id": f"req_{tag.id}", "anthropic-organization-id": "simulated"}
        for name, limit, default in SHOWN:
            known = standing.get(limit, default)
            rounded = known.remaining if limit is Limit.REQUESTS else round(known.remaining / THOUSAND) * THOUSAND
            found[f"anthropic-ratelimit-{name}-limit"] = str(known.limit)
            found[f"anthropic-ratelimit-{name}-remaining"] = str(rounded)
            found[f"anthropic-ratelimit-{name}-reset"] = _moment(now + known.reset)
        return found


def _required(body: Json) -> tuple[str, int, list[Json]]:
    model, allowance, messages = body.get("model"), body.get("max_tokens"), body.get("messages")
    if not isinstance(model, str) or not model:
        raise Rejected("model: Field required")
    if not isinstance(allowance, int) or isinstance(allowance, bool) or allowance < 1:
        raise Rejected("max_tokens: Field required" if allowance is None else "max_tokens: must be greater than 0")
    if not isinstance(messages, list) or not messages:
        raise Rejected("messages: at least one message is required")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise Rejected(f"messages.{place}.role: Input should be 'user' or 'assistant'")
    return model, allowance, messages


def _check(model: str, body: Json, version: str) -> None:
    _check_sampling(model, body, version)
    _check_thinking(model, body)
    if NO_PREFILL.match(model) and body["messages"][-1]["role"] == "assistant":
        raise Rejected("This model does not support assistant message prefill.")
    if "seed" in body:
        raise Rejected("seed: Extra inputs are not permitted")


def _check_sampling(model: str, body: Json, version: str) -> None:
    for name in SAMPLING:
        value = body.get(name)
        if value is None:
            continue
        if version == VERSIONS[1]:
            raise Rejected(f"{name}: Extra inputs are not permitted")
        if NO_SAMPLING.match(model) and value != 1:
            raise Rejected(f"{name}: this model takes no sampling parameters")
    value = body.get("temperature")
    if value is not None and (not is_number(value) or not 0 <= value <= 1):
        raise Rejected("temperature: range: 0..1")


def _check_thinking(model: str, body: Json) -> None:
    thinking = body.get("thinking")
    if not isinstance(thinking, dict):
        return
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind == "enabled" and NO_BUDGET.match(model):
        raise Rejected("thinking.type: enabled is not supported by this model, use adaptive")
    if kind == "adaptive" and NO_ADAPTIVE.match(model):
        raise Rejected("thinking.type: adaptive is not supported by this model")
    if kind == "enabled" and (not isinstance(budget, int) or not LEAST_BUDGET <= budget < body["max_tokens"]):
        raise Rejected("thinking.budget_tokens: must be at least 1024 and below max_tokens")
    if _thinks(body) and body.get("temperature", 1) != 1:
        raise Rejected("`temperature` may only be set to 1 when thinking is enabled.")


def _thinks(body: Json) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive")


def _shape(body: Json) -> Shape | None:
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    return shape_of(wanted.get("schema")) if isinstance(wanted, dict) else None


def _blocks(answer: Answer) -> list[Json]:
    thought = (
        [{"type": "thinking", "thinking": answer.thinking, "signature": "c2ltdWxhdGVk"}] if answer.thinking else []
    )
    return [*thought, {"type": "text", "text": answer.text}]


def _usage(answer: Answer) -> Json:
    usage = answer.usage
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
        "server_tool_use": None,
    }


def _error(kind: str, message: str, code: str | None, tag: Tag) -> bytes:
    inner: Json = {"type": kind, "message": message} | ({"details": {"error_code": code}} if code else {})
    return dump({"type": "error", "error": inner, "request_id": f"req_{tag.id}"})


def _events(message: Json) -> list[bytes]:
    """Return the stream of a message: start, every block in deltas, final usage, stop."""
    start = message | {
        "content": [],
        "stop_reason": None,
        "stop_details": None,
        "usage": message["usage"] | {"output_tokens": 1},
    }
    events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        field = block["type"]
        empty = block | {field: ""}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [
            {"type": "content_block_delta", "index": index, "delta": {"type": f"{field}_delta", field: piece}}
            for piece in pieces(block[field])
        ]
        events.append({"type": "content_block_stop", "index": index})
    delta = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    events.append(
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": message["usage"]["output_tokens"]}}
    )
    events.append({"type": "message_stop"})
    return [b"event: " + event["type"].encode() + b"\ndata: " + dump(event) + b"\n\n" for event in events]


def _moment(at: float) -> str:
    return datetime.fromtimestamp(-(-at // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
