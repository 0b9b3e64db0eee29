"""The wiring of batches: accounts with a batch API, their lanes, and what the sweep file wants of them."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from bench.manifest import Manifest, modes_of
from bench.modes import Mode
from bench.sweepfile import LoadedFile, batch_policy
from engine.batch.lane import BatchLane
from engine.batch.provider import BatchProvider
from engine.batch.store import BatchStore
from engine.batch.wiring import Batching
from engine.money import FREE
from engine.retry import RetryPolicy
from engine.rows import BATCH_SUFFIX
from engine.store import Store, Sweep
from providers.batch_registry import build_batch_providers, has_batches
from providers.card import ModelCard

FOLDER_SUFFIX = ".batches"
_TOKEN_BYTES = 6


def batch_folder(store: Path) -> Path:
    """Return where the files of a store's batches lie while they are needed."""
    return store.with_name(store.name + FOLDER_SUFFIX)


def lanes_of(manifest: Manifest, cards: Mapping[str, ModelCard]) -> dict[tuple[str, str], str]:
    """Return the lane of every (alias, stage) as the manifest has it sent."""
    return {
        (alias, stage): _lane(cards[alias]) + (BATCH_SUFFIX if mode is Mode.BATCH else "")
        for (alias, stage), mode in modes_of(manifest).items()
    }


async def batch_accounts(
    manifest: Manifest, cards: Mapping[str, ModelCard], store: Store, sweep: Sweep
) -> dict[str, BatchProvider]:
    """Return the batch APIs that a run needs: those that it sends by, and those where an earlier run left batches.

    A batch that was given back after its stage was told to stream has left its requests in a batch lane: these too.

    Raises:
        UserError: a key is missing.
    """
    wanted = {cards[alias].provider for (alias, _), mode in modes_of(manifest).items() if mode is Mode.BATCH}
    wanted |= {batch.provider for batch in await BatchStore(store, sweep.id, 0).live()}
    wanted |= {lane.partition("/")[0] for lane in await store.waiting(sweep.id) if lane.endswith(BATCH_SUFFIX)}
    return build_batch_providers([card for card in cards.values() if card.provider in wanted], os.environ)


def batching(
    loaded: LoadedFile, cards: Mapping[str, ModelCard], providers: Mapping[str, BatchProvider], *,
    store: Path, retry: RetryPolicy, feeds: Mapping[str, frozenset[str]],
) -> Batching | None:  # fmt: skip
    """Return how a run sends by these batch APIs, None where there are none and never were."""
    # A catalogue that has lost its batch APIs may have batches left: they are told of, not passed over in silence.
    if not providers and not batch_folder(store).exists():
        return None
    policy = batch_policy(loaded)
    able = [card for card in cards.values() if card.provider in providers and card.batch and has_batches(card.dialect)]
    lanes = {
        _lane(card) + BATCH_SUFFIX: BatchLane(
            _lane(card) + BATCH_SUFFIX,
            provider=card.provider,
            model=card.model,
            limits=providers[card.provider].limits(card.model),
            policy=policy,
        )
        for card in able
    }
    streamed = policy.leftovers == "stream"
    return Batching(
        providers=providers,
        lanes=lanes,
        prices={card.alias: card.batch_price or card.price or FREE for card in cards.values()},
        policy=policy,
        retry=retry,
        leftovers={name: name.removesuffix(BATCH_SUFFIX) if streamed else name for name in lanes},
        feeds=feeds,
        folder=batch_folder(store),
        run=secrets.token_hex(_TOKEN_BYTES),
    )


def _lane(card: ModelCard) -> str:
    return f"{card.provider}/{card.model}"
