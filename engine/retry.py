"""What to do after a failed attempt. A decision, not an action; time and chance are arguments."""

from typing import Final, Protocol

import msgspec

from engine.errors import ErrorClass, ProviderError

FATAL: Final = frozenset({ErrorClass.BAD_REQUEST, ErrorClass.CONTENT, ErrorClass.GONE})
STOPS_PROVIDER: Final = frozenset({ErrorClass.QUOTA, ErrorClass.AUTH})
JITTER: Final = 0.25


class Chance(Protocol):
    """Where jitter comes from, e.g. a seeded `random.Random`."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on retrying one request.

    Attributes:
        failures: attempts that may end in a transient error before the request fails.
        throttles: attempts that may be refused for rate before the request fails.
        base, ceiling: seconds of the exponential back-off before jitter.
        patience: seconds that a provider may ask to wait; one that asks for more is stopped, as for a quota.
    """

    failures: int = 6
    throttles: int = 60
    base: float = 0.5
    ceiling: float = 60.0
    patience: float = 3600.0


class RetryAt(msgspec.Struct, frozen=True):
    """Send it again, not before `time`."""

    time: float


class GiveUp(msgspec.Struct, frozen=True):
    """The request has failed."""

    reason: str


class StopProvider(msgspec.Struct, frozen=True):
    """Nothing of this provider can work until a human or the calendar helps; the request stays planned."""

    reason: str


Decision = RetryAt | GiveUp | StopProvider


class Tries(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How often a request has gone wrong so far, this time included."""

    failures: int = 0
    throttles: int = 0

    def after(self, kind: ErrorClass) -> "Tries":
        """Return the count with one more error of `kind`."""
        if kind is ErrorClass.RATE:
            return Tries(failures=self.failures, throttles=self.throttles + 1)
        return Tries(failures=self.failures + 1, throttles=self.throttles)


def decide(error: ProviderError, tries: Tries, policy: RetryPolicy, now: float, rng: Chance) -> Decision:
    """Return what `error` asks for, given how often the request has gone wrong."""
    if error.kind in STOPS_PROVIDER:
        return StopProvider(str(error))
    if error.kind in FATAL:
        return GiveUp(str(error))
    if (error.retry_after or 0.0) > policy.patience:
        return StopProvider(f"{error} (asks to wait {error.retry_after:.0f} s)")
    rate = error.kind is ErrorClass.RATE
    count, bound = (tries.throttles, policy.throttles) if rate else (tries.failures, policy.failures)
    if count >= bound:
        return GiveUp(f"{error} (given up after {count} tries)")
    return RetryAt(now + backoff(count, policy, rng, error.retry_after))


def backoff(count: int, policy: RetryPolicy, rng: Chance, retry_after: float | None = None) -> float:
    """Return seconds to wait after the `count`-th failure: exponential, jittered downwards, never below Retry-After."""
    step = min(policy.ceiling, policy.base * float(1 << max(0, min(count, 32) - 1)))
    jittered = step * (1 - JITTER * rng.random())
    return max(jittered, retry_after or 0.0)
