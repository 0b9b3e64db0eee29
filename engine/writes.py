"""The operations that the writer applies, and the rows that each carries. One class a kind of write."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import aiosqlite
import msgspec

from engine.cell import Cell, Reading
from engine.codec import Codec
from engine.request import Completion, Request, prompt_bytes, request_key
from engine.writer import Operation

Row = Mapping[str, object]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan added: new cells, and how many of all offered ones are already answered or under way."""

    added: int
    offered: int


class CellRows:
    """The rows of cells to plan: their requests, prompts and the cells themselves."""

    __slots__ = ("cells", "prompts", "requests")

    def __init__(self) -> None:
        self.requests: list[Row] = []
        self.prompts: list[Row] = []
        self.cells: list[Row] = []

    def add(self, codec: Codec, sweep_id: int, cell: Cell, parent_id: int | None) -> None:
        """Append one cell."""
        request = cell.request
        key = request_key(request)
        self.requests.append(
            {
                "key": key, "sweep_id": sweep_id, "lane": lane_name(request), "provider": request.provider,
                "model": request.model, "alias": cell.alias, "stage": cell.stage, "priority": cell.priority,
                "size": prompt_bytes(request), "messages": len(request.messages),
            }
        )  # fmt: skip
        self.prompts.append({"key": key, "body": codec.pack_request(request)})
        self.cells.append(
            {
                "ident": cell_ident(sweep_id, cell.stage, cell.coords), "sweep_id": sweep_id, "stage": cell.stage,
                "alias": cell.alias, "coords": cell.coords.decode(), "key": key, "parent_id": parent_id,
                "changes": cell.changes.decode(),
            }
        )  # fmt: skip

    async def insert(self, connection: aiosqlite.Connection, sql: Mapping[str, str]) -> int:
        """Insert everything; return how many cells are new."""
        if not self.cells:
            return 0
        await connection.executemany(sql["plan_request"], self.requests)
        await connection.executemany(sql["plan_prompt"], self.prompts)
        cursor = await connection.executemany(sql["plan_cell"], self.cells)
        return cursor.rowcount


class Plan(Operation):
    """Insert cells and their requests; resolves to Planned."""

    __slots__ = ("rows",)

    def __init__(self, codec: Codec, sweep_id: int, cells: Sequence[Cell]) -> None:
        super().__init__()
        self.rows = CellRows()
        for cell in cells:
            self.rows.add(codec, sweep_id, cell, None)


class Send(Operation):
    """Make an attempt durable; resolves to True, or False when the lease was lost and nothing may be sent."""

    __slots__ = ("row",)

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


class Settle(Operation):
    """Store a paid completion, its readings and what follows from them, in one transaction."""

    __slots__ = ("attempt", "bodies", "completion", "follow_ups", "readings", "request_id")
    kept = True

    def __init__(self, request_id: int, attempt: Row, completion: Row) -> None:
        super().__init__()
        self.request_id = request_id
        self.attempt = attempt
        self.completion = completion
        self.readings: list[Row] = []
        self.bodies: list[Row] = []
        self.follow_ups = CellRows()

    def add_reading(
        self, codec: Codec, sweep_id: int, cell_id: int, reading: Reading, follow_ups: Sequence[Cell]
    ) -> None:
        """Add one cell's reading and the cells that follow from it."""
        _add_reading(self, codec, sweep_id, cell_id, reading, follow_ups)


class ReadCell(Operation):
    """Store the reading of an answer that is already in the store, with what follows from it."""

    __slots__ = ("bodies", "follow_ups", "readings")
    kept = True

    def __init__(self, codec: Codec, sweep_id: int, cell_id: int, reading: Reading, follow_ups: Sequence[Cell]) -> None:
        super().__init__()
        self.readings: list[Row] = []
        self.bodies: list[Row] = []
        self.follow_ups = CellRows()
        _add_reading(self, codec, sweep_id, cell_id, reading, follow_ups)


class Fail(Operation):
    """Record a failed attempt and what becomes of its request."""

    __slots__ = ("attempt", "request")
    kept = True

    def __init__(self, attempt: Row, request: Row) -> None:
        super().__init__()
        self.attempt = attempt
        self.request = request


class Release(Operation):
    """Give a lease back."""

    __slots__ = ("row",)
    kept = True

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


class Renew(Operation):
    """Prolong a lease; resolves to False when it was lost (stop sending, still settle)."""

    __slots__ = ("row",)

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row


class Statement(Operation):
    """Run one named statement in the writer's turn; resolves to its rows."""

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: Row) -> None:
        super().__init__()
        self.name = name
        self.values = values


class Lease(Operation):
    """Take planned requests for a while; resolves to a list of Leased."""

    __slots__ = ("lane", "lease_ms", "most", "run_id", "skip_stages", "sweep_id")

    def __init__(
        self, *, sweep_id: int, run_id: int, lane: str, most: int, lease_ms: int, skip_stages: Sequence[str]
    ) -> None:
        super().__init__()
        self.sweep_id, self.run_id, self.lane, self.most = sweep_id, run_id, lane, most
        self.lease_ms, self.skip_stages = lease_ms, tuple(skip_stages)


def lane_name(request: Request) -> str:
    """Return the lane of a request: one per provider account and model."""
    return f"{request.provider}/{request.model}"


def cell_ident(sweep_id: int, stage: str, coords: bytes) -> bytes:
    """Return the 16-byte identity of a cell."""
    return blake2b(b"%d\0%s\0%s" % (sweep_id, stage.encode(), coords), digest_size=16).digest()


def completion_row(codec: Codec, request_id: int, attempt: int, completion: Completion) -> dict[str, object]:
    """Return a completion's columns, costs and times left to the caller."""
    usage = completion.usage
    return {
        "request_id": request_id, "attempt": attempt, "text": codec.pack_text(completion.text),
        "thinking": codec.pack_text(completion.thinking), "finish": completion.finish.value,
        "finish_raw": completion.finish_raw, "model_echo": completion.model_echo,
        "provider_request_id": completion.provider_request_id, "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens, "reasoning_tokens": usage.reasoning_tokens,
        "raw": codec.pack_bytes(completion.raw),
    }  # fmt: skip


def _add_reading(
    operation: Settle | ReadCell,
    codec: Codec,
    sweep_id: int,
    cell_id: int,
    reading: Reading,
    follow_ups: Sequence[Cell],
) -> None:
    operation.readings.append(
        {"cell_id": cell_id, "status": reading.status.value, "reason": reading.reason, "version": reading.version}
    )
    operation.bodies.append({"cell_id": cell_id, "body": reading.body.decode()})
    for cell in follow_ups:
        operation.follow_ups.add(codec, sweep_id, cell, cell_id)
