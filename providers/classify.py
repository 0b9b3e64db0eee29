"""What a provider's error reply means: the classification table as data, and one function that reads it.

First matching rule of the provider's table wins, then the shared rules, then the HTTP status alone. The same word can
mean opposite things (`insufficient_quota` is out of money at OpenAI and tokens per minute at DashScope), hence one
table per provider. A reply's text is hostile: it is cut, freed of control characters and of anything like a key.
Must not know: transports, requests, completions.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from engine.errors import ErrorClass, ProviderError
from providers.errorbody import ErrorFacts, read_error
from providers.headers import exhausted_reset, rate_hints, retry_after, should_retry

RATE, TRANSIENT, QUOTA = ErrorClass.RATE, ErrorClass.TRANSIENT, ErrorClass.QUOTA
AUTH, BAD_REQUEST, CONTENT, GONE = ErrorClass.AUTH, ErrorClass.BAD_REQUEST, ErrorClass.CONTENT, ErrorClass.GONE
SUCCESS: Final = range(200, 300)
CLIENT_ERRORS: Final = range(400, 500)


class ErrorTable(StrEnum):
    """Whose rules read an error."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    DEEPSEEK = "deepseek"
    DASHSCOPE = "dashscope"
    ZHIPU = "zhipu"
    KIMI = "kimi"
    VLLM = "vllm"


class Rule(msgspec.Struct, frozen=True):
    """One row: all conditions that are given must hold.

    Attributes:
        kind: the class it leads to.
        status: HTTP statuses; empty is any.
        words: discriminators (code, type, status word, detail codes), lower case, any of; a final `*` is any ending.
        says: pieces of the lower-case message, any of.
    """

    kind: ErrorClass
    status: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


_OPENAI_MONEY: Final = (
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
)
_DASHSCOPE_PACE: Final = (
    "throttling",
    "throttling.*",
    "limitrequests",
    "limit_requests",
    "limit_burst_rate",
    "insufficient_quota",
)
_ZHIPU_AUTH: Final = ("1000", "1001", "1002", "1003", "1004", "1005", "1110", "1111", "1112", "1121")
_DAILY, _WAIT_SHORT, _WAIT_LONG = "quota:per_day", "wait:short", "wait:long"  # made by errorbody from Gemini's details

TABLES: Final[Mapping[ErrorTable, Sequence[Rule]]] = MappingProxyType(
    {
        ErrorTable.OPENAI: (
            Rule(QUOTA, (429,), _OPENAI_MONEY),
            Rule(RATE, (429,), ("rate_limit_exceeded", "slow_down")),
            Rule(CONTENT, (400,), ("content_filter", "content_policy_violation")),
        ),
        ErrorTable.ANTHROPIC: (
            Rule(QUOTA, (429,), ("enforced_spend_limit_reached", "contract_spend_limit_reached")),
            Rule(RATE, (429,), ("rate_limit_error", "ramp_limit_exceeded")),
            Rule(QUOTA, (402,)),
            Rule(QUOTA, (), ("billing_error",)),
            Rule(
                QUOTA,
                (400,),
                (),
                ("specified api usage limits", "workspace api usage limits", "credit balance is too low"),
            ),
            Rule(CONTENT, (400,), (), ("content filtering policy",)),
            Rule(TRANSIENT, (), ("overloaded_error", "api_error", "timeout_error")),
            Rule(GONE, (404,), ("not_found_error",), ("model:",)),
        ),
        ErrorTable.GEMINI: (
            Rule(QUOTA, (429,), (_DAILY, _WAIT_LONG)),
            Rule(RATE, (429,), (_WAIT_SHORT,)),
            Rule(QUOTA, (429,), (), ("billing", "your plan", "prepaid", "credits")),
            Rule(AUTH, (400,), ("api_key_invalid",)),
            Rule(QUOTA, (400,), ("failed_precondition",)),
            Rule(GONE, (404,), (), ("is not found for api version",)),
        ),
        ErrorTable.DEEPSEEK: (Rule(QUOTA, (402,)),),
        ErrorTable.DASHSCOPE: (
            Rule(QUOTA, (403, 429), (), ("free allocated quota exceeded",)),
            Rule(QUOTA, (), ("arrearage", "prepaidbilloverdue", "postpaidbilloverdue", "commoditynotpurchased")),
            Rule(QUOTA, (), ("allocationquota.freetieronly",)),
            Rule(CONTENT, (), ("data_inspection_failed", "datainspectionfailed")),
            Rule(RATE, (429,), _DASHSCOPE_PACE),
            Rule(TRANSIENT, (), ("internalerror*", "systemerror", "modelservicefailed", "requesttimeout")),
            Rule(TRANSIENT, (), ("modelservingerror", "modelunavailable")),
        ),
        ErrorTable.ZHIPU: (
            Rule(QUOTA, (), ("1113", "1304", "1308", "1309", "1310", "1311", "1313")),
            Rule(RATE, (), ("1302", "1303", "1305", "1312")),
            Rule(CONTENT, (), ("1301",)),
            Rule(TRANSIENT, (), ("500", "1234")),
            Rule(BAD_REQUEST, (), ("12*",)),
            Rule(AUTH, (), _ZHIPU_AUTH),
            Rule(AUTH, (434,)),
        ),
        ErrorTable.KIMI: (
            Rule(QUOTA, (), ("exceeded_current_quota_error",)),
            Rule(QUOTA, (429,), ("rate_limit_reached_error",), ("tpd",)),
            Rule(RATE, (), ("rate_limit_reached_error",)),
            Rule(TRANSIENT, (), ("engine_overloaded_error",)),
            Rule(CONTENT, (), ("content_filter",)),
        ),
        ErrorTable.VLLM: (),
    }
)

SHARED: Final = (
    Rule(GONE, (400, 403, 404), ("model_not_found", "modelnotfound")),
    Rule(GONE, (404,), ("notfounderror", "resource_not_found_error", "invalid_request_error"), ("model",)),
    Rule(GONE, (301, 308, 410)),
    Rule(TRANSIENT, (302, 303, 307)),
    Rule(AUTH, (401, 403, 407)),
    Rule(QUOTA, (402,)),
    Rule(RATE, (429,)),
    Rule(TRANSIENT, (408, 409, 421, 423, 424, 425)),
)


def classify(table: ErrorTable, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return the error that a reply amounts to.

    Args:
        table: whose rules to use.
        status: HTTP status; a success for an error found inside a reply, which may have been billed.
        headers: reply headers, lower-case names.
        body: the reply, whatever it is: JSON of any shape, HTML of a proxy, nothing.
    """
    facts = read_error(status, body)
    kind = _overruled(_kind(table, facts), headers)
    return ProviderError(
        kind,
        _sentence(facts, headers),
        status=status,
        code=facts.code,
        retry_after=_wait(kind, facts, headers),
        maybe_billed=status in SUCCESS,
        hints=rate_hints(headers) if kind is RATE else None,
    )


def _kind(table: ErrorTable, facts: ErrorFacts) -> ErrorClass:
    for rule in (*TABLES[table], *SHARED):
        if _matches(rule, facts):
            return rule.kind
    return BAD_REQUEST if facts.status in CLIENT_ERRORS else TRANSIENT


def _matches(rule: Rule, facts: ErrorFacts) -> bool:
    # A reply without a telling status (200, or none) is judged by its words alone, so a rule must have some.
    by_status = facts.status in rule.status if facts.has_status else bool(rule.words or rule.says)
    return (
        (not rule.status or by_status)
        and (not rule.words or any(_names(pattern, facts.words) for pattern in rule.words))
        and (not rule.says or any(piece in facts.said for piece in rule.says))
    )


def _names(pattern: str, words: frozenset[str]) -> bool:
    if pattern.endswith("*"):
        return any(word.startswith(pattern[:-1]) for word in words)
    return pattern in words


def _overruled(kind: ErrorClass, headers: Mapping[str, str]) -> ErrorClass:
    """Let `x-should-retry` speak: true makes a rejected request worth repeating, false ends a waiting one."""
    match should_retry(headers), kind:
        case True, ErrorClass.BAD_REQUEST:
            return TRANSIENT
        case False, ErrorClass.RATE:
            return QUOTA
        case False, ErrorClass.TRANSIENT:
            return BAD_REQUEST
    return kind


def _wait(kind: ErrorClass, facts: ErrorFacts, headers: Mapping[str, str]) -> float | None:
    """Return the wait asked for: by header, else in the body, else until an exhausted limit is full again."""
    asked = retry_after(headers)
    if asked is None:
        asked = facts.wait
    return exhausted_reset(rate_hints(headers)) if asked is None and kind is RATE else asked


def _sentence(facts: ErrorFacts, headers: Mapping[str, str]) -> str:
    location = headers.get("location")
    parts = (
        f"HTTP {facts.status}" if facts.status else "",
        facts.code,
        facts.message,
        f"redirects to {location.split('?')[0][:200]}; set base_url to the new address" if location else "",
    )
    return " ".join(part for part in parts if part) or "no reason given"
