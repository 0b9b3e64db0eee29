"""Reads what only the page needs out of a store's views: the manifest, when answers came, and a sample of responses.

Reads views only, through a connection that it is given. Responses are a model's own words: they leave
this module as plain text of bounded length, or as the reason why there is none.
"""

import codecs
import heapq
import io
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, zip_longest
from typing import Final, TypeAlias

import numpy as np

from analysis.records import Ints

MOST_CHARACTERS: Final = 20_000
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_CLAIMS: Final = 200
MOST_CLAIM_CHARACTERS: Final = 2_000
NO_ZSTD: Final = "long texts are compressed; install the `zstandard` package to read them"
DAMAGED: Final = "the stored text is damaged"
NO_RESPONSE: Final = "no response"

_LABELS: Final = {"GROUNDED": "G", "INFERRED_REASONABLE": "R", "INFERRED_STEREOTYPE": "S", "FABRICATED": "F"}
_ACCURACIES: Final = frozenset({"CORRECT", "INCORRECT", "PARTIALLY_CORRECT", "UNVERIFIABLE"})
_TASKS: Final = """
    SELECT task_cell_id, model, persona, task, sample FROM records
    WHERE sweep_id = ? AND judge = ? AND state <> 'pending'
"""
# One pass over each view, however many responses are wanted: SQLite would make whole views for every single look-up.
# CROSS JOIN is SQLite's way to say which side comes first: the few cells, then their requests by number.
_VERDICTS: Final = """
    SELECT task_cell_id, model, persona, persona_group, task, sample, state, reason, claims FROM records
    WHERE sweep_id = ? AND judge = ? AND task_cell_id IN (SELECT value FROM json_each(?))
"""
_ANSWERS: Final = """
    SELECT a.cell_id, q.key, q.text FROM answers a CROSS JOIN requests q ON q.request_id = a.request_id
    WHERE a.cell_id IN (SELECT value FROM json_each(?))
"""
_SETTLED: Final = """
    SELECT alias, settled_ms, coalesce(latency_ms, 0), coalesce(output_tokens, 0) FROM requests
    WHERE sweep = ? AND settled_ms IS NOT NULL ORDER BY alias
"""

Stored: TypeAlias = str | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One labelled claim: label and accuracy as letters, as in the views."""

    label: str
    accuracy: str
    text: str
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One task answer with the judge's claims.

    Parameters
    ----------
    model, persona, group, task, sample, state, reason
        As in the view `records`.
    key : str
        Of the request, to find it again in the store.
    text : str
        The answer, at most `MOST_CHARACTERS` of it.
    cut : int
        Characters left out of `text`.
    why_no_text : str
        Why `text` is empty; itself empty otherwise.
    claims : tuple of Claim
        At most `MOST_CLAIMS`.
    claims_cut : int
        Claims left out.
    """

    model: str
    persona: str
    group: str
    task: str
    sample: int
    state: str
    reason: str
    key: str
    text: str
    cut: int
    why_no_text: str
    claims: tuple[Claim, ...]
    claims_cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Some responses of a sweep in a mixed order, and how many there are."""

    responses: tuple[Response, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """One row per answered request: whose (a position in `models`), when, after how long, with how many tokens."""

    models: tuple[str, ...]
    model: Ints
    settled_ms: Ints
    latency_ms: Ints
    output_tokens: Ints


def read_manifest(connection: sqlite3.Connection, sweep_id: int) -> Mapping[str, object]:
    """Return a sweep's manifest; `load` has checked that it is a JSON object."""
    (text,) = connection.execute("SELECT manifest FROM sweeps WHERE sweep_id = ?", (sweep_id,)).fetchone()
    manifest: Mapping[str, object] = json.loads(text)
    return manifest


def read_settled(connection: sqlite3.Connection, sweep: str) -> Settled:
    """Return when the answers of a sweep came."""
    models: dict[str, int] = {}
    rows = connection.execute(_SETTLED, (sweep,))
    numbers = np.fromiter(
        ((models.setdefault(str(alias), len(models)), *whole) for alias, *whole in rows), np.dtype((np.int64, 4))
    )
    model, settled, latency, tokens = numbers.T
    return Settled(
        models=tuple(models), model=model, settled_ms=settled, latency_ms=latency, output_tokens=tokens
    )  # fmt: skip


def sample_responses(
    connection: sqlite3.Connection, sweep_id: int, judge: str, *, most: int | None, seed: int
) -> Sampled:
    """Return a sample of the responses of a sweep, as even as can be over pairs of model and task.

    Which ones are drawn depends on the seed and on what a response answers, not on what it says or when it came.

    Parameters
    ----------
    connection : sqlite3.Connection
    sweep_id : int
    judge : str
        Whose claims to show.
    most : int or None
        How many responses; None for all.
    seed : int
    """
    strata: dict[tuple[str, str], list[tuple[int, int]]] = {}
    total = 0
    for cell, model, persona, task, sample in connection.execute(_TASKS, (sweep_id, judge)):
        total += 1
        drawn = strata.setdefault((model, task), [])
        entry = (-_chance(seed, model, persona, task, sample), cell)
        if most is None or len(drawn) < most:
            heapq.heappush(drawn, entry)
        else:
            heapq.heappushpop(drawn, entry)
    cells = _even(strata, most)
    return Sampled(responses=tuple(_responses(connection, sweep_id, judge, cells)), total=total)


def text_of(stored: Stored) -> tuple[str, int, str]:
    """Return a stored text, how many of its characters were left out, and why there is none."""
    if stored is None:
        return "", 0, NO_RESPONSE
    text, why = (stored, "") if isinstance(stored, str) else _inflated(stored)
    return text[:MOST_CHARACTERS], max(len(text) - MOST_CHARACTERS, 0), why


def _chance(seed: int, *place: object) -> int:
    key = "\0".join(map(str, (seed, *place))).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def _even(strata: Mapping[tuple[str, str], Sequence[tuple[int, int]]], most: int | None) -> list[int]:
    """Take one of each stratum in turn until there are enough; return them in the order of their chances."""
    columns = [sorted(strata[name], reverse=True) for name in sorted(strata)]
    turns = chain.from_iterable(zip_longest(*columns))
    taken = [entry for entry in turns if entry is not None][:most]
    return [cell for _, cell in sorted(taken, reverse=True)]


def _responses(connection: sqlite3.Connection, sweep_id: int, judge: str, cells: Sequence[int]) -> Iterator[Response]:
    wanted = json.dumps(cells)
    found = connection.execute(_ANSWERS, (wanted,))
    answers = {cell: (key or "", *text_of(stored)) for cell, key, stored in found}
    verdicts = {cell: row for cell, *row in connection.execute(_VERDICTS, (sweep_id, judge, wanted))}
    for cell in cells:
        model, persona, group, task, sample, state, reason, claims = verdicts[cell]
        key, text, cut, why = answers.get(cell, ("", "", 0, NO_RESPONSE))
        labelled, claims_cut = _claims(claims)
        yield Response(
            model=model or "", persona=persona or "", group=group or "", task=task or "", sample=int(sample or 0),
            state=state, reason=reason or "", key=key, text=text, cut=cut, why_no_text=why,
            claims=labelled, claims_cut=claims_cut,
        )  # fmt: skip


def _inflated(stored: bytes) -> tuple[str, str]:
    try:
        import zstandard  # noqa: PLC0415 - analysis works without it
    except ImportError:
        return "", NO_ZSTD
    try:
        size = zstandard.frame_content_size(stored)
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored)) as reader:
            data = reader.read(MOST_BYTES)
        # A frame that ends too early is no error to the reader.
        if len(data) < min(size, MOST_BYTES):
            return "", DAMAGED
        # A text longer than that may end within a character.
        return codecs.getincrementaldecoder("utf-8")("surrogatepass").decode(data), ""
    except (zstandard.ZstdError, UnicodeDecodeError):
        return "", DAMAGED


def _claims(stored: str | None) -> tuple[tuple[Claim, ...], int]:
    try:
        found: object = json.loads(stored or "[]")
    except ValueError:
        found = []
    items = [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
    return tuple(map(_claim, items[:MOST_CLAIMS])), max(len(items) - MOST_CLAIMS, 0)


def _claim(item: Mapping[str, object]) -> Claim:
    label, accuracy = str(item.get("label") or ""), str(item.get("accuracy") or "")
    return Claim(
        label=_LABELS.get(label, ""),
        accuracy=accuracy[:1] if accuracy in _ACCURACIES else "",
        text=_bounded(str(item.get("text") or "")),
        reasoning=_bounded(str(item.get("reasoning") or "")),
    )


def _bounded(text: str) -> str:
    return text if len(text) <= MOST_CLAIM_CHARACTERS else f"{text[:MOST_CLAIM_CHARACTERS]}…"
