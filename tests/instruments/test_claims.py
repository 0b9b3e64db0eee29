"""Spellings of labels and accuracy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instruments.claims import Accuracy, Claim, Label, accuracy_letters, label_letters, read_accuracy, read_label


@pytest.mark.parametrize(
    ("word", "label"),
    [
        ("GROUNDED", Label.GROUNDED),
        (" grounded. ", Label.GROUNDED),
        ("INFERRED_REASONABLE", Label.REASONABLE),
        ("Inferred-Reasonable", Label.REASONABLE),
        ("INFERRED REASONABLE", Label.REASONABLE),
        ("inferred (reasonable)", Label.REASONABLE),
        ("InferredReasonable", Label.REASONABLE),
        ("reasonable inference", Label.REASONABLE),
        ("Stereotype", Label.STEREOTYPE),
        ("inferred: stereotype", Label.STEREOTYPE),
        ("`FABRICATED`", Label.FABRICATED),
        ("fabrication", Label.FABRICATED),
    ],
)
def test_label_is_read_in_any_plain_spelling(word: str, label: Label) -> None:
    """Case, hyphens, spaces and markup do not matter."""
    assert read_label(word) is label


@pytest.mark.parametrize(
    "word",
    [
        "inferred",
        "hallucinated",
        "unsupported",
        "not grounded",
        "ungrounded",
        "GROUNDED or FABRICATED",
        "unreasonable",
        "G",
        "A",
        "",
        None,
        1,
        ["GROUNDED"],
    ],
)
def test_word_that_is_no_label_is_not_guessed(word: object) -> None:
    """Words that could be two categories or none are unreadable."""
    assert read_label(word) is None


@given(st.sampled_from(Label), st.text("_- ./*()", max_size=3), st.booleans())
def test_separators_never_change_a_label(label: Label, separator: str, lower: bool) -> None:
    """Whatever stands between and around the parts, the label is the same."""
    word = separator + label.value.replace("_", separator or "_") + separator
    assert read_label(word.lower() if lower else word) is label


@pytest.mark.parametrize(
    ("word", "accuracy"),
    [
        ("CORRECT", Accuracy.CORRECT),
        ("incorrect", Accuracy.INCORRECT),
        ("Partially Correct", Accuracy.PARTIALLY_CORRECT),
        ("partly-correct", Accuracy.PARTIALLY_CORRECT),
        ("not verifiable", Accuracy.UNVERIFIABLE),
        ("not correct", None),
        ("true", None),
        (None, None),
    ],
)
def test_accuracy_is_read_or_left_open(word: object, accuracy: Accuracy | None) -> None:
    """Only plain spellings of the four words count."""
    assert read_accuracy(word) is accuracy


def test_letters_are_one_a_claim() -> None:
    """G R S F and C I P U, a hyphen where accuracy is not given."""
    claims = [Claim(text="x", label=label, accuracy=accuracy) for label, accuracy in zip(Label, Accuracy, strict=True)]
    assert label_letters(claims) == "GRSF"
    assert accuracy_letters([*claims, Claim(text="x", label=Label.GROUNDED)]) == "CIPU-"
