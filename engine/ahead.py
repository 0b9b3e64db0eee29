"""How many attempts a lane makes durable before there is room for their calls. Pure.

An attempt is on disk before its call leaves. Where calls end by the thousand, a lane that began to write only when one
has ended would leave its place empty for the length of a commit. So it has as many attempts ready as end meanwhile.
A crash cannot tell them from calls on the wire, and counts them as possibly billed: that is why there are no more, and
none at all where calls end slowly.
"""

from typing import Final

# Seconds over which ends are counted.
SPAN: Final = 0.5
# A commit that lasts longer than usual is to find enough, too.
MARGIN: Final = 2.0
SMALLEST_PART: Final = 4
NEWEST: Final = 0.1


class Ahead:
    """What one lane has seen of the pace of its calls and of the disk."""

    __slots__ = ("_began", "_commit", "_ends", "_rate")

    def __init__(self, now: float) -> None:
        self._began, self._ends, self._rate, self._commit = now, 0, 0.0, 0.0

    def ended(self, now: float) -> None:
        """Count the end of a call."""
        if now - self._began >= SPAN:
            self._rate = self._ends / (now - self._began)
            self._began, self._ends = now, 0
        self._ends += 1

    def committed(self, seconds: float) -> None:
        """Note how long an attempt has waited for the disk."""
        self._commit += NEWEST * (seconds - self._commit)

    def most(self, limit: int) -> int:
        """Return how many attempts may be ready besides the `limit` of calls on the wire."""
        return min(limit // SMALLEST_PART, int(MARGIN * self._rate * self._commit))
