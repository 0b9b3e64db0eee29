"""Retry-After and rate-limit headers, in every spelling that providers use."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.provider import RateHints
from providers.headers import (
    LONGEST_WAIT,
    exhausted_reset,
    rate_hints,
    retry_after,
    sent_at,
    should_retry,
    wait_seconds,
)

DATE = {"date": "Mon, 30 Nov 2026 17:00:00 GMT"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "20"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "20"}, 20.0),
        ({"retry-after": "Mon, 30 Nov 2026 17:00:30 GMT"}, 30.0),
        ({"retry-after": "Monday, 30-Nov-26 17:00:30 GMT"}, 30.0),
        ({"retry-after": "Mon, 30 Nov 2026 16:59:00 GMT"}, 0.0),
        ({"retry-after": "1796058010"}, 10.0),
        ({"retry-after": "999999999"}, LONGEST_WAIT),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_spellings(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds, seconds, dates and moments; nonsense is no wait."""
    assert retry_after(DATE | headers) == seconds


def test_a_date_is_compared_with_the_servers_clock() -> None:
    """A local clock that is hours off does not matter, because none is read; without a date there is no answer."""
    moment = "Mon, 30 Nov 2026 17:00:30 GMT"
    assert retry_after({"date": "Mon, 30 Nov 2026 17:00:29 GMT", "retry-after": moment}) == 1.0
    assert retry_after({"retry-after": moment}) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1m30.5s", 90.5),
        ("20ms", 0.02),
        ("8.64s", 8.64),
        ("1m43.053s", 103.053),
        ("1h2m3s", 3723.0),
        ("1d", 86_400.0),
        ("500us", 0.0005),
        ("500µs", 0.0005),
        ("0s", 0.0),
        ("12", 12.0),
        ("33s", 33.0),
        ("2026-11-30T17:00:07Z", 7.0),
        ("2026-11-30T17:00:07.250Z", 7.25),
        ("2026-11-30T18:00:07+01:00", 7.0),
        ("2026-11-30T16:59:59Z", 0.0),
        ("1s2", None),
        ("s", None),
        ("1 m", None),
        ("2026-99-99T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", 0.0),
    ],
)
def test_resets_are_read_in_all_formats(text: str, seconds: float | None) -> None:
    """Go-like durations, proto durations, plain seconds, RFC 3339."""
    found = wait_seconds(text, sent_at(DATE))
    assert found == pytest.approx(seconds) if seconds is not None else found is None


@given(st.integers(0, 6), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_steps(days: int, hours: int, minutes: int, seconds: int, milli: int) -> None:
    """Every combination of units adds up."""
    total = days * 86_400 + hours * 3600 + minutes * 60 + seconds + milli / 1000
    assert wait_seconds(f"{days}d{hours}h{minutes}m{seconds}s{milli}ms", None) == pytest.approx(total)


@given(st.text(max_size=60), st.text(max_size=40))
def test_no_header_text_breaks_the_reader(text: str, date: str) -> None:
    """Whatever a server sends, the answer is a sensible wait or none."""
    wait = retry_after({"retry-after": text, "date": date})
    assert wait is None or (math.isfinite(wait) and 0 <= wait <= LONGEST_WAIT)


def test_openai_headers_become_hints() -> None:
    """Requests and tokens with limits, remainders and resets."""
    hints = rate_hints(
        {
            "x-ratelimit-limit-requests": "30000",
            "x-ratelimit-remaining-requests": "29999",
            "x-ratelimit-reset-requests": "2ms",
            "x-ratelimit-limit-tokens": "150000000",
            "x-ratelimit-remaining-tokens": "149999978",
            "x-ratelimit-reset-tokens": "6m0s",
        }
    )
    assert hints == RateHints(
        requests_limit=30_000,
        requests_remaining=29_999,
        requests_reset=0.002,
        tokens_limit=150_000_000,
        tokens_remaining=149_999_978,
        tokens_reset=360.0,
    )


def test_anthropic_headers_become_hints() -> None:
    """Input and output tokens are told apart; resets are moments."""
    headers = dict(DATE)
    for stem, limit in (("requests", "4000"), ("input-tokens", "2000000"), ("output-tokens", "400000")):
        headers[f"anthropic-ratelimit-{stem}-limit"] = limit
        headers[f"anthropic-ratelimit-{stem}-remaining"] = "1"
        headers[f"anthropic-ratelimit-{stem}-reset"] = "2026-11-30T17:00:07Z"
    hints = rate_hints(headers)
    assert hints is not None
    assert (hints.requests_limit, hints.input_tokens_limit, hints.output_tokens_limit) == (4000, 2_000_000, 400_000)
    assert (hints.requests_reset, hints.input_tokens_reset, hints.output_tokens_reset) == (7.0, 7.0, 7.0)
    assert hints.tokens_limit is None


def test_unreadable_values_count_as_absent() -> None:
    """A limit of zero or of words says nothing about what is allowed; a remainder of zero does."""
    hints = rate_hints(
        {
            "x-ratelimit-limit-requests": "0",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-limit-tokens": "many",
            "x-ratelimit-reset-tokens": "9" * 40,
        }
    )
    assert hints == RateHints(requests_remaining=0)


@pytest.mark.parametrize("headers", [{}, {"x-ratelimit-limit": "10"}, {"x-ratelimit-limit-input-images": "5"}])
def test_headers_without_known_limits_give_no_hints(headers: dict[str, str]) -> None:
    """A number without a unit is not a limit."""
    assert rate_hints(headers) is None


def test_the_exhausted_limit_names_the_wait() -> None:
    """Of several limits, the last exhausted one to be full again counts."""
    hints = RateHints(requests_remaining=0, requests_reset=2.0, tokens_remaining=0, tokens_reset=9.0)
    assert exhausted_reset(hints) == 9.0
    assert exhausted_reset(RateHints(requests_remaining=5, requests_reset=2.0)) is None
    assert exhausted_reset(None) is None


@pytest.mark.parametrize(("text", "said"), [("true", True), (" False ", False), ("maybe", None), ("", None)])
def test_should_retry_is_true_false_or_nothing(text: str, said: bool | None) -> None:
    """Only the two words count."""
    assert should_retry({"x-should-retry": text}) is said
