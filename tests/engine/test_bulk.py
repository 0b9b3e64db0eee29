"""Rows inserted many at a time are the rows that one at a time would have been."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.bulk import SIZES, Insert

STATEMENT = "INSERT INTO thing (id, word) VALUES (:id, :word) ON CONFLICT (id) DO NOTHING;"


@pytest.fixture
def things() -> Iterator[sqlite3.Connection]:
    """A database with one table."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE thing (id INTEGER PRIMARY KEY, word TEXT NOT NULL) STRICT")
        yield connection


@pytest.mark.parametrize("number", [0, 1, 3, 4, 63, 64, 65, 2 * sum(SIZES) + 7])
def test_any_number_of_rows_is_inserted_in_its_order(things: sqlite3.Connection, number: int) -> None:
    """Whatever sizes of statements it takes."""
    rows = [(each, f"word {each}") for each in range(number)]
    assert Insert(STATEMENT, ("id", "word")).run(things, rows) == number
    assert things.execute("SELECT * FROM thing ORDER BY rowid").fetchall() == rows


def test_only_rows_that_changed_the_table_are_counted(things: sqlite3.Connection) -> None:
    """A row that is there already, or twice among the new ones, is not."""
    insert = Insert(STATEMENT, ("id", "word"))
    insert.run(things, [(5, "first")])
    assert insert.run(things, [*((each, "later") for each in range(20)), (3, "again")]) == 19
    assert things.execute("SELECT word FROM thing WHERE id IN (3, 5) ORDER BY id").fetchall() == [
        ("later",),
        ("first",),
    ]


def test_a_row_of_other_fields_is_refused() -> None:
    """A column can never end up in another's place."""
    with pytest.raises(ValueError, match="a statement takes"):
        Insert(STATEMENT, ("word", "id"))


def test_a_statement_without_a_row_of_values_is_refused() -> None:
    """It could not be given many."""
    with pytest.raises(ValueError, match="no row of values"):
        Insert("INSERT INTO thing SELECT :id, :word", ("id", "word"))
