"""Where rows come from: the views of a store, opened read-only, also while a sweep runs.

The only place that queries a store. It reads views, never the tables under them. Rows arrive in chunks of columns, so
memory grows with what the reader keeps and not with the store.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from analysis.database import StoreError, check_views, reading
from analysis.records import SweepInfo

__all__ = ["CHUNK_ROWS", "VIEWS", "Cells", "Source", "StoreError", "StoreSource", "opened", "opened_anywhere"]

CHUNK_ROWS: Final = 32_768
#: Views that tables are made from, and the columns that are read of each.
VIEWS: Final[Mapping[str, tuple[str, ...]]] = {
    "sweeps": ("sweep_id", "sweep", "simulated", "manifest"),
    "models": ("model", "label", "family", "provider", "snapshot", "is_subject", "is_judge"),
    "records": (
        "model", "persona", "persona_group", "task", "sample", "judge", "state", "reason", "labels", "accuracy",
        "claims", "unread", "unread_accuracy", "answer_cut", "response_characters",
    ),
    "audits": (
        "model", "persona", "persona_group", "task", "sample", "state", "reason", "labels", "unread", "answer_cut",
    ),
    "probes": (
        "model", "persona", "persona_group", "sample", "judge", "state", "reason", "labels", "accuracy", "unread",
        "unread_accuracy", "answer_cut",
    ),
    "memories": ("model", "persona", "persona_group", "round", "sample", "prompt", "state", "reason", "inferred"),
    "calls": ("stage", "model", "subject", "persona", "state", "reason", "changes"),
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


class Source(Protocol):
    """Rows of views, wherever they are kept."""

    @property
    def where(self) -> str:
        """The path, for messages."""
        ...

    def sweeps(self) -> Iterable[Cells]:
        """Return sweep_id, sweep, simulated and manifest of every sweep, in order of planning."""
        ...

    def chunks(
        self, view: str, columns: Sequence[str], sweep: SweepInfo, *, rows: int | None = None
    ) -> Iterator[Sequence[Cells]]:
        """Yield the named columns of one sweep's rows, `rows` or `CHUNK_ROWS` at a time; an empty chunk first."""
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

    def chunks(
        self, view: str, columns: Sequence[str], sweep: SweepInfo, *, rows: int | None = None
    ) -> Iterator[Sequence[Cells]]:
        """Yield columns of one sweep's rows."""
        key, value = ("sweep", sweep.name) if view in _NAMED else ("sweep_id", sweep.sweep_id)
        # Names come from this package, never from outside.
        query = f"SELECT {', '.join(columns)} FROM {view} WHERE {key} = ?"  # noqa: S608
        cursor = self._connection.execute(query, (value,))
        # The empty chunk gives every column its shape also when the view has no row.
        yield [()] * len(columns)
        while some := cursor.fetchmany(rows or CHUNK_ROWS):
            yield list(zip(*some, strict=True))

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
        No such file, not a store, a damaged one, or one whose views are newer or older than this program.
    """
    with reading(path) as connection:
        check_views(connection, path, VIEWS)
        yield StoreSource(connection, path)
