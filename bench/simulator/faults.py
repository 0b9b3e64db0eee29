"""What goes wrong, and when: scripted rules and seeded random faults. Pure; knows no wire format and no socket.

Random faults are drawn from seed, content hash and attempt number, never from arrival order: the same sweep with the
same seed meets the same faults however its calls are scheduled.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from bench.simulator.latency import uniform


class Fault(StrEnum):
    """Kinds of trouble; each wire format has its own words for those that are answers.

    Never charged: rate_limited, rate_limited_blind (no hint when to retry), rate_limited_tokens, quota (the money is
    used up), overloaded, server_error, bad_gateway (an HTML page of a proxy), unavailable, timeout, auth, bad_request,
    gone, blocked (a filter refuses the prompt with an error), drop_before (connection cut before any work).

    Charged: drop_after (connection cut when the work was done), slow_body, stall (nothing more comes after the first
    half), truncated_body, malformed_json, html (a page instead of JSON, labelled as JSON), empty, cut (stopped at half
    of its text as if the allowance was used up), refusal, filtered, interrupted (the provider ran out of resources).
    """

    RATE_LIMITED = "rate_limited"
    RATE_LIMITED_BLIND = "rate_limited_blind"
    RATE_LIMITED_TOKENS = "rate_limited_tokens"
    QUOTA = "quota"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    BAD_GATEWAY = "bad_gateway"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    AUTH = "auth"
    BAD_REQUEST = "bad_request"
    GONE = "gone"
    BLOCKED = "blocked"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"
    SLOW_BODY = "slow_body"
    STALL = "stall"
    TRUNCATED_BODY = "truncated_body"
    MALFORMED_JSON = "malformed_json"
    HTML = "html"
    EMPTY = "empty"
    CUT = "cut"
    REFUSAL = "refusal"
    FILTERED = "filtered"
    INTERRUPTED = "interrupted"


CHARGED: Final = frozenset(list(Fault)[list(Fault).index(Fault.DROP_AFTER) :])


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted fault.

    Attributes:
        provider, model: which calls; a model is matched by its beginning; empty matches all.
        stage: `task`, `judge`, ...; empty matches all.
        contains: words that the prompt must hold.
        attempt: only the n-th call (from 1) with the same content; 0 means every one.
        skip, times: let the first `skip` matching calls pass, then hit at most `times` (0: no end).
        retry_after: seconds the reply asks to wait, for rate limits.
        seconds: how long a slow body takes, or how long the server holds a call before it drops or stalls it.
    """

    fault: Fault
    provider: str = ""
    model: str = ""
    stage: str = ""
    contains: str = ""
    attempt: int = 0
    skip: int = 0
    times: int = 1
    retry_after: float = 1.0
    seconds: float = 0.0


class Attempt(msgspec.Struct, frozen=True):
    """What rules look at; a request's way in a batch and its way alone have luck of their own."""

    provider: str
    model: str
    stage: str
    prompt: str
    hash: str
    number: int
    batched: bool = False


class Faults:
    """Decides for each attempt whether something goes wrong. Scripted rules come first, in order."""

    def __init__(self, rules: Iterable[Rule], random: Mapping[Fault, float], seed: int) -> None:
        self._rules: list[list[int | Rule]] = []
        self._random, self._seed = dict(random), seed
        for rule in rules:
            self.add(rule)

    @property
    def active(self) -> bool:
        """Whether anything can go wrong at all."""
        return bool(self._rules or self._random)

    @property
    def rules(self) -> list[Rule]:
        """The scripted rules that can still hit."""
        return [rule for _, rule in self._rules if isinstance(rule, Rule)]

    def add(self, rule: Rule) -> None:
        """Add a scripted rule behind the others."""
        self._rules.append([0, rule])

    def clear(self) -> None:
        """Forget all scripted rules; random faults stay."""
        self._rules.clear()

    def decide(self, attempt: Attempt) -> Rule | None:
        """Return the fault of this attempt, None for none."""
        return self._scripted(attempt) or self._drawn(attempt)

    def _scripted(self, attempt: Attempt) -> Rule | None:
        for entry in self._rules:
            seen, rule = entry
            if isinstance(rule, Rule) and isinstance(seen, int) and _matches(rule, attempt):
                entry[0] = seen + 1
                if seen >= rule.skip and (not rule.times or seen < rule.skip + rule.times):
                    return rule
        return None

    def _drawn(self, attempt: Attempt) -> Rule | None:
        if not self._random:
            return None
        kind = "fault of a row" if attempt.batched else "fault"
        draw = uniform(kind, self._seed, attempt.provider, attempt.hash, attempt.number)
        for fault, chance in self._random.items():
            if draw < chance:
                return Rule(fault=fault, times=0)
            draw -= chance
        return None


def _matches(rule: Rule, attempt: Attempt) -> bool:
    return (
        rule.provider in ("", attempt.provider)
        and attempt.model.startswith(rule.model)
        and rule.stage in ("", attempt.stage)
        and rule.contains in attempt.prompt
        and rule.attempt in (0, attempt.number)
    )
