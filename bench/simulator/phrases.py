"""Sentences of the simulated models, and the code words by which a simulated judge knows a claim again.

A claim's number is scrambled and written as three adjectives ("in an amber, brisk, coastal way"): the text gives away
neither label nor model, but whoever holds the population can look both up. Pure; knows no population.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import msgspec

from bench.simulator.tables import DATA

WORDS: Final = 64
CODES: Final = WORDS**3
# An odd multiplier permutes the codes modulo a power of two; neighbours in the population get unlike words.
SCRAMBLE: Final = 0x2C9B5
UNSCRAMBLE: Final = pow(SCRAMBLE, -1, CODES)
VOWELS: Final = frozenset("aeiou")
_CODE: Final = re.compile(r", in an? ([a-z]+), ([a-z]+), ([a-z]+) way")
_BULLET: Final = re.compile(r"\s*(?:\d+[.)]|[-*])?\s*")


class Memory(msgspec.Struct, frozen=True):
    """Word lists, separated by bars, of which entries of a simulated memory are made."""

    preferences: str
    personality_traits: str
    demographics: str
    predictions: str
    nouns: str


class Phrases(msgspec.Struct, frozen=True, dict=True):
    """The words as read from `phrases.toml`."""

    codes: tuple[str, str, str]
    closings: tuple[str, ...]
    openings: dict[str, tuple[str, ...]]
    stems: dict[str, tuple[str, ...]]
    memory: Memory

    @cached_property
    def adjectives(self) -> tuple[list[str], ...]:
        """The three lists of sixty-four adjectives."""
        return tuple(line.split() for line in self.codes)

    @cached_property
    def _places(self) -> tuple[dict[str, int], ...]:
        return tuple({word: place for place, word in enumerate(words)} for words in self.adjectives)

    def claim(self, kind: str, number: int, position: int) -> str:
        """Return the sentence that makes claim `number`, said at `position` of an answer of that kind."""
        stems = self.stems[kind]
        code = number * SCRAMBLE % CODES
        first, second, third = self.adjectives
        word = first[code // WORDS // WORDS]
        article = "an" if word[0] in VOWELS else "a"
        stem = stems[(number + 4 * position) % len(stems)]
        return f"{stem}, in {article} {word}, {second[code // WORDS % WORDS]}, {third[code % WORDS]} way."

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (claim number, sentence) for every coded claim in `text`, in order."""
        behind = 0
        for match in _CODE.finditer(text):
            number = self._number(*match.groups())
            if number is not None:
                found = match.start()
                start = max(text.rfind("\n", behind, found) + 1, text.rfind('"', behind, found) + 1, behind)
                yield number, _BULLET.sub("", text[start : match.end()], count=1) + "."
            behind = match.end()

    def first(self, text: str) -> int | None:
        """Return the number of the first coded claim in `text`."""
        for match in _CODE.finditer(text):
            number = self._number(*match.groups())
            if number is not None:
                return number
        return None

    def _number(self, *words: str) -> int | None:
        known_first, known_second, known_third = self._places
        first, second, third = known_first.get(words[0]), known_second.get(words[1]), known_third.get(words[2])
        if first is None or second is None or third is None:
            return None
        return ((first * WORDS + second) * WORDS + third) * UNSCRAMBLE % CODES


def load_phrases() -> Phrases:
    """Return the words that come with the package."""
    return msgspec.toml.decode((DATA / "phrases.toml").read_bytes(), type=Phrases)
