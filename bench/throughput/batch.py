"""`mirage bench batch`: what a batch costs this program itself: building it, sending it, reading and settling it.

The provider is the simulator, a process of its own, spoken to by the real adapter. Building ends when the batch is
sealed on the disk, settling begins when its results have been brought; neither waits for the provider, so that its pace
does not count. One process plans the requests, another one does the rest, so that its memory and time are its own.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from bench.simulator.launch import running
from bench.simulator.rehearsal import TAILS, price_settings
from bench.throughput.batched import MODELS, batches_at, cards_at, make_batch_runner, questions
from bench.throughput.killed_batches import AimedBatches, AimedStore, Moment
from bench.throughput.lab import Quick, plan, register
from bench.throughput.process import answer, in_child, load, peak_mb, resident_mb
from engine.batch.policy import BatchPolicy
from engine.clock import SystemClock
from engine.events import Outcome
from engine.retry import RetryPolicy
from engine.store import Store

PROVIDER: Final = "anthropic"
LEAST_BUILT_PER_S: Final = 20_000.0
LEAST_SETTLED_PER_S: Final = 20_000.0
MOST_STALL_MS: Final = 50.0
# Memory counts as flat when ten times the requests take less than this much more.
MOST_GROWTH_MB: Final = 40.0
TICK: Final = 0.002
Result = TypeVar("Result")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do with the store."""

    act: Literal["plan", "send"]
    store: str
    provider: str
    address: str
    requests: int


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the way: processor time of the whole process, all its threads, and time by the clock."""

    cpu_s: float
    wall_s: float
    cpu_s_per_1000: float
    per_cpu_s: float
    per_s: float


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a child found.

    Attributes:
        build, send, settle: from the first request looked at to the sealed file; from there to the results on the disk,
            waiting for the provider included; and from there to the last commit.
        stall_ms: the longest that the event loop was late, other processes' turns included.
        busy_ms: the most processor time that it spent between two looks at its clock.
        before_mb, peak_mb: memory at the start and at most.
    """

    requests: int
    batches: int = 0
    build: Phase | None = None
    send: Phase | None = None
    settle: Phase | None = None
    stall_ms: float = 0.0
    stall_after: str = ""
    busy_ms: float = 0.0
    busy_after: str = ""
    before_mb: float = 0.0
    peak_mb: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A small and a large batch; `holds` says whether the targets were met."""

    provider: str
    small: Step
    large: Step
    growth_mb: float
    holds: bool
    load_before: float
    load_after: float


class Watch:
    """Notes the times of steps; stands where a sweep that is killed has its trigger."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, Moment], list[tuple[float, float]]] = {}
        self.last = ""

    def at(self, step: str, moment: Moment) -> None:
        """Note a moment."""
        if step in ("line", "row"):
            return
        self.last = f"{moment} {step}"
        self.marks.setdefault((step, moment), []).append((time.process_time(), time.perf_counter()))

    async def around(self, step: str, call: Coroutine[Any, Any, Result]) -> Result:
        """Note when a call begins and ends."""
        self.at(step, "before")
        result = await call
        self.at(step, "after")
        return result

    def phase(self, requests: int, *spans: tuple[tuple[str, Moment], tuple[str, Moment]]) -> Phase:
        """Return the time between two steps, summed over batches that came one after the other."""
        cpu = wall = 0.0
        for first, last in spans:
            for begun, ended in zip(self.marks.get(first, []), self.marks.get(last, []), strict=True):
                cpu, wall = cpu + ended[0] - begun[0], wall + ended[1] - begun[1]
        return Phase(
            cpu_s=round(cpu, 3),
            wall_s=round(wall, 3),
            cpu_s_per_1000=round(1000 * cpu / requests, 4),
            per_cpu_s=round(requests / cpu) if cpu else 0.0,
            per_s=round(requests / wall) if wall else 0.0,
        )


class Lag:
    """Measures how late the event loop is at worst, and how busy its own thread was meanwhile."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.late = self.busy = 0.0
        self.after = self.late_after = ""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due, spent = loop.time() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            busy = time.thread_time() - spent
            late = loop.time() - due
            if late > self.late:
                self.late, self.late_after = late, self._watch.last
            if busy > self.busy:
                self.busy, self.after = busy, self._watch.last


def run_batch(
    *, requests: int, small: int, provider: str = PROVIDER, folder: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Report:  # fmt: skip
    """Build, send and settle `small` requests by batch, and then `requests`."""
    before = load()
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    settings = place / "simulator.toml"
    settings.write_text(_settings(), encoding="utf-8")
    try:
        with running(place / "simulator", config=settings) as simulator:
            address = simulator.url(provider) + TAILS.get(provider, "")
            steps = []
            for count in (small, requests):
                order = Order(
                    act="plan", store=str(place / f"{count}.sqlite"), provider=provider, address=address, requests=count
                )
                told(f"plan {count:,} requests")
                in_child(__name__, order, Step)
                told(f"send {count:,} requests")
                steps.append(in_child(__name__, msgspec.structs.replace(order, act="send"), Step))
    finally:
        shutil.rmtree(place)
    growth = round(steps[1].peak_mb - steps[0].peak_mb, 1)
    return Report(
        provider=provider,
        small=steps[0],
        large=steps[1],
        growth_mb=growth,
        holds=_holds(steps[1], growth),
        load_before=before,
        load_after=load(),
    )


def _holds(step: Step, growth: float) -> bool:
    return (
        step.build is not None
        and step.settle is not None
        and step.build.per_cpu_s >= LEAST_BUILT_PER_S
        and step.settle.per_cpu_s >= LEAST_SETTLED_PER_S
        and step.busy_ms <= MOST_STALL_MS
        and growth <= MOST_GROWTH_MB
    )


def _settings() -> str:
    cards = cards_at(dict.fromkeys(MODELS, "http://127.0.0.1:1"))
    return f"{price_settings(cards.values())}\n[batches]\nrequest = 0.01\n"


# ----- the children


async def act(order: Order) -> Step:
    """Plan, or do the rest and measure it."""
    memory = resident_mb()
    cards = cards_at({order.provider: order.address})
    if order.act == "plan":
        async with await Store.open(Path(order.store)) as store:
            await plan(store, await register(store, SystemClock()), questions(cards, order.requests))
        return Step(requests=order.requests)
    watch = Watch()
    lag = Lag(watch)
    providers = {name: AimedBatches(each, watch) for name, each in batches_at(cards).items()}
    path = Path(order.store)
    async with await AimedStore.aimed(path, watch) as store:
        sweep = await register(store, SystemClock())
        runner = await make_batch_runner(
            store, sweep, cards, providers, policy=_policy(), retry=RetryPolicy(), listen=lambda _: None,
            folder=path.with_suffix(".batches"), run="bench", reader=Quick(),
        )  # fmt: skip
        ticking = asyncio.create_task(lag.run())
        outcome = await runner.run(())
        ticking.cancel()
        assert outcome is Outcome.COMPLETE, outcome  # noqa: S101 - a benchmark of failing calls is none
        made = sum(len(times) for (step, moment), times in watch.marks.items() if (step, moment) == ("create", "after"))
    for provider in providers.values():
        await provider.close()
    return Step(
        requests=order.requests,
        batches=made,
        build=watch.phase(order.requests, (("add_batch", "before"), ("stage ready", "after"))),
        send=watch.phase(order.requests, (("stage ready", "after"), ("download", "after"))),
        settle=watch.phase(order.requests, (("download", "after"), ("stage settled", "after"))),
        stall_ms=round(1000 * lag.late, 1),
        stall_after=lag.late_after,
        busy_ms=round(1000 * lag.busy, 1),
        busy_after=lag.after,
        before_mb=round(memory, 1),
        peak_mb=round(peak_mb(), 1),
    )


def _policy() -> BatchPolicy:
    return BatchPolicy(first_poll=0.2, longest_poll=1.0, leftovers="batch")


if __name__ == "__main__":
    answer(Order, act)
