"""Results files put in the order of the batch's lines: nothing is lost, added or read, whatever a line holds."""

import json
import random
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.batch.ordering import SUFFIX, in_order
from engine.batch.provider import Marker

MARKER = Marker(run="run", shard=3, attempt=0, digest="0" * 16)


def row(number: int, text: str = "an answer") -> bytes:
    """A line of results."""
    return json.dumps({"custom_id": MARKER.line_id(number), "text": text}).encode() + b"\n"


def test_rows_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    """Numbers are compared as numbers."""
    numbers = list(range(0, 1_200, 7))
    random.Random(1).shuffle(numbers)  # noqa: S311 - any order will do
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(map(row, numbers)))
    found = in_order(path, MARKER)
    assert found == tmp_path / f"results.jsonl{SUFFIX}"
    assert found.read_bytes() == b"".join(map(row, sorted(numbers)))


def test_a_file_that_is_in_order_is_not_copied(tmp_path: Path) -> None:
    """Most providers keep the order."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(map(row, range(20))))
    assert in_order(path, MARKER) == path
    assert [each.name for each in tmp_path.iterdir()] == ["results.jsonl"]


def test_rows_of_nobody_come_last(tmp_path: Path) -> None:
    """Other batches' rows, torn ids and lines that are no JSON stay, behind ours, in their order."""
    other = row(1).replace(b"run-3-0", b"run-4-0")
    torn = b'{"custom_id":"run-3-0-"}\n'
    path = tmp_path / "results.jsonl"
    path.write_bytes(other + row(2) + torn + b"not json\n" + row(1))
    assert in_order(path, MARKER).read_bytes() == row(1) + row(2) + other + torn + b"not json\n"


def test_a_last_line_without_an_end_gets_one(tmp_path: Path) -> None:
    """Two rows never become one line."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(5) + row(4).removesuffix(b"\n"))
    assert in_order(path, MARKER).read_bytes() == row(4) + row(5)


def test_a_repeated_row_keeps_its_turn(tmp_path: Path) -> None:
    """The first outcome of a line stays the first."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(row(2) + row(1, "first") + row(1, "second"))
    assert in_order(path, MARKER).read_bytes() == row(1, "first") + row(1, "second") + row(2)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.one_of(st.integers(0, 999).map(row), st.binary(max_size=40)), max_size=40))
def test_the_same_lines_are_there_whatever_they_hold(lines: list[bytes], tmp_path: Path) -> None:
    """Order is all that changes."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines))
    found = in_order(path, MARKER).read_bytes()
    assert sorted(found.split(b"\n")) == sorted(path.read_bytes().split(b"\n"))
