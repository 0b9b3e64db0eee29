"""Files that are there whole or not at all, however their writing ends."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

#: What ends a program politely; Ctrl-C is an exception already.
ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
PART: Final = ".part"


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a path to write to, which takes the place of `path` at the end; on failure nothing is left of it.

    Ctrl-C and polite signals count as failures. What a process that was killed outright has left is removed by the
    next one to write the same file.
    """
    _remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    with _endings_raised():
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that readers see the old one or the new one, never a part.

    Raises
    ------
    OSError
        It cannot be written; no partial file is left behind.
    """
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove_stale(path: Path) -> None:
    """Remove what processes that are no more have left of this file; what another one is writing now stays."""
    for left in path.parent.glob(f".{_literal(path.name)}.*{PART}"):
        number = left.name.removeprefix(f".{path.name}.").removesuffix(PART)
        if number.isascii() and number.isdigit() and not _alive(int(number)):
            with suppress(OSError):
                left.unlink()


def _literal(name: str) -> str:
    """Return a name as a pattern that matches it alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return process != os.getpid()


@contextmanager
def _endings_raised() -> Iterator[None]:
    """Let signals that would end the process at once end it by an exception, so that it cleans up.

    Only where nobody else handles them, and only in the main thread, which alone may.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # A shell's code for a process that a signal has ended.
    raise SystemExit(128 + number)
