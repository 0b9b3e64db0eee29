"""Writes tables as CSV and JSON files, each whole or not at all.

CSV files begin with comment lines (`# `) that carry title, warnings and notes. Numbers are exported unrounded: shares
and differences of shares as fractions of 1, money in whole nano-dollars, a missing number as an empty cell with its
reason beside it, never as 0.
"""

import csv
import io
import json
import os
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Final, TypeAlias

from analysis.estimates import Estimate
from analysis.frames import Column, Report, Table, Value
from analysis.show import visible

# Spreadsheets run a cell that begins with one of these; readers of CSV take the last one for a comment.
FORMULA_STARTS: Final = frozenset("=+-@#")
PARTS: Final = ("low", "high", "n", "reason")

Json: TypeAlias = "str | int | float | bool | Mapping[str, Json] | Sequence[Json] | None"


class ExportError(Exception):
    """A file cannot be written; the message is one line."""


def export(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `<table>.csv` and `<table>.json` for every table; files of other tables are left alone.

    Raises
    ------
    ExportError
        The folder or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(path for table in report.tables for path in _write_table(table, report.warnings, folder))
    except OSError as error:
        raise ExportError(f"{folder}: cannot be written ({error.strerror or error}); choose another --out") from error


def csv_text(table: Table, warnings: Sequence[str] = ()) -> str:
    """Return a table as CSV; an estimate becomes five columns: value, low, high, n, reason."""
    estimated = {column.name for place, column in enumerate(table.columns) if _holds_estimate(table, place)}
    lines = io.StringIO()
    for comment in (table.title, *(f"warning: {warning}" for warning in warnings), *table.notes):
        lines.write(f"# {visible(comment)}\n")
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([name for column in table.columns for name in _csv_names(column, estimated)])
    for row in table.rows:
        pairs = zip(row, table.columns, strict=True)
        writer.writerow([cell for value, column in pairs for cell in _csv_cells(value, column.name in estimated)])
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


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part.

    Raises
    ------
    OSError
        It cannot be written; no partial file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_table(table: Table, warnings: Sequence[str], folder: Path) -> Iterator[Path]:
    for suffix, text in (("csv", csv_text(table, warnings)), ("json", _dumped(table_json(table, warnings)))):
        path = folder / f"{table.name}.{suffix}"
        write_whole(path, text)
        yield path


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
