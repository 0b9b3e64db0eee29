"""The single writer: whatever was put while the last commit ran becomes the next one.

A put resolves when its commit is on disk. Operations of one group are applied kind by kind in a fixed order, so that
hundreds of calls share a few `executemany` and one sync. When the disk refuses, what is already paid (settlements and
failures) is kept in memory and tried again, while everything that only announces future work is refused at once.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import aiosqlite

from engine.errors import StoreError

RETRY_SECONDS: Final = 1.0
LARGEST_GROUP: Final = 2_000


class Operation:
    """One thing to write; subclasses carry the rows. `kept` operations survive a refusing disk in memory."""

    __slots__ = ("done",)
    kept = False

    def __init__(self) -> None:
        self.done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def resolve(self, result: object = None) -> None:
        """Tell the waiter; set by the applier, delivered after the commit."""
        if not self.done.done():
            self.done.set_result(result)

    def refuse(self, error: BaseException) -> None:
        """Tell the waiter that nothing was written."""
        if not self.done.done():
            self.done.set_exception(error)


Apply = Callable[[aiosqlite.Connection, Sequence[Operation]], Awaitable[list[object]]]
Explain = Callable[[sqlite3.DatabaseError], StoreError | None]


class Writer:
    """Groups operations into transactions on one connection."""

    def __init__(self, connection: aiosqlite.Connection, apply: Apply, explain: Explain) -> None:
        self._connection = connection
        self._apply = apply
        self._explain = explain
        self._waiting: deque[Operation] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._task = asyncio.create_task(self._run(), name="store-writer")
        self.refused: StoreError | None = None

    def put(self, operation: Operation) -> asyncio.Future[object]:
        """Queue an operation; the future resolves when its commit is on disk."""
        if self._closing:
            raise StoreError("the store is closed")
        self._waiting.append(operation)
        self._wake.set()
        return operation.done

    async def flush(self) -> None:
        """Wait until everything put so far is on disk."""
        while self._waiting or not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)

    async def close(self) -> list[Operation]:
        """Write what is queued and stop; return kept operations that the disk would not take."""
        self._closing = True
        self._wake.set()
        await self._task
        return [operation for operation in self._waiting if not operation.done.done()]

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST_GROUP))]
            self._idle.clear()
            await self._write(group)
            self._idle.set()
            if self.refused is not None:
                if self._closing:
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, group: list[Operation]) -> None:
        try:
            results = await self._transact(group)
        except sqlite3.DatabaseError as error:
            self._give_back(group, self._explain(error) or error)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the waiters must hear of it
            for operation in group:
                operation.refuse(error)
        else:
            self.refused = None
            for operation, result in zip(group, results, strict=True):
                operation.resolve(result)

    async def _transact(self, group: list[Operation]) -> list[object]:
        await self._connection.execute("BEGIN IMMEDIATE")
        try:
            results = await self._apply(self._connection, group)
            await self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                await self._connection.execute("ROLLBACK")
            raise
        return results

    def _give_back(self, group: list[Operation], error: Exception) -> None:
        keep = isinstance(error, StoreError)
        for operation in reversed(group):
            if keep and operation.kept:
                self._waiting.appendleft(operation)
            else:
                operation.refuse(error)
        if isinstance(error, StoreError):
            self.refused = error
