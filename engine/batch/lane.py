"""One batch lane: when its waiting requests become a batch, and how large that may be. Pure; time is an argument.

A batch is formed when it would be full, when its first request has waited long enough, or when nothing upstream can
still add to it. Its size keeps to the provider's limits beside what is already in the provider's queue; a queue that is
full makes the lane wait, and a queue that is full although nothing of ours is in it makes the next batch smaller.
"""

from typing import Final, NamedTuple

from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchLimits
from engine.ledger import Amount

FIRST_WAIT: Final = 30.0
WAIT_POLLS: Final = 6
LONGEST_WAIT: Final = 900.0
# Waiting prompts are counted by their bytes; their lines are somewhat longer. Full means nearly full.
NEARLY: Final = 0.9
# Looks at what waits cost the store something: they come less often while nothing is ripe.
FIRST_LOOK: Final = 0.25
LONGEST_LOOK: Final = 4.0
# A batch that fills its share of a crowded queue to less than this is not worth its submission yet.
LEAST_SHARE: Final = 0.1


class Load(NamedTuple):
    """What one batch puts into the provider's queue."""

    requests: int
    tokens: int


class Waiting(NamedTuple):
    """Requests of a lane that could go into a batch, and the bytes of their prompts."""

    requests: int
    bytes: int


class Room(NamedTuple):
    """The most that the next batch may hold; None is no bound."""

    requests: int
    bytes: int
    tokens: int | None


class BatchLane:
    """The live batches of one provider account and model, and what may be added."""

    def __init__(self, name: str, *, provider: str, model: str, limits: BatchLimits, policy: BatchPolicy) -> None:
        self.name, self.provider, self.model, self.limits, self.policy = name, provider, model, limits, policy
        self.stopped = ""
        self.exhausted: dict[tuple[str, str], Amount] = {}
        self.exhausted_at = 0
        self.maybe_more = True
        self.building = False
        self._live: dict[int, Load] = {}
        self._most: int | None = policy.most_requests
        self._wait = 0.0
        self._not_before = 0.0
        self._waiting_since: float | None = None
        self._look = FIRST_LOOK
        self._next_look = 0.0

    @property
    def live(self) -> int:
        """Batches of this lane at the provider or on their way to it."""
        return len(self._live)

    def enter(self, batch_id: int, load: Load) -> None:
        """Count a batch in."""
        self._live[batch_id] = load

    def leave(self, batch_id: int) -> None:
        """Count a batch out: it no longer fills the provider's queue."""
        if self._live.pop(batch_id, None) is not None:
            self._not_before = 0.0

    def accepted(self) -> None:
        """Note that the queue held a batch to its end; then it may hold larger ones, too.

        A batch that was only taken in proves nothing: it may still fail for a full queue.
        """
        self._wait = 0.0
        if self._most is not None:
            self._most = min(2 * self._most, self.policy.most_requests or _UNBOUNDED)

    def queue_full(self, now: float) -> float:
        """Note that the provider's queue was full; return when to try again, unless a batch of ours ends before."""
        first = min(FIRST_WAIT, WAIT_POLLS * self.policy.first_poll)
        self._wait = min(LONGEST_WAIT, max(first, self._wait * 2))
        self._not_before = now + self._wait
        return self._not_before

    def crowded(self, now: float) -> None:
        """Note that what is left of the queue is too little for the next request: a batch of ours must end first."""
        self._not_before = now + LONGEST_WAIT

    def alone(self, batch_id: int) -> bool:
        """Say whether that batch is the only live one."""
        return set(self._live) == {batch_id}

    def shrink(self, requests: int) -> None:
        """Make coming batches at most half as large as one of so many requests."""
        self._most = max(1, requests // 2)

    def room(self) -> Room | None:
        """Return the bounds of a new batch, or None when the queue holds all that it may."""
        limits = self.limits
        if limits.live_batches is not None and self.live >= limits.live_batches:
            return None
        queued = Load(*map(sum, zip(*self._live.values(), strict=True))) if self._live else Load(0, 0)
        bounds = [limits.max_requests, self._most, _left(limits.enqueued_requests, queued.requests)]
        requests = min((bound for bound in bounds if bound is not None), default=_UNBOUNDED)
        tokens = _left(limits.enqueued_tokens, queued.tokens)
        if requests <= 0 or (
            tokens is not None and self._live and tokens < LEAST_SHARE * (limits.enqueued_tokens or 0)
        ):
            return None
        return Room(requests, limits.max_bytes, tokens)

    def ready(self, now: float) -> bool:
        """Say whether it is time to look whether the lane may form a batch."""
        may = self.maybe_more and not self.stopped and not self.building
        return may and now >= max(self._not_before, self._next_look)

    def ripe(self, waiting: Waiting, room: Room, *, upstream: bool, now: float) -> bool:
        """Say whether what waits should become a batch now; `upstream` is whether more may still come."""
        if not waiting.requests:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        full = waiting.requests >= room.requests or waiting.bytes >= NEARLY * room.bytes
        if full or not upstream or now - self._waiting_since >= self.policy.flush_after:
            return True
        self._next_look = now + self._look
        self._look = min(LONGEST_LOOK, 2 * self._look)
        return False

    def formed(self) -> None:
        """Note that what waited has become a batch."""
        self._waiting_since = None
        self._look = FIRST_LOOK
        self._next_look = 0.0

    def exhaust(self, pair: tuple[str, str], worst: Amount, releases: int) -> None:
        """Note that a budget refuses `worst` to an (alias, stage); `releases` counts what had come back by then."""
        self.exhausted[pair] = worst
        self.exhausted_at = releases

    def try_budget_again(self) -> None:
        """Note that money has come back since a budget refused."""
        self.exhausted.clear()
        self.maybe_more = True

    def idle(self) -> bool:
        """Say whether nothing is live and nothing waits that could go."""
        return not self._live and not self.building and (bool(self.stopped) or not self.maybe_more)

    def stop(self, reason: str) -> None:
        """Form no more batches in this run."""
        self.stopped = reason


_UNBOUNDED: Final = 1 << 60


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else limit - used
