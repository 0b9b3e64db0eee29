"""Looks at a store without disturbing it: counts by state and stage, money, sweeps. Read-only and quick."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from engine.batch.stage import LIVE, Stage
from engine.database import explained, has_batches, open_reader
from engine.errors import StoreError
from engine.events import StageCount

_STATES: Final = ("planned", "sent", "in_doubt", "settled", "read", "failed")


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that a sweep pays for, by state; the states add up to `total`."""

    total: int
    planned: int
    sent: int
    in_doubt: int
    settled: int
    read: int
    failed: int
    failed_by_class: dict[str, int]


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
    """One sweep at one instant; requests that wait in batches are among its `sent` ones."""

    sweep: str
    simulated: bool
    requests: Requests
    by_stage: dict[str, StageStatus]
    money: Money
    batches: Batches
    attempts: int
    completions: int
    assumed_calls: int
    tokens: int
    running: int | None
    other_sweeps: list[str]


async def read_status(path: Path, name: str = "") -> Status:
    """Return the status of a sweep, by default the store's newest.

    Raises:
        StoreError: no such store or no such sweep.
    """
    # Cells and requests are counted side by side, each by a connection with a thread of its own.
    async with AsyncExitStack() as stack:
        one, other = [await _opened(stack, path) for _ in range(2)]
        with explained(path):
            # One look at one instant: a running sweep must not move anything from one count to another meanwhile.
            for connection in (one, other):
                await connection.execute("BEGIN")
            return await _status(one, other, path, name)


async def stage_counts(path: Path, name: str) -> dict[str, StageCount]:
    """Return what earlier runs of a sweep finished, by stage."""
    status = await read_status(path, name)
    return {
        stage: StageCount(read=count.read, unreadable=count.unreadable, failed=count.failed)
        for stage, count in status.by_stage.items()
    }


async def _opened(stack: AsyncExitStack, path: Path) -> aiosqlite.Connection:
    connection = await open_reader(path)
    stack.push_async_callback(connection.close)
    return connection


async def _status(connection: aiosqlite.Connection, other: aiosqlite.Connection, path: Path, name: str) -> Status:
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
    running = await _rows(
        connection, "SELECT pid FROM run WHERE sweep_id = ? AND ended_ms IS NULL ORDER BY id DESC", sweep_id
    )
    requests, by_stage = await asyncio.gather(_requests(connection, sweep_id), _stages(other, sweep_id))
    return Status(
        sweep=sweep_name,
        simulated=bool(simulated),
        requests=requests,
        by_stage=by_stage,
        money=Money(spent_nano=spent, reserved_nano=reserved, assumed_nano=assumed_nano),
        batches=await _batches(connection, sweep_name),
        attempts=attempts,
        completions=completions,
        assumed_calls=assumed,
        tokens=tokens,
        running=running[0][0] if running else None,
        other_sweeps=[row[1] for row in sweeps if row[0] != sweep_id],
    )


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
