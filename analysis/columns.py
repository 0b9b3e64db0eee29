"""Turns columns of SQL rows into arrays, a chunk at a time. Knows no view and no table by name."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analysis.accumulation import normalised
from analysis.records import ABSENT, ACCURACIES, LABELS, NOT_GIVEN, Counts, Ints

SEPARATOR: Final = "\n"
# A claim's label and accuracy in full, as readings spell them, in the order of their letters.
LABEL_WORDS: Final = ("GROUNDED", "INFERRED_REASONABLE", "INFERRED_STEREOTYPE", "FABRICATED")
ACCURACY_WORDS: Final = ("CORRECT", "INCORRECT", "PARTIALLY_CORRECT", "UNVERIFIABLE")
NO_ACCURACY: Final = ACCURACIES[NOT_GIVEN]
# One cell of the count table per (label, accuracy), with a last row and column for letters that mean nothing.
_LABEL_CELLS: Final = len(LABELS) + 1
_ACCURACY_CELLS: Final = len(ACCURACIES) + 1


class Codes(dict[object, int]):
    """Numbers texts in order of arrival; `None` is the empty text."""

    def __missing__(self, key: object) -> int:
        """Number a text that is new."""
        code = len(self)
        self[key] = code
        return code

    def encode(self, column: Sequence[object]) -> Ints:
        """Return the numbers of a column of texts."""
        return np.fromiter(map(self.__getitem__, column), np.int32, len(column))

    def names(self) -> tuple[str, ...]:
        """Return the texts in the order of their numbers."""
        return tuple(map(_text, self))


def longs(column: Sequence[object]) -> Ints:
    """Return a column of integers as int64; what is absent or no number becomes -1."""
    plain = set(map(type, column)) <= {int}
    return np.fromiter(column if plain else map(_integer, column), np.int64, len(column))


def whole(column: Sequence[object]) -> Ints:
    """Return a column of small integers as int32; what is absent or no number becomes -1."""
    return longs(column).astype(np.int32)


def counts(column: Sequence[object]) -> Ints:
    """Return a column of counts as int32; what is absent counts nothing."""
    return np.maximum(whole(column), 0)


def count_letters(labels: Sequence[object], accuracy: Sequence[object]) -> Ints:
    """Count claims by label and accuracy.

    Parameters
    ----------
    labels : sequence of str or None
        One letter of `LABELS` per claim; None or empty for no claims.
    accuracy : sequence of str or None
        One letter of `ACCURACIES` per claim; None or empty means not given.

    Returns
    -------
    ndarray of int32, shape (n, 4, 5)
        Counts; -1 throughout where a row is not understood: a letter that means nothing, or accuracies that do not
        match the labels one to one.
    """
    first, lengths = _letters(labels)
    second, given = _letters(accuracy)
    alike = lengths == given
    checks = np.full(len(first), ord(NO_ACCURACY), np.uint8)
    checks[np.repeat(alike, lengths)] = second[np.repeat(alike, given)]
    cell = np.repeat(np.arange(len(lengths)) * (_LABEL_CELLS * _ACCURACY_CELLS), lengths)
    cell += _LABEL_OF[first] * _ACCURACY_CELLS + _ACCURACY_OF[checks]
    shape = (len(lengths), _LABEL_CELLS, _ACCURACY_CELLS)
    table = np.bincount(cell, minlength=len(lengths) * _LABEL_CELLS * _ACCURACY_CELLS).reshape(shape)
    mismatched = ~alike & (given > 0)
    broken = mismatched | (table[:, -1].sum(axis=1) > 0) | (table[:, :, -1].sum(axis=1) > 0)
    crossed = table[:, :-1, :-1].astype(np.int32)
    crossed[broken] = ABSENT
    return crossed


def count_labels(labels: Sequence[object]) -> Ints:
    """Count claims by label alone: shape (n, 4), -1 throughout where a row is not understood."""
    crossed = count_letters(labels, [None] * len(labels))
    return crossed[:, :, NOT_GIVEN]


def attribute_lists(column: Sequence[object]) -> list[tuple[str, ...] | None]:
    """Read a column of JSON arrays of attributes, normalised so that an attribute is found again in a later memory.

    Attributes are texts. None stands for what is not such an array, a missing value included.
    """
    return [_attributes(value) for value in column]


def claim_lists(column: Sequence[object]) -> list[list[tuple[str, int]]]:
    """Read a column of JSON arrays of claims as text, normalised, and position of its label, `ABSENT` if unknown.

    What is no such array has no claims.
    """
    return [list(_claims(value)) for value in column]


def texts_of(value: object) -> tuple[str, ...]:
    """Return the items of a decoded JSON array as texts; what is no array has none."""
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _attributes(value: object) -> tuple[str, ...] | None:
    try:
        items: object = json.loads(_text(value))
    except ValueError:
        return None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        return None
    return tuple(map(normalised, items))


def _claims(value: object) -> Iterator[tuple[str, int]]:
    try:
        items: object = json.loads(_text(value))
    except ValueError:
        return
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(text := item.get("text"), str):
            yield normalised(text), _WORD_PLACES.get(str(item.get("label")), ABSENT)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else ABSENT


def _letters(column: Sequence[object]) -> tuple[NDArray[np.uint8], Counts]:
    """Return the letters of all cells, end to end, and how many each cell has."""
    if not column:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    lines = ["" if cell is None else cell for cell in column]
    if set(map(type, lines)) != {str}:
        lines = list(map(_text, lines))
    joined = SEPARATOR.join(map(str, lines))
    if joined.count(SEPARATOR) >= len(lines):
        joined = SEPARATOR.join(str(line).replace(SEPARATOR, "?") for line in lines)
    # One byte per character: what is not ASCII is no letter of ours anyway.
    letters = np.frombuffer(f"{joined}{SEPARATOR}".encode("ascii", "replace"), np.uint8)
    ends = letters == ord(SEPARATOR)
    return letters[~ends], np.diff(np.flatnonzero(ends), prepend=-1) - 1


def _positions(letters: str) -> Counts:
    table = np.full(256, len(letters), np.int64)
    table[np.frombuffer(letters.encode(), np.uint8)] = np.arange(len(letters))
    return table


_WORD_PLACES: Final = {word: place for place, word in enumerate(LABEL_WORDS)}
_LABEL_OF: Final = _positions(LABELS)
_ACCURACY_OF: Final = _positions(ACCURACIES)
