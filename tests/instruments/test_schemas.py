"""Bounded schemas: what they allow is finite, has a known length and can be read."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Completion, Finish, Usage
from instruments.instrument import Design, Stage
from instruments.reader import INSTRUMENTS, plan
from instruments.schemas import CHARACTERS, SCHEMAS, decoding, max_schema_tokens, stage_schema

STAGES = list(SCHEMAS)
ALPHABET = "abcXYZ019 ,.'-"


def shortest(schema: dict[str, Any]) -> Any:
    """Return a smallest value."""
    if "enum" in schema:
        return min(schema["enum"], key=len)
    if schema["type"] == "string":
        return "-"
    if schema["type"] == "array":
        return [shortest(schema["items"])] * schema["minItems"]
    return {key: shortest(child) for key, child in schema["properties"].items()}


def longest(schema: dict[str, Any]) -> Any:
    """Return a largest value."""
    if "enum" in schema:
        return max(schema["enum"], key=len)
    if schema["type"] == "string":
        return "x" * int(re.findall(r"(\d+)}", schema["pattern"])[-1])
    if schema["type"] == "array":
        return [longest(schema["items"])] * schema["maxItems"]
    return {key: longest(child) for key, child in schema["properties"].items()}


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values that a schema allows."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "string":
        return st.text(ALPHABET, min_size=1, max_size=int(re.findall(r"(\d+)}", schema["pattern"])[-1]))
    if schema["type"] == "array":
        return st.lists(values(schema["items"]), min_size=schema["minItems"], max_size=schema["maxItems"])
    return st.fixed_dictionaries({key: values(child) for key, child in schema["properties"].items()})


@pytest.mark.parametrize("stage", STAGES)
def test_bound_is_the_length_of_the_longest_answer(stage: Stage) -> None:
    """Written out without white space, the largest value has exactly that many characters."""
    text = json.dumps(longest(SCHEMAS[stage]), separators=(",", ":"))
    assert max_schema_tokens(SCHEMAS[stage]) == len(text)


@pytest.mark.parametrize("stage", STAGES)
def test_bound_fits_a_small_context(stage: Stage) -> None:
    """No constrained answer takes more than 700 tokens."""
    assert max_schema_tokens(SCHEMAS[stage]) < 700


@given(st.sampled_from(STAGES).flatmap(lambda stage: st.tuples(st.just(stage), values(SCHEMAS[stage]))))
def test_every_answer_that_a_schema_allows_is_read_whole(case: tuple[Stage, Any]) -> None:
    """No constrained answer is unreadable or loses an element, blank texts aside."""
    stage, value = case
    completion = Completion(text=json.dumps(value, separators=(",", ":")), finish=Finish.STOP, usage=Usage())
    reading = INSTRUMENTS[stage].read(completion)
    body = json.loads(reading.body)
    items = value.get("claims", value.get("inferences", []))
    kept = [item for item in items if item["claim"].strip()]
    assert len(body.get("claims", body.get("inferences", []))) == len(kept)
    assert reading.status == ("complete" if kept or not items else "unreadable")


@pytest.mark.parametrize("stage", STAGES)
def test_smallest_answer_is_read(stage: Stage, answer: Callable[..., Completion]) -> None:
    """Even one-character texts make a complete reading."""
    assert INSTRUMENTS[stage].read(answer(json.dumps(shortest(SCHEMAS[stage])))).status == "complete"


@pytest.mark.parametrize("stage", STAGES)
def test_schema_is_strict(stage: Stage) -> None:
    """The root is an object; every object is closed and requires all its fields."""

    def check(schema: dict[str, Any]) -> None:
        if schema["type"] == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
            for child in schema["properties"].values():
                check(child)
        elif schema["type"] == "array":
            check(schema["items"])

    schema = json.loads(stage_schema(stage) or "")
    assert schema["type"] == "object"
    check(schema)


def test_structured_design_sets_schema_and_allowance(vary: Callable[..., Design]) -> None:
    """JSON stages get the bound and one token for the end, the task stays free text with its own allowance."""
    design = vary(structured=True)
    for stage in STAGES:
        settings = decoding(design, stage)
        assert settings.schema == stage_schema(stage)
        assert settings.max_tokens == max_schema_tokens(SCHEMAS[stage]) + 1
    assert (decoding(design, Stage.TASK).schema, decoding(design, Stage.TASK).max_tokens) == (None, 500)


def test_unstructured_design_sends_no_schema(design: Design) -> None:
    """Free text is the default, as in the paper."""
    assert all(ask.decoding.schema is None for ask in plan(design))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": f"[{CHARACTERS}]+"},
        {"type": "array", "items": {"type": "string", "enum": ["a"]}},
        {"type": "array", "maxItems": 3},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": True}, "additionalProperties": False},
        {"type": "number"},
        {"enum": []},
        {},
    ],
    ids=str,
)
def test_unbounded_schema_is_refused(schema: dict[str, Any]) -> None:
    """No bound is claimed where there is none."""
    with pytest.raises(ValueError, match=r"need|bound"):
        max_schema_tokens(schema)
