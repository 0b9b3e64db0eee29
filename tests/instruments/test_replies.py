"""Awkward replies of models, each with its one right reading (data/instruments_replies.toml)."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.request import Completion, Finish
from instruments.instrument import Stage
from instruments.reader import INSTRUMENTS

FILE = Path(__file__).parents[1] / "data" / "instruments_replies.toml"
REPLIES = tomllib.loads(FILE.read_text(encoding="utf-8"))["reply"]


def _seen(body: dict[str, Any]) -> dict[str, Any]:
    """Return a reading's body in the words of the data file."""
    claims, inferences = body.get("claims", []), body.get("inferences", [])
    return {
        "unread": 0,
        "unread_accuracy": 0,
        "missing": [],
        "texts": [claim["text"] for claim in claims],
        "types": [inference["type"] for inference in inferences],
    } | body


@pytest.mark.parametrize("case", REPLIES, ids=[case["name"] for case in REPLIES])
def test_reply_is_read_as_written_down(case: dict[str, Any], answer: Callable[..., Completion]) -> None:
    """Status, reason and every named part of the body are as expected."""
    completion = answer(case["text"], Finish(case.get("finish", "stop")))
    reading = INSTRUMENTS[Stage(case.get("stage", "judge"))].read(completion)
    seen = _seen(json.loads(reading.body))
    expected = {key: case[key] for key in case.keys() - {"name", "text", "stage", "finish", "status", "reason"}}
    assert reading.status == case["status"], reading
    assert case.get("reason", "") in reading.reason
    assert {key: seen[key] for key in expected} == expected


def test_unreadable_reply_always_has_a_reason(answer: Callable[..., Completion]) -> None:
    """No missing value is without its why, and no complete one has one."""
    for case in REPLIES:
        completion = answer(case["text"], Finish(case.get("finish", "stop")))
        reading = INSTRUMENTS[Stage(case.get("stage", "judge"))].read(completion)
        assert bool(reading.reason) == (reading.status != "complete"), case["name"]


def test_reply_names_are_unique() -> None:
    """A case can be found by its name."""
    names = [case["name"] for case in REPLIES]
    assert len(names) == len(set(names))
