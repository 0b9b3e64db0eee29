"""Who holds a store: asked of its lock, by looking only."""

import asyncio
import fcntl
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.batch.testing import BatchFaults
from engine.database import LOCK_TRIES, StoreLock, check_place, lock_file, lock_holder, open_reader, open_writer
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.events import Outcome
from engine.failures import read_errors
from engine.inspection import read_request
from engine.ledger import Amount
from engine.provider import WITHDRAWN
from engine.request import Request, request_key
from engine.runner import Runner
from engine.state import State
from engine.status import Holder, read_status
from engine.store import Store
from engine.testing import ScriptedProvider, batched, make_cell, make_cells

Desk = Any
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from engine.store import Store

async def main():
    store = await Store.open(Path(sys.argv[1]))
    sweep = await store.find_sweep("s")
    await store.begin_run(sweep.id, "{}", 1)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_run_that_holds_the_store_is_running(desk: Desk) -> None:
    """With its process, which is this one."""
    found = await read_status(desk.store.path)
    assert found.running == os.getpid()
    assert found.holder == Holder(pid=os.getpid(), sweep="s")


async def test_a_killed_run_is_not_running(desk: Desk) -> None:
    """Its row has no end, and its process none either; whoever finishes the sweep after it ends what is said of it."""
    path = desk.store.path
    await desk.store.close()
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(path))
    assert await killed.wait() == -signal.SIGKILL
    found = await read_status(path)
    assert (found.running, found.holder) == (None, None)
    async with await Store.open(path) as store:
        await store.end_run(await store.begin_run(desk.sweep.id, "{}", 2), "complete", 3)
    assert (await read_status(path)).running is None


async def test_a_process_without_a_run_is_told_apart_from_one_that_runs_another_sweep(desk: Desk, seat: Any) -> None:
    """The first may be loading a model; neither runs this sweep."""
    path, sweep = desk.store.path, desk.sweep
    await desk.store.close()
    lock = StoreLock(path)
    lock.acquire()
    lock_file(path).write_text("4194399\n")
    assert (await read_status(path)).holder == Holder(pid=4194399, sweep="")
    lock.release()
    async with await Store.open(path) as store:
        other = await seat(store, "other")
        assert other.sweep.id != sweep.id
        found = await read_status(path, "s")
        assert (found.running, found.holder) == (None, Holder(pid=os.getpid(), sweep="other"))


async def test_what_a_dead_process_left_on_the_wire_is_in_doubt(desk: Desk) -> None:
    """While the process lives it is sent; the counts add up before and after."""
    first, *_ = await desk.on_wire(*make_cells(range(3)))
    await desk.settle(first)
    found = await read_status(desk.store.path)
    assert (found.requests.sent, found.requests.in_doubt, found.calls.under_way) == (2, 0, 2)
    await desk.store.close()
    found = await read_status(desk.store.path)
    assert (found.requests.sent, found.requests.in_doubt) == (0, 2)
    assert (found.calls.total, found.calls.answered, found.calls.in_doubt, found.calls.failed) == (3, 1, 2, 0)


async def test_a_request_that_a_dead_process_left_on_the_wire_is_in_doubt_too(desk: Desk) -> None:
    """Looked at alone, with its attempt."""
    (ticket,) = await desk.on_wire(make_cell(1))
    key = ticket.leased.key.hex()
    alive = await read_request(desk.store.path, key)
    assert (alive.state, alive.attempts[0].outcome) == ("sent", "open")
    await desk.store.close()
    dead = await read_request(desk.store.path, key)
    assert (dead.state, dead.attempts[0].outcome) == ("in_doubt", "in_doubt")


async def test_what_waits_in_a_batch_is_sent_whoever_is_there(desk: Desk) -> None:
    """Its provider works on it without us."""
    await desk.on_wire(*make_cells(range(3)))
    await desk.store.close()
    assert (await read_status(desk.store.path)).requests.in_doubt == 3
    connection = sqlite3.connect(desk.store.path)
    with connection:
        connection.execute(
            "INSERT INTO batch (id, sweep_id, run_id, lane, provider, model, stage, marker, remote_id, built_ms)"
            " VALUES (1, 1, 1, 'l', 'p', 'm', 'open', 'k', 'r', 1)"
        )
        connection.execute("UPDATE attempt SET batch_id = 1, line = request_id")
    connection.close()
    found = await read_status(desk.store.path)
    assert (found.requests.sent, found.requests.in_doubt) == (3, 0)
    assert (await read_request(desk.store.path, request_key(make_cell(0).request).hex())).state == "sent"


def test_looking_creates_no_lock(tmp_path: Path) -> None:
    """Nor any other file."""
    assert lock_holder(tmp_path / "s.sqlite") is None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_without_a_number_is_held_all_the_same(tmp_path: Path) -> None:
    """Its holder has not written it yet."""
    path = tmp_path / "s.sqlite"
    lock = StoreLock(path)
    lock.acquire()
    assert lock_holder(path) == os.getpid()
    lock_file(path).write_bytes(b"\xff\x00")
    assert lock_holder(path) == 0
    lock.release()
    assert lock_holder(path) is None


def test_a_look_does_not_take_the_lock_from_a_run_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is over in an instant, so a run asks again."""
    path = tmp_path / "s.sqlite"
    lock_file(path).touch()
    looker = lock_file(path).open()
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr("engine.database.time.sleep", lambda seconds: looker.close())
    lock = StoreLock(path)
    lock.acquire()
    assert lock_holder(path) == os.getpid()
    lock.release()


def test_one_who_looks_is_not_taken_for_a_run_by_another_who_looks(tmp_path: Path) -> None:
    """Both only look."""
    path = tmp_path / "s.sqlite"
    lock_file(path).touch()
    with lock_file(path).open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        assert lock_holder(path) is None


def test_a_lock_that_stays_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some questions."""
    pauses: list[float] = []
    monkeypatch.setattr("engine.database.time.sleep", pauses.append)
    first = StoreLock(tmp_path / "s.sqlite")
    first.acquire()
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        StoreLock(tmp_path / "s.sqlite").acquire()
    assert len(pauses) == LOCK_TRIES - 1
    first.release()


@pytest.mark.parametrize("written", [".", "..", "", "/", "runs", "runs/"], ids=repr)
async def test_a_folder_is_refused_wherever_a_store_is_opened(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is written; nothing is created in it or beside it."""
    here = tmp_path / "above" / "here"
    (here / "runs").mkdir(parents=True)
    monkeypatch.chdir(here)
    for path in (Path(written), Path(written).absolute()):
        for attempt in (open_reader(path), open_writer(path, ()), Store.open(path), read_status(path)):
            with pytest.raises(StoreError, match="this is a folder"):
                await attempt
    assert [each.name for each in tmp_path.rglob("*")] == ["above", "here", "runs"]


def test_a_folder_names_the_stores_in_it(tmp_path: Path) -> None:
    """Three of them."""
    for name in "abcd":
        (tmp_path / f"{name}.sqlite").touch()
    with pytest.raises(StoreError, match="give the store's file") as refused:
        check_place(tmp_path)
    assert str(refused.value).endswith(f"{tmp_path / 'c.sqlite'} and 1 more")


async def test_what_is_no_file_is_no_store(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(StoreError, match="no file"):
            await read_status(path)


async def test_a_name_that_no_file_can_have_is_refused_in_a_line(tmp_path: Path) -> None:
    """The system's words, not a traceback."""
    for opening in (read_status(tmp_path / ("x" * 300)), Store.open(tmp_path / ("x" * 300))):
        with pytest.raises(StoreError, match="too long"):
            await opening


async def test_every_attempt_is_accounted_for(desk: Desk) -> None:
    """Answered, gone wrong, assumed billed, and taken back: they add up."""
    first, second, third, fourth = await desk.on_wire(*make_cells(range(4)))
    await desk.settle(first)
    await desk.fail(second, ErrorClass.BAD_REQUEST, state=State.FAILED)
    await desk.fail(third, ErrorClass.TRANSIENT, paid=Amount(9, 1))
    await desk.fail(fourth, ErrorClass.TRANSIENT, message="not sent: the run was stopped")
    found = await read_status(desk.store.path)
    calls = found.calls
    assert (found.tokens, found.assumed_tokens) == (8, 1)
    assert (calls.answered, calls.failed, calls.assumed, calls.taken_back) == (1, 1, 1, 1)
    assert calls.total == 4


async def test_what_a_stopped_run_takes_back_has_not_gone_wrong(rig: Any) -> None:
    """In the engine's own words for it."""
    runners: list[Runner] = []
    rig.started = runners.append

    def stop(request: Request, times: int) -> ProviderError:
        runners[0].drain()
        return ProviderError(ErrorClass.RATE, "not begun", code=WITHDRAWN)

    rig.provider = ScriptedProvider(stop)
    assert await rig.run(make_cells(range(3))) is Outcome.INTERRUPTED
    calls = (await read_status(rig.path)).calls
    assert calls.total == calls.taken_back > 0


async def test_what_its_batch_did_not_run_has_not_gone_wrong(rig: Any) -> None:
    """It was asked again."""
    rig.by_batch(BatchFaults(expires=6, unpaid_rest=True))
    async with asyncio.timeout(20):
        assert await rig.run(batched(range(10))) is Outcome.COMPLETE
    calls = (await read_status(rig.path)).calls
    assert (calls.total, calls.answered, calls.taken_back, calls.failed) == (14, 10, 4, 0)
    (group,) = (await read_errors(rig.path)).retried
    assert (group.error, group.attempts, group.answered) == ("the batch expired before this request was run", 4, 4)


async def test_a_request_whose_batch_was_never_made_was_taken_back(rig: Any) -> None:
    """What was not run is the batch, and the reason says so."""
    no = ProviderError(ErrorClass.BAD_REQUEST, "no batches for you", status=400)
    rig.by_batch(BatchFaults(create_refused=no))
    async with asyncio.timeout(20):
        assert await rig.run(batched(range(5))) is Outcome.STOPPED
    calls = (await read_status(rig.path)).calls
    assert (calls.total, calls.taken_back, calls.failed) == (5, 5, 0)
    (group,) = (await read_errors(rig.path)).retried
    assert group.error.startswith("its batch was not run: the provider refuses it")
    assert (group.attempts, group.answered, group.failed) == (5, 0, 0)
