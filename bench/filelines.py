"""On which line of a TOML file something stands, for messages to its author. Pure; None where that cannot be told.

Reads headers and assignments as they are written, one to a line; it is no parser of TOML and checks nothing.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

_KEY: Final = r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[A-Za-z0-9_-]+)"
_DOTTED: Final = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER: Final = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT: Final = re.compile(rf"\s*({_DOTTED})\s*=")

Keys = Sequence[str | None]
"""Names from the outermost table to the innermost; None stands for any name."""


class _Entry(NamedTuple):
    """A header or an assignment, and the names that lead to it."""

    line: int
    keys: tuple[str, ...]


def line_of(text: str, keys: Keys, *, value: str | None = None, nth: int = 1) -> int | None:
    """Return the number of the line on which `keys` stands, or on which as many of its first names as are written.

    Args:
        text: the file.
        keys: names of tables, then of a field.
        value: a text in the field's list; then its `nth` line counts, if it is found there.
        nth: 1 is the first occurrence of `value`.
    """
    entries = list(_entries(text))
    best = max(entries, key=lambda entry: _shared(entry.keys, keys), default=None)
    if best is None or not _shared(best.keys, keys):
        return None
    found = None if value is None else _line_of_value(text, entries, best, value, nth)
    return best.line if found is None else found


def _entries(text: str) -> Iterator[_Entry]:
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _names(header[1])
            yield _Entry(number, table)
        elif assignment := _ASSIGNMENT.match(line):
            yield _Entry(number, (*table, *_names(assignment[1])))


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip("\"'") for name in re.findall(_KEY, dotted))


def _shared(written: Sequence[str], wanted: Keys) -> int:
    """Return how many first names are the same; 0 where the entry leads elsewhere."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[1] in (None, pair[0]), zip(written, wanted, strict=False)))
    return shared if shared == min(len(written), len(wanted)) else 0


def _line_of_value(text: str, entries: Sequence[_Entry], at: _Entry, value: str, nth: int) -> int | None:
    end = min((entry.line for entry in entries if entry.line > at.line), default=None)
    quoted = re.compile(rf"([\"']){re.escape(value)}\1")
    left = nth
    for number, line in list(enumerate(text.splitlines(), 1))[at.line - 1 : None if end is None else end - 1]:
        left -= len(quoted.findall(line))
        if left <= 0:
            return number
    return None
