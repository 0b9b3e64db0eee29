"""Gemini generateContent (AI Studio keys). `encode` and `decode` are pure.

The model stands in the path, not in the body. Billed output is candidates plus thoughts, which Gemini counts apart;
here thoughts are part of `Usage.output_tokens`. Must not know: prices, limits, retries.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec
import orjson

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, Usage
from providers.adapter import Codec
from providers.classify import classify
from providers.dialect import Dialect, Thinking
from providers.errorbody import safe_line
from providers.wire import OK, TokenCount, completion, count_usage, dump, malformed, read_reply

FINISH: Final = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.TRUNCATED,
    "MALFORMED_FUNCTION_CALL": Finish.TOOL,
    "UNEXPECTED_TOOL_CALL": Finish.TOOL,
    "TOO_MANY_TOOL_CALLS": Finish.TOOL,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"), Finish.FILTERED
    ),
}
SWITCHES: Final = {True: -1, False: 0}  # thinkingBudget: dynamic, off


class _Part(msgspec.Struct, gc=False):
    text: str = ""
    thought: bool = False


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Usage(msgspec.Struct, rename="camel", gc=False):
    prompt_token_count: TokenCount | None = 0
    tool_use_prompt_token_count: TokenCount | None = 0
    cached_content_token_count: TokenCount | None = 0
    candidates_token_count: TokenCount | None = 0
    thoughts_token_count: TokenCount | None = 0


class _Reply(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_reply: Final = msgspec.json.Decoder(_Reply, strict=False)


def path(model: str) -> str:
    """Return the path of a model's generateContent call, below the base address."""
    return f"/models/{quote(model.removeprefix('models/'), safe='')}:generateContent"


def encode(request: Request, dialect: Dialect) -> bytes:
    """Return the JSON body of `request`; raises ProviderError (bad_request) when it cannot be written."""
    return dump(params(request, dialect))


def params(request: Request, dialect: Dialect) -> dict[str, object]:
    """Return the body as an object, the form that a batch line embeds."""
    body: dict[str, object] = {
        "contents": [
            {"role": "model" if message.role is Role.ASSISTANT else "user", "parts": [{"text": message.content}]}
            for message in request.messages
            if message.role is not Role.SYSTEM
        ],
        "generationConfig": _generation(request.decoding, dialect),
    }
    system = [{"text": message.content} for message in request.messages if message.role is Role.SYSTEM]
    if system:
        body["systemInstruction"] = {"parts": system}
    return body


def decode(status: int, headers: Mapping[str, str], body: bytes, dialect: Dialect) -> Completion:
    """Return the completion that a reply holds; a blocked prompt is a completion that was filtered.

    Raises:
        ProviderError: an error status, an error inside a 200, a reply that is no answer, or no token counts.
    """
    if status != OK:
        raise classify(dialect.errors, status, headers, body)
    reply = read_reply(_reply, body, headers)
    usage = _usage(reply.usage_metadata) if reply.usage_metadata else Usage()
    finish, finish_raw, parts = _outcome(reply, headers, body, dialect)
    if finish is Finish.FILTERED and not usage.input_tokens:
        text = f"blocked by the provider's filter ({safe_line(finish_raw)}), without token counts"
        raise ProviderError(ErrorClass.CONTENT, text, status=OK, code=safe_line(finish_raw)[:64], maybe_billed=True)
    return completion(
        text="".join(part.text for part in parts if not part.thought),
        finish=finish,
        finish_raw=finish_raw,
        usage=usage,
        usage_optional=dialect.usage_optional,
        thinking="".join(part.text for part in parts if part.thought),
        model_echo=reply.model_version or "",
        provider_request_id=reply.response_id or "",
        raw=body,
    )


def _outcome(
    reply: _Reply, headers: Mapping[str, str], body: bytes, dialect: Dialect
) -> tuple[Finish, str, list[_Part]]:
    if reply.candidates:
        first = reply.candidates[0]
        reason = first.finish_reason or ""
        return FINISH.get(reason, Finish.OTHER), reason, (first.content.parts if first.content else None) or []
    if reply.prompt_feedback is not None and reply.prompt_feedback.block_reason:
        return Finish.FILTERED, f"prompt blocked: {reply.prompt_feedback.block_reason}", []
    if bytes(reply.error) not in (b"null", b""):
        raise classify(dialect.errors, OK, headers, body)
    raise malformed("no candidates", body, headers)


def _generation(decoding: Decoding, dialect: Dialect) -> dict[str, object]:
    config: dict[str, object] = {"maxOutputTokens": decoding.max_tokens}
    if decoding.temperature is not None:
        config["temperature"] = decoding.temperature
    if decoding.top_p is not None:
        config["topP"] = decoding.top_p
    if decoding.seed is not None:
        config["seed"] = decoding.seed
    if decoding.stop:
        config["stopSequences"] = decoding.stop[: dialect.max_stop]
    if decoding.schema is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = orjson.Fragment(decoding.schema)
    thinking = _thinking(decoding, dialect)
    if thinking:
        config["thinkingConfig"] = thinking
    return config


def _thinking(decoding: Decoding, dialect: Dialect) -> dict[str, object]:
    """Spell effort as a level, or the switch as a budget; the API rejects both together."""
    if dialect.thinking is Thinking.LEVEL and decoding.effort is not None:
        return {"thinkingLevel": decoding.effort.upper()}
    if dialect.thinking is Thinking.TOKENS and decoding.thinking is not None:
        return {"thinkingBudget": SWITCHES[decoding.thinking]}
    return {}


def _usage(usage: _Usage) -> Usage:
    thoughts = usage.thoughts_token_count or 0
    return count_usage(
        given=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        cached=usage.cached_content_token_count or 0,
        made=(usage.candidates_token_count or 0) + thoughts,
        reasoning=thoughts,
    )


CODEC: Final = Codec(path=path, encode=encode, decode=decode)
