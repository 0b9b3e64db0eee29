"""Rate limits as buckets that answer *when*; they never sleep and never look at a clock."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

MINUTE: Final = 60.0
DAY: Final = 86_400.0
# A request is let through this early: floating-point refill must not make a lane wake a tick before its time for ever.
SLACK: Final = 1e-9
# A day's calls are counted in slices of this many seconds, so that a window holds at most 1,440 of them.
SLICE: Final = 60.0
# Calls do not arrive as evenly as they leave: a lane stays this far below a limit, and sends less than a second's share
# of it at once, so that a late call before an early one is not taken for one too many.
PACE: Final = 0.98
BURST: Final = 0.8
# Providers set the whole output allowance aside while a call runs, so the first calls must leave some tokens over.
FIRST_TOKENS: Final = 0.5
# Announced remainders are whole numbers: what is left of a request does not show.
ROUNDED: Final = 1
_MINUTELY: Final = ("requests", "input_tokens", "output_tokens", "tokens")


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider account allows one model; None is no limit.

    Attributes:
        requests, input_tokens, output_tokens, tokens: per minute.
        requests_per_day: in any 24 hours.
        concurrency: most calls in flight at once.
        adaptive: find the best concurrency below `concurrency` (AIMD); False for engines with a fixed capacity.
        share: the part of every limit, given or announced, that this process may use; others have the rest.

    Raises:
        ValueError: a limit is below 1, which would let nothing through for ever, or the share is none.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    requests_per_day: int | None = None
    concurrency: int = 64
    adaptive: bool = True
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in (*_MINUTELY, "requests_per_day", "concurrency"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"the limit `{name}` must be at least 1, not {limit}")
        if not 0 < self.share <= 1:
            raise ValueError(f"the share must be above 0 and at most 1, not {self.share}")

    def shared(self, limit: int) -> int:
        """Return this process's part of a count, at least 1."""
        return max(1, int(limit * self.share))


class TokenBucket:
    """A bucket that refills evenly and may go into debt.

    Invariant: over any span of t seconds, at most `capacity + rate * t` units plus one item's excess over the capacity
    are taken. An item dearer than the whole bucket waits for a full one and leaves it in debt.
    """

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        """Start full. `rate` in units per second, `capacity` in units."""
        self.rate = rate
        self.capacity = capacity
        self.level = capacity
        self.at = now

    def ready_at(self, cost: float, now: float) -> float:
        """Return the earliest time at which `cost` units may be taken; `now` if at once."""
        self._refill(now)
        missing = min(cost, self.capacity) - self.level
        return now if missing <= SLACK else now + missing / self.rate

    def take(self, cost: float, now: float) -> None:
        """Take `cost` units, whatever the level."""
        self._refill(now)
        self.level -= cost

    def give_back(self, amount: float, now: float) -> None:
        """Return units that were not used; a negative amount takes more."""
        self._refill(now)
        self.level = min(self.capacity, self.level + amount)

    def lower_to(self, remaining: float, now: float) -> None:
        """Believe a provider that says fewer units are left than we think."""
        self._refill(now)
        self.level = min(self.level, remaining)

    def retune(self, rate: float, capacity: float, now: float) -> None:
        """Change the limit from `now` on, keeping the debt."""
        self._refill(now)
        self.rate, self.capacity = rate, capacity
        self.level = min(self.level, capacity)

    def _refill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
            self.at = now


class DayWindow:
    """A day's allowance, free to be used at once: providers count days, they do not spread them.

    Invariant: at most `limit` units are taken in any 24 hours, whether the provider's day slides or ends at midnight.
    A unit comes back 24 hours after the last one of its slice was taken.
    """

    __slots__ = ("_slices", "_taken", "limit")

    def __init__(self, limit: int) -> None:
        """Start with nothing taken; `remember` tells of earlier runs."""
        self.limit = limit
        self._taken = 0.0
        # First and last time and the units of each slice.
        self._slices: deque[tuple[float, float, float]] = deque()

    def ready_at(self, cost: float, now: float) -> float:
        """Return the earliest time at which `cost` units may be taken; `now` if at once."""
        self._expire(now)
        missing = self._taken + min(cost, self.limit) - self.limit
        for _, last, units in self._slices:
            if missing <= 0:
                break
            missing -= units
            now = last + DAY
        return now

    def take(self, cost: float, now: float) -> None:
        """Take `cost` units."""
        self._expire(now)
        self._taken += cost
        first, units = now, cost
        if self._slices and now < self._slices[-1][0] + SLICE:
            first, _, before = self._slices.pop()
            units += before
        self._slices.append((first, now, units))

    def remember(self, taken: Iterable[tuple[float, int]]) -> None:
        """Note what earlier runs took, as (last moment of a slice, units) by rising time; before anything is taken."""
        self._slices = deque((at, at, float(units)) for at, units in taken)
        self._taken = sum(units for _, _, units in self._slices)

    def give_back(self, amount: float, now: float) -> None:
        """Return units that were not used."""
        self._expire(now)
        if self._slices:
            first, last, units = self._slices.pop()
            amount = min(amount, units)
            self._taken -= amount
            self._slices.append((first, last, units - amount))

    def _expire(self, now: float) -> None:
        while self._slices and self._slices[0][1] + DAY <= now:
            self._taken -= self._slices.popleft()[2]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one call uses of the limits, in tokens."""

    input_tokens: int
    output_tokens: int


class Buckets:
    """The buckets of one lane: requests, tokens and days together.

    A limit that was given is a ceiling: what a provider announces fills the gaps and may lower it, never raise it. Of
    all of them this process's share counts.
    """

    __slots__ = ("_burst", "_by_dimension", "_day", "_given", "_share")

    def __init__(self, limits: RateLimits, now: float, *, burst_seconds: float = BURST) -> None:
        """`burst_seconds` is how much of a minute's allowance may go out at once; providers slice their minutes too."""
        self._burst, self._share = burst_seconds, limits.share
        self._given = {name: limit for name in _MINUTELY if (limit := getattr(limits, name)) is not None}
        self._day = None if limits.requests_per_day is None else DayWindow(limits.shared(limits.requests_per_day))
        self._by_dimension = {name: self._bucket(name, limit, now) for name, limit in self._given.items()}

    @property
    def counts_days(self) -> bool:
        """Whether there is a limit for the day."""
        return self._day is not None

    def remember_day(self, taken: Iterable[tuple[float, int]]) -> None:
        """Note what earlier runs took of the day's limit, as (time, calls) by rising time; call it before anything."""
        if self._day is not None:
            self._day.remember(taken)

    def ready_at(self, cost: Cost, now: float) -> float:
        """Return when a call of this cost may go."""
        ready = now if self._day is None else self._day.ready_at(1, now)
        for dimension, bucket in self._by_dimension.items():
            ready = max(ready, bucket.ready_at(_units(dimension, cost), now))
        return ready

    def take(self, cost: Cost, now: float) -> None:
        """Charge a call that goes now."""
        for dimension, bucket in self._by_dimension.items():
            bucket.take(_units(dimension, cost), now)
        if self._day is not None:
            self._day.take(1, now)

    def give_back(self, cost: Cost, now: float) -> None:
        """Undo the charge of a call that never left."""
        for dimension, bucket in self._by_dimension.items():
            bucket.give_back(_units(dimension, cost), now)
        if self._day is not None:
            self._day.give_back(1, now)

    def correct(self, expected: Cost, actual: Cost, now: float) -> None:
        """Replace what a call was expected to use by what it used."""
        for dimension, bucket in self._by_dimension.items():
            surplus = _units(dimension, expected) - _units(dimension, actual)
            if surplus:
                bucket.give_back(surplus, now)

    def learn(self, dimension: str, limit: int, now: float) -> None:
        """Take over a per-minute limit that the provider announced."""
        limit = min(limit, self._given.get(dimension, limit))
        bucket = self._by_dimension.get(dimension)
        if bucket is None:
            self._by_dimension[dimension] = self._bucket(dimension, limit, now)
        elif bucket.rate != self._rate(limit):
            bucket.retune(self._rate(limit), self._capacity(limit), now)

    def lower_to(self, dimension: str, remaining: int, now: float) -> None:
        """Take over a remaining allowance that is lower than ours."""
        bucket = self._by_dimension.get(dimension)
        if bucket is not None:
            bucket.lower_to(remaining + ROUNDED, now)

    def _bucket(self, dimension: str, limit: int, now: float) -> TokenBucket:
        bucket = TokenBucket(self._rate(limit), self._capacity(limit), now)
        if dimension != "requests":
            bucket.lower_to(FIRST_TOKENS * bucket.capacity, now)
        return bucket

    def _rate(self, limit: int) -> float:
        return PACE * self._share * limit / MINUTE

    def _capacity(self, limit: int) -> float:
        return max(1.0, self._share * limit * min(1.0, self._burst / MINUTE))


def _units(dimension: str, cost: Cost) -> int:
    match dimension:
        case "input_tokens":
            return cost.input_tokens
        case "output_tokens":
            return cost.output_tokens
        case "tokens":
            return cost.input_tokens + cost.output_tokens
        case _:
            return 1
