"""The store: everything that a crash must not lose, behind `plan / lease / renew / send / settle / fail / release`.

One SQLite file holds many sweeps. All writes go through one writer that groups them (see writer.py); every method
here returns when its commit is on disk. One process at a time may write; looking on is always possible.
"""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from engine import rescue
from engine.applying import Applier
from engine.cell import Cell, Read
from engine.codec import Codec
from engine.database import Connection, StoreLock, explained, load_queries, open_writer
from engine.errors import ErrorClass, ProviderError, StoreError, StoreRefused
from engine.lane import Leased, LeasedCell, Ticket
from engine.ledger import Amount, Scope
from engine.request import Completion, Finish, Usage
from engine.rescue import Rescued
from engine.rows import AttemptRow, completion_row, failure_rows
from engine.state import State
from engine.writer import RETRY_SECONDS, Operation, Writer
from engine.writes import Fail, Lease, Plan, Planned, ReadCell, Send, Settle, Statement, Statements, Values

LEASE_MS: Final = 120_000

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

    def __init__(
        self, path: Path, connection: Connection, lock: StoreLock, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self.path = path
        self.rescued = Rescued()
        self._connection = connection
        self._lock = lock
        self._codec = Codec()
        self._closed = False
        applier = Applier(load_queries(), Codec())  # of its own: it works on another thread
        self._writer = Writer(connection, applier.apply, self._explain, retry_seconds=retry_seconds)

    @classmethod
    async def open(cls, path: Path, views: Sequence[str] = (), *, retry_seconds: float = RETRY_SECONDS) -> Self:
        """Open or create the store at `path` for writing, and import what a run before could not write to it.

        `views` are scripts that define its instruments' views; a disk that refuses writes is tried again every
        `retry_seconds`.

        Raises:
            StoreError: in use, damaged, of a newer version, or not writable.
        """
        lock = StoreLock(path)
        lock.acquire()
        try:
            store = cls(path, await open_writer(path, views), lock, retry_seconds=retry_seconds)
        except BaseException:
            lock.release()
            raise
        try:
            store.rescued = await store._import_rescued()
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what is queued, fold the log into the file and close; safe to call twice.

        Raises:
            StoreError: the disk would not take results that have been paid for; says how many and where they are.
        """
        if self._closed:
            return
        self._closed = True
        stranded = [each for each in await self._writer.close() if isinstance(each, Settle | Fail)]
        try:
            if not stranded:
                with contextlib.suppress(sqlite3.Error):
                    await self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await self._connection.close()
            if stranded:
                self._rescue(stranded)
        finally:
            self._lock.release()

    @property
    def refused(self) -> StoreError | None:
        """Why the disk does not take writes at the moment, or None."""
        return self._writer.refused

    async def flush(self) -> None:
        """Wait until everything put so far is on disk.

        Raises:
            StoreError: the disk refuses.
        """
        await self._writer.flush()

    async def fetch(self, name: str, values: Values) -> list[Any]:
        """Run one named statement in the writer's turn and return its rows, once it is committed."""
        return _of(list, await self.put(Statement(name, values)))

    async def fetch_all(self, *parts: tuple[str, Values]) -> list[list[Any]]:
        """Run several named statements in one commit and return the rows of each."""
        return _of(list, await self.put(Statements(*parts)))

    def put(self, operation: Operation) -> "asyncio.Future[object]":
        """Queue an operation; the future resolves when its commit is on disk."""
        return self._writer.put(operation)

    # ----- sweeps and runs

    async def find_sweep(self, name: str) -> Sweep | None:
        """Return the sweep of that name, if the store has it."""
        for row in await self.fetch("find_sweep", {"name": name}):
            return Sweep(
                id=row[0], name=row[1], simulated=bool(row[2]), manifest=row[3], plan_hash=row[4], planned=bool(row[5])
            )
        return None

    async def add_sweep(self, name: str, manifest: str, plan_hash: str, *, simulated: bool, now_ms: int) -> int:
        """Register a new sweep and return its id."""
        values = {"name": name, "manifest": manifest, "plan_hash": plan_hash, "simulated": simulated, "now_ms": now_ms}
        return int((await self.fetch("add_sweep", values))[0][0])

    async def update_sweep(
        self, sweep_id: int, manifest: str, plan_hash: str, *, planned: bool, simulated: bool | None = None
    ) -> None:
        """Replace a sweep's manifest; `planned` False has its roots planned again, `simulated` None leaves its mark."""
        values = {
            "sweep_id": sweep_id, "manifest": manifest, "plan_hash": plan_hash, "planned": planned,
            "simulated": simulated,
        }  # fmt: skip
        await self.fetch("update_sweep", values)

    async def mark_planned(self, sweep_id: int) -> None:
        """Record that every root cell of the sweep is in the store."""
        await self.fetch("mark_planned", {"sweep_id": sweep_id})

    async def begin_run(self, sweep_id: int, manifest: str, now_ms: int) -> int:
        """Register this start of the program and return the run's id."""
        values = {"sweep_id": sweep_id, "manifest": manifest, "pid": os.getpid(), "now_ms": now_ms}
        return int((await self.fetch("begin_run", values))[0][0])

    async def end_run(self, run_id: int, outcome: str, now_ms: int) -> None:
        """Record how the run ended."""
        await self.fetch("end_run", {"run_id": run_id, "outcome": outcome, "now_ms": now_ms})

    async def recover(self, free_providers: Sequence[str], now_ms: int) -> Recovery:
        """Resolve what a killed run left behind, in one transaction; call it before sending anything.

        Leases are forgotten. An attempt that was on the wire is counted as billed at its reservation, unless its
        provider or model charges nothing, and its request is planned again.
        """
        values = {"now_ms": now_ms, "free_providers": _json_list(free_providers)}
        steps = ("forget_leases", "doubt_attempts", "lose_requests", "doubtful", "retry_lost_requests")
        found = await self.fetch_all(*((name, values) for name in (*steps, "assume_billed", "assume_free")))
        doubtful = found[steps.index("doubtful")]
        return Recovery(calls=int(doubtful[0][0]), nano=int(doubtful[0][1]))

    async def adopt(self, sweep_id: int) -> int:
        """Take over requests that this sweep's cells wait for and another sweep left unanswered; return how many."""
        return len(await self.fetch("adopt", {"sweep_id": sweep_id}))

    async def revive(self, sweep_id: int, kind: ErrorClass | None) -> int:
        """Plan failed requests of one class, or all, again; return how many."""
        return len(await self.fetch("revive", {"sweep_id": sweep_id, "error_class": kind.value if kind else ""}))

    async def used(self, sweep: Sweep) -> tuple[dict[Scope, Amount], dict[Scope, Amount]]:
        """Return what every budget scope of a sweep has spent, and what is set aside for batches under way."""
        spent: dict[Scope, Amount] = {}
        reserved: dict[Scope, Amount] = {}
        for provider, alias, stage, *amounts in await self.fetch("spent", {"sweep_id": sweep.id}):
            names = {"sweep": sweep.name, "provider": provider, "model": alias, "stage": stage}
            for scope in (Scope(kind, name) for kind, name in names.items()):
                _add(spent, scope, Amount(*amounts[:2]))
                _add(reserved, scope, Amount(*amounts[2:]))
        return spent, reserved

    async def reroute(self, sweep_id: int, lanes: Mapping[tuple[str, str], str]) -> int:
        """Move planned requests to the lanes that now send their (alias, stage); return how many moved."""
        table = [{"alias": alias, "stage": stage, "lane": lane} for (alias, stage), lane in lanes.items()]
        return len(await self.fetch("reroute", {"sweep_id": sweep_id, "lanes": _json_list(table)}))

    async def sent_lately(self, lane: str, after_ms: int) -> list[tuple[int, int]]:
        """Return when calls of a lane were sent after a moment, over all sweeps: (last moment, calls) by minute."""
        return [tuple(row) for row in await self.fetch("sent_lately", {"lane": lane, "after_ms": after_ms})]

    async def waiting(self, sweep_id: int) -> dict[str, int]:
        """Return by lane how many requests of a sweep are planned and not leased."""
        return dict(await self.fetch("waiting", {"sweep_id": sweep_id}))

    # ----- the life of requests

    async def plan(self, sweep_id: int, cells: Sequence[Cell]) -> Planned:
        """Insert cells and their requests; what is there already stays as it is."""
        return _of(Planned, await self._writer.put(Plan(self._codec, sweep_id, cells)))

    async def lease(
        self,
        *,
        sweep_id: int,
        run_id: int,
        lane: str,
        most: int,
        now_ms: int,
        skip_stages: Sequence[str] = (),
        aliases: Sequence[str] | None = None,
    ) -> list[Leased]:
        """Take up to `most` planned requests of a lane, in order of priority and age; leases that ran out are free."""
        values = {
            "sweep_id": sweep_id, "run_id": run_id, "lane": lane, "most": most, "now_ms": now_ms,
            "lease_ms": now_ms + LEASE_MS, "skip_stages": _json_list(skip_stages),
            "aliases": None if aliases is None else _json_list(aliases),
        }  # fmt: skip
        return _of(list, await self._writer.put(Lease(values)))

    async def renew(self, run_id: int, request_ids: Sequence[int], now_ms: int) -> list[bool]:
        """Prolong leases; False means that one was lost: do not send, but still settle what was sent."""
        values = {"ids": _json_list(request_ids), "run_id": run_id, "lease_ms": now_ms + LEASE_MS}
        kept = {row[0] for row in await self.fetch("renew", values)}
        return [each in kept for each in request_ids]

    async def send(self, ticket: Ticket, run_id: int, now_ms: int) -> bool:
        """Make the next attempt of a leased request durable; False when the lease was lost and nothing may be sent."""
        worst = ticket.worst
        row = AttemptRow(worst.nano, worst.tokens, now_ms, ticket.leased.id, run_id, ticket.attempt)
        return _of(bool, await self._writer.put(Send(row)))

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
        """Store a completion with its cost, its cells' readings and what follows; repeating it changes nothing.

        Leased cells without a reading stay unread and are found by `unread`.
        """
        leased, number = ticket.leased, ticket.attempt
        row = completion_row(
            self._codec, leased.id, number, completion, cost_nano=paid.nano, latency_ms=latency_ms, now_ms=now_ms
        )
        operation = Settle(leased.key, row, leaves_unread=len(reads) < len(leased.cells))
        for cell_id, read in reads:
            operation.rows.add(self._codec, sweep_id, cell_id, read)
        await self._writer.put(operation)

    async def read(self, sweep_id: int, cell_id: int, read: Read) -> None:
        """Store the reading of an answer that the store already holds, with what follows from it."""
        operation = ReadCell()
        operation.rows.add(self._codec, sweep_id, cell_id, read)
        await self._writer.put(operation)

    async def fail(
        self, ticket: Ticket, error: ProviderError, *, state: State, keep: bool, paid: Amount, now_ms: int
    ) -> None:
        """Record a failed attempt; `state` is where the request goes, `keep` holds its lease for another try.

        An attempt that costs something without an answer is `assumed` billed, any other is an `error`.
        """
        attempt, request = failure_rows(
            ticket.leased.id, ticket.attempt, error,
            state=state, keep=keep, tries=ticket.tries, paid=paid, now_ms=now_ms,
        )  # fmt: skip
        await self._writer.put(Fail(ticket.leased.key, attempt, request))

    async def release(self, run_id: int, request_ids: Sequence[int]) -> None:
        """Give leases back."""
        await self.fetch("release", {"ids": _json_list(request_ids), "run_id": run_id})

    async def unread(self, sweep_id: int, after: int, most: int) -> list[UnreadCell]:
        """Return cells, by rising id after `after`, whose answers are stored but not read."""
        rows = await self.fetch("unread", {"sweep_id": sweep_id, "after": after, "most": most})
        return [self._unread_cell(tuple(row)) for row in rows]

    # ----- private

    def _explain(self, error: sqlite3.DatabaseError) -> StoreError | None:
        try:
            with explained(self.path):
                raise error
        except StoreError as explanation:
            return explanation
        except sqlite3.DatabaseError:
            return None

    def _rescue(self, stranded: Sequence[Settle | Fail]) -> None:
        count = f"{len(stranded)} result{'s' if len(stranded) > 1 else ''} that may be paid for"
        refused = self._writer.refused or StoreError("the store takes no more writes", where=str(self.path))
        try:
            file = rescue.write(self.path, stranded, f"{time.time_ns():x}")
        except OSError as error:
            raise StoreRefused(
                f"{refused.what}, and {count} could be written nowhere else ({error.strerror}): they are lost",
                where=refused.where,
                mend=refused.mend,
            ) from error
        raise StoreRefused(
            f"{refused.what}; {count} went to {file} and will be taken over when the store is next opened",
            where=refused.where,
            mend=refused.mend,
        )

    async def _import_rescued(self) -> Rescued:
        imported = left = 0
        files = []
        for file in rescue.find(self.path):
            before = left
            for line in rescue.read(file):
                taken = line is not None and await self._import(line)
                imported, left = imported + taken, left + (not taken)
            if left == before:
                file.unlink()
            else:
                files.append(str(file.rename(file.with_suffix(".left"))))
        return Rescued(imported=imported, left=left, files=tuple(files))

    async def _import(self, line: rescue.Line) -> bool:
        try:
            rows = await self.fetch("request_of_key", {"key": bytes.fromhex(line.key)})
            for row in rows:
                operation = rescue.operation(line, row[0])
                operation.kept = False  # still on its disk: a store that refuses it is not opened
                await self._writer.put(operation)
        except (ValueError, sqlite3.DatabaseError):
            return False
        return bool(rows)

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


def _of(kind: type[Result], value: object) -> Result:
    """Return an operation's result, checked to be of its kind."""
    if not isinstance(value, kind):
        raise TypeError(f"an operation resolved to {type(value).__name__} instead of {kind.__name__}")
    return value


def _add(totals: dict[Scope, Amount], scope: Scope, amount: Amount) -> None:
    before = totals.get(scope, Amount(0, 0))
    totals[scope] = Amount(before.nano + amount.nano, before.tokens + amount.tokens)


def _json_list(values: Sequence[object]) -> str:
    return msgspec.json.encode(list(values)).decode()
