"""What the store knows of batches, in the words of their life. Every method returns when its commit is on disk."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.batch.lane import Waiting
from engine.batch.provider import RemoteBatch
from engine.batch.records import Batch, Candidate, OpenLine, Share
from engine.batch.stage import Stage, Step, step
from engine.errors import ErrorClass, StoreError
from engine.lane import LeasedCell
from engine.ledger import Amount
from engine.retry import Tries
from engine.rows import EnlistRow
from engine.store import Store
from engine.writes import Enlist

Pair = tuple[str, str]
Place = tuple[int, int]
BEGINNING: Final[Place] = (-(1 << 62), 0)

_LEARNED: Final = ("marker", "count", "bytes", "tokens", "file_id", "remote_id", "reason")
_remote: Final = msgspec.json.Decoder(RemoteBatch)


class BatchStore:
    """The batches of one sweep; `run_id` is who forms new ones, of requests of `aliases` only where these are given."""

    def __init__(self, store: Store, sweep_id: int, run_id: int, aliases: Collection[str] | None = None) -> None:
        self.store, self._sweep_id, self._run_id = store, sweep_id, run_id
        self._aliases = None if aliases is None else _list(aliases)

    async def add(self, lane: str, provider: str, model: str, now_ms: int) -> Batch:
        """Register a batch that is about to be built."""
        values = {"lane": lane, "provider": provider, "model": model, "now_ms": now_ms}
        rows = await self.store.fetch("add_batch", {"sweep_id": self._sweep_id, "run_id": self._run_id, **values})
        return Batch(id=rows[0][0], lane=lane, provider=provider, model=model, stage=Stage.BUILDING)

    async def live(self) -> list[Batch]:
        """Return every batch of the sweep that is not over, oldest first."""
        return [_batch(tuple(row)) for row in await self.store.fetch("live_batches", {"sweep_id": self._sweep_id})]

    async def remote_ids(self, provider: str) -> frozenset[str]:
        """Return the provider's names of every batch that the store knows, of all sweeps, those that are over too."""
        rows = await self.store.fetch("remote_ids", {"provider": provider})
        return frozenset(row[0] for row in rows)

    async def one(self, batch_id: int) -> Batch | None:
        """Return a batch as the store knows it now, None when it is over."""
        return next((batch for batch in await self.live() if batch.id == batch_id), None)

    async def advance(self, batch: Batch, event: Step, now_ms: int, **found: Any) -> Batch:
        """Move a batch along its table, with what was learned on the way.

        Raises:
            StoreError: the batch is not where this program left it.
        """
        rows = await self.store.fetch("advance_batch", _advance(batch, event, now_ms, found))
        return self._advanced(batch, event, now_ms, found, rows)

    def _advanced(self, batch: Batch, event: Step, now_ms: int, found: Mapping[str, Any], rows: Sequence[Any]) -> Batch:
        if not rows:
            raise StoreError(f"batch {batch.id} is no longer {batch.stage}", where=str(self.store.path))
        after = step(batch.stage, event)
        times = {Stage.CREATING: {"created_ms": now_ms}, Stage.ENDED: {"ended_ms": now_ms}}.get(after, {})
        changed = {name: value for name, value in found.items() if name != "reason"}
        return msgspec.structs.replace(batch, stage=after, **changed, **times)

    async def note(self, batch: Batch, remote: RemoteBatch, *, cancelled: bool) -> Batch:
        """Keep the provider's last word on a batch."""
        text = msgspec.json.encode(remote).decode()
        await self.store.fetch("note_batch", {"batch_id": batch.id, "remote": text, "cancelled": cancelled})
        return msgspec.structs.replace(batch, remote=remote, cancelled=batch.cancelled or cancelled)

    async def waiting(self, lane: str, skip: Collection[Pair], most: int) -> Waiting:
        """Return what waits in a lane, counted up to `most`."""
        values = {**self._lane(lane), "skip": _pairs(skip), "most": most}
        return Waiting(*(await self.store.fetch("ready_for_batch", values))[0])

    async def stages_waiting(self, lane: str) -> set[str]:
        """Return the stages of what waits in a lane."""
        rows = await self.store.fetch("stages_ready", self._lane(lane))
        return {row[0] for row in rows}

    async def any_pending(self, stages: Collection[str]) -> bool:
        """Say whether a request of one of these stages is planned or under way."""
        if not stages:
            return False
        values = {"sweep_id": self._sweep_id, "stages": _list(stages)}
        return bool((await self.store.fetch("any_pending", values))[0][0])

    async def candidates(self, lane: str, skip: Collection[Pair], after: Place, most: int) -> list[Candidate]:
        """Return planned requests of a lane behind the (priority, id) `after`, in that order."""
        values = {**self._lane(lane), "skip": _pairs(skip), "most": most}
        rows = await self.store.fetch("batch_candidates", {**values, "priority": after[0], "after": after[1]})
        return [
            Candidate(
                id=row[0], key=row[1], stage=row[2], alias=row[3], attempts=row[4], size=row[5], messages=row[6],
                priority=row[7], body=row[8],
            )
            for row in rows
        ]  # fmt: skip

    async def enlist(self, rows: Sequence[tuple[Candidate, int, Amount]], batch: Batch, now_ms: int) -> frozenset[int]:
        """Make candidates lines of a batch, each with its number and reservation; return the numbers that went in."""
        lines = [EnlistRow(candidate.id, line, *worst) for candidate, line, worst in rows]
        went = await self.store.put(Enlist(batch.id, lines, run_id=self._run_id, now_ms=now_ms))
        assert isinstance(went, frozenset)  # noqa: S101 - what the operation resolves to
        return went

    async def refuse(self, request_id: int, kind: ErrorClass, why: str) -> None:
        """Fail a planned request that no batch can hold."""
        await self.store.fetch("refuse_request", {"request_id": request_id, "error_class": kind.value, "error": why})

    async def open_lines(self, batch: Batch, lines: Sequence[int]) -> dict[int, OpenLine]:
        """Return those of the given lines that have no outcome yet, by number, with the cells that wait for them."""
        chosen = {"batch_id": batch.id, "lines": _list(lines), "sweep_id": self._sweep_id}
        rows = await self.store.fetch("open_lines", chosen)
        return await asyncio.to_thread(_open_lines, rows)

    async def open_numbers(self, batch: Batch, after: int, most: int) -> list[int]:
        """Return the next line numbers behind `after` that have no outcome yet."""
        values = {"batch_id": batch.id, "after": after, "most": most}
        return [row[0] for row in await self.store.fetch("open_line_numbers", values)]

    async def lines_at(self, batch: Batch, places: Collection[int]) -> dict[int, int]:
        """Return the line numbers at these places of the input file, counted from 1, whatever became of them."""
        values = {"batch_id": batch.id, "places": _list(places)}
        return dict([tuple(row) for row in await self.store.fetch("lines_at", values)])

    async def shares(self, batch: Batch) -> list[Share]:
        """Return what the open lines of a batch have set aside, by model and stage."""
        rows = await self.store.fetch("batch_reserved", {"batch_id": batch.id})
        return [Share(alias=row[0], stage=row[1], lines=row[2], reserved=Amount(row[3], row[4])) for row in rows]

    async def drop(self, batch: Batch, why: str, now_ms: int) -> None:
        """End a batch that never ran, and plan its open lines again, at no cost and no blame; all in one commit.

        Raises:
            StoreError: the batch is not where this program left it.
        """
        one = {
            "batch_id": batch.id, "before": batch.stage.value, "now_ms": now_ms,
            "error_class": ErrorClass.TRANSIENT.value, "error": why,
        }  # fmt: skip
        *_, rows = await self.store.fetch_all(
            ("release_batch_requests", one),
            ("release_batch_attempts", one),
            ("advance_batch", _advance(batch, Step.DROP, now_ms, {"reason": why})),
        )
        self._advanced(batch, Step.DROP, now_ms, {}, rows)

    async def move(self, lane: str, request_ids: Sequence[int]) -> None:
        """Send planned requests by another lane."""
        await self.store.fetch("move_to_lane", {"lane": lane, "ids": _list(request_ids)})

    def _lane(self, lane: str) -> dict[str, object]:
        return {"sweep_id": self._sweep_id, "lane": lane, "aliases": self._aliases}


def _advance(batch: Batch, event: Step, now_ms: int, found: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of `advance_batch`."""
    values: dict[str, object] = {name: found.get(name) for name in _LEARNED}
    remote = found.get("remote")
    values["remote"] = None if remote is None else msgspec.json.encode(remote).decode()
    after = step(batch.stage, event).value
    return values | {"batch_id": batch.id, "before": batch.stage.value, "stage": after, "now_ms": now_ms}


def _batch(row: tuple[Any, ...]) -> Batch:
    names = ("id", "lane", "provider", "model", "stage", "marker", "count", "bytes", "tokens", "file_id", "remote_id")
    remote, cancelled, created_ms, ended_ms = row[len(names) :]
    fields: Mapping[str, Any] = dict(zip(names, row, strict=False)) | {"stage": Stage(row[4])}
    return Batch(
        **fields,
        remote=None if remote == "{}" else _remote.decode(remote),
        cancelled=bool(cancelled),
        created_ms=created_ms,
        ended_ms=ended_ms,
    )


def _open_lines(rows: Iterable[tuple[Any, ...]]) -> dict[int, OpenLine]:
    """Return lines from rows that repeat each of them for every cell that waits for it."""
    lines: dict[int, OpenLine] = {}
    for line, request_id, number, key, stage, alias, failures, throttles, nano, tokens, *cell in rows:
        cells = _cells(*cell)
        if (known := lines.get(line)) is not None:
            lines[line] = msgspec.structs.replace(known, cells=known.cells + cells)
            continue
        lines[line] = OpenLine(
            line=line, request_id=request_id, number=number, key=key, stage=stage, alias=alias,
            tries=Tries(failures=failures, throttles=throttles), reserved=Amount(nano, tokens), cells=cells,
        )  # fmt: skip
    return lines


def _cells(cell_id: int | None, stage: str | None, coords: str | None) -> tuple[LeasedCell, ...]:
    if cell_id is None or stage is None or coords is None:
        return ()
    return (LeasedCell(id=cell_id, stage=stage, coords=coords.encode()),)


def _list(values: Collection[object]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _pairs(pairs: Collection[Pair]) -> str:
    return _list([f"{alias}\n{stage}" for alias, stage in pairs])
