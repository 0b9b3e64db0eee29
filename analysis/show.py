"""Prints tables: with rich on a terminal that has it, as plain text everywhere else.

Names and reasons may come from models and providers, so no control character and no markup in them takes effect.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from math import isnan
from typing import Final, Literal, TextIO

from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Report, Table, Value
from analysis.words import plural

MAX_CHARACTERS: Final = 120
WIDEST: Final = 48
GAP: Final = 3
BORDER: Final = 4
BRIEF: Final = "±: half the width of the interval; both its ends are in the exported files"
NOTHING: Final = "-"
EMPTY: Final = "no row"
UNKNOWN: Final = "n/a"
NANO: Final = 1_000_000_000
_SUFFIX: Final = {Kind.SHARE: " %", Kind.POINTS: " pp"}


def show(report: Report, stream: TextIO) -> None:
    """Print warnings and tables; a terminal gets rich's tables if rich is installed."""
    if not (stream.isatty() and _show_rich(report, stream)):
        stream.write(plain(report))


def plain(report: Report) -> str:
    """Return the report as plain text."""
    head = [f"warning: {visible(warning)}" for warning in report.warnings]
    return "".join(_lines_of(head)) + "".join(f"\n{plain_table(table)}" for table in report.tables)


def plain_table(table: Table) -> str:
    """Return one table as plain text, with its notes below; a table without a row is its notes alone."""
    if not table.rows:
        return "".join(_lines_of([visible(table.title), *(f"  {note}" for note in (EMPTY, *footnotes(table)))]))
    cells = [headings(table), *([cell_text(*pair) for pair in _pairs(table, row)] for row in table.rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * width for width in widths]
    body = [_line(row, widths, table.columns) for row in (cells[0], rule, *cells[1:])]
    return "".join(_lines_of([visible(table.title), *body, *(f"  {note}" for note in footnotes(table))]))


def headings(table: Table) -> list[str]:
    """Return the columns' headings, with the unit that is printed."""
    return [inert(column.heading) + _SUFFIX.get(column.kind, "") for column in table.columns]


def footnotes(table: Table) -> list[str]:
    """Return the table's notes, and why cells without a number or an interval have none."""
    estimates = [value for row in table.rows for value in row if isinstance(value, Estimate)]
    absent = Counter(estimate.reason for estimate in estimates if isnan(estimate.value))
    bare = Counter(estimate.reason for estimate in estimates if not isnan(estimate.value) and estimate.reason)
    return [
        *map(visible, table.notes),
        *([BRIEF] if _is_brief(table) else []),
        *(f"{UNKNOWN} in {plural(count, 'cells')}: {inert(reason)}" for reason, count in sorted(absent.items())),
        *(f"in {plural(count, 'cells')}: {inert(reason)}" for reason, count in sorted(bare.items())),
    ]


def column_blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Split a table's columns into blocks that fit into `room` characters; each begins with the first column.

    Examples
    --------
    >>> column_blocks([10, 8, 8, 8], 32)
    [[0, 1, 2], [0, 3]]
    """
    blocks = [[0]]
    for place in range(1, len(widths)):
        taken = sum(widths[at] + GAP for at in blocks[-1])
        if taken + widths[place] > room and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(place)
    return blocks


def cell_text(value: Value, column: Column) -> str:
    """Return a cell as printed: shares in percent, differences in percentage points, money in dollars.

    Examples
    --------
    >>> cell_text(0.416, Column("oi", Kind.SHARE))
    '41.6'
    >>> cell_text(-0.062, Column("delta", Kind.POINTS))
    '-6.2'
    """
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, Estimate):
        return _estimate_text(value, column)
    return _number_text(value, column)


def inert(text: str) -> str:
    """Return a text fit for a terminal: of bounded length, and nothing in it acts."""
    return visible(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}...")


def visible(text: str) -> str:
    r"""Return a text in which control and formatting characters are visible escapes.

    Examples
    --------
    >>> print(visible("a\x1b[31mb"))
    a\x1b[31mb
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _estimate_text(estimate: Estimate, column: Column) -> str:
    if isnan(estimate.value):
        return UNKNOWN
    middle = _number_text(estimate.value, column)
    interval = estimate.interval
    if interval is None:
        return middle
    if column.brief:
        half = _number_text((interval.high - interval.low) / 2, column).lstrip("+")
        return f"{middle} ±{half}"
    return f"{middle} [{_number_text(interval.low, column)}, {_number_text(interval.high, column)}]"


def _number_text(number: float, column: Column) -> str:
    if isnan(number):
        return UNKNOWN
    if column.kind is Kind.SHARE:
        return f"{100 * number:.1f}"
    if column.kind is Kind.POINTS:
        return f"{100 * number:+.1f}"
    if column.kind is Kind.MONEY:
        return _dollars(int(number))
    return f"{number:,}" if isinstance(number, int) else f"{number:,.{column.digits}f}"


def _dollars(nano: int) -> str:
    whole, rest = divmod(nano, NANO)
    return f"${whole:,}.{f'{rest:09d}'.rstrip('0'):0<2}"


def _is_brief(table: Table) -> bool:
    return any(
        column.brief and isinstance(value, Estimate) and value.interval is not None
        for row in table.rows
        for value, column in _pairs(table, row)
    )


def _pairs(table: Table, row: Sequence[Value]) -> Iterable[tuple[Value, Column]]:
    return zip(row, table.columns, strict=True)


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = []
    for cell, width, column in zip(cells, widths, columns, strict=True):
        gap = " " * (width - _width(cell))
        padded.append(cell + gap if column.kind is Kind.TEXT else gap + cell)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    marks = sum(unicodedata.combining(character) > 0 for character in text)
    return len(text) + wide - marks


def _lines_of(lines: Iterable[str]) -> list[str]:
    return [f"{line}\n" for line in lines]


def _show_rich(report: Report, stream: TextIO) -> bool:
    """Print with rich; return False where rich is not installed."""
    try:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.console import Console  # noqa: PLC0415 - optional at run time
        from rich.table import Table as RichTable  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    console = Console(file=stream)
    # Only Text objects reach rich: it never parses markup out of them.
    for warning in report.warnings:
        console.print(Text(f"warning: {visible(warning)}", style="bold yellow"))
    for table in report.tables:
        rows = [headings(table), *([cell_text(*pair) for pair in _pairs(table, row)] for row in table.rows)]
        widths = [min(max(map(_width, column)), WIDEST) for column in zip(*rows, strict=True)]
        console.print(Text(visible(table.title), style="bold"))
        for block in column_blocks(widths, console.width - BORDER) if table.rows else ():
            grid = RichTable(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
            for place in block:
                justify: Literal["left", "right"] = "left" if table.columns[place].kind is Kind.TEXT else "right"
                grid.add_column(Text(rows[0][place]), justify=justify, overflow="fold", width=widths[place])
            for row in rows[1:]:
                grid.add_row(*(Text(row[place]) for place in block))
            console.print(grid)
        for note in footnotes(table) if table.rows else (EMPTY, *footnotes(table)):
            console.print(Text(f"  {note}", style="dim"))
        console.print()
    return True
