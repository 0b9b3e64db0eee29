"""Small stores of judged claims for tests: real schema and views, invented answers, shipped personas and tasks."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from engine.database import APPLICATION_ID, migrations
from instruments.annotation.judged import candidates, find_judged, items_of
from instruments.annotation.sample import SamplePlan, draw
from instruments.annotation.store import Item, Sample, add_sample, find_sample, open_annotations
from instruments.claims import Accuracy, Claim, Label
from instruments.personas import load_personas
from instruments.tasks import load_tasks

JUDGE: Final = "invented-judge"
SWEEP: Final = "invented"
# Words that no annotator may ever receive; `model_name` adds those of the models.
REASONING: Final = "unblinding-reasoning"
PATTERN: Final = "GRFSGGRFRSF"
_BY_LETTER: Final = {label.letter: label for label in Label}


def model_name(number: int) -> str:
    """Return the alias of the `number`-th model."""
    return f"unblinding-model-{number}"


def make_store(
    path: Path,
    *,
    models: int = 9,
    personas: int = 24,
    tasks: int = 6,
    per_answer: int = 4,
    pattern: str = PATTERN,
    texts: Sequence[str] = (),
    simulated: bool = False,
) -> Path:
    """Write a store with one judged answer per model, persona and task, and return its path.

    Args:
        path: a file that does not exist yet.
        models: how many.
        personas: how many of the shipped ones.
        tasks: how many of the shipped ones.
        per_answer: claims in each answer.
        pattern: the judge's labels, repeated over all claims.
        texts: of the first claims; the others are numbered sentences.
        simulated: mark the sweep as simulated.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, script in migrations():
            connection.executescript(f"{script} PRAGMA user_version = {number};")
        connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA journal_mode = WAL;")
        connection.executescript(files("instruments").joinpath("sql/views.sql").read_text(encoding="utf-8"))
        aliases = [model_name(number) for number in range(models)]
        connection.execute("BEGIN")
        manifest = _json({"subjects": aliases, "judges": [JUDGE], "models": {}, "notes": []})
        connection.execute(
            "INSERT INTO sweep (id, name, simulated, manifest, plan_hash, planned, created_ms)"
            " VALUES (1, ?, ?, ?, '', 1, 0)",
            (SWEEP, int(simulated), manifest),
        )
        people, requests = load_personas()[:personas], list(load_tasks())[:tasks]
        places = [(alias, person, task) for alias in aliases for person in people for task in requests]
        for number, (alias, person, task) in enumerate(places):
            coords = {"model": alias, "persona": person.id, "group": person.group, "task": task}
            claims = [_claim(number * per_answer + place, pattern, texts) for place in range(per_answer)]
            _add_cell(connection, 2 * number + 1, "task", alias, coords, {"characters": 100}, parent=None)
            _add_cell(
                connection, 2 * number + 2, "judge", JUDGE, coords | {"judge": JUDGE}, _body(claims), 2 * number + 1
            )
        connection.execute("COMMIT")
    return path


def make_sample(path: Path, size: int, *, seed: int = 42, name: str = "sample") -> Sample:
    """Draw a sample from a store of `make_store` and return it."""
    plan = SamplePlan(size=size, seed=seed)
    with closing(open_annotations(path)) as connection:
        judged = find_judged(connection)
        drawn = draw(candidates(connection, judged), plan)
        personas = {persona.id: persona for persona in load_personas()}
        items: list[Item] = items_of(connection, name, drawn.claims, judged, personas, load_tasks())
        add_sample(connection, items, drawn.strata, name=name, sweep_id=judged.id, judge=JUDGE, plan=plan, now_ms=1)
        return find_sample(connection, name)


def _claim(number: int, pattern: str, texts: Sequence[str]) -> Claim:
    text = texts[number] if number < len(texts) else f"The user keeps {number} jars of buttons on a shelf."
    label = _BY_LETTER[pattern[number % len(pattern)]]
    return Claim(text=text, label=label, accuracy=Accuracy.UNVERIFIABLE, reasoning=f"{REASONING} {number}")


def _body(claims: Sequence[Claim]) -> dict[str, object]:
    labels = "".join(claim.label.letter for claim in claims)
    return {"labels": labels, "accuracy": "U" * len(claims), "claims": msgspec.to_builtins(claims)}


def _add_cell(
    connection: sqlite3.Connection,
    number: int,
    stage: str,
    alias: str,
    coords: dict[str, str],
    body: dict[str, object],
    parent: int | None,
) -> None:
    key = number.to_bytes(16, "big")
    connection.execute(
        "INSERT INTO request (id, key, sweep_id, lane, provider, model, alias, stage, priority, size, messages, state)"
        " VALUES (?, ?, 1, '', '', '', ?, ?, 0, 0, 0, 'settled')",
        (number, key, alias, stage),
    )
    connection.execute(
        "INSERT INTO cell (id, ident, sweep_id, stage, alias, coords, request_id, parent_id, reading_status,"
        " reading_version) VALUES (?, ?, 1, ?, ?, ?, ?, ?, 'complete', 1)",
        (number, key, stage, alias, _json(coords), number, parent),
    )
    connection.execute("INSERT INTO reading (cell_id, body) VALUES (?, ?)", (number, _json(body)))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
