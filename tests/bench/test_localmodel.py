"""When a run loads its local model: before it is needed, and not at all where it is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.localmodel import load_local
from engine.events import Notice
from engine.store import Store, Sweep
from engine.testing import ScriptedProvider, make_cell, make_request
from providers.vllm import VllmProvider, VllmSettings
from providers.vllm_engine import Outcome

LOCAL = msgspec.structs.replace(make_request("local"), provider="vllm")
HOSTED = make_request("hosted")


class Idle:
    """An engine that is asked nothing."""

    capacity = 1

    def add(self, number: int, request: Any) -> None:
        """Take a request."""

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""

    def unstarted(self) -> list[int]:
        """Return what has not begun."""
        return []

    def step(self) -> list[tuple[int, Outcome]]:
        """Finish nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""


async def loaded(path: Path, *cells: Any, planned: bool, answered: bool = False) -> tuple[int, list[str]]:
    """Register a sweep with these cells; return how many engines were built for it, and what was said."""
    built: list[VllmSettings] = []
    heard: list[Notice] = []

    def build(settings: VllmSettings) -> Idle:
        built.append(settings)
        return Idle()

    provider = VllmProvider(VllmSettings(model="m-1"), build=build)
    async with await Store.open(path) as store:
        number = await store.add_sweep("s", "{}", "h", simulated=False, now_ms=1)
        await store.plan(number, cells)
        if planned:
            await store.mark_planned(number)
        if answered:
            await store.fetch("settle_requests", {"ids": "[1]"})
        sweep = await store.find_sweep("s")
        assert isinstance(sweep, Sweep)
        hosted = ScriptedProvider(lambda request, times: "hi")
        await load_local({"vllm": provider, "scripted": hosted}, store, sweep, heard.append)
    await provider.close()
    return len(built), [notice.kind for notice in heard]


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "not yet planned"])
async def test_a_model_that_something_waits_for_is_loaded_before_the_run(tmp_path: Path, planned: bool) -> None:
    """What it lacks is then one line."""
    assert await loaded(tmp_path / "s", make_cell(1, request=LOCAL), planned=planned) == (1, ["loading"])


async def test_a_sweep_that_has_nothing_left_does_not_wait_for_its_model(tmp_path: Path) -> None:
    """A finished sweep is looked through in an instant."""
    assert await loaded(tmp_path / "s", make_cell(1, request=LOCAL), planned=True, answered=True) == (0, [])


async def test_a_model_is_not_loaded_for_what_others_are_asked(tmp_path: Path) -> None:
    """What follows from their answers loads it by its first request."""
    assert await loaded(tmp_path / "s", make_cell(1, request=HOSTED), planned=True) == (0, [])


async def test_a_sweep_whose_questions_are_not_planned_may_ask_the_model(tmp_path: Path) -> None:
    """So it is loaded first."""
    assert await loaded(tmp_path / "s", planned=False) == (1, ["loading"])
