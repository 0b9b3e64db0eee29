"""Compares what a simulated sweep found with the simulator's right answer, claim by claim. Reads a store's views.

The simulator knows the label of every claim that its models make. Where nothing was lost, swapped or misread between
its answer and the analysis, every judgement, self-audit, probe and memory of the store says exactly that.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from bench.simulator.answers import Speaker
from bench.simulator.cast import Cast, load_cast
from bench.simulator.phrases import load_phrases
from bench.simulator.population import Population, known_answer
from instruments.personas import load_scripts

LETTERS: Final = "GRSF"
LABELS: Final[Mapping[str, str]] = {
    "G": "grounded", "R": "inferred_reasonable", "S": "inferred_stereotype", "F": "fabricated",
}  # fmt: skip
UNREADABLE: Final = "unreadable"
PENDING: Final = "pending"
# Kind of reading: the stage that brings it, and model, persona, task, judge, state and labels of each.
QUERIES: Final[Mapping[str, tuple[str, str]]] = {
    "judgement": (
        "judge",
        "SELECT model, persona, task, judge, state, labels FROM records WHERE sweep_id = ?",
    ),
    "self-audit": (
        "audit",
        "SELECT model, persona, task, '', state, labels FROM audits WHERE sweep_id = ?",
    ),
    "probe": (
        "probe_judge",
        "SELECT model, persona, '', judge, state, labels FROM probes WHERE sweep_id = ?",
    ),
}
EXAMPLES: Final = 5


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of one model and task with one label."""

    model: str
    task: str
    label: str
    known: int
    found: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison.

    Attributes:
        rows: claims by model, task and label, as the first judge labels them.
        compared: readings that were compared, by kind.
        different: those that are not what is known, by kind; examples names some of them.
    """

    rows: tuple[Row, ...]
    compared: dict[str, int]
    different: dict[str, int]
    examples: tuple[str, ...]

    @property
    def claims(self) -> int:
        """Claims that were known."""
        return sum(row.known for row in self.rows)

    @property
    def equal(self) -> bool:
        """Say whether everything is as known."""
        return not any(self.different.values()) and all(row.known == row.found for row in self.rows)


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the store beside what is known; both are one word."""

    kind: str
    model: str
    task: str
    place: str
    first: bool
    known: str
    found: str


class _Truth:
    """The right answer by alias, persona and task."""

    def __init__(self, snapshots: Mapping[str, str], seed: int) -> None:
        self._population = Population(known_answer(), seed)
        self._cast: Cast = load_cast()
        speaker = Speaker(self._population, self._cast, load_phrases())
        self._subjects = {alias: speaker.subject(model) for alias, model in snapshots.items()}

    def labels(self, kind: str, alias: str, persona: str, task: str) -> str:
        """Return the labels of an answer's claims, one letter each; or that they cannot be read."""
        subject, slot = self._subjects[alias], self._cast.slots[persona]
        if kind == "probe":
            return self._letters(self._population.probe_claims(subject, slot))
        place = self._population.tasks.index(task)
        if kind == "judgement":
            return self._letters(self._population.task_claims(subject, slot, place))
        own = self._population.audit(subject, slot, place)
        if own is None:
            return UNREADABLE
        return "".join(letter * n for letter, n in zip(LETTERS, msgspec.structs.astuple(own), strict=True))

    def memory(self, alias: str, variant: int, number: int) -> int:
        """Return how many attributes are inferred after a round of the first or second kind of conversation."""
        name = self._population.models[self._subjects[alias]]
        return self._population.counts.accum[name][variant].counts[number - 1]

    def _letters(self, claims: range) -> str:
        return "".join(LETTERS[self._population.claim(number).label] for number in claims)


def compare(store: Path, sweep: str, *, seed: int = 0) -> Comparison:
    """Compare the readings of `sweep` in `store` with what the simulator of that seed knows; what waits is left out."""
    with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT sweep_id, manifest FROM sweeps WHERE sweep = ?", (sweep,)).fetchone()
        manifest = json.loads(found[1])
        snapshots = {alias: model["model"] for alias, model in manifest["models"].items()}
        first = next(iter(manifest["judges"]), "")
        readings = list(_readings(connection, found[0], _Truth(snapshots, seed), first))
    wrong = [each for each in readings if each.known != each.found]
    return Comparison(
        rows=tuple(_rows(each for each in readings if each.kind == "judgement" and each.first)),
        compared=dict(Counter(each.kind for each in readings)),
        different=dict(Counter(each.kind for each in wrong)),
        examples=tuple(
            f"{each.kind} of {each.place}: known {each.known}, found {each.found}" for each in wrong[:EXAMPLES]
        ),
    )


def _rows(readings: Iterator[_Reading]) -> Iterator[Row]:
    known: Counter[tuple[str, str, str]] = Counter()
    found: Counter[tuple[str, str, str]] = Counter()
    for each in readings:
        known.update((each.model, each.task, letter) for letter in each.known)
        found.update((each.model, each.task, letter) for letter in each.found if letter in LABELS)
    for model, task, letter in sorted(known.keys() | found.keys(), key=lambda key: (key[:2], LETTERS.index(key[2]))):
        place = (model, task, letter)
        yield Row(model=model, task=task, label=LABELS[letter], known=known[place], found=found[place])


def _readings(connection: sqlite3.Connection, sweep_id: int, truth: _Truth, first: str) -> Iterator[_Reading]:
    for kind, (stage, query) in QUERIES.items():
        if not _has(connection, sweep_id, stage):
            continue
        for model, persona, task, judge, state, labels in connection.execute(query, (sweep_id,)):
            if state == PENDING:
                continue
            yield _Reading(
                kind=kind,
                model=model,
                task=task,
                place="/".join(filter(None, (model, persona, task, judge))),
                first=judge in ("", first),
                known=truth.labels(kind, model, persona, task),
                found=(labels or "") if state == "read" else state,
            )
    yield from _memories(connection, sweep_id, truth)


def _memories(connection: sqlite3.Connection, sweep_id: int, truth: _Truth) -> Iterator[_Reading]:
    """Yield every memory; the simulator's two kinds of conversation take turns in the order of the scripts."""
    rows = connection.execute(
        "SELECT model, persona, round, state, json_array_length(inferred) FROM memories"
        " WHERE sweep_id = ? ORDER BY model, persona, sample, round",
        (sweep_id,),
    ).fetchall()
    variants = {persona: place % 2 for place, persona in enumerate(load_scripts())}
    for model, persona, number, state, inferred in rows:
        if state == PENDING:
            continue
        found = str(inferred) if state == "read" else state
        known = str(truth.memory(model, variants[persona], number))
        place = f"{model}/{persona}/round {number}"
        yield _Reading(kind="memory", model=model, task="", place=place, first=True, known=known, found=found)


def _has(connection: sqlite3.Connection, sweep_id: int, stage: str) -> bool:
    query = "SELECT 1 FROM answers WHERE sweep_id = ? AND stage = ? LIMIT 1"
    return connection.execute(query, (sweep_id, stage)).fetchone() is not None
