"""Batch providers from catalogue cards and environment keys. Must not know: sweeps, lanes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import httpx

from engine.batch.provider import BatchProvider
from providers.anthropic_batch import AnthropicBatches
from providers.batch_dialect import BATCH_DIALECTS
from providers.batch_link import BatchLink
from providers.card import ModelCard
from providers.control import CALLS_PER_SECOND, Sleep
from providers.dialect import Dialect, Wire
from providers.gemini_batch import GeminiBatches
from providers.http import HttpEndpoint, Timeouts
from providers.openai_batch import OpenAIBatches
from providers.registry import build_endpoint, by_account, check_keys

# A file of hundreds of megabytes may take long; silence between two pieces of it may not.
TIMEOUTS: Final = Timeouts(connect=15.0, silence=120.0, total=3600.0)


def build_batch_providers(
    cards: Iterable[ModelCard],
    environ: Mapping[str, str],
    *,
    timeouts: Timeouts = TIMEOUTS,
    transport: httpx.AsyncBaseTransport | None = None,
    per_second: int | None = None,
    sleep: Sleep = asyncio.sleep,
) -> dict[str, BatchProvider]:
    """Return one batch provider per account that has a batch API for any of `cards`.

    Keys are read from `environ`, normally `os.environ`. For tests, `transport` replaces the network, `per_second` the
    pace of polls and lists, and `sleep` the waits between tries.

    Raises:
        UserError: keys are missing; all of them are named at once.
    """
    accounts = by_account(card for card in cards if card.batch and has_batches(card.dialect))
    check_keys((card for group in accounts.values() for card in group), environ)
    return {
        name: _built(
            group,
            build_endpoint(group[0], environ, timeouts=timeouts, transport=transport),
            per_second=per_second,
            sleep=sleep,
        )
        for name, group in accounts.items()
    }


def has_batches(dialect: Dialect) -> bool:
    """Whether an adapter here speaks this dialect's batch API."""
    return dialect.wire in (Wire.ANTHROPIC, Wire.GEMINI) or (
        dialect.wire is Wire.OPENAI and dialect.errors in BATCH_DIALECTS
    )


def _built(
    group: Sequence[ModelCard], endpoint: HttpEndpoint, *, per_second: int | None, sleep: Sleep
) -> BatchProvider:
    first = group[0]
    errors, wire = first.dialect.errors, first.dialect.wire
    batches = BATCH_DIALECTS.get(errors) if wire is Wire.OPENAI else None
    pace = per_second or (batches.lists_per_second if batches else CALLS_PER_SECOND)
    link = BatchLink(endpoint, errors, key_env=first.key_env, per_second=pace, sleep=sleep)
    dialects = {card.model: card.dialect for card in group}
    tokens = {card.model: card.limits.enqueued_tokens for card in group}
    if batches is not None:
        return OpenAIBatches(link, batches, dialects=dialects, enqueued_tokens=tokens)
    if wire is Wire.GEMINI:
        return GeminiBatches(link, dialects=dialects, enqueued_tokens=tokens)
    return AnthropicBatches(link, dialects=dialects)
