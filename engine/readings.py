"""Reads answers: the ones that arrive, and the stored ones that cells joined late."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.cell import Cell, Read, Reader, Reading, ReadingStatus
from engine.errors import StoreError
from engine.lane import LeasedCell
from engine.progress import Progress
from engine.request import Completion
from engine.store import Store, UnreadCell
from engine.telling import Telling

UNREAD_CHUNK: Final = 500

Expect = Callable[[Sequence[Cell]], None]


class Readings:
    """Turns completions into readings; a defect in a reader becomes an unreadable reading, never a lost answer."""

    def __init__(
        self, *, store: Store, sweep_id: int, reader: Reader, progress: Progress, tell: Telling,
        expect: Expect,
    ) -> None:  # fmt: skip
        """`expect` hears of the cells that follow once they are in the store."""
        self._store, self._sweep_id, self._reader = store, sweep_id, reader
        self._progress, self._tell, self._expect = progress, tell, expect
        self._busy = asyncio.Lock()

    def read(self, cell: LeasedCell, completion: Completion) -> Read:
        """Return the reading of an answer for one cell."""
        try:
            return self._reader.read(cell.stage, cell.coords, completion)
        except Exception as error:  # noqa: BLE001 - any defect
            return self.defective(cell, error)

    def defective(self, cell: LeasedCell, error: Exception) -> Read:
        """Return what stands in for a reading that could not be made or stored."""
        text = f"defect in the reader of {cell.stage}: {type(error).__name__}: {error}"
        self._tell.defect(text, cell=cell.id)
        return Read(reading=Reading(status=ReadingStatus.UNREADABLE, version=0, reason=text))

    def count(self, cell: LeasedCell, read: Read) -> None:
        """Note a stored reading."""
        self._progress.read(cell.stage, read.reading)
        if read.follow_ups:
            self._expect(read.follow_ups)

    async def catch_up(self, going_on: Callable[[], bool]) -> int:
        """Read every stored answer that cells joined late, while `going_on`; return how many there were.

        A disk that refuses leaves the rest for the next time.
        """
        async with self._busy:
            after = found = 0
            while going_on():
                try:
                    unread = await self._store.unread(self._sweep_id, after, UNREAD_CHUNK)
                    await asyncio.gather(*map(self._catch_up, unread))
                except StoreError:
                    if self._store.refused is None:
                        raise
                    break
                if not unread:
                    break
                after, found = unread[-1].cell.id, found + len(unread)
            return found

    async def _catch_up(self, each: UnreadCell) -> None:
        read = self.read(each.cell, each.completion)
        try:
            await self._store.read(self._sweep_id, each.cell.id, read)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the database or the codec would not take this reading
            read = self.defective(each.cell, error)
            await self._store.read(self._sweep_id, each.cell.id, read)
        self.count(each.cell, read)
