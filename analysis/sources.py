"""Where rows come from: the views of a store, opened read-only, also while a sweep runs.

The only place that queries a store. It reads views, never the tables under them. Rows arrive in chunks of columns, so
memory grows with what the reader keeps and not with the store.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from analysis.records import SweepInfo

CHUNK_ROWS: Final = 32_768
CACHE_KIB: Final = 65_536
#: Views that tables are made from, and the columns that are read of each.
VIEWS: Final[Mapping[str, tuple[str, ...]]] = {
    "sweeps": ("sweep_id", "sweep", "simulated", "manifest"),
    "models": ("model", "label", "family", "provider", "snapshot", "is_subject", "is_judge"),
    "records": (
        "model", "persona", "persona_group", "task", "sample", "judge", "state", "reason", "labels", "accuracy",
        "claims", "unread", "unread_accuracy", "response_characters",
    ),
    "audits": ("model", "persona", "persona_group", "task", "sample", "state", "reason", "labels", "unread"),
    "probes": (
        "model", "persona", "persona_group", "sample", "judge", "state", "reason", "labels", "accuracy", "unread",
        "unread_accuracy",
    ),
    "memories": ("model", "persona", "persona_group", "round", "sample", "prompt", "state", "reason", "inferred"),
    "calls": ("stage", "model", "subject", "state", "reason", "changes"),
    "requests": (
        "sweep", "alias", "stage", "finish", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens",
    ),
    "spending": ("sweep", "alias", "stage", "attempts", "cost_nano", "assumed", "assumed_nano"),
}  # fmt: skip

# A request that answers several cells is paid for once, so totals come from requests and not from calls.
_SPENDING: Final = """
    SELECT r.*, p.attempts, p.cost_nano, p.assumed, p.assumed_nano
    FROM (SELECT alias, stage, count(*), count(finish), sum(input_tokens), sum(cached_tokens), sum(output_tokens),
                 sum(reasoning_tokens) FROM requests WHERE sweep = :sweep GROUP BY alias, stage) r
    LEFT JOIN (SELECT alias, stage, sum(attempts) AS attempts, sum(cost_nano) AS cost_nano, sum(assumed) AS assumed,
                      sum(assumed_nano) AS assumed_nano FROM spending WHERE sweep = :sweep GROUP BY alias, stage) p
    ON p.alias = r.alias AND p.stage = r.stage
    ORDER BY r.alias, r.stage
"""

#: Cells of a row or of a column, as SQLite or Parquet give them.
Cells: TypeAlias = Sequence[Any]
# Views that name their sweep; the others number it.
_NAMED: Final = frozenset({"requests", "spending"})


class StoreError(Exception):
    """Results cannot be read; the message is one line that says what, where and how to mend."""


class Source(Protocol):
    """Rows of views, wherever they are kept."""

    @property
    def where(self) -> str:
        """The path, for messages."""
        ...

    def sweeps(self) -> Iterable[Cells]:
        """Return sweep_id, sweep, simulated and manifest of every sweep, in order of planning."""
        ...

    def chunks(self, view: str, columns: Sequence[str], sweep: SweepInfo) -> Iterator[Sequence[Cells]]:
        """Yield the named columns of one sweep's rows, some rows at a time; an empty chunk first."""
        ...

    def spending(self, sweep: SweepInfo) -> Iterable[Cells]:
        """Return alias, stage and totals of one sweep by alias and stage, in the order of `Spend`'s fields."""
        ...


class StoreSource:
    """The views of a SQLite store."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @property
    def where(self) -> str:
        """The store's path."""
        return str(self._path)

    def sweeps(self) -> Iterable[Cells]:
        """Return every sweep."""
        return self._connection.execute("SELECT sweep_id, sweep, simulated, manifest FROM sweeps ORDER BY sweep_id")

    def chunks(self, view: str, columns: Sequence[str], sweep: SweepInfo) -> Iterator[Sequence[Cells]]:
        """Yield columns of one sweep's rows."""
        key, value = ("sweep", sweep.name) if view in _NAMED else ("sweep_id", sweep.sweep_id)
        # Names come from this package, never from outside.
        query = f"SELECT {', '.join(columns)} FROM {view} WHERE {key} = ?"  # noqa: S608
        cursor = self._connection.execute(query, (value,))
        # The empty chunk gives every column its shape also when the view has no row.
        yield [()] * len(columns)
        while rows := cursor.fetchmany(CHUNK_ROWS):
            yield list(zip(*rows, strict=True))

    def spending(self, sweep: SweepInfo) -> Iterable[Cells]:
        """Return totals by alias and stage."""
        return self._connection.execute(_SPENDING, {"sweep": sweep.name})


@contextmanager
def opened_anywhere(path: Path) -> Iterator[Source]:
    """Open a store or a folder of exported Parquet files for reading.

    Raises
    ------
    StoreError
        It cannot be read.
    """
    if path.is_dir():
        from analysis.parquet import FolderSource  # noqa: PLC0415 - only folders need pyarrow

        yield FolderSource(path)
    else:
        with opened(path) as source:
            yield source


@contextmanager
def opened(path: Path) -> Iterator[StoreSource]:
    """Open a store for reading in one transaction, so that a sweep that is running does not change what is seen.

    Raises
    ------
    StoreError
        No such file, not a store, or one whose views are older than this program.
    """
    if not path.is_file():
        raise StoreError(f"{path}: no such store; give the path of a sweep's SQLite file")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            # Whole pages of bodies are read once; more cache than this saves nothing.
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute("BEGIN")
            _check_views(connection, path)
            yield StoreSource(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        why = " ".join(str(error).split())
        raise StoreError(f"{path}: cannot be read ({why}); give the path of a sweep's SQLite file") from error


def _check_views(connection: sqlite3.Connection, path: Path) -> None:
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'table')")}
    missing = VIEWS.keys() - found
    if missing:
        raise StoreError(f"{path}: has no view {', '.join(sorted(missing))}; give a store that `mirage run` has made")
    for view, columns in VIEWS.items():
        known = {column for _, column, *_ in connection.execute(f"PRAGMA table_info({view})")}
        if lacking := set(columns) - known:
            name = f"{view}.{min(lacking)}"
            raise StoreError(
                f"{path}: its views are older than this program (no {name}); `mirage run` its sweep file renews them"
            )
