"""Looks at a store without disturbing it: counts by state and stage, money, sweeps. Read-only and quick."""

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
    connection = await open_reader(path)
    try:
        with explained(path):
            return await _status(connection, path, name)
    finally:
        await connection.close()


async def stage_counts(path: Path, name: str) -> dict[str, StageCount]:
    """Return what earlier runs of a sweep finished, by stage."""
    status = await read_status(path, name)
    return {
        stage: StageCount(read=count.read, unreadable=count.unreadable, failed=count.failed)
        for stage, count in status.by_stage.items()
    }


async def _status(connection: aiosqlite.Connection, path: Path, name: str) -> Status:
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
    return Status(
        sweep=sweep_name,
        simulated=bool(simulated),
        requests=await _requests(connection, sweep_id),
        by_stage=await _stages(connection, sweep_id),
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
    grouped = "SELECT state, error_class, count(*) FROM request WHERE sweep_id = ? GROUP BY state, error_class"
    for state, kind, number in await _rows(connection, grouped, sweep_id):
        counts[state] += number
        if state == "failed":
            classes[kind] = classes.get(kind, 0) + number
    unread = await _rows(
        connection,
        "SELECT count(DISTINCT c.request_id) FROM cell c JOIN request r ON r.id = c.request_id"
        " WHERE c.reading_status IS NULL AND r.state = 'settled' AND r.sweep_id = ?",
        sweep_id,
    )
    settled = counts["settled"]
    counts |= {"settled": unread[0][0], "read": settled - unread[0][0]}
    return Requests(total=sum(counts.values()), failed_by_class=classes, **counts)


async def _stages(connection: aiosqlite.Connection, sweep_id: int) -> dict[str, StageStatus]:
    rows = await _rows(
        connection,
        "SELECT c.stage, count(*), sum(c.reading_status IS NOT NULL),"
        " sum(c.reading_status IS NULL AND r.state = 'settled'), sum(c.reading_status IS NULL AND r.state = 'failed'),"
        " sum(coalesce(c.reading_status = 'unreadable', 0)), sum(coalesce(c.reading_status = 'truncated', 0))"
        " FROM cell c JOIN request r ON r.id = c.request_id WHERE c.sweep_id = ? GROUP BY c.stage",
        sweep_id,
    )
    return {
        stage: StageStatus(
            total=total,
            pending=total - read - settled - failed,
            settled=settled,
            read=read,
            failed=failed,
            unreadable=unreadable,
            truncated=truncated,
        )
        for stage, total, read, settled, failed, unreadable, truncated in rows
    }


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
