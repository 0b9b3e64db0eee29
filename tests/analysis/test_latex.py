"""LaTeX: everything escaped, booktabs rules, as many cells as columns."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates import Estimate, Interval
from analysis.frames import Column, Kind, Table, Value
from analysis.latex import escaped, latex_text

COLUMNS = (Column("model", Kind.TEXT), Column("oi", Kind.SHARE, "share", "OI"))


def table_of(*rows: tuple[Value, ...], title: str = "A table", notes: tuple[str, ...] = ()) -> Table:
    """A table of a text and a share."""
    return Table(name="t", title=title, columns=COLUMNS, rows=rows, notes=notes)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("50% of a_b & #1", r"50\% of a\_b \& \#1", id="specials"),
        pytest.param(r"\input{x}", r"\textbackslash{}input\{x\}", id="command"),
        pytest.param("$x^2$ ~", r"\$x\textasciicircum{}2\$ \textasciitilde{}", id="mathematics"),
        pytest.param("[3]*", r"{[}3]{*}", id="arguments of a line break"),
        pytest.param("a\nb\x1b", r"a\textbackslash{}nb\textbackslash{}x1b", id="controls"),
    ],
)
def test_nothing_in_a_text_acts(text: str, written: str) -> None:
    """Every character that means something to LaTeX is written as itself."""
    assert escaped(text) == written


def unescaped(line: str) -> str:
    """Take out of a line all that `escaped` may write, so that what is left must not act."""
    return re.sub(r"\\text[a-z]+\{\}|\\[{}$&#%_]|\{\[\}|\{\*\}|\$\\pm\$|\\textsuperscript\{2\}", "", line)


@given(st.text())
def test_any_text_stays_inert(text: str) -> None:
    """What remains beside escapes is no special character, on one line."""
    assert not set(unescaped(escaped(text))) & set("\\{}$&#%_~^\n\r")


@given(st.text(max_size=20))
def test_a_row_keeps_its_cells(name: str) -> None:
    """A hostile name neither adds a cell nor ends the row."""
    lines = latex_text(table_of((name, 0.5))).splitlines()
    (row,) = [line for line in lines if line.endswith(r" & 50.0 \\")]
    assert unescaped(row).count("&") == 1


def test_the_float_has_caption_label_rules_and_notes() -> None:
    """It can be input as it is; warnings come first among the notes."""
    text = latex_text(table_of(("m", 0.5), title="SIMULATED: 5% more", notes=("n = 10",)), ("the judge is a toy",))
    for part in (
        r"\caption{SIMULATED: 5\% more}",
        r"\label{tab:t}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"\bottomrule",
    ):
        assert part in text
    assert text.index("Warning: the judge is a toy") < text.index("n = 10")
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_numbers_look_like_numbers() -> None:
    """A minus is a minus, an interval keeps its brackets, and what is missing is a dash."""
    interval = Interval(low=-0.5, high=0.25, method="m")
    table = Table(
        name="t",
        title="t",
        columns=(Column("model", Kind.TEXT), Column("delta", Kind.POINTS)),
        rows=(("a-1", Estimate(value=-0.125, n=1, interval=interval, method="m")), ("b", None)),
    )
    text = latex_text(table)
    assert r"a-1 & $-$12.5 {[}$-$50.0, +25.0] \\" in text
    assert r"b & -- \\" in text
