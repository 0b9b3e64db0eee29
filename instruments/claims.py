"""The taxonomy of claims and how a model's spelling of it is read. An unknown word is unreadable, never a guess."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

NOT_GIVEN: Final = "-"
_SEPARATORS: Final = re.compile(r"[\W_]+")


class Label(StrEnum):
    """Where a claim's support comes from (paper, section 3); the last two are over-inference."""

    GROUNDED = "GROUNDED"
    REASONABLE = "INFERRED_REASONABLE"
    STEREOTYPE = "INFERRED_STEREOTYPE"
    FABRICATED = "FABRICATED"

    @property
    def letter(self) -> str:
        """G, R, S or F."""
        return self.name[0]


class Accuracy(StrEnum):
    """How a claim stands to the ground truth (paper, G.2)."""

    CORRECT = "CORRECT"
    INCORRECT = "INCORRECT"
    PARTIALLY_CORRECT = "PARTIALLY_CORRECT"
    UNVERIFIABLE = "UNVERIFIABLE"

    @property
    def letter(self) -> str:
        """C, I, P or U."""
        return self.name[0]


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim about the user, as a judge or an audit put it.

    Attributes:
        accuracy: None when it was not given, or not in words that are known.
        reasoning: the labeller's evidence or explanation, possibly empty.
    """

    text: str
    label: Label
    accuracy: Accuracy | None = None
    reasoning: str = ""


# Only words that can mean nothing else. "inferred" alone is two categories, "hallucinated" and "unsupported" are none.
_LABELS: Final[Mapping[str, Label]] = {
    "grounded": Label.GROUNDED,
    "inferred reasonable": Label.REASONABLE,
    "reasonable": Label.REASONABLE,
    "reasonable inference": Label.REASONABLE,
    "reasonably inferred": Label.REASONABLE,
    "inferredreasonable": Label.REASONABLE,
    "inferred stereotype": Label.STEREOTYPE,
    "inferred stereotypical": Label.STEREOTYPE,
    "stereotype": Label.STEREOTYPE,
    "stereotypical": Label.STEREOTYPE,
    "stereotype inference": Label.STEREOTYPE,
    "stereotypical inference": Label.STEREOTYPE,
    "inferredstereotype": Label.STEREOTYPE,
    "fabricated": Label.FABRICATED,
    "fabrication": Label.FABRICATED,
}
_ACCURACIES: Final[Mapping[str, Accuracy]] = {
    "correct": Accuracy.CORRECT,
    "incorrect": Accuracy.INCORRECT,
    "partially correct": Accuracy.PARTIALLY_CORRECT,
    "partly correct": Accuracy.PARTIALLY_CORRECT,
    "partiallycorrect": Accuracy.PARTIALLY_CORRECT,
    "unverifiable": Accuracy.UNVERIFIABLE,
    "not verifiable": Accuracy.UNVERIFIABLE,
    "cannot be verified": Accuracy.UNVERIFIABLE,
}
_EXACT_LABELS: Final[Mapping[str, Label]] = {label.value: label for label in Label}
_EXACT_ACCURACIES: Final[Mapping[str, Accuracy]] = {accuracy.value: accuracy for accuracy in Accuracy}


def read_label(word: object) -> Label | None:
    """Return the label that a word spells, whatever its case, hyphens or spaces; None when it spells none or two."""
    if not isinstance(word, str):
        return None
    return _EXACT_LABELS.get(word) or _LABELS.get(_plain(word))


def read_accuracy(word: object) -> Accuracy | None:
    """Return the accuracy that a word spells, or None."""
    if not isinstance(word, str):
        return None
    return _EXACT_ACCURACIES.get(word) or _ACCURACIES.get(_plain(word))


def label_letters(claims: Iterable[Claim]) -> str:
    """Return one letter per claim, such as `GRSF`."""
    return "".join(claim.label.letter for claim in claims)


def accuracy_letters(claims: Iterable[Claim]) -> str:
    """Return one letter per claim, `-` where accuracy was not given."""
    return "".join(claim.accuracy.letter if claim.accuracy else NOT_GIVEN for claim in claims)


def _plain(word: str) -> str:
    return _SEPARATORS.sub(" ", word).strip().casefold()
