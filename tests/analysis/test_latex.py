"""LaTeX: everything escaped, booktabs rules, as many cells as columns."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.context import Settings, prepare
from analysis.estimates import Estimate, Interval
from analysis.frames import Column, Kind, Table, Value
from analysis.latex import escaped, latex_text
from analysis.load import load
from analysis.report.testing import Design, build_store
from analysis.tables import report_of

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
        pytest.param('"a" `b\' --', r"{\ttfamily\char34}a{\ttfamily\char34} {`}b{'} -{}-", id="quotes and dashes"),
        pytest.param(
            "\u6f22 \U0001f600 \u0105",
            r"\textbackslash{}u6f22 \textbackslash{}U0001f600 "
            r"\textbackslash{}u0105",
            id="other scripts",
        ),
        pytest.param("caf\u00e9 \u20ac", "caf\u00e9 \u20ac", id="letters with accents"),
        pytest.param("\u00b1 R\u00b2", r"$\pm$ R\textsuperscript{2}", id="our own signs"),
    ],
)
def test_nothing_in_a_text_acts(text: str, written: str) -> None:
    """Every character that means something to LaTeX is written as itself."""
    assert escaped(text) == written


WRITTEN = (
    r"\\text[a-z]+\{\}", r"\\[{}$&#%_]", r"\{[\[*'`]\}", r"\$\\pm\$", r"\\textsuperscript\{2\}",
    r"\{\\ttfamily\\char34\}", r"-\{\}",
)  # fmt: skip


def unescaped(line: str) -> str:
    """Take out of a line all that `escaped` may write, so that what is left must not act."""
    pieces = (
        r"""\\text[a-z]+\{\}|\\[{}$&#%_]|\{[\[*'`]\}|\$\\pm\$|\\textsuperscript\{2\}|\{\\ttfamily\\char34\}|-\{\}"""
    )
    return re.sub(pieces, "", line)


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


def wide_table() -> Table:
    """Many rows and columns of hostile text."""
    columns = tuple(Column(f"c{place}", Kind.TEXT, label=HOSTILE[place % len(HOSTILE)]) for place in range(12))
    rows = tuple(tuple(HOSTILE[(row + place) % len(HOSTILE)] for place in range(12)) for row in range(80))
    return Table(name="wide", title=HOSTILE[0], columns=columns, rows=rows, notes=HOSTILE)


HOSTILE = (
    r"\input{/etc/passwd} \write18{id} \end{tabular} \\[1cm] \hline",
    '50% of a_b & c # $x^2$ ~ { } | < > [ ] * "quoted" `tick\' -- --- ?` !`',
    "\U0001f600 \u6f22\u5b57 \u03a9\u2248\u00e7 \u00e9 \u00df \u00bd \u00d7 \u2013 \u201c \u2026 \u202e \x1b \u00ab",
    "%\n\\par\t\x00",
)


def test_wide_and_long_tables_go_on_in_blocks_and_floats() -> None:
    """Every row has all of its columns, each block begins with the first, and environments are balanced."""
    text = latex_text(wide_table(), HOSTILE)
    for environment in ("table", "tabular", "minipage"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") > 0
    assert text.count("(continued)") == text.count(r"\begin{table}") - 1 > 0
    assert text.count(r"\label{") == text.count(r"\caption{") == 1
    kinds = re.findall(r"\\begin\{tabular\}\{(l+)\}", text)
    per_float = kinds[: len(kinds) // text.count(r"\begin{table}")]
    assert sum(len(each) - 1 for each in per_float) == 11


def test_an_empty_table_says_so() -> None:
    """Headings over nothing would look like a mistake."""
    assert "no row" in latex_text(table_of())


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: it is not needed, only its opinion")
def test_a_real_tex_sets_what_is_exported(tmp_path: Path) -> None:
    """A plain article with the two packages named on top sets hostile and ordinary tables without one complaint."""
    store = build_store(tmp_path / "store.sqlite", Design(models=dict.fromkeys(HOSTILE, HOSTILE[1]), name=HOSTILE[0]))
    context = prepare(load(store), Settings(resamples=100))
    report = report_of(context)
    body = "".join(f"{latex_text(table, report.warnings)}\\clearpage\n" for table in (wide_table(), *report.tables))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}\n{body}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    if "booktabs.sty' not found" in done.stdout:
        pytest.skip("this TeX has no booktabs")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert "Missing character" not in (tmp_path / "all.log").read_text(encoding="utf-8", errors="replace")
