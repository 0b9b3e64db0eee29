"""`mirage bench scale`: plan and resume very many requests, and see what memory and patience that takes.

Three processes after each other: one plans everything and is gone, one opens the store again and sends for a while, one
asks for the status. Answers come from inside the process at once: what is measured is the store and the run loop.
"""

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

import msgspec

from bench.throughput.lab import SWEEP, Quick, card_at, make_runner, plan, questions, register
from bench.throughput.process import answer, in_child, load, peak_mb, resident_mb
from engine.clock import SystemClock
from engine.limits import RateLimits
from engine.progress import Progress
from engine.provider import Reply
from engine.request import Completion, Finish, Request, Usage
from engine.runner import Runner
from engine.status import read_status, stage_counts
from engine.store import Store

NOWHERE: Final = "http://127.0.0.1:9"
CONCURRENCY: Final = 256
MOST_MB: Final = 300.0
MOST_READY_S: Final = 5.0
MOST_STATUS_S: Final = 1.0
_COMPLETION: Final = Completion(
    text="An answer.",
    finish=Finish.STOP,
    usage=Usage(input_tokens=120, output_tokens=30),
    finish_raw="stop",
    raw=b'{"choices": [{"message": {"content": "An answer."}}]}',
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do with the store; `began` is when it was started, in seconds since the epoch."""

    act: Literal["plan", "send", "status"]
    store: str
    requests: int
    send: int = 0
    began: float = 0.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a child found.

    Attributes:
        seconds: from the start of the process, loading of the program included, to the end of its work.
        ready_s: from the start of the process to its first call; for `status`, to the answer.
        before_mb, resident_mb, peak_mb: memory before it touched the store, at its end, and at most.
    """

    seconds: float
    ready_s: float
    before_mb: float
    resident_mb: float
    peak_mb: float
    requests: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All steps; `store_mb` is the size of the file, `holds` says whether the targets were met."""

    requests: int
    plan: Step
    send: Step
    status: Step
    plan_per_s: float
    send_per_s: float
    store_mb: float
    integrity: str
    holds: bool
    load_before: float
    load_after: float


class Instant:
    """A provider inside the process that answers at once; `ready` hears of the first call, `enough` of the n-th."""

    def __init__(self, ready: Callable[[], None], most: int, enough: Callable[[], None]) -> None:
        self._ready, self._most, self._enough = ready, most, enough
        self.calls = 0

    @property
    def name(self) -> str:
        """The provider's name."""
        return "openai"

    async def complete(self, request: Request) -> Reply:
        """Answer."""
        del request
        self.calls += 1
        if self.calls == 1:
            self._ready()
        if self.calls == self._most:
            self._enough()
        return Reply(completion=_COMPLETION)

    async def close(self) -> None:
        """Nothing to release."""


def run_scale(
    *, requests: int, send: int, folder: Path | None = None, told: Callable[[str], None] = lambda _: None
) -> Report:
    """Plan `requests`, resume and send `send` of them, ask for the status."""
    before = load()
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    order = Order(act="plan", store=str(place / "store.sqlite"), requests=requests, send=send)
    steps = {}
    try:
        for act in ("plan", "send", "status"):
            told(act)
            chosen = msgspec.structs.replace(order, act=act, began=time.time())
            steps[act] = in_child("bench.throughput.scale", chosen, Step)
        size = Path(order.store).stat().st_size / 1e6
        integrity = _integrity(order.store)
    finally:
        shutil.rmtree(place)
    return Report(
        requests=requests,
        **steps,
        plan_per_s=round(requests / steps["plan"].seconds, 1),
        send_per_s=round(send / (steps["send"].seconds - steps["send"].ready_s), 1),
        store_mb=round(size, 1),
        integrity=integrity,
        holds=_holds(steps, requests),
        load_before=before,
        load_after=load(),
    )


def _holds(steps: dict[str, Step], requests: int) -> bool:
    return (
        all(step.peak_mb <= MOST_MB for step in steps.values())
        and steps["send"].ready_s <= MOST_READY_S
        and steps["status"].ready_s <= MOST_STATUS_S
        and steps["status"].requests == requests
    )


def _integrity(store: str) -> str:
    with closing(sqlite3.connect(store)) as connection:
        found: str = connection.execute("PRAGMA quick_check").fetchone()[0]
    return found


# ----- the children


async def act(order: Order) -> Step:
    """Do one step and measure it."""
    memory = resident_mb()
    match order.act:
        case "plan":
            ready, requests = await _plan(order)
        case "send":
            ready, requests = await _send(order)
        case "status":
            requests = (await read_status(Path(order.store), SWEEP)).requests.total
            ready = time.time() - order.began
    return Step(
        seconds=round(time.time() - order.began, 3),
        ready_s=round(ready, 3),
        before_mb=round(memory, 1),
        resident_mb=round(resident_mb(), 1),
        peak_mb=round(peak_mb(), 1),
        requests=requests,
    )


async def _plan(order: Order) -> tuple[float, int]:
    clock = SystemClock()
    async with await Store.open(Path(order.store)) as store:
        sweep = await register(store, clock)
        await plan(store, sweep, questions(card_at(NOWHERE), order.requests))
    return time.time() - order.began, order.requests


async def _send(order: Order) -> tuple[float, int]:
    """Start as `mirage run` does, and send; what is counted at the start is counted here too."""
    card, clock = card_at(NOWHERE), SystemClock()
    first: list[float] = []
    runners: list[Runner] = []
    provider = Instant(lambda: first.append(time.time() - order.began), order.send, lambda: _drain(runners))
    path = Path(order.store)
    async with await Store.open(path) as store:
        sweep = await register(store, clock)
        await store.recover([], clock.wall_ms())
        Progress(await stage_counts(path, SWEEP))
        runner = await make_runner(
            store, sweep, card, {card.provider: provider}, Quick(),
            limits=RateLimits(concurrency=CONCURRENCY), listen=lambda _: None, clock=clock,
        )  # fmt: skip
        runners.append(runner)
        await runner.run(())
    return first[0], provider.calls


def _drain(runners: list[Runner]) -> None:
    """Let the one run stop; it did not exist yet when its provider was made."""
    runners[0].drain()


if __name__ == "__main__":
    answer(Order, act)
