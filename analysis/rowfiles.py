"""Writes a sweep's rows, one file a view and one for claims, as CSV or Parquet; memory stays flat in their number.

Every file says in every row whether the answers are simulated, so that none can be taken for a real one when it lies
alone. Texts are a model's own: in CSV they are made harmless to spreadsheets and terminals, in Parquet they stay as
they are.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from analysis.columns import ACCURACY_WORDS, LABEL_WORDS
from analysis.export import MARK, ExportError, neutral
from analysis.files import replaced
from analysis.manifest import find_sweep
from analysis.parquet import ROWS_FOLDER, arrow, write_rows
from analysis.records import ACCURACIES, LABELS, SweepInfo
from analysis.sources import Cells, Source, opened_anywhere

Format: TypeAlias = Literal["csv", "parquet"]
#: Rows held at a time: with their texts they take some ten megabytes, with their claims some more.
EXPORT_ROWS: Final = 2048
FORMATS: Final[tuple[Format, ...]] = ("csv", "parquet")

_PLACE: Final = ("sweep_id", "model", "persona", "persona_group", "task", "sample")
#: Every view that is written, and its columns.
ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "sweeps": ("sweep_id", "sweep", "simulated", "manifest", "created_ms"),
    "models": ("sweep_id", "sweep", "model", "label", "family", "provider", "snapshot", "is_subject", "is_judge"),
    "records": (
        *_PLACE, "judge", "state", "reason", "labels", "accuracy", "claims", "unread", "unread_accuracy",
        "answer_cut", "task_cell_id", "judge_cell_id", "response_characters",
    ),
    "audits": (
        *_PLACE, "state", "reason", "labels", "claims", "unread", "answer_cut", "task_cell_id", "audit_cell_id",
    ),
    "probes": (
        "sweep_id", "model", "persona", "persona_group", "sample", "judge", "state", "reason", "labels", "accuracy",
        "claims", "unread", "unread_accuracy", "answer_cut", "inferences",
    ),
    "memories": (
        "sweep_id", "model", "persona", "persona_group", "round", "sample", "prompt", "state", "reason", "inferred",
        "observed_count",
    ),
    "calls": (
        "sweep_id", "stage", "model", "subject", "provider", "snapshot", "persona", "task", "round", "sample", "judge",
        "state", "reason", "error_class", "attempts", "finish", "input_tokens", "cached_tokens", "output_tokens",
        "reasoning_tokens", "cost_nano", "latency_ms", "changes",
    ),
    "requests": (
        "request_id", "key", "sweep", "provider", "model", "alias", "stage", "state", "attempts", "error_class",
        "error", "finish", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_nano",
        "latency_ms", "settled_ms", "text",
    ),
    "spending": (
        "sweep", "provider", "alias", "stage", "attempts", "completions", "cost_nano", "reserved_nano", "tokens",
        "assumed", "assumed_nano",
    ),
}  # fmt: skip
#: Whose claims are in which view.
LABELLERS: Final[Mapping[str, str]] = {"records": "judge", "audits": "self", "probes": "probe judge"}
CLAIMS: Final = (
    "labeller", "model", "persona", "persona_group", "task", "sample", "judge", "place", "text", "label", "accuracy",
    "reasoning",
)  # fmt: skip
_OWN: Final = ("text", "label", "accuracy", "reasoning")
_LETTERS: Final[Mapping[object, str]] = {
    **dict(zip(LABEL_WORDS, LABELS, strict=True)),
    **dict(zip(ACCURACY_WORDS, ACCURACIES, strict=False)),
}
_ZSTD: Final = b"\x28\xb5\x2f\xfd"

Chunks: TypeAlias = Iterable[Sequence[Cells]]


def export_rows(store: Path, folder: Path, formats: Sequence[Format], sweep: str = "") -> tuple[Path, ...]:
    """Write the rows of one sweep into `folder`/rows.

    Parameters
    ----------
    store : Path
        A store, or a folder of exported Parquet files.
    folder : Path
        Made if it is not there.
    formats : sequence of {"csv", "parquet"}
    sweep : str
        As in `load`.

    Raises
    ------
    StoreError
        The store cannot be read, or there is no pyarrow for Parquet.
    ExportError
        The folder or a file cannot be written.
    """
    target = folder / ROWS_FOLDER
    if "parquet" in formats:
        arrow("pyarrow.parquet")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with opened_anywhere(store) as source:
            info = find_sweep(source, sweep)
            return tuple(path for kind in formats for path in _written(source, info, target, kind))
    except OSError as error:
        raise ExportError(f"{target}: cannot be written ({error.strerror or error}); choose another --out") from error


def _written(source: Source, sweep: SweepInfo, folder: Path, kind: Format) -> Iterator[Path]:
    write = _WRITERS[kind]
    for view, columns in ROWS.items():
        path = folder / f"{view}.{kind}"
        rows = _readable(source.chunks(view, columns, sweep, rows=EXPORT_ROWS), columns)
        write(path, *_marked(columns, rows, simulated=sweep.simulated))
        yield path
    path = folder / f"claims.{kind}"
    write(path, *_marked(CLAIMS, _claims(source, sweep), simulated=sweep.simulated))
    yield path


def _marked(columns: Sequence[str], chunks: Chunks, *, simulated: bool) -> tuple[Sequence[str], Chunks]:
    """Return columns and rows that say whether the sweep is simulated, last where the view does not say it itself."""
    kept = [place for place, name in enumerate(columns) if name != MARK]
    names = [*(columns[place] for place in kept), MARK]
    return names, ([*(chunk[place] for place in kept), [int(simulated)] * len(chunk[0])] for chunk in chunks)


def _claims(source: Source, sweep: SweepInfo) -> Iterator[Sequence[Cells]]:
    """Yield one row per claim: who labelled it, where it stands, and what the reading says of it."""
    for view, labeller in LABELLERS.items():
        places = [name for name in CLAIMS[1:7] if name in ROWS[view]]
        for chunk in source.chunks(view, [*places, "claims"], sweep, rows=EXPORT_ROWS):
            rows = chain.from_iterable(
                _claim_rows(labeller, dict(zip(places, row[:-1], strict=True)), row[-1])
                for row in zip(*chunk, strict=True)
            )
            yield list(zip(*rows, strict=True)) or [()] * len(CLAIMS)


def _claim_rows(labeller: str, place: Mapping[str, Any], claims: object) -> Iterator[tuple[Any, ...]]:
    head = (labeller, *(place.get(name) for name in CLAIMS[1:7]))
    for number, claim in enumerate(json.loads(str(claims)) if claims else ()):
        text, label, accuracy, reasoning = (claim.get(name) for name in _OWN)
        yield (*head, number, text, _LETTERS.get(label, label), _LETTERS.get(accuracy, accuracy), reasoning)


def _write_csv(path: Path, columns: Sequence[str], chunks: Chunks) -> None:
    """Write rows as CSV; a text that a spreadsheet would run begins with an apostrophe."""
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for chunk in chunks:
            writer.writerows([_harmless(cell) for cell in row] for row in zip(*chunk, strict=True))


def _readable(chunks: Chunks, columns: Sequence[str]) -> Iterator[Sequence[Cells]]:
    """Unpack texts that a store keeps compressed."""
    for chunk in chunks:
        yield [
            [_unpacked(cell) for cell in cells] if name == "text" else cells
            for name, cells in zip(columns, chunk, strict=True)
        ]


def _unpacked(cell: Any) -> str | None:
    if not isinstance(cell, bytes):
        return None if cell is None else str(cell)
    if cell.startswith(_ZSTD):
        try:
            from zstandard import ZstdDecompressor  # noqa: PLC0415 - only answers need it
        except ImportError as error:
            raise ExportError("answers in this store are compressed: install zstandard to export them") from error
        cell = ZstdDecompressor().decompressobj().decompress(cell)
    return bytes(cell).decode("utf-8", "replace")


def _harmless(cell: object) -> object:
    return neutral(cell) if isinstance(cell, str) else cell


_WRITERS: Final[Mapping[Format, Callable[[Path, Sequence[str], Chunks], None]]] = {
    "csv": _write_csv,
    "parquet": write_rows,
}
