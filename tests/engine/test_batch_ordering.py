"""Results files put in the order of the batch's lines: nothing is lost, added or read, whatever a line holds."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.batch import ordering
from engine.batch.ordering import in_order, lines_of
from engine.batch.provider import Marker

MARKER = Marker(run="run", shard=3, attempt=0, digest="0" * 16)


def row(number: int, text: str = "an answer") -> bytes:
    """A line of results."""
    return json.dumps({"custom_id": MARKER.line_id(number), "text": text}).encode() + b"\n"


def ordered(path: Path, count: int = 2_000) -> bytes:
    """The lines in their order, joined."""
    return b"".join(in_order(path, MARKER, count))


def test_rows_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    """Numbers are compared as numbers."""
    numbers = list(range(0, 1_200, 7))
    random.Random(1).shuffle(numbers)  # noqa: S311 - any order will do
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(map(row, numbers)))
    assert ordered(path) == b"".join(map(row, sorted(numbers)))


def test_a_file_that_is_in_order_comes_as_it_is(tmp_path: Path) -> None:
    """Most providers keep the order; rows of nobody do not disturb it."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(0) + b"not json\n" + row(1) + row(1, "again") + row(2))
    assert ordered(path) == path.read_bytes()


def test_rows_of_nobody_come_last(tmp_path: Path) -> None:
    """Other batches' rows, torn ids and lines that are no JSON stay, behind ours, in their order."""
    other = row(1).replace(b"run-3-0", b"run-4-0")
    torn = b'{"custom_id":"run-3-0-"}\n'
    path = tmp_path / "results.jsonl"
    path.write_bytes(other + row(2) + torn + b"not json\n" + row(1))
    assert ordered(path) == row(1) + row(2) + other + torn + b"not json\n"


def test_a_number_beyond_the_batch_is_nobodys(tmp_path: Path) -> None:
    """Memory is bounded by what was sent, not by what a row says."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(10**11) + row(3) + row(2) + row(1))
    assert ordered(path, count=3) == row(1) + row(2) + row(10**11) + row(3)


def test_a_last_line_without_an_end_is_a_line(tmp_path: Path) -> None:
    """Two rows never become one."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(5) + row(4).removesuffix(b"\n"))
    assert list(in_order(path, MARKER, 6)) == [row(4).removesuffix(b"\n"), row(5)]


def test_a_repeated_row_comes_after_all_first_ones(tmp_path: Path) -> None:
    """The first outcome of a line stays the first."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(2) + row(1, "first") + row(1, "second"))
    assert ordered(path) == row(1, "first") + row(2) + row(1, "second")


def test_a_line_longer_than_any_answer_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; the lines behind it are read."""
    monkeypatch.setattr(ordering, "LONGEST_LINE", 8)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"x" * 20 + b"\n{}\n")
    assert list(lines_of(path)) == [b"x" * 8, b"x" * 8, b"x" * 4 + b"\n", b"{}\n"]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.one_of(st.integers(0, 999).map(row), st.binary(max_size=40)), max_size=40))
def test_the_same_lines_are_there_whatever_they_hold(lines: list[bytes], tmp_path: Path) -> None:
    """Order is all that changes."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines))
    assert sorted(in_order(path, MARKER, 500)) == sorted(lines_of(path))
