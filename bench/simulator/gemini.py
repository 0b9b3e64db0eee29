"""Gemini generateContent on the wire (AI Studio keys).

Facts: Google's API reference and SDK types, November 2026. The model stands in the path, input names may be snake_case,
thoughts are counted beside candidates, a bad key is a 400, limits are told in error details and never in headers.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

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

PATH: Final = re.compile(r"^/v1(?:beta|alpha)?/models/([^:]+):(generateContent|streamGenerateContent)$")
NO_PREFILL: Final = re.compile(r"^gemini-(3\.5-flash-lite|3\.[6-9]|[4-9])")
THINKS: Final = re.compile(r"^gemini-(2\.5|[3-9])")
HOT: Final = 2
CACHE_UNIT: Final = 1024
RPC: Final = "type.googleapis.com/google.rpc."

FINISH: Final = {
    Finish.STOP: "STOP",
    Finish.LENGTH: "MAX_TOKENS",
    Finish.REFUSAL: "STOP",
    Finish.FILTERED: "SAFETY",
    Finish.INTERRUPTED: "OTHER",
}
# status, google.rpc code, message
ERRORS: Final[Mapping[Fault, tuple[int, str, str]]] = {
    Fault.AUTH: (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    Fault.GONE: (404, "NOT_FOUND", "The model is not found for this API version."),
    Fault.BAD_REQUEST: (400, "INVALID_ARGUMENT", "Request contains an invalid argument."),
    Fault.BLOCKED: (400, "INVALID_ARGUMENT", "The prompt was blocked."),
    Fault.RATE_LIMITED: (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please retry later."),
    Fault.RATE_LIMITED_BLIND: (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted."),
    Fault.RATE_LIMITED_TOKENS: (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please retry later."),
    Fault.QUOTA: (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan and billing."),
    Fault.OVERLOADED: (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    Fault.SERVER_ERROR: (500, "INTERNAL", "An internal error has occurred."),
    Fault.UNAVAILABLE: (503, "UNAVAILABLE", "The service is currently unavailable."),
    Fault.TIMEOUT: (504, "DEADLINE_EXCEEDED", "Deadline exceeded."),
}
STATUS_NAMES: Final = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
QUOTAS: Final = {
    Limit.REQUESTS: "GenerateRequestsPerMinutePerProjectPerModel",
    Limit.TOKENS: "GenerateContentInputTokensPerModelPerMinute",
    Limit.INPUT_TOKENS: "GenerateContentInputTokensPerModelPerMinute",
    Limit.OUTPUT_TOKENS: "GenerateContentOutputTokensPerModelPerMinute",
    Limit.DAY: "GenerateRequestsPerDayPerProjectPerModel",
    Limit.CONCURRENCY: "GenerateRequestsPerMinutePerProjectPerModel",
}
LIMITED: Final = {
    Fault.RATE_LIMITED: Limit.REQUESTS,
    Fault.RATE_LIMITED_TOKENS: Limit.INPUT_TOKENS,
    Fault.QUOTA: Limit.DAY,
}


class Gemini:
    """The generateContent endpoints."""

    name = "gemini"
    prefix = "/gemini"

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict

    def key(self, headers: Mapping[str, str]) -> str:
        """Return `x-goog-api-key`."""
        return headers.get("x-goog-api-key", "")

    def read(self, path: str, headers: Mapping[str, str], body: Json) -> Call:
        """Understand a request; raises Rejected."""
        del headers
        match = PATH.match(path)
        if match is None:
            raise Rejected("Requested entity was not found.", status=404)
        return self.understand(unquote(match[1]), body, stream=match[2].startswith("stream"))

    def understand(self, model: str, body: Json, *, stream: bool = False) -> Call:
        """Understand the body of a single call, or of a batch's line; raises Rejected."""
        contents = _contents(body)
        settings = _settings(body)
        if self._strict:
            _check(model, contents, settings)
        instruction = _get(body, "systemInstruction")
        system = _parts_text(instruction) if isinstance(instruction, dict) else content_text(instruction)
        texts = [_parts_text(content) for content in contents]
        users = [text for content, text in zip(contents, texts, strict=True) if content.get("role", "user") == "user"]
        return Call(
            provider=self.name,
            model=model,
            hash=content_hash(model, body),
            system=system,
            user=users[-1] if users else "",
            texts=[system, *texts] if system else texts,
            allowance=_allowance(settings),
            thinking=_thinks(model, settings),
            shape=_shape(settings),
            stream=stream,
            cached_unit=CACHE_UNIT,
        )

    def write(self, call: Call, answer: Answer, tag: Tag) -> Reply:
        """Word an answer, whole or as an event stream."""
        if call.stream:
            return Reply(frames=tuple(self._frames(call, answer, tag)), content_type="text/event-stream")
        return Reply(body=dump(self.response(call, answer, tag)))

    def response(self, call: Call, answer: Answer, tag: Tag) -> Json:
        """Return the GenerateContentResponse object."""
        candidate: Json = {"finishReason": FINISH[answer.finish], "index": 0}
        if answer.finish is not Finish.FILTERED:
            candidate = {"content": {"role": "model", "parts": [{"text": answer.text}]}} | candidate
        usage = answer.usage
        said = usage.output_tokens - usage.reasoning_tokens
        counts: Json = {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": said,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.input_tokens}],
        }
        if usage.reasoning_tokens:
            counts["thoughtsTokenCount"] = usage.reasoning_tokens
        if usage.cached_tokens:
            counts["cachedContentTokenCount"] = usage.cached_tokens
        return {
            "candidates": [candidate],
            "usageMetadata": counts,
            "modelVersion": call.model,
            "responseId": tag.id,
        }

    def trouble(self, trouble: Trouble, tag: Tag) -> Reply:
        """Word an error; when to retry stands in its details."""
        del tag
        if trouble.fault is Fault.BAD_GATEWAY:
            return Reply(status=502, body=BAD_GATEWAY_PAGE, content_type="text/html")
        status, name, message = ERRORS[trouble.fault]
        return Reply(status=status, body=_error(status, name, message, _details(trouble)))

    def reject(self, rejected: Rejected, tag: Tag) -> Reply:
        """Word a refusal of the request itself."""
        del tag
        name = STATUS_NAMES.get(rejected.status, "INVALID_ARGUMENT")
        return Reply(status=rejected.status, body=_error(rejected.status, name, rejected.message, []))

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return what a front end adds; limits are not shown."""
        del tag, standing, now
        return {"vary": "Origin", "server-timing": "gfet4t7; dur=1"}

    def _frames(self, call: Call, answer: Answer, tag: Tag) -> list[bytes]:
        whole = self.response(call, answer, tag)
        parts = [
            {"candidates": [{"content": {"role": "model", "parts": [{"text": piece}]}, "index": 0}]}
            for piece in pieces(answer.text)
        ]
        last = whole | {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0}]}
        last["candidates"][0]["finishReason"] = FINISH[answer.finish]
        shared = {"modelVersion": call.model, "responseId": tag.id}
        return [b"data: " + dump(part) + b"\r\n\r\n" for part in [*(part | shared for part in parts), last]]


def _get(body: Json, name: str) -> object:
    """Return a field that may be spelled in camelCase or snake_case."""
    return body.get(name, body.get(re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)))


def _contents(body: Json) -> list[Json]:
    contents = body.get("contents")
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list) or not contents or not all(isinstance(content, dict) for content in contents):
        raise Rejected("* GenerateContentRequest.contents: contents is not specified")
    return contents


def _settings(body: Json) -> Json:
    settings = _get(body, "generationConfig")
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise Rejected("Invalid value at 'generation_config'")
    return settings


def _allowance(settings: Json) -> int | None:
    allowance = _get(settings, "maxOutputTokens")
    if allowance is None:
        return None
    if not isinstance(allowance, int) or allowance < 1:
        raise Rejected("max_output_tokens must be positive.")
    return allowance


def _check(model: str, contents: list[Json], settings: Json) -> None:
    if NO_PREFILL.match(model) and contents[-1].get("role") == "model":
        raise Rejected("Requests ending with a model turn are not supported.")
    thinking = _get(settings, "thinkingConfig")
    if isinstance(thinking, dict) and None not in (_get(thinking, "thinkingBudget"), _get(thinking, "thinkingLevel")):
        raise Rejected("You can only set only one of thinking budget and thinking level.")
    if None not in (_get(settings, "responseSchema"), _get(settings, "responseJsonSchema")):
        raise Rejected("Only one of response_schema and response_json_schema may be set.")
    value = settings.get("temperature")
    if value is not None and (not is_number(value) or not 0 <= value <= HOT):
        raise Rejected("temperature must be in the range [0.0, 2.0].")


def _thinks(model: str, settings: Json) -> bool:
    thinking = _get(settings, "thinkingConfig")
    if isinstance(thinking, dict) and _get(thinking, "thinkingBudget") == 0:
        return False
    return bool(THINKS.match(model))


def _shape(settings: Json) -> Shape | None:
    schema = _get(settings, "responseJsonSchema") or _get(settings, "responseSchema")
    if schema is not None:
        return shape_of(schema)
    return Shape() if _get(settings, "responseMimeType") == "application/json" else None


def _parts_text(content: Json) -> str:
    parts = content.get("parts")
    return content_text([parts] if isinstance(parts, dict) else parts)


def _details(trouble: Trouble) -> list[Json]:
    if trouble.fault is Fault.AUTH:
        return [{"@type": f"{RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]
    limit = trouble.limit if trouble.limit is not Limit.REQUESTS else LIMITED.get(trouble.fault)
    if limit is None:
        return []
    violation = {
        "quotaMetric": "generativelanguage.googleapis.com/generate_requests",
        "quotaId": QUOTAS[limit],
        "quotaDimensions": {"model": trouble.model, "location": "global"},
    }
    details: list[Json] = [{"@type": f"{RPC}QuotaFailure", "violations": [violation]}]
    if trouble.retry_after is not None and limit is not Limit.DAY:
        details.append(
            {"@type": f"{RPC}RetryInfo", "retryDelay": f"{trouble.retry_after:.3f}".rstrip("0").rstrip(".") + "s"}
        )
    return details


def _error(status: int, name: str, message: str, details: list[Json]) -> bytes:
    inner: Json = {"code": status, "message": message, "status": name} | ({"details": details} if details else {})
    return dump({"error": inner})
