"""`mirage bench kills`: kill -9 a sweep again and again, under faults; the provider's bill says what was repeated.

A child process runs a sweep in which every answer asks one more question. It is killed at random instants: mostly after
a random number of calls of its life, sometimes while it starts. The simulator survives and writes the bill. At the end:

* lost: planned calls that are neither answered nor failed, and calls that were answered and paid for but are not there;
* billed_twice: usable answers beyond the one that the store holds. Answers that a fault spoiled were billed and had to
  be asked again; they are counted apart, as `billed_for_nothing`;
* on_the_wire_at_kills: calls that were begun and not recorded as ended when the process died, read from its store;
* engine_estimate_of_double_bills: calls that the engine itself, when it was started again, took for possibly billed.
"""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import msgspec
import orjson

from bench.loop import run_loop
from bench.reconcile import reconcile
from bench.simulator.bill import content_hash
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import price_settings
from bench.simulator.tail import Tail
from bench.throughput.killed import Order, live
from bench.throughput.lab import SWEEP, card_at
from bench.throughput.process import load
from engine.codec import Codec
from engine.errors import UserError
from engine.status import Status, read_status
from providers.openai import encode

CONCURRENCY: Final = 64
# Share of the kills that hit a process while it starts, recovers or plans, and how long after its start at most.
START_KILLS: Final = 0.15
MOST_START: Final = 0.4
# A life ends after up to this many times its share of the calls, so that work is left for the last one.
MOST_SHARE: Final = 1.7
LOOK_EVERY: Final = 0.001
STUCK: Final = 120.0
FAULTS: Final = {
    "rate_limited": 0.004,
    "rate_limited_blind": 0.002,
    "overloaded": 0.004,
    "server_error": 0.01,
    "bad_gateway": 0.003,
    "unavailable": 0.003,
    "drop_before": 0.005,
    "drop_after": 0.005,
    "truncated_body": 0.003,
    "malformed_json": 0.003,
    "html": 0.002,
    "blocked": 0.001,
}
LATENCY: Final = '[latency."*"]\nshape = "lognormal"\nmedian_ms = 60\nsigma = 0.6\n'


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a sweep that was killed; money in nano-dollars.

    Attributes:
        calls: planned calls, first questions and the ones that followed from their answers.
        billed_twice_nano: what the repeated calls cost; engine_estimate_nano: what the engine assumed they may.
        exact: ledger and bill agree to the nano-dollar (see `Reconciled.exact`).
        errors: attempts that went wrong, by error class, as the engine saw them.
        life_s: median length of a life.
    """

    calls: int
    kills: int
    completed: int
    failed: int
    lost: int
    billed_twice: int
    billed_for_nothing: int
    on_the_wire_at_kills: int
    engine_estimate_of_double_bills: int
    billed_twice_nano: int
    engine_estimate_nano: int
    billed_nano: int
    ledger_nano: int
    exact: bool
    errors: dict[str, int]
    life_s: float
    seconds: float
    load_before: float
    load_after: float

    @property
    def holds(self) -> bool:
        """Say whether everything that is promised held."""
        return (
            self.lost == 0
            and self.completed + self.failed == self.calls
            and self.billed_twice <= self.on_the_wire_at_kills
            and self.billed_twice <= self.engine_estimate_of_double_bills
            and self.billed_twice_nano <= self.engine_estimate_nano
            and self.exact
        )


class _Toll(msgspec.Struct, kw_only=True):
    """What is counted from kill to kill."""

    kills: int = 0
    on_the_wire: set[tuple[int, int]] = set()
    lives: list[float] = []


def run_kills(
    *, kills: int, calls: int, seed: int = 0, folder: Path | None = None, told: Callable[[str], None] = lambda _: None
) -> Report:
    """Run a sweep of `calls` calls, half of them follow-ups, killing it `kills` times.

    Raises:
        UserError: the sweep got stuck, or was over before it could be killed so often.
    """
    before, started = load(), time.monotonic()
    with scene(_settings(), folder=folder) as (place, config):
        with running(place / "simulator", config=config, seed=seed) as simulator:
            order = Order(
                store=str(place / "store.sqlite"),
                base_url=simulator.url("openai"),
                roots=calls // 2,
                concurrency=CONCURRENCY,
            )
            rng = Random(seed)  # noqa: S311 - where to kill, not secrets
            toll = _kill_and_resume(order, simulator, kills, calls, rng, told)
        return _judge(order, simulator.bill, toll, time.monotonic() - started, before)


@contextmanager
def scene(settings: str, *, folder: Path | None) -> Iterator[tuple[Path, Path]]:
    """Make a folder, with the simulator's settings in a file there; the folder is gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    config = place / "simulator.toml"
    config.write_text(settings, encoding="utf-8")
    try:
        yield place, config
    finally:
        shutil.rmtree(place)


# ----- killing


def _kill_and_resume(
    order: Order, simulator: Running, kills: int, calls: int, rng: Random, told: Callable[[str], None]
) -> _Toll:
    """Let the sweep live and die until it has been killed `kills` times, then let it finish."""
    toll, context, tail = _Toll(), fork_server(live.__module__), Tail(simulator.bill)
    share = MOST_SHARE * calls / (kills + 1)
    while True:
        began = time.monotonic()
        life = context.Process(target=live, args=(msgspec.json.encode(order),))
        life.start()
        try:
            if toll.kills == kills:
                life.join()
                if life.exitcode:
                    raise UserError(f"the sweep ended with exit code {life.exitcode}", where=order.store)
                return toll
            _let_live(life, tail, rng, share)
        finally:
            end_life(life)
        if life.exitcode != -signal.SIGKILL:
            raise UserError(f"the sweep was over after {toll.kills} kills", mend="ask for more calls or fewer kills")
        toll.kills += 1
        toll.on_the_wire |= _on_the_wire(Path(order.store))
        toll.lives.append(time.monotonic() - began)
        told(f"{toll.kills} of {kills} kills, {tail.look()} calls billed")


def _let_live(life: ForkServerProcess, tail: Tail, rng: Random, share: float) -> None:
    """Return at a random instant in the life of a process, or when it ends by itself."""
    if rng.random() < START_KILLS:
        life.join(rng.random() * MOST_START)
        return
    seen = tail.look()
    wanted, changed = seen + 1 + rng.random() * share, time.monotonic()
    while tail.look() < wanted and life.exitcode is None:
        if tail.lines > seen:
            seen, changed = tail.lines, time.monotonic()
        elif time.monotonic() - changed > STUCK:
            raise UserError(f"no call was made for {STUCK:.0f} s", where="the killed sweep")
        time.sleep(LOOK_EVERY)
    # Not always in the instant of a charge: somewhere within the next few commits.
    life.join(rng.random() * 0.02)


def end_life(life: ForkServerProcess) -> None:
    """Kill a process with -9, if it lives."""
    if life.exitcode is None and life.pid is not None:
        os.kill(life.pid, signal.SIGKILL)
    life.join()


def fork_server(module: str) -> ForkServerContext:
    """Return how lives are started: forked from a process that has imported `module` and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def _on_the_wire(store: Path) -> set[tuple[int, int]]:
    """Return request and attempt of every call that a dead process had begun and not recorded as ended."""
    if not store.exists():
        return set()
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            rows = connection.execute("SELECT request_id, number FROM attempts WHERE outcome = 'open'").fetchall()
        except sqlite3.OperationalError:
            return set()  # it died before it had made the tables
    return set(rows)


def _settings() -> str:
    random = "\n".join(f"{name} = {chance}" for name, chance in FAULTS.items())
    return f"{price_settings([card_at('http://127.0.0.1:1')])}\n{LATENCY}\n[faults.random]\n{random}\n"


# ----- judging


def _judge(order: Order, bill: Path, toll: _Toll, seconds: float, before: float) -> Report:
    store = Path(order.store)
    found, status = reconcile(store, bill), run_loop(read_status(store, SWEEP))
    requests = status.requests
    completed = requests.settled + requests.read
    absent = found.absent_contents - _failed_contents(store, order.base_url)
    return Report(
        calls=requests.total,
        kills=toll.kills,
        completed=completed,
        failed=requests.failed,
        lost=requests.planned + requests.sent + requests.in_doubt + len(absent) + _unplanned(order, status),
        billed_twice=found.twice,
        billed_for_nothing=found.spoiled,
        on_the_wire_at_kills=len(toll.on_the_wire),
        engine_estimate_of_double_bills=found.cut_off,
        billed_twice_nano=found.twice_nano,
        engine_estimate_nano=found.cut_off_nano,
        billed_nano=found.billed_nano,
        ledger_nano=found.ledger_nano,
        exact=found.exact,
        errors=_errors(store),
        life_s=round(median(toll.lives), 3) if toll.lives else 0.0,
        seconds=round(seconds, 1),
        load_before=before,
        load_after=load(),
    )


def _unplanned(order: Order, status: Status) -> int:
    """Return how many calls were never planned: first questions, and questions that answers should have led to."""
    first, following = (status.by_stage[name].total if name in status.by_stage else 0 for name in ("task", "judge"))
    answered = status.by_stage["task"].read if "task" in status.by_stage else 0
    return order.roots - first + answered - following


def _failed_contents(store: Path, base_url: str) -> set[str]:
    """Return the content hashes of requests that failed for good."""
    card, codec = card_at(base_url), Codec()
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT p.body FROM prompt p JOIN request r ON r.id = p.request_id WHERE r.state = 'failed'"
        ).fetchall()
    requests = [codec.unpack_request(body) for (body,) in rows]
    return {content_hash(each.model, orjson.loads(encode(each, card.dialect))) for each in requests}


def _errors(store: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT error_class, count(*) FROM attempts WHERE error_class IS NOT NULL GROUP BY 1 ORDER BY 1"
        ).fetchall()
    return dict(rows)
