"""Finding JSON in replies: what holds for every text."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from instruments.lenient import Json
from instruments.modeljson import Found, find_elements, find_object, strip_thinking

TEXTS = st.text() | st.text("[]{}\"'\\,:` \n<>/thinkaé\u201c\u201d\u20191-")
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXTS, children, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
PIECES = st.lists(
    st.sampled_from(["[", "]", "{", "}", '"', "'", "\\", ",", ":", "```", "<think>", "</think>", "a", "1"])
)


def anything(_: Mapping[str, Json]) -> bool:
    """Let every object fit."""
    return True


def has_claim(element: Mapping[str, Json]) -> bool:
    """Let objects with a claim fit."""
    return "claim" in element


@given(st.lists(OBJECTS, min_size=1, max_size=4), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_prefix_of_an_array_keeps_exactly_its_whole_elements(
    elements: list[dict[str, Any]], ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    """Cut a valid array anywhere: the elements whose closing brace is in are kept, no other."""
    ends, text = [], "["
    for number, element in enumerate(elements):
        text += (", " if number else "") + json.dumps(element, ensure_ascii=ascii_only, indent=indent)
        ends.append(len(text))
    cut = data.draw(st.integers(0, len(text)))
    found = find_elements(text[:cut], anything)
    whole = sum(end <= cut for end in ends)
    assert list(found.values) == elements[:whole]
    assert found.truncated == bool(whole)
    assert bool(found.reason) == (not whole)


@given(st.lists(OBJECTS, min_size=1, max_size=3), st.data())
def test_prefix_of_a_wrapped_array_keeps_exactly_its_whole_elements(
    elements: list[dict[str, Any]], data: st.DataObject
) -> None:
    """The same holds inside a wrapper object with a field in front."""
    ends, text = [], '{"note": "n", "claims": ['
    for number, element in enumerate(elements):
        text += (", " if number else "") + json.dumps({"claim": 1} | element)
        ends.append(len(text))
    cut = data.draw(st.integers(ends[0], len(text)))
    found = find_elements(text[:cut], has_claim)
    assert list(found.values) == [{"claim": 1} | element for element in elements[: sum(end <= cut for end in ends)]]


@given(
    st.lists(OBJECTS, min_size=1, max_size=4),
    st.sampled_from(
        ["", "Here it is:\n", "```json\n", "Text with [brackets] and {braces}.\n", "<think>a [{] b</think>"]
    ),
    st.sampled_from(["", "\n```", "\nThat's all.", "\n[1] A footnote."]),
)
def test_what_stands_around_an_array_changes_nothing(elements: list[dict[str, Any]], before: str, after: str) -> None:
    """Fences, prose and thinking around the answer leave its elements as they are."""
    found = find_elements(before + json.dumps(elements, ensure_ascii=False) + after, anything)
    assert list(found.values) == elements
    assert not found.truncated


@given(st.lists(st.builds(lambda text: {"claim": text}, TEXTS), min_size=1, max_size=3), TEXTS)
def test_last_array_that_fits_is_the_answer(elements: list[dict[str, Any]], draft: str) -> None:
    """A draft, whatever it says, gives way to the array behind it."""
    text = f"{json.dumps([{'claim': draft}])}\nBetter:\n{json.dumps(elements)}\n{json.dumps([{'n': 1}])}"
    assert list(find_elements(text, has_claim).values) == elements


@given(TEXTS | st.builds("".join, PIECES) | st.text(st.characters()))
@example("\ud800[")
@example('["\\ud800", {"claim": "\ud800"}]')
@example("[" * 3000 + "]" * 3000)
@example('{"a":' * 3000)
@example("[1" + "0" * 5000 + "]")
def test_no_text_raises(text: str) -> None:
    """Any text gives values or a reason, and only whole JSON values that can be stored."""
    for found in (find_elements(text, has_claim), find_object(text, has_claim)):
        assert isinstance(found, Found)
        assert not (found.values and found.reason)
        json.dumps(found.values, ensure_ascii=False).encode()


HOSTILE = {
    "open arrays": "[" * 1_000_000,
    "open objects": '{"a":' * 200_000,
    "brackets in prose": "[x" * 500_000,
    "empty arrays": "[]" * 500_000,
    "empty objects": "{}" * 500_000,
    "lines of empty arrays": "\n[]\n" * 250_000,
    "small objects": '{"claim":1}x' * 80_000,
    "numbers": "[" + "0," * 500_000,
    "quotes": '["' * 500_000,
    "typographic quotes": "[\u201c" * 500_000,
    "backslashes": '["' + "\\" * 1_000_000,
    "comments": "[//" * 330_000,
    "white space": "[ " + " " * 1_000_000 + "x",
    "thinking": "<think></think>" * 70_000,
    "open thinking": "x<think>" * 130_000,
    "closed thinking": "[</think>" * 110_000,
    "long string read again": "[" * 60 + '"' + "a" * 1_000_000 + '"x',
    "deep and valid": "[" * 500_000 + "]" * 500_000,
    "long number": "[" + "9" * 1_000_000 + "]",
    "many fields": "{" + ",".join(f'"k{n}":[]' for n in range(90_000)) + ",}",
    "back quotes": "[]" + "`" * 1_000_000 + "x",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_megabyte_is_read_in_linear_time(text: str) -> None:
    """A megabyte made to be slow costs seconds at the very most, where a quadratic reader needs hours."""
    start = time.process_time()
    assert find_elements(text, has_claim).values == () or text.startswith("{")
    find_object(text, has_claim)
    assert time.process_time() - start < 5


def test_reply_with_too_many_pieces_has_no_answer() -> None:
    """An array seen before the search was given up need not be the last one, so it is not taken."""
    found = find_elements('[{"claim": "a"}] x ' + "[x" * 500_000, has_claim)
    assert (found.values, found.reason) == ((), "more than 100000 pieces of JSON")


@pytest.mark.parametrize(
    ("text", "rest", "unclosed"),
    [
        ("plain", "plain", False),
        ("<think>a</think>\n\nb", "b", False),
        (" <THINKING>a</thinking><think></think> b", "b", False),
        ("<think>a", "", True),
        ("a <think>b</think>", "a <think>b</think>", False),
        ("<thinker>a", "<thinker>a", False),
    ],
)
def test_thinking_in_front_is_taken_off(text: str, rest: str, unclosed: bool) -> None:
    """Only blocks at the start are thinking for sure."""
    assert strip_thinking(text) == (rest, unclosed)
