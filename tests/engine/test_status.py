"""What a store says of a sweep: everything that was planned is counted once, wherever it is."""

from typing import Any

from engine.errors import ErrorClass
from engine.events import StageCount
from engine.state import State
from engine.status import read_status, stage_counts
from engine.testing import make_cell, make_cells

Desk = Any


async def test_every_request_is_counted_in_the_state_it_is_in(desk: Desk) -> None:
    """Planned, on the wire, answered and read, answered and not yet read, failed."""
    first, second, third, fourth = (await desk.on_wire(*make_cells(range(6))))[:4]
    await desk.settle(first)
    await desk.settle(second, read=False)
    await desk.fail(third, ErrorClass.BAD_REQUEST, state=State.FAILED)
    await desk.fail(fourth, ErrorClass.TRANSIENT)
    found = await read_status(desk.store.path)
    requests, stage = found.requests, found.by_stage["task"]
    assert (requests.total, requests.planned, requests.sent, requests.settled, requests.read, requests.failed) == (
        6, 1, 2, 1, 1, 1,
    )  # fmt: skip
    assert requests.failed_by_class == {"bad_request": 1}
    assert (stage.total, stage.pending, stage.settled, stage.read, stage.failed) == (6, 3, 1, 1, 1)


async def test_stages_are_counted_apart(desk: Desk) -> None:
    """By the cells, of which several may share a request."""
    await desk.plan(*make_cells(range(3)), make_cell(1, stage="judge"))
    found = (await read_status(desk.store.path)).by_stage
    assert {name: (stage.total, stage.pending) for name, stage in found.items()} == {"task": (3, 3), "judge": (1, 1)}


async def test_an_empty_sweep_has_nothing(desk: Desk) -> None:
    """Not even a stage."""
    found = await read_status(desk.store.path)
    assert (found.requests.total, found.by_stage) == (0, {})


async def test_a_run_begins_with_what_the_store_knows_of_every_stage(desk: Desk) -> None:
    """Done or not: a sweep that asks for less than before still has it."""
    (first,) = await desk.on_wire(make_cell(1))
    await desk.settle(first)
    await desk.plan(make_cell(2), make_cell(1, stage="judge"))
    found = await stage_counts(desk.store.path, "s")
    assert found == {"task": StageCount(read=1, known=2), "judge": StageCount(known=1)}
