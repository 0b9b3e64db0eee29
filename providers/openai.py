"""Chat completions: OpenAI and every endpoint that speaks its format. `encode` and `decode` are pure.

DeepSeek, Alibaba Model Studio, Zhipu, Moonshot and vLLM's own server differ in spelling only, which a `Dialect` holds.
Replies are read whole, not streamed. Must not know: prices, limits, retries.

Token counts are normalised: prompt counts include cached tokens everywhere; cached ones are looked for in
`prompt_tokens_details`, DeepSeek's `prompt_cache_hit_tokens` and Moonshot's top-level `cached_tokens`. Where an
endpoint leaves reasoning out of `completion_tokens`, the total tells: everything beyond the prompt was generated.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import orjson

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Message, Request, Role, Usage
from providers.adapter import Codec
from providers.classify import classify
from providers.dialect import Dialect, Structured, Thinking
from providers.wire import OK, TokenCount, completion, count_usage, dump, interrupted, malformed, read_reply

PATH: Final = "/chat/completions"
SCHEMA_NAME: Final = "answer"

FINISH: Final = {
    "stop": Finish.STOP,
    "length": Finish.TRUNCATED,
    "model_context_window_exceeded": Finish.TRUNCATED,
    "content_filter": Finish.FILTERED,
    "sensitive": Finish.FILTERED,
    "tool_calls": Finish.TOOL,
    "function_call": Finish.TOOL,
}
BROKEN_OFF: Final = frozenset({"insufficient_system_resource", "network_error"})


class _Part(msgspec.Struct, gc=False):
    text: str = ""
    refusal: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: TokenCount | None = 0
    cache_write_tokens: TokenCount | None = 0


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: TokenCount | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: TokenCount | None = 0
    completion_tokens: TokenCount | None = 0
    total_tokens: TokenCount | None = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: TokenCount | None = 0
    cached_tokens: TokenCount | None = 0


class _Reply(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    id: str | int | None = None
    request_id: str | int | None = None
    model: str | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_reply: Final = msgspec.json.Decoder(_Reply, strict=False)


def encode(request: Request, dialect: Dialect) -> bytes:
    """Return the JSON body of `request`.

    Parameters that the dialect has no word for are left out; `adapt` drops them on the record when a sweep is planned.

    Raises:
        ProviderError: class bad_request, nothing was sent.
    """
    decoding = request.decoding
    body: dict[str, object] = {
        "model": request.model,
        "messages": [_turn(message, dialect) for message in request.messages],
        dialect.max_tokens: decoding.max_tokens,
    }
    _put_sampling(body, decoding, dialect)
    if decoding.schema is not None and dialect.structured is not Structured.NONE:
        body["response_format"] = _response_format(decoding.schema, request.messages, dialect)
    if decoding.thinking is not None:
        body.update(_switch(decoding.thinking, dialect.thinking))
    return dump(body)


def decode(status: int, headers: Mapping[str, str], body: bytes, dialect: Dialect) -> Completion:
    """Return the completion that a reply holds.

    Raises:
        ProviderError: an error status, an error inside a 200, a reply that is no answer, or no token counts.
    """
    if status != OK:
        raise classify(dialect.errors, status, headers, body)
    reply = read_reply(_reply, body, headers)
    if not reply.choices:
        if bytes(reply.error) not in (b"null", b""):
            raise classify(dialect.errors, status, headers, body)
        raise malformed("no choices", body, headers)
    choice = reply.choices[0]
    finish_raw = choice.finish_reason or ""
    if finish_raw in BROKEN_OFF:
        raise interrupted(finish_raw)
    text, refusal = _words(choice.message)
    return completion(
        text=text or refusal,
        finish=Finish.REFUSED if refusal else FINISH.get(finish_raw, Finish.OTHER),
        finish_raw=finish_raw,
        usage=_usage(reply.usage) if reply.usage else Usage(),
        usage_optional=dialect.usage_optional,
        thinking=choice.message.reasoning_content or choice.message.reasoning or "",
        model_echo=reply.model or "",
        provider_request_id=headers.get("x-request-id") or str(reply.request_id or reply.id or ""),
        raw=body,
    )


def _turn(message: Message, dialect: Dialect) -> dict[str, str]:
    role = dialect.system_role if message.role is Role.SYSTEM else message.role.value
    return {"role": role, "content": message.content}


def _put_sampling(body: dict[str, object], decoding: Decoding, dialect: Dialect) -> None:
    if decoding.temperature is not None:
        body["temperature"] = decoding.temperature
    if decoding.top_p is not None:
        body["top_p"] = decoding.top_p
    if decoding.seed is not None and dialect.seed:
        body["seed"] = decoding.seed
    if decoding.stop:
        body["stop"] = decoding.stop[: dialect.max_stop]
    if decoding.effort is not None and dialect.effort:
        body["reasoning_effort"] = decoding.effort


def _response_format(schema: str, messages: Sequence[Message], dialect: Dialect) -> dict[str, object]:
    if dialect.structured is Structured.OBJECT:
        if not any("json" in message.content.lower() for message in messages):
            raise ProviderError(
                ErrorClass.BAD_REQUEST, 'this model binds answers to JSON only when the prompt contains the word "json"'
            )
        return {"type": "json_object"}
    named: dict[str, object] = {"name": SCHEMA_NAME, "schema": orjson.Fragment(schema)}
    if dialect.strict_schema:
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def _switch(on: bool, spelling: Thinking) -> dict[str, object]:
    match spelling:
        case Thinking.ENABLE:
            return {"enable_thinking": on}
        case Thinking.TYPE:
            return {"thinking": {"type": "enabled" if on else "disabled"}}
        case Thinking.TEMPLATE:
            return {"chat_template_kwargs": {"enable_thinking": on}}
        case _:
            return {}


def _words(message: _Message) -> tuple[str, str]:
    """Return text and refusal of a message whose content is a string, a list of parts, or nothing."""
    content = message.content
    if isinstance(content, list):
        refusal = "".join(part.refusal for part in content)
        return "".join(part.text for part in content), message.refusal or refusal
    return content or "", message.refusal or ""


def _usage(usage: _Usage) -> Usage:
    given, made = usage.prompt_tokens or 0, usage.completion_tokens or 0
    prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
    detailed = (prompt.cached_tokens or 0) if prompt else 0
    return count_usage(
        given=given,
        cached=detailed or usage.prompt_cache_hit_tokens or usage.cached_tokens or 0,
        written=(prompt.cache_write_tokens or 0) if prompt else 0,
        made=max(made, (usage.total_tokens or 0) - given),
        reasoning=(output.reasoning_tokens or 0) if output else 0,
    )


CODEC: Final = Codec(path=lambda _model: PATH, encode=encode, decode=decode)
