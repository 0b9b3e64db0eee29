"""Reads one sweep into arrays: from a store's views, or from the same views exported as Parquet.

Knows the views' columns and of a model's own words only memory attributes and, where there are several judges, claims.
Rows arrive in chunks, so memory grows with the arrays and not with the store.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np

from analysis.columns import (
    Codes,
    attribute_lists,
    claim_lists,
    count_labels,
    count_letters,
    counts,
    whole,
)
from analysis.manifest import find_sweep
from analysis.records import (
    ABSENT,
    ANSWER_CUT,
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
    Wordings,
)
from analysis.sources import VIEWS, Source, StoreError, opened_anywhere

__all__ = ["NOT_UNDERSTOOD", "VIEWS", "StoreError", "load", "read_sweep"]

NOT_UNDERSTOOD: Final = "reading not understood"

_STATE_CODES: Final[Mapping[object, int]] = {state: code for code, state in enumerate(STATES)}
#: Array field -> the view's columns that it is made of, and what makes it.
Plan: TypeAlias = Mapping[str, tuple[Sequence[str], Callable[..., Ints]]]
RowsT = TypeVar("RowsT", bound=Rows)

_CHARACTERS: Final[Plan] = {"characters": (("response_characters",), whole)}
_UNREAD: Final[Plan] = {"unread": (("unread",), counts), "cut": (("answer_cut",), counts)}


def load(path: Path, sweep: str = "") -> Dataset:
    """Read one sweep.

    Parameters
    ----------
    path : Path
        The store, a SQLite file; or a folder of exported Parquet files.
    sweep : str
        Its name; may be left out when there is one sweep only.

    Raises
    ------
    StoreError
        No such file, not a store, no such sweep, several sweeps and no name, or Parquet without what reads it.
    """
    with opened_anywhere(path) as source:
        return read_sweep(source, sweep)


def read_sweep(source: Source, sweep: str = "") -> Dataset:
    """Read one sweep from where its rows are; see `load`."""
    with _uncollected():
        return _Reader(source, find_sweep(source, sweep)).dataset()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the cyclic collector out: among millions of rows of texts it finds nothing and takes a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Reader:
    """Reads the views of one sweep; they share one numbering of names."""

    def __init__(self, source: Source, sweep: SweepInfo) -> None:
        self._source = source
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
        columns = self._texts("models", VIEWS["models"])
        rows = list(zip(*columns, strict=True))
        shared = Counter(label for _, label, *_ in rows)
        infos = [
            ModelInfo(
                alias=alias,
                label=label if shared[label] == 1 else f"{label} ({alias})",
                family=family,
                provider=provider,
                snapshot=snapshot,
                is_subject=is_subject == "1",
                is_judge=is_judge == "1",
            )
            for alias, label, family, provider, snapshot, is_subject, is_judge in rows
        ]
        place = {alias: index for index, alias in enumerate(self._sweep.subjects)}
        infos.sort(key=lambda info: (place.get(info.alias, len(place)), info.alias))
        self._models.encode([info.alias for info in infos])
        return tuple(infos)

    def _records(self) -> Records:
        reasons, words = Codes(), _Words()
        plan = {**self._place, **self._task, **self._judge, **_crossed(reasons), **_CHARACTERS}
        several = len(self._sweep.judges) > 1
        columns = _with_cuts(self._read("records", {**plan, **words.plan} if several else plan), reasons)
        worded = columns.pop("worded", np.zeros(len(columns["model"]), np.int32))
        return _understood(
            Records(
                **columns,
                labels=_by_label(columns),
                reasons=reasons.names(),
                worded=worded,
                start=_starts(worded),
                wordings=words.wordings(),
            )
        )

    def _probes(self) -> Probes:
        reasons = Codes()
        columns = _with_cuts(self._read("probes", {**self._place, **self._judge, **_crossed(reasons)}), reasons)
        return _understood(Probes(**columns, labels=_by_label(columns), reasons=reasons.names()))

    def _audits(self) -> Audits:
        reasons = Codes()
        labels: Plan = {"labels": (("labels",), count_labels), "reason": (("reason",), reasons.encode)}
        plan = {**self._place, **self._task, **labels, **_UNREAD}
        columns = _with_cuts(self._read("audits", plan), reasons)
        return _understood(Audits(**columns, reasons=reasons.names()))

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
        columns["start"] = _starts(columns["size"])
        pool = Attributes(codes=np.concatenate(held), texts=texts.names())
        return Memories(**columns, pool=pool, prompts=prompts.names(), reasons=reasons.names())

    def _calls(self) -> Calls:
        stages, reasons, changed, personas = Codes(), Codes(), Codes(), Codes()
        plan: Plan = {
            "stage": (("stage",), stages.encode),
            "model": (("model",), self._models.encode),
            "subject": (("subject",), self._models.encode),
            "persona": (("persona",), personas.encode),
            "state": (("state",), _states),
            "reason": (("reason",), reasons.encode),
            "changes": (("changes",), changed.encode),
        }
        columns = self._read("calls", plan)
        return Calls(
            **columns,
            stages=stages.names(),
            personas=personas.names(),
            reasons=reasons.names(),
            changed=changed.names(),
        )

    def _spending(self) -> tuple[Spend, ...]:
        rows = self._source.spending(self._sweep)
        return tuple(Spend(**dict(zip(Spend.__slots__, row, strict=True))) for row in rows)

    def _read(self, view: str, plan: Plan) -> dict[str, Ints]:
        parts: dict[str, list[Ints]] = {name: [] for name in plan}
        names = [column for columns, _ in plan.values() for column in columns]
        for chunk in self._source.chunks(view, names, self._sweep):
            columns = iter(chunk)
            for name, (sources, decode) in plan.items():
                parts[name].append(decode(*(next(columns) for _ in sources)))
        return {name: np.concatenate(part) for name, part in parts.items()}

    def _texts(self, view: str, names: Sequence[str]) -> list[list[str]]:
        columns: list[list[str]] = [[] for _ in names]
        for chunk in self._source.chunks(view, names, self._sweep):
            for column, cells in zip(columns, chunk, strict=True):
                column.extend("" if cell is None else str(cell) for cell in cells)
        return columns


class _Words:
    """Collects the claims of records, told apart by their words."""

    def __init__(self) -> None:
        self._words: list[Ints] = [np.zeros(0, np.int64)]
        self._labels: list[Ints] = [np.zeros(0, np.int8)]
        self.plan: Plan = {"worded": (("claims",), self._sizes)}

    def _sizes(self, column: Sequence[object]) -> Ints:
        lists = claim_lists(column)
        self._words.append(np.fromiter((hash(text) for items in lists for text, _ in items), np.int64))
        self._labels.append(np.fromiter((label for items in lists for _, label in items), np.int8))
        return np.fromiter(map(len, lists), np.int32, len(lists))

    def wordings(self) -> Wordings:
        """Return all claims that were collected."""
        return Wordings(words=np.concatenate(self._words), labels=np.concatenate(self._labels))


def _states(column: Sequence[object]) -> Ints:
    try:
        return np.fromiter(map(_STATE_CODES.__getitem__, column), np.int8, len(column))
    except KeyError as error:
        raise StoreError(f"the store knows a state {error} that this version does not; update the program") from error


def _with_cuts(columns: dict[str, Ints], reasons: Codes) -> dict[str, Ints]:
    """Call a whole labelling of an answer that was itself cut short what it is: of a truncated answer."""
    cut = (columns.pop("cut") > 0) & (columns["state"] == READ)
    if cut.any():
        columns["state"][cut] = TRUNCATED
        columns["reason"][cut] = reasons[ANSWER_CUT]
    return columns


def _crossed(reasons: Codes) -> Plan:
    return {
        "crossed": (("labels", "accuracy"), count_letters),
        "reason": (("reason",), reasons.encode),
        "unread_accuracy": (("unread_accuracy",), counts),
        **_UNREAD,
    }


def _starts(sizes: Ints) -> Ints:
    """Return where each of many lists begins when they stand end to end."""
    starts: Ints = np.cumsum(sizes, dtype=np.int64) - sizes
    return starts


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
        "unread": np.where(empty, 0, rows.unread),
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
