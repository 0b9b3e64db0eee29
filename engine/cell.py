"""Cells and readings: why a request is made and what its answer was read as.

A cell is one point of a sweep's design (a stage and its coordinates) that some request answers. Several cells may share
one request: equal calls are made once. The engine stores coordinates and reading bodies without looking inside them.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from engine.request import Completion, Request


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One question of the sweep's design.

    Attributes:
        stage: the stage's name, e.g. `task`; budgets can be capped by it.
        alias: the sweep's name of the model that answers.
        coords: canonical JSON object of the coordinates; unique within (sweep, stage).
        request: the call that answers it.
        changes: JSON array of parameters that were dropped or replaced for this model, empty when none.
        priority: lower is leased first.
        batch: sent by the provider's batch API, which is a lane of its own.
    """

    stage: str
    alias: str
    coords: bytes
    request: Request
    changes: bytes = b""
    priority: int = 0
    batch: bool = False


class ReadingStatus(StrEnum):
    """How well an answer could be read; `truncated` kept every whole element, `unreadable` kept none and says why."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an instrument made of a completion.

    Attributes:
        body: JSON object, the instrument's own typed record.
        version: version of the reading rules, raised whenever they change.
    """

    status: ReadingStatus
    version: int
    reason: str = ""
    body: bytes = b"{}"


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A reading with the cells that follow from it; both are stored in one transaction."""

    reading: Reading
    follow_ups: Sequence[Cell] = ()


class Reader(Protocol):
    """Reads completions; pure, so that it can be repeated over a store without a network."""

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return the reading of `completion` for one cell, and what to ask next."""
        ...
