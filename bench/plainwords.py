"""Puts what msgspec says of a value that does not fit into words for people who do not know its types. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import inspect

_NAMES: Final[Mapping[str, str]] = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_GIVEN: Final[Mapping[str, str]] = {**_NAMES, "float": "a fraction"}
_AT: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "==": "exactly"}
_CHOICE: Final = re.compile(r"Invalid enum value '?(.*?)'?")
# One step on the way to a place: a field, the value of any key, or an element.
_STEP: Final = re.compile(r"\.[A-Za-z0-9_-]+|\[[^\]]*\]")
# What msgspec says, and what to say instead.
_WORDS: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]] = (
    (re.compile(r"Object missing required field `([^`]+)`"), lambda found: f"`{found[1]}` is missing"),
    (
        re.compile(r"Expected `str` matching regex .*"),
        lambda _: "must be letters, digits, dots, dashes and underscores, 64 at most, a letter or digit first",
    ),
    (re.compile(r"Expected `\w+` of length >= 1"), lambda _: "must not be empty"),
    (
        re.compile(r"Expected `\w+` of length (>=|<=|==) (\d+)"),
        lambda found: f"must hold {_AT[found[1]]} {found[2]}",
    ),
    (
        re.compile(r"Expected `[\w |]+` (>=|<=|>|<) ([-\d.]+)"),
        lambda found: f"must be {_AT[found[1]]} {float(found[2]):g}",
    ),
    (
        re.compile(r"Expected `([\w |]+)`, got `(\w+)`"),
        lambda found: f"must be {_wanted(found[1])}, not {_GIVEN.get(found[2], found[2])}",
    ),
)


def plain_words(message: str, kind: type) -> str:
    """Return what msgspec says when it cannot make a `kind`, without its types and without the place."""
    what, _, place = message.partition(" - at `")
    if found := _CHOICE.fullmatch(what):
        known = _choices(inspect.type_info(kind), _STEP.findall(place), of_keys="key" in place.partition("$")[0])
        return f"`{found[1]}` is not one of {', '.join(known)}" if known else f"`{found[1]}` is not known here"
    said = (say(found) for pattern, say in _WORDS if (found := pattern.fullmatch(what)))
    return next(said, f"{what[:1].lower()}{what[1:]}")


def _wanted(kinds: str) -> str:
    names = [_NAMES.get(each, each) for each in kinds.split(" | ") if each != "null"]
    return " or ".join(name for name in names if name != "a whole number" or "a number" not in names)


def _choices(info: inspect.Type, steps: Sequence[str], *, of_keys: bool) -> list[str]:
    """Return the words that are allowed at the end of `steps`, none where it is not a choice of words."""
    if isinstance(info, inspect.EnumType):
        return [str(each.value) for each in info.cls]
    if isinstance(info, inspect.LiteralType):
        return [str(each) for each in info.values]
    parts = _parts(info, steps, of_keys=of_keys)
    return list(dict.fromkeys(word for part, rest in parts for word in _choices(part, rest, of_keys=of_keys)))


def _parts(info: inspect.Type, steps: Sequence[str], *, of_keys: bool) -> list[tuple[inspect.Type, Sequence[str]]]:
    """Return the types that come next on the way, with the steps that are left."""
    match info:
        case inspect.UnionType():
            return [(each, steps) for each in info.types]
        case inspect.Metadata():
            return [(info.type, steps)]
        case inspect.DictType() if of_keys and not steps:
            return [(info.key_type, ())]
        case inspect.StructType() if steps:
            return [(field.type, steps[1:]) for field in info.fields if f".{field.encode_name}" == steps[0]]
        case inspect.DictType(value_type=inner) | inspect.VarTupleType(item_type=inner) if steps:
            return [(inner, steps[1:])]
        case _:
            return []
