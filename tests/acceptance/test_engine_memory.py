"""Memory is flat in the size of a sweep: the store holds it, the process only a window."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from engine.cell import Cell
from engine.clock import SystemClock
from engine.events import Outcome
from engine.ledger import Ledger
from engine.limits import RateLimits
from engine.money import Price
from engine.progress import Progress
from engine.provider import Reply
from engine.request import Request
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.store import Store
from engine.testing import EchoReader, make_cell, make_completion

ROOT = Path(__file__).parents[2]
CELLS = 200_000
MEBIBYTE = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that this process has in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Probe:
    """Answers at once and measures the memory in use as the sweep goes by."""

    name = "scripted"

    def __init__(self) -> None:
        self.calls = 0
        self.sizes: list[int] = []

    async def complete(self, request: Request) -> Reply:
        """Answer with some text of its own."""
        self.calls += 1
        if self.calls % (CELLS // 10) == 0:
            self.sizes.append(resident())
        return Reply(completion=make_completion(request.messages[0].content * 20))

    async def close(self) -> None:
        """Nothing is open."""


def cells() -> Iterator[Cell]:
    """The sweep, one cell at a time."""
    yield from map(make_cell, range(CELLS))


async def work(folder: Path) -> None:
    """Run the sweep and print the sizes."""
    clock, price, probe = SystemClock(), Price(input=1, output=1), Probe()
    async with await Store.open(folder / "store.sqlite") as store:
        await store.add_sweep("s", "{}", "h", simulated=True, now_ms=1)
        sweep = await store.find_sweep("s")
        assert sweep is not None
        limits = RateLimits(concurrency=200, adaptive=False)
        runner = Runner(
            store=store,
            sweep=sweep,
            run_id=await store.begin_run(sweep.id, "{}", 1),
            scheduler=Scheduler(
                sweep="s",
                routes={"m": Route("scripted/m-1", "scripted", price, limits)},
                ledger=Ledger({}, {}),
                policy=RetryPolicy(),
                now=clock.now(),
            ),
            providers={"scripted": probe},
            prices={"m": price},
            reader=EchoReader(),
            clock=clock,
            rng=Random(1),  # noqa: S311 - jitter
            progress=Progress({}),
            listen=lambda notice: None,
        )
        assert await runner.run(cells()) is Outcome.COMPLETE
    print(*probe.sizes)  # noqa: T201 - what the parent waits for


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_sweep_of_two_hundred_thousand_cells_needs_no_more_memory_than_one_of_twenty_thousand(tmp_path: Path) -> None:
    """After the caches are warm, nothing grows with what has been planned, sent, settled or read."""
    command = [sys.executable, __file__, str(tmp_path)]
    output = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True
    ).stdout
    sizes = [int(size) for size in output.split()]
    assert len(sizes) == 10
    assert max(sizes) - sizes[0] < 48 * MEBIBYTE, [size // MEBIBYTE for size in sizes]


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
