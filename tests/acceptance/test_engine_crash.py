"""Kill -9 at any instant: nothing that was answered is paid for again, and the books agree after every restart.

Each round runs this file as a program of its own. Its provider notes every call in a file before it answers, which
makes an independent bill; the parent kills it at random moments and compares the bill with the store.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from engine.cell import Cell
from engine.clock import SystemClock
from engine.ledger import Cap, Ledger, Scope
from engine.limits import RateLimits
from engine.money import Price
from engine.progress import Progress
from engine.provider import Reply
from engine.request import Completion, Request, request_key
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.store import Store
from engine.testing import EchoReader, make_cell, make_cells, make_completion

ROOT = Path(__file__).parents[2]
CELLS = 120
CONCURRENCY = 12
PRICE = Price(input=1_000_000_000, output=1_000_000_000)
SWEEP = Scope("sweep", "s")
# One answer, and a bound on one reservation, at that price.
PAID, WORST = 7_000, 120_000


class BillingProvider:
    """Writes every call to the bill, and only then answers, after a moment of its own."""

    name = "scripted"

    def __init__(self, bill: Path) -> None:
        self._bill = os.open(bill, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._rng = Random(os.getpid())  # noqa: S311 - latencies

    async def complete(self, request: Request) -> Reply:
        """Bill and answer."""
        os.write(self._bill, request_key(request).hex().encode() + b"\n")
        await asyncio.sleep(self._rng.uniform(0, 0.02))
        return Reply(completion=make_completion(request.messages[0].content))

    async def close(self) -> None:
        """Close the bill."""
        os.close(self._bill)


def follow(stage: str, coords: bytes, completion: Completion) -> list[Cell]:
    """Every task is judged."""
    return [make_cell(int(msgspec.json.decode(coords)["n"]), stage="judge")] if stage == "task" else []


async def work(folder: Path, cap: int) -> None:
    """Run the sweep once; print how it ended and what the recovery found."""
    clock = SystemClock()
    async with await Store.open(folder / "store.sqlite") as store:
        sweep = await store.find_sweep("s")
        if sweep is None:
            await store.add_sweep("s", "{}", "h", simulated=True, now_ms=clock.wall_ms())
            sweep = await store.find_sweep("s")
        assert sweep is not None
        recovery = await store.recover([], clock.wall_ms())
        with (folder / "recovered").open("a") as file:
            file.write(f"{recovery.calls}\n")
        runner = Runner(
            store=store,
            sweep=sweep,
            run_id=await store.begin_run(sweep.id, "{}", clock.wall_ms()),
            scheduler=Scheduler(
                sweep="s",
                routes={
                    "m": Route("scripted/m-1", "scripted", PRICE, RateLimits(concurrency=CONCURRENCY, adaptive=False))
                },
                ledger=Ledger({SWEEP: Cap(nano=cap)}, *await store.used(sweep)),
                policy=RetryPolicy(),
                now=clock.now(),
            ),
            providers={"scripted": BillingProvider(folder / "bill")},
            prices={"m": PRICE},
            reader=EchoReader(follow),
            clock=clock,
            rng=Random(1),  # noqa: S311 - jitter
            progress=Progress({}),
            listen=lambda notice: None,
        )
        print(await runner.run(make_cells(range(CELLS))))  # noqa: T201 - what the parent waits for


def start(folder: Path, cap: int) -> subprocess.Popen[bytes]:
    """Start a run as a process of its own."""
    command = [sys.executable, __file__, str(folder), str(cap)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)


def bill(folder: Path) -> list[str]:
    """The calls made so far."""
    path = folder / "bill"
    return path.read_text().split() if path.exists() else []


class Books:
    """What the store says after a process died, read from outside."""

    def __init__(self, folder: Path) -> None:
        with closing(sqlite3.connect(folder / "store.sqlite")) as connection:
            self.answered = {row[0] for row in connection.execute("SELECT key FROM requests WHERE state = 'read'")}
            self.attempts = Counter(
                row[0] for row in connection.execute(
                    "SELECT lower(hex(r.key)) FROM attempt a JOIN request r ON r.id = a.request_id"
                )
            )  # fmt: skip
            self.kept = connection.execute(
                "SELECT sum(attempts), sum(completions), sum(reserved_nano), sum(cost_nano), sum(assumed_nano)"
                " FROM spend"
            ).fetchone()
            self.summed = connection.execute(
                "SELECT count(*), sum(outcome = 'completed'),"
                " sum(iif(outcome IN ('open', 'in_doubt'), reserved_nano, 0)), sum(cost_nano),"
                " sum(iif(outcome = 'assumed', cost_nano, 0)) FROM attempt"
            ).fetchone()
            self.orphans = connection.execute(
                "SELECT count(*) FROM cell p WHERE p.stage = 'task' AND p.reading_status IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM cell c WHERE c.parent_id = p.id)"
            ).fetchone()[0]
            self.assumed = connection.execute("SELECT count(*) FROM attempt WHERE outcome = 'assumed'").fetchone()[0]
            self.sound = connection.execute("PRAGMA integrity_check").fetchone()[0]

    @property
    def committed(self) -> int:
        """Spent and reserved money."""
        return int(self.kept[2] or 0) + int(self.kept[3] or 0)


def kill_again_and_again(folder: Path, cap: int, rounds: int, seed: int) -> None:
    """Run and kill, comparing bill and store after every death."""
    rng = Random(seed)  # noqa: S311 - moments
    for _ in range(rounds):
        before = len(bill(folder))
        process = start(folder, cap)
        deadline = time.monotonic() + 60
        # Sometimes before the first call, mostly in the thick of it.
        patience = rng.choice([0, 1, 1, 1])
        while patience and len(bill(folder)) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        check(folder, cap)


def check(folder: Path, cap: int) -> None:
    """Compare the bill with the store."""
    if not (folder / "store.sqlite").exists() or not bill(folder):
        return
    books = Books(folder)
    calls = Counter(bill(folder))
    assert books.sound == "ok"
    assert books.kept == books.summed
    assert books.committed <= cap
    assert books.orphans == 0, "a reading without what follows from it"
    assert all(calls[key] <= books.attempts[key] for key in calls), "a call that was not on disk first"
    assert all(calls[key] >= 1 for key in books.answered), "an answer that nobody gave"
    seen = folder / "answered"
    earlier = set(seen.read_text().split()) if seen.exists() else set()
    counted = dict(line.split() for line in (folder / "counted").read_text().splitlines()) if earlier else {}
    assert earlier <= books.answered, "an answer that was lost"
    assert all(calls[key] == int(counted[key]) for key in earlier), "an answered call that was made again"
    seen.write_text("\n".join(books.answered))
    (folder / "counted").write_text("\n".join(f"{key} {calls[key]}" for key in books.answered))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sweep_that_is_killed_again_and_again_repeats_only_what_was_on_the_wire(tmp_path: Path, seed: int) -> None:
    """And is finished by the run that is left alive; what was counted as repeated covers what was."""
    cap = 10**12
    kill_again_and_again(tmp_path, cap, 8, seed)
    process = start(tmp_path, cap)
    output, _ = process.communicate(timeout=120)
    assert output.strip() == b"complete"
    check(tmp_path, cap)
    books, calls = Books(tmp_path), Counter(bill(tmp_path))
    on_wire = [int(line) for line in (tmp_path / "recovered").read_text().split()]
    assert len(books.answered) == len(calls) == 2 * CELLS
    assert calls.total() - len(calls) <= books.assumed
    assert max(on_wire) <= CONCURRENCY
    assert books.kept[1] == 2 * CELLS


def test_a_cap_holds_over_any_number_of_crashes(tmp_path: Path) -> None:
    """Calls that a crash cut off count at their reservation, so the money runs out early, never late."""
    cap = 60 * PAID + 20 * WORST
    kill_again_and_again(tmp_path, cap, 6, 3)
    process = start(tmp_path, cap)
    output, _ = process.communicate(timeout=120)
    assert output.strip() == b"budget"
    check(tmp_path, cap)
    assert Counter(bill(tmp_path)).total() * PAID <= cap


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
