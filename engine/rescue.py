"""Keeps results that were paid for while the disk took no more writes.

They lie as JSON lines beside the store, or in the temporary folder, and are imported when the store is next opened. A
line names its request by content hash, so that it also fits a copy of the store. Readings are not kept: they are
made again from the completion. Importing twice changes nothing.
"""

import os
import stat
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from engine.rows import CompletionRow
from engine.writes import Fail, Settle

PRIVATE: Final = 0o600
_OPEN: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)

Value = str | int | bool | None
Fields = dict[str, Value]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One result: an answered attempt with its completion, or a failed one with what became of its request.

    Attributes:
        key: the request's content hash, in hex.
        frames: names of the fields whose bytes are written in base64.
    """

    key: str
    attempt: Fields
    completion: Fields = {}
    request: Fields = {}
    frames: tuple[str, ...] = ()


class Rescued(msgspec.Struct, frozen=True, kw_only=True):
    """What an opened store took over from rescue files; `left` lines could not be used and stay in `files`."""

    imported: int = 0
    left: int = 0
    files: tuple[str, ...] = ()


def folders(store: Path) -> tuple[tuple[Path, str], ...]:
    """Return where rescue files of `store` may lie and how their names begin, in order of preference."""
    place = store.absolute()
    digest = blake2b(str(place).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return (place.parent, f"{store.name}.rescue-"), (Path(tempfile.gettempdir()), f"miragebench-{digest}.rescue-")


def write(store: Path, operations: Sequence[Settle | Fail], mark: str) -> Path:
    """Write `operations` to a new file that only its owner may read, and return its path; `mark` makes the name unique.

    Raises:
        OSError: neither folder takes it.
    """
    text = b"".join(msgspec.json.encode(_line(operation)) + b"\n" for operation in operations)
    problem: OSError | None = None
    for folder, prefix in folders(store):
        path = folder / f"{prefix}{mark}.jsonl"
        try:
            _write_private(path, text)
        except OSError as error:
            problem = error
        else:
            return path
    raise problem or OSError("no folder to write to")


def find(store: Path) -> list[Path]:
    """Return the rescue files of `store` that this user wrote; what others may have planted is not trusted."""
    found = (path for folder, prefix in folders(store) for path in sorted(folder.glob(f"{_literal(prefix)}*.jsonl")))
    return [path for path in found if _is_ours(path)]


def read(path: Path) -> Iterator[Line | None]:
    """Yield the lines of a rescue file; None for one that cannot be read, e.g. the torn last one."""
    decoder = msgspec.json.Decoder(Line)
    with path.open("rb") as file:
        for text in file:
            try:
                yield decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield None


def operation(line: Line, request_id: int) -> Settle | Fail:
    """Return the operation that a line was made of, for the request that bears its key in the store at hand.

    Raises:
        ValueError: a field is missing or of another kind.
    """
    key = bytes.fromhex(line.key)
    attempt: Fields = {**line.attempt, "request_id": request_id}
    if not line.completion:
        return Fail(key, attempt, {**line.request, "request_id": request_id, "keep": False})
    completion: dict[str, object] = {**line.completion, "request_id": request_id}
    for name in line.frames:
        completion[name] = b64decode(str(completion[name]), validate=True)
    try:
        answer = CompletionRow._make(completion[name] for name in CompletionRow._fields)
    except KeyError as error:
        raise ValueError(f"a rescued result lacks {error}") from error
    return Settle(key, answer, leaves_unread=True)


def _line(operation: Settle | Fail) -> Line:
    key = operation.key.hex()
    if isinstance(operation, Fail):
        return Line(key=key, attempt=dict(operation.attempt), request=dict(operation.request))
    completion = operation.completion._asdict()
    frames = tuple(name for name, value in completion.items() if isinstance(value, bytes))
    completion |= {name: b64encode(completion[name]).decode() for name in frames}
    return Line(key=key, attempt=operation.completion.paid._asdict(), completion=completion, frames=frames)


def _write_private(path: Path, text: bytes) -> None:
    descriptor = os.open(path, _OPEN, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _literal(prefix: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in prefix)
