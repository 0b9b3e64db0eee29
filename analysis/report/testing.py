"""Builds small stores for tests of the page: what `StoreBuilder` writes, and the responses behind it."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from analysis.testing import Cell, StoreBuilder

GROUPS: Final = ("stereotypical", "counter-stereotypical", "neutral")
LABELS: Final = {
    "G": "GROUNDED",
    "R": "INFERRED_REASONABLE",
    "S": "INFERRED_STEREOTYPE",
    "F": "FABRICATED",
}
FIRST_TASK: Final = "apartment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a test's sweep is made of.

    Parameters
    ----------
    models : mapping from alias to family
    personas, samples, rounds : int
    tasks : tuple of str
    texts : tuple of str
        What the models answer, in turn.
    claim, reasoning : str
        What every claim says, and why it has its label.
    simulated, toy_judge : bool
    labels : mapping from alias to printed name
    facts : tuple of str
        What every persona reveals; empty for a manifest without facts.
    name : str
        The sweep's.
    """

    models: Mapping[str, str] = field(default_factory=lambda: {"m-1": "one", "m-2": "two", "m-3": "two"})
    personas: int = 6
    samples: int = 2
    rounds: int = 3
    tasks: tuple[str, ...] = (FIRST_TASK, "gift")
    texts: tuple[str, ...] = ("You live in a loft.", "A book about birds.")
    claim: str = "lives in a loft"
    reasoning: str = "no fact says so"
    simulated: bool = False
    toy_judge: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] = ("I sing.", "I cycle.", "I have a cat.")
    name: str = "sweep"


def build_store(path: Path, design: Design | None = None) -> Path:
    """Write a store whose responses, verdicts, audits, probes and memories hang together; return its path."""
    design = design or Design()
    answers: list[tuple[int, int]] = []
    with StoreBuilder(path) as builder:
        builder.sweep(
            design.name,
            subjects=design.models,
            simulated=design.simulated,
            toy_judge=design.toy_judge,
            labels=design.labels,
        )
        for number, row in enumerate(_places(design), start=1):
            labels = _labels(number, row)
            builder.records({**row, **_judged(design, number, labels)})
            builder.audits({**row, "labels": labels[::-1], "task_cell_id": number})
            text = design.texts[number % len(design.texts)]
            builder.insert("requests", [_request(design, number, str(row["model"]), text)])
            answers.append((number, number))
        for persona in range(design.personas):
            _monitored(builder, design, persona)
    _finish(path, design, answers)
    return path


def _places(design: Design) -> list[dict[str, Cell]]:
    return [
        {
            "model": model,
            "persona": f"p{persona}",
            "persona_group": GROUPS[persona % len(GROUPS)],
            "task": task,
            "sample": sample,
        }
        for model in design.models
        for persona in range(design.personas)
        for task in design.tasks
        for sample in range(design.samples)
    ]


def _labels(number: int, row: Mapping[str, Cell]) -> str:
    """Return two to five labels that differ between rows; the first task gets more over-inference."""
    drawn = blake2b(f"{number}".encode(), digest_size=5).digest()
    shift = 1 if row["task"] == FIRST_TASK else 0
    return "".join("GRSF"[min(byte % 4 + shift, 3)] for byte in drawn[: 2 + drawn[0] % 4])


def _judged(design: Design, number: int, labels: str) -> dict[str, Cell]:
    return {
        "labels": labels,
        "accuracy": "CIUP-"[: len(labels)],
        "claims": json.dumps(
            [
                {"text": design.claim, "label": LABELS[letter], "accuracy": "CORRECT", "reasoning": design.reasoning}
                for letter in labels
            ]
        ),
        "task_cell_id": number,
        "judge_cell_id": -number,
        "response_characters": 1,
    }


def _request(design: Design, number: int, model: str, text: str) -> dict[str, Cell]:
    return {
        "request_id": number, "key": f"{number:032x}", "sweep": design.name, "alias": model, "stage": "task",
        "state": "read", "attempts": 1, "finish": "stop", "input_tokens": 10, "cached_tokens": 0, "output_tokens": 20,
        "reasoning_tokens": 0, "cost_nano": 1_000_000, "latency_ms": 500,
        "settled_ms": 1_700_000_000_000 + 250 * number, "text": text,
    }  # fmt: skip


def _monitored(builder: StoreBuilder, design: Design, persona: int) -> None:
    """Add the probes of a persona, and a memory that grows by two attributes a round."""
    for model in design.models:
        where: dict[str, Cell] = {"model": model, "persona": f"p{persona}", "persona_group": GROUPS[persona % 3]}
        builder.probes({**where, "labels": "GGR", "accuracy": "CIC"[persona % 2 :] + "C" * (persona % 2)})
        sizes: Sequence[int] = [2 * turn + persona for turn in range(1, design.rounds + 1)]
        builder.memory(model, f"p{persona}", [[f"a{place}" for place in range(size)] for size in sizes])


def _finish(path: Path, design: Design, answers: Sequence[tuple[int, int]]) -> None:
    """Add the view that leads from verdicts to responses, and what a manifest holds beside what tables need."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE answers (cell_id INTEGER PRIMARY KEY, request_id)")
        connection.executemany("INSERT INTO answers VALUES (?, ?)", answers)
        # A store has this as a key; without one, SQLite would look through all requests for every answer.
        connection.execute("CREATE INDEX request ON requests (request_id)")
        (text,) = connection.execute("SELECT manifest FROM sweeps").fetchone()
        manifest = json.loads(text)
        if design.facts:
            manifest["personas_facts"] = {f"p{persona}": design.facts for persona in range(design.personas)}
        manifest["seed"] = 7
        manifest["versions"] = {"python": "3.11"}
        manifest["sweep_file"] = f'name = "{design.name}"\n'
        manifest["fixed"] = {"prompts": {"task_system": "0123abcd"}, "rounds": design.rounds}
        connection.execute("UPDATE sweeps SET manifest = ?", (json.dumps(manifest),))
