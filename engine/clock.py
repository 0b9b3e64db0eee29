"""The two clocks: a monotonic one for decisions, the wall's for records."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the run loop gets its time from."""

    def now(self) -> float:
        """Return seconds that never go backwards."""
        ...

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Return the monotonic clock, which is also the event loop's."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return time.time_ns() // 1_000_000
