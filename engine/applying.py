"""Turns a group of operations into statements on one open transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import aiosqlite
import msgspec

from engine.codec import Codec
from engine.lane import Leased, LeasedCell
from engine.retry import Tries
from engine.rows import ROWS, Planting, positional
from engine.writer import Operation, Probe
from engine.writes import Enlist, Fail, Lease, Plan, Planned, Reads, Send, Settle, Statement

Kind = TypeVar("Kind", bound=Operation)


class Applier:
    """Applies groups; holds the statements."""

    def __init__(self, queries: Mapping[str, str], codec: Codec) -> None:
        self._sql = {**queries, **{name: positional(queries[name], fields) for name, fields in ROWS.items()}}
        self._codec = codec

    async def apply(self, connection: aiosqlite.Connection, group: Sequence[Operation]) -> list[object]:
        """Apply every operation, kind by kind; return their results in the group's order."""
        results: dict[Operation, object] = {}
        for plan in _only(group, Plan):
            added = await self._plant(connection, plan.planting)
            results[plan] = Planned(added=added, offered=len(plan.planting.cells))
        if sends := _only(group, Send):
            await self._send(connection, sends, results)
        for enlist in _only(group, Enlist):
            results[enlist] = await self._enlist(connection, enlist)
        if settles := _only(group, Settle):
            await self._settle(connection, settles)
        if fails := _only(group, Fail):
            await connection.executemany(self._sql["fail_attempt"], [each.attempt for each in fails])
            await connection.executemany(self._sql["fail_request"], [each.request for each in fails])
        await self._read(connection, [each for each in _only(group, Reads) if not isinstance(each, Settle)])
        if _only(group, Probe):
            await connection.execute(self._sql["probe"])
        for lease in _only(group, Lease):
            results[lease] = await self._lease(connection, lease)
        for statement in _only(group, Statement):
            rows = await connection.execute_fetchall(self._sql[statement.name], statement.values)
            results[statement] = [tuple(row) for row in rows]
        return [results.get(operation) for operation in group]

    async def _plant(self, connection: aiosqlite.Connection, planting: Planting) -> int:
        """Insert cells with their requests; return how many cells are new."""
        if not planting.cells:
            return 0
        await connection.executemany(self._sql["plan_request"], planting.requests)
        await connection.executemany(self._sql["plan_prompt"], planting.prompts)
        cursor = await connection.executemany(self._sql["plan_cell"], planting.cells)
        return cursor.rowcount

    async def _send(
        self, connection: aiosqlite.Connection, group: Sequence[Send], results: dict[Operation, object]
    ) -> None:
        await connection.executemany(self._sql["send_request"], [each.request for each in group])
        cursor = await connection.executemany(self._sql["send_attempt"], [each.attempt for each in group])
        all_went = cursor.rowcount == len(group)
        for each in group:
            results[each] = all_went or bool(await self._first(connection, "was_sent", each.attempt._asdict()))

    async def _enlist(self, connection: aiosqlite.Connection, enlist: Enlist) -> frozenset[int]:
        await connection.executemany(self._sql["enlist_request"], enlist.requests)
        cursor = await connection.executemany(self._sql["enlist_attempt"], enlist.attempts)
        if cursor.rowcount == len(enlist.attempts):
            return frozenset(row.line for row in enlist.attempts)
        first = enlist.attempts[0]
        chosen = {"batch_id": first.batch_id, "first": first.line}
        return frozenset(row[0] for row in await connection.execute_fetchall(self._sql["enlisted"], chosen))

    async def _settle(self, connection: aiosqlite.Connection, group: Sequence[Settle]) -> None:
        await connection.executemany(self._sql["settle_attempt"], [each.paid for each in group])
        cursor = await connection.executemany(self._sql["settle_completion"], [each.completion for each in group])
        if cursor.rowcount < len(group):
            group = [each for each in group if await self._answers(connection, each)]
        await connection.executemany(self._sql["settle_request"], [each.request for each in group])
        await self._read(connection, group)
        if apart := [each.request for each in group if each.leaves_unread]:
            await connection.executemany(self._sql["join_cells"], apart)

    async def _answers(self, connection: aiosqlite.Connection, each: Settle) -> bool:
        """Say whether the stored answer is this one; a second one is paid for but not read."""
        found = await self._first(connection, "answering_attempt", each.request._asdict())
        return found == each.completion.attempt

    async def _read(self, connection: aiosqlite.Connection, group: Sequence[Reads]) -> None:
        readings = [row for each in group for row in each.rows.readings]
        if not readings:
            return
        await connection.executemany(self._sql["read_cell"], readings)
        await connection.executemany(self._sql["read_body"], [row for each in group for row in each.rows.bodies])
        merged = Planting()
        for each in group:
            merged.extend(each.rows.follow_ups)
        await self._plant(connection, merged)

    async def _lease(self, connection: aiosqlite.Connection, lease: Lease) -> list[Leased]:
        values = lease.values
        await connection.execute(self._sql["expire"], values)
        taken = await connection.execute_fetchall(self._sql["lease"], values)
        chosen = {"ids": msgspec.json.encode([row[0] for row in taken]).decode(), "sweep_id": values["sweep_id"]}
        prompts = await connection.execute_fetchall(self._sql["lease_prompts"], chosen)
        cells: dict[int, list[LeasedCell]] = {}
        for request_id, cell_id, stage, coords in await connection.execute_fetchall(self._sql["lease_cells"], chosen):
            cells.setdefault(request_id, []).append(LeasedCell(id=cell_id, stage=stage, coords=coords.encode()))
        return [self._leased(tuple(row), cells) for row in prompts]

    def _leased(self, row: tuple[Any, ...], cells: Mapping[int, list[LeasedCell]]) -> Leased:
        request_id, key, lane, stage, alias, attempts, failures, throttles, size, messages, body = row
        return Leased(
            id=request_id, key=key, lane=lane, stage=stage, alias=alias, request=self._codec.unpack_request(body),
            cells=tuple(cells.get(request_id, ())), attempts=attempts,
            tries=Tries(failures=failures, throttles=throttles), size=size, messages=messages,
        )  # fmt: skip

    async def _first(self, connection: aiosqlite.Connection, name: str, values: Mapping[str, object]) -> object:
        rows = list(await connection.execute_fetchall(self._sql[name], values))
        return rows[0][0] if rows else None


def _only(group: Sequence[Operation], kind: type[Kind]) -> list[Kind]:
    return [operation for operation in group if isinstance(operation, kind)]
