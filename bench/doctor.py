"""Checks that a sweep's accounts work before money is spent: keys, endpoints, model names, and one tiny call each.

Of models that run in this process it says where they are; nothing is loaded, and nothing is fetched.
"""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from bench.simulated import find_simulators
from engine.errors import ProviderError, UserError
from engine.money import FREE, cost_nano, worst_cost_nano
from engine.request import Decoding, Request, Role, chat, input_token_bound, prompt_bytes
from providers import smollm
from providers.adapt import adapt
from providers.card import ModelCard
from providers.control import check_models
from providers.dialect import Wire
from providers.registry import build_providers
from providers.vllm_load import INSTALL

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
        simulated: a simulator answers at the account's address.
        local: the model runs in this process; then `listed` says whether it can be loaded.
    """

    alias: str
    provider: str
    key: bool
    listed: bool | None = None
    called: bool | None = None
    nano: int = 0
    simulated: bool = False
    local: bool = False
    note: str = ""

    @property
    def good(self) -> bool:
        """Say whether a run can be expected to work; an account that lists nothing is believed for its answer."""
        return self.key and self.called is not False and (self.listed is True or self.called is True)


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
        card.alias: Finding(alias=card.alias, provider=card.provider, key=False, note=f"export {card.key_env}=...")
        for card in everyone
        if not has_key(card, environ)
    }
    simulators = await find_simulators(ready)
    for check in await check_models(ready, environ):
        found[check.alias] = Finding(
            alias=check.alias,
            provider=check.provider,
            key=True,
            listed=check.found,
            simulated=simulators.get(check.provider, False),
            note=check.note
            or ("" if check.found else "the account's list does not have it; `mirage models` shows names"),
        )
    if call:
        for card in ready:
            found[card.alias] = await _called(card, environ, found[card.alias])
    return [found[card.alias] for card in everyone]


def look_for_local(card: ModelCard, place: str = "") -> Finding:
    """Return whether a model of this process can be loaded, and from where.

    Args:
        card: the model's.
        place: what [local] says of it: a folder or a hub name; empty for the catalogue's.
    """
    there, note = _place_of(place or card.model)
    if find_spec("vllm") is None:
        there, note = False, f"vLLM is not installed: {INSTALL}"
    return Finding(alias=card.alias, provider=card.provider, key=True, listed=there, local=True, note=note)


def _place_of(model: str) -> tuple[bool, str]:
    """Return whether a model can be found, and where, or what to do."""
    if model == smollm.MODEL:
        try:
            folder, there = smollm.unpacked()
        except UserError as error:
            return False, str(error)
        return (
            True,
            f"found in the cache at {folder}" if there else "not unpacked yet: `make demo`, or any run, does it",
        )
    if Path(model).is_dir():
        return True, f"found in the folder {model}"
    if model.startswith((".", "/", "~")):
        return False, f"there is no folder {model}: correct `model` in [local]"
    cached = _hub() / f"models--{model.replace('/', '--')}"
    if cached.is_dir():
        return True, f"found in the cache at {cached}"
    return True, f"not in the cache yet: the first run fetches {model} from its hub"


def _hub() -> Path:
    """Return where models of the hub are kept on this machine."""
    home = os.environ.get("HF_HOME", "") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE", "") or f"{home}/hub").expanduser()


async def _called(card: ModelCard, environ: Mapping[str, str], finding: Finding) -> Finding:
    provider = build_providers([card], environ)[card.provider]
    try:
        reply = await provider.complete(probe_request(card))
    except ProviderError as error:
        return msgspec.structs.replace(finding, called=False, note=f"{error.kind}: {error}")
    finally:
        await provider.close()
    return msgspec.structs.replace(finding, called=True, nano=cost_nano(card.price or FREE, reply.completion.usage))
