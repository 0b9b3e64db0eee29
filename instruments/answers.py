"""What every instrument does with a completion before it reads it: refusals, thinking, readings and lists of claims.

Knows the taxonomy and the shape of readings, no prompt and no design.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from engine.cell import Reading, ReadingStatus
from engine.request import Completion, Finish
from instruments.claims import Accuracy, Claim, Label, accuracy_letters, label_letters, read_accuracy, read_label
from instruments.lenient import Json
from instruments.modeljson import Found, find_elements, sound, strip_thinking

CLAIM_KEYS: Final = ("claim", "claimtext", "statement", "text")
LABEL_KEYS: Final = ("category", "label", "classification", "claimcategory", "class", "type")
ACCURACY_KEYS: Final = ("accuracy", "accuracyassessment", "accuracylabel", "correctness")
REASONING_KEYS: Final = ("reasoning", "explanation", "rationale", "justification", "reason", "evidence")
_KNOWN_KEYS: Final = frozenset(CLAIM_KEYS + LABEL_KEYS + ACCURACY_KEYS + REASONING_KEYS)
_SEPARATORS: Final = re.compile(r"[\W_]+")
_BLOCKED: Final = {Finish.REFUSED: "refused", Finish.FILTERED: "filtered"}


class AuditBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's own list of claims.

    Attributes:
        labels: one letter per claim.
        unread: elements of the list that had no claim or no known category; not guessed and not in `claims`.
        note: what was odd about the reply.
    """

    labels: str
    claims: tuple[Claim, ...]
    unread: int = 0
    note: str = ""


class JudgeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A judge's list of claims.

    Attributes:
        labels, accuracy: one letter per claim, `-` where the accuracy was not given or not in known words.
        unread: elements of the list that had no claim or no known category; not guessed and not in `claims`.
        unread_accuracy: claims whose accuracy was given in words that are not known.
    """

    labels: str
    accuracy: str
    claims: tuple[Claim, ...]
    unread: int = 0
    unread_accuracy: int = 0
    note: str = ""


def blocked(completion: Completion) -> str:
    """Return why a completion holds no answer at all: `refused`, `filtered` or `empty response`; empty when it does."""
    if reason := _BLOCKED.get(completion.finish):
        return reason
    return "" if completion.text.strip() else with_finish("empty response", completion)


def answer_text(completion: Completion) -> str:
    """Return what the model said, without thinking that stands in front of it."""
    return strip_thinking(sound(completion.text))[0].strip()


def with_finish(reason: str, completion: Completion) -> str:
    """Return `reason`, with a word on the token allowance where that ran out."""
    return f"{reason}; the token allowance ran out" if completion.finish is Finish.TRUNCATED else reason


def unreadable(version: int, reason: str) -> Reading:
    """Return the reading of an answer that nothing could be read from."""
    return Reading(status=ReadingStatus.UNREADABLE, version=version, reason=reason)


def found_reading(version: int, found: Found, completion: Completion, body: msgspec.Struct) -> Reading:
    """Return the reading of JSON that was found: truncated where it, or the reply behind it, was cut off."""
    cut = found.truncated or (completion.finish is Finish.TRUNCATED and not found.last)
    reason = with_finish(found.note or "the reply goes on behind its JSON", completion) if cut else ""
    status = ReadingStatus.TRUNCATED if cut else ReadingStatus.COMPLETE
    return Reading(status=status, version=version, reason=reason, body=msgspec.json.encode(body))


def read_audit(completion: Completion, version: int) -> Reading:
    """Read an answer that lists claims with categories."""
    found, claims, problem = _find_claims(completion)
    if problem:
        return unreadable(version, problem)
    unread = len(found.values) - len(claims)
    body = AuditBody(labels=label_letters(claims), claims=claims, unread=unread, note=found.note)
    return found_reading(version, found, completion, body)


def read_judgement(completion: Completion, version: int) -> Reading:
    """Read an answer that lists claims with categories and accuracy."""
    found, claims, problem = _find_claims(completion)
    if problem:
        return unreadable(version, problem)
    body = JudgeBody(
        labels=label_letters(claims),
        accuracy=accuracy_letters(claims),
        claims=claims,
        unread=len(found.values) - len(claims),
        unread_accuracy=_unread_accuracies(found.values) if any(claim.accuracy is None for claim in claims) else 0,
        note=found.note,
    )
    return found_reading(version, found, completion, body)


def plain_key(key: str) -> str:
    """Return a key without case and separators: `Claim-Text` is `claimtext`."""
    return key if key in _KNOWN_KEYS else _SEPARATORS.sub("", key).casefold()


def first_text(fields: Mapping[str, Json], keys: tuple[str, ...]) -> str:
    """Return the first text that is not blank under one of `keys`, or an empty one."""
    for key in keys:
        value = fields.get(key)
        if isinstance(value, str) and (text := value.strip()):
            return text
    return ""


def _find_claims(completion: Completion) -> tuple[Found, tuple[Claim, ...], str]:
    """Return what was found, the claims that could be read from it, and why there is no reading if there is none."""
    if reason := blocked(completion):
        return Found(), (), reason
    found = find_elements(completion.text, _is_claim)
    if found.reason:
        return found, (), with_finish(found.reason, completion)
    claims = tuple(claim for value in found.values if (claim := _claim(value)) is not None)
    if found.values and not claims:
        return found, (), f"none of {len(found.values)} elements has a claim and a known category"
    return found, claims, ""


def _is_claim(element: Mapping[str, Json]) -> bool:
    return _claim(element) is not None


def _claim(element: Json | Mapping[str, Json]) -> Claim | None:
    """Return an element as a claim; None without a text, without a known label, or with two that differ."""
    if not isinstance(element, Mapping):
        return None
    fields = {plain_key(key): value for key, value in element.items()}
    text, label = first_text(fields, CLAIM_KEYS), _label(fields)
    if not text or label is None:
        return None
    return Claim(text=text, label=label, accuracy=_accuracy(fields), reasoning=first_text(fields, REASONING_KEYS))


def _label(fields: Mapping[str, Json]) -> Label | None:
    labels = {label for key in LABEL_KEYS if (label := read_label(fields.get(key))) is not None}
    return labels.pop() if len(labels) == 1 else None


def _accuracy(fields: Mapping[str, Json]) -> Accuracy | None:
    words = {word for key in ACCURACY_KEYS if (word := read_accuracy(fields.get(key))) is not None}
    return words.pop() if len(words) == 1 else None


def _unread_accuracies(values: tuple[Json, ...]) -> int:
    """Count the claims that come with something for their accuracy which is none of the known words."""
    count = 0
    for value in values:
        claim = _claim(value)
        if claim is not None and claim.accuracy is None and isinstance(value, dict):
            count += any(given for key, given in value.items() if plain_key(key) in ACCURACY_KEYS)
    return count
