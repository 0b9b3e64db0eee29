"""Puts the rows of a results file in the order of the batch's lines, which is that of the store's pages.

Providers bring rows in any order, and a store that is written here and there writes most of its pages again for every
chunk. The order is all that is made here: what a row says, and whose it is, others find out. Must not know: stores.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import Final

from engine.batch.provider import Marker

SUFFIX: Final = ".ordered"
LONGEST_LINE: Final = 64 << 20
# Ids have at most so many digits after their head.
_DIGITS: Final = 12
_LAST: Final = (1 << 62) - 1
_RUN: Final = 4_096


def in_order(path: Path, marker: Marker) -> Path:
    """Return a file with the lines of `path` by the number in their ids, those without one last.

    It is `path` itself where that has this order already, or where there is no room for a copy.
    """
    numbers, ends = array("q"), array("q", [0])
    head, ordered = f'"{marker.line_id(0).removesuffix("0")}'.encode(), True
    for line in _lines(path):
        number = _number(line, head)
        ordered = ordered and (not numbers or numbers[-1] <= number)
        numbers.append(number)
        ends.append(ends[-1] + len(line))
    if ordered:
        return path
    target = path.with_name(path.name + SUFFIX)
    try:
        _copy(path, target, _sorted(numbers), ends)
    except OSError:
        target.unlink(missing_ok=True)
        return path
    return target


def _sorted(numbers: "array[int]") -> Iterator[int]:
    """Yield places by rising number. Sorted in runs: one long sort would not let other threads in."""
    places = range(len(numbers))
    runs = [sorted(places[start : start + _RUN], key=numbers.__getitem__) for start in range(0, len(places), _RUN)]
    return merge(*runs, key=numbers.__getitem__)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            yield line


def _number(line: bytes, head: bytes) -> int:
    found = line.find(head)
    if found < 0:
        return _LAST
    start = found + len(head)
    digits = line[start : start + _DIGITS].partition(b'"')[0]
    return int(digits) if digits.isdigit() else _LAST


def _copy(path: Path, target: Path, order: Iterable[int], ends: "array[int]") -> None:
    source = os.open(path, os.O_RDONLY)
    try:
        with target.open("wb") as file:
            for place in order:
                line = os.pread(source, ends[place + 1] - ends[place], ends[place])
                file.write(line if line.endswith(b"\n") else line + b"\n")
    finally:
        os.close(source)
