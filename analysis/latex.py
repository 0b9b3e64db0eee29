r"""Tables as LaTeX: booktabs, everything escaped, notes below. Needs `\usepackage{booktabs,graphicx}`, nothing else.

Names and reasons are foreign text: nothing in them acts, and characters that a plain LaTeX document is not set up for
(other scripts, emoji) are written as escapes, as a terminal would show controls. Wide tables are split into blocks of
columns and scaled to the line, long ones go on in further floats. This module computes nothing and writes no file.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from analysis.frames import Kind, Table
from analysis.show import EMPTY, NOTHING, cell_text, column_blocks, footnotes, headings, visible

_ESCAPES: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # The typewriter face has this one in every encoding.
        '"': r"{\ttfamily\char34}",
        "'": "{'}",
        "`": "{`}",
        # After a line break these two would be taken for its arguments.
        "[": "{[}",
        "*": "{*}",
        "\u00b1": r"$\pm$",
        "\u00b2": r"\textsuperscript{2}",
    }
)
#: Beyond ASCII, what every LaTeX of the last years knows in its plainest encoding.
_SET_UP: Final = frozenset(map(chr, range(0xA1, 0x17F))) - frozenset("«»\xadÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų") | frozenset(
    "\u2010\u2011\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u20ac\u2122"
)
#: Characters of a line that fit without being scaled down too far to be read, and rows of a float.
ROOM: Final = 104
MOST_ROWS: Final = 36
FEWEST_ROWS: Final = 8
# As wide as it is, but never wider than the line.
_FIT: Final = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
# Two of them would be drawn as one longer dash.
_DASHES: Final = re.compile("-(?=-)")
_MINUS: Final = re.compile(r"(?<![\w.])-(?=\d)")


def latex_text(table: Table, warnings: Sequence[str] = ()) -> str:
    """Return a table as a LaTeX float with caption, label and notes; as several where it has many rows."""
    return "".join(f"{line}\n" for line in _lines(table, warnings))


def escaped(text: str) -> str:
    r"""Return a text in which no character means anything to LaTeX.

    Examples
    --------
    >>> print(escaped("50% of a_b & c"))
    50\% of a\_b \& c
    """
    known = "".join(map(_set_up, visible(text)))
    return _DASHES.sub("-{}", known.translate(_ESCAPES))


def _lines(table: Table, warnings: Sequence[str]) -> Iterator[str]:
    cells = [
        headings(table),
        *([cell_text(*pair) for pair in zip(row, table.columns, strict=True)] for row in table.rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    blocks = column_blocks(widths, ROOM)
    together = max(MOST_ROWS // len(blocks), FEWEST_ROWS)
    starts = range(0, max(len(table.rows), 1), together)
    for start in starts:
        yield r"\begin{table}"
        yield r"  \centering"
        if start == 0:
            yield rf"  \caption{{{escaped(table.title)}}}"
            yield rf"  \label{{tab:{table.name}}}"
        else:
            yield rf"  {escaped(table.title)} (continued)\par\medskip"
        rows = [cells[0], *cells[1 + start : 1 + start + together]]
        for place, block in enumerate(blocks):
            yield from [r"  \par\medskip"] if place else []
            yield from _tabular([table.columns[at].kind for at in block], [[row[at] for at in block] for row in rows])
        if start == starts[-1]:
            yield from _notes(table, warnings)
        yield r"\end{table}"


def _tabular(kinds: Sequence[Kind], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of some columns; the first row is the headings."""
    yield f"  {_FIT}"
    yield rf"  \begin{{tabular}}{{{''.join('l' if kind is Kind.TEXT else 'r' for kind in kinds)}}}"
    yield r"    \toprule"
    yield _row([escaped(heading) for heading in rows[0]])
    yield r"    \midrule"
    yield from (_row([_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows[1:])
    yield r"    \bottomrule"
    yield r"  \end{tabular}}"


def _notes(table: Table, warnings: Sequence[str]) -> Iterator[str]:
    empty = [] if table.rows else [EMPTY]
    notes = [*(f"Warning: {warning}" for warning in warnings), *empty, *footnotes(table)]
    if notes:
        yield r"  \par\smallskip\begin{minipage}{\linewidth}\footnotesize"
        yield from (rf"    {escaped(note)}\par" for note in notes)
        yield r"  \end{minipage}"


def _set_up(character: str) -> str:
    if character.isascii() or character in _SET_UP:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _row(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(cells)} \\"


def _cell(cell: str, kind: Kind) -> str:
    if cell == NOTHING:
        return "--"
    return escaped(cell) if kind is Kind.TEXT else _MINUS.sub("$-$", escaped(cell))
