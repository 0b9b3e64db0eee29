"""DeepSeek, Alibaba Model Studio (DashScope), Zhipu and Moonshot: chat completions with their own words and rules.

Facts: the providers' API references, November 2026. The same word can mean opposite things: `insufficient_quota` is a
tokens-per-minute throttle at DashScope and money at OpenAI; Zhipu reports an empty account as 429 with code 1113.
"""

import re
from collections.abc import Mapping
from typing import Final

from bench.simulator.faults import Fault
from bench.simulator.limits import Limit, Standing
from bench.simulator.openai import FINISH, OpenAI
from bench.simulator.rules import (
    check_fixed_sampling,
    check_no_schema,
    check_says_json,
    check_schema,
    check_temperature,
    switch,
)
from bench.simulator.wire import Answer, Call, Finish, Json, Rejected, Tag, Trouble, dump, is_number

MOST_SEED: Final = 2**31 - 1
DEEPSEEK_STOPS: Final = 16
BELOW_TWO: Final = 1.9999
ZHIPU_PARAMETER: Final = "1214"
OPEN_QWEN: Final = re.compile(r"^(qwen/)?qwen3-\d+b", re.IGNORECASE)
THINKING_QWEN: Final = re.compile(r"^qwen3\.[5-9]")
THINKING_GLM: Final = re.compile(r"^glm-([5-9]|4\.[5-9])")
FIXED_KIMI: Final = re.compile(r"^kimi-k(2\.[5-9]|[3-9])")

# status, type, code, message
DEEPSEEK: Final[Mapping[Fault, tuple[int, str, str | None, str]]] = {
    Fault.AUTH: (401, "authentication_error", "invalid_request_error", "Authentication Fails, your api key is invalid"),
    Fault.GONE: (400, "invalid_request_error", "invalid_request_error", "Model Not Exist"),
    Fault.BAD_REQUEST: (422, "invalid_request_error", "invalid_request_error", "Failed to deserialize the JSON body"),
    Fault.BLOCKED: (400, "invalid_request_error", "invalid_request_error", "Content Exists Risk"),
    Fault.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded", "Concurrency limit of this account reached."),
    Fault.RATE_LIMITED_BLIND: (429, "rate_limit_error", "rate_limit_exceeded", "Concurrency limit reached."),
    Fault.RATE_LIMITED_TOKENS: (429, "rate_limit_error", "rate_limit_exceeded", "Concurrency limit reached."),
    Fault.QUOTA: (402, "unknown_error", "invalid_request_error", "Insufficient Balance"),
    Fault.OVERLOADED: (503, "service_unavailable_error", "service_unavailable_error", "Service is too busy."),
    Fault.SERVER_ERROR: (500, "internal_error", "internal_error", "Internal server error"),
    Fault.UNAVAILABLE: (503, "service_unavailable_error", "service_unavailable_error", "Service unavailable"),
    Fault.TIMEOUT: (504, "internal_error", "internal_error", "Gateway timeout"),
}
DASHSCOPE: Final[Mapping[Fault, tuple[int, str, str | None, str]]] = {
    Fault.AUTH: (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    Fault.GONE: (
        404,
        "invalid_request_error",
        "model_not_found",
        "The model does not exist or you do not have access to it.",
    ),
    Fault.BAD_REQUEST: (400, "invalid_request_error", "invalid_parameter_error", "A parameter is not valid."),
    Fault.BLOCKED: (
        400,
        "data_inspection_failed",
        "data_inspection_failed",
        "Input data may contain inappropriate content.",
    ),
    Fault.RATE_LIMITED: (429, "limit_requests", "limit_requests", "You exceeded your current requests list."),
    Fault.RATE_LIMITED_BLIND: (429, "limit_burst_rate", "limit_burst_rate", "Request rate increased too quickly."),
    Fault.RATE_LIMITED_TOKENS: (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
    Fault.QUOTA: (400, "Arrearage", "Arrearage", "Access denied, the account is in arrears."),
    Fault.OVERLOADED: (503, "ModelServingError", "ModelServingError", "Too many requests are queued."),
    Fault.SERVER_ERROR: (500, "internal_error", "InternalError", "An internal error has occurred."),
    Fault.UNAVAILABLE: (503, "ModelUnavailable", "ModelUnavailable", "The model is unavailable."),
    Fault.TIMEOUT: (500, "RequestTimeOut", "RequestTimeOut", "Request timed out."),
}
ZHIPU: Final[Mapping[Fault, tuple[int, str, str | None, str]]] = {
    Fault.AUTH: (401, "", "1000", "Authentication failed"),
    Fault.GONE: (400, "", "1211", "The model does not exist"),
    Fault.BAD_REQUEST: (400, "", "1214", "A parameter is not valid"),
    Fault.BLOCKED: (400, "", "1301", "Unsafe or sensitive content was detected"),
    Fault.RATE_LIMITED: (429, "", "1302", "Too many calls at the same time"),
    Fault.RATE_LIMITED_BLIND: (429, "", "1303", "Calls come too often"),
    Fault.RATE_LIMITED_TOKENS: (429, "", "1305", "Too many calls to this model"),
    Fault.QUOTA: (429, "", "1113", "The account is in arrears, recharge and try again"),
    Fault.OVERLOADED: (429, "", "1312", "The model is busy"),
    Fault.SERVER_ERROR: (500, "", "500", "Internal error"),
    Fault.UNAVAILABLE: (500, "", "1234", "Network error"),
    Fault.TIMEOUT: (500, "", "1234", "Network error"),
}
MOONSHOT: Final[Mapping[Fault, tuple[int, str, str | None, str]]] = {
    Fault.AUTH: (401, "invalid_authentication_error", None, "Invalid Authentication"),
    Fault.GONE: (404, "resource_not_found_error", None, "Not found the model or Permission denied"),
    Fault.BAD_REQUEST: (400, "invalid_request_error", None, "Invalid request"),
    Fault.BLOCKED: (400, "content_filter", None, "The request was rejected because it was considered high risk"),
    Fault.RATE_LIMITED: (429, "rate_limit_reached_error", None, "Your account reached its max RPM, try again later"),
    Fault.RATE_LIMITED_BLIND: (429, "rate_limit_reached_error", None, "Your account reached its max concurrency"),
    Fault.RATE_LIMITED_TOKENS: (429, "rate_limit_reached_error", None, "Your account reached its max TPM"),
    Fault.QUOTA: (429, "exceeded_current_quota_error", None, "Your account is not active, check your plan and billing"),
    Fault.OVERLOADED: (429, "engine_overloaded_error", None, "The engine is currently overloaded, try again later"),
    Fault.SERVER_ERROR: (500, "server_error", None, "Internal server error"),
    Fault.UNAVAILABLE: (503, "server_error", None, "Service unavailable"),
    Fault.TIMEOUT: (504, "server_error", None, "Gateway timeout"),
}


class Compatible(OpenAI):
    """What the four dialects share: visible reasoning, no hints when to come back, no rate headers."""

    def message(self, answer: Answer) -> Json:
        """Return the assistant's message, with its reasoning."""
        shown = {"reasoning_content": answer.thinking} if answer.thinking else {}
        return {"role": "assistant", "content": answer.text} | shown

    def usage(self, answer: Answer) -> Json:
        """Return the token counts."""
        usage = answer.usage
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }

    def envelope(self, call: Call, tag: Tag) -> Json:
        """Return the fields that replies and chunks share."""
        return {"id": f"chatcmpl-{tag.id}", "created": tag.created, "model": call.model}

    def hints(self, trouble: Trouble) -> dict[str, str]:
        """Nothing is promised about when to come back."""
        del trouble
        return {}

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return the request id; limits are not shown."""
        del standing, now
        return {"x-request-id": tag.id}


class DeepSeek(Compatible):
    """DeepSeek: reasoning is on by default; blank lines keep a waiting connection alive."""

    name = "deepseek"
    prefix = "/deepseek"
    errors = DEEPSEEK
    cache_unit = 64
    finish: Mapping[Finish, str] = FINISH | {Finish.INTERRUPTED: "insufficient_system_resource"}

    def read(self, path: str, headers: Mapping[str, str], body: Json) -> Call:
        """Understand a request; `/v1` is an alias."""
        return super().read(path.removeprefix("/v1"), headers, body)

    def check(self, model: str, body: Json) -> None:
        """Refuse what this endpoint refuses; sampling parameters are ignored while the model reasons."""
        del model
        check_temperature(body)
        check_no_schema(body)
        check_says_json(body)
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > DEEPSEEK_STOPS:
            raise Rejected("Invalid 'stop': too many.", param="stop", code="invalid_request_error")

    def thinks(self, model: str, body: Json) -> bool:
        """Reasoning is on unless it is switched off."""
        del model
        return switch(body, default=True)

    def usage(self, answer: Answer) -> Json:
        """Return the token counts, with the cache's hits and misses."""
        usage = answer.usage
        missed = usage.input_tokens - usage.cached_tokens
        return super().usage(answer) | {
            "prompt_cache_hit_tokens": usage.cached_tokens,
            "prompt_cache_miss_tokens": missed,
        }

    def envelope(self, call: Call, tag: Tag) -> Json:
        """Return the fields that replies and chunks share."""
        return {"id": tag.id, "created": tag.created, "model": call.model, "system_fingerprint": "fp_simulated"}

    def finish_body(self, body: bytes) -> bytes:
        """Return the bytes behind the blank lines of the wait."""
        return b"\n\n" + body


class DashScope(Compatible):
    """Alibaba Model Studio's compatible mode: `enable_thinking`, json_schema, its own throttle words."""

    name = "dashscope"
    prefix = "/dashscope/compatible-mode/v1"
    errors = DASHSCOPE
    cache_unit = 256

    def check(self, model: str, body: Json) -> None:
        """Refuse what this endpoint refuses."""
        check_temperature(body, high=BELOW_TWO)
        check_schema(body)
        check_says_json(body)
        seed = body.get("seed")
        if seed is not None and (not isinstance(seed, int) or not 0 <= seed <= MOST_SEED):
            raise Rejected("Invalid 'seed'.", param="seed", code="invalid_value")
        if OPEN_QWEN.match(model) and body.get("enable_thinking") is not False and body.get("stream") is not True:
            raise Rejected(
                "parameter.enable_thinking must be set to false for non-streaming calls",
                code="invalid_parameter_error",
            )

    def thinks(self, model: str, body: Json) -> bool:
        """Reasoning is on by default from Qwen3.5 on and for the open models."""
        wanted = body.get("enable_thinking")
        if isinstance(wanted, bool):
            return wanted
        return bool(THINKING_QWEN.match(model) or OPEN_QWEN.match(model))

    def error(self, kind: str, code: str | None, message: str, param: str | None, tag: Tag) -> bytes:
        """Return an error body, with the request id beside it."""
        inner = {"code": code, "message": message, "param": param, "type": kind}
        return dump({"error": inner, "id": f"chatcmpl-{tag.id}", "request_id": tag.id})


class Zhipu(Compatible):
    """Zhipu / Z.ai: error codes are strings of digits, temperature lies strictly between 0 and 1."""

    name = "zhipu"
    prefix = "/zhipu/api/paas/v4"
    errors = ZHIPU
    cache_unit = 128
    finish: Mapping[Finish, str] = FINISH | {
        Finish.FILTERED: "sensitive",
        Finish.INTERRUPTED: "network_error",
    }

    def check(self, model: str, body: Json) -> None:
        """Refuse what this endpoint refuses."""
        del model
        check_no_schema(body)
        for name in ("temperature", "top_p"):
            value = body.get(name)
            if value is not None and (not is_number(value) or not 0 < value < 1):
                raise Rejected(f"{name} must lie strictly between 0 and 1", code=ZHIPU_PARAMETER)
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > 1:
            raise Rejected("stop takes one string", code=ZHIPU_PARAMETER)

    def thinks(self, model: str, body: Json) -> bool:
        """Reasoning is on by default for the newer models."""
        return switch(body, default=bool(THINKING_GLM.match(model)))

    def envelope(self, call: Call, tag: Tag) -> Json:
        """Return the fields that replies and chunks share; a request id that the client chose comes back."""
        request_id = call.client_id or tag.id
        return {"id": tag.id, "request_id": request_id, "created": tag.created, "model": call.model}

    def error(self, kind: str, code: str | None, message: str, param: str | None, tag: Tag) -> bytes:
        """Return an error body: a code of digits and a message, nothing else."""
        del kind, param, tag
        digits = code if code is not None and code.isdigit() else ZHIPU_PARAMETER
        return dump({"error": {"code": digits, "message": message}})

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Nothing is documented."""
        del tag, standing, now
        return {}


class Moonshot(Compatible):
    """Moonshot Kimi: sampling is fixed from k2.5 on; 429 has three kinds."""

    name = "moonshot"
    prefix = "/moonshot/v1"
    errors = MOONSHOT
    cache_unit = 256

    def check(self, model: str, body: Json) -> None:
        """Refuse what this endpoint refuses."""
        check_temperature(body, high=1)
        check_schema(body)
        if FIXED_KIMI.match(model):
            check_fixed_sampling(body)

    def thinks(self, model: str, body: Json) -> bool:
        """Reasoning is on by default from k2.5 on."""
        return switch(body, default=bool(FIXED_KIMI.match(model)))

    def usage(self, answer: Answer) -> Json:
        """Return the token counts; cached tokens stand at the top too."""
        return super().usage(answer) | {"cached_tokens": answer.usage.cached_tokens}

    def error(self, kind: str, code: str | None, message: str, param: str | None, tag: Tag) -> bytes:
        """Return an error body."""
        del param, tag
        return dump({"error": {"message": message, "type": kind} | ({"code": code} if code else {})})

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return the request id, and the request limit where there is one."""
        del now
        found = {"msh-request-id": tag.id}
        if (known := standing.get(Limit.REQUESTS)) is not None:
            found["x-ratelimit-limit"] = str(known.limit)
            found["x-ratelimit-remaining"] = str(known.remaining)
            found["x-ratelimit-reset"] = str(max(0, round(known.reset)))
        return found
