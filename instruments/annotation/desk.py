"""What an annotator does at the page: see the next item, label, skip, undo. Every step is durable when it returns.

A desk works on a blind connection: it could not read the judge's labels, the models or the profiles if it wanted to.
It knows no HTTP. Time is an argument.
"""

import sqlite3
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec

from engine.database import explained
from engine.errors import UserError
from instruments.annotation.store import open_blind, retract, transaction

MOST_COMMENT: Final = 2_000
MOST_ELAPSED_MS: Final = 24 * 3_600_000
EVERYTHING: Final = 2**62

# Items that are this annotator's: all up to :overlap, and of the others those that nobody else has labelled.
_MINE: Final = """
WITH mine AS (
    SELECT i.id, i.position, i.facts, i.task, i.claim, l.id AS label_id, l.label, l.comment, l.elapsed_ms
    FROM annotation_item i
    LEFT JOIN annotation_label l ON l.item_id = i.id AND l.annotator = :annotator AND l.retracted_ms IS NULL
    WHERE i.sample_id = :sample AND (i.position <= :overlap OR l.label IS NOT NULL OR NOT EXISTS (
        SELECT 1 FROM annotation_label o
        WHERE o.item_id = i.id AND o.annotator <> :annotator AND o.label IS NOT NULL AND o.retracted_ms IS NULL))
)
"""
_COUNTS: Final = """
SELECT count(label), coalesce(sum(label_id IS NOT NULL AND label IS NULL), 0), count(*), coalesce(sum(elapsed_ms), 0)
FROM mine
"""
_NEXT: Final = """
SELECT id, facts, task, claim FROM mine WHERE label_id IS NULL
ORDER BY position > :overlap AND instr(:held, id) > 0, position LIMIT 1
"""
_NEXT_SKIPPED: Final = """
SELECT id, facts, task, claim FROM mine WHERE label_id IS NOT NULL AND label IS NULL ORDER BY label_id LIMIT 1
"""
_LAST: Final = """
SELECT l.id, l.item_id, l.comment FROM annotation_label l JOIN annotation_item i ON i.id = l.item_id
WHERE i.sample_id = :sample AND l.annotator = :annotator AND l.retracted_ms IS NULL AND l.source = 'page'
ORDER BY l.id DESC LIMIT 1
"""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An item as the page gets it: nothing in it depends on what the judge said.

    Attributes:
        skipped: the annotator has skipped it before.
        comment: what they wrote about it before they took the label back or skipped it.
    """

    id: str
    facts: tuple[str, ...]
    task: str
    claim: str
    skipped: bool = False
    comment: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        done, skipped, total: items labelled, skipped, and this annotator's in all.
        elapsed_ms: time spent on them.
        item: the item to label, or None when only skipped ones or none are left.
        undo: id of the item that an undo would bring back.
        notice: something that happened otherwise than the annotator may expect.
    """

    annotator: str
    simulated: bool
    done: int
    skipped: int
    total: int
    elapsed_ms: int
    item: Shown | None
    undo: str | None
    notice: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One press of a button.

    Attributes:
        annotator: for whom the page was loaded; guards against a browser that has changed hands.
        submission: a random name for this press, so that sending it twice changes nothing.
        label: None to skip.
        skipped: the page is going through the skipped items.
    """

    annotator: str
    item: str
    submission: Annotated[str, msgspec.Meta(min_length=16, max_length=64)]
    label: Literal["G", "R", "S", "F"] | None
    comment: Annotated[str, msgspec.Meta(max_length=MOST_COMMENT)] = ""
    elapsed_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    skipped: bool = False


class Undo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish to take back the last label or skip; `item` is the one the page believes that was."""

    annotator: str
    item: str
    skipped: bool = False


class Outcome(StrEnum):
    """What became of a press."""

    SAVED = "saved"
    REPEATED = "repeated"
    TAKEN = "taken"
    UNKNOWN = "unknown"
    MOVED = "moved"


class Desk:
    """One sample, open for labelling by any number of annotators; safe to use from several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection, sample_id: int, overlap: int) -> None:
        self._path, self._connection = path, connection
        self._sample, self._overlap = sample_id, overlap
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}
        row = connection.execute(
            "SELECT s.simulated FROM annotation_sample a JOIN sweep s ON s.id = a.sweep_id WHERE a.id = ?", (sample_id,)
        ).fetchone()
        if row is None:
            raise UserError("there is no such sample", where=str(path), mend="draw one with `mirage annotate sample`")
        self._simulated = bool(row[0])

    @classmethod
    def open(cls, path: Path, sample_id: int, overlap: int | None = None) -> Self:
        """Open a sample for labelling.

        Args:
            path: the store.
            sample_id: which sample.
            overlap: so many items, from the first on, are for every annotator; the others go to whoever comes first.
                None gives every item to every annotator.

        Raises:
            StoreError: the store cannot be used.
            UserError: it has no such sample.
        """
        with explained(path):
            connection = open_blind(path)
            try:
                return cls(path, connection, sample_id, EVERYTHING if overlap is None else overlap)
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Close the store; every label is on disk already."""
        with self._lock:
            self._connection.close()

    def view(self, annotator: str, *, skipped: bool = False, notice: str = "") -> View:
        """Return the next item and how far the annotator is.

        Args:
            annotator: who looks.
            skipped: look at the items skipped before, oldest first, instead of new ones.
            notice: passed on to the page.
        """
        with self._lock, explained(self._path):
            item = self._skipped_item(annotator) if skipped else self._fresh_item(annotator)
            return self._view(annotator, item, notice)

    def answer(self, annotator: str, answer: Answer, now_ms: int) -> Outcome:
        """Store a label or a skip.

        Returns:
            SAVED; REPEATED when this very press is stored already; TAKEN when the item has a label (another tab was
            quicker), which stays; UNKNOWN when the sample has no such item.
        """
        with self._lock, explained(self._path), transaction(self._connection):
            return self._answer(annotator, answer, now_ms)

    def undo(self, annotator: str, item: str, now_ms: int) -> Outcome:
        """Take back the annotator's last label or skip, if it was about `item`; else MOVED, and nothing changes."""
        with self._lock, explained(self._path), transaction(self._connection):
            last = self._last(annotator)
            if last is None or last[1] != item:
                return Outcome.MOVED
            retract(self._connection, item, annotator, now_ms)
            return Outcome.SAVED

    def view_of(self, annotator: str, item: str, *, notice: str = "") -> View:
        """Return the view of one item of the sample that has no label, for instance after an undo."""
        with self._lock, explained(self._path):
            query = "SELECT id, facts, task, claim FROM annotation_item WHERE sample_id = ? AND id = ?"
            row = self._connection.execute(query, (self._sample, item)).fetchone()
            return self._view(annotator, self._shown(annotator, row), notice)

    def _answer(self, annotator: str, answer: Answer, now_ms: int) -> Outcome:
        place = (answer.item, annotator)
        known = self._connection.execute(
            "SELECT item_id, annotator FROM annotation_label WHERE submission = ?", (answer.submission,)
        ).fetchone()
        if known is not None:
            return Outcome.REPEATED if known == place else Outcome.MOVED
        in_sample = self._connection.execute(
            "SELECT 1 FROM annotation_item WHERE id = ? AND sample_id = ?", (answer.item, self._sample)
        ).fetchone()
        if in_sample is None:
            return Outcome.UNKNOWN
        current = self._connection.execute(
            "SELECT label FROM annotation_label WHERE item_id = ? AND annotator = ? AND retracted_ms IS NULL", place
        ).fetchone()
        if current is not None and current[0] is not None:
            return Outcome.TAKEN
        retract(self._connection, *place, now_ms)
        said = (answer.label, clean_comment(answer.comment), min(answer.elapsed_ms, MOST_ELAPSED_MS))
        self._connection.execute(
            "INSERT INTO annotation_label"
            " (item_id, annotator, label, comment, elapsed_ms, submission, created_ms, source)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 'page')",
            (*place, *said, answer.submission, now_ms),
        )
        return Outcome.SAVED

    def _fresh_item(self, annotator: str) -> Shown | None:
        others = [item for name, item in self._held.items() if name != annotator]
        values = self._values(annotator) | {"held": " ".join(others)}
        return self._shown(annotator, self._connection.execute(_MINE + _NEXT, values).fetchone())

    def _skipped_item(self, annotator: str) -> Shown | None:
        row = self._connection.execute(_MINE + _NEXT_SKIPPED, self._values(annotator)).fetchone()
        return self._shown(annotator, row)

    def _shown(self, annotator: str, row: tuple[str, str, str, str] | None) -> Shown | None:
        if row is None:
            return None
        item, facts, task, claim = row
        before = self._connection.execute(
            "SELECT comment, label IS NULL AND retracted_ms IS NULL FROM annotation_label"
            " WHERE item_id = ? AND annotator = ? ORDER BY id DESC LIMIT 1",
            (item, annotator),
        ).fetchone() or ("", 0)
        return Shown(
            id=item,
            facts=tuple(map(shown_text, msgspec.json.decode(facts, type=tuple[str, ...]))),
            task=shown_text(task),
            claim=shown_text(claim),
            skipped=bool(before[1]),
            comment=before[0],
        )

    def _view(self, annotator: str, item: Shown | None, notice: str) -> View:
        counts = self._connection.execute(_MINE + _COUNTS, self._values(annotator)).fetchone()
        last = self._last(annotator)
        self._held.pop(annotator, None)
        if item is not None:
            self._held[annotator] = item.id
        return View(
            annotator=annotator,
            simulated=self._simulated,
            done=counts[0],
            skipped=counts[1],
            total=counts[2],
            elapsed_ms=counts[3],
            item=item,
            undo=None if last is None else last[1],
            notice=notice,
        )

    def _last(self, annotator: str) -> tuple[int, str, str] | None:
        row: tuple[int, str, str] | None = self._connection.execute(_LAST, self._values(annotator)).fetchone()
        return row

    def _values(self, annotator: str) -> dict[str, object]:
        return {"sample": self._sample, "annotator": annotator, "overlap": self._overlap}


def shown_text(text: str) -> str:
    """Return a text in which nothing acts on a reader's eye: controls and direction overrides become `U+FFFD`.

    Line breaks and tabs stay, and so do joiners, without which emoji and some scripts fall apart.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _acts(char) else char for char in text)


def clean_comment(text: str) -> str:
    """Return an annotator's words without surrounding blanks, controls and direction overrides."""
    return "".join(char for char in text.replace("\r\n", "\n") if not _acts(char)).strip()


def _acts(char: str) -> bool:
    code = ord(char)
    control = (code < 0x20 and char not in "\n\t") or 0x7F <= code < 0xA0  # noqa: PLR2004 - C0 and C1 controls
    return control or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or 0xD800 <= code <= 0xDFFF  # noqa: PLR2004
