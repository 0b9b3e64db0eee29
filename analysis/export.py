"""Writes tables as CSV, JSON, LaTeX and Parquet files, each whole or not at all.

CSV files begin with comment lines (`# `) that carry title, warnings and notes. Readers often skip these, so every row
of a simulated sweep says that it is one, too. Numbers are exported unrounded: shares and differences of shares as
fractions of 1, money in whole nano-dollars, a missing number as an empty cell with its reason beside it, never as 0.
"""

import csv
import io
import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Final, TypeAlias

from analysis.estimates import Estimate
from analysis.files import write_whole
from analysis.frames import Column, Report, Table, Value
from analysis.latex import latex_text
from analysis.parquet import SUFFIX, arrow, write_columns
from analysis.show import visible

__all__ = ["ExportError", "csv_text", "export", "neutral", "report_json", "table_json", "write_whole"]

# Spreadsheets run a cell that begins with one of these; readers of CSV take the last one for a comment.
FORMULA_STARTS: Final = frozenset("=+-@#")
#: The last column of a simulated sweep's tables; others have none.
MARK: Final = "simulated"
PARTS: Final = ("low", "high", "n", "reason")

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"


class ExportError(Exception):
    """A file cannot be written; the message is one line."""


def export(report: Report, folder: Path, *, parquet: bool = False) -> tuple[Path, ...]:
    """Write `<table>.csv`, `.json` and `.tex` for every table; files of other tables are left alone.

    Parameters
    ----------
    report : Report
    folder : Path
        Made if it is not there.
    parquet : bool
        Write `<table>.parquet` too, which needs pyarrow.

    Raises
    ------
    ExportError
        The folder or a file cannot be written.
    StoreError
        Parquet is asked for and there is no pyarrow.
    """
    if parquet:
        arrow("pyarrow.parquet")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [path for table in report.tables for path in _write_table(table, report.warnings, folder)]
        if parquet:
            written += [_write_parquet(table, report.warnings, folder) for table in report.tables]
        return tuple(written)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written ({error.strerror or error}); choose another --out") from error


def csv_text(table: Table, warnings: Sequence[str] = ()) -> str:
    """Return a table as CSV; an estimate becomes five columns: value, low, high, n, reason."""
    estimated = {column.name for place, column in enumerate(table.columns) if _holds_estimate(table, place)}
    lines = io.StringIO()
    for comment in (table.title, *(f"warning: {warning}" for warning in warnings), *table.notes):
        lines.write(f"# {visible(comment)}\n")
    writer = csv.writer(lines, lineterminator="\n")
    # Tasks and persona groups name columns, and they are foreign texts like any other.
    names = [neutral(name) for column in table.columns for name in _csv_names(column, estimated)]
    writer.writerow([*names, *([MARK] if table.simulated else [])])
    for row in table.rows:
        pairs = zip(row, table.columns, strict=True)
        cells = [cell for value, column in pairs for cell in _csv_cells(value, column.name in estimated)]
        writer.writerow([*cells, *(["1"] if table.simulated else [])])
    return lines.getvalue()


def table_json(table: Table, warnings: Sequence[str] = ()) -> Mapping[str, Json]:
    """Return a table as JSON values; a number that is missing is null."""
    return {
        "name": table.name,
        "title": table.title,
        "simulated": table.simulated,
        "warnings": list(warnings),
        "notes": list(table.notes),
        "columns": [{"name": column.name, "kind": column.kind, "unit": column.unit} for column in table.columns],
        "rows": [{name: _json_value(value) for name, value in row.items()} for row in table.named_rows()],
    }


def report_json(report: Report) -> str:
    """Return all tables as one JSON document."""
    document: Mapping[str, Json] = {
        "sweep": report.sweep,
        "simulated": report.simulated,
        "warnings": list(report.warnings),
        "tables": [table_json(table, report.warnings) for table in report.tables],
    }
    return _dumped(document)


def neutral(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, no reader for a comment and no terminal for a command.

    Examples
    --------
    >>> neutral("=1+1")
    "'=1+1"
    """
    # Some spreadsheets trim white space first, and take full-width signs for the plain ones.
    first = unicodedata.normalize("NFKC", text.strip()[:1])
    return f"'{visible(text)}" if first in FORMULA_STARTS else visible(text)


def _write_table(table: Table, warnings: Sequence[str], folder: Path) -> Iterator[Path]:
    texts = {
        "csv": csv_text(table, warnings),
        "json": _dumped(table_json(table, warnings)),
        "tex": latex_text(table, warnings),
    }
    for suffix, text in texts.items():
        path = folder / f"{table.name}.{suffix}"
        write_whole(path, text)
        yield path


def _write_parquet(table: Table, warnings: Sequence[str], folder: Path) -> Path:
    """Write a table's cells as typed columns, an estimate as five; title, warnings and notes are metadata."""
    path = folder / f"{table.name}{SUFFIX}"
    columns: dict[str, list[object]] = {}
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        names = _csv_names(column, {column.name} if _holds_estimate(table, place) else ())
        parts = [_parts(cell)[: len(names)] for cell in cells]
        columns |= {name: [part[at] for part in parts] for at, name in enumerate(names)}
    if table.simulated:
        columns[MARK] = [1] * len(table.rows)
    about = {"title": table.title, "warnings": "\n".join(warnings), "notes": "\n".join(table.notes)}
    write_columns(path, columns, about)
    return path


def _parts(cell: Value) -> tuple[object, ...]:
    if not isinstance(cell, Estimate):
        return (_json_value(cell), None, None, None, None)
    low, high = (None, None) if cell.interval is None else (cell.interval.low, cell.interval.high)
    return (_json_value(cell.value), low, high, cell.n, cell.reason)


def _holds_estimate(table: Table, place: int) -> bool:
    return any(isinstance(row[place], Estimate) for row in table.rows)


def _csv_names(column: Column, estimated: Collection[str]) -> list[str]:
    parts = PARTS if column.name in estimated else ()
    return [column.name, *(f"{column.name}_{part}" for part in parts)]


def _csv_cells(value: Value, estimated: bool) -> list[str]:
    if isinstance(value, Estimate):
        ends = ("", "") if value.interval is None else (repr(value.interval.low), repr(value.interval.high))
        return [_number(value.value), *ends, str(value.n), neutral(value.reason)]
    first = neutral(value) if isinstance(value, str) else "" if value is None else _number(value)
    return [first, *([""] * len(PARTS) if estimated else [])]


def _number(number: float) -> str:
    return "" if isnan(number) else repr(number)


def _json_value(value: Value) -> Json:
    if isinstance(value, Estimate):
        return _json_estimate(value)
    return None if isinstance(value, float) and isnan(value) else value


def _json_estimate(estimate: Estimate) -> Json:
    interval = estimate.interval
    return {
        "value": _json_value(estimate.value),
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "level": None if interval is None else interval.level,
        "interval": "" if interval is None else interval.method,
        "resamples": 0 if interval is None else interval.resamples,
        "dropped": 0 if interval is None else interval.dropped,
        "n": estimate.n,
        "standard_error": _json_value(estimate.standard_error),
        "method": estimate.method,
        "seed": estimate.seed,
        "reason": estimate.reason,
    }


def _dumped(document: Json) -> str:
    return json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n"
