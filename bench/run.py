"""The wiring: a sweep file, a catalogue, providers, instruments and a store become one run of the engine."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import platformdirs

from bench.design import build_design, composer
from bench.manifest import Manifest, build_manifest, check_unchanged, plan_hash
from bench.sweepfile import LimitTable, LoadedSweep, caps
from engine.cell import Cell
from engine.clock import SystemClock
from engine.errors import UserError
from engine.events import Level, Listener, Notice, Outcome, Snapshot
from engine.ledger import Ledger
from engine.limits import RateLimits
from engine.money import FREE, usd
from engine.progress import Progress
from engine.provider import Provider
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.status import stage_counts
from engine.store import Recovery, Store, Sweep
from instruments.instrument import Design
from instruments.reader import SweepReader, count_asks, plan
from providers.card import ModelCard
from providers.catalog import Catalog, load_catalog
from providers.dialect import Wire
from providers.registry import build_providers
from providers.vllm import VllmProvider, VllmSettings

VIEWS: Final = ("views.sql", "annotation.sql")
USER_CATALOG: Final = "catalog.toml"


class Prepared(msgspec.Struct, frozen=True):
    """A sweep that is checked and resolved; nothing has been sent, nothing written."""

    loaded: LoadedSweep
    catalog: Catalog
    design: Design
    manifest: Manifest
    store_path: Path


class Result(msgspec.Struct, frozen=True):
    """How a run ended and what it ended with."""

    outcome: Outcome
    snapshot: Snapshot
    recovery: Recovery


Watch = Callable[[Callable[[], Snapshot], Mapping[str, int]], None]


def prepare(loaded: LoadedSweep, *, store: Path | None = None, simulated: bool = False) -> Prepared:
    """Check a sweep wholly before anything happens.

    Raises:
        UserError: anything in it that cannot work.
    """
    catalog = user_catalog(loaded)
    design = build_design(loaded, catalog)
    manifest = build_manifest(loaded, design, catalog, simulated=simulated)
    prepared = Prepared(loaded, catalog, design, manifest, store or loaded.store_path)
    routes(prepared)
    caps(loaded)
    return prepared


def user_catalog(loaded: LoadedSweep | None) -> Catalog:
    """Return the shipped catalogue with the user's own and the sweep file's models over it.

    Raises:
        UserError: one of them is wrong.
    """
    user_file = Path(platformdirs.user_config_dir("mirage")) / USER_CATALOG
    if loaded is None:
        return load_catalog(user_file=user_file)
    tables = {"provider": loaded.sweep.provider, "model": loaded.sweep.model}
    return load_catalog(tables, extra_name=str(loaded.path), user_file=user_file)


def expected_cells(design: Design) -> dict[str, int]:
    """Return how many cells every stage will have when every answer can be read."""
    totals: dict[str, int] = {}
    for (stage, _), number in count_asks(design).items():
        totals[stage.value] = totals.get(stage.value, 0) + number
    return totals


async def run_sweep(prepared: Prepared, *, listen: Listener, watch: Watch) -> Result:
    """Run a prepared sweep until nothing is left or nothing more may be sent.

    `watch` is given a function that returns a snapshot, and the expected cells by stage, before the first call.

    Raises:
        UserError: missing keys, an unusable store, a model that does not load.
    """
    providers = _providers(prepared)
    make_folder(prepared.store_path)
    try:
        async with await Store.open(prepared.store_path, _views()) as store:
            return await _run(prepared, store, providers, listen, watch)
    finally:
        for provider in providers.values():
            await provider.close()


async def _run(
    prepared: Prepared, store: Store, providers: Mapping[str, Provider], listen: Listener, watch: Watch
) -> Result:
    clock = SystemClock()
    sweep = await _register(prepared, store, clock)
    recovery = await store.recover(sorted(_free_providers(prepared)), clock.wall_ms())
    _tell_recovery(recovery, listen)
    await store.flush()
    progress = Progress(await stage_counts(store.path, sweep.name))
    run_id = await store.begin_run(sweep.id, sweep.manifest, clock.wall_ms())
    runner = Runner(
        store=store,
        sweep=sweep,
        run_id=run_id,
        scheduler=Scheduler(
            sweep=sweep.name,
            routes=routes(prepared),
            ledger=Ledger(caps(prepared.loaded), await store.spent(sweep)),
            policy=_policy(prepared),
            now=clock.now(),
        ),
        providers=providers,
        prices={alias: entry.price or FREE for alias, entry in prepared.manifest.models.items()},
        reader=SweepReader(prepared.design, composer(prepared.design, prepared.catalog)),
        clock=clock,
        rng=Random(),  # noqa: S311 - jitter, not secrets
        progress=progress,
        listen=listen,
    )
    watch(runner.snapshot, expected_cells(prepared.design))
    with _Signals(runner, listen):
        outcome = await runner.run(_roots(prepared, sweep))
    if store.refused is None:
        await store.end_run(run_id, outcome.value, clock.wall_ms())
    return Result(outcome, runner.snapshot(), recovery)


class _Signals:
    """The first SIGINT or SIGTERM drains, the second hangs up."""

    def __init__(self, runner: Runner, listen: Listener) -> None:
        self._runner = runner
        self._listen = listen
        self._times = 0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self._times += 1
        if self._times == 1:
            text = "stopping: calls on the wire may finish (again to hang up on them)"
            self._runner.drain()
        else:
            text = "hanging up; what was on the wire counts as possibly billed"
            self._runner.abort()
        self._listen(Notice(kind="stopping", level=Level.WARNING, text=text))


async def _register(prepared: Prepared, store: Store, clock: SystemClock) -> Sweep:
    """Find or add the sweep in the store; a changed design has its roots planned again."""
    manifest, digest = prepared.manifest, plan_hash(prepared.manifest)
    text = msgspec.json.encode(manifest).decode()
    known = await store.find_sweep(manifest.name)
    if known is None:
        await store.add_sweep(manifest.name, text, digest, simulated=manifest.simulated, now_ms=clock.wall_ms())
    else:
        check_unchanged(known, manifest, str(prepared.loaded.path))
        await store.update_sweep(known.id, text, digest, planned=known.planned and known.plan_hash == digest)
    found = await store.find_sweep(manifest.name)
    assert found is not None  # noqa: S101 - just written
    return found


def _roots(prepared: Prepared, sweep: Sweep) -> Iterable[Cell]:
    if sweep.planned:
        return ()
    compose = composer(prepared.design, prepared.catalog)

    def cells() -> Iterator[Cell]:
        for ask in plan(prepared.design):
            yield compose(ask)

    return cells()


def _cards(prepared: Prepared) -> dict[str, ModelCard]:
    return {alias: prepared.catalog.card(alias) for alias in prepared.manifest.models}


def _free_providers(prepared: Prepared) -> set[str]:
    """Return the providers whose cut-off calls cost nothing: those that compute in this process."""
    return {card.provider for card in _cards(prepared).values() if card.dialect.wire is Wire.IN_PROCESS}


def _providers(prepared: Prepared) -> dict[str, Provider]:
    cards = _cards(prepared).values()
    providers = build_providers(cards, os.environ)
    local = {card.model: card for card in cards if card.dialect.wire is Wire.IN_PROCESS}
    if len(local) > 1:
        raise UserError(
            f"one run can serve one local model, this sweep has {', '.join(sorted(local))}",
            where=str(prepared.loaded.path),
            mend="split the sweep: both parts may use the same store",
        )
    for model, card in local.items():
        providers[card.provider] = VllmProvider(_local_settings(prepared, model))
    return providers


def _local_settings(prepared: Prepared, model: str) -> VllmSettings:
    try:
        return msgspec.convert({"model": model, "name": model, **prepared.loaded.sweep.local}, VllmSettings)
    except msgspec.ValidationError as error:
        raise UserError(
            f"[local]: {error}", where=str(prepared.loaded.path), mend="the README lists what [local] may say"
        ) from None


def routes(prepared: Prepared) -> dict[str, Route]:
    """Return how the requests of every alias are sent, limited and paid for.

    Raises:
        UserError: [limits] names a model that the sweep does not use.
    """
    overrides = prepared.loaded.sweep.limits
    unknown = sorted(set(overrides) - set(prepared.manifest.models))
    if unknown:
        raise UserError(
            f"[limits] names `{unknown[0]}`, which this sweep does not use",
            where=str(prepared.loaded.path),
            mend="remove it",
        )
    return {
        alias: Route(
            lane=f"{card.provider}/{card.model}",
            provider=card.provider,
            price=card.price or FREE,
            limits=_limits(card, overrides.get(alias, LimitTable())),
        )
        for alias, card in _cards(prepared).items()
    }


def _limits(card: ModelCard, given: LimitTable) -> RateLimits:
    known = card.limits
    return RateLimits(
        requests=given.requests_per_minute or known.rpm,
        requests_per_day=given.requests_per_day or known.rpd,
        input_tokens=given.input_tokens_per_minute or known.itpm,
        output_tokens=given.output_tokens_per_minute or known.otpm,
        tokens=given.tokens_per_minute or known.tpm,
        concurrency=given.concurrency or known.concurrency,
        adaptive=card.dialect.wire is not Wire.IN_PROCESS,
    )


def _policy(prepared: Prepared) -> RetryPolicy:
    table = prepared.loaded.sweep.retry
    return RetryPolicy(failures=table.failures, throttles=table.throttles)


def _tell_recovery(recovery: Recovery, listen: Listener) -> None:
    if recovery.calls:
        text = (
            f"an earlier run was cut off with {recovery.calls} calls on the wire; they are made again"
            f" (at most {usd(recovery.nano)} may be billed twice)"
        )
        fields = {"calls": recovery.calls, "nano": recovery.nano}
        listen(Notice(kind="recovered", level=Level.WARNING, text=text, fields=fields))


def _views() -> list[str]:
    folder = files("instruments").joinpath("sql")
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in VIEWS if folder.joinpath(name).is_file()]


def make_folder(store: Path) -> None:
    """Make the folder that a store is to lie in.

    Raises:
        UserError: it cannot be made.
    """
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the store's folder cannot be made: {error.strerror}",
            where=str(store.parent),
            mend="choose another `store`",
        ) from error
