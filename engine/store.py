"""The store: everything that a crash must not lose, behind `plan / lease / renew / send / settle / fail / release`.

One SQLite file holds many sweeps. All writes go through one writer that groups them (see writer.py); every method
here returns when its commit is on disk. One process at a time may write; looking on is always possible.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import aiosqlite
import msgspec

from engine.applying import Applier
from engine.cell import Cell, Read
from engine.codec import Codec
from engine.database import StoreLock, explained, load_queries, open_writer
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.lane import Leased, LeasedCell, Ticket
from engine.ledger import Amount, Scope
from engine.request import Completion, Finish, Usage
from engine.state import State
from engine.writer import Operation, Writer
from engine.writes import Fail, Lease, Plan, Planned, ReadCell, Release, Renew, Send, Settle, Statement, completion_row

LEASE_MS = 120_000
ERROR_CHARACTERS = 500

Result = TypeVar("Result")


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as the store knows it.

    Attributes:
        planned: every root cell of `plan_hash` has been planned.
    """

    id: int
    name: str
    simulated: bool
    manifest: str
    plan_hash: str
    planned: bool


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run left on the wire when it was killed: calls, and the most they may have cost."""

    calls: int
    nano: int


class UnreadCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell whose answer is in the store but has not been read."""

    cell: LeasedCell
    completion: Completion


class Store:
    """One open store with its writer. Use `async with await Store.open(path)`."""

    def __init__(self, path: Path, connection: aiosqlite.Connection, lock: StoreLock) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._codec = Codec()
        self._sql = load_queries()
        self._writer = Writer(connection, Applier(self._sql, self._codec).apply, self._explain)

    @classmethod
    async def open(cls, path: Path, views: Sequence[str] = ()) -> Self:
        """Open or create the store at `path` for writing; `views` are scripts that define its instruments' views.

        Raises:
            StoreError: in use, damaged, of a newer version, or not writable.
        """
        lock = StoreLock(path)
        lock.acquire()
        try:
            return cls(path, await open_writer(path, views), lock)
        except BaseException:
            lock.release()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued, fold the log into the file and close.

        Raises:
            StoreError: the disk would not take results that have been paid for; the message says how many.
        """
        stranded = await self._writer.close()
        refused = self._writer.refused
        if not stranded:
            await self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await self._connection.close()
        self._lock.release()
        if stranded and refused is not None:
            raise StoreError(
                f"{refused.what}, and {len(stranded)} results could not be written",
                where=refused.where,
                mend=refused.mend,
            )

    @property
    def refused(self) -> StoreError | None:
        """Why the disk does not take writes at the moment, or None."""
        return self._writer.refused

    async def flush(self) -> None:
        """Wait until everything put so far is on disk."""
        await self._writer.flush()

    # ----- sweeps and runs

    async def find_sweep(self, name: str) -> Sweep | None:
        """Return the sweep of that name, if the store has it."""
        for row in await self._fetch("find_sweep", {"name": name}):
            return Sweep(
                id=row[0], name=row[1], simulated=bool(row[2]), manifest=row[3], plan_hash=row[4], planned=bool(row[5])
            )
        return None

    async def add_sweep(self, name: str, manifest: str, plan_hash: str, *, simulated: bool, now_ms: int) -> int:
        """Register a new sweep and return its id."""
        rows = await self._fetch(
            "add_sweep",
            {"name": name, "manifest": manifest, "plan_hash": plan_hash, "simulated": int(simulated), "now_ms": now_ms},
        )
        return int(rows[0][0])

    async def update_sweep(self, sweep_id: int, manifest: str, plan_hash: str, *, planned: bool) -> None:
        """Replace a sweep's manifest; `planned` False has its roots planned again."""
        values = {"sweep_id": sweep_id, "manifest": manifest, "plan_hash": plan_hash, "planned": int(planned)}
        await self._fetch("update_sweep", values)

    async def mark_planned(self, sweep_id: int) -> None:
        """Record that every root cell of the sweep is in the store."""
        await self._fetch("mark_planned", {"sweep_id": sweep_id})

    async def begin_run(self, sweep_id: int, manifest: str, now_ms: int) -> int:
        """Register this start of the program and return the run's id."""
        values = {"sweep_id": sweep_id, "manifest": manifest, "pid": os.getpid(), "now_ms": now_ms}
        return int((await self._fetch("begin_run", values))[0][0])

    async def end_run(self, run_id: int, outcome: str, now_ms: int) -> None:
        """Record how the run ended."""
        await self._fetch("end_run", {"run_id": run_id, "outcome": outcome, "now_ms": now_ms})

    async def recover(self, free_providers: Sequence[str], now_ms: int) -> Recovery:
        """Resolve what a killed run left behind; call it before sending anything.

        Leases are forgotten. An attempt that was on the wire is counted as billed at its reservation, unless its
        provider charges nothing, and its request is planned again.
        """
        await self._fetch("forget_leases", {})
        await self._fetch("doubt_attempts", {})
        found = await self._fetch("doubtful", {})
        recovery = Recovery(calls=int(found[0][0]), nano=int(found[0][1]))
        values = {"now_ms": now_ms, "free_providers": msgspec.json.encode(list(free_providers)).decode()}
        await self._fetch("lose_requests", {})
        await self._fetch("assume_billed", values)
        await self._fetch("assume_free", values)
        await self._fetch("retry_lost_requests", {})
        return recovery

    async def revive(self, sweep_id: int, kind: ErrorClass | None) -> int:
        """Plan failed requests of one class, or all, again; return how many."""
        return len(await self._fetch("revive", {"sweep_id": sweep_id, "error_class": kind.value if kind else ""}))

    async def spent(self, sweep: Sweep) -> dict[Scope, Amount]:
        """Return what every budget scope of a sweep has used, open reservations included."""
        totals: dict[Scope, Amount] = {}
        for provider, alias, stage, nano, tokens in await self._fetch("spent", {"sweep_id": sweep.id}):
            names = {"sweep": sweep.name, "provider": provider, "model": alias, "stage": stage}
            for scope in (Scope(kind, name) for kind, name in names.items()):
                before = totals.get(scope, Amount(0, 0))
                totals[scope] = Amount(before.nano + nano, before.tokens + tokens)
        return totals

    # ----- the life of requests

    async def plan(self, sweep_id: int, cells: Sequence[Cell]) -> Planned:
        """Insert cells and their requests; what is there already stays as it is."""
        return await self._put(Plan(self._codec, sweep_id, cells), Planned)

    async def lease(
        self, *, sweep_id: int, run_id: int, lane: str, most: int, now_ms: int, skip_stages: Sequence[str] = ()
    ) -> list[Leased]:
        """Take up to `most` planned requests of a lane, in order of priority and age."""
        operation = Lease(
            sweep_id=sweep_id, run_id=run_id, lane=lane, most=most, lease_ms=now_ms + LEASE_MS, skip_stages=skip_stages
        )
        return await self._put(operation, list)

    async def renew(self, run_id: int, request_ids: Sequence[int], now_ms: int) -> list[bool]:
        """Prolong leases; False means that one was lost: do not send, but still settle what was sent."""
        rows = [{"request_id": each, "run_id": run_id, "lease_ms": now_ms + LEASE_MS} for each in request_ids]
        return [await future for future in [self._put(Renew(row), bool) for row in rows]]

    async def send(self, ticket: Ticket, run_id: int, now_ms: int) -> bool:
        """Make the next attempt of a leased request durable; False when the lease was lost and nothing may be sent."""
        row = {
            "request_id": ticket.leased.id, "number": ticket.attempt, "run_id": run_id,
            "reserved_nano": ticket.worst.nano, "reserved_tokens": ticket.worst.tokens, "sent_ms": now_ms,
        }  # fmt: skip
        return await self._put(Send(row), bool)

    async def settle(
        self,
        ticket: Ticket,
        completion: Completion,
        reads: Sequence[tuple[int, Read]],
        *,
        sweep_id: int,
        paid: Amount,
        latency_ms: int,
        now_ms: int,
    ) -> None:
        """Store a completion with its cost, its cells' readings and what follows; repeating it changes nothing."""
        row = completion_row(self._codec, ticket.leased.id, ticket.attempt, completion)
        row |= {"cost_nano": paid.nano, "tokens": paid.tokens, "latency_ms": latency_ms, "settled_ms": now_ms}
        operation = Settle(ticket.leased.id, row, row)
        for cell_id, read in reads:
            operation.add_reading(self._codec, sweep_id, cell_id, read.reading, read.follow_ups)
        await self._writer.put(operation)

    async def read(self, sweep_id: int, cell_id: int, read: Read) -> None:
        """Store the reading of an answer that the store already holds, with what follows from it."""
        await self._writer.put(ReadCell(self._codec, sweep_id, cell_id, read.reading, read.follow_ups))

    async def fail(
        self, ticket: Ticket, error: ProviderError, *, state: State, keep: bool, paid: Amount, now_ms: int
    ) -> None:
        """Record a failed attempt; `state` is where the request goes, `keep` holds its lease for another try."""
        text = error.message[:ERROR_CHARACTERS]
        shared = {"request_id": ticket.leased.id, "error_class": error.kind.value, "error": text}
        attempt = shared | {
            "number": ticket.attempt, "outcome": "assumed" if error.maybe_billed else "error", "status": error.status,
            "cost_nano": paid.nano, "tokens": paid.tokens, "settled_ms": now_ms,
        }  # fmt: skip
        request = shared | {
            "state": state.value, "keep": keep, "failures": ticket.tries.failures, "throttles": ticket.tries.throttles,
        }  # fmt: skip
        await self._writer.put(Fail(attempt, request))

    async def release(self, run_id: int, request_ids: Sequence[int]) -> None:
        """Give leases back."""
        futures = [self._writer.put(Release({"request_id": each, "run_id": run_id})) for each in request_ids]
        for future in futures:
            await future

    async def unread(self, sweep_id: int, after: int, most: int) -> list[UnreadCell]:
        """Return cells, by rising id after `after`, whose answers are stored but not read."""
        rows = await self._fetch("unread", {"sweep_id": sweep_id, "after": after, "most": most})
        return [self._unread_cell(tuple(row)) for row in rows]

    # ----- private

    async def _put(self, operation: Operation, kind: type[Result]) -> Result:
        result = await self._writer.put(operation)
        if not isinstance(result, kind):
            raise TypeError(f"{type(operation).__name__} resolved to {type(result).__name__}")
        return result

    async def _fetch(self, name: str, values: Mapping[str, object]) -> list[Any]:
        return await self._put(Statement(name, values), list)

    def _explain(self, error: sqlite3.DatabaseError) -> StoreError | None:
        try:
            with explained(self.path):
                raise error
        except StoreError as explanation:
            return explanation
        except sqlite3.DatabaseError:
            return None

    def _unread_cell(self, row: tuple[Any, ...]) -> UnreadCell:
        cell_id, stage, coords, text, thinking, finish, finish_raw, echo, provider_id, *counts, raw = row
        usage = Usage(**dict(zip(_USAGE_COLUMNS, counts, strict=True)))
        completion = Completion(
            text=self._codec.unpack_text(text), thinking=self._codec.unpack_text(thinking), finish=Finish(finish),
            finish_raw=finish_raw, model_echo=echo, provider_request_id=provider_id, usage=usage,
            raw=self._codec.unpack_bytes(raw),
        )  # fmt: skip
        return UnreadCell(cell=LeasedCell(id=cell_id, stage=stage, coords=coords.encode()), completion=completion)


_USAGE_COLUMNS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
