"""Rate limits as a provider enforces them: token buckets per key and model. Pure; `now` is an argument (seconds).

A bucket fills evenly up to one window's worth, so a client may burst a window at once and then gets the steady rate.
The day is a fixed window of the clock, as providers count it. Nothing here waits: the answer is granted, or limited
until when.
"""

from enum import StrEnum
from typing import Final

import msgspec

MINUTE: Final = 60.0
DAY: Final = 86_400.0
# A refusal that can only end by a call finishing has no moment; providers name a short one.
CONCURRENCY_WAIT: Final = 1.0


class Limit(StrEnum):
    """What ran out."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    DAY = "day"
    CONCURRENCY = "concurrency"


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one key and model; None means no limit.

    Attributes:
        tokens_per_minute: prompt plus output allowance, charged when a call is admitted and corrected when it ends.
        input_tokens_per_minute: prompt tokens, charged when a call is admitted.
        output_tokens_per_minute: generated tokens, charged when a call ends; the next call waits for the debt.
        window: seconds' worth of calls that may come at once; a minute, or one second where slices are enforced.
        count_refused: refused calls use up the request limit too.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    requests_per_day: int | None = None
    concurrency: int | None = None
    window: float = MINUTE
    count_refused: bool = False


class Standing(msgspec.Struct, frozen=True):
    """State of one limit as headers show it: what is allowed a minute, what is left, seconds until it is full again."""

    limit: int
    remaining: int
    reset: float


class Limited(msgspec.Struct, frozen=True):
    """A refusal: what ran out and in how many seconds a retry can succeed, None if it never can."""

    limit: Limit
    retry_after: float | None


class Bucket:
    """So many units a minute; may go into debt when a call turns out dearer than it was admitted for."""

    def __init__(self, per_minute: int, window: float, now: float) -> None:
        self.per_minute = per_minute
        self.capacity = max(1.0, per_minute * window / MINUTE)
        self._level = self.capacity
        self._at = now

    def wait(self, amount: float, now: float) -> float | None:
        """Return seconds until `amount` can be taken, 0.0 for at once, None if it never can."""
        if amount > self.capacity:
            return None
        self._fill(now)
        return max(0.0, (amount - self._level) * MINUTE / self.per_minute)

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, into debt if need be; a negative amount gives back."""
        self._fill(now)
        self._level = min(self.capacity, self._level - amount)

    def standing(self, now: float) -> Standing:
        """Return what headers show."""
        self._fill(now)
        missing = self.capacity - self._level
        return Standing(self.per_minute, max(0, int(self._level)), missing * MINUTE / self.per_minute)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.capacity, self._level + (now - self._at) * self.per_minute / MINUTE)
            self._at = now


class Gate:
    """All limits of one key and model."""

    def __init__(self, rates: Rates, now: float) -> None:
        self.rates = rates
        self._buckets = {
            limit: Bucket(per_minute, rates.window, now)
            for limit, per_minute in (
                (Limit.REQUESTS, rates.requests_per_minute),
                (Limit.TOKENS, rates.tokens_per_minute),
                (Limit.INPUT_TOKENS, rates.input_tokens_per_minute),
                (Limit.OUTPUT_TOKENS, rates.output_tokens_per_minute),
            )
            if per_minute is not None
        }
        self._day = now // DAY
        self._today = 0
        self._running = 0

    def enter(self, now: float, *, prompt: int, allowance: int) -> Limited | None:
        """Admit a call of `prompt` tokens and up to `allowance` of output, or say what stands in its way."""
        if now // DAY != self._day:
            self._day, self._today = now // DAY, 0
        wanted = self._wanted(prompt, allowance)
        refused = self._refusal(now, wanted)
        if refused is not None:
            if self.rates.count_refused and Limit.REQUESTS in self._buckets:
                self._buckets[Limit.REQUESTS].take(1, now)
            return refused
        for limit, amount in wanted.items():
            self._buckets[limit].take(amount, now)
        self._today += 1
        self._running += 1
        return None

    def leave(self, now: float, *, allowance: int, output: int) -> None:
        """End an admitted call that generated `output` tokens."""
        self._running -= 1
        if Limit.TOKENS in self._buckets:
            self._buckets[Limit.TOKENS].take(output - allowance, now)
        if Limit.OUTPUT_TOKENS in self._buckets:
            self._buckets[Limit.OUTPUT_TOKENS].take(output, now)

    def standing(self, now: float) -> dict[Limit, Standing]:
        """Return the state of every limit that has one."""
        return {limit: bucket.standing(now) for limit, bucket in self._buckets.items()}

    def _wanted(self, prompt: int, allowance: int) -> dict[Limit, int]:
        amounts = {
            Limit.REQUESTS: 1,
            Limit.TOKENS: prompt + allowance,
            Limit.INPUT_TOKENS: prompt,
            Limit.OUTPUT_TOKENS: 0,
        }
        return {limit: amounts[limit] for limit in self._buckets}

    def _refusal(self, now: float, wanted: dict[Limit, int]) -> Limited | None:
        if self.rates.requests_per_day is not None and self._today >= self.rates.requests_per_day:
            return Limited(Limit.DAY, (self._day + 1) * DAY - now)
        if self.rates.concurrency is not None and self._running >= self.rates.concurrency:
            return Limited(Limit.CONCURRENCY, CONCURRENCY_WAIT)
        for limit, amount in wanted.items():
            wait = self._buckets[limit].wait(amount, now)
            if wait is None or wait > 0:
                return Limited(limit, wait)
        return None


class Gates:
    """The gate of every key and model, opened when it is first asked for."""

    def __init__(self, rates: dict[str, Rates]) -> None:
        self._rates = rates
        self._gates: dict[tuple[str, str, bytes], Gate] = {}

    def gate(self, provider: str, model: str, key: bytes, now: float) -> Gate:
        """Return the gate of a key (its digest) and model."""
        place = (provider, model, key)
        gate = self._gates.get(place)
        if gate is None:
            gate = self._gates[place] = Gate(self._find(provider, model), now)
        return gate

    def _find(self, provider: str, model: str) -> Rates:
        names = (f"{provider}/{model}", provider, "*")
        return next((self._rates[name] for name in names if name in self._rates), Rates())
