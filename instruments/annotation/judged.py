"""Reads a sweep's judged claims out of the store's views and turns a draw of them into items that can be shown."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from engine.errors import UserError
from instruments.annotation.sample import LETTERS, Candidate, item_ids
from instruments.annotation.store import Item
from instruments.claims import Claim
from instruments.personas import Persona
from instruments.tasks import Task

_claims: Final = msgspec.json.Decoder(tuple[Claim, ...])


class _Fixed(msgspec.Struct, frozen=True):
    """What of a manifest says whether personas are still those of the sweep: hashes by persona id."""

    personas: dict[str, str] = {}


class _Manifest(msgspec.Struct, frozen=True):
    judges: tuple[str, ...] = ()
    fixed: _Fixed = _Fixed()


class JudgedSweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep and the judge whose claims are validated.

    Attributes:
        persona_hashes: content hash of every persona as the sweep used it; empty where the manifest has none.
    """

    id: int
    name: str
    simulated: bool
    judge: str
    persona_hashes: dict[str, str]


def find_judged(connection: sqlite3.Connection, sweep: str = "", judge: str = "") -> JudgedSweep:
    """Return a sweep and its judge; both may be left out where there is no doubt (the first judge is the tables' one).

    Raises:
        UserError: no such sweep or judge, several sweeps and no name, or a store without the views of a sweep.
    """
    views = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
    if not {"records", "answers"} <= views:
        raise UserError("the store has no judged answers", where="store", mend="run the sweep with `mirage run` first")
    rows = connection.execute("SELECT id, name, simulated, manifest FROM sweep ORDER BY id").fetchall()
    chosen = [row for row in rows if sweep in {"", row[1]}]
    if len(chosen) != 1:
        known = ", ".join(row[1] for row in rows) or "none"
        what = f"there is no sweep called {sweep!r}" if sweep else f"the store holds {len(rows)} sweeps"
        raise UserError(what, where="--sweep", mend=f"choose one of: {known}")
    number, name, simulated, text = chosen[0]
    manifest = msgspec.json.decode(text, type=_Manifest)
    if not manifest.judges or judge not in {"", *manifest.judges}:
        known = ", ".join(manifest.judges) or "none"
        raise UserError(f"sweep {name!r} has no judge {judge!r}", where="--judge", mend=f"its judges: {known}")
    return JudgedSweep(
        id=number,
        name=name,
        simulated=bool(simulated),
        judge=judge or manifest.judges[0],
        persona_hashes=manifest.fixed.personas,
    )


def candidates(connection: sqlite3.Connection, judged: JudgedSweep) -> Iterator[Candidate]:
    """Yield every claim that the judge has labelled so far, also those of answers that were cut short."""
    rows = connection.execute(
        "SELECT model, persona, task, sample, judge_cell_id, labels FROM records"
        " WHERE sweep_id = ? AND judge = ? AND state IN ('read', 'truncated') AND labels IS NOT NULL",
        (judged.id, judged.judge),
    )
    for model, persona, task, sample, cell, labels in rows:
        for place, label in enumerate(labels):
            if label in LETTERS:
                yield Candidate(
                    model=model, persona=persona, task=task, sample=sample, claim=place, label=label, judge_cell_id=cell
                )


def items_of(
    connection: sqlite3.Connection,
    name: str,
    drawn: Sequence[Candidate],
    judged: JudgedSweep,
    personas: Mapping[str, Persona],
    tasks: Mapping[str, Task],
) -> list[Item]:
    """Return the drawn claims with the facts and the request that an annotator sees, in the same order.

    Raises:
        UserError: a persona or task is unknown, a persona has changed since the sweep, or a reading does not match
            its labels.
    """
    texts = [
        (
            _facts(personas, judged, origin.persona),
            _request(tasks, origin.task),
            _claim_text(connection, origin),
        )
        for origin in drawn
    ]
    ids = item_ids(name, (msgspec.json.encode(text).decode() for text in texts))
    return [
        Item(id=own, facts=facts, task=task, claim=claim, origin=origin)
        for own, (facts, task, claim), origin in zip(ids, texts, drawn, strict=True)
    ]


def _facts(personas: Mapping[str, Persona], judged: JudgedSweep, name: str) -> tuple[str, str, str]:
    if (persona := personas.get(name)) is None:
        mend = "give the file that the sweep used with --persona-file"
        raise UserError(f"persona {name!r} of the sweep is unknown", where="personas", mend=mend)
    known = judged.persona_hashes.get(name)
    if known is not None and known != blake2b(msgspec.json.encode(persona), digest_size=16).hexdigest():
        mend = "give the file that the sweep used with --persona-file: people must see what the judge saw"
        raise UserError(f"persona {name!r} has changed since the sweep", where="personas", mend=mend)
    return persona.facts


def _request(tasks: Mapping[str, Task], name: str) -> str:
    if (task := tasks.get(name)) is None:
        mend = "use the version of the program that ran the sweep"
        raise UserError(f"task {name!r} of the sweep is unknown", where="tasks", mend=mend)
    return task.prompt


def _claim_text(connection: sqlite3.Connection, origin: Candidate) -> str:
    query = "SELECT reading -> 'claims' FROM answers WHERE cell_id = ?"
    row = connection.execute(query, (origin.judge_cell_id,)).fetchone()
    try:
        claim = _claims.decode(row[0])[origin.claim]
    except (msgspec.MsgspecError, IndexError, TypeError):
        claim = None
    if claim is None or claim.label.letter != origin.label or not claim.text.strip():
        where = f"judge answer {origin.judge_cell_id}"
        mend = "read the answers again with `mirage reparse`"
        raise UserError("a reading does not match its labels", where=where, mend=mend)
    return claim.text
