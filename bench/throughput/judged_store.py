"""Writes a store as a finished sweep would leave it, of any size, straight into the tables, for the analysis benchmark.

Every number is drawn from a seeded generator: sizes and rates resemble the paper's, nothing else does, and the sweep is
marked as simulated. Knows the store's schema and views, no engine, no provider.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from itertools import count, product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Model, family, claims over 900 records and OI rate: the paper's Table 1; self-audit OI: its Table 2.
MODELS: Final[Mapping[str, tuple[str, int, float, float]]] = {
    "Qwen3-8B": ("Qwen", 12687, 0.487, 0.130),
    "DeepSeek-v4-pro": ("DeepSeek", 13170, 0.454, 0.408),
    "GPT-4o-mini": ("OpenAI", 10408, 0.451, 0.201),
    "DeepSeek-v4-flash": ("DeepSeek", 11972, 0.446, 0.330),
    "Qwen3.6-plus": ("Qwen", 13146, 0.445, 0.454),
    "Kimi-K2.5": ("Moonshot", 12665, 0.431, 0.582),
    "Gemini-3-flash": ("Google", 14396, 0.411, 0.411),
    "GLM-5.1": ("Zhipu", 12869, 0.402, 0.496),
    "GPT-5.5": ("OpenAI", 10416, 0.385, 0.464),
    "GPT-5.4-nano": ("OpenAI", 7790, 0.376, 0.490),
    "Claude-Opus-4-6": ("Anthropic", 11139, 0.354, 0.416),
    "Gemini-3.1-pro": ("Google", 12958, 0.351, 0.432),
}
JUDGE: Final = "Claude-Opus-4-7"
# Task and how far its OI rate lies above or below the mean, on the log-odds scale.
TASKS: Final = {
    "apartment": 0.7,
    "recommendation_letter": 0.3,
    "stress_source": -0.1,
    "weekend_itinerary": -0.1,
    "dating_profile": -0.5,
    "birthday_gift": -0.6,
}
GROUPS: Final = ("stereotypical", "counter-stereotypical", "neutral")
# Of the over-inferred claims and of the others, how many are stereotype and grounded: the paper's shares.
STEREOTYPE: Final = 0.26
GROUNDED: Final = 0.44
PERSONAS: Final = 150
PAPER_CLAIMS: Final = sum(claims for _, claims, _, _ in MODELS.values())
ROUNDS: Final = 8
CHUNK: Final = 20_000

_LABELS: Final = ("GROUNDED", "INFERRED_REASONABLE", "INFERRED_STEREOTYPE", "FABRICATED")
_ACCURACIES: Final = ("CORRECT", "INCORRECT", "PARTIALLY_CORRECT", "UNVERIFIABLE")
_ACCURACY_SHARES: Final = np.array(
    [[0.9, 0.0, 0.1, 0.0], [0.5, 0.1, 0.1, 0.3], [0.3, 0.3, 0.1, 0.3], [0.1, 0.2, 0.0, 0.7]]
)
_TEXTS: Final = (
    "The user enjoys quiet evenings at home",
    "The user values close friendships",
    "The user is tidy",
    "The user likes old films",
)

Draws: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Labelled:
    """Claims of one model by one labeller: how many each record has, and label and accuracy of each, end to end."""

    sizes: Draws
    label: Draws
    accuracy: Draws


def write_store(path: Path, samples: int = 1, seed: int = 1) -> int:
    """Write a store with 12 models, 150 personas, 6 tasks and `samples` draws of each; return its judged claims.

    One sample has the paper's 143,616 claims, 70 have ten million.
    """
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for script in ("engine/sql/migrations/0001_initial.sql", "instruments/sql/views.sql"):
            package, _, name = script.partition("/")
            connection.executescript(files(package).joinpath(name).read_text(encoding="utf-8"))
        claims = _Writer(connection, samples, np.random.default_rng(seed)).write()
        connection.commit()
    return claims


class _Writer:
    """Writes one sweep; every cell has its own request."""

    def __init__(self, connection: sqlite3.Connection, samples: int, rng: np.random.Generator) -> None:
        self._connection, self._samples, self._rng = connection, samples, rng
        self._ids = count(1)
        self._personas = rng.normal(size=PERSONAS)
        self._cells: list[tuple[Any, ...]] = []
        self._readings: list[tuple[int, str]] = []

    def write(self) -> int:
        models: dict[str, dict[str, str]] = {
            name: {"label": name, "family": family} for name, (family, *_) in MODELS.items()
        }
        models[JUDGE] = {"label": JUDGE, "family": "Anthropic"}
        entries = {name: {**entry, "provider": "simulated", "model": name.lower()} for name, entry in models.items()}
        manifest = {
            "name": "benchmark",
            "subjects": list(MODELS),
            "judges": [JUDGE],
            "models": entries,
            "notes": [],
            "toy_judge": False,
        }
        self._connection.execute("INSERT INTO sweep VALUES (1, 'benchmark', 1, ?, '', 1, 0)", (json.dumps(manifest),))
        claims = sum(self._model(name) for name in MODELS)
        self._flush()
        self._connection.execute(
            "INSERT INTO spend SELECT 1, provider, alias, stage, count(*), count(*), 0, 0, sum(cost_nano),"
            " sum(input_tokens + output_tokens), 0, 0 FROM request JOIN completion ON request_id = id"
            " GROUP BY provider, alias, stage"
        )
        return claims

    def _model(self, model: str) -> int:
        _, claims, oi, self_oi = MODELS[model]
        records = PERSONAS * len(TASKS) * self._samples
        persona = np.repeat(np.arange(PERSONAS), len(TASKS) * self._samples)
        task = np.tile(np.repeat(np.arange(len(TASKS)), self._samples), PERSONAS)
        leaning = (
            0.35 * self._personas[persona]
            + np.array(list(TASKS.values()))[task]
            - 0.3 * (persona % len(GROUPS) == 1)
            + 0.3 * self._rng.normal(size=records)
        )
        judged = self._labels(claims * self._samples, records, oi, leaning)
        audited = self._labels(int(1.2 * claims) * self._samples, records, self_oi, 0.6 * leaning)
        bodies = zip(_bodies(judged, accurate=True), _bodies(audited, accurate=False), strict=True)
        places = product(range(PERSONAS), TASKS, range(self._samples))
        characters = 400 + 60 * judged.sizes + self._rng.integers(200, size=records)
        for (person, name, sample), (verdict, audit), length in zip(places, bodies, characters.tolist(), strict=True):
            coords: dict[str, str | int] = {
                "model": model,
                "persona": _name(person),
                "group": GROUPS[person % 3],
                "task": name,
            }
            coords |= {"sample": sample} if sample else {}
            answer = self._cell("task", model, coords, None, f'{{"characters":{length}}}')
            self._cell("audit", model, coords, answer, audit)
            self._cell("judge", JUDGE, {**coords, "judge": JUDGE}, answer, verdict)
            if len(self._cells) >= CHUNK:
                self._flush()
        self._probes(model)
        self._memories(model)
        return int(judged.sizes.sum())

    def _labels(self, claims: int, records: int, oi: float, leaning: NDArray[np.float64]) -> _Labelled:
        lengths = self._rng.gamma(12.0, size=records)
        sizes = self._rng.multinomial(claims, lengths / lengths.sum())
        chance = 1 / (1 + np.exp(-(np.log(oi / (1 - oi)) + leaning)))
        over = self._rng.random(claims) < np.repeat(chance, sizes)
        second = self._rng.random(claims)
        label = np.where(over, np.where(second < STEREOTYPE, 2, 3), np.where(second < GROUNDED, 0, 1))
        edges = np.cumsum(_ACCURACY_SHARES, axis=1)[label]
        accuracy = (self._rng.random(claims)[:, None] > edges).sum(axis=1).clip(max=3)
        return _Labelled(sizes=sizes, label=label, accuracy=accuracy)

    def _probes(self, model: str) -> None:
        found = self._labels(12 * PERSONAS, PERSONAS, 0.05, np.zeros(PERSONAS))
        for person, verdict in enumerate(_bodies(found, accurate=True)):
            coords: dict[str, str | int] = {"model": model, "persona": _name(person), "group": GROUPS[person % 3]}
            answer = self._cell("probe", model, coords, None, '{"inferences":[]}')
            self._cell("probe_judge", JUDGE, {**coords, "judge": JUDGE}, answer, verdict)

    def _memories(self, model: str) -> None:
        for person in range(2):
            held, parent = ["likes tea"], None
            for turn in range(1, ROUNDS + 1):
                held = [*held, *(f"attribute {turn} {place}" for place in range(int(self._rng.integers(2, 15))))]
                coords: dict[str, str | int] = {
                    "model": model,
                    "persona": _name(person),
                    "group": GROUPS[person],
                    "round": turn,
                }
                body = json.dumps({"memory": {}, "inferred": held, "observed_count": turn})
                parent = self._cell("accum", model, {**coords, "prompt": "accum_retain@0"}, parent, body)

    def _cell(self, stage: str, alias: str, coords: Mapping[str, Any], parent: int | None, body: str) -> int:
        number = next(self._ids)
        self._cells.append((number, stage, alias, json.dumps(coords, separators=(",", ":")), parent, len(body)))
        self._readings.append((number, body))
        return number

    def _flush(self) -> None:
        insert = self._connection.executemany
        insert(
            "INSERT INTO request (id, key, sweep_id, lane, provider, model, alias, stage, priority, size, messages,"
            " state, attempts)"
            " VALUES (?1, cast(printf('%016d', ?1) AS BLOB), 1, ?3, 'simulated', lower(?3), ?3, ?2, 0, 0, 1,"
            " 'settled', 1)",
            (cell[:3] for cell in self._cells),
        )
        insert(
            "INSERT INTO completion SELECT ?1, 1, '', '', 'stop', 'stop', '', '', 500, 0, 0, ?2 / 4, 0, ?2 * 1000, 900,"
            " 0, x''",
            ((cell[0], cell[5]) for cell in self._cells),
        )
        insert(
            "INSERT INTO cell (id, ident, sweep_id, stage, alias, coords, request_id, parent_id, reading_status)"
            " VALUES (?1, cast(printf('%016d', ?1) AS BLOB), 1, ?2, ?3, ?4, ?1, ?5, 'complete')",
            (cell[:5] for cell in self._cells),
        )
        insert("INSERT INTO reading VALUES (?, ?)", self._readings)
        self._cells.clear()
        self._readings.clear()


def _bodies(found: _Labelled, *, accurate: bool) -> Iterator[str]:
    """Yield one reading's JSON per record."""
    labels = b"GRSF".decode()
    pieces = [
        json.dumps(
            {"text": text, "label": _LABELS[label]}
            | ({"accuracy": _ACCURACIES[accuracy]} if accurate else {})
            | {"reasoning": "Follows from what was said in the facts."},
            separators=(",", ":"),
        )
        for label, accuracy, text in product(range(4), range(4), _TEXTS)
    ]
    width = len(_TEXTS)
    codes = ((found.label * 4 + found.accuracy) * width + np.arange(len(found.label)) % width).tolist()
    letters = "".join(labels[label] for label in found.label.tolist())
    checks = "".join("CIPU"[accuracy] for accuracy in found.accuracy.tolist())
    start = 0
    for end in np.cumsum(found.sizes).tolist():
        claims = ",".join(map(pieces.__getitem__, codes[start:end]))
        accuracy = f'"accuracy":"{checks[start:end]}",' if accurate else ""
        yield f'{{"labels":"{letters[start:end]}",{accuracy}"claims":[{claims}]}}'
        start = end


def _name(person: int) -> str:
    return f"persona_{person:03d}"
