"""The operations that the writer applies, and the rows that each carries. One class a kind of write."""

from collections.abc import Mapping, Sequence

import msgspec

from engine.cell import Cell
from engine.codec import Codec
from engine.rows import (
    AttemptRow,
    CompletionRow,
    EnlistRow,
    Planting,
    ReadRows,
    Scalar,
)
from engine.writer import Operation

Values = Mapping[str, object]
Scalars = Mapping[str, Scalar]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan added: how many of the offered cells are new."""

    added: int
    offered: int


class Plan(Operation):
    """Insert cells and their requests; resolves to Planned."""

    __slots__ = ("planting",)

    def __init__(self, codec: Codec, sweep_id: int, cells: Sequence[Cell]) -> None:
        super().__init__()
        self.planting = Planting()
        for cell in cells:
            self.planting.add(codec, sweep_id, cell, None)


class Send(Operation):
    """Make an attempt durable; resolves to True, or False when the lease was lost and nothing may be sent."""

    __slots__ = ("attempt",)
    urgent = True

    def __init__(self, attempt: AttemptRow) -> None:
        super().__init__()
        self.attempt = attempt


class Enlist(Operation):
    """Make requests the lines of a batch; resolves to the set of line numbers that went in."""

    __slots__ = ("rows", "values")

    def __init__(self, batch_id: int, rows: Sequence[EnlistRow], *, run_id: int, now_ms: int) -> None:
        """`rows` by rising line, not empty."""
        super().__init__()
        self.rows = rows
        text = msgspec.json.encode(rows).decode()
        self.values = {
            "batch_id": batch_id, "first": rows[0].line, "run_id": run_id, "now_ms": now_ms, "rows": text,
        }  # fmt: skip


class Reads(Operation):
    """Carries readings of answers and the cells that follow from them."""

    __slots__ = ("rows",)

    def __init__(self, rows: ReadRows | None = None, *, kept: bool = False) -> None:
        super().__init__(kept=kept)
        self.rows = rows or ReadRows()


class Settle(Reads):
    """Store a paid completion, its readings and what follows from them, in one transaction."""

    __slots__ = ("completion", "key", "leaves_unread")

    def __init__(
        self, key: bytes, completion: CompletionRow, rows: ReadRows | None = None, *, leaves_unread: bool
    ) -> None:
        """`key` names the request wherever the store is copied to; `leaves_unread` cells are read later."""
        super().__init__(rows, kept=True)
        self.key = key
        self.completion = completion
        self.leaves_unread = leaves_unread


class ReadCell(Reads):
    """Store the reading of an answer that is already in the store, with what follows from it."""

    __slots__ = ()


class Fail(Operation):
    """Record a failed attempt and what becomes of its request."""

    __slots__ = ("attempt", "key", "request")

    def __init__(self, key: bytes, attempt: Scalars, request: Scalars) -> None:
        super().__init__(kept=True)
        self.key = key
        self.attempt = attempt
        self.request = request


class SettleMany(Operation):
    """Do what many `Settle` and `Fail` do, all in one commit or not at all; for answers that are in a file besides.

    Refused when one of the requests has an answer already.
    """

    __slots__ = ("completions", "failed_attempts", "failed_requests", "rows")

    def __init__(
        self,
        completions: Sequence[CompletionRow],
        rows: ReadRows,
        fails: Sequence[tuple[Scalars, Scalars]],
    ) -> None:
        """`fails` are rows of attempts and of their requests."""
        super().__init__()
        self.completions, self.rows = completions, rows
        self.failed_attempts = [attempt for attempt, _ in fails]
        self.failed_requests = [request for _, request in fails]


class Statement(Operation):
    """Run one named statement in the writer's turn; resolves to its rows."""

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: Values) -> None:
        super().__init__()
        self.name = name
        self.values = values


class Statements(Operation):
    """Run several named statements, one after the other in one commit; resolves to the rows of each."""

    __slots__ = ("parts",)

    def __init__(self, *parts: tuple[str, Values]) -> None:
        super().__init__()
        self.parts = parts


class Lease(Operation):
    """Take planned requests for a while; resolves to a list of Leased."""

    __slots__ = ("values",)

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values
