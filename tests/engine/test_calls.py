"""One call, step by step: what becomes of it when something comes between the steps."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from engine.calls import Calls
from engine.clock import SystemClock
from engine.errors import ErrorClass, ProviderError
from engine.lane import Ticket
from engine.ledger import Ledger, Scope
from engine.limits import RateLimits
from engine.money import Price
from engine.progress import Progress
from engine.provider import WITHDRAWN
from engine.readings import Readings
from engine.retry import RetryPolicy
from engine.scheduler import Route, Scheduler
from engine.state import Event, State
from engine.telling import Telling
from engine.testing import EchoReader, ScriptedProvider, make_cell

Desk = Any
PRICE = Price(input=1_000_000_000, output=1_000_000_000)


class Table:
    """A call that has been admitted and can be carried out."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.provider = ScriptedProvider(lambda request, times: "hi", latency=0.001)
        self.progress = Progress({})
        limits = RateLimits(requests=60, concurrency=1, adaptive=False)
        self.scheduler = Scheduler(
            sweep="s",
            routes={"m": Route("scripted/m-1", "scripted", PRICE, limits)},
            ledger=Ledger({}, {}),
            policy=RetryPolicy(),
            now=0.0,
        )
        tell = Telling(lambda notice: None)
        readings = Readings(
            store=desk.store, sweep_id=desk.sweep.id, reader=EchoReader(), progress=self.progress, tell=tell,
            expect=lambda cells: None,
        )  # fmt: skip
        self.woken = asyncio.Event()
        self.calls = Calls(
            store=desk.store, sweep_id=desk.sweep.id, run_id=desk.run_id, scheduler=self.scheduler,
            providers={"scripted": self.provider}, prices={"m": PRICE}, readings=readings, clock=SystemClock(),
            rng=Random(1), progress=self.progress, tell=tell, keep=asyncio.ensure_future, wake=self.woken.set,  # noqa: S311 - jitter
        )  # fmt: skip

    async def admit(self) -> Ticket:
        """Plan, lease and admit one request."""
        await self.desk.plan(make_cell(1))
        leased = await self.desk.lease()
        self.calls.held.update(each.id for each in leased)
        self.scheduler.offer(leased)
        (ticket,) = self.scheduler.schedule(0.0).sends
        return ticket

    def at_rest(self) -> bool:
        """Say whether nothing is in flight or reserved, and the lane's limits are as full as before."""
        reserved = self.scheduler.ledger.accounts()[Scope("sweep", "s")].reserved_nano
        return self.scheduler.in_flight() == 0 and reserved == 0


@pytest.fixture
async def table(desk: Desk) -> Table:
    """A table over an empty store."""
    return Table(desk)


async def begun(coroutine: Awaitable[None]) -> asyncio.Task[None]:
    """A task that has run until it first had to wait."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    return task  # type: ignore[return-value]


async def test_a_call_is_on_disk_before_it_is_on_the_wire(table: Table) -> None:
    """The attempt first, then the bytes."""
    ticket = await table.admit()
    task = await begun(table.calls.carry_out(ticket))
    assert table.provider.seen == []
    while not table.provider.seen:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0)
    assert (await table.desk.spent()).nano == ticket.worst.nano
    await task
    assert ticket.state is State.SETTLED
    assert table.at_rest()


async def test_a_call_that_is_stopped_while_it_is_announced_does_not_leave(table: Table) -> None:
    """Its attempt ends without a cost, and its request is free and planned."""
    ticket = await table.admit()
    task = await begun(table.calls.carry_out(ticket))
    table.calls.draining = True
    await task
    assert (table.provider.seen, ticket.state) == ([], State.PLANNED)
    assert (await table.desk.spent()).nano == 0
    assert len(await table.desk.lease()) == 1
    assert table.at_rest()
    assert table.calls.held == set()


@pytest.mark.parametrize("stop", ["drain", "hang_up"])
async def test_a_call_that_is_stopped_when_it_has_just_been_let_go_does_not_leave(table: Table, stop: str) -> None:
    """It is neither waiting for room any more nor on the wire yet."""
    ticket = await table.admit()
    await table.desk.store.send(ticket, table.desk.run_id, 0)
    ticket.advance(Event.SEND)
    table.calls.depart([ticket])
    table.calls.drain()
    if stop == "hang_up":
        table.calls.hang_up()
    while table.calls.held:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0)
    assert (table.provider.seen, ticket.state) == ([], State.PLANNED)
    assert (await table.desk.spent()).nano == 0
    assert table.at_rest()


async def test_a_call_that_is_stopped_before_it_is_announced_stays_in_its_lane(table: Table) -> None:
    """So that its lease is given back with the others."""
    ticket = await table.admit()
    table.calls.draining = True
    await table.calls.carry_out(ticket)
    assert table.scheduler.drain() == [ticket]
    assert (await table.desk.spent()).nano == 0
    assert table.at_rest()


async def test_a_call_whose_lease_was_lost_is_dropped(table: Table) -> None:
    """Another run has it; nothing is sent and nothing stays reserved."""
    ticket = await table.admit()
    await table.desk.store.release(table.desk.run_id, [ticket.leased.id])
    await table.calls.carry_out(ticket)
    assert (table.provider.seen, table.scheduler.drain(), table.calls.held) == ([], [], set())
    assert table.at_rest()


async def test_a_call_that_a_store_refuses_to_announce_waits(table: Table) -> None:
    """Nothing is sent that is not on disk."""
    ticket = await table.admit()
    await table.desk.store.close()
    await table.calls.carry_out(ticket)
    assert table.provider.seen == []
    assert table.scheduler.drain() == [ticket]
    assert table.at_rest()


@pytest.mark.parametrize("how", ["hang_up", "finish"])
async def test_hanging_up_leaves_the_attempt_open_on_disk(table: Table, how: str) -> None:
    """It may have been done and billed; a call that is not hung up on is settled."""
    ticket = await table.admit()
    task = await begun(table.calls.carry_out(ticket))
    while not table.calls.on_wire:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0)
    if how == "hang_up":
        table.calls.hang_up()
    await task
    paid = ticket.worst.nano if how == "hang_up" else 7_000
    assert (await table.desk.spent()).nano == paid
    assert table.calls.on_wire == set()


async def test_a_settlement_that_no_store_takes_is_an_error_and_not_silence(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect that strikes twice reaches the run, which stops and says so."""
    ticket = await table.admit()
    settle: Callable[..., Any] = table.desk.store.settle

    async def broken(*args: Any, **fields: Any) -> None:
        await settle(*args, **(fields | {"latency_ms": 2**70}))

    monkeypatch.setattr(table.desk.store, "settle", broken)
    with pytest.raises(OverflowError):
        await table.calls.carry_out(ticket)


async def test_a_call_that_its_provider_had_not_begun_is_planned_again_without_blame(table: Table) -> None:
    """A stopped run takes back what only waited for a local model."""
    error = ProviderError(ErrorClass.RATE, "not begun", code=WITHDRAWN)
    table.provider._script = lambda request, times: error  # what the scripted provider answers from now on
    ticket = await table.admit()
    await table.calls.carry_out(ticket)
    (leased,) = await table.desk.lease()
    assert (leased.tries.failures, leased.tries.throttles, table.progress.errors) == (0, 0, {})
    assert (await table.desk.spent()).nano == 0
    assert table.at_rest()
