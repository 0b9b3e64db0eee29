"""The single writer: grouped commits in which one bad operation takes no other with it."""

import asyncio
import sqlite3
from typing import Any

import msgspec
import pytest

from engine.errors import StoreError
from engine.store import Store
from engine.testing import make_cell, make_cells, make_ticket
from engine.writer import LARGEST_GROUP

Desk = Any


def poison(number: int = 0) -> Any:
    """A cell that the database rejects for its own sake."""
    return msgspec.structs.replace(make_cell(number), coords=b"{no json")


async def test_a_rejected_operation_takes_no_other_of_its_group_with_it(desk: Desk) -> None:
    """Its neighbours are committed; only its own waiter hears of the error."""
    tickets = await desk.on_wire(*make_cells(range(20)))
    jobs = [desk.settle(ticket) for ticket in tickets]
    jobs[7:7] = [desk.plan(poison()), desk.plan(make_cell(100), poison(101)), desk.plan(make_cell(102))]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in results[7:10]] == [sqlite3.IntegrityError, sqlite3.IntegrityError, int]
    assert [each for each in results if each is not None and not isinstance(each, Exception)] == [1]
    assert [each.cells[0].coords for each in await desk.lease()] == [b'{"n":102}']
    assert (await desk.spent()).nano == 20 * 400


async def test_a_rejected_operation_is_no_reason_to_distrust_the_disk(desk: Desk) -> None:
    """The store goes on."""
    with pytest.raises(sqlite3.IntegrityError):
        await desk.plan(poison())
    assert desk.store.refused is None
    assert await desk.plan(make_cell(1)) == 1


async def test_a_reading_that_the_database_rejects_leaves_nothing_half_written(desk: Desk) -> None:
    """Neither the answer nor its cost is stored without it; the caller decides what to store instead."""
    (ticket,) = await desk.on_wire(make_cell(1))
    with pytest.raises(sqlite3.IntegrityError):
        await desk.settle(ticket, follow_ups=[poison()])
    assert (await desk.spent()).nano == 1_000
    await desk.settle(ticket)
    assert (await desk.spent()).nano == 400


async def test_a_waiter_that_is_cancelled_does_not_take_its_result_with_it(desk: Desk) -> None:
    """A settlement is never cancelled half way: what was put is written."""
    (ticket,) = await desk.on_wire(make_cell(1))
    waiter = asyncio.create_task(desk.settle(ticket))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await desk.store.flush()
    assert (await desk.spent()).nano == 400


async def test_what_a_call_waits_for_goes_before_what_has_waited_longer(desk: Desk) -> None:
    """Answers can wait for the disk, calls that may not leave before it should not."""
    await desk.plan(*make_cells(range(3 * LARGEST_GROUP)))
    leased, *others = await desk.lease(1000)
    tickets = [await desk.send(each) for each in others]
    ended: list[str] = []
    jobs = [asyncio.create_task(desk.settle(ticket), name="settle") for ticket in tickets]
    await asyncio.sleep(0)
    jobs.append(asyncio.create_task(desk.store.send(make_ticket(leased), desk.run_id, 0), name="send"))
    for job in jobs:
        job.add_done_callback(lambda done: ended.append(done.get_name()))
    await asyncio.gather(*jobs)
    assert ended.index("send") <= LARGEST_GROUP


async def test_flushing_waits_for_urgent_operations_too(desk: Desk) -> None:
    """However many there are."""
    await desk.plan(*make_cells(range(3 * LARGEST_GROUP)))
    jobs = [asyncio.create_task(desk.store.send(make_ticket(each), desk.run_id, 0)) for each in await desk.lease(1000)]
    await asyncio.sleep(0)
    await desk.store.flush()
    assert [job.done() for job in jobs] == [True] * 3 * LARGEST_GROUP


async def test_closing_writes_what_was_put_before(desk: Desk) -> None:
    """And refuses what comes after."""
    (ticket,) = await desk.on_wire(make_cell(1))
    waiter = asyncio.create_task(desk.settle(ticket))
    await asyncio.sleep(0)
    await desk.store.close()
    await waiter
    with pytest.raises(StoreError, match="the store is closed"):
        await desk.store.flush()
    async with await Store.open(desk.store.path) as again:
        assert await again.waiting(desk.sweep.id) == {}


async def test_results_come_back_to_those_who_put_them(desk: Desk) -> None:
    """Hundreds of operations of one kind in one group are not mixed up."""
    counts = await asyncio.gather(*(desk.plan(*make_cells(range(10 * n, 10 * n + n))) for n in range(1, 10)))
    assert counts == list(range(1, 10))
