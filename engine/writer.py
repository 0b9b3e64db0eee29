"""The single writer: whatever was put while the last commit ran becomes the next one.

A put resolves when its commit is on disk. What a call waits for before it may leave goes first, and groups are small
enough that it never waits long; the rest follows in its order. Operations of one group are applied kind by kind in a
fixed order, so that many calls share a few statements and one sync, in one turn of the connection's thread. When the
disk refuses, what is already paid (settlements and failures) is kept in memory and tried again, while everything that
only announces future work is refused at once. An operation that the database rejects for its own sake is found by
halving its group, so that it takes no other with it.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from engine.database import Connection
from engine.errors import StoreError

RETRY_SECONDS: Final = 1.0
# Of urgent operations, and at least half as many of the others. Of what waits, no more than half is taken at once where
# that is enough for a group: replies that came together would else make calls that leave together, for ever.
LARGEST_GROUP: Final = 128
SMALLEST_GROUP: Final = 32


class Operation:
    """One thing to write; subclasses carry the rows. `kept` operations survive a refusing disk in memory.

    Attributes:
        urgent: a call waits for it before it may leave; it goes before operations that were put earlier.
    """

    __slots__ = ("done", "kept")
    urgent: ClassVar[bool] = False

    def __init__(self, *, kept: bool = False) -> None:
        self.done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.kept = kept

    def resolve(self, result: object = None) -> None:
        """Tell the waiter that the commit is on disk."""
        if not self.done.done():
            self.done.set_result(result)

    def refuse(self, error: BaseException) -> None:
        """Tell the waiter that nothing was written."""
        if not self.done.done():
            self.done.set_exception(error)


class Barrier(Operation):
    """Writes nothing; resolves once everything put before it is on disk."""

    __slots__ = ()


class Probe(Operation):
    """Writes a page that changes nothing, to learn whether a refusing disk takes writes again."""

    __slots__ = ()


Apply = Callable[[sqlite3.Connection, Sequence[Operation]], list[object]]
Explain = Callable[[sqlite3.DatabaseError], StoreError | None]


class Writer:
    """Groups operations into transactions on one connection."""

    def __init__(
        self, connection: Connection, apply: Apply, explain: Explain, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """`explain` names the errors that the disk, not the operation, is to blame for."""
        self._connection = connection
        self._apply = apply
        self._explain = explain
        self._retry_seconds = retry_seconds
        self._waiting: deque[Operation] = deque()
        self._urgent: deque[Operation] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="store-writer")
        self.refused: StoreError | None = None

    def put(self, operation: Operation) -> asyncio.Future[object]:
        """Queue an operation; the future resolves when its commit is on disk.

        Raises:
            StoreError: the store is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        (self._urgent if operation.urgent else self._waiting).append(operation)
        self._wake.set()
        return operation.done

    async def flush(self) -> None:
        """Wait until everything put so far is on disk.

        Raises:
            StoreError: the disk refuses.
        """
        if urgent := [operation.done for operation in self._urgent]:
            await asyncio.wait(urgent)
        await self.put(Barrier())

    async def close(self) -> list[Operation]:
        """Write what is queued and stop; return the kept operations that the disk would not take, waited for or not."""
        self._closing = True
        self._wake.set()
        await self._task
        for operation in (*self._urgent, *self._waiting):
            if not operation.kept:
                operation.refuse(self.refused or StoreError("the store is closed"))
        return [operation for operation in self._waiting if operation.kept]

    async def _run(self) -> None:
        while not (self._closing and not self._waiting and not self._urgent):
            if self._waiting or self._urgent:
                await self._write(self._next_group())
            elif self.refused is not None:
                await self._write([Probe()])
            else:
                await self._wake.wait()
            self._wake.clear()
            if self.refused is not None:
                if self._closing:
                    return
                await asyncio.sleep(self._retry_seconds)

    def _next_group(self) -> list[Operation]:
        group = _taken(self._urgent, LARGEST_GROUP)
        return group + _taken(self._waiting, max(LARGEST_GROUP // 2, LARGEST_GROUP - len(group)))

    async def _write(self, group: list[Operation]) -> None:
        try:
            results = await self._connection.run(lambda connection: _transact(connection, self._apply, group))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the waiters must hear of it
            await self._mend(group, error)
        else:
            self.refused = None
            for operation, result in zip(group, results, strict=True):
                operation.resolve(result)

    async def _mend(self, group: list[Operation], error: Exception) -> None:
        """Deal with a group that could not be written: the disk is to blame, or one of its operations."""
        explanation = self._explain(error) if isinstance(error, sqlite3.DatabaseError) else None
        if explanation is not None:
            self._give_back(group, explanation)
        elif len(group) > 1:
            middle = len(group) // 2
            await self._write(group[:middle])
            await self._write(group[middle:])
        else:
            group[0].refuse(error)

    def _give_back(self, group: list[Operation], error: StoreError) -> None:
        """Keep what is paid, in its order; refuse the rest."""
        self.refused = error
        for operation in reversed(group):
            if operation.kept:
                self._waiting.appendleft(operation)
            else:
                operation.refuse(error)


def _taken(line: deque[Operation], most: int) -> list[Operation]:
    number = len(line)
    return [line.popleft() for _ in range(min(most, max(SMALLEST_GROUP, number // 2), number))]


def _transact(connection: sqlite3.Connection, apply: Apply, group: Sequence[Operation]) -> list[object]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = apply(connection, group)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return results
