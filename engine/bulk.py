"""INSERT statements for many rows at once, and the checks that a statement's columns and a row's fields agree.

SQLite's thread gives the interpreter away for every step of a statement and waits for it afterwards, behind an event
loop that may be busy: a statement a row would make it wait as often as there are rows. Must not know: tables.
"""

import re
import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Final

# Rows of one statement, largest first.
SIZES: Final = (64, 16, 4, 1)
_PARAMETER: Final = re.compile(r":([a-z_]+)")
_ROW: Final = re.compile(r"VALUES\s*(\([?,\s]+\))")


class Insert:
    """A statement with one `VALUES (...)`, for any number of rows."""

    def __init__(self, statement: str, fields: Sequence[str]) -> None:
        """Prepare the statement of one row, whose named parameters are `fields`.

        Raises:
            ValueError: the parameters are not exactly `fields`, in that order, or there is no row of them.
        """
        text = positional(statement, fields)
        row = _ROW.search(text)
        if row is None:
            raise ValueError(f"no row of values in {statement!r}")
        head, tail = text[: row.start(1)], text[row.end(1) :]
        self._sql = {size: head + ", ".join([row[1]] * size) + tail for size in SIZES}

    def run(self, connection: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> int:
        """Insert `rows` in their order and return how many rows of the table changed."""
        changed = start = 0
        for size in SIZES:
            while len(rows) - start >= size:
                values = list(chain.from_iterable(rows[start : start + size]))
                changed += connection.execute(self._sql[size], values).rowcount
                start += size
        return changed


def positional(statement: str, fields: Sequence[str]) -> str:
    """Return `statement` with `?` for its named parameters.

    Raises:
        ValueError: the parameters are not exactly `fields`, in that order.
    """
    names = _PARAMETER.findall(statement)
    if names != list(fields):
        raise ValueError(f"a statement takes {names}, its row holds {list(fields)}")
    return _PARAMETER.sub("?", statement)
