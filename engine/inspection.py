"""Looks closely at a store: single requests with prompt, reply, attempts, readings; batches. Read-only."""

from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from engine.batch.stage import Stage
from engine.codec import Codec
from engine.database import explained, has_batches, lock_holder, open_reader
from engine.errors import StoreError
from engine.request import Request
from engine.state import State

_SHORTEST_PREFIX: Final = 4
_MOST_MATCHES: Final = 8
_OPEN: Final = "open"


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One sending of a request; money in nano-dollars, times in Unix milliseconds.

    Attributes:
        batch, line: the batch that it went in and its place there, from 0; None where it was sent alone.
        batch_stage, remote_id: where that batch's submission stands, and its provider's name for it.
    """

    number: int
    outcome: str
    reserved_nano: int
    cost_nano: int
    tokens: int
    status: int | None
    error_class: str | None
    error: str | None
    sent_ms: int
    settled_ms: int | None
    batch: int | None
    line: int | None
    batch_stage: str
    remote_id: str


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """One cell that the request answers, with its reading as JSON text."""

    sweep: str
    simulated: bool
    stage: str
    coords: str
    status: str | None
    reason: str
    reading: str | None
    changes: str


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the store knows of one request.

    Attributes:
        simulated: it belongs to a sweep, or answers a cell of one, whose answers come from a simulator.
        state: a state of the engine's table; `read` once every cell has its reading.
    """

    simulated: bool
    key: str
    state: str
    alias: str
    stage: str
    request: Request
    text: str | None
    thinking: str | None
    finish: str | None
    finish_raw: str | None
    model_echo: str | None
    provider_request_id: str | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cost_nano: int | None
    latency_ms: int | None
    raw: bytes
    attempts: tuple[AttemptView, ...]
    cells: tuple[CellView, ...]


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as the store knows it; times in Unix milliseconds, None while they have not come.

    Attributes:
        stages: the sweep's stages whose requests are in it.
        stage: where its submission stands (see `engine.batch.stage`); `state` in JSON, since stages are the sweep's.
        requests: lines of it, 0 before it is whole.
        completed, open: of these, answered, and without an outcome yet; the others have failed or were given back.
        remote_id, status: its provider's name and last word for it, empty while there is none.
        cancelled: this program ordered its cancellation.
        reason: why it was dropped.
    """

    simulated: bool
    id: int
    sweep: str
    provider: str
    model: str
    stages: tuple[str, ...]
    stage: Stage = msgspec.field(name="state")
    marker: str
    requests: int
    completed: int
    open: int
    remote_id: str
    status: str
    cancelled: bool
    reason: str
    built_ms: int
    created_ms: int | None
    ended_ms: int | None
    closed_ms: int | None


async def read_batches(path: Path) -> list[BatchRow]:
    """Return every batch of a store, the oldest first.

    Raises:
        StoreError: no such store.
    """
    connection = await open_reader(path)
    try:
        with explained(path):
            rows = await _rows(connection, _BATCHES) if await has_batches(connection) else []
    finally:
        await connection.close()
    return [_batch(row) for row in rows]


async def is_simulated(path: Path) -> bool:
    """Say whether any sweep of a store is simulated.

    Raises:
        StoreError: no such store.
    """
    connection = await open_reader(path)
    try:
        with explained(path):
            return bool((await _rows(connection, "SELECT coalesce(max(simulated), 0) FROM sweep"))[0][0])
    finally:
        await connection.close()


async def read_request(path: Path, key: str) -> RequestView:
    """Return the request whose key begins with `key` (hexadecimal).

    Raises:
        StoreError: no request or several requests have such a key.
    """
    digits = key.lower()
    if len(digits) < _SHORTEST_PREFIX or set(digits) - set("0123456789abcdef"):
        raise StoreError(
            f"`{key[:40]}` is not the beginning of a request's key", where=str(path), mend="give at least 4 hex digits"
        )
    held = lock_holder(path) is not None
    connection = await open_reader(path)
    try:
        with explained(path):
            found = await _request(connection, path, digits)
    finally:
        await connection.close()
    return found if held or lock_holder(path) is not None else _doubted(found)


def _doubted(found: RequestView) -> RequestView:
    """Return a request of a store that no process holds: whatever was on the wire is in doubt (see `engine.status`)."""
    if found.state != State.SENT or any(each.outcome == _OPEN and each.batch is not None for each in found.attempts):
        return found
    attempts = [
        msgspec.structs.replace(each, outcome=State.IN_DOUBT.value) if each.outcome == _OPEN else each
        for each in found.attempts
    ]
    return msgspec.structs.replace(found, state=State.IN_DOUBT.value, attempts=tuple(attempts))


async def _request(connection: aiosqlite.Connection, path: Path, digits: str) -> RequestView:
    low, high = bytes.fromhex(digits.ljust(32, "0")), bytes.fromhex(digits.ljust(32, "f"))
    found = await _rows(
        connection,
        "SELECT r.id, lower(hex(r.key)), r.state, r.alias, r.stage, p.body, s.simulated"
        " FROM request r JOIN prompt p ON p.request_id = r.id JOIN sweep s ON s.id = r.sweep_id"
        " WHERE r.key BETWEEN ? AND ? LIMIT ?",
        low,
        high,
        _MOST_MATCHES,
    )
    if len(found) != 1:
        keys = ", ".join(row[1][:12] for row in found)
        mend = f"give more digits: {keys}" if found else "`mirage errors` and the view `requests` list keys"
        raise StoreError(
            f"{'several' if found else 'no'} requests have a key like {digits}", where=str(path), mend=mend
        )
    request_id, key, state, alias, stage, body, simulated = found[0]
    cells = tuple([_cell(row) for row in await _rows(connection, _CELLS, request_id)])
    if state == State.SETTLED and cells and all(cell.status is not None for cell in cells):
        state = State.READ.value
    codec = Codec()
    completions = await _rows(
        connection,
        "SELECT text, thinking, finish, finish_raw, model_echo, provider_request_id, input_tokens, cached_tokens,"
        " output_tokens, reasoning_tokens, cost_nano, latency_ms, raw FROM completion WHERE request_id = ?",
        request_id,
    )
    done = tuple(completions[0]) if completions else (None,) * 12 + (b"",)
    return RequestView(
        simulated=bool(simulated) or any(cell.simulated for cell in cells),
        key=key,
        state=state,
        alias=alias,
        stage=stage,
        request=codec.unpack_request(body),
        text=None if done[0] is None else codec.unpack_text(done[0]),
        thinking=None if done[1] is None else codec.unpack_text(done[1]),
        **dict(zip(_COMPLETION_FIELDS, done[2:12], strict=True)),
        raw=codec.unpack_bytes(done[12]),
        attempts=tuple([_attempt(row) for row in await _attempts(connection, request_id)]),
        cells=cells,
    )


_COMPLETION_FIELDS: Final = (
    "finish",
    "finish_raw",
    "model_echo",
    "provider_request_id",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_nano",
    "latency_ms",
)
_ATTEMPTS: Final = (
    "SELECT a.number, a.outcome, a.reserved_nano, a.cost_nano, a.tokens, a.status, a.error_class, a.error, a.sent_ms,"
    " a.settled_ms, {batch} WHERE a.request_id = ? ORDER BY a.number"
)
_ALONE: Final = "NULL, NULL, '', '' FROM attempt a"
_BATCHED: Final = (
    "a.batch_id, a.line, coalesce(b.stage, ''), coalesce(b.remote_id, '')"
    " FROM attempt a LEFT JOIN batch b ON b.id = a.batch_id"
)
_BATCHES: Final = (
    "SELECT s.simulated, b.batch_id, b.sweep, b.provider, b.model,"
    " (SELECT group_concat(DISTINCT a.stage) FROM attempt a WHERE a.batch_id = b.batch_id),"
    " b.stage, b.marker, b.requests, b.completed, b.open, b.remote_id, coalesce(b.remote_status, ''),"
    " b.cancelled, b.reason, b.built_ms, b.created_ms, b.ended_ms, b.closed_ms"
    " FROM batches b JOIN sweeps s ON s.sweep = b.sweep ORDER BY b.batch_id"
)
_CELLS: Final = (
    "SELECT s.name, s.simulated, c.stage, c.coords, c.reading_status, c.reading_reason, b.body, c.changes"
    " FROM cell c JOIN sweep s ON s.id = c.sweep_id LEFT JOIN reading b ON b.cell_id = c.id"
    " WHERE c.request_id = ? ORDER BY c.id"
)


async def _attempts(connection: aiosqlite.Connection, request_id: int) -> list[Any]:
    batch = _BATCHED if await has_batches(connection) else _ALONE
    return await _rows(connection, _ATTEMPTS.format(batch=batch), request_id)


def _attempt(row: Any) -> AttemptView:
    return AttemptView(**dict(zip(AttemptView.__struct_fields__, row, strict=True)))


def _cell(row: Any) -> CellView:
    return msgspec.convert(dict(zip(CellView.__struct_fields__, row, strict=True)), CellView, strict=False)


def _batch(row: Any) -> BatchRow:
    found = dict(zip(BatchRow.__struct_encode_fields__, row, strict=True))
    found["stages"] = sorted(filter(None, (found["stages"] or "").split(",")))
    return msgspec.convert(found, BatchRow, strict=False)


async def _rows(connection: aiosqlite.Connection, sql: str, *values: object) -> list[Any]:
    return list(await connection.execute_fetchall(sql, values))
