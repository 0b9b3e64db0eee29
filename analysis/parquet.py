"""Parquet files: writes rows and tables, and reads exported rows back as if from a store.

Needs pyarrow, which nothing else here does; without it every entry raises one line that says so. Knows no statistic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from analysis.database import folder_said
from analysis.files import replaced
from analysis.records import SweepInfo
from analysis.sources import CHUNK_ROWS, VIEWS, Cells, StoreError

SUFFIX: Final = ".parquet"
ROWS_FOLDER: Final = "rows"
#: Columns of rows that hold whole numbers; all others hold text.
INTEGERS: Final = frozenset(
    {
        "sweep_id", "simulated", "created_ms", "is_subject", "is_judge", "sample", "round", "unread",
        "unread_accuracy", "answer_cut", "task_cell_id", "judge_cell_id", "audit_cell_id", "cell_id",
        "response_characters", "observed_count", "attempts", "input_tokens", "cached_tokens", "output_tokens",
        "reasoning_tokens", "cost_nano", "latency_ms", "settled_ms", "request_id", "completions", "reserved_nano",
        "tokens", "assumed", "assumed_nano", "place",
    }
)  # fmt: skip
_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_LEDGER: Final = ("attempts", "cost_nano", "assumed", "assumed_nano")


class FolderSource:
    """Rows that were exported as Parquet, one file a view, of one sweep."""

    def __init__(self, folder: Path) -> None:
        inner = folder / ROWS_FOLDER
        self._folder = inner if (inner / f"sweeps{SUFFIX}").is_file() else folder
        missing = [view for view in VIEWS if not self._path(view).is_file()]
        if len(missing) == len(VIEWS):
            raise StoreError(folder_said(folder))
        if missing:
            raise StoreError(
                f"{folder}: a folder without {missing[0]}{SUFFIX}; give a store, or what `--rows parquet` has written"
            )
        self._parquet = arrow("pyarrow.parquet")

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    def sweeps(self) -> Iterable[Cells]:
        """Return the one sweep."""
        return self._rows("sweeps", VIEWS["sweeps"])

    def chunks(
        self, view: str, columns: Sequence[str], sweep: SweepInfo, *, rows: int | None = None
    ) -> Iterator[Sequence[Cells]]:
        """Yield columns of a view's rows, an empty chunk first; all rows are of the one sweep."""
        del sweep
        yield [()] * len(columns)
        with _explained(self._path(view)):
            file = self._parquet.ParquetFile(self._path(view))
            if lacking := set(columns) - set(file.schema_arrow.names):
                raise StoreError(f"{self._path(view)}: has no column {min(lacking)}; export it anew")
            for batch in file.iter_batches(batch_size=rows or CHUNK_ROWS, columns=list(columns)):
                yield [batch.column(name).to_pylist() for name in columns]

    def spending(self, sweep: SweepInfo) -> Iterable[Cells]:
        """Return totals by alias and stage."""
        del sweep
        counts = {"requests": "count_all", "answered": "finish_count", **{name: f"{name}_sum" for name in _TOKENS}}
        asked = self._grouped("requests", [("finish", "count"), *((name, "sum") for name in _TOKENS)], counts)
        paid = self._grouped("spending", [(name, "sum") for name in _LEDGER], {n: f"{n}_sum" for n in _LEDGER})
        return [
            (*key, *totals.values(), *paid.get(key, dict.fromkeys(_LEDGER)).values())
            for key, totals in sorted(asked.items())
        ]

    def _path(self, view: str) -> Path:
        return self._folder / f"{view}{SUFFIX}"

    def _rows(self, view: str, columns: Sequence[str]) -> list[Cells]:
        with _explained(self._path(view)):
            table = self._parquet.read_table(self._path(view), columns=list(columns))
            return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))

    def _grouped(
        self, view: str, sums: Sequence[tuple[str, str]], names: Mapping[str, str]
    ) -> dict[tuple[str, str], dict[str, int | None]]:
        with _explained(self._path(view)):
            table = self._parquet.read_table(self._path(view), columns=["alias", "stage", *(name for name, _ in sums)])
            found = table.group_by(["alias", "stage"]).aggregate([([], "count_all"), *sums])
            rows = found.to_pylist()
        return {(row["alias"], row["stage"]): {name: row[column] for name, column in names.items()} for row in rows}


def write_rows(path: Path, columns: Sequence[str], chunks: Iterable[Sequence[Cells]]) -> None:
    """Write rows as they come, to a file that is there whole or not at all.

    Raises
    ------
    StoreError
        There is no pyarrow.
    OSError
        The file cannot be written.
    """
    pyarrow, parquet = arrow("pyarrow"), arrow("pyarrow.parquet")
    kinds = [(name, pyarrow.int64() if name in INTEGERS else pyarrow.string()) for name in columns]
    schema = pyarrow.schema(kinds)
    with replaced(path) as temporary, parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for chunk in chunks:
            arrays = [
                pyarrow.array(_texts(cells, name), kind) for cells, (name, kind) in zip(chunk, kinds, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def write_columns(path: Path, columns: Mapping[str, Sequence[object]], about: Mapping[str, str]) -> None:
    """Write one table, with texts about it in the file's own metadata; errors are those of `write_rows`."""
    pyarrow, parquet = arrow("pyarrow"), arrow("pyarrow.parquet")
    table = pyarrow.table({name: pyarrow.array(list(cells)) for name, cells in columns.items()})
    with replaced(path) as temporary:
        parquet.write_table(table.replace_schema_metadata(dict(about)), temporary, compression="zstd")


def arrow(name: str) -> ModuleType:
    """Return a module of pyarrow.

    Raises
    ------
    StoreError
        It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise StoreError("Parquet needs pyarrow: pip install pyarrow") from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what pyarrow says about a bad file into one line."""
    invalid = arrow("pyarrow").ArrowException
    try:
        yield
    except (OSError, invalid) as error:
        why = " ".join(str(error).split())
        raise StoreError(f"{path}: cannot be read as Parquet ({why}); export it anew") from error


def _texts(cells: Cells, name: str) -> Cells:
    return cells if name in INTEGERS else [None if cell is None else str(cell) for cell in cells]
