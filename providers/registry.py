"""Providers from catalogue cards and environment keys; the only place that joins codecs, endpoints and keys.

In-process models have no endpoint and are built by whoever owns the machine. Must not know: sweeps, lanes.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import httpx
import msgspec

from engine.errors import UserError
from engine.provider import Provider
from providers import anthropic, gemini, openai
from providers.adapter import Codec, HttpProvider
from providers.card import ModelCard
from providers.dialect import Wire
from providers.http import Heard, HttpEndpoint, Timeouts
from providers.keys import Secret, read_key


class Transport(msgspec.Struct, frozen=True):
    """How one wire format carries its key, and its codec."""

    codec: Codec
    key_header: str
    headers: dict[str, str] = {}


TRANSPORTS: Final[Mapping[Wire, Transport]] = MappingProxyType(
    {
        Wire.OPENAI: Transport(openai.CODEC, "authorization"),
        Wire.ANTHROPIC: Transport(anthropic.CODEC, "x-api-key", {"anthropic-version": anthropic.VERSION}),
        Wire.GEMINI: Transport(gemini.CODEC, "x-goog-api-key"),
    }
)


def build_providers(
    cards: Iterable[ModelCard],
    environ: Mapping[str, str],
    *,
    timeouts: Timeouts | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    heard: Heard | None = None,
) -> dict[str, Provider]:
    """Return one provider per account named by `cards`, in-process models left out.

    Keys are read from `environ`, normally `os.environ`; `transport` replaces the network, for tests; `heard` is told
    when a reply begins.

    Raises:
        UserError: keys are missing; all of them are named at once.
    """
    accounts = by_account(cards)
    check_keys((card for group in accounts.values() for card in group), environ)
    return {
        name: HttpProvider(
            name,
            build_endpoint(group[0], environ, timeouts=timeouts, transport=transport, heard=heard),
            TRANSPORTS[group[0].dialect.wire].codec,
            dialects={card.model: card.dialect for card in group},
            key_env=group[0].key_env,
        )
        for name, group in accounts.items()
    }


def build_endpoint(
    card: ModelCard,
    environ: Mapping[str, str],
    *,
    timeouts: Timeouts | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    heard: Heard | None = None,
) -> HttpEndpoint:
    """Return the endpoint of the account that `card` belongs to; raises UserError when its key is missing."""
    carried = TRANSPORTS[card.dialect.wire]
    return HttpEndpoint(
        card.provider,
        card.base_url,
        secret=_secret(card, environ),
        key_header=carried.key_header,
        headers=carried.headers,
        timeouts=timeouts,
        transport=transport,
        heard=heard,
    )


def by_account(cards: Iterable[ModelCard]) -> dict[str, Sequence[ModelCard]]:
    """Return the cards that are called over HTTP, by provider name."""
    accounts: dict[str, list[ModelCard]] = {}
    for card in cards:
        if card.dialect.wire in TRANSPORTS:
            accounts.setdefault(card.provider, []).append(card)
    return dict(accounts)


def check_keys(cards: Iterable[ModelCard], environ: Mapping[str, str]) -> None:
    """Raise UserError naming every environment variable that `cards` need and `environ` lacks."""
    missing = {
        card.key_env: card.provider for card in cards if card.key_env and not environ.get(card.key_env, "").strip()
    }
    if missing:
        raise UserError(
            f"no API key for {', '.join(missing.values())}",
            where=f"environment variable {', '.join(missing)} not set",
            mend=f"set it, e.g. `export {next(iter(missing))}=...`, or leave these models out of the sweep",
        )


def _secret(card: ModelCard, environ: Mapping[str, str]) -> Secret | None:
    return read_key(card.key_env, environ, provider=card.provider) if card.key_env else None
