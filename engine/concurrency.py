"""How many calls may be in flight: additive increase, multiplicative decrease, with a circuit breaker."""

from typing import Final

from engine.limits import RateLimits

SLOW_START: Final = 16
SATURATED: Final = 0.8
DECREASE: Final = 0.7
COOLDOWN: Final = 5.0
BREAKER_FAILURES: Final = 10
PAUSE_BASE: Final = 0.5
PAUSE_CEILING: Final = 60.0


class Concurrency:
    """The adaptive limit of one lane.

    It doubles per round of clean answers until the first throttle, then grows by one a round, but only in rounds that
    really used the limit. A throttle cuts it once per cool-down and pauses the lane. A run of failures with no answer
    opens the breaker: the lane pauses, then sends a single probe until something is answered. Refusals that arrive in a
    pause belong to the burst that caused it and do not lengthen it, unless they ask for it.
    """

    __slots__ = (
        "_adaptive",
        "_answers",
        "_ceiling",
        "_cut_at",
        "_failures",
        "_half_open",
        "_limit",
        "_pauses",
        "_peak",
        "_round",
        "_slow_start",
        "in_flight",
        "paused_until",
    )

    def __init__(self, limits: RateLimits) -> None:
        self._ceiling = max(1, limits.shared(limits.concurrency))
        self._adaptive = limits.adaptive
        self._slow_start = limits.adaptive
        self._limit = float(min(self._ceiling, SLOW_START) if limits.adaptive else self._ceiling)
        self._failures = 0
        self._pauses = 0
        self._half_open = False
        self._cut_at = float("-inf")
        self.in_flight = self._peak = 0
        self._begin_round()
        self.paused_until = float("-inf")

    @property
    def limit(self) -> int:
        """Most calls in flight now."""
        return 1 if self._half_open else int(self._limit)

    @property
    def ceiling(self) -> int:
        """Most calls in flight ever."""
        return self._ceiling

    def free(self) -> bool:
        """Say whether another call may start, limits aside."""
        return self.in_flight < self.limit

    def start(self) -> None:
        """Count a call in."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def succeed(self) -> None:
        """Count an answered call out and grow if this round uses the limit."""
        self.answer()
        if self._adaptive and self._limit < self._ceiling and self._peak >= SATURATED * self._round:
            step = 1.0 if self._slow_start else 1.0 / self._limit
            self._limit = min(float(self._ceiling), self._limit + step)
        self._answers += 1
        if self._answers >= self._round:
            self._begin_round()

    def answer(self) -> None:
        """Count out a call that a working provider answered, be it with a refusal of this one request."""
        self.in_flight -= 1
        self._failures = self._pauses = 0
        self._half_open = False

    def throttle(self, now: float, retry_after: float | None) -> None:
        """Count a refused call out, cut the limit once per cool-down and pause."""
        self.in_flight -= 1
        self._slow_start = False
        self._failures += 1
        if self._adaptive and now >= self._cut_at + COOLDOWN:
            self._limit = max(1.0, self._limit * DECREASE)
            self._cut_at = now
            self._begin_round()
        self._pause(now, retry_after)

    def fail(self, now: float, retry_after: float | None = None) -> None:
        """Count a failed call out; growth stops, and a run of failures opens the breaker."""
        self.in_flight -= 1
        self._slow_start = False
        self._failures += 1
        if retry_after is not None or self._failures >= BREAKER_FAILURES:
            self._pause(now, retry_after)

    def cancel(self) -> None:
        """Count out a call that never left."""
        self.in_flight -= 1

    def _begin_round(self) -> None:
        """A round is as many answers as the limit was when it began; replies may come in bursts."""
        self._round = int(self._limit)
        self._answers = 0
        self._peak = self.in_flight

    def _pause(self, now: float, retry_after: float | None) -> None:
        self._half_open = self._failures >= BREAKER_FAILURES
        if retry_after is not None:
            self.paused_until = max(self.paused_until, now + retry_after)
        elif now >= self.paused_until:
            self.paused_until = now + min(PAUSE_CEILING, PAUSE_BASE * 2 ** min(self._pauses, 16))
            self._pauses += 1
