"""Which persona a prompt speaks of: from the words of its facts to the persona's slot in the population.

Facts are looked for in the text between two marks, so the surrounding prompt may be worded as it likes. A text
without any known persona is given the slot that its hash names: rehearsals with other personas get stable answers
too.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from bench.simulator.tables import GROUP_SIZE, PERSONAS
from instruments.personas import Group, Persona, Script, load_personas, load_scripts

MEMO_SIZE: Final = 20_000
GROUPS: Final = tuple(Group)


class Cast:
    """The 150 personas and the conversations of some of them."""

    def __init__(self, personas: Sequence[Persona], scripts: Mapping[str, Script]) -> None:
        self._slots = _slots(personas)
        self._facts = [(fact, self._slots[persona.id]) for persona in personas for fact in persona.facts]
        self._variants = {persona: place % 2 for place, persona in enumerate(scripts)}
        self._speakers = {said: script.persona for script in scripts.values() for said in script.utterances}
        self._slot_variants = {self._slots[p]: variant for p, variant in self._variants.items() if p in self._slots}
        self._memo: dict[str, int] = {}

    @property
    def slots(self) -> Mapping[str, int]:
        """Slot by persona id."""
        return self._slots

    def slot(self, text: str) -> int:
        """Return the slot of the persona whose facts stand in `text`, or one that the text's hash names."""
        found = self._memo.get(text)
        if found is None:
            if len(self._memo) >= MEMO_SIZE:
                self._memo.clear()
            known = self._search(text)
            found = _hashed(text) if known is None else known
            self._memo[text] = found
        return found

    def variant(self, observed: str, utterance: str) -> int:
        """Return which of the two memory trajectories the conversation follows, 0 or 1.

        The scripts take turns in file order; so the first two, the default pair, follow one each.
        """
        persona = self._speakers.get(utterance)
        if persona is not None:
            return self._variants[persona]
        slot = self._search(observed)
        if slot is None:
            return _hashed(observed) % 2
        return self._slot_variants.get(slot, slot % 2)

    def _search(self, text: str) -> int | None:
        return next((slot for fact, slot in self._facts if fact in text), None)


def load_cast(personas: Path | None = None, scripts: Path | None = None) -> Cast:
    """Return the shipped cast; `personas` replaces the imported ones, `scripts` the conversations."""
    return Cast(load_personas(imported=personas), load_scripts(scripts))


def _slots(personas: Sequence[Persona]) -> dict[str, int]:
    """Return a slot for every persona: its group's fifty in file order; a larger group starts over."""
    taken = dict.fromkeys(GROUPS, 0)
    slots = {}
    for persona in personas:
        place = taken[persona.group]
        slots[persona.id] = GROUPS.index(persona.group) * GROUP_SIZE + place % GROUP_SIZE
        taken[persona.group] = place + 1
    return slots


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % PERSONAS
