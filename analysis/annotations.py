"""Reads what people said about a judge's claims out of a store's views, and lines their labels up for comparison.

Opens the store read-only, also while people still label. Labels are positions in `LABELS`, `ABSENT` for none.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from analysis.agreement import confusion
from analysis.database import StoreError, names_of, reading
from analysis.estimates import Number
from analysis.rates import Totals
from analysis.records import ABSENT, LABELS, Counts, Ints

VIEWS: Final = frozenset({"annotation_samples", "annotations"})
MAJORITY: Final = "majority"


class ValidationError(Exception):
    """There is nothing to compare, or it cannot be read; the message is one line with what, where and how to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimItem:
    """One claim that somebody has labelled."""

    item: str
    claim: str
    model: str
    persona: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleInfo:
    """A sample of a judge's claims.

    Parameters
    ----------
    name, sweep, judge : str
    simulated : bool
        Some answers came from a simulator.
    notes : tuple of str
        The sweep's own warnings.
    size : int
        Its items.
    population : ndarray of int64, shape (4,)
        Claims of the whole sweep by the judge's label when the sample was drawn.
    """

    name: str
    sweep: str
    judge: str
    simulated: bool
    notes: tuple[str, ...] = ()
    size: int
    population: Counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """The labels of one sample.

    Parameters
    ----------
    sample : SampleInfo
    items : tuple of ClaimItem
        Those that somebody has labelled.
    judged : ndarray of int, shape (items,)
        The judge's labels.
    annotators : tuple of str
    human : ndarray of int, shape (annotators, items)
        Their labels; `ABSENT` where an annotator gave none.
    comments : mapping of (str, str) to str
        By annotator and item.
    """

    sample: SampleInfo
    items: tuple[ClaimItem, ...]
    judged: Ints
    annotators: tuple[str, ...]
    human: Ints
    comments: Mapping[tuple[str, str], str]

    def reference(self, annotator: str = "") -> tuple[str, Ints]:
        """Return whose labels the judge is compared with, and those labels, shape (items,).

        Parameters
        ----------
        annotator : str
            One annotator; empty for all: of every item the label that most of them gave, `ABSENT` on a tie.

        Raises
        ------
        ValidationError
            No such annotator.
        """
        if annotator and annotator not in self.annotators:
            known = ", ".join(self.annotators)
            raise ValidationError(f"{annotator!r} has labelled nothing in {self.sample.name!r}; choose one of {known}")
        if len(self.annotators) == 1:
            return self.annotators[0], self.human[0]
        if annotator:
            return annotator, self.human[self.annotators.index(annotator)]
        return MAJORITY, majority(self.human)

    def table(self, annotator: str = "") -> Totals:
        """Return the confusion matrix, human labels down and judge labels across.

        Parameters
        ----------
        annotator : str
            As in `reference`.
        """
        return confusion(self.reference(annotator)[1], self.judged, len(LABELS))

    def shared_table(self, annotator: str = "") -> Number:
        """Return items by human label (down) and judge label (across), as `corrected_oi` wants it.

        An item that several annotators have labelled is shared out equally between their labels, so that no item is
        left out: those on which people differ are those on which judges err, and a majority has no answer for ties.

        Parameters
        ----------
        annotator : str
            One annotator; empty for all.
        """
        if annotator or len(self.annotators) == 1:
            return self.table(annotator)
        given = self.human >= 0
        weight = given / np.maximum(given.sum(axis=0), 1)
        table = np.zeros((len(LABELS), len(LABELS)))
        judged = np.broadcast_to(self.judged, self.human.shape)
        both = given & (judged >= 0)
        np.add.at(table, (self.human[both], judged[both]), weight[both])
        return table


def majority(ratings: Ints) -> Ints:
    """Return the label that most raters gave each item, `ABSENT` on a tie or without a rating.

    Examples
    --------
    >>> majority(np.array([[0, 0, -1, 1], [0, 1, -1, 1], [2, -1, -1, -1]])).tolist()
    [0, -1, -1, 1]
    """
    counts = np.stack([(ratings == label).sum(axis=0) for label in range(len(LABELS))])
    most = counts.max(axis=0)
    alone = (counts == most).sum(axis=0) == 1
    return np.where((most > 0) & alone, counts.argmax(axis=0), ABSENT)


def read_validation(path: Path, sample: str = "") -> Validation:
    """Read the labels of one sample.

    Parameters
    ----------
    path : Path
        The sweep's store.
    sample : str
        Its name; may be left out when the store holds one sample only.

    Raises
    ------
    ValidationError
        No such store or sample, several samples and no name, or no label yet.
    """
    try:
        with reading(path) as connection:
            return _read(connection, path, sample)
    except StoreError as error:
        raise ValidationError(str(error)) from error


def _read(connection: sqlite3.Connection, path: Path, wanted: str) -> Validation:
    if not names_of(connection) >= VIEWS:
        raise ValidationError(f"{path}: holds no sample to label; draw one with `mirage annotate sample`")
    samples = connection.execute(
        "SELECT sample, sweep, judge, simulated, manifest, items, population"
        " FROM annotation_samples ORDER BY created_ms"
    ).fetchall()
    if not samples:
        raise ValidationError(f"{path}: holds no sample to label; draw one with `mirage annotate sample`")
    chosen = [row for row in samples if wanted in {"", row[0]}]
    if len(chosen) != 1:
        known = ", ".join(str(row[0]) for row in samples)
        what = f"has no sample called {wanted!r}" if wanted else f"holds {len(samples)} samples: choose with --sample"
        raise ValidationError(f"{path}: {what}; it has {known}")
    name, sweep, judge, simulated, manifest, size, population = chosen[0]
    rows = connection.execute(
        "SELECT item, claim, model, persona, task, judge_label, annotator, label, comment FROM annotations"
        " WHERE sample = ? ORDER BY position, annotator",
        (name,),
    ).fetchall()
    if not rows:
        raise ValidationError(f"{path}: nobody has labelled anything in {name!r} yet; `mirage annotate serve` it")
    info = SampleInfo(
        name=name,
        sweep=sweep,
        judge=judge,
        simulated=bool(simulated),
        notes=_notes(json.loads(manifest)),
        size=size,
        population=_counts(json.loads(population)),
    )
    return _lined_up(info, rows)


def _lined_up(info: SampleInfo, rows: Sequence[Sequence[str]]) -> Validation:
    items = {row[0]: ClaimItem(item=row[0], claim=row[1], model=row[2], persona=row[3], task=row[4]) for row in rows}
    judged = {row[0]: LABELS.index(row[5]) for row in rows}
    places = {item: place for place, item in enumerate(items)}
    annotators = tuple(sorted({row[6] for row in rows}))
    human = np.full((len(annotators), len(items)), ABSENT)
    for item, *_, annotator, label, _ in rows:
        human[annotators.index(annotator), places[item]] = LABELS.index(label)
    return Validation(
        sample=info,
        items=tuple(items.values()),
        judged=np.fromiter(judged.values(), np.int64, len(judged)),
        annotators=annotators,
        human=human,
        comments={(row[6], row[0]): row[8] for row in rows if row[8]},
    )


def _counts(population: object) -> Counts:
    known = population if isinstance(population, dict) else {}
    return np.array([int(known.get(label, 0)) for label in LABELS], dtype=np.int64)


def _notes(manifest: object) -> tuple[str, ...]:
    notes = manifest.get("notes") if isinstance(manifest, dict) else None
    return tuple(map(str, notes)) if isinstance(notes, list) else ()
