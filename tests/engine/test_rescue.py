"""Nothing that was paid for is lost when the disk takes no more."""

import asyncio
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import rescue
from engine.codec import Codec
from engine.errors import StoreError
from engine.events import Outcome
from engine.ledger import Amount
from engine.request import Request, request_key
from engine.rows import completion_row
from engine.runner import Runner
from engine.store import Store
from engine.testing import ScriptedProvider, make_cell, make_cells, make_completion
from engine.writes import Fail, Settle

Desk = Any
KEY = bytes(range(16))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep rescue files out of the machine's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of two megabytes, outside the folder that pytest clears: a killed test must not leave it a mount there."""
    folder = Path(tempfile.mkdtemp(prefix="small-disk-", dir=tmp_path_factory.getbasetemp().parent.parent))
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        folder.rmdir()
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill_up(folder: Path) -> Path:
    """Write a file until the disk is full; return it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4_096))
        except OSError:
            return path


async def plan_without_end(desk: Desk) -> None:
    """Plan until the disk refuses."""
    while True:
        await desk.plan(*make_cells(range(100), stage=os.urandom(4).hex()))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most as long as a test may take."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the store's state has no event
            await asyncio.sleep(0.01)


async def settle_calls(desk: Desk, tickets: list[Any], text: str = "hi") -> list[asyncio.Task[None]]:
    """Put answers without waiting for the disk."""
    tasks = [asyncio.create_task(desk.settle(ticket, text=f"{text} {number}")) for number, ticket in enumerate(tickets)]
    await asyncio.sleep(0)
    return tasks


# ----- a disk that is full for a while


async def test_a_full_disk_refuses_new_work_and_keeps_what_is_paid_until_there_is_space(
    small_disk: Path, seat: Any
) -> None:
    """Plans are refused at once; answers wait in memory and are written once space returns."""
    async with await Store.open(small_disk / "store.sqlite", retry_seconds=0.01) as store:
        desk = await seat(store)
        tickets = await desk.on_wire(*make_cells(range(5)))
        filler = fill_up(small_disk)
        with pytest.raises(StoreError, match=r"the disk is full .*; free some space"):
            await plan_without_end(desk)
        waiting = await settle_calls(desk, tickets, text="x" * 2_000)
        await until(lambda: store.refused is not None)
        assert not any(task.done() for task in waiting)
        filler.unlink()
        await asyncio.gather(*waiting)
        assert store.refused is None
        assert await desk.spent() == Amount(5 * 400, 35)


async def test_a_disk_that_takes_writes_again_is_noticed_without_anything_to_write(small_disk: Path, seat: Any) -> None:
    """Otherwise a run would wait for the disk and the disk for the run."""
    async with await Store.open(small_disk / "store.sqlite", retry_seconds=0.01) as store:
        desk = await seat(store)
        filler = fill_up(small_disk)
        with pytest.raises(StoreError, match="the disk is full"):
            await plan_without_end(desk)
        filler.unlink()
        await until(lambda: store.refused is None)


# ----- a disk that stays full


async def strand(path: Path, seat: Any, count: int) -> str:
    """Fill the disk under `count` calls on the wire and one failure, and close; return what the user is told."""
    store = await Store.open(path, retry_seconds=0.01)
    desk = await seat(store)
    *tickets, failing = await desk.on_wire(*make_cells(range(count + 1)))
    fill_up(path.parent)
    with pytest.raises(StoreError, match="the disk is full"):
        await plan_without_end(desk)
    waiting = await settle_calls(desk, tickets)
    waiting.append(asyncio.create_task(desk.fail(failing, message="no")))
    await asyncio.sleep(0)
    with pytest.raises(StoreError) as caught:
        await store.close()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return str(caught.value)


async def test_results_that_the_disk_never_took_are_rescued_and_imported_at_the_next_open(
    small_disk: Path, temporary: Path, seat: Any
) -> None:
    """The user is told how many and where; the next run finds the answers, and pays for nothing again."""
    path = small_disk / "store.sqlite"
    told = await strand(path, seat, 3)
    (file,) = temporary.iterdir()
    assert f"the disk is full; 4 results that may be paid for went to {file}" in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (small_disk / "filler").unlink()
    async with await Store.open(path) as store:
        assert store.rescued == rescue.Rescued(imported=4)
        desk = await seat(store)
        await store.recover([], 50)
        assert [text for _, text in await desk.unread()] == ["hi 0", "hi 1", "hi 2"]
        assert await desk.spent() == Amount(3 * 400, 21)
        (again,) = await desk.lease()
        assert again.cells[0].coords == b'{"n":3}'
    assert list(temporary.iterdir()) == []


async def test_importing_a_rescue_file_twice_changes_nothing(small_disk: Path, temporary: Path, seat: Any) -> None:
    """A crash between the import and the file's removal is no harm."""
    path = small_disk / "store.sqlite"
    await strand(path, seat, 3)
    (small_disk / "filler").unlink()
    (file,) = temporary.iterdir()
    copy = file.read_bytes()
    for _ in range(2):
        file.write_bytes(copy)
        file.chmod(0o600)
        async with await Store.open(path) as store:
            desk = await seat(store)
            assert await desk.spent() == Amount(3 * 400, 21)
            assert len(await desk.unread()) == 3


async def test_a_store_on_a_disk_that_is_still_full_is_not_opened(small_disk: Path, temporary: Path, seat: Any) -> None:
    """And the rescue file stays where it is."""
    path = small_disk / "store.sqlite"
    await strand(path, seat, 40)
    fill_up(small_disk)
    files = list(temporary.iterdir())
    with pytest.raises(StoreError, match="the disk is full"):
        await Store.open(path)
    assert list(temporary.iterdir()) == files


# ----- rescue files


async def settlement(key: bytes, attempt: int = 1, text: str = "saved") -> Settle:
    """An answer to the request of that key."""
    row = completion_row(Codec(), 7, attempt, make_completion(text), cost_nano=400, latency_ms=1, now_ms=2)
    return Settle(key, row, leaves_unread=False)


@pytest.mark.parametrize("text", ["short", "x" * 5_000, "a\ud800\0b"], ids=["short", "long", "hostile"])
async def test_a_settlement_comes_out_of_its_line_as_it_went_in(tmp_path: Path, text: str) -> None:
    """For the request that bears its key in the store at hand."""
    operation = await settlement(KEY, text=text)
    path = rescue.write(tmp_path / "store.sqlite", [operation], "1")
    (line,) = rescue.read(path)
    assert line is not None
    again = rescue.operation(line, 99)
    assert isinstance(again, Settle)
    assert (again.key, again.completion.paid) == (KEY, operation.completion.paid._replace(request_id=99))
    assert again.completion == operation.completion._replace(request_id=99)


async def test_a_failure_comes_out_of_its_line_as_it_went_in(tmp_path: Path) -> None:
    """With its lease given up."""
    request = {"request_id": 7, "state": "failed", "keep": True, "error": "a b"}
    path = rescue.write(tmp_path / "store.sqlite", [Fail(KEY, {"request_id": 7, "status": 500}, request)], "1")
    (line,) = rescue.read(path)
    assert line is not None
    again = rescue.operation(line, 99)
    assert isinstance(again, Fail)
    assert again.attempt == {"request_id": 99, "status": 500}
    assert again.request == {"request_id": 99, "state": "failed", "keep": False, "error": "a b"}


async def test_a_rescue_file_lies_beside_its_store_if_it_can(tmp_path: Path, temporary: Path) -> None:
    """So that it travels with the store; else in the temporary folder."""
    store = tmp_path / "store.sqlite"
    beside = rescue.write(store, [await settlement(KEY)], "1")
    assert beside == tmp_path / "store.sqlite.rescue-1.jsonl"
    elsewhere = rescue.write(tmp_path / "nowhere" / "store.sqlite", [await settlement(KEY)], "1")
    assert elsewhere.parent == temporary
    assert rescue.find(store) == [beside]


async def test_a_rescue_that_can_be_written_nowhere_says_so(tmp_path: Path, temporary: Path) -> None:
    """The caller tells the user."""
    temporary.rmdir()
    with pytest.raises(OSError, match="No such file"):
        rescue.write(tmp_path / "nowhere" / "store.sqlite", [await settlement(KEY)], "1")


async def test_a_rescue_file_never_overwrites_another(tmp_path: Path, temporary: Path) -> None:
    """Nor follows a link that somebody planted."""
    store = tmp_path / "store.sqlite"
    (tmp_path / "store.sqlite.rescue-1.jsonl").symlink_to(tmp_path / "victim")
    assert rescue.write(store, [await settlement(KEY)], "1").parent == temporary
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("trick", ["link", "writable by others", "folder"])
async def test_a_file_that_others_may_have_planted_is_not_trusted(tmp_path: Path, trick: str) -> None:
    """Answers are evidence; only this user's own files are taken."""
    store = tmp_path / "store.sqlite"
    path = rescue.write(store, [await settlement(KEY)], "1")
    if trick == "link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    elif trick == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.chmod(0o666)
    assert rescue.find(store) == []


async def imported(desk: Desk, lines: bytes) -> tuple[rescue.Rescued, Store]:
    """Close the desk's store, lay a rescue file beside it and open it again."""
    await desk.store.close()
    path = Path(f"{desk.store.path}.rescue-1.jsonl")
    path.write_bytes(lines)
    path.chmod(0o600)
    store = await Store.open(desk.store.path)
    return store.rescued, store


async def line_for(desk: Desk, key: bytes) -> bytes:
    """The line of an answer."""
    path = rescue.write(desk.store.path, [await settlement(key)], "0")
    text = path.read_bytes()
    path.unlink()
    return text


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b'{"key": "00', id="torn"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b'{"key": "zz", "attempt": {}}\n', id="no key"),
        pytest.param(b'{"key": "KEY", "attempt": {}, "completion": {"text": "x"}}\n', id="columns are missing"),
        pytest.param(b'{"key": "00112233445566778899aabbccddeeff", "attempt": {}}\n', id="a request of another store"),
        pytest.param(b'{"key": "KEY", "attempt": {}, "request": {"state": 3}}\n', id="wrong kinds"),
    ],
)
async def test_a_line_that_cannot_be_used_is_left_and_the_others_are_imported(desk: Desk, bad: bytes) -> None:
    """In a file that is kept for a human and not tried again."""
    (ticket,) = await desk.on_wire(make_cell(1))
    bad = bad.replace(b"KEY", ticket.leased.key.hex().encode())
    rescued, store = await imported(desk, await line_for(desk, ticket.leased.key) + bad)
    async with store:
        assert (rescued.imported, rescued.left) == (1, 1)
        (kept,) = map(Path, rescued.files)
        assert kept.read_bytes().endswith(bad)
    async with await Store.open(store.path) as again:
        assert again.rescued == rescue.Rescued()


async def test_a_rescued_answer_fits_a_copy_of_the_store(desk: Desk, seat: Any, tmp_path: Path) -> None:
    """Requests are known by what they ask, not by their number."""
    async with await Store.open(tmp_path / "other.sqlite") as other:
        elsewhere = await seat(other)
        await elsewhere.plan(*make_cells(range(10)), make_cell(1, stage="x", request=make_cell(77).request))
    key = request_key(make_cell(77).request)
    elsewhere.store = other
    rescued, store = await imported(elsewhere, await line_for(desk, key))
    async with store:
        assert rescued.imported == 1
        assert [each.completion.text for each in await store.unread(1, 0, 10)] == ["saved"]


# ----- a whole run on a disk that fills up


def filling_provider(folder: Path, at: int) -> ScriptedProvider:
    """A provider under whose hands the disk fills up at a certain call, and that then has much to say."""
    calls = 0

    def script(request: Request, times: int) -> str:
        nonlocal calls
        calls += 1
        if calls == at:
            fill_up(folder)
        return os.urandom(20_000).hex() if calls >= at else "hi"

    return ScriptedProvider(script, latency=0.002)


async def test_a_run_whose_disk_fills_up_stops_sending_and_loses_nothing(
    small_disk: Path, temporary: Path, rig: Any
) -> None:
    """It waits a while, ends, keeps what is paid in a rescue file, and the next run repeats no answered call."""
    rig.path = small_disk / "store.sqlite"
    rig.patience = 0.3
    rig.provider = filling_provider(small_disk, at=20)
    with pytest.raises(StoreError, match=r"the disk is full; \d+ results? that may be paid for went to"):
        await rig.run(make_cells(range(100)))
    first = set(rig.calls)
    assert len(first) < 60
    assert "the disk is full" in rig.told("store_refused")[0]
    (small_disk / "filler").unlink()
    rig.provider = ScriptedProvider(lambda request, times: "hi")
    assert await rig.run(make_cells(range(100))) is Outcome.COMPLETE
    assert not first & set(rig.calls)
    assert (rig.recovery.calls, await rig.states()) == (0, {"read": 100})


async def test_a_plan_that_the_disk_refuses_is_made_when_there_is_space_again(small_disk: Path, rig: Any) -> None:
    """From the very first cell."""
    rig.path = small_disk / "store.sqlite"
    refusals = []

    def make_space(runner: Runner) -> None:
        if not refusals:
            fill_up(small_disk)
        refusals.append(runner.snapshot().refused)
        if refusals[-1]:
            (small_disk / "filler").unlink()
        else:
            asyncio.get_running_loop().call_later(0.01, make_space, runner)

    rig.started = make_space
    assert await rig.run(make_cells(range(100))) is Outcome.COMPLETE
    assert "the disk is full" in refusals[-1]
    assert await rig.states() == {"read": 100}


async def test_a_run_goes_on_when_the_disk_has_space_again(small_disk: Path, rig: Any) -> None:
    """Without being started again, and without repeating a call."""
    rig.path = small_disk / "store.sqlite"
    rig.provider = filling_provider(small_disk, at=20)

    waited = []

    def make_space(runner: Runner) -> None:
        if runner.snapshot().refused:
            waited.append(runner.snapshot().calls)
            (small_disk / "filler").unlink()
        else:
            asyncio.get_running_loop().call_later(0.01, make_space, runner)

    rig.started = make_space
    assert await rig.run(make_cells(range(30))) is Outcome.COMPLETE
    assert len(rig.calls) == len(set(rig.calls)) == 30
    assert waited
    assert waited[0] < 30
