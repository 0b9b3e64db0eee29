"""What SQLite guards by itself, and how a store file that cannot be used is told to people."""

import asyncio
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from engine.bulk import positional
from engine.database import APPLICATION_ID, load_queries, migrations, open_reader
from engine.errors import ErrorClass, StoreError
from engine.ledger import Amount
from engine.rows import INSERTS
from engine.state import State
from engine.store import Store
from engine.testing import make_cell, make_cells, make_ticket

Desk = Any
Seat = Callable[..., Awaitable[Any]]
NOBODY = 65_534


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection, as any SQL tool makes it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection


@pytest.fixture
async def filled(store: Store, desk: Desk) -> Path:
    """A closed store with an answered, an open and a planned request."""
    answered, _ = await desk.on_wire(*make_cells(range(2)))
    await desk.settle(answered)
    await desk.plan(make_cell(2))
    await store.close()
    return store.path


# ----- the schema


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("UPDATE request SET state = 'lost'", id="an unknown state"),
        pytest.param("UPDATE request SET state = 'failed', error_class = NULL", id="a failure without a class"),
        pytest.param("UPDATE request SET owner = 1, lease_ms = NULL", id="a lease without an end"),
        pytest.param("UPDATE request SET key = x'00'", id="a short key"),
        pytest.param("UPDATE request SET attempts = -1", id="less than no attempts"),
        pytest.param("UPDATE request SET size = 'big'", id="text in a number's column"),
        pytest.param("UPDATE request SET key = (SELECT min(key) FROM request)", id="two requests of one key"),
        pytest.param("UPDATE attempt SET cost_nano = -1", id="a negative cost"),
        pytest.param("UPDATE attempt SET cost_nano = 0.5", id="a broken cost"),
        pytest.param("UPDATE attempt SET outcome = 'maybe'", id="an unknown outcome"),
        pytest.param("UPDATE attempt SET settled_ms = 1 WHERE outcome = 'open'", id="an end of what is open"),
        pytest.param("UPDATE attempt SET outcome = 'error', settled_ms = NULL", id="a failure that never ended"),
        pytest.param(
            "INSERT INTO attempt SELECT request_id, number + 1, run_id, sweep_id, provider, alias, stage, 'open',"
            " reserved_nano, reserved_tokens, 0, 0, NULL, NULL, NULL, 1, NULL, NULL, NULL FROM attempt"
            " WHERE outcome = 'open'",
            id="two open attempts of one request",
        ),
        pytest.param(
            "INSERT INTO attempt SELECT * FROM attempt WHERE outcome = 'completed'", id="one attempt number twice"
        ),
        pytest.param("INSERT INTO completion SELECT * FROM completion", id="two answers to one request"),
        pytest.param("UPDATE completion SET cost_nano = -1", id="an answer that earns money"),
        pytest.param("UPDATE completion SET request_id = 99", id="an answer to nothing"),
        pytest.param("UPDATE cell SET request_id = 99", id="a cell that waits for nothing"),
        pytest.param("UPDATE cell SET coords = '{'", id="coordinates that are no JSON"),
        pytest.param("UPDATE cell SET reading_status = 'so so'", id="an unknown reading"),
        pytest.param("UPDATE reading SET body = 'x'", id="a reading that is no JSON"),
        pytest.param("UPDATE spend SET reserved_nano = -1", id="less than nothing reserved"),
        pytest.param("INSERT INTO sweep VALUES (9, '', 0, '{}', '', 0, 0)", id="a sweep without a name"),
        pytest.param("INSERT INTO sweep SELECT 9, name, 0, '{}', '', 0, 0 FROM sweep", id="two sweeps of one name"),
        pytest.param("INSERT INTO sweep VALUES (9, 'x', 2, '{}', '', 0, 0)", id="half simulated"),
    ],
)
async def test_the_database_refuses_what_must_not_be(filled: Path, statement: str) -> None:
    """Whoever writes it."""
    with opened(filled) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


def test_the_schema_is_the_sum_of_its_migrations(tmp_path: Path) -> None:
    """A new store and one that came through every version have the same schema."""

    async def create() -> None:
        await (await Store.open(tmp_path / "new.sqlite")).close()

    asyncio.run(create())
    with opened(tmp_path / "old.sqlite") as old, opened(tmp_path / "new.sqlite") as new:
        for _, script in migrations():
            old.executescript(script)
        schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        assert new.execute(schema).fetchall() == old.execute(schema).fetchall()
        assert new.execute("PRAGMA user_version").fetchone() == (migrations()[-1][0],)
        assert new.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_every_table_is_strict() -> None:
    """SQLite would otherwise take any value in any column."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations():
            connection.executescript(script)
        loose = [row[1] for row in connection.execute("PRAGMA table_list") if row[2] == "table" and not row[5]]
        assert [name for name in loose if not name.startswith("sqlite_")] == []


@pytest.mark.parametrize("name", sorted(load_queries()))
def test_every_statement_fits_the_schema(name: str) -> None:
    """SQLite compiles it, and where a row is declared for it, the row's fields are its parameters in order."""
    statement = load_queries()[name]
    if name in INSERTS:
        assert positional(statement, INSERTS[name]).count("?") == len(INSERTS[name])
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations():
            connection.executescript(script)
        values = dict.fromkeys(re.findall(r":([a-z_]+)", statement))
        connection.execute(f"EXPLAIN {statement}" if not statement.startswith("PRAGMA") else statement, values)


def test_a_row_that_does_not_fit_its_statement_is_found_when_a_store_is_opened() -> None:
    """A column can never end up in another's place."""
    with pytest.raises(ValueError, match="a statement takes"):
        positional("UPDATE t SET a = :a WHERE b = :b", ("b", "a"))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["plan", "join", "send", "settle", "settle late", "fail", "give up", "bill", "recover", "revive"]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(ACTIONS)
def test_the_spend_table_is_always_the_sum_over_the_attempts(seat: Seat, actions: list[tuple[str, int]]) -> None:
    """Whatever happens, in whatever order, in two sweeps."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder) / "store.sqlite", seat, actions))


SUMS = """
SELECT sweep_id, provider, alias, stage, count(*), sum(outcome = 'completed'),
    sum(iif(outcome IN ('open', 'in_doubt'), reserved_nano, 0)),
    sum(iif(outcome IN ('open', 'in_doubt'), reserved_tokens, 0)),
    sum(cost_nano), sum(tokens), sum(outcome = 'assumed'), sum(iif(outcome = 'assumed', cost_nano, 0))
FROM attempt GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


async def _play(path: Path, seat: Seat, actions: list[tuple[str, int]]) -> None:
    async with await Store.open(path) as store:
        desks = [await seat(store, "first"), await seat(store, "second")]
        wire: list[tuple[Desk, Any]] = []
        ended: list[tuple[Desk, Any]] = []
        for action, number in actions:
            desk = desks[number % 2]
            if action in {"plan", "join"}:
                await desk.plan(make_cell(number, stage="task" if number < 4 else "judge"))
            elif action == "send":
                for leased in await desk.lease(2):
                    ticket = make_ticket(leased, nano=1_000 + number)
                    if await store.send(ticket, desk.run_id, 5):
                        wire.append((desk, ticket))
            elif action == "recover":
                await store.recover([], 50)
                ended += wire
                wire.clear()
            elif action == "revive":
                await store.revive(desk.sweep.id, None)
            elif action == "settle late" and ended:
                owner, ticket = ended[number % len(ended)]
                await owner.settle(ticket)
            elif wire and action in {"settle", "fail", "give up", "bill"}:
                owner, ticket = wire.pop(number % len(wire))
                ended.append((owner, ticket))
                await _end(owner, ticket, action)
        await store.flush()
        with opened(path) as connection:
            spend = connection.execute("SELECT * FROM spend ORDER BY sweep_id, provider, alias, stage").fetchall()
            assert spend == connection.execute(SUMS).fetchall()


async def _end(desk: Desk, ticket: Any, action: str) -> None:
    if action == "settle":
        await desk.settle(ticket)
    elif action == "fail":
        await desk.fail(ticket)
    elif action == "give up":
        await desk.fail(ticket, ErrorClass.CONTENT, state=State.FAILED)
    else:
        await desk.fail(ticket, paid=Amount(ticket.worst.nano, ticket.worst.tokens))


# ----- files that cannot be used


async def refusal(path: Path) -> str:
    """Open a store that cannot be opened; return the one line that says why."""
    with pytest.raises(StoreError) as caught:
        await Store.open(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


async def test_a_store_of_a_newer_version_is_refused(filled: Path) -> None:
    """It is not touched."""
    with opened(filled) as connection:
        connection.execute("PRAGMA user_version = 9999")
    before = filled.read_bytes()
    assert "newer version (schema 9999" in await refusal(filled)
    assert filled.read_bytes() == before


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("CREATE TABLE mine (a)", id="with tables"),
        pytest.param("PRAGMA application_id = 77", id="marked as another program's"),
    ],
)
async def test_another_programs_database_is_refused(tmp_path: Path, script: str) -> None:
    """Nothing is added to it."""
    path = tmp_path / "theirs.sqlite"
    with opened(path) as connection:
        connection.execute(script)
        connection.execute("PRAGMA page_count")
    assert "some other program's database" in await refusal(path)


@pytest.mark.parametrize(
    "text", [b"just some notes, long enough to be a header" * 40, b"SQLite format 3\0" + b"\xff" * 999]
)
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, text: bytes) -> None:
    """And left as it is."""
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    assert "not a MirageBench store" in await refusal(path) or "damaged" in await refusal(path)
    assert path.read_bytes() == text


async def test_a_second_writer_is_refused_with_the_first_ones_process(store: Store) -> None:
    """One run at a time works on a store; the message says who."""
    assert f"another run is working on this store (process {os.getpid()})" in await refusal(store.path)


async def test_a_store_can_be_opened_again_after_it_was_closed(store: Store) -> None:
    """The lock goes with the process or the close, whichever is first."""
    await store.close()
    await (await Store.open(store.path)).close()


async def test_a_refused_open_leaves_the_store_free(filled: Path) -> None:
    """The lock is not kept by a program that did not get in."""
    with opened(filled) as connection:
        connection.execute("PRAGMA user_version = 9999")
    await refusal(filled)
    await refusal(filled)


async def test_a_store_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """With the folder's name."""
    assert "No such file or directory" in await refusal(tmp_path / "nowhere" / "store.sqlite")


async def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    """It cannot be opened."""
    assert "this is a folder" in await refusal(tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@contextmanager
def nobody() -> Iterator[None]:
    """Give root's rights up for a while; who is not root has none to give up."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        if not os.access(engine.__path__[0], os.R_OK | os.X_OK, effective_ids=True):
            pytest.skip("this checkout lies in a folder that only root may read")
        yield
    finally:
        os.seteuid(0)


async def archived(folder: Path) -> Path:
    """A closed store in a folder that may not be written."""
    path = folder / "store.sqlite"
    async with await Store.open(path) as store:
        await store.add_sweep("s", "{}", "h", simulated=True, now_ms=1)
    path.with_name("store.sqlite.lock").unlink()
    path.chmod(0o444)
    folder.chmod(0o555)
    return path


async def test_a_store_that_may_not_be_written_is_refused_in_words(open_folder: Path) -> None:
    """Not with a traceback."""
    path = await archived(open_folder)
    with nobody():
        assert "Permission denied" in await refusal(path)


async def test_a_read_only_file_in_a_writable_folder_is_refused_in_words(open_folder: Path) -> None:
    """The lock can be taken, the store cannot be written."""
    path = await archived(open_folder)
    open_folder.chmod(0o777)
    with nobody():
        text = await refusal(path)
    assert "it cannot be written" in text or "it cannot be opened" in text


async def test_an_archived_store_can_be_read_where_nothing_may_be_written(open_folder: Path) -> None:
    """A result on a read-only disk is still a result."""
    path = await archived(open_folder)
    with nobody():
        connection = await open_reader(path)
        rows = list(await connection.execute_fetchall("SELECT sweep FROM sweeps"))
        await connection.close()
    assert [tuple(row) for row in rows] == [("s",)]


async def test_a_reader_looks_on_while_a_run_writes(store: Store, desk: Desk) -> None:
    """It sees what is committed and cannot write."""
    await desk.plan(*make_cells(range(3)))
    connection = await open_reader(store.path)
    rows = list(await connection.execute_fetchall("SELECT count(*) FROM requests"))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await connection.execute("DELETE FROM request")
    await connection.close()
    assert rows[0][0] == 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda path: None, "there is no such store", id="missing"),
        pytest.param(lambda path: path.touch(), "the store is empty", id="empty"),
        pytest.param(lambda path: path.write_bytes(b"notes" * 300), "not a MirageBench store", id="no database"),
    ],
)
async def test_a_reader_is_told_what_is_wrong(tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    """In one line."""
    path = tmp_path / "store.sqlite"
    make(path)
    with pytest.raises(StoreError, match=text):
        await open_reader(path)


async def test_a_damaged_page_is_an_error_for_people_and_not_a_crash(store: Store, desk: Desk) -> None:
    """Found when it is first needed; the message says how to recover."""
    await desk.plan(*make_cells(range(2_000)))
    await store.close()
    size = store.path.stat().st_size
    with store.path.open("r+b") as file:
        for offset in range(4_096, size, 4_096):
            file.seek(offset)
            file.write(b"\xff" * 4_096)
    with pytest.raises(StoreError, match=r"it is damaged .*; restore a copy, or recover it"):
        async with await Store.open(store.path) as again:
            await again.waiting(desk.sweep.id)


async def test_the_file_bears_our_mark(filled: Path) -> None:
    """So that file tools and other programs know it."""
    with opened(filled) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_closed_store_is_one_file(filled: Path) -> None:
    """The log is folded in, so that the file can be copied alone; only the lock stays beside it."""
    names = {path.name for path in filled.parent.iterdir()}
    assert names <= {"store.sqlite", "store.sqlite.lock"}
    assert stat.S_ISREG(filled.stat().st_mode)


async def test_the_views_show_what_is_there(filled: Path) -> None:
    """The public face: states add up, an answered and read request is `read`."""
    with opened(filled) as connection:
        states = connection.execute("SELECT state, count(*) FROM requests GROUP BY state ORDER BY state").fetchall()
        assert states == [("planned", 1), ("read", 1), ("sent", 1)]
        assert connection.execute("SELECT outcome, cost_nano FROM attempts ORDER BY request_id").fetchall() == [
            ("completed", 400), ("open", 0),
        ]  # fmt: skip
        row = "SELECT sweep, attempts, completions, cost_nano, reserved_nano, tokens FROM spending"
        assert connection.execute(row).fetchall() == [("s", 2, 1, 400, 1_000, 7)]
