"""How many calls may be in flight: additive increase, multiplicative decrease, with a circuit breaker."""

from typing import Final

from engine.limits import RateLimits

SLOW_START: Final = 16
SATURATED: Final = 0.8
DECREASE: Final = 0.7
COOLDOWN: Final = 5.0
# However few calls were left on the wire when refusals ended, so much of the limit fits.
FITS_LEAST: Final = 0.5
TRY_FIRST: Final = 30.0
TRY_LAST: Final = 600.0
BREAKER_FAILURES: Final = 10
PAUSE_BASE: Final = 0.5
PAUSE_CEILING: Final = 60.0


class Concurrency:
    """The adaptive limit of one lane.

    It doubles per round of clean answers until the first throttle, but only in rounds that really used the limit. A
    throttle cuts it once per cool-down and pauses the lane. What the provider still held when it refused is remembered
    as what fits: up to there the limit grows back as fast as it grew, and it stays there, since every step beyond may
    cost a refusal. Such a step is tried half a minute later, then by one a round; one that is refused ends the attempt,
    and the next is made after twice the time. A run of failures with no answer opens the breaker: the lane pauses, then
    sends a single probe until something is answered. Refusals that arrive in a pause belong to the burst that caused it
    and do not lengthen it, unless they ask for it.
    """

    __slots__ = (
        "_adaptive",
        "_answers",
        "_ceiling",
        "_cut_at",
        "_failures",
        "_fits",
        "_fits_least",
        "_half_open",
        "_limit",
        "_pauses",
        "_peak",
        "_round",
        "_slow_start",
        "_try_after",
        "_try_at",
        "in_flight",
        "paused_until",
    )

    def __init__(self, limits: RateLimits) -> None:
        self._ceiling = limits.shared(limits.concurrency)
        self._adaptive = limits.adaptive
        self._slow_start = limits.adaptive
        self._limit = float(min(self._ceiling, SLOW_START) if limits.adaptive else self._ceiling)
        self._failures = 0
        self._pauses = 0
        self._half_open = False
        self._cut_at = float("-inf")
        self._fits, self._fits_least = self._ceiling, 1
        self._try_at, self._try_after = float("-inf"), TRY_FIRST
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

    def succeed(self, now: float) -> None:
        """Count an answered call out and grow if this round uses the limit."""
        self.answer()
        most = self._ceiling if now >= self._try_at else self._fits
        if self._adaptive and self._limit < most and self._peak >= SATURATED * self._round:
            quick = self._slow_start or self._limit < self._fits < self._ceiling
            self._limit = min(float(most), self._limit + (1.0 if quick else 1.0 / self._limit))
        self._answers += 1
        if self._answers >= self._round:
            self._fits = max(self._fits, self._round)
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
        if self._adaptive:
            self._cut(now)
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

    def _cut(self, now: float) -> None:
        """Lower the limit, and what fits to what the provider still holds."""
        tried = self._fits < self._limit and now >= self._try_at
        if now >= self._cut_at + COOLDOWN:
            self._cut_at = now
            self._fits_least = self._fits if tried else max(1, int(FITS_LEAST * self._limit))
            self._fits = self._ceiling
            self._limit = float(self._fits_least) if tried else max(1.0, self._limit * DECREASE)
            self._try_after = min(TRY_LAST, 2 * self._try_after) if tried else TRY_FIRST
            self._begin_round()
        self._fits = min(self._fits, max(self._fits_least, self.in_flight))
        self._limit = min(self._limit, float(self._fits))
        self._try_at = now + self._try_after

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
