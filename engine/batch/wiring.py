"""Puts the parts of batching together for one run."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from engine.batch.building import Purse
from engine.batch.conductor import Conductor, Upstream
from engine.batch.lane import BatchLane
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchProvider
from engine.batch.settling import Settler
from engine.batch.store import BatchStore
from engine.cell import Reader
from engine.clock import Clock
from engine.events import Listener, Notice
from engine.money import Price
from engine.progress import Progress
from engine.readings import Expect, Readings
from engine.retry import Chance, RetryPolicy
from engine.scheduler import Scheduler
from engine.store import Store
from engine.telling import Telling


class Batching(NamedTuple):
    """How a run sends by batch APIs.

    Attributes:
        providers: by account name.
        lanes: by lane name.
        prices: of batches, by model alias.
        leftovers: batch lane to the lane that sends again what a batch left.
        feeds: stage to the stages whose answers can add requests to it, directly or not.
        folder: where input and results files lie while they are needed.
        run: first part of this run's markers: lower-case letters and digits, at most 12, never used before.
    """

    providers: Mapping[str, BatchProvider]
    lanes: Mapping[str, BatchLane]
    prices: Mapping[str, Price]
    policy: BatchPolicy
    retry: RetryPolicy
    leftovers: Mapping[str, str]
    feeds: Mapping[str, frozenset[str]]
    folder: Path
    run: str


class Run(NamedTuple):
    """The run that batches belong to."""

    store: Store
    sweep_id: int
    run_id: int
    scheduler: Scheduler
    reader: Reader
    progress: Progress
    clock: Clock
    rng: Chance
    listen: Listener
    expect: Expect
    requeued: Callable[[str], None]


def build_conductor(batching: Batching, run: Run, upstream: Upstream) -> Conductor:
    """Return the conductor of a run's batches; call it inside the event loop."""
    loop = asyncio.get_running_loop()

    def tell_from_anywhere(notice: Notice) -> None:
        loop.call_soon_threadsafe(run.listen, notice)

    # Answers are read by a thread there, and listeners are not made for that.
    tell = Telling(tell_from_anywhere)
    store = BatchStore(run.store, run.sweep_id, run.run_id, sorted(batching.prices))
    purse = Purse(batching.prices, run.scheduler.ledger, run.scheduler.budget)
    readings = Readings(
        store=run.store, sweep_id=run.sweep_id, reader=run.reader, progress=run.progress, tell=tell, expect=run.expect
    )
    settler = Settler(
        store=store, sweep_id=run.sweep_id, purse=purse, policy=batching.retry, leftovers=batching.leftovers,
        readings=readings, progress=run.progress, clock=run.clock, rng=run.rng, tell=tell, requeued=run.requeued,
    )  # fmt: skip
    return Conductor(
        store=store, providers=batching.providers, lanes=batching.lanes, purse=purse, settler=settler,
        policy=batching.policy, folder=batching.folder, run=batching.run, clock=run.clock, tell=tell, upstream=upstream,
    )  # fmt: skip
