"""`mirage bench engine`: the engine's own work per call, durable commit included, beside bare clients.

Engine and bare clients send the same requests to the same loopback server, each in a process of its own, in turns and
several times; the least processor time of each counts, since other work on the machine can only add to it. The engine
does all that it does in a sweep: plan, lease, admit, reserve, write the attempt, send, decode, settle, read, commit.
"""

import cProfile
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.throughput.floor import Client, Measured, Order
from bench.throughput.lab import Quick, card_at, make_runner, plan, providers_at, questions, register
from bench.throughput.loopback import base_url, serving
from bench.throughput.process import Window, answer, in_child, load, peak_mb
from engine.clock import SystemClock
from engine.events import Notice, Outcome
from engine.limits import RateLimits
from engine.store import Store

LATENCIES: Final = (0, 200)
CONCURRENCIES: Final = (100, 500)
CLIENTS: Final[tuple[Client, ...]] = ("engine", "httpx", "aiohttp")
MODULES: Final = {"engine": "bench.throughput.engine", "httpx": "bench.throughput.floor"}
# Adaptive concurrency doubles from 16; by then it has long reached the measured one.
WARM_ROUNDS: Final = 3


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the result.

    Attributes:
        ratio_to_floor: processor time per call, as a multiple of httpx's in the same run.
        ideal_per_s: what the latency allows at this concurrency, 0 for no latency.
        share_of_ideal: how much of it was reached.
        plan_cpu_s_per_1000: the part of `cpu_s_per_1000` that went into planning.
    """

    client: str
    latency_ms: int
    concurrency: int
    calls: int
    cpu_s_per_1000: float
    requests_per_s: float
    ratio_to_floor: float
    ideal_per_s: float
    share_of_ideal: float
    plan_cpu_s_per_1000: float
    peak_mb: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and how busy the machine was: absolute figures of a busy machine are upper bounds."""

    cases: tuple[Case, ...]
    repeats: int
    load_before: float
    load_after: float


def run_cases(
    *,
    calls: int,
    repeats: int,
    latencies: Sequence[int] = LATENCIES,
    concurrencies: Sequence[int] = CONCURRENCIES,
    clients: Sequence[Client] = CLIENTS,
    folder: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure every case `repeats` times, clients in turn."""
    before, rows = load(), list[Case]()
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    try:
        with serving() as port:
            for latency in latencies:
                for concurrency in concurrencies:
                    told(f"{latency} ms, {concurrency} at a time")
                    order = Order(
                        client="engine",
                        base_url=base_url(port, latency),
                        concurrency=concurrency,
                        calls=calls,
                        warm=WARM_ROUNDS * concurrency,
                        folder=str(place),
                    )
                    rows.extend(_rows(order, latency, _measure(order, clients, repeats)))
    finally:
        shutil.rmtree(place)
    return Report(cases=tuple(rows), repeats=repeats, load_before=before, load_after=load())


def _measure(order: Order, clients: Sequence[Client], repeats: int) -> dict[Client, list[Measured]]:
    found: dict[Client, list[Measured]] = {client: [] for client in clients}
    for _ in range(repeats):
        for client in clients:
            chosen = msgspec.structs.replace(order, client=client)
            found[client].append(in_child(MODULES.get(client, MODULES["httpx"]), chosen, Measured))
    return found


def _rows(order: Order, latency: int, found: dict[Client, list[Measured]]) -> Iterable[Case]:
    floor = min((each.cpu_s_per_1000 for each in found.get("httpx", [])), default=0.0)
    ideal = order.concurrency * 1000 / latency if latency else 0.0
    for client, runs in found.items():
        best = min(runs, key=lambda each: each.cpu_s_per_1000)
        fastest = max(each.requests_per_s for each in runs)
        yield Case(
            client=client,
            latency_ms=latency,
            concurrency=order.concurrency,
            calls=order.calls,
            cpu_s_per_1000=round(best.cpu_s_per_1000, 4),
            requests_per_s=round(fastest, 1),
            ratio_to_floor=round(best.cpu_s_per_1000 / floor, 3) if floor else 0.0,
            ideal_per_s=ideal,
            share_of_ideal=round(fastest / ideal, 4) if ideal else 0.0,
            plan_cpu_s_per_1000=round(best.plan_cpu_s_per_1000, 4),
            peak_mb=round(best.peak_mb, 1),
        )


# ----- the child


async def measure(order: Order) -> Measured:
    """Run a whole sweep through the engine and return what a call of it costs."""
    window = Window(order.warm, order.warm + order.calls)
    folder = Path(tempfile.mkdtemp(dir=order.folder or None))
    card, clock = card_at(order.base_url), SystemClock()
    providers = providers_at(card)
    try:
        async with await Store.open(folder / "store.sqlite") as store:
            sweep = await register(store, clock)
            started = time.process_time()
            await plan(store, sweep, questions(card, order.total))
            planned = 1000 * (time.process_time() - started) / order.total
            limits = RateLimits(concurrency=order.concurrency)
            runner = await make_runner(
                store, sweep, card, providers, Quick(window.tick), limits=limits, listen=_say_nothing, clock=clock
            )
            with _profiled(order.profile):
                outcome = await runner.run(())
        assert outcome is Outcome.COMPLETE, outcome  # noqa: S101 - a benchmark of failing calls is none
    finally:
        for provider in providers.values():
            await provider.close()
        shutil.rmtree(folder)
    return Measured(
        cpu_s_per_1000=window.cpu_s_per_1000() + planned,
        requests_per_s=window.per_s(),
        peak_mb=peak_mb(),
        plan_cpu_s_per_1000=planned,
    )


class _profiled:  # noqa: N801 - reads as a statement
    """Profiles a block into a file, or does nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._profile = cProfile.Profile() if path else None

    def __enter__(self) -> None:
        if self._profile is not None:
            self._profile.enable()

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(self._path)


def _say_nothing(_: Notice) -> None:
    return


if __name__ == "__main__":
    answer(Order, measure)
