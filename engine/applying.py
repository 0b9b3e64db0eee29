"""Turns a group of operations into statements on one open transaction."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from engine.bulk import Insert
from engine.codec import Codec
from engine.lane import Leased, LeasedCell
from engine.retry import Tries
from engine.rows import INSERTS, CompletionRow, Planting, ReadRows
from engine.writer import Operation, Probe
from engine.writes import (
    Enlist,
    Fail,
    Lease,
    Plan,
    Planned,
    Reads,
    Send,
    Settle,
    SettleMany,
    Statement,
    Statements,
    Values,
)

Kind = TypeVar("Kind", bound=Operation)


class AnsweredAlreadyError(Exception):
    """One of the requests that were to be settled together has an answer already."""


class Applier:
    """Applies groups; holds the statements."""

    def __init__(self, queries: Mapping[str, str], codec: Codec) -> None:
        self._sql = queries
        self._inserts = {name: Insert(queries[name], fields) for name, fields in INSERTS.items()}
        self._codec = codec

    def apply(self, connection: sqlite3.Connection, group: Sequence[Operation]) -> list[object]:
        """Apply every operation, kind by kind; return their results in the group's order."""
        results: dict[Operation, object] = {}
        for plan in _only(group, Plan):
            added = self._plant(connection, plan.planting)
            results[plan] = Planned(added=added, offered=len(plan.planting.cells))
        if sends := _only(group, Send):
            self._send(connection, sends, results)
        for enlist in _only(group, Enlist):
            results[enlist] = self._enlist(connection, enlist)
        if settles := _only(group, Settle):
            self._settle(connection, settles)
        if fails := _only(group, Fail):
            connection.executemany(self._sql["fail_attempt"], [each.attempt for each in fails])
            connection.executemany(self._sql["fail_request"], [each.request for each in fails])
        self._settle_many(connection, _only(group, SettleMany))
        self._read(connection, [each for each in _only(group, Reads) if not isinstance(each, Settle)])
        if _only(group, Probe):
            connection.execute(self._sql["probe"])
        for lease in _only(group, Lease):
            results[lease] = self._lease(connection, lease)
        for statement in _only(group, Statement):
            results[statement] = self._rows(connection, statement.name, statement.values)
        for several in _only(group, Statements):
            results[several] = [self._rows(connection, name, values) for name, values in several.parts]
        return [results.get(operation) for operation in group]

    def _plant(self, connection: sqlite3.Connection, planting: Planting) -> int:
        """Insert cells with their requests; return how many cells are new."""
        if not planting.cells:
            return 0
        self._inserts["plan_request"].run(connection, planting.requests)
        self._inserts["plan_prompt"].run(connection, planting.prompts)
        return self._inserts["plan_cell"].run(connection, planting.cells)

    def _send(self, connection: sqlite3.Connection, group: Sequence[Send], results: dict[Operation, object]) -> None:
        rows = {"rows": _json([each.attempt for each in group])}
        connection.execute(self._sql["send_requests"], rows)
        all_went = connection.execute(self._sql["send_attempts"], rows).rowcount == len(group)
        for each in group:
            results[each] = all_went or bool(self._first(connection, "was_sent", each.attempt._asdict()))

    def _enlist(self, connection: sqlite3.Connection, enlist: Enlist) -> frozenset[int]:
        cursor = connection.execute(self._sql["enlist_attempts"], enlist.values)
        connection.execute(self._sql["enlist_requests"], enlist.values)
        if cursor.rowcount == len(enlist.rows):
            return frozenset(row.line for row in enlist.rows)
        return frozenset(row[0] for row in connection.execute(self._sql["enlisted"], enlist.values).fetchall())

    def _settle(self, connection: sqlite3.Connection, group: Sequence[Settle]) -> None:
        if self._complete(connection, [each.completion for each in group]) < len(group):
            # Another attempt has answered before: this one is paid for too, and not read.
            connection.executemany(self._sql["settle_attempt"], [each.completion.paid._asdict() for each in group])
            group = [each for each in group if self._answers(connection, each)]
        self._read(connection, group)
        if apart := [each.completion.request_id for each in group if each.leaves_unread]:
            connection.execute(self._sql["join_cells"], {"ids": _json(apart)})

    def _complete(self, connection: sqlite3.Connection, rows: Sequence[CompletionRow]) -> int:
        """Store answers to requests that have none, settle their attempts and requests; return how many were new."""
        new = self._inserts["settle_completion"].run(connection, rows)
        ids = {"ids": _json([row.request_id for row in rows])}
        connection.execute(self._sql["settle_attempts"], ids)
        connection.execute(self._sql["settle_requests"], ids)
        return new

    def _settle_many(self, connection: sqlite3.Connection, group: Sequence[SettleMany]) -> None:
        for many in group:
            if self._complete(connection, many.completions) < len(many.completions):
                raise AnsweredAlreadyError
            connection.executemany(self._sql["fail_attempt"], many.failed_attempts)
            connection.executemany(self._sql["fail_request"], many.failed_requests)
            self._read_rows(connection, many.rows)

    def _answers(self, connection: sqlite3.Connection, each: Settle) -> bool:
        """Say whether the stored answer is this one; a second one is paid for but not read."""
        completion = each.completion
        return self._first(connection, "answering_attempt", {"request_id": completion.request_id}) == completion.attempt

    def _read(self, connection: sqlite3.Connection, group: Sequence[Reads]) -> None:
        merged = ReadRows()
        for each in group:
            merged.extend(each.rows)
        self._read_rows(connection, merged)

    def _read_rows(self, connection: sqlite3.Connection, rows: ReadRows) -> None:
        if rows.readings:
            alike: dict[tuple[str, str, int], list[int]] = {}
            for status, reason, version, cell_id in rows.readings:
                alike.setdefault((status, reason, version), []).append(cell_id)
            for (status, reason, version), ids in alike.items():
                values = {"status": status, "reason": reason, "version": version, "ids": _json(ids)}
                connection.execute(self._sql["read_cells"], values)
            self._inserts["read_body"].run(connection, rows.bodies)
            self._plant(connection, rows.follow_ups)

    def _lease(self, connection: sqlite3.Connection, lease: Lease) -> list[Leased]:
        values = lease.values
        connection.execute(self._sql["expire"], values)
        taken = connection.execute(self._sql["lease"], values).fetchall()
        chosen = {"ids": _json([row[0] for row in taken]), "sweep_id": values["sweep_id"]}
        prompts = connection.execute(self._sql["lease_prompts"], chosen).fetchall()
        cells: dict[int, list[LeasedCell]] = {}
        for request_id, cell_id, stage, coords in connection.execute(self._sql["lease_cells"], chosen).fetchall():
            cells.setdefault(request_id, []).append(LeasedCell(id=cell_id, stage=stage, coords=coords.encode()))
        return [self._leased(tuple(row), cells) for row in prompts]

    def _leased(self, row: tuple[Any, ...], cells: Mapping[int, list[LeasedCell]]) -> Leased:
        request_id, key, lane, stage, alias, attempts, failures, throttles, size, messages, body = row
        return Leased(
            id=request_id, key=key, lane=lane, stage=stage, alias=alias, request=self._codec.unpack_request(body),
            cells=tuple(cells.get(request_id, ())), attempts=attempts,
            tries=Tries(failures=failures, throttles=throttles), size=size, messages=messages,
        )  # fmt: skip

    def _rows(self, connection: sqlite3.Connection, name: str, values: Values) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in connection.execute(self._sql[name], values).fetchall()]

    def _first(self, connection: sqlite3.Connection, name: str, values: Mapping[str, object]) -> object:
        rows = connection.execute(self._sql[name], values).fetchall()
        return rows[0][0] if rows else None


def _json(rows: Sequence[object]) -> str:
    return msgspec.json.encode(rows).decode()


def _only(group: Sequence[Operation], kind: type[Kind]) -> list[Kind]:
    return [operation for operation in group if isinstance(operation, kind)]
