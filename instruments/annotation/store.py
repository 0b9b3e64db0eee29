"""The tables of human validation in a sweep's store: opened beside a running sweep, samples written, labels read.

Labels are written through a connection of their own in short transactions, so that a sweep may write at the same time.
`open_blind` gives a connection that cannot read what an annotator must not see: SQLite itself refuses.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from engine.database import APPLICATION_ID, BUSY_MS, explained, migrations
from engine.errors import StoreError, UserError
from instruments.annotation.sample import LETTERS, Candidate, SamplePlan, Stratum

# What the page's connection may read: nothing that tells the judge's label, its reasoning, the model or the profile.
_BLIND: Final[Mapping[str, frozenset[str]]] = {
    "annotation_item": frozenset({"id", "sample_id", "position", "facts", "task", "claim"}),
    "annotation_sample": frozenset({"id", "name", "sweep_id"}),
    "annotation_label": frozenset(
        {"id", "item_id", "annotator", "label", "comment", "elapsed_ms", "source", "submission", "created_ms"}
        | {"retracted_ms"}
    ),
    "sweep": frozenset({"id", "simulated"}),
}
_BLIND_ACTIONS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_FUNCTION})
_BLIND_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE})


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of a sample.

    Attributes:
        id: opaque; tells nothing but which item it is.
        facts, task, claim: what an annotator sees; `task` is the request that the answer responds to.
        origin: where it comes from and what the judge said; never shown to an annotator.
    """

    id: str
    facts: tuple[str, ...]
    task: str
    claim: str
    origin: Candidate


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A stored sample.

    Attributes:
        items: number of claims in it.
        population: claims of the sweep by the judge's label when it was drawn.
    """

    id: int
    name: str
    sweep: str
    simulated: bool
    judge: str
    plan: SamplePlan
    items: int
    population: dict[str, int]
    strata: tuple[Stratum, ...]


class LabelRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one annotator said about one item.

    Attributes:
        label: one of `GRSF`, or None where the item was skipped.
        elapsed_ms: time on screen, None where nobody measured it.
    """

    item: str
    annotator: str
    label: str | None
    comment: str = ""
    elapsed_ms: int | None = None
    created_ms: int


def open_annotations(path: Path) -> sqlite3.Connection:
    """Open a store for human validation and create its tables where they are missing.

    Raises:
        StoreError: no such store, not one of ours, of another version, or not writable.
    """
    if not path.is_file():
        raise StoreError("there is no such store", where=str(path), mend="give the path that `mirage run` printed")
    with explained(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_blind(path: Path) -> sqlite3.Connection:
    """Open a store for the page: it can write labels, and read nothing that an annotator must not know.

    Raises:
        StoreError: as `open_annotations`.
    """
    connection = open_annotations(path)
    connection.set_authorizer(_authorize)
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make what happens inside durable as a whole, or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def add_sample(
    connection: sqlite3.Connection,
    items: Sequence[Item],
    strata: Sequence[Stratum],
    *,
    name: str,
    sweep_id: int,
    judge: str,
    plan: SamplePlan,
    now_ms: int,
) -> None:
    """Write a sample with its items in the order in which they are shown, all or nothing."""
    population = {stratum.label: stratum.population for stratum in strata}
    head = (name, sweep_id, judge, plan.seed, plan.size, *map(_json, (plan, population, strata)), now_ms)
    with transaction(connection):
        sample_id = connection.execute(
            "INSERT INTO annotation_sample (name, sweep_id, judge, seed, size, plan, population, strata, created_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            head,
        ).lastrowid
        connection.executemany(
            "INSERT INTO annotation_item (id, sample_id, position, facts, task, claim, judge_cell_id, claim_index,"
            " judge_label, model, persona, task_id, sample) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [_item_row(sample_id, position, item) for position, item in enumerate(items, 1)],
        )


def find_sample(connection: sqlite3.Connection, name: str = "") -> Sample:
    """Return the sample of that name; the name may be left out when the store holds one sample only.

    Raises:
        UserError: there is none, or there are several and no name.
    """
    samples = list_samples(connection)
    chosen = [sample for sample in samples if name in {"", sample.name}]
    known = ", ".join(sample.name for sample in samples)
    if not samples:
        raise UserError("the store holds no sample", where="--sample", mend="draw one with `mirage annotate sample`")
    if not chosen:
        raise UserError(f"there is no sample called {name!r}", where="--sample", mend=f"choose one of {known}")
    if len(chosen) > 1:
        raise UserError(f"the store holds {len(chosen)} samples", where="--sample", mend=f"choose one of {known}")
    return chosen[0]


def list_samples(connection: sqlite3.Connection) -> list[Sample]:
    """Return all samples of the store, oldest first."""
    rows = connection.execute(
        "SELECT a.id, a.name, s.name, s.simulated, a.judge, a.plan,"
        " (SELECT count(*) FROM annotation_item i WHERE i.sample_id = a.id), a.population, a.strata"
        " FROM annotation_sample a JOIN sweep s ON s.id = a.sweep_id ORDER BY a.id"
    )
    return [
        Sample(
            id=number,
            name=name,
            sweep=sweep,
            simulated=bool(simulated),
            judge=judge,
            plan=msgspec.json.decode(plan, type=SamplePlan),
            items=items,
            population=msgspec.json.decode(population, type=dict[str, int]),
            strata=msgspec.json.decode(strata, type=tuple[Stratum, ...]),
        )
        for number, name, sweep, simulated, judge, plan, items, population, strata in rows
    ]


def shown_items(connection: sqlite3.Connection, sample_id: int) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Return (id, facts, task, claim) of every item in order: what an annotator may see."""
    rows = connection.execute(
        "SELECT id, facts, task, claim FROM annotation_item WHERE sample_id = ? ORDER BY position", (sample_id,)
    )
    return [(item, msgspec.json.decode(facts, type=tuple[str, ...]), task, claim) for item, facts, task, claim in rows]


def current_labels(connection: sqlite3.Connection, sample_id: int, annotator: str = "") -> list[LabelRow]:
    """Return what annotators say now, by item position, then by annotator; of one annotator, or of all."""
    rows = connection.execute(
        "SELECT l.item_id, l.annotator, l.label, l.comment, l.elapsed_ms, l.created_ms"
        " FROM annotation_label l JOIN annotation_item i ON i.id = l.item_id"
        " WHERE i.sample_id = :sample AND l.retracted_ms IS NULL AND :annotator IN ('', l.annotator)"
        " ORDER BY i.position, l.annotator",
        {"sample": sample_id, "annotator": annotator},
    )
    return [
        LabelRow(item=item, annotator=name, label=label, comment=comment, elapsed_ms=elapsed, created_ms=created)
        for item, name, label, comment, elapsed, created in rows
    ]


def annotators_of(connection: sqlite3.Connection, sample_id: int) -> list[str]:
    """Return the names of everyone who has labelled or skipped an item of the sample."""
    return sorted({row.annotator for row in current_labels(connection, sample_id)})


def checked_annotator(name: str, known: Sequence[str] = ()) -> str:
    """Return a name fit for the records.

    Raises:
        UserError: empty, too long, with characters that do not print, or a known name in another spelling.
    """
    clean = " ".join(name.split())
    if not 1 <= len(clean) <= 64 or not clean.isprintable():  # noqa: PLR2004 - the table's own bound
        what = f"{clean[:70]!r} cannot be an annotator's name"
        raise UserError(what, where="--annotator", mend="use 1 to 64 letters")
    for other in known:
        if clean != other and clean.casefold() == other.casefold():
            mend = f"write {other!r} if that is the same person, else another name"
            raise UserError(f"{clean!r} is nearly {other!r}", where="--annotator", mend=mend)
    return clean


def write_labels(
    connection: sqlite3.Connection, rows: Sequence[LabelRow], *, now_ms: int, replace: bool = False
) -> tuple[int, int]:
    """Store labels made elsewhere, all or nothing; return how many are new and how many were there already.

    Args:
        connection: from `open_annotations`.
        rows: at most one per item and annotator.
        now_ms: when replaced labels are retracted.
        replace: retract labels that differ; otherwise they are an error.

    Raises:
        UserError: an item has another label by the same annotator already; nothing is written.
    """
    added = 0
    with transaction(connection):
        for row in rows:
            added += _write_label(connection, row, now_ms, replace=replace)
    return added, len(rows) - added


def _write_label(connection: sqlite3.Connection, row: LabelRow, now_ms: int, *, replace: bool) -> bool:
    place = (row.item, row.annotator)
    query = "SELECT label, comment FROM annotation_label WHERE item_id = ? AND annotator = ? AND retracted_ms IS NULL"
    found = connection.execute(query, place).fetchone()
    if found == (row.label, row.comment):
        return False
    if found is not None and found[0] is not None and not replace:
        raise UserError(
            f"{row.annotator} has labelled item {row.item} otherwise already",
            where="nothing was imported",
            mend="give --replace if the file is right",
        )
    retract(connection, *place, now_ms)
    connection.execute(
        "INSERT INTO annotation_label (item_id, annotator, label, comment, elapsed_ms, source, created_ms)"
        " VALUES (?, ?, ?, ?, ?, 'sheet', ?)",
        (row.item, row.annotator, row.label, row.comment, row.elapsed_ms, row.created_ms),
    )
    return True


def retract(connection: sqlite3.Connection, item: str, annotator: str, now_ms: int) -> None:
    """Take back what an annotator says about an item, if anything; the row stays in the store."""
    connection.execute(
        "UPDATE annotation_label SET retracted_ms = ? WHERE item_id = ? AND annotator = ? AND retracted_ms IS NULL",
        (now_ms, item, annotator),
    )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        mend = "give the path that `mirage run` printed"
        raise StoreError("this is not a MirageBench store", where=str(path), mend=mend)
    if version > (newest := migrations()[-1][0]):
        what = f"the store was written by a newer version (schema {version}, this program knows {newest})"
        raise StoreError(what, where=str(path), mend="upgrade MirageBench")
    # A label is on disk before the page moves on, also if the power fails.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    script = files("instruments").joinpath("sql/annotation.sql").read_text(encoding="utf-8")
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == sqlite3.SQLITE_READ:
        allowed = second in _BLIND.get(first or "", frozenset()) or (not second and first in _BLIND)
    elif action in _BLIND_WRITES:
        allowed = first == "annotation_label"
    else:
        allowed = action in _BLIND_ACTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _item_row(sample_id: int | None, position: int, item: Item) -> tuple[object, ...]:
    origin = item.origin
    if origin.label not in LETTERS:
        raise ValueError(f"{origin.label!r} is no label")
    shown = (item.id, sample_id, position, _json(item.facts), item.task, item.claim)
    place = (origin.judge_cell_id, origin.claim, origin.label)
    return (*shown, *place, origin.model, origin.persona, origin.task, origin.sample)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
