"""What is sent and what comes back: messages, decoding, requests, completions and token usage.

Plain immutable records that every package shares. A request is identified by what it asks, never by who asks or why:
`request_key` hashes provider, model snapshot, messages, decoding parameters and sample index, so planning the same call
twice, in one sweep or in two, is the same call and is paid for once.
"""

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

KEY_BYTES: Final = 16
# Byte-level tokenizers never make more tokens than UTF-8 bytes; chat templates add a few tokens around every message.
TEMPLATE_TOKENS_PER_MESSAGE: Final = 16
TEMPLATE_TOKENS: Final = 64
TYPICAL_BYTES_PER_TOKEN: Final = 4


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Message(msgspec.Struct, frozen=True):
    """One turn of the prompt. Lone surrogates, which no wire can carry, become U+FFFD: prompts quote hostile text."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        if not is_well_formed(self.content):
            msgspec.structs.force_setattr(self, "content", well_formed(self.content))


class Decoding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the answer is generated, in neutral terms; each adapter spells them its provider's way.

    Attributes:
        max_tokens: output allowance in tokens, thinking included.
        temperature: None leaves the provider's default.
        schema: JSON Schema (as JSON text) that the answer must follow, or None for free text.
        thinking: True or False sets the provider's reasoning switch, None leaves its default.
        effort: the provider's reasoning effort word, or None.
        stop: strings that end the answer.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: str | None = None
    thinking: bool | None = None
    effort: str | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call to one model snapshot; `sample` numbers repeated draws of the same prompt."""

    provider: str
    model: str
    messages: tuple[Message, ...]
    decoding: Decoding
    sample: int = 0


class Finish(StrEnum):
    """Why generation ended, over all providers (their own word is kept in `Completion.finish_raw`)."""

    STOP = "stop"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    FILTERED = "filtered"
    TOOL = "tool"
    OTHER = "other"


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Billed tokens of one call.

    Attributes:
        input_tokens: the whole prompt, cached and cache-written tokens included.
        cached_tokens: the part of `input_tokens` read from a prompt cache.
        cache_write_tokens: the part of `input_tokens` written to a prompt cache at a surcharge.
        output_tokens: everything generated, reasoning included.
        reasoning_tokens: the part of `output_tokens` that was reasoning.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A paid answer. `raw` is the provider's reply as it came, kept for re-reading."""

    text: str
    finish: Finish
    usage: Usage
    finish_raw: str = ""
    thinking: str = ""
    model_echo: str = ""
    provider_request_id: str = ""
    raw: bytes = b""


_canonical = msgspec.json.Encoder(order="deterministic")


def well_formed(text: str) -> str:
    """Return `text` itself, or a copy with U+FFFD for every lone surrogate."""
    if is_well_formed(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_well_formed(text: str) -> bool:
    """Say whether `text` can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def request_key(request: Request) -> bytes:
    """Return the 16-byte content hash that identifies `request` everywhere."""
    return blake2b(_canonical.encode(request), digest_size=KEY_BYTES).digest()


def prompt_bytes(request: Request) -> int:
    """Return the UTF-8 size of everything the model is given to read."""
    schema = request.decoding.schema
    return sum(len(message.content.encode()) for message in request.messages) + (len(schema.encode()) if schema else 0)


def input_token_bound(size: int, messages: int) -> int:
    """Return a number of input tokens that a prompt of `size` bytes in so many messages cannot exceed."""
    return size + messages * TEMPLATE_TOKENS_PER_MESSAGE + TEMPLATE_TOKENS


def input_token_estimate(size: int, messages: int) -> int:
    """Return a typical number of input tokens for such a prompt, used for rate limits and plans, never for caps."""
    return size // TYPICAL_BYTES_PER_TOKEN + messages * TEMPLATE_TOKENS_PER_MESSAGE // 2


def chat(*turns: tuple[Role, str]) -> tuple[Message, ...]:
    """Return messages from (role, text) pairs."""
    return tuple(Message(role, content) for role, content in turns)


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum of `usages`, field by field."""
    totals = dict.fromkeys(Usage.__struct_fields__, 0)
    for usage in usages:
        for field in totals:
            totals[field] += getattr(usage, field)
    return Usage(**totals)
