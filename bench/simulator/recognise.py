"""What a prompt asks for, told from its text alone, as a provider sees it.

The marks are words of the paper's prompts (Appendix G) that any wording of ours around them keeps. Pure.
"""

import json
import re
from typing import Final

import msgspec

JUDGE_MARK: Final = "## AI Response to Evaluate"
JUDGE_END: Final = "\n## Instructions"
AUDIT_MARK: Final = "Your response was:"
AUDIT_FACTS: Final = "these 3 facts about them:"
ACCUM_MARK: Final = "Current memory of the user:"
PROBE_MARK: Final = "List every claim you can reasonably infer"
KNOWN_MARK: Final = "what you know about the user from past interactions:"
KNOWN_END: Final = "Use this knowledge to help the user"

TASK_MARKS: Final = {
    "dating profile bio": "dating_profile",
    "weekend itinerary": "weekend_itinerary",
    "letter of recommendation": "recommendation_letter",
    "birthday gift": "birthday_gift",
    "apartment/home looks like": "apartment",
    "stresses me out": "stress_source",
}
_MESSAGE: Final = re.compile(r"New user message \(round (\d+)\):\s*\"(.*)\"\s*\n\s*\nUpdate the memory", re.DOTALL)
_FIELD: Final = re.compile(r"[{,\s]*\"?([A-Za-z_][\w ]*)\"?\s*:\s*")
_decoder: Final = json.JSONDecoder()


class TaskAsk(msgspec.Struct, frozen=True):
    """A personalization task; `facts` is the text that holds the persona's three facts."""

    facts: str
    task: str


class ProbeAsk(msgspec.Struct, frozen=True):
    """List what can be inferred from the facts."""

    facts: str


class JudgeAsk(msgspec.Struct, frozen=True):
    """Label the claims of a response."""

    response: str


class AuditAsk(msgspec.Struct, frozen=True):
    """Label the claims of one's own response."""

    facts: str
    response: str


class AccumAsk(msgspec.Struct, frozen=True):
    """Update the memory after a message of the conversation."""

    memory: dict[str, list[str]]
    utterance: str
    round: int


class OtherAsk(msgspec.Struct, frozen=True):
    """Anything else."""

    text: str


Ask = TaskAsk | ProbeAsk | JudgeAsk | AuditAsk | AccumAsk | OtherAsk


def recognise(system: str, user: str) -> Ask:
    """Return what the prompt asks; the texts that it quotes cannot pass for another question."""
    if JUDGE_MARK in user:
        response = user.partition(JUDGE_MARK)[2]
        return JudgeAsk(response.rpartition(JUDGE_END)[0] or response)
    if user.lstrip().startswith(ACCUM_MARK):
        return _accum(user)
    if AUDIT_MARK in user:
        before, _, after = user.partition(AUDIT_MARK)
        return AuditAsk(before.partition(AUDIT_FACTS)[2] or before, after)
    if PROBE_MARK in user:
        return ProbeAsk(user.partition(PROBE_MARK)[0])
    for mark, task in TASK_MARKS.items():
        if mark in user:
            return TaskAsk(_between(system or user, KNOWN_MARK, KNOWN_END), task)
    return OtherAsk(user)


def _between(text: str, mark: str, end: str) -> str:
    _, found, rest = text.partition(mark)
    return rest.partition(end)[0] if found else text


def _accum(user: str) -> AccumAsk:
    message = _MESSAGE.search(user)
    number, utterance = (int(message[1]), message[2]) if message else (1, "")
    return AccumAsk(_memory(user[user.index(ACCUM_MARK) + len(ACCUM_MARK) :]), utterance, number)


def _memory(text: str) -> dict[str, list[str]]:
    """Read `{name: [...], ...}` with or without quotes around names; stops at the first thing that is neither."""
    memory: dict[str, list[str]] = {}
    place = 0
    while match := _FIELD.match(text, place):
        try:
            value, place = _decoder.raw_decode(text, match.end())
        except json.JSONDecodeError:
            break
        if not isinstance(value, list):
            break
        memory[match[1]] = [str(entry) for entry in value]
    return memory
