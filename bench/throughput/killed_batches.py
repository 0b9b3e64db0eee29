"""One life of the sweep that `mirage bench kills --mode batch` kills, and how it is told to kill itself at a step.

A step is a call of a provider's batch API or a write to the store, seen from outside: wrappers around both, here and
nowhere else, send the process SIGKILL before, during or after the n-th time. A module of its own, so that a fresh
process has imported it before it is let live.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import msgspec

from bench.loop import run_loop
from bench.throughput.batched import batches_at, cards_at, make_batch_runner, questions
from bench.throughput.lab import register
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchLimits, BatchLine, BatchProvider, Marker, RemoteBatch, Row, Shard
from engine.clock import SystemClock
from engine.events import Outcome
from engine.retry import RetryPolicy
from engine.store import Store
from engine.writer import Operation
from engine.writes import Enlist, Fail, Settle, SettleMany, Statement, Statements

RETRY: Final = RetryPolicy(failures=50, throttles=1000, base=0.05, ceiling=2.0)
STOPPED: Final = 3
Moment = Literal["before", "during", "after"]
Result = TypeVar("Result")


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """Where a life ends: `moment` of the (`skip` + 1)-th time that `step` happens; `during` waits for `seconds`."""

    step: str
    moment: Moment
    skip: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Step and moment, for counting."""
        return f"{self.moment} {self.step}"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one life is told; `hit` is a file that it leaves when it dies where it was aimed at."""

    store: str
    addresses: dict[str, str]
    roots: int
    most_requests: int
    hit: str
    aim: Aim | None = None
    deadline: float = 6.0


class Steps(Protocol):
    """Hears of every step."""

    def at(self, step: str, moment: Moment) -> None:
        """Hear that a step is at a moment."""
        ...

    async def around(self, step: str, call: Coroutine[Any, Any, Result]) -> Result:
        """Await `call`, a step with a length."""
        ...


class Trigger:
    """Ends the process at its aim."""

    def __init__(self, aim: Aim | None, hit: Path) -> None:
        self._aim, self._hit = aim, hit
        self._seen = 0

    def at(self, step: str, moment: Moment) -> None:
        """Note that a step is at a moment."""
        aim = self._aim
        if aim is not None and (aim.step, aim.moment) == (step, moment):
            self._seen += 1
            if self._seen > aim.skip:
                self.fire()

    async def around(self, step: str, call: Coroutine[Any, Any, Result]) -> Result:
        """Await `call`, a step with a length."""
        self.at(step, "before")
        aim = self._aim
        if aim is not None and (aim.step, aim.moment) == (step, "during"):
            self._seen += 1
            if self._seen > aim.skip:
                asyncio.get_running_loop().call_later(aim.seconds, self.fire)
        result = await call
        self.at(step, "after")
        return result

    def fire(self) -> None:
        """Die as the out-of-memory killer would have it."""
        if self._aim is not None:
            self._hit.write_text(self._aim.name, encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


class AimedStore(Store):
    """A store whose writes are steps: `stage STAGE` of a batch, `enlist`, `settle`, `fail`, and statements by name."""

    trigger: Steps

    @classmethod
    async def aimed(cls, path: Path, trigger: Steps) -> Self:
        """Open a store; what opening writes is no step."""
        store = await cls.open(path)
        store.trigger = trigger
        return store

    def put(self, operation: Operation) -> "asyncio.Future[object]":
        """Queue an operation."""
        trigger = getattr(self, "trigger", None)
        step = _step(operation)
        if trigger is None or not step:
            return super().put(operation)
        trigger.at(step, "before")
        future = super().put(operation)
        future.add_done_callback(lambda _: trigger.at(step, "after"))
        return future


class AimedBatches:
    """A provider's batch API whose calls are steps, and rows as they are read."""

    def __init__(self, inner: BatchProvider, trigger: Steps) -> None:
        self._inner, self._trigger = inner, trigger

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._inner.name

    def limits(self, model: str) -> BatchLimits:
        """Return the provider's limits."""
        return self._inner.limits(model)

    def encode_line(self, line: BatchLine) -> bytes:
        """Encode a line."""
        self._trigger.at("line", "before")
        return self._inner.encode_line(line)

    async def upload(self, marker: Marker, path: Path) -> str:
        """Upload."""
        return await self._trigger.around("upload", self._inner.upload(marker, path))

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Create."""
        return await self._trigger.around("create", self._inner.create(marker, file_id, path, shard))

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Look for a batch."""
        return await self._trigger.around("find", self._inner.find(marker, since, count))

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Look at a batch."""
        return await self._trigger.around("poll", self._inner.poll(batch_id))

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring results."""
        return await self._trigger.around("download", self._inner.download(batch, folder))

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Read results."""
        for row in self._inner.rows(lines):
            self._trigger.at("row", "before")
            yield row

    async def cancel(self, batch_id: str) -> None:
        """Cancel."""
        await self._trigger.around("cancel", self._inner.cancel(batch_id))

    async def clean(self, batch: RemoteBatch) -> None:
        """Delete files."""
        await self._trigger.around("clean", self._inner.clean(batch))

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Delete files that nothing needs."""
        return await self._trigger.around("tidy", self._inner.tidy(run, keep))

    async def close(self) -> None:
        """Release the connections."""
        await self._inner.close()


def live(order: bytes) -> None:
    """Run the sweep; the exit code is 0 when it is over, `STOPPED` when a provider refused to go on."""
    outcome = run_loop(_run(msgspec.json.decode(order, type=Order)))
    codes: Mapping[Outcome, int] = {Outcome.COMPLETE: 0, Outcome.INCOMPLETE: 0, Outcome.STOPPED: STOPPED}
    sys.exit(codes.get(outcome, 1))


def policy_of(order: Order) -> BatchPolicy:
    """Return how batches are sent: in a hurry, since simulated days are short."""
    return BatchPolicy(
        flush_after=2.0,
        most_requests=order.most_requests,
        deadline=order.deadline,
        leftovers="batch",
        first_poll=0.05,
        longest_poll=0.5,
        grace=1.0,
        results_patience=2.0,
    )


async def _run(order: Order) -> Outcome:
    cards, trigger = cards_at(order.addresses), Trigger(order.aim, Path(order.hit))
    providers = {name: AimedBatches(each, trigger) for name, each in batches_at(cards).items()}
    path = Path(order.store)
    try:
        async with await AimedStore.aimed(path, trigger) as store:
            clock = SystemClock()
            sweep = await register(store, clock)
            await store.recover([], clock.wall_ms())
            runner = await make_batch_runner(
                store, sweep, cards, providers, policy=policy_of(order), retry=RETRY, listen=lambda _: None,
                folder=path.with_suffix(".batches"), run=secrets.token_hex(6),
            )  # fmt: skip
            return await runner.run(() if sweep.planned else questions(cards, order.roots))
    finally:
        for provider in providers.values():
            await provider.close()


def _step(operation: Operation) -> str:
    match operation:
        case Settle() | SettleMany():
            return "settle"
        case Fail():
            return "fail"
        case Enlist():
            return "enlist"
        case Statement():
            return _named(operation.name, operation.values)
        case Statements():
            return _named(*operation.parts[-1])
        case _:
            return ""


def _named(name: str, values: Mapping[str, object]) -> str:
    return f"stage {values['stage']}" if name == "advance_batch" else name
