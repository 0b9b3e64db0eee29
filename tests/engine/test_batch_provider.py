"""Markers are text that every provider takes, and prove whose a batch or a row is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.provider import CUSTOM_ID, QUEUE_FULL, BatchState, LineError, Marker, RemoteBatch, read_marker

DIGEST = "0123456789abcdef"
markers = st.builds(
    Marker,
    run=st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True),
    shard=st.integers(0, 999_999),
    attempt=st.integers(0, 999),
    digest=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
)


def marker(run: str = "r1", shard: int = 3, attempt: int = 0, digest: str = DIGEST) -> Marker:
    """Return a marker with some parts replaced."""
    return Marker(run=run, shard=shard, attempt=attempt, digest=digest)


@given(markers)
def test_a_token_reads_back_as_its_marker(found: Marker) -> None:
    """And is legal as metadata value, DashScope name, Gemini file name and id."""
    assert read_marker(found.token) == found
    assert CUSTOM_ID.fullmatch(found.token)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,38}[a-z0-9]", found.token)


@given(markers, st.integers(0, 99_999))
def test_a_line_id_reads_back_as_its_index(found: Marker, index: int) -> None:
    """And is a legal custom id of at least six characters."""
    custom_id = found.line_id(index)
    assert found.line_index(custom_id) == index
    assert CUSTOM_ID.fullmatch(custom_id)
    assert len(custom_id) >= 6


@pytest.mark.parametrize(
    "other",
    [marker(run="r2"), marker(shard=4), marker(attempt=1)],
    ids=["run", "shard", "attempt"],
)
def test_a_line_id_of_another_batch_is_not_ours(other: Marker) -> None:
    """Run, shard and attempt are all compared."""
    assert marker().line_index(other.line_id(7)) is None


@pytest.mark.parametrize(
    "custom_id", ["", "r1", "r1-3-0-", "r1-3-0-x", "r1-3-0-01", "r1-3-0-1-1", "R1-3-0-1", "r1-3-0-²"]
)
def test_a_text_that_is_no_line_id_has_no_index(custom_id: str) -> None:
    """Whatever a results file holds."""
    assert marker().line_index(custom_id) is None


@pytest.mark.parametrize(
    "token", ["", "r1", "r1-3-0", f"r1-03-0-{DIGEST}", f"R1-3-0-{DIGEST}", f"r1-3-0-{DIGEST}0", f"x-r1-3-0-{DIGEST}"]
)
def test_a_text_that_is_no_token_is_nobody_s_marker(token: str) -> None:
    """Other people's batches carry other texts."""
    assert read_marker(token) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"run": ""},
        {"run": "a" * 13},
        {"run": "Run"},
        {"run": "a-b"},
        {"shard": -1},
        {"shard": 10**6},
        {"attempt": 1000},
        {"digest": "xyz"},
    ],
    ids=str,
)
def test_a_marker_that_would_not_fit_is_refused(parts: dict[str, object]) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="not a marker"):
        marker(**parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "code", "full"),
    [
        (BatchState.FAILED, QUEUE_FULL, True),
        (BatchState.FAILED, "invalid_url", False),
        (BatchState.OPEN, QUEUE_FULL, False),
    ],
)
def test_a_full_queue_is_told_from_other_failures(state: BatchState, code: str, full: bool) -> None:
    """The shard goes back only when nothing else was wrong with it."""
    batch = RemoteBatch(id="b", state=state, line_errors=(LineError(code=code, message=""),))
    assert batch.queue_full is full
