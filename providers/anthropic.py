"""Anthropic Messages. `encode` and `decode` are pure. Must not know: prices, limits, retries.

Anthropic counts cached and cache-written prompt tokens beside `input_tokens`; here they are added, so that
`Usage.input_tokens` is the whole prompt as for every other provider. There is no seed.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import orjson

from engine.request import Completion, Decoding, Finish, Request, Role, Usage
from providers.adapter import Codec
from providers.classify import classify
from providers.dialect import Dialect, Thinking
from providers.wire import OK, TokenCount, completion, count_usage, dump, malformed, read_reply

PATH: Final = "/v1/messages"
# The later version, 2026-10-21, rejects temperature and top_p for every model.
VERSION: Final = "2023-06-01"
SMALLEST_THINKING_BUDGET: Final = 1024

FINISH: Final = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.TRUNCATED,
    "model_context_window_exceeded": Finish.TRUNCATED,
    "refusal": Finish.REFUSED,
    "tool_use": Finish.TOOL,
}


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: TokenCount | None = 0


class _Usage(msgspec.Struct, gc=False):
    input_tokens: TokenCount | None = 0
    cache_creation_input_tokens: TokenCount | None = 0
    cache_read_input_tokens: TokenCount | None = 0
    output_tokens: TokenCount | None = 0
    output_tokens_details: _OutputDetails | None = None


class _StopDetails(msgspec.Struct, gc=False):
    category: str | None = None


class _Reply(msgspec.Struct, gc=False):
    type: str = ""
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None
    usage: _Usage | None = None
    id: str | None = None
    model: str | None = None


_reply: Final = msgspec.json.Decoder(_Reply, strict=False)


def encode(request: Request, dialect: Dialect) -> bytes:
    """Return the JSON body of `request`; raises ProviderError (bad_request) when it cannot be written."""
    return dump(params(request, dialect))


def params(request: Request, dialect: Dialect) -> dict[str, object]:
    """Return the body as an object, the form that a message batch embeds."""
    decoding = request.decoding
    body: dict[str, object] = {
        "model": request.model,
        "max_tokens": decoding.max_tokens,
        "messages": [
            {"role": message.role.value, "content": message.content}
            for message in request.messages
            if message.role is not Role.SYSTEM
        ],
    }
    system = [message.content for message in request.messages if message.role is Role.SYSTEM]
    if system:
        body["system"] = "\n\n".join(system)
    if decoding.temperature is not None:
        body["temperature"] = decoding.temperature
    if decoding.top_p is not None:
        body["top_p"] = decoding.top_p
    if decoding.stop:
        body["stop_sequences"] = decoding.stop
    if decoding.thinking is not None:
        body["thinking"] = _thinking(decoding.thinking, decoding.max_tokens, dialect)
    output = _output_config(decoding, dialect)
    if output:
        body["output_config"] = output
    return body


def decode(status: int, headers: Mapping[str, str], body: bytes, dialect: Dialect) -> Completion:
    """Return the completion that a reply holds.

    Raises:
        ProviderError: an error status, an error inside a 200, a reply that is no message, or no token counts.
    """
    if status != OK:
        raise classify(dialect.errors, status, headers, body)
    reply = read_reply(_reply, body, headers)
    if reply.type == "error":
        raise classify(dialect.errors, status, headers, body)
    if reply.content is None or reply.stop_reason is None:
        raise malformed("no content or no stop_reason", body, headers)
    return completion(
        text="".join([block.text or "" for block in reply.content if block.type == "text"]),
        finish=FINISH.get(reply.stop_reason, Finish.OTHER),
        finish_raw=_finish_raw(reply.stop_reason, reply.stop_details),
        usage=_usage(reply.usage) if reply.usage else Usage(),
        usage_optional=dialect.usage_optional,
        thinking="".join([block.thinking or "" for block in reply.content if block.type == "thinking"]),
        model_echo=reply.model or "",
        provider_request_id=headers.get("request-id") or reply.id or "",
        raw=body,
    )


def _thinking(on: bool, max_tokens: int, dialect: Dialect) -> dict[str, object]:
    if not on:
        return {"type": "disabled"}
    if dialect.thinking is Thinking.BUDGET:
        return {"type": "enabled", "budget_tokens": max(SMALLEST_THINKING_BUDGET, max_tokens // 2)}
    return {"type": "adaptive"}


def _output_config(decoding: Decoding, dialect: Dialect) -> dict[str, object]:
    config: dict[str, object] = {}
    if decoding.effort is not None and dialect.effort:
        config["effort"] = decoding.effort
    if decoding.schema is not None:
        config["format"] = {"type": "json_schema", "schema": orjson.Fragment(decoding.schema)}
    return config


def _finish_raw(reason: str, details: _StopDetails | None) -> str:
    return f"{reason}: {details.category}" if details is not None and details.category else reason


def _usage(usage: _Usage) -> Usage:
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details
    return count_usage(
        given=(usage.input_tokens or 0) + read + written,
        cached=read,
        written=written,
        made=usage.output_tokens or 0,
        reasoning=(details.thinking_tokens or 0) if details else 0,
    )


CODEC: Final = Codec(path=lambda _model: PATH, encode=encode, decode=decode)
