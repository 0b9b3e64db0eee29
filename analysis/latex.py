r"""Tables as LaTeX: booktabs, everything escaped, notes below. Needs `\usepackage{booktabs}` and UTF-8 input.

Names and reasons are foreign text: nothing in them acts. This module computes nothing and writes no file.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from analysis.frames import Kind, Table
from analysis.show import NOTHING, cell_text, footnotes, headings, visible

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
        '"': r"\textquotedbl{}",
        # After a line break these two would be taken for its arguments.
        "[": "{[}",
        "*": "{*}",
        "\u00b1": r"$\pm$",
        "\u00b2": r"\textsuperscript{2}",
    }
)
_MINUS: Final = re.compile(r"(?<![\w.])-(?=\d)")


def latex_text(table: Table, warnings: Sequence[str] = ()) -> str:
    """Return a table as a LaTeX float with caption, label and notes."""
    return "".join(f"{line}\n" for line in _lines(table, warnings))


def escaped(text: str) -> str:
    r"""Return a text in which no character means anything to LaTeX.

    Examples
    --------
    >>> print(escaped("50% of a_b & c"))
    50\% of a\_b \& c
    """
    return visible(text).translate(_ESCAPES)


def _lines(table: Table, warnings: Sequence[str]) -> Iterator[str]:
    kinds = [column.kind for column in table.columns]
    yield r"\begin{table}"
    yield r"  \centering"
    yield rf"  \caption{{{escaped(table.title)}}}"
    yield rf"  \label{{tab:{table.name}}}"
    yield rf"  \begin{{tabular}}{{{''.join('l' if kind is Kind.TEXT else 'r' for kind in kinds)}}}"
    yield r"    \toprule"
    yield _row([escaped(heading) for heading in headings(table)])
    yield r"    \midrule"
    for row in table.rows:
        cells = [cell_text(value, column) for value, column in zip(row, table.columns, strict=True)]
        yield _row([_cell(cell, kind) for cell, kind in zip(cells, kinds, strict=True)])
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    notes = [*(f"Warning: {warning}" for warning in warnings), *footnotes(table)]
    if notes:
        yield r"  \par\smallskip\begin{minipage}{\linewidth}\footnotesize"
        yield from (rf"    {escaped(note)}\par" for note in notes)
        yield r"  \end{minipage}"
    yield r"\end{table}"


def _row(cells: Sequence[str]) -> str:
    return rf"    {' & '.join(cells)} \\"


def _cell(cell: str, kind: Kind) -> str:
    if cell == NOTHING:
        return "--"
    return escaped(cell) if kind is Kind.TEXT else _MINUS.sub("$-$", escaped(cell))
