"""Rows as CSV and Parquet, and Parquet read back as if it were the store."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from analysis.context import Settings
from analysis.export import ExportError, export, report_json
from analysis.frames import Report
from analysis.load import StoreError, load
from analysis.rowfiles import CLAIMS, EXPORT_ROWS, ROWS, export_rows
from analysis.tables import make_report
from analysis.testing import StoreBuilder, claims_json

QUICK = Settings(resamples=200, seed=1)
HOSTILE = '=cmd|"/c calc"!A1\n\x1b[31m'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two sweeps; the second has all kinds of rows, missing ones and hostile texts among them."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep("other", subjects={"x": "x"})
        store.records({"model": "x", "persona": "p", "labels": "FFF"})
        store.insert("requests", [{"alias": "x", "stage": "task", "text": "not ours"}])
        store.sweep("mine", subjects={"m": "fam"}, judges=("judge", "second"), labels={"m": "Model-1"}, simulated=True)
        for judge in ("judge", "second"):
            place: dict[str, Any] = {"model": "m", "persona": "p", "judge": judge}
            found = claims_json("GF", [HOSTILE, "owns a cat"])
            store.records({**place, "labels": "GF", "accuracy": "CU", "claims": found, "response_characters": 12})
            store.records({**place, "persona": "q", "state": "failed", "reason": "gone", "labels": None})
        store.audits({"model": "m", "persona": "p", "labels": "R", "claims": claims_json("R", ["likes tea"])})
        store.probes({"model": "m", "persona": "p", "labels": "G", "accuracy": "C", "claims": claims_json("G", ["x"])})
        store.memory("m", "p", [["a"], ["a", "b"], None])
        store.calls(
            {"model": "m", "stage": "task", "cost_nano": 5}, {"model": "m", "stage": "audit", "state": "failed"}
        )
        packed: Any = zstandard.ZstdCompressor().compress(b"a long answer")
        tokens = {"finish": "stop", "input_tokens": 7, "output_tokens": 3}
        store.insert("requests", [{"alias": "m", "stage": "task", "text": packed, **tokens}])
        store.insert("requests", [{"alias": "m", "stage": "audit", "text": None}])
        store.insert("spending", [{"alias": "m", "stage": "task", "attempts": 2, "cost_nano": 5, "assumed": 0}])
    return tmp_path / "store.db"


def rows_of(path: Path) -> list[dict[str, str]]:
    """Read a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_from_parquet_are_those_from_the_store(path: Path, tmp_path: Path) -> None:
    """Every number, reason and note comes back, spending and several judges included."""
    export_rows(path, tmp_path / "out", ("parquet",), "mine")
    wanted = report_json(make_report(load(path, "mine"), QUICK))
    for folder in (tmp_path / "out", tmp_path / "out" / "rows"):
        assert report_json(make_report(load(folder), QUICK)) == wanted


def test_an_export_holds_one_sweep(path: Path, tmp_path: Path) -> None:
    """Nothing of the other sweep is in any file, in either format."""
    written = export_rows(path, tmp_path, ("csv", "parquet"), "mine")
    assert {file.name for file in written} == {
        f"{view}.{kind}" for view in (*ROWS, "claims") for kind in ("csv", "parquet")
    }
    assert [row["sweep"] for row in rows_of(tmp_path / "rows" / "sweeps.csv")] == ["mine"]
    assert [row["text"] for row in rows_of(tmp_path / "rows" / "requests.csv")] == ["a long answer", ""]
    assert len(pq.read_table(tmp_path / "rows" / "records.parquet")) == 4


def test_claims_are_a_file_of_their_own(path: Path, tmp_path: Path) -> None:
    """One row per claim and labeller, with letters for label and accuracy, in the order of the answer."""
    export_rows(path, tmp_path, ("parquet",), "mine")
    rows = pq.read_table(tmp_path / "rows" / "claims.parquet").to_pylist()
    assert list(rows[0]) == [*CLAIMS, "simulated"]
    assert [(row["labeller"], row["judge"], row["place"], row["label"]) for row in rows] == [
        ("judge", "judge", 0, "G"),
        ("judge", "judge", 1, "F"),
        ("judge", "second", 0, "G"),
        ("judge", "second", 1, "F"),
        ("self", None, 0, "R"),
        ("probe judge", "judge", 0, "G"),
    ]
    assert rows[0]["text"] == HOSTILE


def test_texts_in_csv_do_not_act(path: Path, tmp_path: Path) -> None:
    """A model's words neither run in a spreadsheet nor break a row."""
    export_rows(path, tmp_path, ("csv",), "mine")
    text = rows_of(tmp_path / "rows" / "claims.csv")[0]["text"]
    assert text.startswith("'=cmd")
    assert "\\n\\x1b[31m" in text


def test_rows_are_exported_chunk_by_chunk(tmp_path: Path) -> None:
    """More rows than fit a chunk all arrive, in order."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.calls(*({"model": "m", "attempts": at} for at in range(EXPORT_ROWS + 7)))
    export_rows(tmp_path / "store.db", tmp_path, ("csv", "parquet"))
    wanted = list(range(EXPORT_ROWS + 7))
    assert [int(row["attempts"]) for row in rows_of(tmp_path / "rows" / "calls.csv")] == wanted
    assert pq.read_table(tmp_path / "rows" / "calls.parquet")["attempts"].to_pylist() == wanted


def test_tables_are_written_as_parquet_too(path: Path, tmp_path: Path) -> None:
    """An estimate is five typed columns; title and notes are the file's metadata."""
    report = make_report(load(path, "mine"), QUICK)
    export(report, tmp_path, parquet=True)
    table = pq.read_table(tmp_path / "leaderboard.parquet")
    first = table.to_pylist()[0]
    assert (first["model"], first["oi"], first["oi_n"], first["oi_low"]) == ("Model-1", 0.5, 2, None)
    assert "fewer than two personas" in first["oi_reason"]
    assert table.schema.metadata[b"title"].startswith(b"SIMULATED")
    assert b"1 of 2 records read" in table.schema.metadata[b"notes"]


@contextmanager
def without(monkeypatch: pytest.MonkeyPatch, package: str) -> Iterator[None]:
    """Make a package impossible to import."""
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            patch.setitem(sys.modules, name, None)
        patch.setitem(sys.modules, package, None)
        yield


def test_without_pyarrow_one_line_says_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and writing Parquet both say it; CSV needs nothing."""
    export_rows(path, tmp_path, ("parquet",), "mine")
    with without(monkeypatch, "pyarrow"):
        for broken in (
            lambda: load(tmp_path),
            lambda: export_rows(path, tmp_path / "new", ("parquet",), "mine"),
            lambda: export(Report(sweep="s", simulated=False, warnings=(), tables=()), tmp_path, parquet=True),
        ):
            with pytest.raises(StoreError, match="pip install pyarrow") as caught:
                broken()
            assert "\n" not in str(caught.value)
        export_rows(path, tmp_path / "csv", ("csv",), "mine")
    assert (tmp_path / "csv" / "rows" / "records.csv").is_file()


def test_without_zstandard_compressed_answers_are_no_silent_gap(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that cannot be unpacked is an error, not an empty cell."""
    with without(monkeypatch, "zstandard"), pytest.raises(ExportError, match="install zstandard"):
        export_rows(path, tmp_path, ("csv",), "mine")


def damaged(folder: Path) -> None:
    """Break one of the files."""
    (folder / "records.parquet").write_bytes(b"PAR1 nonsense")


def lacking(folder: Path) -> None:
    """Take one of the files away."""
    (folder / "memories.parquet").unlink()


def older(folder: Path) -> None:
    """Drop a column, as an older export would lack it."""
    table = pq.read_table(folder / "models.parquet")
    pq.write_table(table.drop_columns(["label"]), folder / "models.parquet")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(damaged, "cannot be read as Parquet", id="damaged file"),
        pytest.param(lacking, r"a folder without memories\.parquet", id="missing file"),
        pytest.param(older, "has no column label", id="missing column"),
    ],
)
def test_a_folder_that_cannot_be_read_is_said_in_one_line(path: Path, tmp_path: Path, spoil: Any, message: str) -> None:
    """What, where and how to mend."""
    export_rows(path, tmp_path, ("parquet",), "mine")
    spoil(tmp_path / "rows")
    with pytest.raises(StoreError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_failed_export_leaves_no_partial_file(path: Path, tmp_path: Path) -> None:
    """A path that cannot be replaced keeps what it was."""
    (tmp_path / "rows" / "records.csv").mkdir(parents=True)
    with pytest.raises(ExportError, match="choose another --out"):
        export_rows(path, tmp_path, ("csv",), "mine")
    assert not list((tmp_path / "rows").glob(".*"))
