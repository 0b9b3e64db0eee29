"""How a simulated model keeps its memory of a user: what it adds and drops in each round of a conversation.

Round t drops a fixed set of entries and adds a fixed list, so a memory that came through all rounds holds exactly the
calibrated number of inferred attributes, and one that a client changed or lost is carried on from where it is. Pure.
"""

from itertools import count, islice
from typing import Final

import msgspec

from bench.simulator.phrases import Phrases
from bench.simulator.tables import Trajectory

OBSERVED: Final = ("observed", "directly_observed")
FIELDS: Final = ("preferences", "personality_traits", "demographics", "predictions")
NOUNS: Final = 24


class Entry(msgspec.Struct, frozen=True):
    """One inferred attribute."""

    field: str
    text: str


class Step(msgspec.Struct, frozen=True):
    """What happens in one round."""

    dropped: frozenset[str]
    added: tuple[Entry, ...]


def steps(path: Trajectory, phrases: Phrases, offset: int) -> tuple[Step, ...]:
    """Return the steps of a trajectory; `offset` tells models and personas apart in words."""
    births = (entry(phrases, number, offset) for number in count())
    alive: list[Entry] = []
    found = []
    for goal, gone in zip(path.counts, (0, *path.removed), strict=True):
        dropped, kept = alive[:gone], alive[gone:]
        added = tuple(islice(births, goal - len(kept)))
        alive = [*kept, *added]
        found.append(Step(frozenset(old.text for old in dropped), added))
    return tuple(found)


def entry(phrases: Phrases, number: int, offset: int) -> Entry:
    """Return the attribute that is born as `number`; all texts of one trajectory differ."""
    field = FIELDS[number % len(FIELDS)]
    verbs, nouns = getattr(phrases.memory, field).split("|"), phrases.memory.nouns.split("|")
    adjectives = phrases.adjectives[offset % len(phrases.adjectives)]
    adjective = adjectives[(number // NOUNS + offset) % len(adjectives)]
    article, noun = _article(nouns[number % NOUNS])
    return Entry(field, f"{verbs[number // len(FIELDS) % len(verbs)]} {article}{adjective} {noun}")


def update(memory: dict[str, list[str]], utterance: str, step: Step | None) -> dict[str, list[str]]:
    """Return the memory after a round; None stands for a round beyond the calibrated ones, which infers nothing."""
    names = {name: name for name in memory} | {name: name for name in FIELDS if name not in memory}
    observed = next((name for name in memory if name in OBSERVED), OBSERVED[0])
    seen = memory.get(observed, [])
    kept = {name: [text for text in memory.get(name, ()) if step is None or text not in step.dropped] for name in names}
    for new in step.added if step else ():
        if new.text not in kept[new.field]:
            kept[new.field].append(new.text)
    return {observed: [*seen, utterance] if utterance and utterance not in seen else list(seen)} | {
        name: texts for name, texts in kept.items() if name != observed
    }


def _article(noun: str) -> tuple[str, str]:
    return ("a ", noun[2:]) if noun.startswith("a ") else ("", noun)
