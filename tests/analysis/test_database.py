"""Opening stores: what cannot be read is one line, nothing is written, and newer programs' stores are refused."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from analysis.cli import Exit, main
from analysis.database import SCHEMA, VIEWS_VERSION, StoreError, reading
from analysis.load import load
from analysis.report.testing import build_store
from bench.throughput.judged_store import write_store

ROOT = Path(__file__).parents[2]
QUICK = ["--resamples", "100"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small store."""
    return build_store(tmp_path / "store.sqlite")


def changed(path: Path, *statements: str) -> Path:
    """Run statements on a store."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return path


def test_the_newest_schema_and_views_are_known() -> None:
    """Whoever adds a migration or changes the views raises the number that the readers know."""
    newest = max(int(path.name[:4]) for path in (ROOT / "engine/sql/migrations").glob("*.sql"))
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in sorted((ROOT / "engine/sql/migrations").glob("*.sql")):
            connection.executescript(script.read_text(encoding="utf-8"))
        connection.executescript((ROOT / "instruments/sql/views.sql").read_text(encoding="utf-8"))
        (views,) = connection.execute("SELECT version FROM views_version").fetchone()
    assert (newest, views) == (SCHEMA, VIEWS_VERSION)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        pytest.param(
            f"PRAGMA user_version = {SCHEMA + 1}", f"schema {SCHEMA + 1}, this one knows {SCHEMA}", id="schema"
        ),
        pytest.param(
            f"CREATE VIEW views_version AS SELECT {VIEWS_VERSION + 1} AS version",
            f"views {VIEWS_VERSION + 1}, this one knows {VIEWS_VERSION}",
            id="views",
        ),
        pytest.param("CREATE VIEW views_version AS SELECT 'x' AS version", "views x", id="views in words"),
    ],
)
def test_a_newer_programs_store_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], statement: str, told: str
) -> None:
    """What, where, and how to mend, in one line; never numbers that may mean something else by now."""
    changed(store, statement)
    assert main([str(store), *QUICK]) == Exit.WRONG
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{store}: was written by a newer program ({told}")
    assert printed.err.endswith("upgrade MirageBench\n")
    assert printed.err.count("\n") == 1


def test_a_store_of_this_program_is_read(store: Path) -> None:
    """The numbers of today are no obstacle."""
    changed(store, f"PRAGMA user_version = {SCHEMA}", f"CREATE VIEW views_version AS SELECT {VIEWS_VERSION} AS version")
    assert len(load(store).records) == 72


def test_damage_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a store is broken, the tables come out as they were or one line says that it is broken."""
    whole = tmp_path / "whole.sqlite"
    write_store(whole)
    content, rng = whole.read_bytes(), np.random.default_rng(7)
    whole.unlink()
    broken, page = tmp_path / "broken.sqlite", 4096
    said = 0
    for _ in range(12):
        spoiled = bytearray(content)
        at = int(rng.integers(1, len(content) // page)) * page
        spoiled[at : at + page] = rng.bytes(page)
        broken.write_bytes(spoiled)
        code = main([str(broken), *QUICK, "--json"])
        printed = capsys.readouterr()
        assert (code, printed.err.count("\n")) in {(Exit.DONE, 0), (Exit.WRONG, 1)}, printed.err
        assert (printed.out == "") == (code == Exit.WRONG)
        said += code == Exit.WRONG
    assert said


@pytest.mark.parametrize("kept", [50, 4096, 0.5], ids=["header", "first page", "half"])
def test_a_torn_store_is_one_line(store: Path, capsys: pytest.CaptureFixture[str], kept: float) -> None:
    """A copy that stopped half way."""
    content = store.read_bytes()
    store.write_bytes(content[: int(kept if kept > 1 else kept * len(content))])
    assert main([str(store), *QUICK]) == Exit.WRONG
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{store}: is ")
    assert printed.err.count("\n") == 1


def test_a_medium_that_cannot_be_written_is_read_as_it_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite cannot make its file beside the store, and nobody is writing, the store is read all the same."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def refusing(database: str, **options: object) -> sqlite3.Connection:
        if "immutable=1" not in database:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(database, **options)

    monkeypatch.setattr(sqlite3, "connect", refusing)
    assert len(load(store).records) == 72
    store.with_name(f"{store.name}-wal").touch()
    with pytest.raises(StoreError, match="cannot be read"), reading(store):
        pass
