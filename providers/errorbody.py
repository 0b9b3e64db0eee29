"""Reads error bodies of any shape into a few facts: discriminating words, a safe message, a wait.

Knows the shapes `{"error": {...}}`, `{"error": "text"}`, `[{"error": ...}]`, `{"code": ..., "message": ...}`,
`{"detail": ...}`, Google's and Anthropic's details, HTML pages and plain text. Must not know: what the facts mean.
"""

import re
from typing import Final

import msgspec

from providers.headers import wait_seconds
from providers.keys import redact

LONGEST_MESSAGE: Final = 300
LONGEST_CODE: Final = 64
LONGEST_READ: Final = 4096
LONGEST_PARSED: Final = 1 << 20
SHORT_WAIT: Final = 600.0
FIRST_ERROR: Final = 300

_TAGS: Final = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_SPACES: Final = re.compile(r" {2,}")
_HTTP_ERRORS: Final = range(400, 600)


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an error reply says.

    Attributes:
        status: HTTP status, or the status named in the body of a reply that came with 200; 0 when unknown.
        words: every discriminator found, lower case.
        code: the most telling one, as the provider spells it, shortened.
        message: one safe line.
        said: more of the message in lower case, for matching only.
        wait: seconds that the body asks to wait.
    """

    status: int
    words: frozenset[str] = frozenset()
    code: str = ""
    message: str = ""
    said: str = ""
    wait: float | None = None

    @property
    def has_status(self) -> bool:
        """True when the status says anything about the error."""
        return self.status >= FIRST_ERROR


class _Violation(msgspec.Struct, rename="camel"):
    quota_id: str = ""


class _Detail(msgspec.Struct, rename="camel"):
    reason: str = ""
    retry_delay: str = ""
    violations: list[_Violation] = []
    error_code: str = msgspec.field(default="", name="error_code")


class _Body(msgspec.Struct):
    message: str = ""
    msg: str = ""
    type: str | int | None = None
    code: str | int | None = None
    status: str | int | None = None
    details: list[_Detail] | _Detail | None = None
    error: "_Body | str | None" = None
    detail: str | None = None


class _Bare(msgspec.Struct):
    message: str = ""
    type: str | int | None = None
    code: str | int | None = None


class _BareEnvelope(msgspec.Struct):
    error: _Bare


_full: Final = msgspec.json.Decoder(list[_Body] | _Body, strict=False)
_bare: Final = msgspec.json.Decoder(_BareEnvelope, strict=False)


def read_error(status: int, body: bytes) -> ErrorFacts:
    """Return the facts of an error reply; never raises."""
    found = _parse(body[:LONGEST_PARSED])
    if found is None:
        text = _page_text(body)
        return ErrorFacts(status=status, message=safe_line(text), said=text.lower())
    inner = found.error if isinstance(found.error, _Body) else found
    details = inner.details if isinstance(inner.details, list) else [inner.details] if inner.details else []
    wait, words, message = _retry_delay(details), [*_words(inner), *_words(found)], _message(found, inner)
    return ErrorFacts(
        status=status if status >= FIRST_ERROR else _named_status(inner),
        words=frozenset(word.lower() for word in (*words, *_detail_words(details, wait))),
        code=_code(words),
        message=safe_line(message),
        said=message[:LONGEST_READ].lower(),
        wait=wait,
    )


def safe_line(text: str) -> str:
    """Return `text` as one short line without control characters, direction marks, or anything like a key."""
    line = "".join(char if char.isprintable() else " " for char in text[:LONGEST_READ])
    line = redact(_SPACES.sub(" ", line).strip())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."


def _parse(body: bytes) -> _Body | None:
    try:
        found = _full.decode(body)
        return found if isinstance(found, _Body) else found[0] if found else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        bare = _bare.decode(body).error
        return _Body(message=bare.message, type=bare.type, code=bare.code)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _words(body: _Body) -> list[str]:
    return [str(word) for word in (body.code, body.type, body.status) if word not in (None, "")]


def _code(words: list[str]) -> str:
    """Return the first word that says more than the HTTP status, shortened."""
    telling = (word for word in words if not (word.isdecimal() and int(word[:9]) in _HTTP_ERRORS))
    return safe_line(next(telling, words[0] if words else ""))[:LONGEST_CODE]


def _message(found: _Body, inner: _Body) -> str:
    text = found.error if isinstance(found.error, str) else inner.message or inner.msg
    return text or found.message or found.detail or ""


def _detail_words(details: list[_Detail], wait: float | None) -> list[str]:
    words = [word for detail in details for word in (detail.reason, detail.error_code) if word]
    if any("perday" in violation.quota_id.lower() for detail in details for violation in detail.violations):
        words.append("quota:per_day")
    if wait is not None:
        words.append("wait:short" if wait <= SHORT_WAIT else "wait:long")
    return words


def _retry_delay(details: list[_Detail]) -> float | None:
    waits = [wait_seconds(detail.retry_delay, None) for detail in details if detail.retry_delay]
    return max((wait for wait in waits if wait is not None), default=None)


def _named_status(body: _Body) -> int:
    """Return an HTTP status that the body of a 200 reply names, or 0."""
    for word in (body.code, body.status):
        if isinstance(word, int) and word in _HTTP_ERRORS:
            return word
    return 0


def _page_text(body: bytes) -> str:
    return _TAGS.sub(" ", body[:LONGEST_READ].decode("utf-8", "replace"))
