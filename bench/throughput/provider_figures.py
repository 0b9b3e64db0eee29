"""From the attempts that a store holds to the figures of a measurement. Reads stores; sends nothing."""

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from bench.modes import Mode
from bench.throughput.measurements import Measurement, Spread, Step
from bench.throughput.provider_plan import Plan, Subject
from engine.errors import ErrorClass
from engine.events import Outcome

PERCENTILES: Final = (50, 90, 99, 100)
# While a lane is full, at least so much of the answers must have come, or that time says nothing.
FULL_SHARE: Final = 0.3
CUT: Final = {
    Outcome.BUDGET: "the cap was reached",
    Outcome.STOPPED: "the provider refused key or quota",
    Outcome.REFUSED: "the disk took no more writes",
    Outcome.INTERRUPTED: "stopped",
}
_CALLS: Final = (
    "SELECT a.request_id, a.outcome, coalesce(a.error_class, ''), a.sent_ms, coalesce(a.settled_ms, 0), a.cost_nano,"
    " coalesce(r.latency_ms, 0), coalesce(r.input_tokens, 0), coalesce(r.output_tokens, 0), a.batch_id IS NOT NULL"
    " FROM attempts a JOIN requests r ON r.request_id = a.request_id WHERE a.alias = ? ORDER BY a.sent_ms"
)
_BATCHES: Final = (
    "SELECT min(b.created_ms), max(coalesce(b.ended_ms, 0)) FROM batches b WHERE b.created_ms IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM attempts a WHERE a.batch_id = b.batch_id AND a.alias = ?)"
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt; tokens and latency are those of its answer, 0 without one."""

    request: int
    outcome: str
    error: str
    sent_ms: int
    settled_ms: int
    cost_nano: int
    latency_ms: int
    input_tokens: int
    output_tokens: int
    batched: bool

    @property
    def answered(self) -> bool:
        """Whether it brought an answer."""
        return self.outcome == "completed"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: its attempts, the seconds to every first byte of an answer, and how it ended."""

    calls: tuple[Call, ...]
    first_bytes: tuple[float, ...] = ()
    outcome: Outcome

    @property
    def cost_nano(self) -> int:
        """What it cost, what can only be assumed included."""
        return sum(call.cost_nano for call in self.calls)

    @property
    def cut(self) -> str:
        """Why it is incomplete, or empty."""
        return CUT.get(self.outcome, "")


def read_calls(store: Path, alias: str) -> tuple[Call, ...]:
    """Return the attempts of a model in the order in which they were sent."""
    with closing(_open(store)) as connection:
        rows = connection.execute(_CALLS, (alias,)).fetchall()
    return tuple(
        [msgspec.convert(dict(zip(Call.__struct_fields__, row, strict=True)), Call, strict=False) for row in rows]
    )


def read_turnaround(store: Path, alias: str) -> float | None:
    """Return the seconds from the creation of a model's first batch to the end of its last; None if none ended."""
    with closing(_open(store)) as connection:
        begun, ended = connection.execute(_BATCHES, (alias,)).fetchone()
    return (ended - begun) / 1000 if begun and ended else None


def rate(calls: Sequence[Call]) -> float | None:
    """Return answers per second while calls were still being sent, so the lane was full; else over all of the time."""
    answered = sorted(call.settled_ms for call in calls if call.answered)
    if not answered:
        return None
    begin, last = min(call.sent_ms for call in calls), max(call.sent_ms for call in calls)
    full = sum(settled <= last for settled in answered)
    if full >= FULL_SHARE * len(answered) and last > begin:
        return 1000 * full / (last - begin)
    return 1000 * len(answered) / max(1, answered[-1] - begin)


def step_of(phase: Phase, concurrency: int) -> Step:
    """Return a phase as a step of a ramp."""
    return Step(
        concurrency=concurrency,
        calls_per_s=round(rate(phase.calls) or 0.0, 4),
        throttled_share=_throttled_share(phase.calls),
    )


def spread(milliseconds: Sequence[float]) -> Spread | None:
    """Return the distribution of some times, None of none."""
    if not milliseconds:
        return None
    found = [round(float(each), 1) for each in np.percentile(milliseconds, PERCENTILES)]
    return Spread(n=len(milliseconds), p50=found[0], p90=found[1], p99=found[2], most=found[3])


def measurement_of_calls(
    plan: Plan, subject: Subject, phases: Sequence[Phase], *, concurrency: int, rising: bool, ramp: Sequence[Step]
) -> Measurement:
    """Return what a ramp and the calls after it came to; rates and times are those of the last phase."""
    last = phases[-1]
    latencies = [call.latency_ms for call in last.calls if call.answered]
    found = _measurement(plan, subject, Mode.STREAM, [phase.calls for phase in phases], last.calls, rate(last.calls))
    return msgspec.structs.replace(
        found,
        first_byte_ms=spread([1000 * each for each in last.first_bytes]),
        latency_ms=spread(latencies),
        concurrency=concurrency,
        rising=rising,
        ramp=tuple(ramp),
        cut=last.cut,
    )


def measurement_of_batches(plan: Plan, subject: Subject, phase: Phase, turnaround: float | None) -> Measurement:
    """Return what the batches of a model came to; what was sent again call by call is paid for and not counted."""
    batched = [call for call in phase.calls if call.batched]
    answered = sum(call.answered for call in batched)
    speed = answered / turnaround if turnaround and answered else None
    found = _measurement(plan, subject, Mode.BATCH, [batched], batched, speed)
    left_out = plan.calls - _asked([phase.calls])
    return msgspec.structs.replace(
        found,
        turnaround=turnaround,
        cut=phase.cut,
        cost_nano=phase.cost_nano,
        failed=plan.calls - left_out - found.completed,
        left_out=left_out,
    )


def _measurement(
    plan: Plan, subject: Subject, mode: Mode, runs: Sequence[Sequence[Call]], measured: Sequence[Call],
    speed: float | None,
) -> Measurement:  # fmt: skip
    card, calls = subject.card, [call for run in runs for call in run]
    answers = [call for call in measured if call.answered]
    reads = sum(call.input_tokens for call in answers) / max(1, len(answers))
    writes = sum(call.output_tokens for call in answers) / max(1, len(answers))
    completed, cost = sum(call.answered for call in calls), sum(call.cost_nano for call in calls)
    return Measurement(
        at=round(time.time(), 3),
        alias=card.alias,
        provider=card.provider,
        model=card.model,
        base_url=card.base_url,
        mode=mode,
        simulated=subject.simulated,
        calls=plan.calls,
        completed=completed,
        failed=_asked(runs) - completed,
        left_out=plan.calls - _asked(runs),
        attempts=len(calls),
        retries=len(calls) - _asked(runs),
        throttled_share=_throttled_share(calls),
        errors=dict(Counter(call.error for call in calls if call.error)),
        calls_per_s=None if speed is None else round(speed, 4),
        tokens_per_s=None if speed is None else round(speed * (reads + writes), 2),
        output_tokens_per_s=None if speed is None else round(speed * writes, 2),
        input_tokens=round(reads, 1),
        output_tokens=round(writes, 1),
        cost_nano=cost,
        cost_nano_per_1000=round(1000 * cost / completed) if completed else None,
    )


def _asked(runs: Sequence[Sequence[Call]]) -> int:
    """Return how many requests were sent at all; every run numbers its own."""
    return sum(len({call.request for call in run}) for run in runs)


def _throttled_share(calls: Sequence[Call]) -> float:
    return round(sum(call.error == ErrorClass.RATE for call in calls) / max(1, len(calls)), 4)


def _open(store: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)
