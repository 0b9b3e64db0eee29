"""Tables that fit their terminal: no figure and no name in them is ever cut, or broken over two lines.

A column that may wrap (its `no_wrap` is left unset) wraps between words only. Where that is not enough, columns are
left out in the order that the table's maker states, and the table says which; where that is not enough either, every
row is told as lines.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED: Final = 200
_UNBOUND: Final = 100_000
_INDENT: Final = "  "
_GAP: Final = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """How a table is shown in so many columns of a terminal.

    Attributes:
        table: the table without the columns that are `left_out`; None where its rows are told as `lines`.
    """

    table: Table | None
    left_out: tuple[str, ...] = ()
    lines: tuple[Text, ...] = ()


def wide_console() -> Console:
    """Return a console that shows text as it is: as wide as the terminal, and wide where there is none.

    COLUMNS says how wide, also for what is piped.
    """
    given = os.environ.get("COLUMNS", "")
    piped = int(given) if given.isdecimal() and int(given) else PIPED
    width = None if sys.stdout.isatty() else piped
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_table(table: Table, *, drop: Sequence[str] = (), console: Console | None = None) -> None:
    """Print a table with whole figures and names, whatever the width.

    Args:
        table: its cells are str or Text.
        drop: heads of columns that may be left out, the first one first.
        console: where; by default a wide one on standard output.
    """
    console = console or wide_console()
    if (title := table.title) is not None:
        console.print(title, style="bold", soft_wrap=True)
    found = fitted(console, table, drop)
    if found.table is not None:
        console.print(found.table)
    for line in found.lines:
        # A word that is longer than the terminal is left to it: a line break put in would be copied with it.
        console.print(
            line,
            soft_wrap=Measurement.get(console, console.options.update_width(_UNBOUND), line).minimum > console.width,
        )
    if found.left_out:
        console.print(f"left out for want of room: {', '.join(found.left_out)}", style="dim", soft_wrap=True)
    if table.caption is not None:
        console.print(table.caption, style="dim", soft_wrap=True)


def fitted(console: Console, table: Table, drop: Sequence[str] = ()) -> Fitted:
    """Return how `table` is shown on `console`; title and caption are the caller's to show."""
    left_out: list[str] = []
    order = [head for head in drop if any(str(column.header) == head for column in table.columns)]
    while True:
        kept = [place for place, column in enumerate(table.columns) if str(column.header) not in left_out]
        if (widths := _widths(console, table, kept)) is not None:
            heads = [str(column.header) for column in table.columns if str(column.header) in left_out]
            return Fitted(table=_rebuilt(table, kept, widths), left_out=tuple(heads))
        if not order:
            return Fitted(table=None, lines=tuple(_told(table, console.width)))
        left_out.append(order.pop(0))


def _widths(console: Console, table: Table, kept: Sequence[int]) -> list[int] | None:
    """Return the widths of the columns that are kept, without padding, or None where they do not fit."""
    spans = [_span(console, table, place) for place in kept]
    widths = [span.maximum for span in spans]
    frame = _frame(console, table, kept, widths)
    excess = sum(widths) + frame - console.width
    while excess > 0:
        # What is widest gives first, a cell at a time, as long as its longest word stays whole.
        able = [place for place, span in enumerate(spans) if widths[place] > span.minimum]
        if not able:
            return None
        widths[max(able, key=lambda place: widths[place])] -= 1
        excess -= 1
    return widths


def _span(console: Console, table: Table, place: int) -> Measurement:
    """Return the least and the most that a column may take: its longest word, and its longest cell."""
    column = table.columns[place]
    cells: list[RenderableType] = [*([column.header] if table.show_header else []), *column.cells]
    options = console.options.update_width(_UNBOUND)
    found = [Measurement.get(console, options, cell) for cell in cells]
    most = max((each.maximum for each in found), default=0)
    return Measurement(most if column.no_wrap else max((each.minimum for each in found), default=0), most)


def _frame(console: Console, table: Table, kept: Sequence[int], widths: Sequence[int]) -> int:
    """Return what borders and padding take."""
    whole = Measurement.get(console, console.options.update_width(_UNBOUND), _rebuilt(table, kept, widths))
    return whole.maximum - sum(widths)


def _rebuilt(table: Table, kept: Sequence[int], widths: Sequence[int]) -> Table:
    """Return the table with these columns alone."""
    new = Table(
        box=table.box, padding=table.padding, show_header=table.show_header, show_edge=table.show_edge,
        pad_edge=table.pad_edge, collapse_padding=table.collapse_padding,
    )  # fmt: skip
    for place, width in zip(kept, widths, strict=True):
        column = table.columns[place]
        new.add_column(column.header, justify=column.justify, style=column.style, no_wrap=column.no_wrap, width=width)
    for cells, row in zip(_cells(table, kept), table.rows, strict=True):
        new.add_row(*cells, end_section=row.end_section, style=row.style)
    return new


def _cells(table: Table, kept: Iterable[int]) -> list[tuple[RenderableType, ...]]:
    return list(zip(*(list(table.columns[place].cells) for place in kept), strict=True))


def _told(table: Table, width: int) -> Iterable[Text]:
    """Yield rows as lines: the first cell, and below it the others that say something, each whole with its head."""
    heads = [str(column.header) if table.show_header else "" for column in table.columns]
    for first, *others in _cells(table, range(len(heads))):
        yield Text(f"{heads[0]} {_plain(first)}".strip(), style="bold")
        said = [(head, text) for head, cell in zip(heads[1:], others, strict=True) if (text := _plain(cell))]
        for line in _packed([f"{head}: {text}" if head else text for head, text in said], width - len(_INDENT)):
            yield Text(f"{_INDENT}{line}")


def _packed(parts: Iterable[str], width: int) -> list[str]:
    """Put parts into lines, as many into each as it takes whole."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + len(_GAP) + cell_len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return lines


def _plain(cell: RenderableType) -> str:
    """Return a cell's text; what is no text, as a bar, says nothing that a figure beside it does not."""
    return cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""
