"""The wiring: a sweep file, a catalogue, providers, instruments and a store become one run of the engine."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import platformdirs

from bench.batching import batch_accounts, batching, lanes_of
from bench.design import build_design, check_asks, composer
from bench.localmodel import check_local, engine_settings, load_local
from bench.manifest import (
    Manifest,
    build_manifest,
    check_unchanged,
    modes_changed,
    modes_of,
    plan_hash,
)
from bench.simulated import Marked, agreed, check_marks, marked
from bench.storeplace import make_folder, store_place
from bench.sweepfile import LimitTable, LoadedFile, LoadedSweep, batch_policy, caps, load_sweep
from bench.usednames import check_tables, check_used
from engine.batch.provider import BatchProvider
from engine.cell import Cell, Reader
from engine.clock import SystemClock
from engine.events import Level, Listener, Notice, Outcome, Snapshot
from engine.ledger import Ledger
from engine.limits import RateLimits
from engine.money import FREE, dollars
from engine.progress import Progress
from engine.provider import Provider
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.scheduler import Route, Scheduler
from engine.status import stage_counts
from engine.store import Recovery, Store, Sweep
from instruments.instrument import Design
from instruments.reader import SweepReader, count_asks, feeds, plan
from providers.card import ModelCard
from providers.catalog import Catalog, load_catalog
from providers.dialect import Wire
from providers.registry import build_providers
from providers.vllm import VllmProvider

VIEWS: Final = ("views.sql", "annotation.sql")
USER_CATALOG: Final = "catalog.toml"
_AT_AN_END: Final = frozenset({Outcome.COMPLETE, Outcome.INCOMPLETE})

Watch = Callable[[Callable[[], Snapshot], Mapping[str, int]], None]
More = Callable[[Store, Sweep], Awaitable[Sequence[Cell]]]


class Checked(Marked, frozen=True, kw_only=True):
    """A run's file, checked, with its models; nothing has been sent, nothing written."""

    store_path: Path


class Prepared(Checked, frozen=True, kw_only=True):
    """A sweep that is checked and resolved; nothing has been sent, nothing written."""

    loaded: LoadedSweep
    design: Design


class Job(Checked, frozen=True, kw_only=True):
    """Something to run: where it starts, who reads the answers, and how many cells are expected by stage.

    `more` is asked whenever nothing is left to do: the cells that it returns are run too. `feeds` tells, for every
    stage, the stages whose answers can add to it.
    """

    reader: Reader
    roots: Callable[[], Iterable[Cell]]
    expected: Mapping[str, int]
    feeds: Mapping[str, frozenset[str]]
    more: More | None = None
    design: Design | None = None


class Result(msgspec.Struct, frozen=True):
    """How a run ended and what it ended with."""

    outcome: Outcome
    snapshot: Snapshot
    recovery: Recovery


def prepare(loaded: LoadedSweep, *, store: Path | None = None, simulated: bool = False) -> Prepared:
    """Check a sweep wholly before anything happens.

    Raises:
        UserError: anything in it that cannot work.
    """
    catalog = user_catalog(loaded)
    design = build_design(loaded, catalog)
    manifest = build_manifest(loaded, design, catalog, simulated=simulated)
    prepared = Prepared(
        loaded=loaded, catalog=catalog, design=design, manifest=manifest, store_path=store_place(loaded, store)
    )
    routes(prepared)
    check_local(loaded, _cards(prepared), design)
    check_asks(design, loaded)
    caps(loaded)
    batch_policy(loaded)
    return prepared


def prepare_file(path: Path, *, store: Path | None = None) -> Prepared:
    """Read and check the sweep file of a person wholly before anything happens.

    Raises:
        UserError: anything in it that cannot work, or that would have no effect.
    """
    prepared = prepare(load_sweep(path), store=store)
    check_tables(prepared.loaded, prepared.catalog)
    return prepared


def user_catalog(loaded: LoadedFile | None) -> Catalog:
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


def sweep_job(prepared: Prepared) -> Job:
    """Return a prepared sweep as something to run."""
    design, compose = prepared.design, composer(prepared.design, prepared.catalog, modes_of(prepared.manifest))
    return Job(
        loaded=prepared.loaded,
        catalog=prepared.catalog,
        manifest=prepared.manifest,
        store_path=prepared.store_path,
        reader=SweepReader(design, compose),
        roots=lambda: (compose(ask) for ask in plan(design)),
        expected=expected_cells(design),
        feeds=feeds(design),
        design=design,
    )


async def run_sweep(prepared: Prepared, *, listen: Listener, watch: Watch) -> Result:
    """Run a prepared sweep until nothing is left or nothing more may be sent.

    `watch` is given a function that returns a snapshot, and the expected cells by stage, before the first call.

    Raises:
        UserError: missing keys, an unusable store, a model that does not load.
    """
    return await run_job(sweep_job(prepared), listen=listen, watch=watch)


async def run_job(
    job: Job, *, listen: Listener, watch: Watch, providers: Mapping[str, Provider] | None = None
) -> Result:
    """Run a job until nothing is left or nothing more may be sent; `providers` take the place of its models' own.

    Raises:
        UserError: missing keys, an unusable store, a model that does not load.
    """
    job = await marked(job)
    providers = _providers(job) if providers is None else providers
    make_folder(job.store_path)
    try:
        async with await Store.open(job.store_path, views()) as store:
            return await _run(job, store, providers, listen, watch)
    finally:
        for provider in providers.values():
            await provider.close()


async def _run(job: Job, store: Store, providers: Mapping[str, Provider], listen: Listener, watch: Watch) -> Result:
    clock = SystemClock()
    sweep = await _register(job, store, clock)
    recovery = await store.recover(sorted(_free_providers(job)), clock.wall_ms())
    _tell_recovery(recovery, listen)
    _tell_rescued(store, listen)
    await store.flush()
    await load_local(providers, store, sweep, listen)
    batches = await batch_accounts(job.manifest, _cards(job), store, sweep)
    try:
        return await _rounds(job, store, sweep, recovery, providers, batches, listen, watch)
    finally:
        for account in batches.values():
            await account.close()


async def _rounds(
    job: Job, store: Store, sweep: Sweep, recovery: Recovery, providers: Mapping[str, Provider],
    batches: Mapping[str, BatchProvider], listen: Listener, watch: Watch,
) -> Result:  # fmt: skip
    """Run the job, again for as long as there is more of it."""
    clock = SystemClock()
    roots: Iterable[Cell] = () if sweep.planned else job.roots()
    while True:
        runner, run_id = await _runner(job, store, sweep, providers, batches, listen)
        watch(runner.snapshot, job.expected)
        with _Signals(runner, providers, listen, paid=_costs_something(job)):
            outcome = await runner.run(roots)
        if store.refused is None:
            await store.end_run(run_id, outcome.value, clock.wall_ms())
        roots = () if job.more is None or outcome not in _AT_AN_END else await job.more(store, sweep)
        if not roots:
            return Result(outcome, runner.snapshot(), recovery)


async def _runner(
    job: Job, store: Store, sweep: Sweep, providers: Mapping[str, Provider], batches: Mapping[str, BatchProvider],
    listen: Listener,
) -> tuple[Runner, int]:  # fmt: skip
    clock = SystemClock()
    progress = Progress(await stage_counts(store.path, sweep.name))
    run_id = await store.begin_run(sweep.id, sweep.manifest, clock.wall_ms())
    scheduler = Scheduler(
        sweep=sweep.name,
        routes=routes(job),
        ledger=Ledger(caps(job.loaded), *await store.used(sweep)),
        policy=_policy(job),
        now=clock.now(),
    )
    runner = Runner(
        store=store,
        sweep=sweep,
        run_id=run_id,
        scheduler=scheduler,
        providers=providers,
        prices={alias: entry.price or FREE for alias, entry in job.manifest.models.items()},
        reader=job.reader,
        clock=clock,
        rng=Random(),  # noqa: S311 - jitter, not secrets
        progress=progress,
        listen=listen,
        batching=batching(job.loaded, _cards(job), batches, store=store.path, retry=_policy(job), feeds=job.feeds),
    )
    return runner, run_id


_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Signals:
    """The first SIGINT, SIGTERM or SIGHUP (a lost terminal) drains, the second hangs up."""

    def __init__(self, runner: Runner, providers: Mapping[str, Provider], listen: Listener, *, paid: bool) -> None:
        self._runner, self._providers = runner, providers
        self._listen, self._paid = listen, paid
        self._times = 0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self._stop)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self._times += 1
        if self._times == 1:
            text = "stopping: calls on the wire may finish (again to hang up on them)"
            self._runner.drain()
            for provider in self._providers.values():
                if isinstance(provider, VllmProvider):
                    provider.withdraw()
        else:
            counts = "counts as possibly billed" if self._paid else "is computed again next time"
            text = f"hanging up; what was on the wire {counts}"
            self._runner.abort()
        self._listen(Notice(kind="stopping", level=Level.WARNING, text=text))


async def _register(checked: Checked, store: Store, clock: SystemClock) -> Sweep:
    """Find or add the sweep in the store; a changed design has its roots planned again."""
    manifest, digest = checked.manifest, plan_hash(checked.manifest)
    text = msgspec.json.encode(manifest).decode()
    known = await store.find_sweep(manifest.name)
    if known is not None and known.simulated != manifest.simulated:
        checked, known = await agreed(checked, known)
        manifest, text = checked.manifest, msgspec.json.encode(checked.manifest).decode()
    check_marks(await store.fetch("answered_otherwise", {"simulated": manifest.simulated}), manifest, store.path)
    if known is None:
        await store.add_sweep(manifest.name, text, digest, simulated=manifest.simulated, now_ms=clock.wall_ms())
    else:
        check_unchanged(known, manifest, str(checked.loaded.path))
        planned = known.planned and known.plan_hash == digest
        await store.update_sweep(known.id, text, digest, planned=planned, simulated=manifest.simulated)
        await _reroute(checked, store, known)
    found = await store.find_sweep(manifest.name)
    assert found is not None  # noqa: S101 - just written
    return found


async def _reroute(checked: Checked, store: Store, known: Sweep) -> None:
    """Have what is planned sent as the file now says, also where a crash had kept an earlier change from it."""
    lanes = lanes_of(checked.manifest, _cards(checked))
    changed = modes_changed(msgspec.json.decode(known.manifest, type=Manifest), checked.manifest)
    if changed or set(await store.waiting(known.id)) - set(lanes.values()):
        await store.reroute(known.id, lanes)


def _cards(checked: Checked) -> dict[str, ModelCard]:
    return {alias: checked.catalog.card(alias) for alias in checked.manifest.models}


def _free_providers(checked: Checked) -> set[str]:
    """Return the providers whose cut-off calls cost nothing: those that compute in this process."""
    return {card.provider for card in _cards(checked).values() if card.dialect.wire is Wire.IN_PROCESS}


def _costs_something(checked: Checked) -> bool:
    """Say whether any model of a run charges, or may charge, for a call."""
    return any(card.price != FREE for card in _cards(checked).values())


def _providers(job: Job) -> dict[str, Provider]:
    cards = _cards(job)
    providers = build_providers(cards.values(), os.environ)
    local = engine_settings(job.loaded, cards, job.design, job.roots)
    return providers | {name: VllmProvider(settings) for name, settings in local.items()}


def routes(checked: Checked) -> dict[str, Route]:
    """Return how the requests of every alias are sent, limited and paid for.

    Raises:
        UserError: a limit or a cap names a model or an account that the sweep does not use.
    """
    overrides = checked.loaded.sweep.limits
    check_used(checked.loaded, _cards(checked))
    return {
        alias: Route(
            lane=f"{card.provider}/{card.model}",
            provider=card.provider,
            price=card.price or FREE,
            limits=_limits(card, overrides.get(alias, LimitTable()), checked.loaded.sweep.share),
        )
        for alias, card in _cards(checked).items()
    }


def _limits(card: ModelCard, given: LimitTable, share: float) -> RateLimits:
    known, local = card.limits, card.dialect.wire is Wire.IN_PROCESS
    return RateLimits(
        requests=given.requests_per_minute or known.rpm,
        requests_per_day=given.requests_per_day or known.rpd,
        input_tokens=given.input_tokens_per_minute or known.itpm,
        output_tokens=given.output_tokens_per_minute or known.otpm,
        tokens=given.tokens_per_minute or known.tpm,
        concurrency=given.concurrency or known.concurrency,
        adaptive=not local,
        share=1.0 if local else given.share or share,
    )


def _policy(checked: Checked) -> RetryPolicy:
    table = checked.loaded.sweep.retry
    return RetryPolicy(failures=table.failures, throttles=table.throttles)


def _tell_recovery(recovery: Recovery, listen: Listener) -> None:
    if recovery.calls:
        text = (
            f"an earlier run was cut off with {recovery.calls} calls on the wire; they are made again"
            f"{f' (at most {dollars(recovery.nano)} may be billed twice)' if recovery.nano else ''}"
        )
        fields = {"calls": recovery.calls, "nano": recovery.nano}
        listen(Notice(kind="recovered", level=Level.WARNING, text=text, fields=fields))


def _tell_rescued(store: Store, listen: Listener) -> None:
    rescued = store.rescued
    if rescued.imported or rescued.left:
        left = f"; {rescued.left} could not be used and stay in {', '.join(rescued.files)}" if rescued.left else ""
        text = f"{rescued.imported} results that a full disk had refused were taken over{left}"
        level = Level.WARNING if rescued.left else Level.INFO
        listen(Notice(kind="rescued", level=level, text=text, fields={"imported": rescued.imported}))


def views() -> list[str]:
    """Return the scripts of the views by which instruments' results are read."""
    folder = files("instruments").joinpath("sql")
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in VIEWS if folder.joinpath(name).is_file()]
