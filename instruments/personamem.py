"""Personas out of PersonaMem-v2: which rows may be used, which are drawn, and how they become facts. Pure.

The data set has profiles with free keys and, row by row, preferences in the third person; it has no label for a
persona and no three facts. So a persona's facts are its occupation and two preferences of one kind, drawn by seed, and
that kind is its group. Preferences are put into the first person by rule; one whose pronouns or verbs leave doubt is
not used. Rows that are about someone else, out of date, taken back, sensitive, or that look like a secret never are.

Knows no file: rows come as mappings from column to text. The draw hashes seed and row, so it is the same everywhere and
a persona's draw does not depend on which others are in the file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from types import MappingProxyType
from typing import Final

import msgspec

from engine.errors import UserError
from instruments.firstperson import occupation_fact, preference_fact
from instruments.lenient import Json
from instruments.modeljson import find_object
from instruments.personas import AGES, Attributes, Crowd, Group, Persona, Source, telltales, validate
from instruments.profile import disclosed, read_profile

DATASET: Final = "PersonaMem-v2"
LICENCE: Final = "CC-BY-4.0"
RULES_VERSION: Final = 1
PREFERENCES: Final = 2  # facts beside the occupation
COLUMNS: Final = (
    "persona_id", "expanded_persona", "preference", "topic_preference", "pref_type", "who", "updated", "prev_pref",
    "sensitive_info",
)  # fmt: skip
KINDS: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "stereotypical_pref": Group.STEREOTYPICAL,
        "anti_stereotypical_pref": Group.COUNTER_STEREOTYPICAL,
        "neutral_preferences": Group.NEUTRAL,
        "neutral_preference": Group.NEUTRAL,
        "neutral_pref": Group.NEUTRAL,
    }
)
_TAKEN_BACK: Final = re.compile(r"do not remember\s+", re.IGNORECASE)
_PERSONA_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
# Shapes of what must never be copied, whether it is invented or not.
_SECRETS: Final = re.compile(
    r"""\d(?:[ .-]?\d){8,}                                  # cards, accounts, telephones, social security numbers
    |\b\d{3}-\d{2,3}-\d{4}\b
    |[\w.+-]+@[\w-]+\.\w+                                   # mail addresses
    |\b(?:sk|pk|rk|llm|api|key|ghp|gho|xox[a-z]|AKIA|AIza|eyJ)[-_]?(?=[\w-]*\d)[\w-]{10,}
    |\b(?=[A-Za-z_]*\d)(?=[\d_]*[A-Za-z])\w{20,}\b          # long runs of letters and digits
    |(?-i:\b(?=[A-Z0-9]*\d[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{7,}\b)     # numbers of documents
    |(?-i:\b[A-Z]{2,4}-\d{3,}(?:-\d+)*\b)
    |\b(?:password|passcode|passphrase|passport|social\ security|ssn|cvv|iban|pin\ code
        |(?:api|secret|private|access)[ _-]?(?:key|token)|licen[cs]e\ plate|(?:bank|account|card)\ number)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)

_CHANGES: Final = (
    "Changes: profiles are mapped to fifteen attributes, missing ones are left out.",
    f"Occupation and {PREFERENCES} drawn preferences are put into the first person by rule (version {RULES_VERSION}).",
    "The group is the kind of the drawn preferences. `reveals` lists attributes that share a telling word with a fact.",
    "Rows about others, outdated or withdrawn ones, sensitive ones and such as look like a secret are left out.",
)


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """A row that may be used: its 1-based number in the file, its group, its topic and words, and the finished fact."""

    record: int
    group: Group
    topic: str
    words: str
    fact: str


class Person(msgspec.Struct, kw_only=True):
    """What the rows say of one persona.

    Attributes:
        record: the row that the profile was taken from; 0 while there is none.
        withdrawn: preferences that other rows replace or ask to forget.
    """

    name: str
    record: int = 0
    profile: Attributes | None = None
    preferences: list[Preference] = []
    withdrawn: set[str] = set()


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a file by persona, and how many rows cannot be used, by reason."""

    people: dict[str, Person]
    records: int
    dropped: dict[str, int]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The personas that were made, and how many could not be, by reason."""

    personas: tuple[Persona, ...]
    passed_over: dict[str, int]


def gather(rows: Iterable[Mapping[str, str]]) -> Gathered:
    """Return what can be used of the rows of a file; each row is looked at once and not kept.

    Raises:
        UserError: the rows do not have the columns of the data set.
    """
    people: dict[str, Person] = {}
    dropped: Counter[str] = Counter()
    records = 0
    for record, row in enumerate(rows, 1):
        _check_columns(row, record)
        records = record
        name = row["persona_id"].strip()
        if not _PERSONA_ID.fullmatch(name):
            dropped["no persona_id"] += 1
            continue
        person = people.setdefault(name, Person(name=name))
        if person.profile is None:
            _take_profile(person, record, row["expanded_persona"])
        _take_withdrawals(person, row)
        if reason := _unusable(row):
            dropped[reason] += 1
        elif (fact := preference_fact(row["preference"])) is None:
            dropped["cannot be put into the first person by rule"] += 1
        else:
            person.preferences.append(_preference(record, row, fact))
    return Gathered(people=people, records=records, dropped=dict(dropped))


def choose(gathered: Gathered, *, number: int, seed: int, others: Iterable[Persona] = ()) -> Choice:
    """Return up to `number` personas, the groups as equal in size as the rows allow.

    Args:
        gathered: the rows.
        number: how many personas to make.
        seed: decides the draw.
        others: personas that the new ones may not resemble and whose occupations count as taken.
    """
    crowd, sizes = Crowd(others), dict.fromkeys(Group, 0)
    personas: list[Persona] = []
    passed_over: Counter[str] = Counter()
    for person in sorted(gathered.people.values(), key=lambda each: _rank(seed, each.name)):
        if len(personas) == number:
            break
        groups = sorted(Group, key=lambda group: (sizes[group], _rank(seed, person.name, group)))
        made, reason = _make(person, groups, seed, crowd)
        if made is None:
            passed_over[reason] += 1
            continue
        crowd.add(made)
        personas.append(made)
        sizes[made.group] += 1
    return Choice(personas=tuple(personas), passed_over=dict(passed_over))


def header(file: str, digest: str, gathered: Gathered, choice: Choice, *, seed: int) -> list[str]:
    """Return the lines that say where imported personas come from, under which licence, and what was changed."""
    groups = Counter(persona.group.value for persona in choice.personas)
    sizes = ", ".join(f"{groups[group.value]} {group}" for group in Group)
    source = f"{file} ({gathered.records} records, blake2b {digest})"
    return [
        f"Personas adapted from {DATASET} (bowen-upenn/PersonaMem-v2, arXiv 2512.06688), licence {LICENCE}:",
        "https://creativecommons.org/licenses/by/4.0/",
        "Its personas were seeded from PersonaHub, whose own terms may apply. Keep this notice with the file.",
        *_CHANGES,
        f"From {source}, seed {seed}: {len(choice.personas)} personas, {sizes}.",
    ]


def looks_secret(text: str) -> bool:
    """Return whether a text has the shape of a key, a number of a card, account or person, or an address."""
    return _SECRETS.search(text) is not None


def _check_columns(row: Mapping[str, str], record: int) -> None:
    missing = [name for name in COLUMNS if not isinstance(row.get(name), str)]
    if missing:
        raise UserError(
            f"record {record} has no {', '.join(missing)}",
            where="CSV file",
            mend=f"give a CSV file of {DATASET} (benchmark/text/*.csv), as it was published",
        )


def _take_profile(person: Person, record: int, text: str) -> None:
    """Keep the profile of the first row that has one which can be read."""
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = find_object(text, bool)
        value = found.values[0] if found.values and not found.truncated else None
    if isinstance(value, dict) and value:
        person.record, person.profile = record, _without_secrets(read_profile(value))


def _without_secrets(profile: Attributes) -> Attributes:
    secret = {name: None for name, value in profile.known().items() if looks_secret(str(value))}
    return msgspec.structs.replace(profile, **secret)


def _take_withdrawals(person: Person, row: Mapping[str, str]) -> None:
    """Note which preference a row replaces or asks to forget."""
    if match := _TAKEN_BACK.match(row["preference"].strip()):
        person.withdrawn.add(_plain(row["preference"].strip()[match.end() :]))
    if row["prev_pref"].strip() and _truth(row["updated"]) is not False:
        person.withdrawn.add(_plain(row["prev_pref"]))


def _unusable(row: Mapping[str, str]) -> str:
    """Return why a row may not be used; empty when it may."""
    kind = row["pref_type"].strip()
    if kind not in KINDS:
        return f"pref_type {kind[:40] or 'missing'}"
    if row["who"].strip().casefold() != "self":
        return "not about the user"
    if _truth(row["updated"]) is not False:
        return "updated"
    if _truth(row["sensitive_info"]) is not False:
        return "sensitive"
    if looks_secret(row["preference"]):
        return "looks like a secret"
    return "" if row["topic_preference"].strip() else "no topic"


def _preference(record: int, row: Mapping[str, str], fact: str) -> Preference:
    group, topic = KINDS[row["pref_type"].strip()], _plain(row["topic_preference"])
    return Preference(record=record, group=group, topic=topic, words=_plain(row["preference"]), fact=fact)


def _make(person: Person, groups: Sequence[Group], seed: int, crowd: Crowd) -> tuple[Persona | None, str]:
    """Return a persona of the first group that allows one, or why there is none."""
    profile = person.profile
    if profile is None:
        return None, "no profile that can be read"
    if profile.age is not None and profile.age not in AGES:
        return None, f"age outside {AGES[0]}..{AGES[-1]}"
    occupation = occupation_fact(profile.occupation) if profile.occupation else None
    if occupation is None:
        return None, "no occupation that can be told in a sentence"
    reason = f"fewer than {PREFERENCES} usable preferences of one kind on different topics"
    for group in groups:
        for pair in _pairs(person, profile, group, seed):
            persona = _persona(person, profile, group, occupation, pair, seed)
            broken, clashes = validate([persona], whole=False), crowd.clashes(persona)
            if not broken and not clashes:
                return persona, ""
            field = (broken or clashes)[0].field
            reason = f"{field} against the rules" if broken else f"{field} too much like another persona's"
            if {problem.field for problem in (*broken, *clashes)} - {"facts", "reveals"}:
                return None, reason
    return None, reason


def _pairs(person: Person, profile: Attributes, group: Group, seed: int) -> Iterator[tuple[Preference, Preference]]:
    """Yield pairs of preferences on different topics in the order of the draw."""
    usable = [
        each
        for each in person.preferences
        if each.group is group and each.words not in person.withdrawn and not telltales(each.fact, profile)
    ]
    drawn = sorted(usable, key=lambda each: _rank(seed, person.name, group, str(each.record)))
    for first, second in combinations(drawn, PREFERENCES):
        if first.topic != second.topic and first.words != second.words:
            yield first, second


def _persona(
    person: Person,
    profile: Attributes,
    group: Group,
    occupation: str,
    pair: tuple[Preference, Preference],
    seed: int,
) -> Persona:
    facts = (occupation, pair[0].fact, pair[1].fact)
    number = f"{int(person.name):04d}" if person.name.isdecimal() else person.name
    return Persona(
        id=f"pm2_{number}",
        group=group,
        source=Source.IMPORTED,
        reveals=("occupation", *disclosed(facts, profile)),
        facts=facts,
        attributes=profile,
        provenance=(
            f"{DATASET} persona {person.name}: profile and occupation from record {person.record}, preferences from"
            f" records {pair[0].record} and {pair[1].record}; first person by rule {RULES_VERSION}; seed {seed}"
        ),
    )


def _truth(text: str) -> bool | None:
    """Return a column's truth value; None when it is neither word."""
    return {"true": True, "false": False}.get(text.strip().casefold())


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


def _rank(seed: int, *parts: str) -> bytes:
    """Return a text's place in the draw."""
    return blake2b("\0".join((str(seed), *parts)).encode(), digest_size=16).digest()
