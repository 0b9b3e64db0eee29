"""OpenAI chat completions on the wire; the base of the dialects that follow its shape.

Facts: OpenAI's API reference and SDK types, November 2026. Reasoning models refuse `max_tokens`, and sampling
parameters unless their effort is `none`; strict schemas must list every property.
"""

import re
from collections.abc import Mapping
from typing import Final

from bench.simulator.answers import Shape
from bench.simulator.bill import content_hash
from bench.simulator.faults import Fault
from bench.simulator.limits import Limit, Standing
from bench.simulator.rules import check_fixed_sampling, check_schema, check_temperature
from bench.simulator.wire import (
    BAD_GATEWAY_PAGE,
    REFUSAL_TEXT,
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
    pieces,
    shape_of,
)

CHAT: Final = "/chat/completions"
REASONING: Final = re.compile(r"^(o\d|gpt-[5-9])")
FIXED_SAMPLING: Final = re.compile(r"^(o\d|gpt-5(-mini|-nano)?(-\d{4}|$))")
ALWAYS_REASONS: Final = re.compile(r"^(gpt-6-astra|gpt-6\.1-sol)")
MOST_STOPS: Final = 4
CACHE_UNIT: Final = 1024
BIG_REQUESTS: Final = Standing(30_000, 29_999, 0.002)
BIG_TOKENS: Final = Standing(150_000_000, 149_999_000, 0.0)

FINISH: Final = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.REFUSAL: "stop",
    Finish.FILTERED: "content_filter",
    Finish.INTERRUPTED: "stop",
}
# status, type, code, message
ERRORS: Final[Mapping[Fault, tuple[int, str, str | None, str]]] = {
    Fault.AUTH: (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    Fault.GONE: (
        404,
        "invalid_request_error",
        "model_not_found",
        "The model does not exist or you do not have access to it.",
    ),
    Fault.BAD_REQUEST: (400, "invalid_request_error", "invalid_value", "The request cannot be served as it is."),
    Fault.BLOCKED: (400, "invalid_request_error", "content_policy_violation", "The prompt was blocked by policy."),
    Fault.RATE_LIMITED: (429, "requests", "rate_limit_exceeded", "Rate limit reached on requests per min (RPM)."),
    Fault.RATE_LIMITED_BLIND: (429, "rate_limit_error", "slow_down", "Slow down: too many requests."),
    Fault.RATE_LIMITED_TOKENS: (429, "tokens", "rate_limit_exceeded", "Rate limit reached on tokens per min (TPM)."),
    Fault.QUOTA: (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, check your plan."),
    Fault.OVERLOADED: (503, "service_unavailable_error", "server_is_overloaded", "The server is overloaded."),
    Fault.SERVER_ERROR: (500, "server_error", None, "The server had an error while processing your request."),
    Fault.UNAVAILABLE: (503, "service_unavailable_error", None, "The service is temporarily unavailable."),
    Fault.TIMEOUT: (504, "server_error", "timeout", "The request timed out."),
}


class OpenAI:
    """Chat completions as OpenAI speaks them; dialects override words, rules and headers."""

    name: str = "openai"
    prefix: str = "/openai/v1"
    errors: Mapping[Fault, tuple[int, str, str | None, str]] = ERRORS
    finish: Mapping[Finish, str] = FINISH
    cache_unit: int = CACHE_UNIT

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def read(self, path: str, headers: Mapping[str, str], body: Json) -> Call:
        """Understand a chat completion request; raises Rejected."""
        del headers
        if path != CHAT:
            raise Rejected(f"Invalid URL (POST {path})", status=404)
        model, messages = _model(body), _messages(body)
        if self._strict:
            self.check(model, body)
        texts = [content_text(message.get("content")) for message in messages]
        roles = [message["role"] for message in messages]
        system = "\n\n".join(text for role, text in zip(roles, texts, strict=True) if role in ("system", "developer"))
        user = next((text for role, text in zip(reversed(roles), reversed(texts), strict=True) if role == "user"), "")
        options = body.get("stream_options")
        return Call(
            provider=self.name,
            model=model,
            hash=content_hash(model, body),
            system=system,
            user=user,
            texts=texts,
            allowance=_allowance(body),
            thinking=self.thinks(model, body),
            shape=_shape(body),
            stream=body.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            cached_unit=self.cache_unit,
            client_id=str(body.get("request_id") or ""),
        )

    def check(self, model: str, body: Json) -> None:
        """Refuse what this model refuses."""
        check_temperature(body)
        check_schema(body)
        reasons = REASONING.match(model)
        if reasons and "max_tokens" in body:
            raise Rejected(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            )
        if reasons and (FIXED_SAMPLING.match(model) or body.get("reasoning_effort") != "none"):
            check_fixed_sampling(body)
        if ALWAYS_REASONS.match(model) and body.get("reasoning_effort") == "none":
            raise Rejected("Unsupported value: 'none'.", param="reasoning_effort", code="unsupported_value")
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > MOST_STOPS:
            raise Rejected("Invalid 'stop': array too long.", param="stop", code="array_above_max_length")
        if stop and reasons:
            raise Rejected("Unsupported parameter: 'stop'.", param="stop", code="unsupported_parameter")

    def thinks(self, model: str, body: Json) -> bool:
        """Whether the model reasons; OpenAI counts it and does not show it."""
        return bool(REASONING.match(model)) and body.get("reasoning_effort") != "none"

    def write(self, call: Call, answer: Answer, tag: Tag) -> Reply:
        """Word an answer, whole or as an event stream."""
        if call.stream:
            return Reply(frames=tuple(self._frames(call, answer, tag)), content_type="text/event-stream; charset=utf-8")
        body = self._envelope(call, tag, "chat.completion") | {
            "choices": [
                {
                    "index": 0,
                    "message": self.message(answer),
                    "logprobs": None,
                    "finish_reason": self.finish[answer.finish],
                }
            ],
            "usage": self.usage(answer),
        }
        return Reply(body=self.finish_body(dump(body)))

    def message(self, answer: Answer) -> Json:
        """Return the assistant's message."""
        if answer.finish is Finish.REFUSAL:
            return {"role": "assistant", "content": None, "refusal": REFUSAL_TEXT, "annotations": []}
        return {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}

    def usage(self, answer: Answer) -> Json:
        """Return the token counts."""
        usage = answer.usage
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
                "audio_tokens": 0,
            },
        }

    def envelope(self, call: Call, tag: Tag) -> Json:
        """Return the fields that replies and stream chunks share."""
        return {
            "id": f"chatcmpl-{tag.id}",
            "created": tag.created,
            "model": call.model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
        }

    def finish_body(self, body: bytes) -> bytes:
        """Return the bytes as this provider sends them."""
        return body

    def trouble(self, trouble: Trouble, tag: Tag) -> Reply:
        """Word an error."""
        if trouble.fault is Fault.BAD_GATEWAY:
            return Reply(status=502, body=BAD_GATEWAY_PAGE, content_type="text/html")
        status, kind, code, message = self.errors[trouble.fault]
        return Reply(status=status, headers=self.hints(trouble), body=self.error(kind, code, message, None, tag))

    def hints(self, trouble: Trouble) -> dict[str, str]:
        """Return the headers that say when to come back: whole seconds, left out when only a human can help."""
        if trouble.retry_after is None:
            return {}
        return {"retry-after": str(max(1, -int(-trouble.retry_after // 1)))}

    def reject(self, rejected: Rejected, tag: Tag) -> Reply:
        """Word a refusal of the request itself."""
        body = self.error("invalid_request_error", rejected.code, rejected.message, rejected.param, tag)
        return Reply(status=rejected.status, body=body)

    def error(self, kind: str, code: str | None, message: str, param: str | None, tag: Tag) -> bytes:
        """Return an error body."""
        del tag
        return dump({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return request id and limits."""
        del now
        found = {"x-request-id": f"req_{tag.id}", "openai-version": "2020-10-01", "openai-processing-ms": "1"}
        for kind, known in (
            ("requests", standing.get(Limit.REQUESTS, BIG_REQUESTS)),
            ("tokens", standing.get(Limit.TOKENS, BIG_TOKENS)),
        ):
            found[f"x-ratelimit-limit-{kind}"] = str(known.limit)
            found[f"x-ratelimit-remaining-{kind}"] = str(known.remaining)
            found[f"x-ratelimit-reset-{kind}"] = duration(known.reset)
        return found

    def _envelope(self, call: Call, tag: Tag, kind: str) -> Json:
        return {"object": kind} | self.envelope(call, tag)

    def _frames(self, call: Call, answer: Answer, tag: Tag) -> list[bytes]:
        base = self._envelope(call, tag, "chat.completion.chunk")
        message = self.message(answer)
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in pieces(message.get("reasoning_content") or "") if piece]
        deltas += [{"content": piece} for piece in pieces(message.get("content") or "") if piece]
        if message.get("refusal"):
            deltas.append({"refusal": message["refusal"]})
        chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish[answer.finish]}]})
        if call.include_usage:
            chunks.append(base | {"choices": [], "usage": self.usage(answer)})
        return [b"data: " + dump(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def duration(seconds: float) -> str:
    """Return seconds the way OpenAI's reset headers write them: `12ms`, `8.64s`, `1m43.053s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms" if seconds else "0s"
    minutes, rest = divmod(round(seconds, 3), 60)
    tail = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{tail}" if minutes else tail


def _model(body: Json) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Rejected("you must provide a model parameter")
    return model


def _messages(body: Json) -> list[Json]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise Rejected("Missing required parameter: 'messages'.", param="messages", code="missing_required_parameter")
    if not messages:
        raise Rejected("Invalid 'messages': empty array.", param="messages", code="empty_array")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in (
            "system",
            "developer",
            "user",
            "assistant",
            "tool",
        ):
            raise Rejected(
                f"Invalid value: 'messages[{place}].role'.", param=f"messages[{place}].role", code="invalid_value"
            )
    return messages


def _allowance(body: Json) -> int | None:
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Rejected(
            "Invalid 'max_tokens': expected a positive integer.", param="max_tokens", code="integer_below_min_value"
        )
    return value


def _shape(body: Json) -> Shape | None:
    wanted = body.get("response_format")
    if not isinstance(wanted, dict):
        return None
    match wanted.get("type"):
        case "json_schema":
            named = wanted.get("json_schema")
            return shape_of(named.get("schema") if isinstance(named, dict) else None)
        case "json_object":
            return Shape("claims")
        case _:
            return None
