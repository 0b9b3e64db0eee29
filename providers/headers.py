"""What reply headers say about time and limits: Retry-After in all spellings, rate-limit headers. Pure text to numbers.

Headers come as a mapping with lower-case names. No clock is read: moments (HTTP dates, RFC 3339) are compared with the
reply's own `date` header, so a wrong local clock cannot turn a wait of seconds into hours; the transport adds that
header where a server left it out. Must not know: providers' error bodies, what a wait is used for.

Sources: RFC 9110 10.2.3 (Retry-After); OpenAI and Anthropic rate-limit documentation; retry-after-ms and x-should-retry
as read by both vendors' official clients.
"""

import math
import re
from calendar import month_abbr
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

from engine.provider import RateHints

LONGEST_WAIT: Final = 7 * 86_400.0
EPOCH_FLOOR: Final = 1_000_000_000.0  # a bare number above it is a moment in UNIX seconds, below it a duration
LONGEST_COUNT: Final = 15  # digits
REMEMBERED: Final = 256  # texts; a provider says the same ones again and again

_UNIT_SECONDS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_STEP: Final = r"(\d{1,12}(?:\.\d{1,12})?)(ns|us|µs|ms|s|m|h|d)"
_DURATION: Final = re.compile(f"(?:{_STEP})+")
_DURATION_STEP: Final = re.compile(_STEP)
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,12})?")
_COUNT: Final = re.compile(rf"[ \t]*([0-9]{{1,{LONGEST_COUNT}}})[ \t]*")
_MONTHS: Final = {name: n for n, name in enumerate(month_abbr)}

# RateHints field stem -> (limit, remaining, reset) header names
_HINT_HEADERS: Final = (
    ("requests", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("tokens", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    *(
        (
            stem.replace("-", "_"),
            f"anthropic-ratelimit-{stem}-limit",
            f"anthropic-ratelimit-{stem}-remaining",
            f"anthropic-ratelimit-{stem}-reset",
        )
        for stem in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds a reply asks to wait, or None; at most a week.

    `retry-after-ms` goes before `retry-after`, which may be seconds or an HTTP date.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and _NUMBER.fullmatch(milliseconds):
        return min(float(milliseconds) / 1000, LONGEST_WAIT)
    text = headers.get("retry-after")
    return None if text is None else wait_seconds(text, sent_at(headers))


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return what `x-should-retry` says, or None."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def rate_hints(headers: Mapping[str, str]) -> RateHints | None:
    """Return the limits that OpenAI-style or Anthropic headers announce, or None when there are none.

    Unreadable values count as absent. A bare `x-ratelimit-limit` is not read: it may count anything.
    """
    found: dict[str, float] = {}
    now = sent_at(headers)
    for stem, limit, remaining, reset in _HINT_HEADERS:
        if limit in headers or remaining in headers:
            _note(found, f"{stem}_limit", _count(headers.get(limit)) or None)
            _note(found, f"{stem}_remaining", _count(headers.get(remaining)))
            _note(found, f"{stem}_reset", wait_seconds(headers.get(reset, ""), now))
    return RateHints(**found) if found else None  # type: ignore[arg-type]


def exhausted_reset(hints: RateHints | None) -> float | None:
    """Return seconds until every limit that has nothing left is full again, or None when none is exhausted."""
    if hints is None:
        return None
    pairs = (
        (hints.requests_remaining, hints.requests_reset),
        (hints.tokens_remaining, hints.tokens_reset),
        (hints.input_tokens_remaining, hints.input_tokens_reset),
        (hints.output_tokens_remaining, hints.output_tokens_reset),
    )
    return max((reset for remaining, reset in pairs if remaining == 0 and reset is not None), default=None)


def sent_at(headers: Mapping[str, str]) -> float | None:
    """Return the moment that a reply's `date` header names, in UNIX seconds, or None."""
    return _moment(headers.get("date", ""))


@lru_cache(maxsize=REMEMBERED)
def wait_seconds(text: str, now: float | None) -> float | None:
    """Return the wait that `text` means, in seconds from `now` (UNIX seconds), or None when it cannot be read.

    Knows plain seconds, durations (`20ms`, `1m30.5s`, `6m0s`), UNIX seconds, RFC 3339 moments and HTTP dates.
    """
    text = text.strip()
    if text[4:5] == "-":  # only RFC 3339 has a dash there; such resets come four to a reply
        return _until(_moment(text), now)
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        return _until(seconds, now) if seconds >= EPOCH_FLOOR else min(seconds, LONGEST_WAIT)
    if _DURATION.fullmatch(text):
        return min(_duration(text), LONGEST_WAIT)
    return _until(_moment(text), now)


def _duration(text: str) -> float:
    return math.fsum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _DURATION_STEP.findall(text))


def _until(moment: float | None, now: float | None) -> float | None:
    return None if moment is None or now is None else min(max(moment - now, 0.0), LONGEST_WAIT)


@lru_cache(maxsize=REMEMBERED)
def _moment(text: str) -> float | None:
    """Return UNIX seconds of an RFC 3339 moment or an HTTP date; a moment without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text) if text[:4].isdecimal() else _http_date(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _http_date(text: str) -> datetime:
    """Read an HTTP date; the usual form is cut by position, which is much faster than the mail parser."""
    month = _MONTHS.get(text[8:11])
    if month is None or len(text) != len("Sun, 06 Nov 1994 08:49:37 GMT"):
        return parsedate_to_datetime(text)
    day, year, hour, minute, second = text[5:7], text[12:16], text[17:19], text[20:22], text[23:25]
    return datetime(int(year), month, int(day), int(hour), int(minute), int(second), tzinfo=UTC)


def _count(text: str | None) -> int | None:
    found = _COUNT.fullmatch(text) if text else None
    return int(found[1]) if found else None


def _note(found: dict[str, float], field: str, value: float | None) -> None:
    if value is not None:
        found[field] = value
