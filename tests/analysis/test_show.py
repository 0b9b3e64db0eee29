"""Printing tables: what is printed, and that no name can act on a terminal."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates import Estimate, Interval, missing
from analysis.frames import Column, Kind, Report, Table, Value
from analysis.show import cell_text, column_blocks, inert, plain, plain_table, show, visible

HOSTILE = "\x1b[31mred\x1b[0m [bold]loud[/bold] \u202egnp.exe\r\nrm -rf"


def estimate(value: float, low: float, high: float) -> Estimate:
    """An estimate with an interval."""
    return Estimate(value=value, n=10, interval=Interval(low=low, high=high, method="m"), method="share")


def report_of(*rows: tuple[Value, ...], warnings: tuple[str, ...] = (), title: str = "A table") -> Report:
    """A report of one table with a text and a share."""
    columns = (Column("model", Kind.TEXT), Column("oi", Kind.SHARE, "share", "OI"))
    table = Table(name="t", title=title, columns=columns, rows=rows, notes=("n = 10",))
    return Report(sweep="s", simulated=False, warnings=warnings, tables=(table,))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.mark.parametrize(
    ("value", "column", "printed"),
    [
        pytest.param(0.4163, Column("c", Kind.SHARE), "41.6", id="share"),
        pytest.param(0.0, Column("c", Kind.SHARE), "0.0", id="a true zero"),
        pytest.param(None, Column("c", Kind.COUNT), "-", id="nothing"),
        pytest.param(float("nan"), Column("c", Kind.SHARE), "n/a", id="nan"),
        pytest.param(143616, Column("c", Kind.COUNT), "143,616", id="count"),
        pytest.param(15.08, Column("c", Kind.NUMBER), "15.08", id="number"),
        pytest.param(1_234_500_000_000, Column("c", Kind.MONEY), "$1,234.50", id="dollars"),
        pytest.param(75_000, Column("c", Kind.MONEY), "$0.000075", id="less than a cent"),
        pytest.param(estimate(0.4, 0.35, 0.45), Column("c", Kind.SHARE), "40.0 [35.0, 45.0]", id="interval"),
        pytest.param(estimate(0.4, 0.35, 0.45), Column("c", Kind.SHARE, brief=True), "40.0 ±5.0", id="half width"),
        pytest.param(estimate(0.05, -0.01, 0.1), Column("c", Kind.POINTS), "+5.0 [-1.0, +10.0]", id="difference"),
        pytest.param(Estimate(value=0.4, n=1, method="m"), Column("c", Kind.SHARE), "40.0", id="no interval"),
        pytest.param(missing("no claims", method="m"), Column("c", Kind.SHARE), "n/a", id="no number"),
    ],
)
def test_cells_are_printed_in_their_unit(value: Value, column: Column, printed: str) -> None:
    """Shares in percent, differences with a sign, money in dollars, and what is missing never as 0."""
    assert cell_text(value, column) == printed


def test_a_missing_number_has_its_reason_below() -> None:
    """Reasons are counted under the table."""
    nothing = missing("no claims", method="m")
    text = plain(report_of(("a", nothing), ("b", nothing), ("c", 0.5)))
    assert "n/a in 2 cells: no claims" in text


def test_a_number_without_an_interval_has_its_reason_below() -> None:
    """A bare number says why nothing surrounds it."""
    bare = Estimate(value=0.5, n=3, method="m", reason="fewer than two personas: no interval")
    assert "in 1 cell: fewer than two personas: no interval" in plain(report_of(("a", bare)))


def test_warnings_stand_above_the_tables() -> None:
    """They are the first thing one reads."""
    assert plain(report_of(("a", 0.5), warnings=("the judge is a toy",))).startswith("warning: the judge is a toy\n")


def test_columns_line_up() -> None:
    """Text is flush left, numbers are flush right, wide characters count twice."""
    lines = plain_table(report_of(("名", 0.051), ("abc", 0.5)).tables[0]).splitlines()
    assert lines == [
        "A table",
        "model  OI %",
        "-----  ----",
        "名      5.1",
        "abc    50.0",
        "  n = 10",
    ]


@given(st.text(st.characters(), max_size=200))
def test_no_text_can_act_on_a_terminal(text: str) -> None:
    """Nothing that is printed holds a control or formatting character."""
    shown = inert(text)
    assert shown.isprintable()
    assert "\x1b" not in visible(text)


def test_hostile_names_are_inert_in_plain_text() -> None:
    """Escapes, line breaks and direction marks are shown, not obeyed."""
    text = plain(report_of((HOSTILE, 0.5), warnings=(HOSTILE,), title=HOSTILE))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[31mred" in text
    assert "rm -rf" not in text.splitlines()


def test_hostile_names_are_inert_in_rich_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup is printed as it is written and a name brings no escape of its own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    show(report_of((HOSTILE, 0.5), warnings=(HOSTILE,), title=HOSTILE), stream)
    text = stream.getvalue()
    assert text.count("[bold]loud[/bold]") == 3
    assert "\x1b[31mred" not in text
    assert "\u202e" not in text
    assert "─" in text


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(10, 200))
def test_a_narrow_terminal_gets_every_column(widths: list[int], room: int) -> None:
    """Blocks hold each column once, in order, behind the first; a block is too wide only where one column is."""
    blocks = column_blocks(widths, room)
    assert [place for block in blocks for place in block[1:]] == list(range(1, len(widths)))
    assert all(block[0] == 0 for block in blocks)
    assert all(len(block) <= 2 or sum(widths[at] + 3 for at in block) - 3 <= room for block in blocks)


def test_no_figure_is_lost_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table is wider than the terminal, its columns come in blocks instead of being cut."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    columns = (Column("model", Kind.TEXT), *(Column(f"column_{at}", Kind.SHARE, "share") for at in range(9)))
    row: tuple[Value, ...] = ("m", *(estimate(at / 10, at / 10 - 0.01, at / 10 + 0.01) for at in range(9)))
    table = Table(name="t", title="A table", columns=columns, rows=(row,))
    stream = Terminal()
    show(Report(sweep="s", simulated=False, warnings=(), tables=(table,)), stream)
    assert all(cell_text(*pair) in stream.getvalue() for pair in zip(row, columns, strict=True))


def test_a_terminal_without_rich_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich is optional."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream, report = Terminal(), report_of(("a", 0.5))
    show(report, stream)
    assert stream.getvalue() == plain(report)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal], ids=["pipe", "terminal"])
def test_a_table_without_rows_is_its_notes(kind: type[io.StringIO]) -> None:
    """Headings over nothing would only be in the way; why there is nothing must stay."""
    stream = kind()
    show(report_of(), stream)
    text = stream.getvalue()
    assert "model" not in text
    assert text.index("no row") < text.index("n = 10")


def test_a_pipe_gets_plain_text() -> None:
    """What is not a terminal gets lines that `grep` and `cut` can use, of any width."""
    stream, report = io.StringIO(), report_of(("a" * 100, 0.5))
    show(report, stream)
    assert stream.getvalue() == plain(report)
    assert "a" * 100 in stream.getvalue()
