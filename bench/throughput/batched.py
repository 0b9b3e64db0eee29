"""A sweep by batch over every provider that has batches: short questions, one model each, at any addresses.

Everything but the questions is the real thing: catalogue cards, adapters, ledger, store and run loop. Knows no
instrument. Two models have no batch price at their providers yet; their batch APIs are spoken to all the same.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from bench.throughput.lab import CAP, KEY, KEY_ENV, NEXT_STAGE, STAGE, SWEEP, SYSTEM
from engine.batch.lane import BatchLane
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchProvider
from engine.batch.wiring import Batching
from engine.cell import Cell, Read, Reader, Reading, ReadingStatus
from engine.clock import SystemClock
from engine.events import Listener
from engine.ledger import Ledger, Scope
from engine.limits import RateLimits
from engine.money import FREE
from engine.progress import Progress
from engine.request import Completion, Decoding, Request, Role, chat
from engine.retry import RetryPolicy
from engine.rows import BATCH_SUFFIX
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.store import Store, Sweep
from providers.batch_registry import build_batch_providers
from providers.card import ModelCard
from providers.catalog import load_catalog

MODELS: Final[Mapping[str, str]] = {
    "openai": "gpt-4o-mini",
    "anthropic": "claude-opus-4-6",
    "gemini": "gemini-3-flash",
    "dashscope": "qwen3.6-plus",
    "zhipu": "glm-5.1",
    "moonshot": "kimi-k2.5",
}
_PRICED: Final[Mapping[str, Mapping[str, str]]] = {
    "glm-5.1": {"input": "0.7", "output": "2.2"},
    "kimi-k2.5": {"input": "0.36", "output": "1.8"},
}
_FAST: Final = 100
_ALLOWANCE: Final = 200
_FILLER: Final = "It concerns things that were measured on the way here. " * 8


class Coords(msgspec.Struct, frozen=True):
    """Which question a cell is."""

    model: str
    number: int


class Follower:
    """Reads every answer as complete, and asks one more question about every first one."""

    def __init__(self, cards: Mapping[str, ModelCard]) -> None:
        self._cards = cards

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return a small reading."""
        reading = Reading(status=ReadingStatus.COMPLETE, version=1, body=b'{"characters":%d}' % len(completion.text))
        if stage != STAGE:
            return Read(reading=reading, follow_ups=())
        place = msgspec.json.decode(coords, type=Coords)
        return Read(reading=reading, follow_ups=(question(self._cards[place.model], place, NEXT_STAGE),))


def cards_at(addresses: Mapping[str, str]) -> dict[str, ModelCard]:
    """Return a card by alias for every provider in `addresses`, led there."""
    layer: dict[str, dict[str, object]] = {
        "provider": {name: {"base_url": url, "key_env": KEY_ENV} for name, url in addresses.items()},
        "model": {alias: {"batch": True, "batch_price": price} for alias, price in _PRICED.items()},
    }
    catalog = load_catalog(layer)
    return {MODELS[name]: catalog.card(MODELS[name]) for name in addresses}


def batches_at(cards: Mapping[str, ModelCard]) -> dict[str, BatchProvider]:
    """Return the real adapters of the cards' batch APIs, in a hurry."""
    return build_batch_providers(cards.values(), {**os.environ, KEY_ENV: KEY}, per_second=_FAST)


def question(card: ModelCard, place: Coords, stage: str = STAGE) -> Cell:
    """Return a question; all of them differ."""
    text = f"Question {place.number} of stage {stage} to {place.model}. {_FILLER}"
    request = Request(
        provider=card.provider,
        model=card.model,
        messages=chat((Role.SYSTEM, SYSTEM), (Role.USER, text)),
        decoding=Decoding(max_tokens=_ALLOWANCE),
    )
    coords = msgspec.json.encode(place)
    return Cell(stage=stage, alias=card.alias, coords=coords, request=request, batch=True)


def questions(cards: Mapping[str, ModelCard], number: int) -> Iterator[Cell]:
    """Yield so many questions, to the models in turn."""
    aliases = list(cards)
    places = (Coords(aliases[each % len(aliases)], each) for each in range(number))
    return (question(cards[place.model], place) for place in places)


async def make_batch_runner(
    store: Store, sweep: Sweep, cards: Mapping[str, ModelCard], providers: Mapping[str, BatchProvider], *,
    policy: BatchPolicy, retry: RetryPolicy, listen: Listener, folder: Path, run: str, reader: Reader | None = None,
) -> Runner:  # fmt: skip
    """Return a run of the sweep in which everything goes by batch, what a batch left over too."""
    clock = SystemClock()
    lanes = {
        f"{card.provider}/{card.model}{BATCH_SUFFIX}": BatchLane(
            f"{card.provider}/{card.model}{BATCH_SUFFIX}",
            provider=card.provider,
            model=card.model,
            limits=providers[card.provider].limits(card.model),
            policy=policy,
        )
        for card in cards.values()
    }
    routes = {
        alias: Route(f"{card.provider}/{card.model}", card.provider, card.price or FREE, RateLimits(concurrency=1))
        for alias, card in cards.items()
    }
    caps = {Scope("sweep", sweep.name): CAP, Scope("stage", STAGE): CAP}
    batching = Batching(
        providers=providers,
        lanes=lanes,
        prices={alias: card.batch_price or FREE for alias, card in cards.items()},
        policy=policy,
        retry=retry,
        leftovers={name: name for name in lanes},
        feeds={NEXT_STAGE: frozenset({STAGE})},
        folder=folder,
        run=run,
    )
    return Runner(
        store=store,
        sweep=sweep,
        run_id=await store.begin_run(sweep.id, "{}", clock.wall_ms()),
        scheduler=Scheduler(
            sweep=SWEEP, routes=routes, ledger=Ledger(caps, *await store.used(sweep)), policy=retry, now=clock.now()
        ),
        providers={},
        prices={alias: route.price for alias, route in routes.items()},
        reader=reader or Follower(cards),
        clock=clock,
        rng=Random(0),  # noqa: S311 - jitter, not secrets
        progress=Progress({}),
        listen=listen,
        batching=batching,
    )
