"""What does not fit in a file is told without the names of types."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest

from bench.plainwords import plain_words


class Colour(StrEnum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table in a table."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    colour: Colour = Colour.RED


class File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    names: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("a",)
    mode: Literal["all"] | int = "all"
    money: str | float | int | None = None
    colours: tuple[Colour, ...] = ()
    by_colour: dict[Colour, Inner] = {}
    flag: bool = False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("number = 1", "`name` is missing"),
        ('name = "A B"', "must be letters, digits, dots, dashes and underscores, 64 at most, a letter or digit first"),
        ("name = 3", "must be a text, not a whole number"),
        ('name = "a"\nnumber = 0', "must be at least 1"),
        ('name = "a"\nnumber = 1.5', "must be a whole number, not a fraction"),
        ('name = "a"\nnames = []', "must not be empty"),
        ('name = "a"\nnames = "b"', "must be a list, not a text"),
        ('name = "a"\nmode = "some"', "`some` is not one of all"),
        ('name = "a"\nmoney = []', "must be a number or a text, not a list"),
        ('name = "a"\nflag = 1', "must be true or false, not a whole number"),
        ('name = "a"\ncolours = ["green"]', "`green` is not one of red, blue"),
        ('name = "a"\n[by_colour.red]\ncolour = "green"', "`green` is not one of red, blue"),
        ('name = "a"\n[by_colour.red]\nshare = 2', "must be at most 1"),
        ('name = "a"\n[by_colour.red]\nshare = 0', "must be more than 0"),
        ('name = "a"\n[by_colour.green]\nshare = 1', "`green` is not one of red, blue"),
        ('name = "a"\nby_colour = 1', "must be a table, not a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_told_in_plain_words(text: str, words: str) -> None:
    """Each as msgspec finds it."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.toml.decode(text, type=File)
    assert plain_words(str(caught.value), File) == words


def test_words_that_are_not_known_stay_as_they_are() -> None:
    """Better than nothing."""
    assert plain_words("Something else happened - at `$.name`", File) == "something else happened"
