"""Turns a group of operations into statements on one open transaction."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import aiosqlite
import msgspec

from engine.codec import Codec
from engine.lane import Leased, LeasedCell
from engine.retry import Tries
from engine.writer import Operation
from engine.writes import (
    CellRows,
    Fail,
    Lease,
    Plan,
    Planned,
    ReadCell,
    Release,
    Renew,
    Row,
    Send,
    Settle,
    Statement,
)

Kind = TypeVar("Kind", bound=Operation)


class Applier:
    """Applies groups; holds the statements and the codec of the writing thread of control."""

    def __init__(self, queries: Mapping[str, str], codec: Codec) -> None:
        self._sql = queries
        self._codec = codec

    async def apply(self, connection: aiosqlite.Connection, group: Sequence[Operation]) -> list[object]:
        """Apply every operation, kind by kind; return their results in the group's order."""
        results: dict[Operation, object] = {}
        for plan in _only(group, Plan):
            results[plan] = Planned(added=await plan.rows.insert(connection, self._sql), offered=len(plan.rows.cells))
        if sends := _only(group, Send):
            await self._send(connection, sends, results)
        if settles := _only(group, Settle):
            await self._settle(connection, settles)
        if fails := _only(group, Fail):
            await connection.executemany(self._sql["fail_attempt"], [each.attempt for each in fails])
            await connection.executemany(self._sql["fail_request"], [each.request for each in fails])
        await self._read(connection, _only(group, ReadCell))
        if releases := _only(group, Release):
            await connection.executemany(self._sql["release"], [each.row for each in releases])
        if renewals := _only(group, Renew):
            await self._renew(connection, renewals, results)
        for lease in _only(group, Lease):
            results[lease] = await self._lease(connection, lease)
        for statement in _only(group, Statement):
            rows = await connection.execute_fetchall(self._sql[statement.name], statement.values)
            results[statement] = [tuple(row) for row in rows]
        return [results.get(operation) for operation in group]

    async def _send(
        self, connection: aiosqlite.Connection, group: Sequence[Send], results: dict[Operation, object]
    ) -> None:
        rows = [operation.row for operation in group]
        await connection.executemany(self._sql["send_request"], rows)
        cursor = await connection.executemany(self._sql["send_attempt"], rows)
        all_went = cursor.rowcount == len(rows)
        for operation in group:
            results[operation] = all_went or await self._exists(connection, self._sql["was_sent"], operation.row)

    async def _settle(self, connection: aiosqlite.Connection, group: Sequence[Settle]) -> None:
        await connection.executemany(self._sql["settle_attempt"], [each.attempt for each in group])
        await connection.executemany(self._sql["settle_completion"], [each.completion for each in group])
        await connection.executemany(self._sql["settle_request"], [{"request_id": each.request_id} for each in group])
        await self._read(connection, group)

    async def _read(self, connection: aiosqlite.Connection, group: Sequence[Settle | ReadCell]) -> None:
        readings = [row for operation in group for row in operation.readings]
        if not readings:
            return
        await connection.executemany(self._sql["read_cell"], readings)
        await connection.executemany(self._sql["read_body"], [row for each in group for row in each.bodies])
        merged = CellRows()
        for operation in group:
            merged.requests.extend(operation.follow_ups.requests)
            merged.prompts.extend(operation.follow_ups.prompts)
            merged.cells.extend(operation.follow_ups.cells)
        await merged.insert(connection, self._sql)

    async def _renew(
        self, connection: aiosqlite.Connection, group: Sequence[Renew], results: dict[Operation, object]
    ) -> None:
        await connection.executemany(self._sql["renew"], [operation.row for operation in group])
        rows = await connection.execute_fetchall(self._sql["owned"], {"run_id": group[0].row["run_id"]})
        owned = {row[0] for row in rows}
        for operation in group:
            results[operation] = operation.row["request_id"] in owned

    async def _lease(self, connection: aiosqlite.Connection, lease: Lease) -> list[Leased]:
        taken = await connection.execute_fetchall(
            self._sql["lease"],
            {
                "run_id": lease.run_id,
                "lease_ms": lease.lease_ms,
                "sweep_id": lease.sweep_id,
                "lane": lease.lane,
                "most": lease.most,
                "skip_stages": msgspec.json.encode(lease.skip_stages).decode(),
            },  # fmt: skip
        )
        chosen = {"ids": msgspec.json.encode([row[0] for row in taken]).decode(), "sweep_id": lease.sweep_id}
        prompts = await connection.execute_fetchall(self._sql["lease_prompts"], chosen)
        cells: dict[int, list[LeasedCell]] = {}
        for request_id, cell_id, stage, coords in await connection.execute_fetchall(self._sql["lease_cells"], chosen):
            cells.setdefault(request_id, []).append(LeasedCell(id=cell_id, stage=stage, coords=coords.encode()))
        return [self._leased(tuple(row), cells) for row in prompts]

    def _leased(self, row: tuple[object, ...], cells: Mapping[int, list[LeasedCell]]) -> Leased:
        request_id, _, lane, stage, alias, attempts, failures, throttles, size, messages, body = row
        assert isinstance(request_id, int) and isinstance(body, bytes)  # noqa: S101, PT018 - STRICT columns
        return Leased(
            id=request_id, lane=str(lane), stage=str(stage), alias=str(alias), request=self._codec.unpack_request(body),
            cells=tuple(cells.get(request_id, ())), attempts=_int(attempts),
            tries=Tries(failures=_int(failures), throttles=_int(throttles)), size=_int(size), messages=_int(messages),
        )  # fmt: skip

    @staticmethod
    async def _exists(connection: aiosqlite.Connection, sql: str, row: Row) -> bool:
        rows = list(await connection.execute_fetchall(sql, row))
        return bool(rows[0][0])


def _only(group: Sequence[Operation], kind: type[Kind]) -> list[Kind]:
    return [operation for operation in group if isinstance(operation, kind)]


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - STRICT columns
    return value
