r"""Finds the JSON in a model's reply. Knows no instrument; never evaluates, guesses or raises on any text.

A reply that is strict JSON from its first bracket to its last is decoded at once. Anything else is searched from left
to right for values that start with `[` or `{`, read by the tolerant grammar of `instruments.lenient`; fences and prose
are what stands between values. Brackets and backticks inside of strings are text. Which value is the answer:

1. Thinking blocks are no part of the answer. An unclosed one leaves no answer.
2. The answer is the *last* complete top-level array of the wanted shape: a model that drafts, or repeats an example of
   the format, ends with what it means. The text being judged stands in the prompt only and never in the reply, so
   nothing in it can pose as the answer; what a reply quotes from it stands inside of strings.
3. Failing that, an array that was cut off or is broken, up to its last whole element, marked as truncated. What
   follows a fault is not read: where strings begin and end is no longer certain there.
4. Failing that, objects that stand side by side without an array.
5. Failing that, an explicit empty array on a line of its own.

Wanted shape: an array with objects of which one fits, nested arrays being read as one; or an object that holds exactly
one such array, or exactly one under a customary name; or an object of such objects.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Final, TypeAlias

import msgspec

from instruments.lenient import Candidate, Json, Scanner

Fits: TypeAlias = Callable[[Mapping[str, Json]], bool]
Choose: TypeAlias = "Callable[[list[Candidate], str], Found]"

WRAPPERS: Final = ("claims", "inferences", "results", "classifications", "items", "answer", "output", "data")
MAX_WRAPPER_DEPTH: Final = 3
_THINK_WORDS: Final = r"(?:think|thinking|thought|reasoning)"
_THINK: Final = re.compile(rf"<{_THINK_WORDS}>|\[THINK\]", re.IGNORECASE)
_UNTHINK: Final = re.compile(rf"</{_THINK_WORDS}>|\[/THINK\]", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s*+")
_BRACKET: Final = re.compile(r"[\[{]")
_MARK: Final = re.compile(rf"(?P<think>{_THINK.pattern})|(?P<unthink>{_UNTHINK.pattern})|[\[{{]", re.IGNORECASE)
_NOTHING_MORE: Final = re.compile(r"[\s`*.]*+\Z")
_CONTINUES: Final = re.compile(r"(?:,|[\"'\u201d]\s*:)\s*\Z")
_OPENS_LINE: Final = re.compile(r"(?:\A|\n|:)[ \t`]*\Z")
_CLOSES_LINE: Final = re.compile(r"[ \t`]*+\.?[ \t\r]*+(?:\n|\Z)")
_LOOK_BACK: Final = 64
_strict = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a reply contains.

    Attributes:
        values: the elements of the array (not all need fit), or the one object looked for.
        truncated: the array or object was cut off or broken; `values` holds what was whole before that.
        loose: the objects stand side by side, without an array around them.
        last: nothing of substance follows in the reply.
        note: what was odd about the reply, for people.
        reason: why nothing was found; empty when something was.
    """

    values: tuple[Json, ...] = ()
    truncated: bool = False
    loose: bool = False
    last: bool = True
    note: str = ""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Finds:
    """What a text holds, by kind, in order of appearance; arrays and objects come with their elements."""

    arrays: list[tuple[Candidate, list[Json]]] = field(default_factory=list)
    objects: list[Candidate] = field(default_factory=list)
    empty: Candidate | None = None
    broken: Candidate | None = None


def find_elements(text: str, fits: Fits) -> Found:
    """Return the elements of the array of objects that a reply gives as its answer.

    Args:
        text: the reply, any text at all.
        fits: whether an object looks like a wanted element; decides between several arrays.
    """
    value, last = _decode(text)
    if isinstance(value, dict) and fits(value):
        return Found(values=(value,), last=last, note="one object without an array")
    if elements := _elements(value, fits):
        return Found(values=tuple(elements), last=last)
    return _search(text, lambda candidates, part: _choose_elements(candidates, part, fits))


def find_object(text: str, fits: Fits) -> Found:
    """Return the last object of a reply that fits, bare, or as the only one that fits in an array or another object."""
    value, last = _decode(text)
    if (inner := _inner_object(value, fits)) is not None:
        return Found(values=(inner,), last=last)
    return _search(text, lambda candidates, part: _choose_object(candidates, part, fits))


def strip_thinking(text: str) -> tuple[str, bool]:
    """Return `text` without thinking blocks at its start, and whether one of them was left unclosed."""
    position = _skip_space(text, 0)
    while opened := _THINK.match(text, position):
        closed = _UNTHINK.search(text, opened.end())
        if closed is None:
            return "", True
        position = _skip_space(text, closed.end())
    return text[position:], False


def sound(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be stored as UTF-8."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _skip_space(text: str, position: int) -> int:
    blank = _SPACE.match(text, position)
    return blank.end() if blank else position


def _decode(text: str) -> tuple[Json, bool]:
    """Return the strict reading of all that stands between the first bracket and the last, and whether that is the end.

    Where this succeeds the search would find the same value, the only one; it returns None where thinking marks stand
    around the value, another value begins behind it, or anything else calls for the search.
    """
    answer, _ = strip_thinking(text)
    opening = _BRACKET.search(answer)
    end = max(answer.rfind("]"), answer.rfind("}")) + 1
    if opening is None or _MARK.search(answer, end) or _THINK.search(answer, 0, opening.start()):
        return None, False
    try:
        value: Json = _strict.decode(answer[opening.start() : end])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None, False
    return value, _NOTHING_MORE.match(answer, end) is not None


def _search(text: str, choose: Choose) -> Found:
    answer, unclosed = strip_thinking(sound(text))
    if unclosed:
        return Found(reason="the thinking block is not closed")
    if not answer:
        return Found(reason="empty response")
    found = _answer_in(answer, choose)
    closers = [match.end() for match in _UNTHINK.finditer(answer)]
    if closers and (found.reason or found.truncated):
        # Thinking whose start tag the chat template swallowed may hold a draft with an open quote that hides the answer
        # behind it. Only a whole array counts: where the closing tag is quoted in a claim, mere pieces follow.
        behind = _answer_in(answer[closers[-1] :], choose)
        return found if behind.reason or behind.truncated or behind.loose else behind
    return found


def _answer_in(text: str, choose: Choose) -> Found:
    """Return the choice among all values in `text`.

    A search that stopped early has no answer: the last array it saw need not be the last one there is.
    """
    candidates, stopped = _candidates(text)
    return Found(reason=stopped) if stopped else choose(candidates, text)


def _candidates(text: str) -> tuple[list[Candidate], str]:
    """Return the values in `text` from left to right, and why the search stopped early, if it did."""
    scanner, found, position = Scanner(text), list[Candidate](), 0
    while not scanner.stopped and (mark := _MARK.search(text, position)):
        if mark["unthink"]:
            found = _forget(found)
            position = mark.end()
        elif mark["think"]:
            closed = _UNTHINK.search(text, mark.end())
            position = closed.end() if closed else len(text)
        else:
            found.append(scanner.read(mark.start()))
            position = found[-1].resume
    return found, scanner.stopped


def _forget(found: list[Candidate]) -> list[Candidate]:
    """Return what remains of values that turn out to be thinking: nothing, but that one was broken.

    A closing tag may also stand in a string of a broken answer, so objects behind it may be mere pieces of that answer.
    """
    broken = [candidate for candidate in found if candidate.fault and candidate.serious]
    return [replace(candidate, path=(), keys=()) for candidate in broken[-1:]]


def _choose_elements(candidates: list[Candidate], text: str, fits: Fits) -> Found:
    finds = _sort(candidates, text, fits)
    fitting = [(candidate, elements) for candidate, elements in finds.arrays if _any_fits(elements, fits)]
    if fitting:
        return _from_array(fitting, finds, text)
    if finds.broken:
        return _from_broken(finds.broken, finds.objects, fits)
    if finds.objects:
        values = tuple(candidate.value for candidate in finds.objects)
        last = _ends(text, finds.objects[-1])
        return Found(values=values, loose=True, last=last, note="objects without an array")
    if finds.arrays:
        return _from_array(finds.arrays, finds, text)
    if finds.empty:
        return Found(last=_ends(text, finds.empty))
    return Found(reason="no JSON array of objects in the reply")


def _sort(candidates: list[Candidate], text: str, fits: Fits) -> _Finds:
    finds = _Finds()
    for candidate in candidates:
        if finds.broken and _CONTINUES.search(text[max(0, candidate.start - _LOOK_BACK) : candidate.start]):
            continue  # a piece of the broken value
        if candidate.fault:
            finds.broken = candidate if candidate.serious else finds.broken
        elif isinstance(candidate.value, dict) and fits(candidate.value):
            finds.objects.append(candidate)
        elif elements := _elements(candidate.value, fits):
            finds.arrays.append((candidate, elements))
        elif elements == [] and _stands_alone(text, candidate):
            finds.empty = candidate
    return finds


def _from_array(arrays: list[tuple[Candidate, list[Json]]], finds: _Finds, text: str) -> Found:
    candidate, elements = arrays[-1]
    notes = [f"the last of {len(arrays)} arrays"] if len(arrays) > 1 else []
    if finds.broken:
        notes.append(f"another value is {finds.broken.fault}")
    return Found(values=tuple(elements), last=_ends(text, candidate), note="; ".join(notes))


def _from_broken(broken: Candidate, objects: list[Candidate], fits: Fits) -> Found:
    before: list[Json] = [candidate.value for candidate in objects if candidate.start < broken.start]
    choices = (_whole_elements(broken), _whole_children(broken), before)
    values = next((choice for choice in choices if _any_fits(choice, fits)), choices[0])
    if not values:
        return Found(reason=f"{broken.fault} before the first whole element")
    return Found(values=tuple(values), truncated=True, note=broken.fault)


def _whole_elements(broken: Candidate) -> list[Json]:
    """Return the whole elements of the outermost open array, those of arrays nested directly in it included."""
    elements: list[Json] = []
    for container in dropwhile(lambda container: isinstance(container, dict), broken.path):
        if not isinstance(container, list):
            break
        elements.extend(_flat(container))
    return elements


def _whole_children(broken: Candidate) -> list[Json]:
    """Return the whole objects in an outermost object, as in `{"1": {...}, "2": {...}`."""
    root = broken.path[0] if broken.path else None
    return [child for child in root.values() if isinstance(child, dict)] if isinstance(root, dict) else []


def _elements(value: Json, fits: Fits, depth: int = 0) -> list[Json] | None:
    """Return the elements of an array of objects or of what wraps one; None when `value` is neither."""
    if isinstance(value, list):
        flat = _flat(value)
        return flat if not flat or any(isinstance(element, dict) for element in flat) else None
    if not isinstance(value, dict) or depth == MAX_WRAPPER_DEPTH:
        return None
    if value and all(isinstance(child, dict) for child in value.values()) and _any_fits(list(value.values()), fits):
        return list(value.values())
    inner = {key: found for key, child in value.items() if (found := _elements(child, fits, depth + 1)) is not None}
    full = {key: found for key, found in inner.items() if found}
    if len(full) == 1:
        return next(iter(full.values()))
    named = [inner[key] for key in inner if key.casefold() in WRAPPERS]
    return named[0] if len(named) == 1 else None


def _flat(values: list[Json]) -> list[Json]:
    """Return the elements with arrays in place of an element opened up, to a small depth."""
    for _ in range(MAX_WRAPPER_DEPTH):
        if not any(isinstance(value, list) for value in values):
            break
        values = [inner for value in values for inner in (value if isinstance(value, list) else [value])]
    return values


def _any_fits(values: list[Json], fits: Fits) -> bool:
    return any(isinstance(value, dict) and fits(value) for value in values)


def _ends(text: str, candidate: Candidate) -> bool:
    return _NOTHING_MORE.match(text, candidate.end) is not None


def _stands_alone(text: str, candidate: Candidate) -> bool:
    """Whether a value fills its line, or what its line announces with a colon; `- [ ] item` does not."""
    before = _OPENS_LINE.search(text[max(0, candidate.start - _LOOK_BACK) : candidate.start])
    return before is not None and _CLOSES_LINE.match(text, candidate.end) is not None


def _choose_object(candidates: list[Candidate], text: str, fits: Fits) -> Found:
    for candidate in reversed(candidates):
        if (value := _inner_object(candidate.value, fits)) is not None:
            return Found(values=(value,), last=_ends(text, candidate))
    for candidate in candidates:
        if candidate.fault and (value := _inner_object(_partial(candidate), fits)) is not None:
            return Found(values=(value,), truncated=True, note=candidate.fault)
    broken = next((candidate.fault for candidate in candidates if candidate.serious and candidate.fault), "")
    return Found(reason=f"the JSON object is {broken}" if broken else "no fitting JSON object in the reply")


def _inner_object(value: Json, fits: Fits) -> dict[str, Json] | None:
    for _ in range(MAX_WRAPPER_DEPTH):
        if isinstance(value, dict) and fits(value):
            return value
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        fitting = [child for child in inner if isinstance(child, dict) and fits(child)]
        if len(fitting) == 1:
            return fitting[0]
        if len(inner) != 1:
            return None
        value = inner[0]
    return None


def _partial(candidate: Candidate) -> Json:
    """Return the outermost open container with its open children put in place; open objects in arrays are left out."""
    child: Json = None
    for container, key in reversed(tuple(zip(candidate.path, candidate.keys, strict=True))):
        if isinstance(container, dict) and isinstance(child, list | dict):
            container[key] = child
        elif isinstance(container, list) and isinstance(child, list):
            container.append(child)
        child = container
    return child
