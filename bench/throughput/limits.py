"""`mirage bench limits`: how much of a rate limit the engine uses, and how often it is told to slow down.

The judge is the simulator, which keeps the limit as providers do and writes a bill. A case is run for a bounded time
with more work than fits; its steady state begins when the first burst is over. A limit is either given (the sweep file
or the catalogue says it) or learned (only the reply headers say it). Where several processes share one key, each has a
store of its own and its share of the limit, and together they are judged.
"""

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from bench.loop import run_loop
from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import running
from bench.throughput.lab import Quick, card_at, make_runner, plan, providers_at, questions, register
from bench.throughput.process import answer, in_child, load
from engine.clock import SystemClock
from engine.limits import MINUTE, RateLimits
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.store import Store

LATENCY_MS: Final = 200
# Enough connections for the fastest case: 500 calls a second of 200 ms each, twice.
CONCURRENCY: Final = 256
ALLOWANCE: Final = 200
# A question takes about so many tokens; only how many are planned depends on it.
TOKENS_A_CALL: Final = 120
SLICE: Final = 1.0
STORES: Final = "store-*.sqlite"
FEWEST: Final = 3


class Kind(StrEnum):
    """What is limited."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CONCURRENCY = "concurrency"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One limit for one run.

    Attributes:
        limit: per minute; for concurrency, calls at once.
        window: seconds' worth of calls that the provider lets through at once; 60 is a whole minute's burst.
        given: the engine is told the limit; else it has only the reply headers.
        seconds, settle: length of the run, and of its beginning that does not count as steady state.
        processes: how many use the key at the same time, each with an equal share.
    """

    kind: Kind
    limit: int
    window: float = MINUTE
    given: bool = True
    seconds: float = 30.0
    settle: float = 8.0
    processes: int = 1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do."""

    case: Case
    base_url: str
    store: str


class Began(msgspec.Struct, frozen=True):
    """When a process began to send, in seconds since the epoch."""

    began: float


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a case came to.

    Attributes:
        share: of the allowed rate that was used in steady state.
        calls, throttled: sent in the whole run, and those that got a 429.
        throttled_share: throttled calls among all; `steady_throttled` are those of the steady state.
    """

    case: Case
    share: float
    calls: int
    throttled: int
    throttled_share: float
    steady_throttled: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All cases, and how busy the machine was."""

    found: tuple[Found, ...]
    load_before: float
    load_after: float


def cases(*, bounded: bool = False) -> list[Case]:
    """Return the cases of the benchmark; a bounded form takes well under a minute."""
    if bounded:
        return [
            Case(kind=Kind.REQUESTS, limit=1200, seconds=6, settle=2),
            Case(kind=Kind.CONCURRENCY, limit=16, seconds=5, settle=2),
        ]
    rates = [Case(kind=Kind.REQUESTS, limit=60, seconds=60, settle=10)]
    rates += [Case(kind=Kind.REQUESTS, limit=limit) for limit in (600, 3000, 10_000, 30_000)]
    slices = [msgspec.structs.replace(case, window=SLICE) for case in rates]
    learned = [msgspec.structs.replace(case, given=False) for case in rates[:4]]
    tokens = [
        Case(kind=Kind.TOKENS, limit=1_000_000, given=given, window=window)
        for given, window in ((True, MINUTE), (True, SLICE), (False, MINUTE))
    ]
    parts = [Case(kind=Kind.INPUT_TOKENS, limit=500_000), Case(kind=Kind.OUTPUT_TOKENS, limit=100_000)]
    at_once = [Case(kind=Kind.CONCURRENCY, limit=32, given=given) for given in (True, False)]
    beside = [Case(kind=Kind.REQUESTS, limit=3000, given=given, processes=2) for given in (True, False)]
    return [*rates, *slices, *learned, *tokens, *parts, *at_once, *beside]


def run_cases(
    chosen: Sequence[Case], *, folder: Path | None = None, told: Callable[[str], None] = lambda _: None
) -> Report:
    """Run every case against a simulator of its own."""
    before, found = load(), []
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    try:
        for number, case in enumerate(chosen):
            told(describe(case))
            found.append(run_case(case, place / str(number)))
    finally:
        shutil.rmtree(place)
    return Report(found=tuple(found), load_before=before, load_after=load())


def run_case(case: Case, folder: Path) -> Found:
    """Run one case; its store and bill are left in `folder`."""
    folder.mkdir(parents=True)
    settings = folder / "simulator.toml"
    settings.write_text(_settings(case), encoding="utf-8")
    with running(folder / "simulator", config=settings) as simulator:
        started = _sent(case, simulator.url("openai"), folder)
        begin, end = started + case.settle, started + case.seconds
        charges = [each for each in read_bill(simulator.bill) if isinstance(each, Charge) and begin <= each.at <= end]
    calls, throttled, steady = map(sum, zip(*(_attempts(store, begin) for store in folder.glob(STORES)), strict=True))
    return Found(
        case=case,
        share=round(_share(case, charges), 4),
        calls=calls,
        throttled=throttled,
        throttled_share=round(throttled / calls, 5) if calls else 0.0,
        steady_throttled=steady,
    )


def describe(case: Case) -> str:
    """Return one line about a case."""
    unit = "calls at once" if case.kind is Kind.CONCURRENCY else f"{case.kind.value.replace('_', ' ')}/min"
    window = "" if case.kind is Kind.CONCURRENCY else f", bursts of {case.window:.0f} s"
    beside = "" if case.processes == 1 else f", {case.processes} processes"
    return f"{case.limit:,} {unit}, {'given' if case.given else 'learned'}{window}{beside}"


def _sent(case: Case, base_url: str, folder: Path) -> float:
    """Keep as many processes as the case has busy; return when the last one began, in seconds since the epoch."""
    orders = [
        Order(case=case, base_url=base_url, store=str(folder / STORES.replace("*", str(number))))
        for number in range(case.processes)
    ]
    if case.processes == 1:
        return run_loop(_send(orders[0])).began
    with ThreadPoolExecutor(case.processes) as pool:
        return max(each.began for each in pool.map(lambda order: in_child(__name__, order, Began), orders))


async def _send(order: Order) -> Began:
    """Keep one engine busy for the length of the case."""
    case, clock, card = order.case, SystemClock(), card_at(order.base_url)
    providers = providers_at(card)
    async with await Store.open(Path(order.store)) as store:
        sweep = await register(store, clock)
        await plan(store, sweep, questions(card, _enough(case), allowance=ALLOWANCE))
        runner = await make_runner(
            store, sweep, card, providers, Quick(),
            limits=_limits(case), listen=lambda _: None, clock=clock, policy=RetryPolicy(throttles=10_000),
        )  # fmt: skip
        began = Began(began=clock.wall_ms() / 1000)
        stopper = asyncio.create_task(_stop(runner, case.seconds))
        await runner.run(())
        stopper.cancel()
    for provider in providers.values():
        await provider.close()
    return began


async def _stop(runner: Runner, seconds: float) -> None:
    await asyncio.sleep(seconds)
    runner.drain()


def _limits(case: Case) -> RateLimits:
    known = {case.kind.value: case.limit} if case.given else {}
    return msgspec.structs.replace(RateLimits(concurrency=CONCURRENCY, share=1 / case.processes), **known)


def _settings(case: Case) -> str:
    name = "concurrency" if case.kind is Kind.CONCURRENCY else f"{case.kind.value}_per_minute"
    return (
        f'[limits."*"]\n{name} = {case.limit}\nwindow = {case.window}\n'
        f'[latency."*"]\nmedian_ms = {LATENCY_MS}\nshape = "fixed"\n'
    )


def _enough(case: Case) -> int:
    """Return how many questions last longer than the case."""
    match case.kind:
        case Kind.CONCURRENCY:
            return int(1.2 * case.limit * case.seconds * 1000 / LATENCY_MS) + 2 * CONCURRENCY
        case Kind.REQUESTS:
            per_second = case.limit / MINUTE
        case Kind.OUTPUT_TOKENS:
            per_second = case.limit / MINUTE / 10
        case _:
            per_second = case.limit / MINUTE / TOKENS_A_CALL
    return int(1.2 * per_second * case.seconds + case.window * per_second) + 2 * CONCURRENCY


def _share(case: Case, charges: Sequence[Charge]) -> float:
    """Return the used share of the allowed rate, from first to last charge, so that edges do not matter."""
    if len(charges) < FEWEST:
        return 0.0
    seconds = charges[-1].at - charges[0].at
    used = sum(_units(case.kind, charge) for charge in charges[1:])
    if case.kind is Kind.CONCURRENCY:
        return used / seconds * LATENCY_MS / 1000 / case.limit
    return used / seconds * MINUTE / case.limit


def _units(kind: Kind, charge: Charge) -> int:
    match kind:
        case Kind.TOKENS:
            return charge.usage.input_tokens + charge.usage.output_tokens
        case Kind.INPUT_TOKENS:
            return charge.usage.input_tokens
        case Kind.OUTPUT_TOKENS:
            return charge.usage.output_tokens
        case _:
            return 1


def _attempts(store: Path, begin: float) -> tuple[int, int, int]:
    """Return calls sent, calls refused for rate, and those of them that were sent in the steady state."""
    with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        calls, throttled, steady = connection.execute(
            "SELECT count(*), coalesce(sum(error_class = 'rate'), 0),"
            " coalesce(sum(error_class = 'rate' AND sent_ms >= ?), 0) FROM attempts",
            (begin * 1000,),
        ).fetchone()
    return calls, throttled, steady


if __name__ == "__main__":
    answer(Order, _send)
