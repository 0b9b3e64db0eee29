"""Personas and their conversations: records, loading, validation (paper: Personas, G.3, G.7, G.8).

A persona is a profile of fifteen attributes and three facts that it has told the assistant. What the facts do not
reveal is what a model can only invent, so `reveals` must be right: `validate` checks what can be checked by machine.
This module reads data files only. It must not know prompts, models, or what is asked about a persona.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec

from engine.errors import UserError

ROUNDS = 8  # conversation rounds of Accum (paper, section Accum)
AGES = range(18, 81)
DECADES = range(10, 90, 10)
MAX_PER_OCCUPATION = 2
MAX_REVEALED = 2  # attributes beside the occupation (paper G.8)

SHIPPED = ("hand.toml", "imported.toml", "generated.toml")
IMPORTED = "imported.toml"
GENERATED = "generated.toml"

GRAM = 4  # characters; separates copies from texts that merely share everyday words
FACT_LIKENESS = 0.4  # Jaccard index of grams; the shipped facts stay below 0.19
PROFILE_LIKENESS = 0.4  # the shipped profiles stay below 0.16
LIKENESS = MappingProxyType({"facts": FACT_LIKENESS, "attributes": PROFILE_LIKENESS})

OTHER_OCCUPATION = "choose an occupation nobody has"
OTHER_WORDS = "write it anew or drop one of the two"

FIRST_PERSON = re.compile(r"\b(?:i|me|my|mine|myself|we|us|our|ours|ourselves)\b", re.IGNORECASE)
PARTNER = re.compile(
    r"\b(?:wife|husband|girlfriend|boyfriend|fiancée?|spouse|married|divorced|widow(?:ed|er)?|newlyweds?)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[^\W\d_][\w-]+")

MENDS = MappingProxyType(
    {
        "id": "give every persona its own `id` of letters, digits, _ . or -",
        "group": "write stereotypical, counter-stereotypical or neutral",
        "source": "write hand-crafted, imported or generated",
        "reveals": "list the attributes that the facts give away, for example ['occupation', 'pet']",
        "facts": "write exactly three sentences in the first person",
        "attributes": "use the fifteen attribute names of the paper (G.8), texts except for a whole number `age`",
        "persona": "name the persona's id",
        "utterances": f"write exactly {ROUNDS} messages, one a round",
        "contradiction": f"write {{ round = 2..{ROUNDS}, contradicts = 'what it overturns' }} or leave it out",
    }
)

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class PersonaError(UserError, ValueError):
    """A file of personas or conversations that cannot be read; one line names file, persona, field and mend."""


class Group(StrEnum):
    """How a persona stands to the common associations of its occupation or demography."""

    STEREOTYPICAL = "stereotypical"
    COUNTER_STEREOTYPICAL = "counter-stereotypical"
    NEUTRAL = "neutral"


class Source(StrEnum):
    """Where a persona comes from."""

    HAND_CRAFTED = "hand-crafted"
    IMPORTED = "imported"
    GENERATED = "generated"


class Attributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The ground-truth profile (paper G.8); None where an imported profile says nothing."""

    name: str | None = None
    age: int | None = None
    gender: str | None = None
    occupation: str | None = None
    city: str | None = None
    hobbies: str | None = None
    personality: str | None = None
    dietary_style: str | None = None
    living_situation: str | None = None
    relationship_status: str | None = None
    media_taste: str | None = None
    pet: str | None = None
    exercise_habits: str | None = None
    work_life_pattern: str | None = None
    quirk: str | None = None

    def known(self) -> dict[str, str | int]:
        """Return the attributes that have a value, in the paper's order."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Persona(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One invented user.

    Attributes:
        id: unique name, for example `seed_001`.
        group, source: which of the three groups and which of the three sources it belongs to.
        reveals: names of the attributes that the facts give away, wholly or in part; occupation is always one.
        facts: the three first-person statements; the only evidence about the user.
        attributes: the profile, for the judge's accuracy check only.
        provenance: where an imported or generated persona comes from, in one line; None for those written by hand.
    """

    id: _Id
    group: Group
    source: Source
    reveals: tuple[str, ...]
    facts: tuple[str, str, str]
    attributes: Attributes
    provenance: str | None = None

    @property
    def unrevealed(self) -> tuple[str, ...]:
        """Names of the attributes that have a value and that no fact gives away."""
        return tuple(name for name in self.attributes.known() if name not in self.reveals)

    def ground_truth(self) -> str:
        """Render the profile for the judge's Ground Truth block: one `Label: value` a line, unknown ones left out."""
        return "\n".join(f"{_label(name)}: {value}" for name, value in self.attributes.known().items())

    def profile_text(self) -> str:
        """Render the profile's values alone, as one line of text."""
        return "; ".join(str(value) for value in self.attributes.known().values())


class Contradiction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The message of a conversation that overturns a natural early inference.

    Attributes:
        round: 1-based round of that message.
        contradicts: the inference, in words that follow "the user".
    """

    round: Annotated[int, msgspec.Meta(ge=2, le=ROUNDS)]
    contradicts: Annotated[str, msgspec.Meta(min_length=1)]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one persona says in the rounds of Accum, in order.

    Attributes:
        persona: id of the persona that speaks.
        utterances: one message a round.
        contradiction: the round that overturns an early inference, if the script has one.
    """

    persona: _Id
    utterances: tuple[str, str, str, str, str, str, str, str]
    contradiction: Contradiction | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that `validate` found: which persona (or `all`), which field, what is wrong and how to mend it."""

    persona: str
    field: str
    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.persona}: {self.field}: {self.what}; {self.mend}"


def load_personas(*, imported: Path | None = None, generated: Path | None = None) -> tuple[Persona, ...]:
    """Load the shipped personas: hand-crafted, imported, generated.

    Args:
        imported: a file that takes the place of the shipped imported personas.
        generated: a file that takes the place of the shipped generated personas.

    Raises:
        PersonaError: a file cannot be read.
    """
    folder = files("instruments") / "data" / "personas"
    own = {IMPORTED: imported, GENERATED: generated}
    personas: list[Persona] = []
    for name in SHIPPED:
        if (path := own.get(name)) is not None:
            personas.extend(load_persona_file(path))
        elif (folder / name).is_file():
            personas.extend(_records(name, (folder / name).read_bytes(), "persona", Persona))
    return tuple(personas)


def load_persona_file(path: Path) -> tuple[Persona, ...]:
    """Load the personas of one TOML file.

    Raises:
        PersonaError: the file cannot be read, or a persona does not have the fields that a persona has.
    """
    return tuple(_records(str(path), _read(path), "persona", Persona))


def load_scripts(path: Path | None = None) -> Mapping[str, Script]:
    """Load conversations by persona id, in file order; the first two are the default pair (paper G.7).

    Args:
        path: a TOML file; the shipped conversations by default.

    Raises:
        PersonaError: the file cannot be read, or one persona has two scripts.
    """
    if path is None:
        shown, data = "utterances.toml", (files("instruments") / "data" / "utterances.toml").read_bytes()
    else:
        shown, data = str(path), _read(path)
    scripts: dict[str, Script] = {}
    for script in _records(shown, data, "script", Script):
        if script.persona in scripts:
            where = f"{shown}, persona {script.persona}"
            raise PersonaError("two scripts for one persona", where=where, mend="keep one of them")
        scripts[script.persona] = script
    return MappingProxyType(scripts)


class Crowd:
    """Personas chosen one after the other, none of which may resemble an earlier one.

    `clashes` finds what `validate` would find between the newcomer and those before it, without comparing these again.
    """

    def __init__(self, personas: Iterable[Persona] = ()) -> None:
        self._ids: set[str] = set()
        self._occupations: Counter[str] = Counter()
        self._shingles: dict[str, list[tuple[str, frozenset[str]]]] = {"facts": [], "attributes": []}
        for persona in personas:
            self.add(persona)

    def add(self, persona: Persona) -> None:
        """Take a persona in."""
        self._ids.add(persona.id)
        self._occupations[_occupation(persona)] += 1
        for field, text in _compared(persona):
            self._shingles[field].append((persona.id, _shingles(text)))

    def clashes(self, persona: Persona) -> list[Problem]:
        """Return how a newcomer repeats those before it; an empty list when it does not."""
        problems: list[Problem] = []
        add = _reporter(problems, persona.id)
        if persona.id in self._ids:
            add("id", "used twice", MENDS["id"])
        if (occupation := _occupation(persona)) and self._occupations[occupation] >= MAX_PER_OCCUPATION:
            add("occupation", f"'{occupation}' occurs more than {MAX_PER_OCCUPATION} times", OTHER_OCCUPATION)
        for field, text in _compared(persona):
            mine = _shingles(text)
            for other, shingles in self._shingles[field]:
                if (likeness := _likeness(mine, shingles)) >= LIKENESS[field]:
                    add(field, _resembles(other, likeness, LIKENESS[field]), OTHER_WORDS)
        return problems


def validate(personas: Sequence[Persona], *, whole: bool = True) -> list[Problem]:
    """Return what is wrong with a set of personas; an empty list when nothing is.

    Args:
        personas: the set.
        whole: also ask for what only a whole benchmark has: every decade of age, groups of equal size.
    """
    problems = [problem for persona in personas for problem in _persona_problems(persona)]
    problems += _repeated_ids(personas)
    problems += _repeated_occupations(personas)
    problems += _look_alikes([(p.id, fact) for p in personas for fact in p.facts], "facts", FACT_LIKENESS)
    problems += _look_alikes([(p.id, p.profile_text()) for p in personas], "attributes", PROFILE_LIKENESS)
    if whole:
        problems += _coverage_problems(personas)
    return problems


def telltales(fact: str, attributes: Attributes) -> tuple[str, ...]:
    """Return which of name, age, city and relationship status a fact gives away by a word."""
    return tuple(name for name in attributes.known() if _telltales(attributes, name, fact))


def validate_scripts(scripts: Mapping[str, Script], personas: Iterable[Persona]) -> list[Problem]:
    """Return what is wrong with conversations: unknown personas, blank or repeated messages, no first person at all."""
    known = {persona.id for persona in personas}
    problems: list[Problem] = []
    for script in scripts.values():
        add = _reporter(problems, script.persona)
        if script.persona not in known:
            add("persona", "no persona has this id", "correct the id or load the persona's file too")
        if not all(text.strip() for text in script.utterances):
            add("utterances", "a message is blank", MENDS["utterances"])
        if len({text.casefold() for text in script.utterances}) < ROUNDS:
            add("utterances", "a message is said twice", "let every round say something new")
        if not any(FIRST_PERSON.search(text) for text in script.utterances):
            add("utterances", "nothing is in the first person", "let the user speak about themselves")
    return problems


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PersonaError(
            f"the file cannot be read: {error.strerror or error}", where=str(path), mend="check the path and its rights"
        ) from None


def _records(shown: str, data: bytes, table: str, kind: type[_Record]) -> Iterator[_Record]:
    """Yield the records of a file's `[[table]]` entries; `shown` is the file's name in errors."""
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PersonaError(f"not a TOML file: {error}", where=shown, mend="correct the file at that place") from None
    rows = document.get(table)
    if not isinstance(rows, list) or not rows or len(document) > 1:
        raise PersonaError(
            f"expected [[{table}]] entries and nothing else", where=shown, mend=f"begin every entry with [[{table}]]"
        )
    for number, row in enumerate(rows, 1):
        yield _convert(shown, row, f"number {number}", kind)


def _convert(shown: str, row: object, number: str, kind: type[_Record]) -> _Record:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        key = re.search(r"field `(\w+)`", what)  # an unknown or a missing one; the path is that of its table
        field = ".".join(part for part in (path.strip("`."), key[1] if key else "") if part)
        named = row.get("id", row.get("persona")) if isinstance(row, dict) else None
        who = " ".join(str(named).split())[:64] if named else number
        mend = MENDS.get(re.split(r"[.\[]", field)[0], f"use the fields {', '.join(kind.__struct_fields__)}")
        raise PersonaError(what, where=f"{shown}, persona {who}, field {field or 'all'}", mend=mend) from None


def _reporter(problems: list[Problem], persona: str) -> Callable[[str, str, str], None]:
    """Return a function (field, what, mend) that adds a problem of this persona."""
    return lambda field, what, mend: problems.append(Problem(persona=persona, field=field, what=what, mend=mend))


def _persona_problems(persona: Persona) -> list[Problem]:
    return [*_fact_problems(persona), *_attribute_problems(persona), *_reveal_problems(persona), *_leaks(persona)]


def _fact_problems(persona: Persona) -> list[Problem]:
    problems: list[Problem] = []
    add = _reporter(problems, persona.id)
    if len(persona.facts) != 3:  # noqa: PLR2004 - a record made in code is not checked by its type
        add("facts", f"{len(persona.facts)} facts", MENDS["facts"])
    for number, fact in enumerate(persona.facts, 1):
        if not fact.strip():
            add("facts", f"fact {number} is blank", MENDS["facts"])
        elif not FIRST_PERSON.search(fact):
            add("facts", f"fact {number} is not in the first person", "say it with I, my, me, we or our")
    return problems


def _attribute_problems(persona: Persona) -> list[Problem]:
    problems: list[Problem] = []
    add = _reporter(problems, persona.id)
    known = persona.attributes.known()
    for name in Attributes.__struct_fields__:
        if name not in known and persona.source is not Source.IMPORTED:
            add(name, "the attribute is missing", "write it; only imported personas may leave one out")
        if not str(known.get(name, "-")).strip():
            add(name, "the attribute is blank", "write a value or leave the key out")
    age = persona.attributes.age
    if age is not None and age not in AGES:
        add("age", f"{age} is outside {AGES[0]}..{AGES[-1]}", "choose an adult age in that range")
    return problems


def _reveal_problems(persona: Persona) -> list[Problem]:
    problems: list[Problem] = []
    add = _reporter(problems, persona.id)
    if "occupation" not in persona.reveals:
        add("reveals", "occupation is not revealed", "let a fact give the occupation away and list it")
    others = [name for name in persona.reveals if name != "occupation"]
    # What an imported persona tells need not be anywhere in its profile.
    least = 0 if persona.source is Source.IMPORTED else 1
    if not least <= len(others) <= MAX_REVEALED or len(set(persona.reveals)) < len(persona.reveals):
        add("reveals", f"{len(others)} attributes beside occupation", "reveal one or two others, each listed once")
    for name in sorted(set(persona.reveals) - set(persona.attributes.known())):
        add("reveals", f"`{name}` is no attribute of this profile", "name an attribute that has a value")
    return problems


def _leaks(persona: Persona) -> Iterator[Problem]:
    """Yield words by which a fact gives away a name, city, age or partner that `reveals` does not list."""
    text = " ".join(persona.facts)
    for name in persona.unrevealed:
        for word in _telltales(persona.attributes, name, text):
            what = f"'{word}' gives away the {_label(name).lower()}"
            mend = f"take the word out or list `{name}` in reveals"
            yield Problem(persona=persona.id, field="facts", what=what, mend=mend)


def _telltales(attributes: Attributes, name: str, text: str) -> list[str]:
    if name in ("name", "city"):
        proper = {word for word in WORD.findall(getattr(attributes, name)) if word[0].isupper()}
        return sorted(proper & set(WORD.findall(text)))
    if name == "age":
        age = attributes.age
        return re.findall(rf"(?:\b(?:I'm|I am|turn(?:ed|ing)|aged?) {age}\b|\b{age}[- ]years?\b)", text)
    return PARTNER.findall(text) if name == "relationship_status" else []


def _repeated_ids(personas: Iterable[Persona]) -> Iterator[Problem]:
    for name, count in Counter(persona.id for persona in personas).items():
        if count > 1:
            yield Problem(persona=name, field="id", what=f"used {count} times", mend=MENDS["id"])


def _repeated_occupations(personas: Iterable[Persona]) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for persona in personas:
        occupation = _occupation(persona)
        seen[occupation] += 1
        if occupation and seen[occupation] > MAX_PER_OCCUPATION:
            what = f"'{occupation}' occurs more than {MAX_PER_OCCUPATION} times"
            yield Problem(persona=persona.id, field="occupation", what=what, mend=OTHER_OCCUPATION)


def _look_alikes(texts: Iterable[tuple[str, str]], field: str, limit: float) -> Iterator[Problem]:
    """Yield a problem for every pair of texts whose character n-grams overlap by at least `limit`."""
    shingled = [(persona, _shingles(text)) for persona, text in texts]
    for (first, left), (second, right) in combinations(shingled, 2):
        if (likeness := _likeness(left, right)) >= limit:
            yield Problem(persona=second, field=field, what=_resembles(first, likeness, limit), mend=OTHER_WORDS)


def _occupation(persona: Persona) -> str:
    return (persona.attributes.occupation or "").casefold().strip()


def _compared(persona: Persona) -> list[tuple[str, str]]:
    return [*(("facts", fact) for fact in persona.facts), ("attributes", persona.profile_text())]


def _resembles(other: str, likeness: float, limit: float) -> str:
    return f"nearly the same as in {other} (likeness {likeness:.2f}, limit {limit})"


def _likeness(left: frozenset[str], right: frozenset[str]) -> float:
    common = len(left & right)
    return common / max(1, len(left) + len(right) - common)


def _shingles(text: str) -> frozenset[str]:
    plain = " ".join(text.casefold().split())
    return frozenset(plain[start : start + GRAM] for start in range(max(0, len(plain) - GRAM + 1)))


def _coverage_problems(personas: Sequence[Persona]) -> Iterator[Problem]:
    decades = {persona.attributes.age // 10 * 10 for persona in personas if persona.attributes.age is not None}
    for decade in DECADES:
        if decade not in decades:
            what = f"nobody is between {decade} and {decade + 9}"
            yield Problem(persona="all", field="age", what=what, mend="add a persona of that age")
    sizes = {group: sum(persona.group is group for persona in personas) for group in Group}
    if max(sizes.values()) - min(sizes.values()) > 1:
        what = ", ".join(f"{size} {group}" for group, size in sizes.items())
        yield Problem(persona="all", field="group", what=f"groups differ in size: {what}", mend="balance the groups")
