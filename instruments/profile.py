"""Profiles as others write them: free keys and nested values to our fifteen attributes; what facts give away of them.

A value is taken where a known name of an attribute stands, never derived from anything else: what a profile does not
say stays unknown. Knows no data set and no prompt.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from instruments.answers import plain_key
from instruments.lenient import Json
from instruments.modeljson import sound
from instruments.personas import Attributes

MAX_NESTING: Final = 6
MAX_CHARACTERS: Final = 400
SHORTEST_WORD: Final = 4

# Names under which profiles keep an attribute, the most telling first; compared without case and separators.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "name": ("name", "full name", "fullname", "first name"),
        "age": ("age", "age years"),
        "gender": ("gender", "gender identity", "sex"),
        "occupation": ("occupation", "current occupation", "profession", "job title", "job"),
        "city": ("city", "current city", "location", "current location", "residence", "place of residence"),
        "hobbies": ("hobbies", "hobbies interests", "hobbies and interests", "interests", "leisure activities"),
        "personality": ("personality", "personality traits", "traits", "values beliefs"),
        "dietary_style": ("dietary style", "diet", "dietary preferences", "dietary habits", "eating habits"),
        "living_situation": ("living situation", "living arrangement", "housing", "household"),
        "relationship_status": ("relationship status", "marital status", "relationship", "family status"),
        "media_taste": (
            "media taste",
            "media preferences",
            "media consumption",
            "media",
            "entertainment",
            "music taste",
        ),
        "pet": ("pet", "pets"),
        "exercise_habits": ("exercise habits", "exercise", "fitness", "fitness routine", "physical activity"),
        "work_life_pattern": (
            "work life pattern",
            "work life balance",
            "work schedule",
            "work pattern",
            "daily routine",
        ),
        "quirk": ("quirk", "one quirk", "quirks", "unique quirk"),
    }
)
# Parts of a profile that speak of the person; a name or an age elsewhere is someone else's.
CONTAINERS: Final = (
    "demographics", "demographic information", "basic info", "basic information", "personal info",
    "personal information", "personal details", "profile", "persona", "background", "lifestyle", "daily life", "habits",
)  # fmt: skip
_PLACE: Final = ("city", "town", "state", "region", "country")
_TITLE: Final = ("title", "role", "position", "job title", "current", "name")
_NUMBER: Final = re.compile(r"\d+")
_ONE_AGE: Final = re.compile(r"\s*(?:aged?\s+)?(\d{1,3})(?:\s*(?:years?(?:[ -]old)?|y/?o|yrs?))?\s*", re.IGNORECASE)
_WORD: Final = re.compile(rf"[^\W\d_]{{{SHORTEST_WORD},}}")
_ENDINGS: Final = ("ings", "ing", "ers", "er", "ies", "es", "ed", "s", "e", "y")
_SHORTEST_STEM: Final = 3
# Words that two texts share without sharing a subject.
_COMMON: Final = frozenset(
    """about after again also always another anything around away back because been before being both came come could
    does done down each early either else enough even every everyone everything first from full gave give given goes
    going gone good great half hand hard have having here hers hour hours house into itself just keep keeps kept know
    large last late later least left less like likes little live lives long look looks loud love loves made make makes
    making many minute minutes month months more morning most much must myself never next nice night nights none nothing
    often once only open other over people person place quite rather really right round same seen several shows side
    since small some someone something sometimes soon still such sure take takes than that their them then there these
    they thing things this those three through time times today together told took turn twice under until upon usually
    very want well went were what when where which while whole whom whose will with without word work working works
    would year years young your""".split()  # noqa: SIM905 - words, not code
)
# Attributes whose every value is made of words that say little (woman, 40), or that `telltales` looks for by itself.
_NOT_BY_WORDS: Final = frozenset({"name", "age", "gender", "city"})

_IS_CONTAINER: Final = frozenset(plain_key(name) for name in CONTAINERS)
_BY_ALIAS: Final = {
    plain_key(alias): (rank, name) for name, aliases in ALIASES.items() for rank, alias in enumerate(aliases)
}


def read_profile(value: Mapping[str, Json]) -> Attributes:
    """Return a profile's attributes; one that it does not say in a form that can be taken over is None."""
    best: dict[str, tuple[tuple[int, int], str | int]] = {}
    for depth, rank, name, found in _named(value, 0):
        value_here = _value(name, found)
        if value_here is not None and (name not in best or (rank, depth) < best[name][0]):
            best[name] = ((rank, depth), value_here)
    return msgspec.convert({name: known for name, (_, known) in best.items()}, Attributes)


def disclosed(facts: Iterable[str], attributes: Attributes) -> tuple[str, ...]:
    """Return the attributes beside the occupation that share a telling word with the facts: a screen, not a judgement.

    Word endings do not count. It misses paraphrases and takes accidents for disclosures.
    """
    said = stems(" ".join(facts))
    known = attributes.known()
    return tuple(
        name for name in known if name != "occupation" and name not in _NOT_BY_WORDS and said & stems(str(known[name]))
    )


def stems(text: str) -> frozenset[str]:
    """Return the telling words of a text without their endings."""
    return frozenset(_stem(word) for word in _WORD.findall(text.casefold()) if word not in _COMMON)


def _named(value: Mapping[str, Json], depth: int) -> Iterator[tuple[int, int, str, Json]]:
    """Yield (depth, rank, attribute, value) for every known name in nested objects."""
    for key, child in value.items():
        plain = plain_key(key)
        if (found := _BY_ALIAS.get(plain)) is not None:
            yield depth, *found, child
        elif isinstance(child, dict) and depth < MAX_NESTING and plain in _IS_CONTAINER:
            yield from _named(child, depth + 1)


def _value(name: str, value: Json) -> str | int | None:
    if name == "age":
        return _age(value)
    if name == "city":
        return _place(value)
    if name == "occupation" and isinstance(value, dict):
        value = _first(value, _TITLE)
    text = "" if isinstance(value, bool) else " ".join(sound(_text(value)).split())
    return text if text and len(text) <= MAX_CHARACTERS and text.isprintable() else None


def _age(value: Json) -> int | None:
    """Return a whole number of years; `thirties` or `30-35` is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _ONE_AGE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) if match else None


def _place(value: Json) -> str | None:
    """Return a city with what it lies in; a country alone is no city."""
    if isinstance(value, dict):
        parts = [part for key in _PLACE if (part := _first(value, (key,)))]
        named = _first(value, ("city",)) or _first(value, ("town",))
        value = ", ".join(dict.fromkeys(part for part in parts if isinstance(part, str))) if named else ""
    text = " ".join(sound(value).split()) if isinstance(value, str) else ""
    return text if text and len(text) <= MAX_CHARACTERS and text.isprintable() else None


def _first(value: Mapping[str, Json], names: Iterable[str]) -> Json:
    """Return the first text under one of `names`."""
    plain = {plain_key(key): child for key, child in value.items()}
    found = (plain.get(plain_key(name)) for name in names)
    return next((text for text in found if isinstance(text, str) and text.strip()), None)


def _text(value: Json, depth: int = 0) -> str:
    """Return a value as one text: items with commas, entries as `key: text`, nothing for null and too deep ones."""
    if depth > MAX_NESTING or value is None:
        return ""
    if isinstance(value, dict):
        parts = ((key.replace("_", " "), _text(child, depth + 1)) for key, child in value.items())
        return "; ".join(f"{key}: {text}" for key, text in parts if text)
    if isinstance(value, list):
        return ", ".join(text for child in value if (text := _text(child, depth + 1)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.strip() if isinstance(value, str) else str(value)


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > _SHORTEST_STEM and word[-1] == word[-2] else word
