"""What the adapters share between bytes and records: writing JSON, reading replies, token counts, the rule on usage.

Two rules live here. A reply that can be mended is mended before it is given up, because it is paid for: a byte-order
mark, invalid UTF-8, half a surrogate pair or a raw control character costs that character, not the answer. And a reply
without token counts cannot be priced: it is refused with class `quota`, which stops the provider after one such call
instead of buying thousands whose cost is unknown; where the price is zero and the catalogue says `usage_optional`,
counts are zero and `finish_raw` says `usage absent`. Must not know: one provider's field names.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec
import orjson

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Finish, Usage, well_formed
from providers.errorbody import safe_line

MOST_TOKENS: Final = 1 << 40
OK: Final = 200
USAGE_ABSENT: Final = "usage absent"

T = TypeVar("T")
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]

_USAGE_NAMES: Final = frozenset({"usage", "usageMetadata"})
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def dump(body: Mapping[str, object]) -> bytes:
    """Return `body` as JSON.

    Raises:
        ProviderError: class bad_request; a text is not Unicode (half a surrogate pair). Nothing was sent.
    """
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise ProviderError(ErrorClass.BAD_REQUEST, f"the request cannot be written as JSON: {error}") from None


def read_reply(decoder: "msgspec.json.Decoder[T]", body: bytes, headers: Mapping[str, str]) -> T:
    """Return a successful reply's body as a record.

    Raises:
        ProviderError: class transient, maybe billed; the body is not the JSON it should be.
    """
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        reason = str(error)
    for mend in (_mended, _without_usage):
        try:
            return decoder.decode(mend(body))
        except (*_UNREADABLE, ValueError):
            continue
    raise malformed(reason, body, headers)


def _without_usage(body: bytes) -> bytes:
    """Return a reply without its token counts: counts that cannot be read are absent, no reason to buy it again."""
    reply = orjson.loads(body)
    if not isinstance(reply, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what the caller takes for unreadable
    return orjson.dumps({name: value for name, value in reply.items() if name not in _USAGE_NAMES})


def malformed(reason: str, body: bytes, headers: Mapping[str, str]) -> ProviderError:
    """Return the error for a successful status whose body is no answer; the work may have been done and charged."""
    kind = headers.get("content-type", "no content type").split(";")[0]
    start = body[:200].decode("utf-8", "replace")
    text = safe_line(f"HTTP 200 with an unreadable body ({kind}, {len(body)} bytes): {reason}; it begins {start!r}")
    return ProviderError(ErrorClass.TRANSIENT, text, status=OK, code="malformed_reply", maybe_billed=True)


def interrupted(word: str) -> ProviderError:
    """Return the error for a reply that says that generation broke off at the provider, to be tried again."""
    text = f"generation broke off at the provider: {safe_line(word)}"
    return ProviderError(ErrorClass.TRANSIENT, text, status=OK, code=safe_line(word)[:64], maybe_billed=True)


def count_usage(*, given: int, cached: int = 0, written: int = 0, made: int, reasoning: int = 0) -> Usage:
    """Return a usage whose parts never exceed their wholes: `given` is the whole prompt, `made` the whole output."""
    cached = min(cached, given)
    return Usage(
        input_tokens=given,
        cached_tokens=cached,
        cache_write_tokens=min(written, given - cached),
        output_tokens=made,
        reasoning_tokens=min(reasoning, made),
    )


def completion(
    *,
    text: str,
    finish: Finish,
    finish_raw: str,
    usage: Usage,
    usage_optional: bool,
    thinking: str,
    model_echo: str,
    provider_request_id: str,
    raw: bytes,
) -> Completion:
    """Return the completion; a prompt of zero tokens does not exist, so such a usage counts as absent.

    Raises:
        ProviderError: class quota, maybe billed; there are no token counts and the model has a price.
    """
    if not usage.input_tokens:
        if not usage_optional:
            raise _no_usage()
        finish_raw, usage = f"{finish_raw}; {USAGE_ABSENT}", Usage()
    return Completion(
        text=text,
        finish=finish,
        usage=usage,
        finish_raw=finish_raw,
        thinking=thinking,
        model_echo=model_echo,
        provider_request_id=provider_request_id,
        raw=raw,
    )


def _no_usage() -> ProviderError:
    return ProviderError(
        ErrorClass.QUOTA,
        "the reply carries no token counts, so it cannot be priced; "
        "if this endpoint is free, set its price to 0 and usage_optional = true in the catalogue",
        status=OK,
        code="usage_missing",
        maybe_billed=True,
    )


def _mended(body: bytes) -> bytes:
    """Return `body` as clean JSON; ValueError when it is none even so."""
    parsed = json.loads(body.decode("utf-8-sig", "replace"), strict=False)
    return well_formed(json.dumps(parsed, ensure_ascii=False)).encode()
