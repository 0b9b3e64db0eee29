"""The live view of a run: draws snapshots four times a second on a terminal, plain lines every while elsewhere.

Takes snapshots and notices, knows nothing of the engine's insides. Everything drawn passes `printable`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bench.text import one_line
from bench.wide import fitted
from engine.events import BatchView, Level, Notice, Snapshot, StageCount
from engine.ledger import Account, Scope
from engine.money import dollars

FRAMES_PER_SECOND: Final = 4
PLAIN_EVERY: Final = 10.0
NOTICES_SHOWN: Final = 5
NOTICE_WIDTH: Final = 300
BATCHES_SHOWN: Final = 8
STATUS_WIDTH: Final = 40
BAR_WIDTH: Final = 28
_STYLE: Final = {Level.INFO: "dim", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_HOUR: Final = 3600
_MINUTE: Final = 60


class Display:
    """Shows a run until closed; use as an async context manager around it."""

    def __init__(self, console: Console, title: str, *, simulated: bool) -> None:
        self._console = console
        self._title = one_line(title) + (" · SIMULATED" if simulated else "")
        self._notices: list[Notice] = []
        self._snapshot: Callable[[], Snapshot] | None = None
        self._expected: Mapping[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._live: Live | None = None

    def watch(self, snapshot: Callable[[], Snapshot], expected: Mapping[str, int]) -> None:
        """Start drawing; `expected` cells by stage give the bars their lengths."""
        self._snapshot, self._expected = snapshot, expected

    def listen(self, notice: Notice) -> None:
        """Show a notice: at once on a plain console, below the picture on a terminal."""
        if self._live is None:
            self._console.print(_notice_line(notice), soft_wrap=True)
        self._notices = [*self._notices[-(NOTICES_SHOWN - 1) :], notice]

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        self._task = asyncio.create_task(self._draw_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._draw()
        if self._live is not None:
            self._live.stop()

    async def _draw_on(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(PLAIN_EVERY if self._live is None else 1 / FRAMES_PER_SECOND)

    def _draw(self) -> None:
        if self._live is None:
            if self._snapshot is not None:
                self._console.print(plain_line(self._snapshot(), self._expected), soft_wrap=True, highlight=False)
            return
        shown = self._picture() if self._snapshot is not None else Text(f"{self._title}: getting ready …")
        self._live.update(shown, refresh=True)

    def _picture(self) -> RenderableType:
        assert self._snapshot is not None  # noqa: S101 - called only when watching
        now = self._snapshot()
        parts: list[RenderableType] = [
            Text(self._title, style="bold"),
            _headline(now, self._expected),
            self._fitted(_stages(now, self._expected), "bar"),
            self._fitted(_lanes(now), "throttled", "sent", "waiting"),
        ]
        if now.batches:
            parts.append(self._fitted(_batches(now.batches, time.time() * 1000), "status", "age"))
            if len(now.batches) > BATCHES_SHOWN:
                parts.append(_more_batches(now.batches))
        budget = [_budget(scope, account) for scope, account in now.accounts.items() if _capped(account)]
        return Group(*parts, *budget, *(_notice_line(notice) for notice in self._notices))

    def _fitted(self, table: Table, *drop: str) -> RenderableType:
        found = fitted(self._console, table, drop)
        return found.table if found.table is not None else Group(*found.lines)


def plain_line(now: Snapshot, expected: Mapping[str, int]) -> str:
    """Return one line of progress for logs and pipes."""
    stages = "  ".join(f"{stage} {_done(count)}/{total}" for stage, count, total in _progress(now, expected))
    errors = sum(now.errors.values())
    batches = f"  batches {_batch_counts(now.batches)}" if now.batches else ""
    return (
        f"{_clock(now.now - now.started)}  {stages}  on the wire {_in_flight(now)}{batches}  spent {_spent(now)}"
        f"  this run: calls {now.calls}, errors {errors}, spent {dollars(now.spent_nano)}"
    )


def _headline(now: Snapshot, expected: Mapping[str, int]) -> Text:
    elapsed = max(1e-9, now.now - now.started)
    parts = [
        _clock(elapsed),
        f"{now.calls} calls ({now.calls / elapsed:.1f}/s)",
        f"{(now.input_tokens + now.output_tokens) / elapsed:,.0f} tokens/s",
        f"spent {_spent(now)} ({dollars(now.spent_nano)} in this run)",
    ]
    if (left := _eta(now, expected)) is not None:
        parts.append(f"about {_clock(left)} to go")
    if now.draining:
        parts.append("stopping")
    if now.refused:
        parts.append("disk refuses writes")
    if now.errors:
        parts.append("errors " + ", ".join(f"{kind} {number}" for kind, number in sorted(now.errors.items())))
    return Text(" · ".join(parts))


def _spent(now: Snapshot) -> str:
    """Return what the sweep has cost in all its runs, as `mirage status` says it."""
    sweeps = [account.spent_nano for scope, account in now.accounts.items() if scope.kind == "sweep"]
    return dollars(max((*sweeps, now.spent_nano)))


def _progress(now: Snapshot, expected: Mapping[str, int]) -> Iterator[tuple[str, StageCount, int]]:
    """Yield every stage with what is done and how much there is.

    A sweep that asks for less than a former run of it, for fewer personas say, still has what that run planned.
    """
    for stage, total in expected.items():
        count = now.stages.get(stage, StageCount())
        yield stage, count, max(total, count.known, _done(count))


def _stages(now: Snapshot, expected: Mapping[str, int]) -> Table:
    table = _grid("stage", "bar", "done", "unreadable", "failed")
    for stage, count, total in _progress(now, expected):
        table.add_row(
            one_line(stage),
            ProgressBar(total=max(1, total), completed=_done(count), width=BAR_WIDTH),
            f"{_done(count)}/{total}",
            Text(f"{count.unreadable} unreadable", style="yellow") if count.unreadable else "",
            Text(f"{count.failed} failed", style="red") if count.failed else "",
        )
    return table


def _grid(*heads: str) -> Table:
    """Return a table without frame; its heads are not shown, they name what may be left out."""
    table = Table.grid(padding=(0, 2))
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table


def _lanes(now: Snapshot) -> Table:
    table = _grid("lane", "on the wire", "waiting", "sent", "throttled", "state")
    for lane in now.lanes:
        state = "stopped" if lane.stopped else "pausing" if lane.paused_until > now.now else ""
        table.add_row(
            Text(one_line(lane.name), style="cyan"),
            f"on the wire {lane.in_flight}/{lane.concurrency}",
            f"waiting {lane.queued}",
            f"sent {lane.sent}",
            f"throttled {lane.throttled}" if lane.throttled else "",
            Text(state, style="red"),
        )
    return table


def _batches(batches: Sequence[BatchView], wall_ms: float) -> Table:
    """Return the oldest batches under way, a row each."""
    table = _grid("batch", "lane", "state", "requests", "status", "age")
    for batch in batches[:BATCHES_SHOWN]:
        age = _clock(max(0.0, wall_ms - batch.created_ms) / 1000) if batch.created_ms else ""
        table.add_row(
            f"batch {batch.id}",
            Text(one_line(batch.lane), style="cyan"),
            batch.stage.replace("_", " "),
            f"{batch.requests:,} requests" if batch.requests else "",
            Text(one_line(batch.status, most=STATUS_WIDTH)),
            f"age {age}" if age else "",
        )
    return table


def _more_batches(batches: Sequence[BatchView]) -> Text:
    return Text(f"and {len(batches) - BATCHES_SHOWN} more batches: {_batch_counts(batches)} in all")


def _batch_counts(batches: Sequence[BatchView]) -> str:
    stages = Counter(batch.stage.replace("_", " ") for batch in batches)
    counts = ", ".join(f"{number} {stage}" for stage, number in stages.items())
    return f"{counts} ({sum(batch.requests for batch in batches):,} requests)"


def _budget(scope: Scope, account: Account) -> Text:
    cap = account.cap
    parts = []
    if cap.nano is not None:
        parts.append(
            f"{dollars(account.spent_nano)} + {dollars(account.reserved_nano)} reserved of {dollars(cap.nano)}"
        )
    if cap.tokens is not None:
        parts.append(f"{account.spent_tokens:,} + {account.reserved_tokens:,} reserved of {cap.tokens:,} tokens")
    return Text(f"budget of {one_line(str(scope))}: " + ", ".join(parts))


def _eta(now: Snapshot, expected: Mapping[str, int]) -> float | None:
    left = sum(total - _done(count) for _, count, total in _progress(now, expected))
    elapsed = now.now - now.started
    return left * elapsed / now.calls if now.calls and left > 0 else None


def _notice_line(notice: Notice) -> Text:
    return Text(one_line(notice.text, most=NOTICE_WIDTH), style=_STYLE[notice.level])


def _capped(account: Account) -> bool:
    return account.cap.nano is not None or account.cap.tokens is not None


def _done(count: StageCount) -> int:
    return count.read + count.failed


def _in_flight(now: Snapshot) -> int:
    return sum(lane.in_flight for lane in now.lanes)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole >= _HOUR:
        return f"{whole // _HOUR}:{whole % _HOUR // _MINUTE:02d}:{whole % _MINUTE:02d}"
    return f"{whole // _MINUTE}:{whole % _MINUTE:02d}"
