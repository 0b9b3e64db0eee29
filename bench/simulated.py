"""Finds out whether a simulator answers for a run's accounts, so that simulated numbers are marked without being told.

Only addresses of this machine are asked, without a key; a real provider hears nothing. Nobody there means that nothing
is known.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import httpx
import msgspec

from bench.manifest import Manifest, stored_manifest
from bench.simulator.wire import MARK
from bench.sweepfile import LoadedFile
from engine.errors import UserError
from engine.store import Sweep
from providers.address import is_loopback
from providers.card import ModelCard
from providers.catalog import Catalog

PATIENCE: Final = 2.0


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run matters here; `bench.run` adds to it."""

    loaded: LoadedFile
    catalog: Catalog
    manifest: Manifest


Run = TypeVar("Run", bound=Marked)


async def find_simulators(cards: Iterable[ModelCard]) -> dict[str, bool]:
    """Return, for every account of this machine where something answers, whether that is the simulator."""
    addresses = {card.provider: card.base_url for card in cards if is_loopback(card.base_url)}
    if not addresses:
        return {}
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        heard = await asyncio.gather(*(_is_simulator(client, url) for url in addresses.values()))
    return {name: found for name, found in zip(addresses, heard, strict=True) if found is not None}


async def marked(run: Run) -> Run:
    """Return a run as it is, or marked as simulated where a simulator answers for its accounts.

    Raises:
        UserError: the simulator answers for some of them, and real models for others.
    """
    if run.manifest.simulated:
        return run
    cards = {alias: run.catalog.card(alias) for alias in run.manifest.models}
    found = await find_simulators(cards.values())
    simulated = sorted(name for name, is_one in found.items() if is_one)
    if not simulated:
        return run
    if real := real_accounts(cards, found):
        raise UserError(
            f"a simulator answers for {', '.join(simulated)}, but not for {', '.join(real)}: simulated and real answers"
            " are never mixed in one sweep",
            where=run.loaded.place("provider", simulated[0]),
            mend="lead all of its accounts to the simulator, or none",
        )
    return msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, simulated=True))


def real_accounts(cards: Mapping[str, ModelCard], found: Mapping[str, bool]) -> list[str]:
    """Return the accounts of which it is known that no simulator answers for them."""
    return sorted(
        {card.provider for card in cards.values() if not found.get(card.provider, is_loopback(card.base_url))}
    )


async def agreed(run: Run, known: Sweep) -> tuple[Run, Sweep]:
    """Return a run and its stored sweep with one mark: the run's, unless nobody answers for its accounts at present."""
    manifest, cards = run.manifest, {alias: run.catalog.card(alias) for alias in run.manifest.models}
    if known.simulated and not real_accounts(cards, await find_simulators(cards.values())):
        return msgspec.structs.replace(run, manifest=msgspec.structs.replace(manifest, simulated=True)), known
    before = msgspec.structs.replace(stored_manifest(known, str(run.loaded.path)), simulated=manifest.simulated)
    return run, msgspec.structs.replace(known, manifest=msgspec.json.encode(before).decode())


def check_marks(others: Sequence[Sequence[object]], manifest: Manifest, store: Path) -> None:
    """Refuse a store with answers of the other kind, of the run's sweep or of another: equal calls are shared there.

    Args:
        others: the store's sweeps that have such answers, as rows that begin with the name.
        manifest: the run's.
        store: its path.

    Raises:
        UserError: there are some.
    """
    if others:
        holds, wants = ("real", "simulated") if manifest.simulated else ("simulated", "real")
        raise UserError(
            f"the store holds {holds} answers (sweep `{others[0][0]}`), those of this run are {wants}, and they are"
            " never mixed",
            where=str(store),
            mend="give this run another store: --store FILE",
        )


async def _is_simulator(client: httpx.AsyncClient, base_url: str) -> bool | None:
    """Say whether the simulator answers at an address; it marks every reply, refusals too. None when nobody does."""
    try:
        reply = await client.get(f"{base_url.rstrip('/')}/models")
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return None
    return bool(reply.headers.get(MARK[0]) == MARK[1])
