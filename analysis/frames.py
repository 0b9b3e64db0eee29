"""Tables as frozen records, the one shape that the terminal, the exports and the report share.

A cell is a text, a whole number, a number, an `Estimate`, or None where there is nothing to say. This module computes
nothing and knows no table by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from analysis.estimates import Estimate

Value: TypeAlias = str | int | float | Estimate | None
Row: TypeAlias = tuple[Value, ...]


class Kind(StrEnum):
    """What the numbers of a column are; decides how they are printed, never how they are exported."""

    TEXT = "text"
    COUNT = "count"
    SHARE = "share"
    POINTS = "points"
    NUMBER = "number"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Parameters
    ----------
    name : str
        Its name in exports.
    kind : Kind
        Text is the only kind that may hold a model's or a provider's words.
    unit : str
        Of the exported number: "share" and "points" are fractions of 1, "USD" is exact.
    label : str
        Its heading in print; `name` with spaces when empty.
    brief : bool
        Print half the interval's width instead of both ends, to keep a wide table readable.
    digits : int
        Decimals of a number in print; other kinds have theirs.
    """

    name: str
    kind: Kind
    unit: str = ""
    label: str = ""
    brief: bool = False
    digits: int = 2

    @property
    def heading(self) -> str:
        """The heading in print."""
        return self.label or self.name.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of results.

    Parameters
    ----------
    name : str
        Its file name in exports.
    title : str
        One line; says SIMULATED where the answers are.
    columns : tuple of Column
    rows : tuple of Row
        Each as long as `columns`.
    notes : tuple of str
        What it rests on: n, what is missing and why, how intervals were made.
    simulated : bool
        Some answers came from a simulator.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    simulated: bool = False

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row does not have {len(self.columns)} cells")

    def column(self, name: str) -> tuple[Value, ...]:
        """Return the cells of one column."""
        place = [column.name for column in self.columns].index(name)
        return tuple(row[place] for row in self.rows)

    def row(self, first: str) -> dict[str, Value]:
        """Return the row whose first cell is `first`, as cells by column name."""
        return next(row for row in self.named_rows() if row[self.columns[0].name] == first)

    def named_rows(self) -> Iterator[dict[str, Value]]:
        """Yield every row as cells by column name."""
        names = [column.name for column in self.columns]
        for row in self.rows:
            yield dict(zip(names, row, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All tables of one sweep and the warnings that must stand above each of them."""

    sweep: str
    simulated: bool
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return one table."""
        return next(table for table in self.tables if table.name == name)
