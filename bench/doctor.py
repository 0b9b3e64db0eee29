"""Checks that a sweep's accounts work before money is spent: keys, endpoints, model names, and one tiny call each."""

from collections.abc import Iterable, Mapping

import msgspec

from engine.errors import ProviderError
from engine.money import FREE, cost_nano, worst_cost_nano
from engine.request import Decoding, Request, Role, chat, input_token_bound, prompt_bytes
from providers.adapt import adapt
from providers.card import ModelCard
from providers.control import check_models
from providers.dialect import Wire
from providers.registry import build_providers

# Reasoning models spend tokens before the first word; fewer than this brings an empty answer from some.
ALLOWANCE = 16
PROMPT = "Answer with the word yes."


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one model.

    Attributes:
        key: the key's environment variable is set (True where none is wanted).
        listed: the account lists the model; None when the account could not be asked.
        called: a call was answered; None when none was made.
        nano: what that call cost.
    """

    alias: str
    provider: str
    key: bool
    listed: bool | None = None
    called: bool | None = None
    nano: int = 0
    note: str = ""


def hosted(cards: Iterable[ModelCard]) -> list[ModelCard]:
    """Return the cards that are called over HTTP."""
    return [card for card in cards if card.dialect.wire is not Wire.IN_PROCESS]


def has_key(card: ModelCard, environ: Mapping[str, str]) -> bool:
    """Say whether the key that `card` wants is in the environment."""
    return not card.key_env or bool(environ.get(card.key_env, "").strip())


def probe_request(card: ModelCard) -> Request:
    """Return the smallest useful call to a model."""
    decoding, _ = adapt(card, Decoding(max_tokens=ALLOWANCE))
    return Request(provider=card.provider, model=card.model, messages=chat((Role.USER, PROMPT)), decoding=decoding)


def worst_nano(cards: Iterable[ModelCard]) -> int:
    """Return the most that one probe call to each of `cards` can cost, unknown prices counted as zero."""
    total = 0
    for card in cards:
        request = probe_request(card)
        bound = input_token_bound(prompt_bytes(request), len(request.messages))
        total += worst_cost_nano(card.price or FREE, bound, request.decoding.max_tokens)
    return total


async def examine(cards: Iterable[ModelCard], environ: Mapping[str, str], *, call: bool) -> list[Finding]:
    """Examine every hosted model whose key is there; `call` spends at most `worst_nano` of them."""
    everyone = hosted(cards)
    ready = [card for card in everyone if has_key(card, environ)]
    found = {
        card.alias: Finding(alias=card.alias, provider=card.provider, key=False, note=f"{card.key_env} is not set")
        for card in everyone
        if not has_key(card, environ)
    }
    for check in await check_models(ready, environ):
        found[check.alias] = Finding(
            alias=check.alias, provider=check.provider, key=True, listed=check.found, note=check.note
        )
    if call:
        for card in ready:
            found[card.alias] = await _called(card, environ, found[card.alias])
    return [found[card.alias] for card in everyone]


async def _called(card: ModelCard, environ: Mapping[str, str], finding: Finding) -> Finding:
    provider = build_providers([card], environ)[card.provider]
    try:
        reply = await provider.complete(probe_request(card))
    except ProviderError as error:
        return msgspec.structs.replace(finding, called=False, note=f"{error.kind}: {error}")
    finally:
        await provider.close()
    return msgspec.structs.replace(finding, called=True, nano=cost_nano(card.price or FREE, reply.completion.usage))
