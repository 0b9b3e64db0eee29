"""What the tests of batches share: hurry, and two questions that nearly all of them ask."""

import asyncio
from typing import Any

import pytest

from engine.batch.testing import ScriptedBatches
from engine.cell import Cell
from engine.events import Outcome

Rig = Any


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for seconds."""
    monkeypatch.setattr("engine.batch.submission.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("engine.batch.conductor.DOWNLOAD_PAUSE", 0.01)
    monkeypatch.setattr("engine.batch.harvesting.LONGEST_PAUSE", 0.05)


def paid_once(rig: Rig, provider: ScriptedBatches, calls: int) -> bool:
    """Whether every request was charged once, by batch or by call."""
    by_batch = all(times == 1 for times in provider.bill.values())
    return by_batch and len(provider.bill) + len(rig.calls) == calls and len(set(rig.calls)) == len(rig.calls)


async def within(rig: Rig, cells: list[Cell], seconds: float = 20.0) -> Outcome:
    """Run, and fail if it does not end."""
    async with asyncio.timeout(seconds):
        outcome: Outcome = await rig.run(cells)
    return outcome
