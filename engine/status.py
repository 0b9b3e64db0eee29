"""Looks at a store without disturbing it: counts by state and stage, money, sweeps. Read-only and quick."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from engine.batch.stage import LIVE, Stage
from engine.database import explained, has_batches, lock_holder, open_reader
from engine.errors import StoreError
from engine.events import StageCount

# What the engine writes of an attempt that never left, and of one that its batch did not run.
_NOT_SENT: Final = "not sent: *"
_NOT_RUN: Final = "the batch * before this request was run"
_STATES: Final = ("planned", "sent", "in_doubt", "settled", "read", "failed")


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that a sweep pays for, by state; the states add up to `total`.

    `sent` ones have somebody who waits for them: a process, or a batch at its provider. Where a process died over calls
    on the wire, these are `in_doubt` from that moment on, whatever the store still calls them.
    """

    total: int
    planned: int
    sent: int
    in_doubt: int
    settled: int
    read: int
    failed: int
    failed_by_class: dict[str, int]


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of everything that was sent or set out to be; the counts add up to `total`.

    Attributes:
        answered: brought a completion.
        taken_back: never left, or their batch never ran them; nothing was charged.
        failed: brought an error, and were tried again or given up.
        assumed: cut off on the wire, and counted as billed.
        in_doubt: cut off on the wire, and not yet counted; the next run does.
        under_way: on the wire, or in a batch.
    """

    total: int
    answered: int
    taken_back: int
    failed: int
    assumed: int
    in_doubt: int
    under_way: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds the store for writing.

    Attributes:
        pid: its number, 0 where it is not known yet.
        sweep: what it runs; empty while it has not begun a run, as when it loads a model, or has other work.
    """

    pid: int
    sweep: str


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Cells of one stage, by the state of their answer; `unreadable` and `truncated` are among `read`."""

    total: int
    pending: int
    settled: int
    read: int
    failed: int
    unreadable: int
    truncated: int


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars. `assumed` is the part of `spent` that may not have been billed: calls cut off on the wire."""

    spent_nano: int
    reserved_nano: int
    assumed_nano: int


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of one sweep, by the stage of their submission; `requests` wait in those that are not over."""

    by_stage: dict[str, int] = {}
    requests: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep at one instant; requests that wait in batches are among its `sent` ones.

    Attributes:
        tokens: of both directions together; `assumed_tokens` is the part of them that may not have been billed.
        running: the process that runs this sweep, None where none does.
        holder: the process that holds the store, whatever it does.
    """

    simulated: bool
    sweep: str
    running: int | None
    holder: Holder | None
    requests: Requests
    by_stage: dict[str, StageStatus]
    money: Money
    batches: Batches
    calls: Attempts
    attempts: int
    completions: int
    assumed_calls: int
    tokens: int
    assumed_tokens: int
    other_sweeps: list[str]


async def read_status(path: Path, name: str = "") -> Status:
    """Return the status of a sweep, by default the store's newest.

    Raises:
        StoreError: no such store or no such sweep.
    """
    before = lock_holder(path)
    # Cells and requests are counted side by side, each by a connection with a thread of its own.
    async with AsyncExitStack() as stack:
        one, other = [await _opened(stack, path) for _ in range(2)]
        with explained(path):
            # One look at one instant: a running sweep must not move anything from one count to another meanwhile.
            for connection in (one, other):
                await connection.execute("BEGIN")
            return await _status(one, other, path, name, before)


async def stage_counts(path: Path, name: str) -> dict[str, StageCount]:
    """Return what earlier runs of a sweep finished, by stage."""
    status = await read_status(path, name)
    return {
        stage: StageCount(read=count.read, unreadable=count.unreadable, failed=count.failed, known=count.total)
        for stage, count in status.by_stage.items()
    }


async def _opened(stack: AsyncExitStack, path: Path) -> aiosqlite.Connection:
    connection = await open_reader(path)
    stack.push_async_callback(connection.close)
    return connection


async def _status(
    connection: aiosqlite.Connection, other: aiosqlite.Connection, path: Path, name: str, before: int | None
) -> Status:
    sweeps = await _rows(connection, "SELECT id, name, simulated FROM sweep ORDER BY id DESC")
    chosen = next((row for row in sweeps if name in ("", row[1])), None)
    if chosen is None:
        known = ", ".join(row[1] for row in sweeps) or "none"
        raise StoreError(f"the store has no sweep `{name}`", where=str(path), mend=f"it has: {known}")
    sweep_id, sweep_name, simulated = chosen
    money = await _rows(
        connection,
        "SELECT coalesce(sum(cost_nano), 0), coalesce(sum(reserved_nano), 0), coalesce(sum(assumed_nano), 0),"
        " coalesce(sum(attempts), 0), coalesce(sum(completions), 0), coalesce(sum(assumed), 0),"
        " coalesce(sum(tokens), 0) FROM spend WHERE sweep_id = ?",
        sweep_id,
    )
    spent, reserved, assumed_nano, attempts, completions, assumed, tokens = money[0]
    holder = await _holder(connection, lock_holder(path) if before is None else before)
    requests, by_stage = await asyncio.gather(_requests(connection, sweep_id), _stages(other, sweep_id))
    batches = await _batches(connection, sweep_name)
    if holder is None:
        requests = _doubted(requests, batches)
    taken_back, assumed_tokens = await _endings(connection, sweep_id, attempts - completions)
    return Status(
        simulated=bool(simulated),
        sweep=sweep_name,
        running=holder.pid if holder is not None and holder.sweep == sweep_name else None,
        holder=holder,
        requests=requests,
        by_stage=by_stage,
        money=Money(spent_nano=spent, reserved_nano=reserved, assumed_nano=assumed_nano),
        batches=batches,
        calls=Attempts(
            total=attempts,
            answered=completions,
            taken_back=taken_back,
            failed=attempts - completions - taken_back - assumed - requests.in_doubt - requests.sent,
            assumed=assumed,
            in_doubt=requests.in_doubt,
            under_way=requests.sent,
        ),
        attempts=attempts,
        completions=completions,
        assumed_calls=assumed,
        tokens=tokens,
        assumed_tokens=assumed_tokens,
        other_sweeps=[row[1] for row in sweeps if row[0] != sweep_id],
    )


async def _holder(connection: aiosqlite.Connection, pid: int | None) -> Holder | None:
    """Return what the holder of the store runs. A run without an end is no proof of one: a killed run leaves that."""
    if pid is None:
        return None
    newest = await _rows(
        connection, "SELECT s.name, r.pid FROM run r JOIN sweep s ON s.id = r.sweep_id ORDER BY r.id DESC LIMIT 1"
    )
    return Holder(pid=pid, sweep=newest[0][0] if newest and newest[0][1] == pid else "")


def _doubted(requests: Requests, batches: Batches) -> Requests:
    """Return the counts of a store that no process holds: nobody waits any more for what was on the wire."""
    in_batches = min(requests.sent, batches.requests)
    doubted = requests.in_doubt + requests.sent - in_batches
    return msgspec.structs.replace(requests, sent=in_batches, in_doubt=doubted)


async def _endings(connection: aiosqlite.Connection, sweep_id: int, unanswered: int) -> tuple[int, int]:
    """Return how many attempts were taken back, and the tokens of those that are assumed billed."""
    # Settled attempts are many and have no index for this: they are looked through only where there is a reason.
    if not unanswered:
        return 0, 0
    back = f"a.error GLOB '{_NOT_SENT}'"
    if await has_batches(connection):
        given_back = "SELECT 1 FROM batch b WHERE b.id = a.batch_id AND b.stage = 'dropped' AND b.reason = a.error"
        back += f" OR a.batch_id IS NOT NULL AND (a.error GLOB '{_NOT_RUN}' OR EXISTS ({given_back}))"
    rows = await _rows(
        connection,
        f"SELECT coalesce(sum(a.outcome = 'error' AND ({back})), 0),"  # noqa: S608 - our own words
        " coalesce(sum(iif(a.outcome = 'assumed', a.tokens, 0)), 0)"
        " FROM attempt a WHERE a.sweep_id = ? AND a.outcome IN ('error', 'assumed')",
        sweep_id,
    )
    return int(rows[0][0]), int(rows[0][1])


async def _requests(connection: aiosqlite.Connection, sweep_id: int) -> Requests:
    counts = dict.fromkeys(_STATES, 0)
    classes: dict[str, int] = {}
    total = await _count(connection, "SELECT count(*) FROM request WHERE sweep_id = ?", sweep_id)
    # In these words, an index answers.
    pending = await _count(
        connection,
        "SELECT count(*) FROM request WHERE sweep_id = ? AND state IN ('planned', 'sent', 'in_doubt')",
        sweep_id,
    )
    grouped = (
        "SELECT state, error_class, count(*) FROM request"
        " WHERE sweep_id = ? AND state NOT IN ('planned', 'settled') GROUP BY state, error_class"
    )
    for state, kind, number in await _rows(connection, grouped, sweep_id):
        counts[state] += number
        if state == "failed":
            classes[kind] = classes.get(kind, 0) + number
    counts["planned"] = pending - counts["sent"] - counts["in_doubt"]
    counts["settled"] = total - pending - counts["failed"]
    # Only cells that joined late can be unread when their request is answered, and an index holds just those.
    unread = await _count(
        connection,
        "SELECT count(DISTINCT c.request_id) FROM cell c JOIN request r ON r.id = c.request_id"
        " WHERE c.joined = 1 AND c.reading_status IS NULL AND r.state = 'settled' AND r.sweep_id = ?",
        sweep_id,
    )
    counts |= {"settled": unread, "read": counts["settled"] - unread}
    return Requests(total=total, failed_by_class=classes, **counts)


async def _stages(connection: aiosqlite.Connection, sweep_id: int) -> dict[str, StageStatus]:
    """Count cells by stage without joining a million of them with their requests."""
    rows = await _rows(
        connection,
        "SELECT stage, count(*), count(reading_status), sum(coalesce(reading_status = 'unreadable', 0)),"
        " sum(coalesce(reading_status = 'truncated', 0)) FROM cell WHERE sweep_id = ? GROUP BY stage",
        sweep_id,
    )
    settled = await _by_stage(
        connection,
        "SELECT c.stage, count(*) FROM cell c JOIN request r ON r.id = c.request_id WHERE c.sweep_id = ?"
        " AND c.joined = 1 AND c.reading_status IS NULL AND r.state = 'settled' GROUP BY c.stage",
        sweep_id,
    )
    failed = await _by_stage(
        connection,
        "SELECT c.stage, count(*) FROM request r CROSS JOIN cell c ON c.request_id = r.id WHERE r.state = 'failed'"
        " AND c.sweep_id = ? AND c.reading_status IS NULL GROUP BY c.stage",
        sweep_id,
    )
    return {
        stage: StageStatus(
            total=total,
            pending=total - read - settled.get(stage, 0) - failed.get(stage, 0),
            settled=settled.get(stage, 0),
            read=read,
            failed=failed.get(stage, 0),
            unreadable=unreadable,
            truncated=truncated,
        )
        for stage, total, read, unreadable, truncated in rows
    }


async def _count(connection: aiosqlite.Connection, sql: str, sweep_id: int) -> int:
    return int((await _rows(connection, sql, sweep_id))[0][0])


async def _by_stage(connection: aiosqlite.Connection, sql: str, sweep_id: int) -> dict[str, int]:
    return dict(await _rows(connection, sql, sweep_id))


async def _batches(connection: aiosqlite.Connection, sweep: str) -> Batches:
    if not await has_batches(connection):
        return Batches()
    over = ", ".join(f"'{stage}'" for stage in Stage if stage not in LIVE)
    rows = await _rows(
        connection,
        f"SELECT stage, count(*), sum(iif(stage IN ({over}), 0, open)) FROM batches WHERE sweep = ? GROUP BY stage",  # noqa: S608
        sweep,
    )
    counts = {stage: number for stage, number, _ in rows}
    return Batches(
        by_stage={stage.value: counts[stage] for stage in Stage if stage in counts},
        requests=sum(row[2] for row in rows),
    )


async def _rows(connection: aiosqlite.Connection, sql: str, *values: object) -> list[Any]:
    return list(await connection.execute_fetchall(sql, values))
