"""Whole runs that are stopped, cut off or badly planned, and go on."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.cell import Cell
from engine.errors import StoreError, UserError
from engine.events import Outcome
from engine.runner import Runner
from engine.testing import ScriptedProvider, make_cell, make_cells, make_request

Rig = Any
# What one answer of `make_completion` costs at the rig's price.
PAID = 7_000


# ----- stopping and going on


def stop_after(rig: Rig, calls: int, how: str) -> Callable[[Runner], object]:
    """Have a run stopped once its provider has been called so often and is still busy."""

    def watch(runner: Runner) -> None:
        if len(rig.provider.seen) >= calls and rig.provider.in_flight:
            getattr(runner, how)()
        else:
            asyncio.get_running_loop().call_later(0.001, watch, runner)

    return watch


async def test_a_drained_run_leaves_nothing_half_done(rig: Rig) -> None:
    """The calls on the wire are stored, the rest is planned and free, and the next run repeats nothing."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.005)
    rig.started = stop_after(rig, 20, "drain")
    assert await rig.run(make_cells(range(500))) is Outcome.INTERRUPTED
    assert rig.last.draining
    states = await rig.states()
    assert set(states) <= {"planned", "read"}
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
    assert await rig.query("SELECT count(*) FROM request WHERE owner IS NOT NULL") == [(0,)]
    rig.started = lambda runner: None
    assert await rig.run(make_cells(range(500))) is Outcome.COMPLETE
    assert rig.recovery.calls == 0
    assert len(rig.calls) == len(set(rig.calls)) == 500


async def test_a_drained_run_sends_nothing_that_was_not_on_the_wire(rig: Rig) -> None:
    """Not even what is being announced to the disk at that moment."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.02)
    at_drain: list[int] = []

    def drain_soon(runner: Runner) -> None:
        def drain() -> None:
            runner.drain()
            at_drain.append(len(rig.provider.seen))

        asyncio.get_running_loop().call_later(0.05, drain)

    rig.started = drain_soon
    assert await rig.run(make_cells(range(2_000))) is Outcome.INTERRUPTED
    assert len(rig.provider.seen) == at_drain[0]


async def test_a_run_that_is_stopped_before_it_begins_sends_nothing(rig: Rig) -> None:
    """A second Ctrl-C can come at any time."""
    rig.started = lambda runner: runner.drain()
    assert await rig.run(make_cells(range(50))) is Outcome.INTERRUPTED
    assert rig.calls == []


async def test_an_aborted_runs_calls_count_as_billed_and_are_made_again(rig: Rig) -> None:
    """Nobody knows whether they were done; the next run says how many and how much."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=3_600.0)
    rig.started = stop_after(rig, 8, "abort")
    async with asyncio.timeout(30):
        assert await rig.run(make_cells(range(20))) is Outcome.INTERRUPTED
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(len(rig.calls),)]
    cut_off = await rig.spent()
    calls = len(rig.calls)
    assert calls == 8
    rig.provider = ScriptedProvider(lambda request, times: "hi")
    rig.started = lambda runner: None
    assert await rig.run(make_cells(range(20))) is Outcome.COMPLETE
    assert (rig.recovery.calls, rig.recovery.nano) == (calls, cut_off)
    assert len(rig.calls) == 20
    assert await rig.spent() == cut_off + 20 * PAID


async def test_a_run_whose_task_is_cancelled_still_stores_what_was_on_the_wire(rig: Rig) -> None:
    """Cancellation waits for the calls; what they bring is paid for."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.05)
    task = asyncio.create_task(rig.run(make_cells(range(100))))
    while not getattr(rig.provider, "in_flight", 0):  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
    assert (await rig.states())["read"] == len(rig.calls)


# ----- plans that go wrong


def broken_plan(after: int) -> Iterator[Cell]:
    """A plan that fails after so many cells."""
    yield from make_cells(range(after))
    raise UserError("persona 7 has no name", where="personas.toml", mend="give it one")


@pytest.mark.parametrize("after", [0, 10, 500])
async def test_an_error_in_the_plan_is_raised_after_a_clean_drain(rig: Rig, after: int) -> None:
    """At the beginning, in the middle or at the very end; what was on the wire is stored."""
    with pytest.raises(UserError, match="persona 7 has no name"):
        await rig.run(broken_plan(after))
    if after:
        assert set(await rig.states()) <= {"planned", "read"}
        assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
        assert await rig.run(make_cells(range(after))) is Outcome.COMPLETE
        assert len(rig.calls) == len(set(rig.calls)) == after


async def test_an_error_at_the_end_of_a_plan_is_raised_though_all_its_cells_are_done(rig: Rig) -> None:
    """The plan's last cells are answered before it fails."""
    done = asyncio.Event()

    def plan() -> Iterator[Cell]:
        yield from make_cells(range(3))
        done.set()
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        await rig.run(plan())
    assert done.is_set()


async def test_a_plan_that_was_cut_short_is_planned_again(rig: Rig) -> None:
    """A sweep is marked as planned only at the end."""
    with pytest.raises(UserError):
        await rig.run(broken_plan(300))
    assert await rig.query("SELECT planned FROM sweep") == [(0,)]
    await rig.run(make_cells(range(300)))
    assert await rig.query("SELECT planned FROM sweep") == [(1,)]


async def test_a_store_that_is_closed_under_a_run_ends_it_with_an_error(rig: Rig) -> None:
    """Not with a hang, and not in silence."""

    def close(runner: Runner) -> None:
        rig.closing = asyncio.ensure_future(runner._store.close())

    rig.started = lambda runner: asyncio.get_running_loop().call_later(0.02, close, runner)
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.01)
    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match="the store is closed"):
            await rig.run(make_cells(range(5_000)))
    await rig.closing


async def test_requests_for_models_that_a_run_does_not_use_are_left_and_told(rig: Rig) -> None:
    """A follow-up to a model that the sweep file no longer names is not lost in silence."""
    cells = [*make_cells(range(3)), make_cell(9, alias="q", request=make_request("x", model="m-9"))]
    assert await rig.run(cells) is Outcome.INCOMPLETE
    assert rig.told("left_waiting") == ["1 requests wait for models that this run does not use: scripted/m-9"]
    rig.aliases["q"] = "scripted/m-9"
    assert await rig.run(cells) is Outcome.COMPLETE
