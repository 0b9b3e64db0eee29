"""`mirage bench kills --mode batch`: kill -9 a sweep that goes by batch, at random instants and between any two steps.

Every provider that has batches takes part; each answer leads to one more question; everything goes by batch, what
batches left over too. The simulator makes batches go wrong by chance in every way that it knows, loses rows that were
paid for among them. It survives the kills and keeps the bill. At the end:

* lost: planned calls that are neither answered nor failed, and calls that were paid for, are not there and not failed;
* billed_twice: calls that were charged in two batches. There is no way to repeat a call by accident that is not one;
* unknown: calls that failed because no row tells what became of them. They may have been charged, at most once;
* failed: calls that failed for any reason, these included.
"""

import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import product
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import msgspec
import orjson

from bench.loop import run_loop
from bench.reconcile import Reconciled, reconcile
from bench.simulator.bill import content_hash
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import TAILS, price_settings
from bench.simulator.tail import Tail
from bench.throughput.batched import MODELS, batches_at, cards_at
from bench.throughput.killed_batches import STOPPED, Aim, Moment, Order, live
from bench.throughput.kills import FAULTS, end_life, fork_server, scene
from bench.throughput.lab import SWEEP
from bench.throughput.process import load
from engine.batch.provider import BatchLine
from engine.codec import Codec
from engine.errors import UserError
from engine.status import Status, read_status

# Most of what happens in a life is aimed at; the others end at any instant.
AIMED: Final = 0.6
START_KILLS: Final = 0.15
MOST_START: Final = 0.6
LONGEST: Final = 4.0
LOOK_EVERY: Final = 0.005
STUCK: Final = 300.0
# So many batches there are for every kill, so that work is left for the last one: a life may end one in every lane.
BATCHES_A_KILL: Final = 8
# A life that was not ended before ends after up to this many times its share of the calls, and a moment more.
MOST_SHARE: Final = 1.7
MOST_AFTER: Final = 0.5
SMALLEST: Final = 5
RESTARTS: Final = 10
CALLS: Final = ("upload", "create", "find", "poll", "download", "cancel", "clean")
WRITES: Final = (
    *(
        f"stage {stage}"
        for stage in ("ready", "uploaded", "creating", "in_doubt", "open", "ended", "settled", "closed", "dropped")
    ),
    *("add_batch", "enlist", "settle", "open_line_cells", "note_batch", "move_to_lane"),
)
MOMENTS: Final[tuple[Moment, ...]] = ("before", "during", "after")
STEPS: Final[tuple[tuple[str, Moment], ...]] = (
    *product(CALLS, MOMENTS),
    *product(WRITES, (MOMENTS[0], MOMENTS[2])),
    *product(("line", "row"), MOMENTS[:1]),
)
# Steps before anything is at the provider: lives that end there do no work, which spreads kills over the sweep.
EARLY: Final = frozenset(
    {"line", "add_batch", "enlist", "stage ready", "upload", "stage uploaded", "stage creating", "create"}
)
CHANCES: Final[Mapping[str, float]] = {
    "lose_upload": 0.05,
    "lose_create": 0.06,
    "bad_gateways": 0.02,
    "queue_full": 0.03,
    "invalid": 0.005,
    "fresh_404": 0.05,
    "list_lag": 0.1,
    "late_results": 0.05,
    "cut_downloads": 0.05,
    "short_downloads": 0.05,
    "repeat_rows": 0.05,
    "lose_rows": 0.03,
    "no_files": 0.005,
    "lying_counts": 0.05,
    "stuck": 0.01,
    "expire": 0.03,
}
WINDOW: Final = 7200.0


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a sweep by batch that was killed; money in nano-dollars.

    Attributes:
        aimed: kills that hit the step that they were aimed at; steps: how many different ones of `of_steps`.
        batches, dropped: batches that were registered, and those of them that never ran.
        in_doubt: batches whose creation was in doubt at some time.
        expired: lines that a window or a cancellation cut off.
        reasons: failed calls by reason.
        life_s: median length of a life.
    """

    calls: int
    kills: int
    aimed: int
    steps: int
    of_steps: int
    completed: int
    failed: int
    unknown: int
    lost: int
    billed_twice: int
    billed_twice_nano: int
    batches: int
    dropped: int
    expired: int
    billed_nano: int
    ledger_nano: int
    assumed_nano: int
    charged_without_answer: int
    exact: bool
    providers: dict[str, int]
    reasons: dict[str, int]
    life_s: float
    seconds: float
    load_before: float
    load_after: float

    @property
    def holds(self) -> bool:
        """Say whether everything that is promised held."""
        return (
            self.lost == 0
            and self.billed_twice == 0
            and self.completed + self.failed == self.calls
            and self.charged_without_answer <= self.unknown
            and self.exact
        )


class _Toll(msgspec.Struct, kw_only=True):
    """What is counted from kill to kill."""

    kills: int = 0
    aimed: Counter[str] = msgspec.field(default_factory=Counter)
    lives: list[float] = []


def run_batch_kills(
    *, kills: int, calls: int, seed: int = 0, folder: Path | None = None, told: Callable[[str], None] = lambda _: None
) -> BatchReport:
    """Run a sweep of `calls` calls by batch, half of them follow-ups, killing it `kills` times.

    Raises:
        UserError: the sweep got stuck, or was over before it could be killed so often.
    """
    before, started = load(), time.monotonic()
    with scene(_settings(), folder=folder) as (place, config):
        with running(place / "simulator", config=config, seed=seed) as simulator:
            order = Order(
                store=str(place / "store.sqlite"),
                addresses={name: simulator.url(name) + TAILS.get(name, "") for name in MODELS},
                roots=calls // 2,
                most_requests=max(SMALLEST, calls // max(1, BATCHES_A_KILL * kills)),
                hit=str(place / "hit"),
            )
            rng = Random(seed)  # noqa: S311 - where to kill, not secrets
            toll = _Killing(order, simulator, kills, calls, rng, told).go()
        return _judge(order, simulator.bill, toll, time.monotonic() - started, before)


class _Killing:
    """Lets the sweep live and die until it has been killed so often, then lets it finish."""

    def __init__(
        self, order: Order, simulator: Running, kills: int, calls: int, rng: Random, told: Callable[[str], None]
    ) -> None:
        self._order, self._kills, self._calls, self._rng, self._told = order, kills, calls, rng, told
        self._tail, self._toll, self._context = Tail(simulator.bill), _Toll(), fork_server(live.__module__)
        self._steps = list(STEPS)
        rng.shuffle(self._steps)

    def go(self) -> _Toll:
        """Kill, resume, and finish."""
        toll = self._toll
        while toll.kills < self._kills:
            began = time.monotonic()
            life = self._start(self._aim())
            try:
                self._let_live(life)
            finally:
                end_life(life)
            if life.exitcode == STOPPED:
                continue
            if life.exitcode != -signal.SIGKILL:
                raise UserError(
                    f"the sweep was over after {toll.kills} kills (exit code {life.exitcode})",
                    mend="ask for more calls or fewer kills",
                )
            self._count(time.monotonic() - began)
        self._finish()
        return toll

    def _aim(self) -> Aim | None:
        """Aim at the next step in turn; where the sweep is ahead of its kills, at one that costs it time."""
        if self._rng.random() >= AIMED:
            return None
        ahead = self._ahead()
        place = next((place for place, (step, _) in enumerate(self._steps) if not ahead or step in EARLY), 0)
        step, moment = self._steps.pop(place)
        self._steps.append((step, moment))
        return Aim(
            step=step,
            moment=moment,
            skip=self._rng.choice((0, 0, 1, 3, 20)) if step not in ("find", "cancel") else 0,
            seconds=self._rng.random() * 0.02,
        )

    def _start(self, aim: Aim | None) -> ForkServerProcess:
        order = msgspec.structs.replace(self._order, aim=aim)
        life = self._context.Process(target=live, args=(msgspec.json.encode(order),))
        life.start()
        return life

    def _let_live(self, life: ForkServerProcess) -> None:
        """Return at a random instant in the life of a process, or when it ends by itself."""
        if self._rng.random() < START_KILLS:
            life.join(self._rng.random() * MOST_START)
            return
        until = time.monotonic() + MOST_START + self._rng.random() * (MOST_START if self._ahead() else LONGEST)
        wanted = self._tail.look() + self._rng.random() * MOST_SHARE * self._calls / self._kills
        while time.monotonic() < until and life.exitcode is None and self._tail.look() <= wanted:
            time.sleep(LOOK_EVERY)
        life.join(self._rng.random() * MOST_AFTER)

    def _ahead(self) -> bool:
        """Say whether more of the sweep is done than of the kills."""
        return self._tail.look() / self._calls > self._toll.kills / self._kills

    def _count(self, seconds: float) -> None:
        toll, hit = self._toll, Path(self._order.hit)
        toll.kills += 1
        toll.lives.append(seconds)
        if hit.exists():
            toll.aimed[hit.read_text(encoding="utf-8")] += 1
            hit.unlink()
        self._told(f"{toll.kills} of {self._kills} kills, {self._tail.look()} calls billed")

    def _finish(self) -> None:
        for _ in range(RESTARTS):
            life = self._start(None)
            try:
                self._watch(life)
            finally:
                end_life(life)
            if life.exitcode == 0:
                return
            if life.exitcode != STOPPED:
                raise UserError(f"the sweep ended with exit code {life.exitcode}", where=self._order.store)
        raise UserError(f"the sweep stopped {RESTARTS} times", where=self._order.store)

    def _watch(self, life: ForkServerProcess) -> None:
        seen, changed = self._tail.look(), time.monotonic()
        while life.exitcode is None:
            life.join(1.0)
            if self._tail.look() > seen:
                seen, changed = self._tail.lines, time.monotonic()
            elif time.monotonic() - changed > STUCK:
                raise UserError(f"no call was made for {STUCK:.0f} s", where="the killed sweep")


def _settings() -> str:
    cards = cards_at(dict.fromkeys(MODELS, "http://127.0.0.1:1"))
    faults = "\n".join(f"{name} = {chance}" for name, chance in FAULTS.items())
    chances = "\n".join(f"{name} = {chance}" for name, chance in CHANCES.items())
    # Without markers only rows tell whose a batch in doubt is: one that never had any would block its lane for ever.
    batches = f"[batches]\nwindow = {WINDOW}\nstuck_for_ever = false\n[batches.chances]\n{chances}\n"
    return f"{price_settings(cards.values())}\n[faults.random]\n{faults}\n{batches}"


# ----- judging


def _judge(order: Order, bill: Path, toll: _Toll, seconds: float, before: float) -> BatchReport:
    store = Path(order.store)
    found, status = reconcile(store, bill), run_loop(read_status(store, SWEEP))
    requests = status.requests
    charged, made = found.absent_contents, _made(store)
    return BatchReport(
        calls=requests.total,
        kills=toll.kills,
        aimed=toll.aimed.total(),
        steps=len(toll.aimed),
        of_steps=len(STEPS),
        completed=requests.settled + requests.read,
        failed=requests.failed,
        lost=requests.planned
        + requests.sent
        + requests.in_doubt
        + len(charged - _failed_contents(order))
        + _unplanned(order, status),
        billed_twice=found.twice + found.absent - len(charged),
        billed_twice_nano=found.twice_nano,
        charged_without_answer=len(charged),
        billed_nano=found.billed_nano,
        ledger_nano=found.ledger_nano,
        assumed_nano=found.assumed_nano,
        exact=_exact(found),
        batches=made.batches,
        dropped=made.dropped,
        expired=made.expired,
        unknown=made.unknown,
        providers=made.providers,
        reasons=made.reasons,
        life_s=round(median(toll.lives), 3) if toll.lives else 0.0,
        seconds=round(seconds, 1),
        load_before=before,
        load_after=load(),
    )


def _exact(found: Reconciled) -> bool:
    return found.exact and found.spoiled == 0


def _unplanned(order: Order, status: Status) -> int:
    """Return how many calls were never planned: first questions, and questions that answers should have led to."""
    first, following = (status.by_stage[name].total if name in status.by_stage else 0 for name in ("task", "judge"))
    answered = status.by_stage["task"].read if "task" in status.by_stage else 0
    return order.roots - first + answered - following


def _failed_contents(order: Order) -> set[str]:
    """Return the content hashes of requests that failed for good, as their batch lines ask for them."""
    providers, codec = batches_at(cards_at(order.addresses)), Codec()
    with closing(sqlite3.connect(f"{Path(order.store).as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT p.body FROM prompt p JOIN request r ON r.id = p.request_id WHERE r.state = 'failed'"
        ).fetchall()
    hashes = set()
    for (body,) in rows:
        request = codec.unpack_request(body)
        line = orjson.loads(providers[request.provider].encode_line(BatchLine("id-of-a-line", request)))
        asked = next(line[name] for name in ("body", "params", "request") if name in line)
        hashes.add(content_hash(request.model, asked))
    return hashes


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of batches and failures, see `BatchReport`."""

    batches: int
    dropped: int
    expired: int
    unknown: int
    providers: dict[str, int]
    reasons: dict[str, int]


def _made(store: Path) -> _Made:
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        batches, dropped = connection.execute("SELECT count(*), sum(stage = 'dropped') FROM batches").fetchone()
        expired = connection.execute(
            "SELECT count(*) FROM attempts"
            " WHERE error LIKE 'the batch expired%' OR error LIKE 'the batch was cancelled%'"
        ).fetchone()[0]
        unknown = connection.execute("SELECT count(*) FROM attempts WHERE outcome = 'assumed'").fetchone()[0]
        providers = connection.execute("SELECT provider, count(*) FROM batches GROUP BY 1").fetchall()
        reasons = connection.execute(
            "SELECT error_class || ': ' || error, count(*) FROM request"
            " WHERE state = 'failed' GROUP BY 1 ORDER BY 2 DESC"
        ).fetchall()
    return _Made(
        batches=batches, dropped=dropped or 0, expired=expired, unknown=unknown,
        providers=dict(providers), reasons=dict(reasons),
    )  # fmt: skip
