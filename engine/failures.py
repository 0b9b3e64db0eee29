"""Looks through a store for what went wrong, by cause: requests that failed, attempts tried again, unreadable answers.

Read-only. Which words mean the same cause is decided here; what to do about it is decided nowhere near.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiosqlite
import msgspec

from engine.database import explained, has_batches, open_reader
from engine.errors import StoreError

# What differs from one error of a cause to the next: numbers, and what a reply began with.
_NUMBER: Final = re.compile(r"\d+")
_QUOTE: Final = "; it begins "
# Rows of `_Row`. A request can fail without any attempt: the last attempt tells its status only if it tells its error.
_FAILED: Final = (
    "SELECT r.error_class, iif(a.error = r.error, a.status, NULL) AS code, r.error, r.provider, r.alias, r.stage, 0,"
    " count(*), 0, 0, lower(hex(min(r.key))) FROM request r"
    " LEFT JOIN attempt a ON a.request_id = r.id AND a.number = r.attempts"
    " WHERE r.state = 'failed' AND r.sweep_id IN (SELECT value FROM json_each(?))"
    " GROUP BY r.error_class, code, r.error, r.provider, r.alias, r.stage"
)
_RETRIED: Final = (
    "SELECT a.error_class, a.status, a.error, a.provider, a.alias, a.stage, {given_back} AS back, count(*),"
    " sum(r.state = 'settled'), sum(r.state = 'failed'), lower(hex(min(r.key)))"
    " FROM attempt a JOIN request r ON r.id = a.request_id WHERE a.error_class IS NOT NULL"
    " AND NOT (r.state = 'failed' AND a.number = r.attempts) AND a.sweep_id IN (SELECT value FROM json_each(?))"
    " GROUP BY a.error_class, a.status, a.error, a.provider, a.alias, a.stage, back"
)
_GIVEN_BACK: Final = (
    "EXISTS (SELECT 1 FROM batch b WHERE b.id = a.batch_id AND b.stage = 'dropped' AND b.reason = a.error)"
)
_UNREADABLE: Final = (
    "SELECT '', NULL, c.reading_reason, '', c.alias, c.stage, 0, count(*), 0, 0, lower(hex(min(r.key)))"
    " FROM cell c JOIN request r ON r.id = c.request_id"
    " WHERE c.reading_status = 'unreadable' AND c.sweep_id IN (SELECT value FROM json_each(?))"
    " GROUP BY c.reading_reason, c.alias, c.stage"
)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happened to one model in one stage."""

    alias: str
    stage: str
    number: int


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that failed for good of one cause; `example` is the key of one of them."""

    error_class: str
    status: int | None
    error: str
    requests: int
    places: tuple[Place, ...]
    example: str


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that went wrong of one cause and were not the last word on their requests.

    Attributes:
        answered, failed: how many of them are of requests that have been answered since, or have failed for good; the
            others are still to be tried again.
        example: key of one of these requests.
    """

    error_class: str
    status: int | None
    error: str
    attempts: int
    answered: int
    failed: int
    places: tuple[Place, ...]
    example: str


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Answers, counted as cells, that could not be read for one reason."""

    reason: str
    cells: int
    places: tuple[Place, ...]
    example: str


class Troubles(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong in one sweep or in all of a store, by cause; the most frequent first."""

    simulated: bool
    sweeps: tuple[str, ...]
    requests: int
    failed_requests: int
    retried_attempts: int
    unreadable_cells: int
    failed: tuple[Failed, ...]
    retried: tuple[Retried, ...]
    unreadable: tuple[Unreadable, ...]


async def read_errors(path: Path, sweep: str = "") -> Troubles:
    """Return what went wrong in a sweep, or in all of a store.

    Raises:
        StoreError: no such store or sweep.
    """
    connection = await open_reader(path)
    try:
        with explained(path):
            await connection.execute("BEGIN")
            sweeps = await _rows(connection, "SELECT id, name, simulated FROM sweep ORDER BY id")
            chosen = [row for row in sweeps if sweep in ("", row[1])]
            if not chosen and sweep:
                known = ", ".join(row[1] for row in sweeps) or "none"
                raise StoreError(f"the store has no sweep `{sweep}`", where=str(path), mend=f"it has: {known}")
            return await _troubles(connection, chosen)
    finally:
        await connection.close()


async def _troubles(connection: aiosqlite.Connection, sweeps: Sequence[Any]) -> Troubles:
    ids = msgspec.json.encode([row[0] for row in sweeps]).decode()
    retried = _RETRIED.format(given_back=_GIVEN_BACK if await has_batches(connection) else "0")
    failed = tuple([_failed(each) for each in _groups(await _rows(connection, _FAILED, ids))])
    again = tuple([_retried(each) for each in _groups(await _rows(connection, retried, ids))])
    unreadable = tuple([_unreadable(each) for each in _groups(await _rows(connection, _UNREADABLE, ids))])
    total = await _rows(
        connection, "SELECT count(*) FROM request WHERE sweep_id IN (SELECT value FROM json_each(?))", ids
    )
    return Troubles(
        simulated=any(row[2] for row in sweeps),
        sweeps=tuple([row[1] for row in sweeps]),
        requests=total[0][0],
        failed_requests=sum(each.requests for each in failed),
        retried_attempts=sum(each.attempts for each in again),
        unreadable_cells=sum(each.cells for each in unreadable),
        failed=failed,
        retried=again,
        unreadable=unreadable,
    )


class _Row(NamedTuple):
    """Errors alike to the letter, as the store counts them; `given_back` where their batch did not run at all."""

    kind: str
    status: int | None
    error: str
    provider: str
    alias: str
    stage: str
    given_back: int
    number: int
    answered: int
    failed: int
    example: str

    def words(self) -> str:
        """Return the error without its provider's name, which the model beside it says, and with what it is about."""
        said = self.error.removeprefix(f"{self.provider}: ")
        return f"its batch was not run: {said}" if self.given_back else said

    def cause(self) -> tuple[str, int | None, str]:
        """Return what errors of one cause have in common."""
        return self.kind, self.status or None, _NUMBER.sub("#", self.words().partition(_QUOTE)[0])


class _Group(NamedTuple):
    """Errors of one cause, the most frequent first."""

    rows: list[_Row]

    @property
    def first(self) -> _Row:
        return self.rows[0]

    def sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows)

    def places(self) -> tuple[Place, ...]:
        counts: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            counts[row.alias, row.stage] += row.number
        return tuple([Place(alias=alias, stage=stage, number=n) for (alias, stage), n in counts.most_common()])


def _groups(rows: Iterable[Any]) -> list[_Group]:
    found: dict[tuple[str, int | None, str], _Group] = {}
    for row in sorted((_Row(*each) for each in rows), key=lambda each: -each.number):
        found.setdefault(row.cause(), _Group([])).rows.append(row)
    return sorted(found.values(), key=lambda group: -group.sum("number"))


def _failed(group: _Group) -> Failed:
    return Failed(
        error_class=group.first.kind,
        status=group.first.status,
        error=group.first.words(),
        requests=group.sum("number"),
        places=group.places(),
        example=group.first.example,
    )


def _retried(group: _Group) -> Retried:
    return Retried(
        error_class=group.first.kind,
        status=group.first.status,
        error=group.first.words(),
        attempts=group.sum("number"),
        answered=group.sum("answered"),
        failed=group.sum("failed"),
        places=group.places(),
        example=group.first.example,
    )


def _unreadable(group: _Group) -> Unreadable:
    return Unreadable(
        reason=group.first.error, cells=group.sum("number"), places=group.places(), example=group.first.example
    )


async def _rows(connection: aiosqlite.Connection, sql: str, *values: object) -> list[Any]:
    return list(await connection.execute_fetchall(sql, values))
