"""Rate limits as buckets that answer *when*; they never sleep and never look at a clock."""

from typing import Final

import msgspec

MINUTE: Final = 60.0
DAY: Final = 86_400.0
# A request is let through this early: floating-point refill must not make a lane wake a tick before its time for ever.
SLACK: Final = 1e-9


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider account allows one model; None is no limit.

    Attributes:
        requests, input_tokens, output_tokens, tokens: per minute.
        requests_per_day: rolling.
        concurrency: most calls in flight at once.
        adaptive: find the best concurrency below `concurrency` (AIMD); False for engines with a fixed capacity.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    requests_per_day: int | None = None
    concurrency: int = 64
    adaptive: bool = True


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


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one call uses of the limits, in tokens."""

    input_tokens: int
    output_tokens: int


class Buckets:
    """The buckets of one lane: requests, tokens and days together."""

    __slots__ = ("_burst", "_by_dimension")

    def __init__(self, limits: RateLimits, now: float, *, burst_seconds: float = 1.0) -> None:
        """`burst_seconds` is how much of a minute's allowance may go out at once; providers slice their minutes too."""
        self._burst = burst_seconds
        self._by_dimension: dict[str, TokenBucket] = {}
        for dimension, limit, window in _dimensions(limits):
            self._by_dimension[dimension] = TokenBucket(limit / window, self._capacity(limit, window), now)

    def ready_at(self, cost: Cost, now: float) -> float:
        """Return when a call of this cost may go."""
        return max(
            (bucket.ready_at(_units(dimension, cost), now) for dimension, bucket in self._by_dimension.items()),
            default=now,
        )

    def take(self, cost: Cost, now: float) -> None:
        """Charge a call that goes now."""
        for dimension, bucket in self._by_dimension.items():
            bucket.take(_units(dimension, cost), now)

    def correct(self, expected: Cost, actual: Cost, now: float) -> None:
        """Replace what a call was expected to use by what it used."""
        for dimension, bucket in self._by_dimension.items():
            surplus = _units(dimension, expected) - _units(dimension, actual)
            if surplus:
                bucket.give_back(surplus, now)

    def learn(self, dimension: str, limit: int, now: float) -> None:
        """Take over a per-minute limit that the provider announced."""
        bucket = self._by_dimension.get(dimension)
        rate, capacity = limit / MINUTE, self._capacity(limit, MINUTE)
        if bucket is None:
            self._by_dimension[dimension] = TokenBucket(rate, capacity, now)
        elif bucket.rate != rate:
            bucket.retune(rate, capacity, now)

    def lower_to(self, dimension: str, remaining: int, now: float) -> None:
        """Take over a remaining allowance that is lower than ours."""
        bucket = self._by_dimension.get(dimension)
        if bucket is not None:
            bucket.lower_to(remaining, now)

    def _capacity(self, limit: int, window: float) -> float:
        return max(1.0, limit * min(1.0, self._burst / window))


def _dimensions(limits: RateLimits) -> list[tuple[str, int, float]]:
    known = (
        ("requests", limits.requests, MINUTE),
        ("input_tokens", limits.input_tokens, MINUTE),
        ("output_tokens", limits.output_tokens, MINUTE),
        ("tokens", limits.tokens, MINUTE),
        ("requests_per_day", limits.requests_per_day, DAY),
    )
    return [(dimension, limit, window) for dimension, limit, window in known if limit is not None]


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
