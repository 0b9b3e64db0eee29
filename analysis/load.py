"""Reads one sweep out of a store's SQL views into arrays. The store is opened read-only, also while a sweep runs.

The only place that queries the store. It reads views, never the tables under them, and of a model's own words
only memory attributes. Rows arrive in chunks, so memory grows with the arrays and not with the store.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np

from analysis.columns import Codes, attribute_lists, count_labels, count_letters, longs, texts_of, whole
from analysis.records import (
    ABSENT,
    READ,
    STATES,
    TRUNCATED,
    UNREADABLE,
    AnswersT,
    Attributes,
    Audits,
    Axes,
    Calls,
    Dataset,
    Ints,
    Memories,
    ModelInfo,
    Probes,
    Records,
    Rows,
    Spend,
    SweepInfo,
)

VIEWS: Final = ("sweeps", "models", "records", "audits", "probes", "memories", "calls", "requests", "spending")
CHUNK_ROWS: Final = 32_768
NOT_UNDERSTOOD: Final = "reading not understood"

_CHARACTERS: Final = {"characters": (("response_characters",), whole)}
_NUMBERS: Final = (
    "attempts",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_nano",
    "latency_ms",
)
_STATE_CODES: Final[Mapping[object, int]] = {state: code for code, state in enumerate(STATES)}
# A request that answers several cells is paid for once, so totals come from requests and not from calls.
_SPENDING: Final = """
    SELECT r.*, p.attempts, p.cost_nano, p.assumed, p.assumed_nano
    FROM (SELECT alias, stage, count(*), count(finish), sum(input_tokens), sum(cached_tokens), sum(output_tokens),
                 sum(reasoning_tokens) FROM requests WHERE sweep = :sweep GROUP BY alias, stage) r
    LEFT JOIN (SELECT alias, stage, sum(attempts) AS attempts, sum(cost_nano) AS cost_nano, sum(assumed) AS assumed,
                      sum(assumed_nano) AS assumed_nano FROM spending WHERE sweep = :sweep GROUP BY alias, stage) p
    ON p.alias = r.alias AND p.stage = r.stage
    ORDER BY r.alias, r.stage
"""
#: Array field -> the view's columns that it is made of, and what makes it.
Plan: TypeAlias = Mapping[str, tuple[Sequence[str], Callable[..., Ints]]]
RowsT = TypeVar("RowsT", bound=Rows)


class StoreError(Exception):
    """The store cannot be read; the message is one line that says what, where and how to mend."""


def load(path: Path, sweep: str = "") -> Dataset:
    """Read one sweep.

    Parameters
    ----------
    path : Path
        The store, a SQLite file.
    sweep : str
        Its name; may be left out when the store holds one sweep only.

    Raises
    ------
    StoreError
        No such file, not a store, no such sweep, or several sweeps and no name.
    """
    try:
        with closing(_open(path)) as connection:
            # One read transaction: a sweep that is running does not change what the views show meanwhile.
            connection.execute("BEGIN")
            _check_views(connection, path)
            return _Reader(connection, _find(_sweeps(connection, path), sweep, path)).dataset()
    except sqlite3.Error as error:
        why = " ".join(str(error).split())
        raise StoreError(f"{path}: cannot be read ({why}); give the path of a sweep's SQLite file") from error


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreError(f"{path}: no such store; give the path of a sweep's SQLite file")
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _check_views(connection: sqlite3.Connection, path: Path) -> None:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'table')")
    missing = set(VIEWS) - {name for (name,) in rows}
    if missing:
        raise StoreError(f"{path}: has no view {', '.join(sorted(missing))}; give a store that `mirage run` has made")


def _sweeps(connection: sqlite3.Connection, path: Path) -> list[SweepInfo]:
    rows = connection.execute("SELECT sweep_id, sweep, simulated, manifest FROM sweeps ORDER BY sweep_id")
    return [_sweep_info(number, str(name), simulated, manifest, path) for number, name, simulated, manifest in rows]


def _sweep_info(number: int, name: str, simulated: int, manifest: str | bytes, path: Path) -> SweepInfo:
    try:
        settings: object = json.loads(manifest)
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: the manifest of sweep {name!r} is not JSON; plan the sweep again") from error
    if not isinstance(settings, Mapping):
        raise StoreError(f"{path}: the manifest of sweep {name!r} is not a JSON object; plan the sweep again")
    return SweepInfo(
        sweep_id=number,
        name=name,
        simulated=bool(simulated) or bool(settings.get("simulated")),
        toy_judge=bool(settings.get("toy_judge")),
        subjects=texts_of(settings.get("subjects")),
        judges=texts_of(settings.get("judges")),
        notes=texts_of(settings.get("notes")),
    )


def _find(sweeps: Sequence[SweepInfo], name: str, path: Path) -> SweepInfo:
    if not sweeps:
        raise StoreError(f"{path}: holds no sweep yet; run one first")
    known = ", ".join(sweep.name for sweep in sweeps)
    chosen = [sweep for sweep in sweeps if name in {"", sweep.name}]
    if not chosen:
        raise StoreError(f"{path}: has no sweep called {name!r}; it has {known}")
    if len(chosen) > 1:
        raise StoreError(f"{path}: holds {len(chosen)} sweeps; choose one with --sweep: {known}")
    return chosen[0]


class _Reader:
    """Reads the views of one sweep; they share one numbering of names."""

    def __init__(self, connection: sqlite3.Connection, sweep: SweepInfo) -> None:
        self._connection = connection
        self._sweep = sweep
        self._models, self._judges = Codes(), Codes()
        self._personas, self._groups, self._tasks = Codes(), Codes(), Codes()
        self._place: Plan = {
            "model": (("model",), self._models.encode),
            "persona": (("persona",), self._personas.encode),
            "group": (("persona_group",), self._groups.encode),
            "sample": (("sample",), whole),
            "state": (("state",), _states),
        }
        self._task: Plan = {"task": (("task",), self._tasks.encode)}
        self._judge: Plan = {"judge": (("judge",), self._judges.encode)}

    def dataset(self) -> Dataset:
        """Read everything, then put the names in order."""
        models = self._model_infos()
        self._judges.encode(self._sweep.judges)
        records, audits, probes = self._records(), self._audits(), self._probes()
        memories, calls = self._memories(), self._calls()
        persona, group, task = map(_sorting, (self._personas, self._groups, self._tasks))
        moves = {"persona": persona, "group": group, "task": task}
        axes = Axes(
            models=self._models.names(),
            personas=_moved(self._personas, persona),
            groups=_moved(self._groups, group),
            tasks=_moved(self._tasks, task),
            judges=self._judges.names(),
        )
        return Dataset(
            sweep=self._sweep,
            models=models,
            axes=axes,
            records=_renumbered(records, moves),
            audits=_renumbered(audits, moves),
            probes=_renumbered(probes, moves),
            memories=_renumbered(memories, moves),
            calls=calls,
            spending=self._spending(),
        )

    def _model_infos(self) -> tuple[ModelInfo, ...]:
        rows = self._connection.execute(
            "SELECT model, family, provider, snapshot, is_subject, is_judge FROM models WHERE sweep_id = ?",
            (self._sweep.sweep_id,),
        )
        infos = [
            ModelInfo(
                alias=str(alias),
                family=family or "",
                provider=provider or "",
                snapshot=snapshot or "",
                is_subject=bool(is_subject),
                is_judge=bool(is_judge),
            )
            for alias, family, provider, snapshot, is_subject, is_judge in rows
        ]
        place = {alias: index for index, alias in enumerate(self._sweep.subjects)}
        infos.sort(key=lambda info: (place.get(info.alias, len(place)), info.alias))
        self._models.encode([info.alias for info in infos])
        return tuple(infos)

    def _records(self) -> Records:
        reasons = Codes()
        plan = {**self._place, **self._task, **self._judge, **_crossed(reasons), **_CHARACTERS}
        columns = self._read("records", plan)
        return _understood(Records(**columns, labels=_by_label(columns), reasons=reasons.names()))

    def _probes(self) -> Probes:
        reasons = Codes()
        columns = self._read("probes", {**self._place, **self._judge, **_crossed(reasons)})
        return _understood(Probes(**columns, labels=_by_label(columns), reasons=reasons.names()))

    def _audits(self) -> Audits:
        reasons = Codes()
        labels: Plan = {"labels": (("labels",), count_labels), "reason": (("reason",), reasons.encode)}
        plan = {**self._place, **self._task, **labels}
        return _understood(Audits(**self._read("audits", plan), reasons=reasons.names()))

    def _memories(self) -> Memories:
        reasons, prompts, texts = Codes(), Codes(), Codes()
        held: list[Ints] = [np.zeros(0, np.int32)]

        def sizes(column: Sequence[object]) -> Ints:
            lists = attribute_lists(column)
            held.extend(texts.encode(items) for items in lists if items)
            return np.fromiter((ABSENT if items is None else len(items) for items in lists), np.int32, len(lists))

        plan: Plan = {
            **self._place,
            "round": (("round",), whole),
            "prompt": (("prompt",), prompts.encode),
            "reason": (("reason",), reasons.encode),
            "size": (("inferred",), sizes),
        }
        columns = self._read("memories", plan)
        unreadable = np.isin(columns["state"], (READ, TRUNCATED)) & (columns["size"] < 0)
        columns["state"][unreadable] = UNREADABLE
        columns["reason"][unreadable] = reasons[NOT_UNDERSTOOD]
        columns["size"] = np.maximum(columns["size"], 0)
        columns["start"] = np.cumsum(columns["size"], dtype=np.int64) - columns["size"]
        pool = Attributes(codes=np.concatenate(held), texts=texts.names())
        return Memories(**columns, pool=pool, prompts=prompts.names(), reasons=reasons.names())

    def _calls(self) -> Calls:
        stages, reasons, changed = Codes(), Codes(), Codes()
        plan: Plan = {
            "stage": (("stage",), stages.encode),
            "model": (("model",), self._models.encode),
            "subject": (("subject",), self._models.encode),
            "state": (("state",), _states),
            "reason": (("reason",), reasons.encode),
            "changes": (("changes",), changed.encode),
            **{number: ((number,), longs) for number in _NUMBERS},
        }
        columns = self._read("calls", plan)
        return Calls(**columns, stages=stages.names(), reasons=reasons.names(), changed=changed.names())

    def _spending(self) -> tuple[Spend, ...]:
        rows = self._connection.execute(_SPENDING, {"sweep": self._sweep.name})
        return tuple(Spend(**dict(zip(Spend.__slots__, row, strict=True))) for row in rows)

    def _read(self, view: str, plan: Plan) -> dict[str, Ints]:
        parts: dict[str, list[Ints]] = {name: [] for name in plan}
        for chunk in self._chunks(view, [column for columns, _ in plan.values() for column in columns]):
            columns = iter(chunk)
            for name, (sources, decode) in plan.items():
                parts[name].append(decode(*(next(columns) for _ in sources)))
        return {name: np.concatenate(part) for name, part in parts.items()}

    def _chunks(self, view: str, columns: Sequence[str]) -> Iterator[Sequence[Sequence[object]]]:
        # Names come from this module, never from outside.
        query = f"SELECT {', '.join(columns)} FROM {view} WHERE sweep_id = ?"  # noqa: S608
        cursor = self._connection.execute(query, (self._sweep.sweep_id,))
        # The empty chunk gives every column its shape also when the view has no row.
        yield [()] * len(columns)
        while rows := cursor.fetchmany(CHUNK_ROWS):
            yield list(zip(*rows, strict=True))


def _states(column: Sequence[object]) -> Ints:
    try:
        return np.fromiter(map(_STATE_CODES.__getitem__, column), np.int8, len(column))
    except KeyError as error:
        raise StoreError(f"the store knows a state {error} that this version does not; update the program") from error


def _crossed(reasons: Codes) -> Plan:
    return {"crossed": (("labels", "accuracy"), count_letters), "reason": (("reason",), reasons.encode)}


def _by_label(columns: Mapping[str, Ints]) -> Ints:
    labels: Ints = columns["crossed"].sum(axis=2, dtype=np.int32)
    return labels


def _understood(rows: AnswersT) -> AnswersT:
    """Make rows whose labels mean nothing unreadable, with that reason, and empty all counts of missing rows."""
    broken = rows.present() & (rows.labels[:, 0] < 0)
    empty = ~rows.present() | broken
    changed: dict[str, Ints] = {
        "state": np.where(broken, UNREADABLE, rows.state),
        "reason": np.where(broken, len(rows.reasons), rows.reason),
        "labels": np.where(empty[:, None], 0, rows.labels),
    }
    if isinstance(rows, Probes):
        changed["crossed"] = np.where(empty[:, None, None], 0, rows.crossed)
    return replace(rows, **changed, reasons=(*rows.reasons, NOT_UNDERSTOOD))


def _sorting(codes: Codes) -> Ints:
    """Return the place of every number once the names are sorted."""
    names = codes.names()
    order = sorted(range(len(names)), key=names.__getitem__)
    places = np.zeros(len(names), np.int32)
    places[order] = np.arange(len(names))
    return places


def _moved(codes: Codes, places: Ints) -> tuple[str, ...]:
    names = codes.names()
    return tuple(names[index] for index in np.argsort(places))


def _renumbered(rows: RowsT, moves: Mapping[str, Ints]) -> RowsT:
    changed = {name: places[getattr(rows, name)] for name, places in moves.items() if hasattr(rows, name)}
    return replace(rows, **changed)
