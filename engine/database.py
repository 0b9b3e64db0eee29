"""Opening SQLite files: pragmas, numbered migrations, one writing process a store, errors for people."""

import errno
import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import IO, Final, TypeVar

import aiosqlite

from engine.errors import StoreError, StoreRefused
from engine.state import Event, sources

APPLICATION_ID: Final = 0x4D_49_52_41
_HEADING: Final = re.compile(r"^-- (\w+) --$", re.MULTILINE)
# The schema's version that brought batches; readers do not migrate.
BATCHES_SINCE: Final = 2
BUSY_MS: Final = 10_000
STATEMENTS: Final = 256
ROWS_AT_ONCE: Final = 64
CACHE_KIB: Final = 32 * 1024
# Keys are hashes, so every commit touches pages all over the indexes; a longer log folds more of them in at once.
CHECKPOINT_PAGES: Final = 8_000
# Whoever asks who holds a store shares its lock for an instant; a run that starts in that instant asks again.
LOCK_TRIES: Final = 5
LOCK_PAUSE: Final = 0.02
STORES_NAMED: Final = 3

Result = TypeVar("Result")

_MEND: Final = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and run again; everything committed is safe"),
    sqlite3.SQLITE_READONLY: ("it cannot be written", "check the permissions of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check that the folder exists and may be written"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "restore a copy, or recover it with `sqlite3 STORE .recover`"),
    sqlite3.SQLITE_NOTADB: ("it is not a MirageBench store", "give another path"),
    sqlite3.SQLITE_BUSY: ("another program is writing to it", "wait for that program or stop it"),
    sqlite3.SQLITE_IOERR: ("the disk reported an error", "check the disk; everything committed is safe"),
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a StoreError that says what, where and how to mend.

    Raises:
        StoreError: SQLite reported an error that the user can do something about.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in _MEND:
            raise
        what, mend = _MEND[code]
        kind = StoreRefused if code in _REFUSALS else StoreError
        raise kind(f"the store cannot be used: {what}", where=str(path), mend=mend) from error


_REFUSALS: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


class Connection(aiosqlite.Connection):
    """A connection with a thread of its own, on which a whole piece of work can be done in one turn."""

    async def run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what `work` makes of the connection; it runs on the connection's thread."""
        done: Result = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return done


def check_place(path: Path) -> None:
    """Refuse what cannot be a store, there or not: a folder, a device, a name that the system does not take.

    Raises:
        StoreError: it is one of these; of a folder it names the stores in it.
    """
    try:
        if not path.exists() or path.is_file():
            return
        folder, places = path.is_dir(), sorted(path.glob("*.sqlite"))
    except OSError as error:
        mend = "check the permissions" if error.errno == errno.EACCES else "give the path of a file"
        raise StoreError(f"the store cannot be opened: {error.strerror}", where=str(path), mend=mend) from error
    if not folder:
        raise StoreError("this is no file, so it is no store", where=str(path), mend="give the path of a store's file")
    named = ", ".join(str(place) for place in places[:STORES_NAMED])
    more = f" and {len(places) - STORES_NAMED} more" if len(places) > STORES_NAMED else ""
    raise StoreError(
        "this is a folder", where=str(path), mend=f"give the store's file{f': {named}{more}' if named else ''}"
    )


class StoreLock:
    """Holds a store for one writing process; the kernel drops it when the process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._store, self._path = path, lock_file(path)
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreError: another process holds it, the path is no file's, or the folder cannot be written.
        """
        check_place(self._store)
        try:
            file = self._path.open("a+", encoding="ascii", errors="replace")
        except OSError as error:
            raise StoreError(
                f"the store cannot be opened: {error.strerror}",
                where=str(self._path),
                mend="check folder and permissions",
            ) from error
        try:
            _lock(file)
        except OSError as error:
            holder = _written(file) or "unknown"
            file.close()
            raise StoreError(
                f"another run is working on this store (process {holder})",
                where=str(self._path).removesuffix(".lock"),
                mend="let it finish or stop it with Ctrl-C; `mirage status` can look on meanwhile",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def lock_file(path: Path) -> Path:
    """Return the file by which a process holds the store at `path`."""
    return path.parent / f"{path.name}.lock"


def lock_holder(path: Path) -> int | None:
    """Return the process that holds a store for writing, 0 where its number is not known, None where none does.

    Only looks: creates no file, and has the lock itself for no longer than the question takes.
    """
    try:
        with lock_file(path).open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _written(file)
            return None
    except OSError:
        return None


def _lock(file: IO[str]) -> None:
    """Lock a file; somebody who only looks lets go of it at once, so that one refusal is no answer."""
    for _ in range(LOCK_TRIES - 1):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _written(file: IO[str]) -> int:
    """Return the process that a lock's file names, 0 where it does not yet."""
    file.seek(0)
    named = file.read(32).strip()
    return int(named) if named.isdecimal() else 0


async def open_writer(path: Path, views: Sequence[str]) -> Connection:
    """Open `path` for writing, create or migrate it, and install the given views.

    Raises:
        StoreError: not a store, written by a newer version, or not usable on this disk.
    """
    check_place(path)
    with explained(path):
        connection = await _connect(str(path), uri=False)
        try:
            await _prepare(connection, path, views)
        except BaseException:
            await connection.close()
            raise
    return connection


async def open_reader(path: Path) -> Connection:
    """Open an existing store read-only; a sweep may be writing to it, or it may lie in a folder that nobody may write.

    Raises:
        StoreError: there is no such store, or it is not one of ours.
    """
    check_place(path)
    if not path.exists():
        raise StoreError("there is no such store", where=str(path), mend="give the path that `mirage run` printed")
    try:
        return await _open_reader(path, "mode=ro")
    except StoreError:
        # SQLite makes a file beside the store even to read it. Where that is not allowed, nobody can be writing either.
        if (path.parent / f"{path.name}-wal").exists():
            raise
        return await _open_reader(path, "mode=ro&immutable=1")


async def has_batches(connection: aiosqlite.Connection) -> bool:
    """Say whether a store that is only looked at is of a version that knows batches."""
    return await _pragma(connection, "user_version") >= BATCHES_SINCE


async def _open_reader(path: Path, mode: str) -> Connection:
    with explained(path):
        connection = await _connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        try:
            await connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            version = await _check_version(connection, path)
        except BaseException:
            await connection.close()
            raise
    if not version:
        await connection.close()
        raise StoreError("the store is empty", where=str(path), mend="give another path")
    return connection


async def _connect(database: str, *, uri: bool) -> Connection:
    # Where a file cannot be opened, aiosqlite leaves a thread behind that may print a traceback at exit: try it first.
    sqlite3.connect(database, uri=uri).close()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(database, uri=uri, isolation_level=None, cached_statements=STATEMENTS)

    connection = Connection(connect, iter_chunk_size=ROWS_AT_ONCE)
    await connection
    return connection


def load_queries() -> Mapping[str, str]:
    """Return the statements of queries.sql by name."""
    text = files("engine").joinpath("sql/queries.sql").read_text(encoding="utf-8")
    _, *parts = _HEADING.split(text)
    return {name: _filled(body.strip()) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _filled(statement: str) -> str:
    """Fill `@EVENT@` with the durable states in which that event may happen, and `@VERSION@` with the schema's."""
    statement = statement.replace("@VERSION@", str(migrations()[-1][0]))
    for event in Event:
        listed = ", ".join(f"'{state}'" for state in sources(event))
        statement = statement.replace(f"@{event.name}@", listed)
    return statement


def migrations() -> list[tuple[int, str]]:
    """Return (version, script) of every migration in order."""
    folder = files("engine").joinpath("sql/migrations")
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), folder.joinpath(name).read_text(encoding="utf-8")) for name in scripts]


async def _prepare(connection: aiosqlite.Connection, path: Path, views: Sequence[str]) -> None:
    await connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    version = await _check_version(connection, path)
    await connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on disk before the call that it announces is sent, also if the power fails.
    await connection.execute("PRAGMA synchronous = FULL")
    await connection.execute("PRAGMA foreign_keys = ON")
    await connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    await connection.execute("PRAGMA temp_store = MEMORY")
    await connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    for number, script in migrations():
        if number > version:
            mark = f"PRAGMA user_version = {number}; PRAGMA application_id = {APPLICATION_ID};"
            await connection.executescript(f"BEGIN IMMEDIATE; {script} {mark} COMMIT;")
    # SQLite opens a read-only file without complaint; better to learn it here than at the first call.
    await connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {migrations()[-1][0]}; COMMIT;")
    for script in views:
        await connection.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")


async def _check_version(connection: aiosqlite.Connection, path: Path) -> int:
    version = await _pragma(connection, "user_version")
    application = await _pragma(connection, "application_id")
    tables = await _scalar(connection, "SELECT count(*) FROM sqlite_master")
    if application not in (0, APPLICATION_ID) or (application == 0 and tables):
        raise StoreError("this is some other program's database", where=str(path), mend="give another path")
    newest = migrations()[-1][0]
    if version > newest:
        raise StoreError(
            f"the store was written by a newer version (schema {version}, this program knows {newest})",
            where=str(path),
            mend="upgrade MirageBench",
        )
    return version


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    return await _scalar(connection, f"PRAGMA {name}")


async def _scalar(connection: aiosqlite.Connection, sql: str) -> int:
    rows = list(await connection.execute_fetchall(sql))
    return int(rows[0][0])
