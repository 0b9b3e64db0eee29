"""Draws the claims that people label: stratified by the judge's label, diverse, and in an order that tells nothing.

Chance comes from hashes of the seed and of a claim's place in the sweep, so that a draw depends on nothing but these:
not on the order of rows, not on when it is made. Two independent hashes choose the claims and order them. A shuffle of
the four strata with a known seed would not do: whoever knows the seed could undo it and read the judge's labels off the
positions. Memory grows with the sample and the design, not with the number of claims.

This module knows no store, no facts and no text; see the paper's H.1.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import msgspec

from engine.errors import UserError
from instruments.claims import Label

LETTERS: Final = "".join(label.letter for label in Label)
SIZE: Final = 400
SEED: Final = 42
ID_LETTERS: Final = 12
# Consonants only: such an id is no word, and no spreadsheet takes it for a number or a date.
_ALPHABET: Final = "bcdfghjkmnpqrstvwxz"
_SEPARATOR: Final = "\x1f"


class Candidate(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One judged claim.

    Attributes:
        sample: the 0-based repeated draw of the answer.
        claim: 0-based place in the judge's list of claims.
        label: the judge's label, one of `GRSF`.
        judge_cell_id: where the store keeps the judge's answer; not part of the claim's identity.
    """

    model: str
    persona: str
    task: str
    sample: int
    claim: int
    label: str
    judge_cell_id: int


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How many different models, tasks and personas; the defaults are the paper's lower bounds per label."""

    models: int = 8
    tasks: int = 5
    personas: int = 20


class SamplePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to draw.

    Attributes:
        size: number of claims, a quarter per label; what does not divide goes to the first labels.
        least: the diversity that every label's claims must have.
    """

    size: int = SIZE
    seed: int = SEED
    least: Spread = Spread()

    def quota(self, label: str) -> int:
        """Return how many claims of one label are wanted."""
        share, rest = divmod(self.size, len(LETTERS))
        return share + (LETTERS.index(label) < rest)


class Stratum(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one label.

    Attributes:
        label: one of `GRSF`.
        wanted, drawn, population: claims asked for, in the sample, and in the sweep.
        least, reached, available: diversity asked for, in the sample, and among all claims of this label.
        exchanged: claims that made room for rarer models, tasks or personas.
    """

    label: str
    wanted: int
    drawn: int
    population: int
    least: Spread
    reached: Spread
    available: Spread
    exchanged: int


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """A sample: its claims in the order in which they are shown, and what became of each label."""

    claims: tuple[Candidate, ...]
    strata: tuple[Stratum, ...]


def draw(candidates: Iterable[Candidate], plan: SamplePlan) -> Draw:
    """Return a sample of the given claims.

    Within a label every claim has the same chance, except that a claim may be exchanged for one that brings a missing
    model, task or persona.

    Raises:
        UserError: the plan asks for no claim, or there is none.
    """
    if plan.size < 1:
        raise UserError("a sample needs at least one claim", where="--size", mend="give a number from 1 on")
    pools = {label: _Pool(label=label, quota=plan.quota(label)) for label in LETTERS}
    for candidate in candidates:
        pools[candidate.label].offer(_chance(plan.seed, "draw", candidate), candidate)
    chosen = [claim for pool in pools.values() for claim in pool.choose(plan.least)]
    if not chosen:
        raise UserError("there is no judged claim to draw from", where="sweep", mend="let its judge stage run first")
    shown = sorted(chosen, key=lambda claim: (_chance(plan.seed, "order", claim), claim))
    return Draw(claims=tuple(shown), strata=tuple(pool.stratum(plan.least) for pool in pools.values()))


def shortfalls(strata: Sequence[Stratum]) -> list[str]:
    """Say, one line a label, where a sample is not what was asked for, how near it got, and what stood in the way."""
    return [line for stratum in strata for line in _shortfalls(stratum)]


def item_ids(name: str, contents: Iterable[str]) -> list[str]:
    """Return one opaque id per item, made from the sample's name, all items' texts and the item's position.

    An id is the same in every copy of a store, belongs to one sample only, and holds nothing that the annotator does
    not see anyway.
    """
    texts = list(contents)
    key = blake2b(_SEPARATOR.join((name, *texts)).encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return [_letters(blake2b(str(place).encode(), key=key, digest_size=16).digest()) for place in range(len(texts))]


@dataclass(slots=True, kw_only=True)
class _Pool:
    """The claims of one label as they come by: the first few by chance, and the first of every kind."""

    label: str
    quota: int
    population: int = 0
    exchanged: int = 0
    heap: list[tuple[int, Candidate]] = field(default_factory=list)
    firsts: dict[str, dict[str, tuple[int, Candidate]]] = field(default_factory=lambda: {kind: {} for kind in _KINDS})
    taken: list[tuple[int, Candidate]] = field(default_factory=list)

    def offer(self, chance: int, candidate: Candidate) -> None:
        """Look at one claim."""
        self.population += 1
        # The heap's head is the claim with the worst chance so far.
        if len(self.heap) < self.quota:
            heapq.heappush(self.heap, (-chance, candidate))
        elif self.quota:
            heapq.heappushpop(self.heap, (-chance, candidate))
        for kind, value_of in _KINDS.items():
            known = self.firsts[kind].get(value_of(candidate))
            if known is None or (chance, candidate) < known:
                self.firsts[kind][value_of(candidate)] = (chance, candidate)

    def choose(self, least: Spread) -> list[Candidate]:
        """Return the claims to label."""
        self.taken = sorted((-chance, candidate) for chance, candidate in self.heap)
        for kind in _KINDS:
            while self._lacks(kind, least) and self._exchange(kind, least):
                self.exchanged += 1
        return [candidate for _, candidate in self.taken]

    def stratum(self, least: Spread) -> Stratum:
        """Describe what was chosen."""
        available = Spread(**{kind: len(self.firsts[kind]) for kind in _KINDS})
        return Stratum(
            label=self.label,
            wanted=self.quota,
            drawn=len(self.taken),
            population=self.population,
            least=least,
            reached=_spread(candidate for _, candidate in self.taken),
            available=available,
            exchanged=self.exchanged,
        )

    def _lacks(self, kind: str, least: Spread) -> bool:
        return len(_counts(kind, self.taken)) < min(_number(kind, least), len(self.firsts[kind]), self.quota)

    def _exchange(self, kind: str, least: Spread) -> bool:
        """Put a claim of a new kind in the place of the last one that nothing depends on; False when there is none."""
        present = _counts(kind, self.taken)
        fresh = sorted(first for value, first in self.firsts[kind].items() if value not in present)
        for newcomer in fresh:
            for leaver in reversed(self.taken):
                after = sorted([*(each for each in self.taken if each is not leaver), newcomer])
                if self._is_better(kind, after, least):
                    self.taken = after
                    return True
        return False

    def _is_better(self, kind: str, after: Sequence[tuple[int, Candidate]], least: Spread) -> bool:
        def keeps(other: str) -> bool:
            return len(_counts(other, after)) >= min(len(_counts(other, self.taken)), _number(other, least))

        return len(_counts(kind, after)) > len(_counts(kind, self.taken)) and all(map(keeps, _KINDS))


_KINDS: Final[Mapping[str, Callable[[Candidate], str]]] = {
    "models": lambda candidate: candidate.model,
    "tasks": lambda candidate: candidate.task,
    "personas": lambda candidate: candidate.persona,
}


def _number(kind: str, spread: Spread) -> int:
    return int(getattr(spread, kind))


def _counts(kind: str, claims: Iterable[tuple[int, Candidate]]) -> Counter[str]:
    return Counter(_KINDS[kind](candidate) for _, candidate in claims)


def _spread(claims: Iterable[Candidate]) -> Spread:
    whole = list(claims)
    return Spread(**{kind: len({value_of(claim) for claim in whole}) for kind, value_of in _KINDS.items()})


def _chance(seed: int, purpose: str, claim: Candidate) -> int:
    place = (str(seed), purpose, claim.model, claim.persona, claim.task, str(claim.sample), str(claim.claim))
    text = _SEPARATOR.join(place).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "big")


def _letters(digest: bytes) -> str:
    number, letters = int.from_bytes(digest, "big"), ""
    for _ in range(ID_LETTERS):
        number, place = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[place]
    return letters


def _shortfalls(stratum: Stratum) -> Iterator[str]:
    short = [f"{stratum.drawn} claims instead of {stratum.wanted} (the sweep has no more)"]
    parts = short if stratum.drawn < stratum.wanted else []
    for kind in _KINDS:
        wanted, got, there = (_number(kind, each) for each in (stratum.least, stratum.reached, stratum.available))
        if got < wanted and stratum.wanted:
            why = "the sweep has no more" if there <= got else "no exchange brings more"
            parts.append(f"{got} {kind} instead of {wanted} ({why})")
    if parts:
        name = next(label.value for label in Label if label.letter == stratum.label)
        yield f"{name}: {', '.join(parts)}"
