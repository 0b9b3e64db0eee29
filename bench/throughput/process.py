"""Measures things in processes of their own: an order goes in as JSON, a result comes out as the last line printed.

A child shares no memory, no warmed-up code and no garbage with the one before it, so that its processor time and its
resident memory are its own.
"""

import os
import platform
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from bench.loop import run_loop
from engine.errors import UserError

_ROOT: Final = Path(__file__).resolve().parents[2]
_KIB: Final = 1024

Order = TypeVar("Order")
Result = TypeVar("Result")


class Window:
    """Processor and wall time between two counts, so that neither the start nor the end of a run is measured."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last, self._count = first, last, 0
        self._marks: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Count one."""
        self._count += 1
        if self._count in (self._first, self._last):
            self._marks.append((time.process_time(), time.perf_counter()))

    @property
    def count(self) -> int:
        """How many were counted."""
        return self._count

    def cpu_s_per_1000(self) -> float:
        """Return processor seconds, all threads, per 1,000 counts."""
        return 1000 * (self._marks[1][0] - self._marks[0][0]) / (self._last - self._first)

    def per_s(self) -> float:
        """Return counts per second of wall time."""
        return (self._last - self._first) / (self._marks[1][1] - self._marks[0][1])


def environment() -> dict[str, str]:
    """Return an environment in which a child finds the packages from any folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))}


def in_child(module: str, order: msgspec.Struct, kind: type[Result], *, most_seconds: float = 3600.0) -> Result:
    """Run `python -m module` with `order` and return what it found.

    Raises:
        UserError: the child failed; ends with what it said last.
    """
    command = [sys.executable, "-m", module, msgspec.json.encode(order).decode()]
    done = subprocess.run(  # noqa: S603 - our own module, no shell
        command, capture_output=True, check=False, env=environment(), timeout=most_seconds
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"the measurement failed: {said or done.returncode}", where=module)
    return msgspec.json.decode(done.stdout.strip().rpartition(b"\n")[2], type=kind)


def answer(kind: type[Order], body: Callable[[Order], Awaitable[msgspec.Struct]]) -> None:
    """Serve as the child: read the order from the command line, run `body`, print its result."""
    order = msgspec.json.decode(sys.argv[1].encode(), type=kind)

    async def whole() -> msgspec.Struct:
        return await body(order)

    sys.stdout.buffer.write(msgspec.json.encode(run_loop(whole())) + b"\n")


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB.

    Linux's own mark is preferred: `getrusage` counts what the parent held when it made this process.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / _KIB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (_KIB * _KIB if sys.platform == "darwin" else _KIB)


def resident_mb() -> float:
    """Return the memory that this process holds now, in MB; the peak where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_mb()
    return pages * os.sysconf("SC_PAGE_SIZE") / (_KIB * _KIB)


def machine() -> dict[str, str | int]:
    """Return what a figure depends on besides the code."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count() or 1,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def load() -> float:
    """Return how many processes wanted the processors over the last minute; measurements are worth less under load."""
    return os.getloadavg()[0]
