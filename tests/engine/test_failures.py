"""What went wrong in a store, by cause: the failed, the unreadable, and what was tried again."""

from typing import Any

import pytest

from engine.cell import Read, Reading, ReadingStatus
from engine.errors import ErrorClass, StoreError
from engine.failures import Place, read_errors
from engine.ledger import Amount
from engine.state import State
from engine.store import Store
from engine.testing import make_cell, make_cells, make_completion

Desk = Any


async def unreadable(desk: Desk, ticket: Any, reason: str) -> None:
    """Store an answer that cannot be read."""
    made = Read(reading=Reading(status=ReadingStatus.UNREADABLE, version=1, reason=reason))
    await desk.store.settle(
        ticket, make_completion("?"), [(cell.id, made) for cell in ticket.leased.cells],
        sweep_id=desk.sweep.id, paid=Amount(1, 1), latency_ms=1, now_ms=1,
    )  # fmt: skip


async def test_what_failed_for_good_is_apart_from_what_was_tried_again(desk: Desk) -> None:
    """A request that failed after two tries is in both, each attempt in one."""
    lost, won = await desk.on_wire(*make_cells(range(2)))
    for ticket in (lost, won):
        await desk.fail(ticket, message="busy")
    again = [await desk.send(leased) for leased in await desk.lease()]
    await desk.fail(again[0], ErrorClass.CONTENT, state=State.FAILED, message="blocked")
    await desk.settle(again[1])
    found = await read_errors(desk.store.path)
    assert (found.requests, found.failed_requests, found.retried_attempts, found.unreadable_cells) == (2, 1, 2, 0)
    (failed,), (retried,) = found.failed, found.retried
    assert (failed.error_class, failed.error, failed.requests) == ("content", "blocked", 1)
    assert (retried.error, retried.attempts, retried.answered, retried.failed) == ("busy", 2, 1, 1)


async def test_a_cause_stands_once_whoever_tells_it(desk: Desk) -> None:
    """With and without the provider's name before it, in whatever numbers, models and stages."""
    cells = [make_cell(1), make_cell(2), make_cell(3, stage="judge", alias="n")]
    said = ("scripted: no room for 12", "no room for 7", "scripted: no room for 3; it begins 'abc'")
    for ticket, text in zip(await desk.on_wire(*cells), said, strict=True):
        await desk.fail(ticket, message=text)
    (group,) = (await read_errors(desk.store.path)).retried
    assert group.attempts == 3
    assert group.error.startswith("no room for")
    assert group.places == (Place(alias="m", stage="task", number=2), Place(alias="n", stage="judge", number=1))


async def test_causes_of_other_classes_stay_apart(desk: Desk) -> None:
    """The same words can mean another thing."""
    first, second = await desk.on_wire(*make_cells(range(2)))
    await desk.fail(first, ErrorClass.RATE, message="no")
    await desk.fail(second, ErrorClass.TRANSIENT, message="no")
    assert {group.error_class for group in (await read_errors(desk.store.path)).retried} == {"rate", "transient"}


async def test_unreadable_answers_are_listed_with_their_reasons(desk: Desk) -> None:
    """Status counts them; here is why."""
    tickets = await desk.on_wire(*make_cells(range(3)))
    for ticket, reason in zip(tickets, ("no JSON", "no JSON", "empty"), strict=True):
        await unreadable(desk, ticket, reason)
    found = await read_errors(desk.store.path)
    assert [(group.reason, group.cells) for group in found.unreadable] == [("no JSON", 2), ("empty", 1)]
    assert found.unreadable_cells == 3
    assert found.unreadable[1].example == tickets[2].leased.key.hex()


async def test_a_request_that_failed_without_a_call_is_counted(desk: Desk) -> None:
    """No batch could hold it, so there is no attempt to tell of it."""
    await desk.plan(make_cell(1))
    values = {"request_id": 1, "error_class": "bad_request", "error": "too long"}
    await desk.store.fetch("refuse_request", values)
    (failed,) = (await read_errors(desk.store.path)).failed
    assert (failed.error, failed.status, failed.requests) == ("too long", None, 1)


async def test_one_sweep_of_several_can_be_asked_for(store: Store, seat: Any) -> None:
    """Its simulated mark is its own; a name that the store does not have is a mistake, not good news."""
    desk, other = await seat(store, "s"), await seat(store, "other")
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.fail(ticket)
    assert (await read_errors(store.path, "other")).retried == ()
    assert (await read_errors(store.path)).sweeps == ("s", "other")
    assert other.sweep.simulated == (await read_errors(store.path, "other")).simulated
    with pytest.raises(StoreError, match=r"no sweep `thrid`.*it has: s, other"):
        await read_errors(store.path, "thrid")
