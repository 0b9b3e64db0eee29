"""`mirage bench providers`: how fast, how dear and how steady providers are for this account, under a hard cap.

Calls go through the real engine and the real adapters, within the account's real limits. A short ramp doubles the calls
at once until answers per second stop rising, then the rest of the calls goes at the best step; only these count for
rates and times. Batches of all models run side by side. One cap pays for everything; the engine's ledger keeps it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.modes import Mode, lacks
from bench.run import Job, Watch, routes, run_job
from bench.throughput.measurements import Measurement, Step
from bench.throughput.provider_figures import (
    Phase,
    measurement_of_batches,
    measurement_of_calls,
    read_calls,
    read_turnaround,
    step_of,
)
from bench.throughput.provider_plan import Plan, Subject, asking, job_of, limited, questions
from engine.batch.stage import LIVE
from engine.events import Listener, Outcome
from engine.inspection import read_batches
from providers.card import ModelCard
from providers.registry import build_providers

# The ramp takes at most this part of the calls; a step takes so many for every call at once, and at least a few.
RAMP_PART: Final = 0.5
RAMP_ROUNDS: Final = 2
RAMP_FEWEST: Final = 4
# A step must bring so much more to be worth another, and may be told to slow down so often.
GAIN: Final = 1.1
THROTTLED_MOST: Final = 0.02
FIRST_ERROR: Final = 300

Told = Callable[[str], None]


class Interrupted(Exception):
    """The user stopped a measurement; `store` holds batches that are still at their providers, None if none are."""

    def __init__(self, store: Path | None = None) -> None:
        super().__init__("stopped")
        self.store = store


async def measure_calls(plan: Plan, subject: Subject, left_nano: int, *, listen: Listener, told: Told) -> Measurement:
    """Measure a model call by call, spending at most `left_nano`.

    Raises:
        Interrupted: the user stopped it.
        UserError: the model cannot be asked.
    """
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-"))
    try:
        return await _Ramp(plan, subject, left_nano, place, listen, told).measure()
    finally:
        shutil.rmtree(place)


async def measure_batches(
    plan: Plan, subjects: Sequence[Subject], left_nano: int, *, listen: Listener, watch: Watch, told: Told
) -> list[Measurement]:
    """Measure the batches of all models that have them, side by side, spending at most `left_nano`.

    Raises:
        Interrupted: the user stopped it; what is at the providers stays there and in the store that is named.
        UserError: a model cannot be asked.
    """
    able = [each for each in subjects if not lacks(each.card)]
    for each in subjects:
        if lack := lacks(each.card):
            told(f"{each.card.alias}: {lack}, so nothing to measure in batches")
    if not able:
        return []
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-"))
    store, left_there = place / "batches.sqlite", False
    try:
        result = await run_job(_batch_job(plan, able, left_nano, store), listen=listen, watch=watch)
        if result.outcome is Outcome.INTERRUPTED:
            left_there = any(row.stage in LIVE for row in await read_batches(store))
            raise Interrupted(store if left_there else None)
        phases = [Phase(calls=read_calls(store, each.card.alias), outcome=result.outcome) for each in able]
        return [
            measurement_of_batches(plan, each, phase, read_turnaround(store, each.card.alias))
            for each, phase in zip(able, phases, strict=True)
        ]
    finally:
        if not left_there:
            shutil.rmtree(place)


def _batch_job(plan: Plan, subjects: Sequence[Subject], left_nano: int, store: Path) -> Job:
    simulated = any(each.simulated for each in subjects)
    job = job_of(plan, tuple(each.card.alias for each in subjects), Mode.BATCH, left_nano, simulated=simulated)
    return asking(job, [cell for each in questions(job, plan.calls).values() for cell in each], store)


class _Ramp:
    """The phases of one model."""

    def __init__(self, plan: Plan, subject: Subject, left_nano: int, place: Path, listen: Listener, told: Told) -> None:
        self._plan, self._subject, self._left, self._place = plan, subject, left_nano, place
        self._listen, self._told = listen, told
        self._alias = subject.card.alias
        self._job = job_of(plan, (self._alias,), Mode.STREAM, left_nano, simulated=subject.simulated)
        self._cells = questions(self._job, plan.calls)[self._alias]
        self._ceiling = routes(self._job)[self._alias].limits.concurrency
        self._ramp_left = int(len(self._cells) * RAMP_PART)
        self._phases: list[Phase] = []
        self._steps: list[Step] = []

    async def measure(self) -> Measurement:
        """Find the best step, then send the rest at it."""
        rising = await self._climb()
        await self._narrow()
        best = best_step(self._steps, self._ceiling)
        if not self._ended():
            await self._run(len(self._cells), best)
        return measurement_of_calls(
            self._plan, self._subject, self._phases, concurrency=best, rising=rising, ramp=self._steps
        )

    async def _climb(self) -> bool:
        """Double the calls at once while that pays; return whether it still did when the calls were used up."""
        concurrency = 1
        while concurrency <= self._ceiling:
            if not await self._try(concurrency):
                return bool(self._steps)
            if self._ended() or not pays(self._steps):
                return False
            concurrency *= 2
        return False

    async def _narrow(self) -> None:
        """Look between the last step that was calm and the one that was told to slow down."""
        while (between := between_steps(self._steps)) and not self._ended():
            if not await self._try(between):
                return

    async def _try(self, concurrency: int) -> bool:
        """Take a step of the ramp, if there are calls left for it."""
        calls = max(RAMP_FEWEST, RAMP_ROUNDS * concurrency)
        if calls > self._ramp_left:
            return False
        self._ramp_left -= calls
        self._steps.append(step_of(await self._run(calls, concurrency), concurrency))
        return True

    def _ended(self) -> bool:
        return bool(self._phases and self._phases[-1].cut)

    async def _run(self, calls: int, concurrency: int) -> Phase:
        """Send the next calls, so many at once."""
        cells, self._cells = self._cells[:calls], self._cells[calls:]
        self._told(f"{self._alias}: {len(cells)} calls, {concurrency} at once")
        store = self._place / f"{len(self._phases)}.sqlite"
        job = asking(limited(self._job, self._alias, concurrency, self._left), cells, store)
        phase = await _phase(job, self._subject.card, self._listen)
        self._left -= phase.cost_nano
        self._phases.append(phase)
        if phase.outcome is Outcome.INTERRUPTED:
            raise Interrupted
        return phase


async def _phase(job: Job, card: ModelCard, listen: Listener) -> Phase:
    first_bytes: list[float] = []

    def heard(seconds: float, status: int) -> None:
        if status < FIRST_ERROR:
            first_bytes.append(seconds)

    providers = build_providers([card], os.environ, heard=heard)
    result = await run_job(job, listen=listen, watch=lambda *_: None, providers=providers)
    calls = read_calls(job.store_path, card.alias)
    return Phase(calls=calls, first_bytes=tuple(first_bytes), outcome=result.outcome)


def pays(steps: Sequence[Step]) -> bool:
    """Say whether the last step of a ramp is worth another one."""
    *before, last = steps
    if not calm(last):
        return False
    return not before or last.calls_per_s >= GAIN * max(step.calls_per_s for step in before)


def calm(step: Step) -> bool:
    """Say whether a step was hardly ever told to slow down."""
    return step.throttled_share <= THROTTLED_MOST


def between_steps(steps: Sequence[Step]) -> int:
    """Return a number of calls at once between what was calm and what was not, 0 when these are near each other."""
    high = min((step.concurrency for step in steps if not calm(step)), default=0)
    low = max((step.concurrency for step in steps if calm(step) and step.concurrency < high), default=0)
    return (low + high) // 2 if low and high - low > max(1, low // 4) else 0


def best_step(steps: Sequence[Step], ceiling: int) -> int:
    """Return the fewest calls at once to which no other step adds much, throttled ones left out."""
    found = [step for step in steps if calm(step)] or steps[:1]
    most = max((step.calls_per_s for step in found), default=0.0)
    good = [step.concurrency for step in found if step.calls_per_s * GAIN >= most]
    return min(good, default=min(ceiling, RAMP_FEWEST))
