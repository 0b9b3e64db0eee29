"""Accumulation: a memory that the model rewrites after each message of a conversation (paper G.7).

Round t is asked with the memory that round t-1 returned; the first one starts from the three facts as `observed`. What
the model returns *is* its memory: fields that it adds are kept, shown again, and counted as inferred, as is every field
but `observed`. An entry that is no text is written as text in one fixed way, so that the same entry is the same text in
every round. Attributes are compared across rounds by their text, case and spacing aside.

A memory that could not be read, or only in part, ends its chain: going on from part of a memory would count the cut as
a revision that the model never made.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from engine.cell import Reading, ReadingStatus
from engine.request import Completion, Role, chat
from instruments.answers import blocked, found_reading, plain_key, unreadable, with_finish
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.lenient import Json
from instruments.modeljson import find_object, sound
from instruments.personas import Persona
from instruments.schemas import MEMORY_FIELDS, decoding

VERSION: Final = 1
OBSERVED: Final = "observed"
MAX_NESTING: Final = 8
_FIELD_NAMES: Final = {plain_key(field): field for field in MEMORY_FIELDS} | {"directlyobserved": OBSERVED}
_is_identifier = str.isidentifier

Memory = dict[str, list[str]]


class MemoryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory after one round.

    Attributes:
        memory: entries by field, the five of the paper first.
        inferred: the unique normalised entries of every field but `observed`.
        observed_count: number of unique entries in `observed`.
        missing: fields of the paper that the reply did not have; they are empty in `memory`.
        note: what was odd about the reply.
    """

    memory: Memory
    inferred: tuple[str, ...]
    observed_count: int
    missing: tuple[str, ...] = ()
    note: str = ""


class AccumInstrument:
    """One chain of rounds per subject, persona with a script, and sample."""

    def plan(self, design: Design, /) -> Iterator[Ask]:
        """Yield the first round of every chain."""
        if Stage.ACCUM not in design.stages or not design.rounds:
            return
        for persona in design.personas.values():
            if persona.id not in design.scripts:
                continue
            for subject in design.subjects:
                for sample in range(design.samples):
                    coords = Coords(model=subject, persona=persona.id, group=persona.group, round=1, sample=sample)
                    yield accum_ask(design, coords, first_memory(persona))

    def read(self, completion: Completion, /) -> Reading:
        """Read the returned memory."""
        if reason := blocked(completion):
            return unreadable(VERSION, reason)
        found = find_object(completion.text, _is_memory)
        value = found.values[0] if found.values else None
        if not isinstance(value, dict):
            return unreadable(VERSION, with_finish(found.reason, completion))
        memory, missing = read_memory(value)
        body = MemoryBody(
            memory=memory,
            inferred=unique(entry for field, entries in memory.items() if field != OBSERVED for entry in entries),
            observed_count=len(unique(memory[OBSERVED])),
            missing=missing,
            note=found.note,
        )
        return found_reading(VERSION, found, completion, body)

    def follow_up(self, coords: Coords, _completion: Completion, reading: Reading, design: Design, /) -> Sequence[Ask]:
        """Return the next round with the new memory, until the design's rounds or the script are over."""
        over = coords.round >= round_count(design, coords.persona) or Stage.ACCUM not in design.stages
        if reading.status is not ReadingStatus.COMPLETE or over:
            return ()
        memory = msgspec.json.decode(reading.body, type=MemoryBody).memory
        return (accum_ask(design, msgspec.structs.replace(coords, round=coords.round + 1), memory),)


def first_memory(persona: Persona) -> Memory:
    """Return the memory that a chain starts from: the revealed facts, and nothing inferred."""
    return {field: list(persona.facts) if field == OBSERVED else [] for field in MEMORY_FIELDS}


def round_count(design: Design, persona: str) -> int:
    """Return how many rounds a persona's chain has."""
    return min(design.rounds, len(design.scripts[persona].utterances))


def accum_ask(design: Design, coords: Coords, memory: Mapping[str, Sequence[str]]) -> Ask:
    """Return the question of round `coords.round`, asked with `memory`."""
    name = f"accum_{design.memory_prompt}"
    more = [field for field in memory if field not in MEMORY_FIELDS]
    text = design.prompts.fill(
        name,
        **{field: _shown(memory.get(field, ())) for field in MEMORY_FIELDS},
        more="".join(f", {_shown_key(field)}: {_shown(memory[field])}" for field in more),
        t=str(coords.round),
        utterance=design.scripts[coords.persona].utterances[coords.round - 1],
    )
    return Ask(
        alias=coords.model,
        stage=Stage.ACCUM,
        coords=msgspec.structs.replace(coords, prompt=design.prompts.tag(name)),
        messages=chat((Role.USER, text)),
        decoding=decoding(design, Stage.ACCUM),
    )


def read_memory(value: Mapping[str, Json]) -> tuple[Memory, tuple[str, ...]]:
    """Return a memory's entries by field, and which of the paper's fields it lacks."""
    memory: Memory = {field: [] for field in MEMORY_FIELDS}
    seen: set[str] = set()
    for key, child in value.items():
        field = _FIELD_NAMES.get(plain_key(key), sound(key))
        seen.add(field)
        memory.setdefault(field, []).extend(entries(child))
    return memory, tuple(field for field in MEMORY_FIELDS if field not in seen)


def entries(value: Json, depth: int = 0) -> list[str]:
    """Return a field's value as texts: one for each item of a list, `key: text` for each entry of an object."""
    if depth == MAX_NESTING:
        return ["(nested)"]
    if isinstance(value, dict):
        return [sound(f"{key}: {text}") for key, child in value.items() for text in entries(child, depth + 1)]
    if isinstance(value, list):
        return [text for child in value for text in _items(child, depth + 1)]
    text = _scalar(value)
    return [text] if text else []


def normalised(entry: str) -> str:
    """Return an entry as it is compared across rounds: case-folded, runs of white space as one space."""
    return " ".join(entry.split()).casefold()


def unique(texts: Iterator[str] | Sequence[str]) -> tuple[str, ...]:
    """Return the normalised texts, each once, in order of first appearance."""
    return tuple(dict.fromkeys(normalised(text) for text in texts))


def _items(value: Json, depth: int) -> list[str]:
    """Return a list's item as texts; an object is one entry, its parts in the order of their keys."""
    if not isinstance(value, dict):
        return entries(value, depth)
    parts = [f"{key}: {', '.join(texts)}" for key in sorted(value) if (texts := entries(value[key], depth + 1))]
    return [sound("; ".join(parts))] if parts else []


def _scalar(value: Json) -> str:
    if isinstance(value, str):
        return sound(value).strip()
    return "" if value is None else msgspec.json.encode(value).decode()


def _is_memory(value: Mapping[str, Json]) -> bool:
    return any(plain_key(key) in _FIELD_NAMES for key in value)


def _shown(texts: Sequence[str]) -> str:
    """Return a list of texts as JSON, items separated by a comma and a space."""
    return "[" + ", ".join(msgspec.json.encode(text).decode() for text in texts) + "]"


def _shown_key(field: str) -> str:
    return field if _is_identifier(field) else msgspec.json.encode(field).decode()
