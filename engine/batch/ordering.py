"""Reads results files line by line, in the order of the batch's lines, which is that of the store's pages.

Providers bring rows in any order, and a store that is written here and there writes most of its pages again for every
chunk. The order is all that is made here: what a row says, and whose it is, others find out. A file is hostile text of
any length: lines are bounded, and what is held in memory is two numbers for each line. Must not know: stores.
"""

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.provider import Marker

LONGEST_LINE: Final = 64 << 20
BUFFER: Final = 1 << 17


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends, blank ones left out; one that is too long comes in pieces."""
    return (line for line in _pieces(path) if not line.isspace())


def in_order(path: Path, marker: Marker, count: int) -> Iterator[bytes]:
    """Yield the lines of a file by the number in their ids, then those without one and those that repeat one.

    `count` is how many lines the batch has; a number that is none of theirs is nobody's.
    """
    places = _find(path, marker, count)
    if places is None:
        yield from lines_of(path)
        return
    source = os.open(path, os.O_RDONLY)
    try:
        for starts, sizes in ((places.starts, places.sizes), (places.other_starts, places.other_sizes)):
            for start, size in zip(starts, sizes, strict=True):
                if size:
                    yield os.pread(source, size, start)
    finally:
        os.close(source)


class _Places(NamedTuple):
    """Where the lines are in the file: those of the batch by their number (size 0: there is none), and all others."""

    starts: "array[int]"
    sizes: "array[int]"
    other_starts: "array[int]"
    other_sizes: "array[int]"


def _find(path: Path, marker: Marker, count: int) -> _Places | None:
    """Return the places of all lines; None for a file that has its order already."""
    none = array("q", bytes(8 * count))
    places = _Places(none, none[:], array("q"), array("q"))
    starts, sizes, *_ = places
    find = re.compile(b'"%s([0-9]{1,12})"' % re.escape(marker.line_head.encode())).search
    start, last, ordered = 0, -1, True
    for line in _pieces(path):
        found, size = find(line), len(line)
        number = int(found[1]) if found else count
        if number < count and not sizes[number]:
            starts[number], sizes[number] = start, size
            ordered, last = ordered and number > last, number
        elif not line.isspace():
            places.other_starts.append(start)
            places.other_sizes.append(size)
            ordered = ordered and (number >= count or number == last)
        start += size
    return None if ordered else places


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=BUFFER) as file:
        while line := file.readline(LONGEST_LINE):
            yield line
