"""A store to work on, and a desk from which a test plays one worker of a sweep."""

import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.batch.lane import BatchLane
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchLimits
from engine.batch.testing import LIMITS, QUICK, BatchFaults, BatchScript, ScriptedBatches
from engine.batch.wiring import Batching
from engine.cell import Cell, Read, Reader, Reading, ReadingStatus
from engine.clock import Clock, SystemClock
from engine.errors import ErrorClass, ProviderError
from engine.events import Notice, Outcome, Snapshot
from engine.lane import Leased, Ticket
from engine.ledger import ZERO, Amount, Cap, Ledger, Scope
from engine.limits import RateLimits
from engine.money import Price
from engine.progress import Progress
from engine.provider import Provider
from engine.request import Completion
from engine.retry import RetryPolicy
from engine.rows import BATCH_SUFFIX
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.state import State
from engine.store import Recovery, Store, Sweep
from engine.testing import EchoReader, ScriptedProvider, make_completion, make_ticket

LANE = "scripted/m-1"
BATCHES = f"{LANE}{BATCH_SUFFIX}"


class Desk:
    """One run of one sweep, step by step."""

    def __init__(self, store: Store, sweep: Sweep, run_id: int) -> None:
        self.store, self.sweep, self.run_id = store, sweep, run_id

    async def plan(self, *cells: Cell) -> int:
        """Plan cells; return how many are new."""
        return (await self.store.plan(self.sweep.id, cells)).added

    async def lease(
        self,
        most: int = 100,
        *,
        now_ms: int = 0,
        lane: str = LANE,
        skip_stages: Sequence[str] = (),
        aliases: Sequence[str] | None = None,
    ) -> list[Leased]:
        """Lease planned requests."""
        return await self.store.lease(
            sweep_id=self.sweep.id,
            run_id=self.run_id,
            lane=lane,
            most=most,
            now_ms=now_ms,
            skip_stages=skip_stages,
            aliases=aliases,
        )

    async def send(self, leased: Leased, *, number: int | None = None, nano: int = 1_000) -> Ticket:
        """Make an attempt durable; return its ticket."""
        ticket = make_ticket(leased, nano=nano)
        if number is not None:
            ticket.attempt = number
        assert await self.store.send(ticket, self.run_id, 10)
        return ticket

    async def on_wire(self, *cells: Cell, nano: int = 1_000) -> list[Ticket]:
        """Plan, lease and send cells."""
        await self.plan(*cells)
        return [await self.send(leased, nano=nano) for leased in await self.lease()]

    async def settle(
        self,
        ticket: Ticket,
        *,
        text: str = "hi",
        paid: Amount = Amount(400, 7),  # noqa: B008 - immutable
        follow_ups: Sequence[Cell] = (),
        completion: Completion | None = None,
        read: bool = True,
    ) -> None:
        """Store an answer with a reading for each of its cells."""
        made = Read(
            reading=Reading(status=ReadingStatus.COMPLETE, version=1, body=b'{"text":"%s"}' % text.encode()),
            follow_ups=follow_ups,
        )
        await self.store.settle(
            ticket,
            completion or make_completion(text),
            [(cell.id, made) for cell in ticket.leased.cells] if read else [],
            sweep_id=self.sweep.id,
            paid=paid,
            latency_ms=5,
            now_ms=20,
        )

    async def fail(
        self,
        ticket: Ticket,
        kind: ErrorClass = ErrorClass.TRANSIENT,
        *,
        state: State = State.PLANNED,
        keep: bool = False,
        paid: Amount = ZERO,
        message: str = "oops",
    ) -> None:
        """Store a failed attempt."""
        ticket.tries = ticket.tries.after(kind)
        error = ProviderError(kind, message)
        await self.store.fail(ticket, error, state=state, keep=keep, paid=paid, now_ms=30)

    async def unread(self) -> list[tuple[int, str]]:
        """Return (cell, answer) of what is answered but not read."""
        found = await self.store.unread(self.sweep.id, 0, 1_000)
        return [(each.cell.id, each.completion.text) for each in found]

    async def spent(self) -> Amount:
        """Return what the sweep has used."""
        scope = Scope("sweep", self.sweep.name)
        spent, reserved = (used.get(scope, ZERO) for used in await self.store.used(self.sweep))
        return Amount(spent.nano + reserved.nano, spent.tokens + reserved.tokens)


async def sit_down(store: Store, name: str = "s") -> Desk:
    """Register a sweep, unless the store has it, and a new run of it."""
    sweep = await store.find_sweep(name)
    if sweep is None:
        await store.add_sweep(name, "{}", "h", simulated=True, now_ms=1)
        sweep = await store.find_sweep(name)
    assert sweep is not None
    return Desk(store, sweep, await store.begin_run(sweep.id, "{}", 1))


@pytest.fixture(scope="session")
def seat() -> object:
    """`sit_down`, for tests that need several desks."""
    return sit_down


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty open store of every backend."""
    async with await Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
async def desk(store: Store) -> Desk:
    """A desk with one sweep and one run."""
    return await sit_down(store)


class Rig:
    """Runs sweeps over one store file, each run as a program of its own would.

    The aliases `m` and `n` share a lane; `o` has one of its own at the same provider; `p` is at another provider.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.provider: Provider = ScriptedProvider(lambda request, times: "hi")
        self.other: Provider = ScriptedProvider(lambda request, times: "hi", name="other")
        self.aliases = {"m": "scripted/m-1", "n": "scripted/m-1", "o": "scripted/m-2", "p": "other/m-1"}
        self.price = Price(input=1_000_000_000, output=1_000_000_000)
        self.limits = RateLimits(concurrency=8, adaptive=False)
        self.caps: Mapping[Scope, Cap] = {}
        self.policy = RetryPolicy(base=0.001)
        self.reader: Reader = EchoReader()
        self.clock: Clock = SystemClock()
        self.patience = 60.0
        self.look_every = 2.0
        self.free: Sequence[str] = ()
        self.unpriced: set[str] = set()
        self.batching: Callable[[], Batching] | None = None
        self.started: Callable[[Runner], object] = lambda runner: None
        self.notices: list[Notice] = []
        self.recovery: Recovery | None = None
        self.last: Snapshot | None = None

    @property
    def calls(self) -> list[str]:
        """What the first provider was asked, in order."""
        assert isinstance(self.provider, ScriptedProvider)
        return [request.messages[0].content for request in self.provider.seen]

    def told(self, kind: str) -> list[str]:
        """The notices of one kind."""
        return [notice.text for notice in self.notices if notice.kind == kind]

    async def run(self, cells: Iterable[Cell], *, sweep: str = "s") -> Outcome:
        """Open the store, recover, run, close."""
        async with await Store.open(self.path, retry_seconds=0.02) as store:
            desk = await sit_down(store, sweep)
            self.recovery = await store.recover(self.free, self.clock.wall_ms())
            routes = {
                alias: Route(lane, lane.partition("/")[0], self.price, self.limits)
                for alias, lane in self.aliases.items()
            }
            ledger = Ledger(self.caps, *await store.used(desk.sweep))
            runner = Runner(
                store=store,
                sweep=desk.sweep,
                run_id=desk.run_id,
                scheduler=Scheduler(
                    sweep=sweep, routes=routes, ledger=ledger, policy=self.policy, now=self.clock.now()
                ),
                providers={"scripted": self.provider, "other": self.other},
                prices=dict.fromkeys(set(routes) - self.unpriced, self.price),
                reader=self.reader,
                clock=self.clock,
                rng=Random(1),  # noqa: S311 - jitter
                progress=Progress({}),
                listen=self.notices.append,
                batching=self.batching() if self.batching else None,
                patience=self.patience,
                look_every=self.look_every,
            )
            self.started(runner)
            try:
                return await runner.run(cells)
            finally:
                self.last = runner.snapshot()

    def by_batch(
        self, *faults: BatchFaults, script: BatchScript = lambda request, times: "hi", policy: BatchPolicy = QUICK,
        limits: BatchLimits = LIMITS, feeds: Mapping[str, frozenset[str]] | None = None,
        kind: type[ScriptedBatches] = ScriptedBatches, **options: Any,
    ) -> Any:  # fmt: skip
        """Give the rig a batch API that outlives its runs; every run has its own lanes and token."""
        provider = kind(script, now=time.time, limits=limits, faults=faults, **options)
        runs = itertools.count()

        def batching() -> Batching:
            lane = BatchLane(BATCHES, provider="scripted", model="m-1", limits=provider.limits("m-1"), policy=policy)
            return Batching(
                providers={"scripted": provider}, lanes={BATCHES: lane}, prices=dict.fromkeys(self.aliases, self.price),
                policy=policy, retry=RetryPolicy(failures=3, base=0.001),
                leftovers={BATCHES: BATCHES if policy.leftovers == "batch" else LANE},
                feeds=feeds or {}, folder=self.path.with_suffix(".batches"), run=f"run{next(runs)}",
            )  # fmt: skip

        self.batching = batching
        return provider

    async def query(self, sql: str) -> list[tuple[object, ...]]:
        """Look into the store from outside."""
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    async def states(self) -> dict[object, object]:
        """Return how many requests are in each state."""
        return dict(await self.query("SELECT state, count(*) FROM requests GROUP BY state"))  # type: ignore[arg-type]

    async def spent(self) -> int:
        """Return the money that is spent or reserved, after checking that the books agree."""
        books = "SELECT coalesce(sum(cost_nano), 0), coalesce(sum(reserved_nano), 0) FROM spend"
        rows = (
            "SELECT coalesce(sum(cost_nano), 0),"
            " coalesce(sum(iif(outcome IN ('open', 'in_doubt'), reserved_nano, 0)), 0) FROM attempt"
        )
        (kept,), (summed,) = await self.query(books), await self.query(rows)
        assert kept == summed
        return int(str(kept[0])) + int(str(kept[1]))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A rig over a new store file."""
    return Rig(tmp_path / "store.sqlite")
