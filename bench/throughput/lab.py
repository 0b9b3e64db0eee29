"""A sweep for benchmarks: as many different short questions as wanted, one model behind any OpenAI-style address.

Everything but the questions is the real thing: catalogue card, adapter, scheduler, ledger, store and run loop. Knows no
instrument.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

import msgspec

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.clock import SystemClock
from engine.events import Listener
from engine.ledger import Cap, Ledger, Scope
from engine.limits import RateLimits
from engine.money import FREE, NANO
from engine.progress import Progress
from engine.provider import Provider
from engine.request import Completion, Decoding, Request, Role, chat
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.store import Store, Sweep
from providers.card import ModelCard
from providers.catalog import load_catalog
from providers.http import Timeouts
from providers.registry import build_providers

SWEEP: Final = "benchmark"
ALIAS: Final = "gpt-4o-mini"
KEY_ENV: Final = "MIRAGE_BENCH_KEY"
KEY: Final = "sk-benchmark-0123456789abcdef"
STAGE: Final = "task"
NEXT_STAGE: Final = "judge"
# Enough for any benchmark; a capped ledger does the work of a capped ledger.
CAP: Final = Cap(nano=1_000_000 * NANO)
SYSTEM: Final = "You answer in a few plain sentences. " * 4
FILLER: Final = "It concerns things that were measured on the way here. " * 8
PROMPT_BYTES: Final = 420
PLAN_CHUNK: Final = 200

Follow = Callable[[str, bytes], tuple[Cell, ...]]


class Quick:
    """Reads every answer as complete, calls `seen`, and asks what `follow` returns."""

    def __init__(self, seen: Callable[[], None] | None = None, follow: Follow | None = None) -> None:
        self._seen, self._follow = seen, follow

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return a small reading."""
        if self._seen is not None:
            self._seen()
        reading = Reading(status=ReadingStatus.COMPLETE, version=1, body=b'{"characters":%d}' % len(completion.text))
        return Read(reading=reading, follow_ups=self._follow(stage, coords) if self._follow else ())


def card_at(base_url: str, *, key_env: str = KEY_ENV) -> ModelCard:
    """Return the catalogue's card of the benchmark's model, led to `base_url`."""
    layer: dict[str, dict[str, object]] = {"provider": {"openai": {"base_url": base_url, "key_env": key_env}}}
    return load_catalog(layer).card(ALIAS)


def providers_at(card: ModelCard, *, timeouts: Timeouts | None = None) -> dict[str, Provider]:
    """Return the real adapter for `card`."""
    return build_providers([card], {**os.environ, card.key_env: KEY}, timeouts=timeouts)


def question(card: ModelCard, number: int, *, stage: str = STAGE, allowance: int = 200) -> Cell:
    """Return the `number`-th question; all of them differ, and weigh `PROMPT_BYTES`."""
    text = f"Question {number} of stage {stage}. {FILLER}"[: PROMPT_BYTES - len(SYSTEM)]
    request = Request(
        provider=card.provider,
        model=card.model,
        messages=chat((Role.SYSTEM, SYSTEM), (Role.USER, text)),
        decoding=Decoding(max_tokens=allowance, temperature=0.7),
    )
    return Cell(stage=stage, alias=ALIAS, coords=b'{"number":%d}' % number, request=request)


def questions(card: ModelCard, number: int, *, allowance: int = 200) -> Iterator[Cell]:
    """Yield so many questions."""
    return (question(card, each, allowance=allowance) for each in range(number))


def follow_up(card: ModelCard) -> Follow:
    """Return the function that asks one more question about every first answer."""

    def follow(stage: str, coords: bytes) -> tuple[Cell, ...]:
        if stage != STAGE:
            return ()
        number: int = msgspec.json.decode(coords, type=dict[str, int])["number"]
        return (question(card, number, stage=NEXT_STAGE),)

    return follow


async def register(store: Store, clock: SystemClock, name: str = SWEEP) -> Sweep:
    """Find or add the benchmark's sweep, marked as simulated."""
    if await store.find_sweep(name) is None:
        await store.add_sweep(name, "{}", "", simulated=True, now_ms=clock.wall_ms())
    found = await store.find_sweep(name)
    assert found is not None  # noqa: S101 - just written
    return found


async def plan(store: Store, sweep: Sweep, cells: Iterator[Cell]) -> None:
    """Plan everything now, so that a run has nothing left to plan."""
    chunk: list[Cell] = []
    for cell in cells:
        chunk.append(cell)
        if len(chunk) == PLAN_CHUNK:
            await store.plan(sweep.id, chunk)
            chunk = []
    await store.plan(sweep.id, chunk)
    await store.mark_planned(sweep.id)


async def make_runner(
    store: Store,
    sweep: Sweep,
    card: ModelCard,
    providers: Mapping[str, Provider],
    reader: Quick,
    *,
    limits: RateLimits,
    listen: Listener,
    clock: SystemClock,
    policy: RetryPolicy | None = None,
) -> Runner:
    """Return a run of the sweep, wired as `mirage run` wires it."""
    price = card.price or FREE
    route = Route(f"{card.provider}/{card.model}", card.provider, price, limits)
    caps = {Scope("sweep", sweep.name): CAP, Scope("model", ALIAS): CAP, Scope("stage", STAGE): CAP}
    return Runner(
        store=store,
        sweep=sweep,
        run_id=await store.begin_run(sweep.id, "{}", clock.wall_ms()),
        scheduler=Scheduler(
            sweep=sweep.name,
            routes={ALIAS: route},
            ledger=Ledger(caps, *await store.used(sweep)),
            policy=policy or RetryPolicy(),
            now=clock.now(),
        ),
        providers=providers,
        prices={ALIAS: price},
        reader=reader,
        clock=clock,
        rng=Random(0),  # noqa: S311 - jitter, not secrets
        progress=Progress({}),
        listen=listen,
    )
