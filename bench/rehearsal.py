"""A rehearsal: a sweep as it stands in its file, real adapters, real sockets, but the simulator instead of providers.

Faults are on, also those of batches, the run is killed with -9 a few times and resumed, and in the end everything is
checked against what is known: the claims of every answer, and the bill against the ledger. Money is not spent, no key
is used, and the store is marked as simulated for good.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

import httpx
import msgspec

from bench.batching import FOLDER_SUFFIX
from bench.cli.exits import Exit
from bench.known import Comparison, compare
from bench.loop import run_loop
from bench.reconcile import Reconciled, reconcile
from bench.rehearsed import KEY, KEY_ENV, Order, Tables, rehearsed
from bench.run import Prepared, expected_cells, user_catalog
from bench.simulator.launch import PREFIXES, Running, running
from bench.simulator.rehearsal import TAILS, accounts, price_settings
from bench.simulator.tail import Tail
from bench.sweepfile import BatchTable, LoadedSweep
from bench.usednames import check_tables
from engine.errors import UserError
from engine.money import FREE, NANO, Price
from engine.status import Status, read_status
from engine.telling import CAP_REACHED
from providers.card import ModelCard
from providers.catalog import Catalog
from providers.dialect import Wire

STORE: Final = "store.sqlite"
SIMULATOR: Final = "simulator"
SETTINGS: Final = "simulator.toml"
# What a rehearsal leaves in its folder and the next one replaces.
LEFT: Final = (
    *(f"{STORE}{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".log", FOLDER_SUFFIX)), SETTINGS, SIMULATOR,
)  # fmt: skip
LOCAL: Final = "simulated-local"
# Wherever an account is that the simulator does not know, it is spoken to in the words of its wire format.
BY_WIRE: Final = {Wire.OPENAI: "openai", Wire.ANTHROPIC: "anthropic", Wire.GEMINI: "gemini"}
# Faults that a sweep must get over without losing or changing an answer.
FAULTS: Final = {
    "rate_limited": 0.004,
    "rate_limited_blind": 0.002,
    "overloaded": 0.004,
    "server_error": 0.006,
    "bad_gateway": 0.003,
    "unavailable": 0.003,
    "timeout": 0.002,
    "drop_before": 0.004,
    "drop_after": 0.004,
    "slow_body": 0.002,
    "truncated_body": 0.003,
    "malformed_json": 0.002,
    "html": 0.002,
}
# The same of batches; none of them loses a row that was paid for, which no sweep could get over.
CHANCES: Final = {
    "lose_upload": 0.05,
    "lose_create": 0.1,
    "bad_gateways": 0.02,
    "queue_full": 0.05,
    "fresh_404": 0.1,
    "list_lag": 0.1,
    "late_results": 0.1,
    "cut_downloads": 0.1,
    "short_downloads": 0.1,
    "repeat_rows": 0.1,
    "lying_counts": 0.1,
    "expire": 0.05,
    "stuck": 0.02,
}
# An expired or cancelled job of Gemini brings nothing of what it has run, so its oddities are ordered, not drawn.
GEMINI: Final = {
    "provider": "gemini", "fresh_404": 1, "list_lag": 1, "late_results": 1, "repeat_rows": 2, "key_last": True,
}  # fmt: skip
# Simulated days pass within seconds: a window of two hours in two.
BATCHES: Final = "[batches]\nrequest = 0.02\nwindow = 7200\n"
HURRY: Final = BatchTable(
    poll_seconds=0.25,
    longest_poll_seconds=2.0,
    grace_seconds=2.0,
    flush_after_minutes=0.1,
    deadline_hours=1 / 60,
    results_patience_minutes=1.0,
)
LOOK_EVERY: Final = 0.005
MOST_LATER: Final = 0.5
# Kills fall between these shares of the expected calls.
FIRST_KILL: Final = 0.05
LAST_KILL: Final = 0.85
# A run that ended so has said why, and what it did can be judged; any other end is an error of the rehearsal.
JUDGED: Final = frozenset(Exit) - {Exit.DEFECT, Exit.USAGE}
FINISHED: Final = frozenset({Exit.COMPLETE, Exit.INCOMPLETE})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a sweep is rehearsed.

    Attributes:
        folder: where store, bill and settings are put; an earlier rehearsal's are replaced.
        kills: how often the run is killed.
        seed: of the population, the faults and the instants of the kills.
        latency_ms: median time of a simulated answer.
    """

    folder: Path
    kills: int = 3
    seed: int = 0
    latency_ms: float = 50.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a rehearsal came to.

    Attributes:
        kills: times that the run was killed; fewer than asked for when it was over too soon.
        ended: exit code of the last run; reached: the caps for which it ended, and what is used of them.
        unfinished: requests that are neither read nor failed; failed: requests that failed for good.
        comparison: against the right answer; money: bill against ledger.
    """

    sweep: str
    store: str
    bill: str
    kills: int
    requests: int
    unfinished: int
    failed: int
    comparison: Comparison
    money: Reconciled
    seconds: float
    ended: int = 0
    reached: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Say whether what was answered is as it must be."""
        return (
            self.failed == 0
            and self.comparison.equal
            and self.money.exact
            and self.money.absent == 0
            and self.money.twice <= self.money.cut_off
            and self.money.batched_twice == 0
        )

    @property
    def holds(self) -> bool:
        """Say whether everything is as it must be."""
        return self.ended in FINISHED and self.unfinished == 0 and self.sound

    @property
    def code(self) -> Exit:
        """What the process says: of a run that ended before its time and is sound so far, that run's own code."""
        if self.holds:
            return Exit.COMPLETE
        return Exit(self.ended) if self.sound and self.ended not in FINISHED else Exit.DEFECT


def rehearse(loaded: LoadedSweep, plan: Plan, told: Callable[[str], None] = lambda _: None) -> Verdict:
    """Rehearse a sweep and judge it.

    Raises:
        UserError: the sweep cannot run, the folder cannot be used, or a run ended before its time.
    """
    started, catalog = time.monotonic(), user_catalog(loaded)
    check_tables(loaded, catalog)
    _clear(plan.folder)
    settings = plan.folder / SETTINGS
    settings.write_text(_settings(catalog, plan), encoding="utf-8")
    with running(plan.folder / SIMULATOR, config=settings, seed=plan.seed) as simulator:
        _order_oddities(simulator)
        provider, model = led_to(simulator, loaded, catalog)
        batch = _hurried(loaded)
        prepared = rehearsed(loaded, plan.folder / STORE, provider, model, batch)
        order = Order(
            sweep=str(loaded.path), store=str(prepared.store_path), provider=provider, model=model, batch=batch
        )
        kills, ended = _run(order, prepared, simulator, plan, catalog, told)
    status = run_loop(read_status(prepared.store_path, prepared.manifest.name))
    verdict = _judge(prepared, status, simulator.bill, kills, plan.seed, time.monotonic() - started)
    reached = _reached(prepared.store_path) if ended == Exit.BUDGET else ()
    return msgspec.structs.replace(verdict, ended=ended, reached=reached)


def led_to(simulator: Running, loaded: LoadedSweep, catalog: Catalog) -> tuple[Tables, Tables]:
    """Return the sweep file's tables of accounts and models with every address changed to the simulator's.

    A model that runs inside this process cannot be simulated there; it is answered for by an account of its own.
    """
    provider: Tables = {name: {**table} for name, table in loaded.sweep.provider.items()}
    model: Tables = {name: {**table} for name, table in loaded.sweep.model.items()}
    for name, account in accounts(simulator, KEY_ENV)["provider"].items():
        provider[name] = {**provider.get(name, {}), **account}
    provider[LOCAL] = {"dialect": "vllm-server", "base_url": simulator.url("openai"), "key_env": KEY_ENV}
    for alias, card in catalog.cards.items():
        table = model.setdefault(alias, {})
        if card.dialect.wire is Wire.IN_PROCESS:
            table |= {"provider": LOCAL, "dialect": "vllm-server", "price": _price_table(card.price or FREE)}
            table |= {"base_url": simulator.url("openai"), "key_env": KEY_ENV}
        else:
            table |= {"base_url": _address(simulator, card), "key_env": KEY_ENV}
    return provider, model


def _address(simulator: Running, card: ModelCard) -> str:
    name = card.provider if card.provider in PREFIXES else BY_WIRE[card.dialect.wire]
    return simulator.url(name) + TAILS.get(name, "")


def _price_table(price: Price) -> dict[str, str]:
    known = {"input": price.input, "output": price.output, "cached": price.cached, "cache_write": price.cache_write}
    return {name: f"{nano // NANO}.{nano % NANO:09d}" for name, nano in known.items() if nano is not None}


def _settings(catalog: Catalog, plan: Plan) -> str:
    faults = "\n".join(f"{name} = {chance}" for name, chance in FAULTS.items())
    latency = f'shape = "lognormal"\nmedian_ms = {plan.latency_ms}\nsigma = 0.5\n'
    chances = "\n".join(f"{name} = {chance}" for name, chance in CHANCES.items())
    prices = price_settings(catalog.cards.values())
    random = f"[faults.random]\n{faults}\n{BATCHES}[batches.chances]\n{chances}\n"
    return f'{prices}\n[latency."*"]\n{latency}\n{random}'


def _order_oddities(simulator: Running) -> None:
    reply = httpx.post(f"{simulator.address}/_sim/batches", json=[GEMINI])
    reply.raise_for_status()


def _hurried(loaded: LoadedSweep) -> BatchTable:
    """Return what is wanted of batches at the simulator; what becomes of what they leave over is the file's word."""
    given = loaded.sweep.batch
    return msgspec.structs.replace(HURRY, leftovers=given.leftovers, most_requests=given.most_requests)


def _clear(folder: Path) -> None:
    """Make the folder, and take away what an earlier rehearsal left there, and nothing else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in LEFT:
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"the rehearsal's folder cannot be used: {error.strerror}", where=str(folder), mend="choose another one"
        ) from error


# ----- running and killing


def _run(
    order: Order, prepared: Prepared, simulator: Running, plan: Plan, catalog: Catalog, told: Callable[[str], None]
) -> tuple[int, int]:
    """Run the sweep to its end, killing it on the way; return how often it was killed, and its last exit code."""
    calls = sum(expected_cells(prepared.design).values())
    rng, tail = Random(plan.seed), Tail(simulator.bill)  # noqa: S311 - where to kill, not secrets
    spots = sorted(calls * (FIRST_KILL + (LAST_KILL - FIRST_KILL) * rng.random()) for _ in range(plan.kills))
    for kills, spot in enumerate(spots):
        life = _start(order, catalog)
        if not _killed(life, tail, spot, rng):
            return _ended(life.wait(), kills)
        told(f"killed at {tail.look()} billed calls of about {calls}; resuming")
    return _ended(_start(order, catalog).wait(), len(spots))


def _start(order: Order, catalog: Catalog) -> "subprocess.Popen[bytes]":
    """Start the sweep in a process that has no key but the rehearsal's."""
    command = [sys.executable, "-m", "bench.rehearsed", msgspec.json.encode(order).decode()]
    return subprocess.Popen(command, env=_environment(catalog))  # noqa: S603 - our own module, no shell


def _environment(catalog: Catalog) -> Mapping[str, str]:
    secret = {card.key_env for card in catalog.cards.values()}
    return {**{name: value for name, value in os.environ.items() if name not in secret}, KEY_ENV: KEY}


def _killed(life: "subprocess.Popen[bytes]", tail: Tail, spot: float, rng: Random) -> bool:
    """Kill the process once so many calls are billed; False when it ended by itself before."""
    try:
        while tail.look() < spot:
            if life.poll() is not None:
                return False
            time.sleep(LOOK_EVERY)
        time.sleep(rng.random() * MOST_LATER)
    finally:
        if life.poll() is None:
            life.send_signal(signal.SIGKILL)
    return life.wait() == -signal.SIGKILL


def _ended(code: int, kills: int) -> tuple[int, int]:
    if code not in JUDGED:
        raise UserError(f"the rehearsed run ended with exit code {code}", mend="see what it said above")
    return kills, code


def _reached(store: Path) -> tuple[str, ...]:
    """Return the caps that the last run ended for, in the words of its log."""
    log = store.with_name(f"{store.name}.log")
    lines = log.read_bytes().splitlines() if log.exists() else []
    told = [msgspec.json.decode(line, type=_Told) for line in lines]
    return tuple(dict.fromkeys(each.text for each in told if each.kind == CAP_REACHED))


class _Told(msgspec.Struct):
    kind: str = ""
    text: str = ""


def _judge(prepared: Prepared, status: Status, bill: Path, kills: int, seed: int, seconds: float) -> Verdict:
    requests, store = status.requests, prepared.store_path
    return Verdict(
        sweep=prepared.manifest.name,
        store=str(store),
        bill=str(bill),
        kills=kills,
        requests=requests.total,
        unfinished=requests.planned + requests.sent + requests.in_doubt + requests.settled,
        failed=requests.failed,
        comparison=compare(store, prepared.manifest.name, seed=seed),
        money=reconcile(store, bill, prepared.manifest.name),
        seconds=round(seconds, 1),
    )
