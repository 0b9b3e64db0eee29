"""The one place that touches asyncio-throttle, which carries no types."""

from typing import Protocol

from asyncio_throttle import Throttler


class Pace(Protocol):
    """Spaces calls: entering waits until the next call may go out."""

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing."""
        ...


def pace(calls: int, *, seconds: float = 1.0) -> Pace:
    """Return a pace of at most `calls` in any `seconds`."""
    throttler: Pace = Throttler(rate_limit=calls, period=seconds)
    return throttler
