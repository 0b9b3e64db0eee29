"""Tables that fit: figures and names are whole at every width."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from bench.wide import fitted, print_table, wide_console

ROWS = [("1", "anthropic/claude-opus-4-6-20260415", "msgbatch_9b9ec136441bcc69fdf5d9e2", "it was never created")]
HEADS = ("id", "model", "remote id", "reason")


def console(width: int) -> Console:
    return Console(file=StringIO(), width=width, markup=False, highlight=False, emoji=False)


def table(*rows: tuple[str, ...]) -> Table:
    made = Table(box=SIMPLE_HEAD, title="batches · SIMULATED")
    for head in HEADS:
        made.add_column(head, no_wrap=head != "reason")
    for row in rows or ROWS:
        made.add_row(*row)
    return made


def shown(width: int, *rows: tuple[str, ...], drop: tuple[str, ...] = ()) -> list[str]:
    there = console(width)
    print_table(table(*rows), drop=drop, console=there)
    assert isinstance(there.file, StringIO)
    return there.file.getvalue().splitlines()


def test_words_wrap_before_a_column_is_left_out() -> None:
    """Nothing is said to be missing."""
    lines = shown(96)
    assert max(map(cell_len, lines)) <= 96
    assert "left out" not in "".join(lines)
    assert "created" in lines[-2]
    assert "never" not in lines[-2]


def test_columns_are_left_out_in_the_order_that_was_stated_and_named() -> None:
    """In the table's own order."""
    lines = shown(50, drop=("reason", "remote id"))
    assert lines[-1] == "left out for want of room: remote id, reason"
    assert any(ROWS[0][1] in line for line in lines)


def test_rows_are_told_as_lines_where_no_table_fits() -> None:
    """With every value whole and named."""
    lines = shown(50)
    assert lines == [
        "batches · SIMULATED", "id 1", f"  model: {ROWS[0][1]}", f"  remote id: {ROWS[0][2]}",
        "  reason: it was never created",
    ]  # fmt: skip


def test_what_is_longer_than_the_terminal_gets_no_line_break_of_ours() -> None:
    """It would be copied with it."""
    long = "x" * 90
    assert f"  model: {long}" in shown(60, ("1", long, "", ""))


WORDS = st.text("abcdefgh0123456789-_/.$,", min_size=1, max_size=30)


@given(
    st.lists(st.tuples(WORDS, WORDS, WORDS, st.lists(WORDS, max_size=6).map(" ".join)), min_size=1, max_size=5),
    st.integers(40, 140),
    st.lists(st.sampled_from(HEADS), unique=True, max_size=3).map(tuple),
)
def test_no_word_of_any_table_is_ever_cut(rows: list[tuple[str, ...]], width: int, drop: tuple[str, ...]) -> None:
    """Whatever the width, every word of every column that is not left out is there, in lines that fit."""
    lines = shown(width, *rows, drop=drop)
    left_out = next((line for line in lines if line.startswith("left out for")), "").partition(": ")[2].split(", ")
    words = {word for line in lines for word in line.split()}
    for row in rows:
        for head, cell in zip(HEADS, row, strict=True):
            assert head in left_out or set(cell.split()) <= words
    assert max(map(cell_len, lines)) <= width or not fitted(console(width), table(*rows), drop).table


def test_what_is_piped_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """And wide without it, or with nonsense in it."""
    monkeypatch.setenv("COLUMNS", "80")
    assert wide_console().width == 80
    for nonsense in ("", "0", "-3", "wide"):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert wide_console().width == 200
