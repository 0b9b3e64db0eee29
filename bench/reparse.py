"""Reads every stored answer again with the readers of today: no network, no model, under the store's lock.

A reading that comes out the same is not touched, so that doing it twice changes nothing. Follow-ups that are planned
already are kept as they are, with their answers, whatever today's reader would ask; what it asks in addition is planned
and waits for `mirage run`. A defect in a reader leaves the old reading in place.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from bench.design import build_design, composer
from bench.generating import build_generation, question_composer
from bench.manifest import build_manifest, check_unchanged, generation_manifest, modes_of, stored_manifest
from bench.run import user_catalog, views
from bench.sweepfile import parse_generation, parse_sweep
from engine.cell import Cell, Read, Reader
from engine.codec import Codec
from engine.database import explained, open_reader
from engine.errors import StoreError, UserError
from engine.request import Completion, Finish, Usage, request_key, well_formed
from engine.rows import cell_ident
from engine.store import Store, Sweep
from instruments.generator import STAGE as PERSONA_STAGE
from instruments.generator import GeneratorReader
from instruments.reader import SweepReader

CHUNK: Final = 200
UNREAD: Final = "unread"
_SWEEPS: Final = "SELECT name FROM sweep ORDER BY id"
_ANSWERED: Final = (
    "SELECT c.id, c.stage, c.coords, c.reading_status, c.reading_reason, c.reading_version, b.body,"
    " d.text, d.thinking, d.finish, d.finish_raw, d.model_echo, d.provider_request_id, d.input_tokens, d.cached_tokens,"
    " d.cache_write_tokens, d.output_tokens, d.reasoning_tokens, d.raw"
    " FROM cell c JOIN completion d ON d.request_id = c.request_id LEFT JOIN reading b ON b.cell_id = c.id"
    " WHERE c.sweep_id = ? AND c.id > ? ORDER BY c.id LIMIT ?"
)
_PLANNED: Final = (
    "SELECT c.ident, r.key, c.parent_id, c.stage FROM cell c JOIN request r ON r.id = c.request_id"
    " WHERE c.parent_id IN ({parents}) OR c.ident IN ({idents})"
)
_USAGE: Final = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")

FindReader = Callable[[Sweep, Path], Reader]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one stage that came out otherwise: `unread`, or a reading's status, before and after.

    Equal words before and after mean that the status is the same and what was read, its reason or its version is not.
    """

    stage: str
    before: str
    after: str
    cells: int


class Reparsed(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a sweep again did.

    Attributes:
        answers: cells with a stored answer.
        changes: readings that came out otherwise, by stage.
        planned: new follow-ups by stage; they wait for `mirage run`.
        kept: follow-ups that were planned before, by stage.
        reworded: of these, how many today's reader would ask in other words.
        unasked: follow-ups planned before that today's reader would not ask at all; they are kept too.
        outside: answers whose persona, task or script is no longer in the sweep's design; left as they are.
        defects: answers that the reader failed on; left as they are.
        defect: the first of these failures, in its own words.
    """

    sweep: str
    simulated: bool
    answers: int
    changes: tuple[Change, ...]
    planned: dict[str, int]
    kept: dict[str, int]
    reworded: int
    unasked: int
    outside: int
    defects: int
    defect: str


async def reparse(path: Path, name: str = "", *, find_reader: FindReader | None = None) -> list[Reparsed]:
    """Read the answers of a sweep, or of all sweeps of a store, again.

    Args:
        path: the store.
        name: the sweep's name; empty for all.
        find_reader: returns the reader of a sweep; `reader_of` by default.

    Raises:
        StoreError: no such store or sweep, or a run is working on it.
        UserError: prompts, personas or settings are not those that a sweep was begun with; nothing is changed then.
    """
    names = await _names(path, name)
    async with await Store.open(path, views()) as store:
        sweeps = [sweep for each in names if (sweep := await store.find_sweep(each)) is not None]
        readers = [(find_reader or reader_of)(sweep, path) for sweep in sweeps]
        connection = await open_reader(path)
        try:
            with explained(path):
                return [
                    await _Pass(store, connection, sweep, reader).run()
                    for sweep, reader in zip(sweeps, readers, strict=True)
                ]
        finally:
            await connection.close()


def reader_of(sweep: Sweep, path: Path) -> Reader:
    """Return the reader of a stored sweep, made from the sweep file that its manifest keeps.

    Raises:
        UserError: the file's personas, prompts or models are no longer what they were, or no longer there.
    """
    where = Path(f"{path}, sweep {sweep.name}")
    before = stored_manifest(sweep, str(where))
    if PERSONA_STAGE in before.stages:
        generated = parse_generation(before.sweep_file, where)
        catalog = user_catalog(generated)
        generation = build_generation(generated, catalog)
        now = generation_manifest(generated, generation, catalog, simulated=sweep.simulated)
        check_unchanged(sweep, now, str(where))
        return GeneratorReader(generation, question_composer(generation, catalog, modes_of(now)))
    loaded = parse_sweep(before.sweep_file, where)
    catalog = user_catalog(loaded)
    design = build_design(loaded, catalog)
    again = build_manifest(loaded, design, catalog, simulated=sweep.simulated)
    check_unchanged(sweep, again, str(where))
    return SweepReader(design, composer(design, catalog, modes_of(again)))


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with its answer and the reading that it has: (status, reason, version, body), or None."""

    id: int
    stage: str
    coords: bytes
    before: tuple[str, str, int, bytes] | None
    completion: Completion


class _Pass:
    """One pass over the answers of a sweep."""

    def __init__(self, store: Store, connection: aiosqlite.Connection, sweep: Sweep, reader: Reader) -> None:
        self._store, self._connection, self._sweep, self._reader = store, connection, sweep, reader
        self._codec = Codec()
        self._changes: Counter[tuple[str, str, str]] = Counter()
        self._planned: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._answers = self._reworded = self._unasked = self._outside = self._defects = 0
        self._defect = ""

    async def run(self) -> Reparsed:
        """Go through all answers, also of cells that are planned on the way and already answered."""
        after = 0
        while answered := await self._next(after):
            await self._read_all(answered)
            after = answered[-1].id
        return Reparsed(
            sweep=self._sweep.name,
            simulated=self._sweep.simulated,
            answers=self._answers,
            changes=tuple(
                Change(stage=stage, before=before, after=now, cells=cells)
                for (stage, before, now), cells in sorted(self._changes.items())
            ),
            planned=dict(self._planned),
            kept=dict(self._kept),
            reworded=self._reworded,
            unasked=self._unasked,
            outside=self._outside,
            defects=self._defects,
            defect=self._defect,
        )

    async def _next(self, after: int) -> list[_Answered]:
        rows = await self._connection.execute_fetchall(_ANSWERED, (self._sweep.id, after, CHUNK))
        return [self._answered(tuple(row)) for row in rows]

    def _answered(self, row: tuple[Any, ...]) -> _Answered:
        cell_id, stage, coords, status, reason, version, body, text, thinking, finish, finish_raw, *rest = row
        echo, provider_id, *counts, raw = rest
        completion = Completion(
            text=self._codec.unpack_text(text),
            thinking=self._codec.unpack_text(thinking),
            finish=Finish(finish),
            finish_raw=finish_raw,
            model_echo=echo,
            provider_request_id=provider_id,
            usage=Usage(**dict(zip(_USAGE, counts, strict=True))),
            raw=self._codec.unpack_bytes(raw),
        )
        before = None if status is None else (status, reason, version, (body or "{}").encode())
        return _Answered(id=cell_id, stage=stage, coords=coords.encode(), before=before, completion=completion)

    async def _read_all(self, answered: Sequence[_Answered]) -> None:
        self._answers += len(answered)
        reads = [(each, read) for each in answered if (read := self._read(each)) is not None]
        planned = await self._planned_before([each.id for each, _ in reads], [read for _, read in reads])
        writes = []
        for each, read in reads:
            new = [cell for cell in read.follow_ups if self._is_new(cell, planned)]
            changed = self._note_change(each, read)
            if new or changed:
                kept = Read(reading=read.reading, follow_ups=tuple(new))
                writes.append(self._store.read(self._sweep.id, each.id, kept))
        await asyncio.gather(*writes)

    def _read(self, each: _Answered) -> Read | None:
        try:
            return self._reader.read(each.stage, each.coords, each.completion)
        except UserError:
            self._outside += 1
        except Exception as error:  # noqa: BLE001 - any defect; the old reading stays
            self._defects += 1
            self._defect = self._defect or f"{each.stage}, cell {each.id}: {type(error).__name__}: {error}"
        return None

    async def _planned_before(self, parents: Sequence[int], reads: Sequence[Read]) -> dict[bytes, bytes]:
        """Return request key by cell identity of follow-ups that are planned, and count what nobody asks any more."""
        wanted = {self._ident(cell) for read in reads for cell in read.follow_ups}
        query = _PLANNED.format(parents=_places(len(parents)), idents=_places(len(wanted)))
        rows = list(await self._connection.execute_fetchall(query, (*parents, *wanted)))
        self._unasked += sum(row[0] not in wanted for row in rows)
        return {row[0]: row[1] for row in rows}

    def _is_new(self, cell: Cell, planned: dict[bytes, bytes]) -> bool:
        key = planned.get(self._ident(cell))
        if key is None:
            self._planned[cell.stage] += 1
            return True
        self._kept[cell.stage] += 1
        self._reworded += key != request_key(cell.request)
        return False

    def _note_change(self, each: _Answered, read: Read) -> bool:
        reading = read.reading
        now = (reading.status.value, well_formed(reading.reason), reading.version, reading.body)
        if each.before == now:
            return False
        self._changes[each.stage, each.before[0] if each.before else UNREAD, now[0]] += 1
        return True

    def _ident(self, cell: Cell) -> bytes:
        return cell_ident(self._sweep.id, cell.stage, cell.coords)


def _places(number: int) -> str:
    return ",".join("?" * number)


async def _names(path: Path, name: str) -> list[str]:
    """Return the sweeps to read again, oldest first."""
    connection = await open_reader(path)
    try:
        with explained(path):
            known = [row[0] for row in await connection.execute_fetchall(_SWEEPS)]
    finally:
        await connection.close()
    if name and name not in known:
        raise StoreError(
            f"the store has no sweep `{name}`", where=str(path), mend=f"it has: {', '.join(known) or 'none'}"
        )
    return [name] if name else known
