"""Batch files on this machine's disk: read and written in pieces by threads, whole or not there at all.

Errors of the disk are the user's to mend, never a broken connection. Must not know: the network, what a line means.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec
import orjson

from engine.batch.ordering import LONGEST_LINE
from engine.batch.provider import read_marker
from engine.errors import ErrorClass, ProviderError, UserError

PIECE: Final = 1 << 20
OVERLAP: Final = 1 << 12
SHORTEST_RESUMED: Final = PIECE
LONGEST_NAME: Final = 100
TRUNCATED: Final = "truncated_download"

_BEGINNING: Final = re.compile(r"[a-z0-9-]+")

T = TypeVar("T")


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a download: bytes, fewest lines. What is not `sure` yields to two downloads that agree.

    A service that describes its files wrongly would otherwise keep us from ever having them.
    """

    size: int | None = None
    lines: int | None = None
    sure: bool = False

    def misses(self, size: int, lines: int) -> bool:
        """Whether a download of this length is not as it should be."""
        return (self.size is not None and size != self.size) or (self.lines is not None and lines < self.lines)


class Writer:
    """Gathers pieces and writes them out by thread, a mebibyte at a time.

    Args:
        again: what the pieces must begin with because it was fetched before; it is not written twice.
    """

    def __init__(self, file: BinaryIO, again: bytes = b"") -> None:
        self.size = 0
        self._file, self._again, self._held = file, again, bytearray()

    async def take(self, piece: bytes) -> bool:
        """Take a piece; more is always wanted. Raises ProviderError, code `TRUNCATED`, when it does not fit."""
        if self._again:
            piece = self._fitted(piece)
        self.size += len(piece)
        self._held += piece
        if len(self._held) >= PIECE:
            await self.flush()
        return True

    async def flush(self) -> None:
        """Write what is held."""
        held, self._held = self._held, bytearray()
        await asyncio.to_thread(_on_disk, lambda: (self._file.write(held), self._file.flush()), self._file.name)

    async def finish(self) -> None:
        """Write the rest and force everything to the disk."""
        await self.flush()
        await asyncio.to_thread(_on_disk, lambda: os.fsync(self._file.fileno()), self._file.name)

    def _fitted(self, piece: bytes) -> bytes:
        expected, self._again = self._again[: len(piece)], self._again[len(piece) :]
        if not piece.startswith(expected):
            raise truncated("what was fetched again is not what came before")
        return piece[len(expected) :]


async def pieces(path: Path, *, before: bytes = b"", after: bytes = b"") -> AsyncIterator[bytes]:
    """Yield a file piece by piece between two short texts; raises UserError when it cannot be read."""
    if before:
        yield before
    with await asyncio.to_thread(_on_disk, lambda: path.open("rb"), str(path)) as file:
        while piece := await asyncio.to_thread(_on_disk, lambda: file.read(PIECE), str(path)):
            yield piece
    if after:
        yield after


def form_of(token: str, path: Path, size: int) -> tuple[AsyncIterator[bytes], int, str]:
    """Return a multipart form with the file, its length and its content type.

    No JSON line begins with a boundary.
    """
    boundary = f"mirage-{token}"
    before = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{token}.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    ).encode()
    after = f"\r\n--{boundary}--\r\n".encode()
    length = len(before) + size + len(after)
    return pieces(path, before=before, after=after), length, f"multipart/form-data; boundary={boundary}"


def file_size(path: Path) -> int:
    """Return the bytes of a file; raises UserError when it cannot be read."""
    return _on_disk(lambda: path.stat().st_size, str(path))


def last_byte(path: Path) -> bytes:
    """Return the last byte of a file, none of an empty one; raises UserError when it cannot be read."""

    def act() -> bytes:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return file.read(1)

    return _on_disk(act, str(path))


def results_file(folder: Path, batch_id: str, reference: str) -> Path:
    """Return where one results file of a batch is kept; ids become harmless file names."""
    return folder / f"{_harmless(batch_id)}.{_harmless(reference)}.jsonl"


def carries_run(name: str, run: str) -> bool:
    """Whether an upload's name begins with a marker of `run`; services may add to a name that is taken."""
    found = _BEGINNING.match(name)
    marker = read_marker(found[0]) if found else None
    return marker is not None and marker.run == run


def open_part(part: Path, *, resume: bool) -> tuple[BinaryIO, bytes]:
    """Return the file of a download and its last bytes, none of a new one; raises UserError.

    Args:
        part: the file; its folder is made.
        resume: go on behind what is there, if that is worth it; what it ends with is to be fetched again and compared.
    """

    def act() -> tuple[BinaryIO, bytes]:
        part.parent.mkdir(parents=True, exist_ok=True)
        if not resume or part.stat().st_size < SHORTEST_RESUMED:
            return part.open("wb"), b""
        file = part.open("r+b")
        file.seek(-OVERLAP, os.SEEK_END)
        return file, file.read()

    return _on_disk(act, part)


def put_in_place(part: Path, target: Path) -> None:
    """Give a whole file its name, durably; raises UserError."""

    def act() -> None:
        part.replace(target)
        if os.name == "nt":
            return  # folders cannot be opened there
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    _on_disk(act, target)


def whole_lines(path: Path) -> int:
    """Return the number of lines; raises ProviderError when the last one is cut short."""
    count, tail = 0, bytearray()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            count += piece.count(b"\n")
            before, end, after = piece.rpartition(b"\n")
            del before
            tail = bytearray(after) if end else tail + after
            if len(tail) > LONGEST_LINE:
                raise truncated("a line has no end")
    if not tail:
        return count
    try:
        orjson.loads(tail)
    except orjson.JSONDecodeError:
        raise truncated("the last line is cut short") from None
    return count + 1


def truncated(how: str) -> ProviderError:
    """Return the error of a download that is not whole."""
    return ProviderError(ErrorClass.TRANSIENT, f"the results did not arrive whole: {how}", code=TRUNCATED)


def _harmless(text: str) -> str:
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in text)
    return safe[:LONGEST_NAME]


def _on_disk(act: Callable[[], T], where: object) -> T:
    try:
        return act()
    except OSError as error:
        raise UserError(
            f"a batch file cannot be used: {error.strerror or error}",
            where=str(where),
            mend="free the disk or the path",
        ) from None
