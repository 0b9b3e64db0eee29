"""Opens stores for reading, and refuses what this program would misread. Knows versions and names of views, no rows.

Every reader of a store in this package comes through here: nothing is ever written, also not beside the file.
"""

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

CACHE_KIB: Final = 65_536
#: The newest schema whose stores this program knows, and the newest version of the views that it reads.
SCHEMA: Final = 3
VIEWS_VERSION: Final = 2
FIRST_VERSION: Final = 1
#: How stores are called, and how many of a folder are named to somebody who gave the folder.
STORES: Final = frozenset({".sqlite", ".sqlite3", ".db"})
MOST_NAMED: Final = 5
_DAMAGED: Final = "is damaged ({}); restore a copy, or recover it with `sqlite3 STORE .recover`"
_NAMES: Final = "SELECT name FROM sqlite_master WHERE type IN ('view', 'table')"


class StoreError(Exception):
    """Results cannot be read; the message is one line that says what, where and how to mend."""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store for reading in one transaction, so that a sweep that is running does not change what is seen.

    Raises
    ------
    StoreError
        No such file, no SQLite file, a damaged one, or one that a newer program has written; also when the damage
        shows only later, while the caller reads.
    """
    if path.is_dir():
        raise StoreError(folder_said(path))
    if not path.is_file():
        raise StoreError(f"{path}: no such store; give the path of a sweep's SQLite file")
    with explained(path), closing(_connected(path)) as connection:
        # Whole pages of bodies are read once; more cache than this saves nothing.
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("BEGIN")
        _check_versions(connection, path)
        yield connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite says about a file into one line.

    Raises
    ------
    StoreError
        SQLite reported an error.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # What SQLite says of damage may hold pieces of it that are no text.
        raise StoreError(f"{path}: {_what_and_mend(error)}") from error


def folder_said(folder: Path) -> str:
    """Return a line that says that a folder is no store, and which files in it may be meant."""
    try:
        names = [each.name for each in sorted(folder.iterdir()) if each.suffix in STORES and each.is_file()]
    except OSError:
        names = []
    more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} more"
    found = f": {', '.join(names[:MOST_NAMED])}{more}" if names else ""
    return f"{folder}: this is a folder; give the store's file{found}"


def names_of(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all views and tables."""
    return {str(name) for (name,) in connection.execute(_NAMES)}


def check_views(connection: sqlite3.Connection, path: Path, wanted: Mapping[str, Collection[str]]) -> None:
    """Refuse a store that lacks a view or a column.

    Parameters
    ----------
    connection, path
        Of the store.
    wanted : mapping
        The columns that are read, by view.

    Raises
    ------
    StoreError
        It holds nothing, is no store, or its views are older than this program.
    """
    found = names_of(connection)
    if not found:
        raise StoreError(f"{path}: is empty, no sweep has been planned in it; `mirage run SWEEP.toml` first")
    if missing := sorted(wanted.keys() - found):
        raise StoreError(f"{path}: has no view {missing[0]}; give a store that `mirage run` has made")
    for view, columns in wanted.items():
        known = {column for _, column, *_ in connection.execute(f"PRAGMA table_info({view})")}
        if lacking := set(columns) - known:
            raise StoreError(
                f"{path}: its views are older than this program (no {view}.{min(lacking)});"
                " `mirage run` or `mirage reparse` renews them"
            )


def _connected(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads.

    SQLite makes a file beside the store even to read it. Where that is not allowed, as on a medium that nobody can
    write, nobody can be writing the store either, and it is read as a file that does not change.
    """
    try:
        return _tried(path, "mode=ro")
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _tried(path, "mode=ro&immutable=1")


def _tried(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _check_versions(connection: sqlite3.Connection, path: Path) -> None:
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    views = FIRST_VERSION
    if "views_version" in names_of(connection):
        (views,) = connection.execute("SELECT version FROM views_version").fetchone()
    for what, found, known in (("schema", schema, SCHEMA), ("views", views, VIEWS_VERSION)):
        if not isinstance(found, int) or found > known:
            raise StoreError(
                f"{path}: was written by a newer program ({what} {found}, this one knows {known}); upgrade MirageBench"
            )


def _what_and_mend(error: sqlite3.Error | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return _DAMAGED.format("a text in it is none")
    why = " ".join(str(error).split())
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return f"is not a store ({why}); give the path of a sweep's SQLite file"
    if code == sqlite3.SQLITE_CORRUPT:
        return _DAMAGED.format(why)
    return f"cannot be read ({why}); give the path of a sweep's SQLite file"
