"""CSV and JSON files: whole, exact, and no program in any cell."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates import Estimate, Interval, missing
from analysis.export import ExportError, csv_text, export, neutral, report_json, table_json, write_whole
from analysis.frames import Column, Kind, Report, Table, Value

INTERVAL = Interval(low=-0.1, high=0.3, method="percentile, persona bootstrap", resamples=100)
COLUMNS = (Column("model", Kind.TEXT), Column("claims", Kind.COUNT, "claims"), Column("delta", Kind.POINTS, "share"))


def table_with(*rows: tuple[Value, ...], notes: tuple[str, ...] = ("n = 10",)) -> Table:
    """A table of a text, a count and a difference."""
    return Table(name="t", title="SIMULATED: a table", columns=COLUMNS, rows=rows, notes=notes, simulated=True)


def data_lines(text: str) -> list[list[str]]:
    """Parse a CSV file without its comments."""
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("# ")]
    return list(csv.reader(io.StringIO("".join(lines))))


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n@x", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x", "# x"],
)
def test_formulas_in_text_are_neutralised(text: str) -> None:
    """A text cell that a spreadsheet would run begins with an apostrophe."""
    header, row = data_lines(csv_text(table_with((text, 1, 0.5))))
    assert header[0] == "model"
    assert row[0].startswith("'")


@pytest.mark.parametrize("text", ["Qwen3-8B", "gpt-4o", "a=b", "", "5 + 3"])
def test_harmless_text_stays_as_it_is(text: str) -> None:
    """Signs inside a name are no formula."""
    assert neutral(text) == text


def test_formulas_in_headings_are_neutralised() -> None:
    """Columns may be named after a task or a group of personas."""
    columns = (Column("model", Kind.TEXT), Column("=1+1\n", Kind.SHARE))
    value = Estimate(value=0.5, n=12, interval=INTERVAL, method="rate")
    table = Table(name="t", title="t", columns=columns, rows=(("m", value),), notes=())
    header, _ = data_lines(csv_text(table))
    assert header[:3] == ["model", "'=1+1\\n", "'=1+1\\n_low"]


def test_negative_numbers_stay_numbers() -> None:
    """Only text is neutralised; the parts of an estimate are numbers or empty."""
    value = Estimate(value=-0.05, n=12, interval=INTERVAL, method="gap")
    header, row = data_lines(csv_text(table_with(("m", 1, value))))
    assert header == ["model", "claims", "delta", "delta_low", "delta_high", "delta_n", "delta_reason", "simulated"]
    assert row == ["m", "1", "-0.05", "-0.1", "0.3", "12", "", "1"]


def test_a_missing_number_is_an_empty_cell_with_its_reason() -> None:
    """Never 0, in either format."""
    table = table_with(("m", None, missing("no claims", method="gap")))
    assert data_lines(csv_text(table))[1] == ["m", "", "", "", "", "0", "no claims", "1"]
    (row,) = json.loads(json.dumps(table_json(table)))["rows"]
    assert row["claims"] is None
    assert (row["delta"]["value"], row["delta"]["low"], row["delta"]["reason"]) == (None, None, "no claims")


def test_a_plain_number_beside_estimates_keeps_its_columns() -> None:
    """A mean without an interval leaves the four other columns empty."""
    value = Estimate(value=0.5, n=12, interval=INTERVAL, method="gap")
    rows = data_lines(csv_text(table_with(("m", 1, value), ("mean", None, 0.25))))
    assert rows[2] == ["mean", "", "0.25", "", "", "", "", "1"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_exactly(number: float) -> None:
    """Exports are not rounded."""
    assert float(data_lines(csv_text(table_with(("m", 1, number))))[1][2]) == number


def test_title_warnings_and_notes_stand_on_top() -> None:
    """One comment line each, however many lines the text has."""
    text = csv_text(table_with(("m", 1, 0.5), notes=("two\nlines",)), warnings=("the judge is a toy",))
    assert text.splitlines()[:3] == ["# SIMULATED: a table", "# warning: the judge is a toy", "# two\\nlines"]


@given(st.text(max_size=30))
def test_any_name_makes_a_readable_file(name: str) -> None:
    """Quotes, line breaks and controls neither break the rows nor reach a terminal."""
    text = csv_text(table_with((name, 1, 0.5), (name, 2, 0.5)))
    assert [row[1] for row in data_lines(text)] == ["claims", "1", "2"]
    assert text.replace("\n", "").isprintable()


def test_both_formats_are_written_for_every_table(tmp_path: Path) -> None:
    """The folder is made, and both say that the numbers are simulated and what to beware of."""
    report = Report(sweep="s", simulated=True, warnings=("beware",), tables=(table_with(("m", 1, 0.5)),))
    paths = export(report, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["t.csv", "t.json", "t.tex"]
    document = json.loads(paths[1].read_text(encoding="utf-8"))
    assert (document["simulated"], document["warnings"]) == (True, ["beware"])
    assert document["title"].startswith("SIMULATED")
    first, second, *_ = paths[0].read_text(encoding="utf-8").splitlines()
    assert (first, second) == ("# SIMULATED: a table", "# warning: beware")
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["t.csv", "t.json", "t.tex"]


def test_the_report_is_one_json_document() -> None:
    """It holds no NaN, which JSON does not know."""
    report = Report(sweep="s", simulated=True, warnings=(), tables=(table_with(("m", 1, float("nan"))),))
    assert json.loads(report_json(report))["tables"][0]["rows"] == [{"model": "m", "claims": 1, "delta": None}]


def test_a_file_that_cannot_be_replaced_is_left_whole(tmp_path: Path) -> None:
    """A failure leaves what was there and no partial file."""
    target = tmp_path / "t.csv"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_an_old_file_is_replaced_whole(tmp_path: Path) -> None:
    """The shorter new text leaves no tail of the old one."""
    target = tmp_path / "t.csv"
    write_whole(target, "a longer text\n")
    write_whole(target, "short\n")
    assert target.read_bytes() == b"short\n"


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    """The error names the folder and the way out."""
    blocked = tmp_path / "file"
    blocked.touch()
    report = Report(sweep="s", simulated=False, warnings=(), tables=())
    with pytest.raises(ExportError, match="choose another --out") as caught:
        export(report, blocked)
    assert "\n" not in str(caught.value)
