"""Personas out of PersonaMem-v2: which rows are used, how they are drawn, and what is kept of where they come from."""

import csv
import tomllib
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from instruments.personafile import persona_toml
from instruments.personamem import COLUMNS, Choice, Gathered, choose, gather, header, looks_secret
from instruments.personas import Group, Persona, Source, load_persona_file, validate

MINI = Path(__file__).parents[1] / "data" / "personamem_mini.csv"
with MINI.open(encoding="utf-8", newline="") as file:
    ROWS: list[dict[str, str]] = list(csv.DictReader(file))


def made(*, number: int = 10, seed: int = 0, rows: list[dict[str, str]] = ROWS) -> Choice:
    """Return the personas of some rows."""
    return choose(gather(rows), number=number, seed=seed)


ONE = made().personas[0]


def by_id(choice: Choice) -> dict[str, Persona]:
    return {persona.id: persona for persona in choice.personas}


def changed(number: int, **fields: str) -> list[dict[str, str]]:
    """Return all rows, one of them (1-based) with other fields."""
    return [row | fields if place == number else row for place, row in enumerate(ROWS, 1)]


def test_every_usable_persona_is_made() -> None:
    """Four of seven have an occupation, an adult age and two preferences of one kind."""
    choice = made()
    assert set(by_id(choice)) == {"pm2_0007", "pm2_0012", "pm2_0015", "pm2_0021"}
    assert choice.passed_over == {
        "no occupation that can be told in a sentence": 1,
        "no profile that can be read": 1,
        "age outside 18..80": 1,
    }


def test_made_personas_have_no_problem() -> None:
    """They pass the same checks as any persona."""
    for seed in range(5):
        assert validate(made(seed=seed).personas, whole=False) == []


def test_facts_are_the_occupation_and_two_preferences_in_the_first_person() -> None:
    """Word for word, by rule."""
    persona = by_id(made())["pm2_0015"]
    assert persona.facts[0] == "I'm a school cook."
    assert set(persona.facts[1:]) <= {
        "I collect enamel spoons.",
        "I hum marches while stirring.",
        "I follow chess broadcasts.",
        "I ride a motorcycle at weekends.",
        "I explore caves with a headlamp.",
        "I attend opera matinees.",
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_group_is_the_kind_of_both_drawn_preferences(seed: int) -> None:
    """And the two stand on different topics."""
    groups = {
        "stereotypical_pref": Group.STEREOTYPICAL,
        "anti_stereotypical_pref": Group.COUNTER_STEREOTYPICAL,
        "neutral_preferences": Group.NEUTRAL,
    }
    for persona in made(seed=seed).personas:
        drawn = [ROWS[int(record) - 1] for record in _records(persona)]
        assert {groups[row["pref_type"]] for row in drawn} == {persona.group}
        assert len({row["topic_preference"] for row in drawn}) == 2
        assert {row["persona_id"] for row in drawn} == {str(int(persona.id.removeprefix("pm2_")))}


def _records(persona: Persona) -> list[str]:
    """Return the row numbers of the preferences, from the persona's own provenance."""
    assert persona.provenance is not None
    listed = persona.provenance.partition("preferences from records ")[2].partition(";")[0]
    return listed.split(" and ")


def test_a_profile_says_only_what_the_data_says() -> None:
    """Places are flattened, missing attributes stay missing, a value that looks like a secret is left out."""
    personas = by_id(made())
    assert personas["pm2_0007"].attributes.known() == {
        "name": "Ingrid Vollan",
        "age": 44,
        "gender": "Female",
        "occupation": "Ferry Pilot",
        "city": "Stavanger, Norway",
        "hobbies": "dahlia growing, chart collecting",
        "personality": "unhurried, exact",
        "relationship_status": "Widowed",
    }
    assert personas["pm2_0015"].attributes.name == "Amaru Quispe"
    assert personas["pm2_0015"].attributes.city is None
    assert personas["pm2_0021"].attributes.quirk is None
    assert all(persona.source is Source.IMPORTED for persona in personas.values())


def test_rows_that_may_not_be_used_are_counted_by_reason() -> None:
    """Nothing is dropped in silence."""
    assert gather(ROWS).dropped == {
        "pref_type therapy_background": 1,
        "pref_type health_and_medical_conditions": 1,
        "pref_type ask_to_forget": 1,
        "pref_type sensitive_info": 1,
        "looks like a secret": 1,
        "not about the user": 1,
        "updated": 1,
        "cannot be put into the first person by rule": 1,
    }


@pytest.mark.parametrize(
    "words",
    [
        "asthma",
        "brother",
        "4111",
        "window seats",
        "early tram",
        "night bus",
        "tide tables",
        "odile@example",
        "grandmother",
    ],
)
def test_no_unusable_row_reaches_a_persona(words: str) -> None:
    """Whatever the seed: health, therapy, secrets, others, updates, what is replaced or to be forgotten, doubt."""
    for seed in range(20):
        assert words not in persona_toml(made(seed=seed).personas)


@pytest.mark.parametrize(
    "fields",
    [
        {"who": "others"},
        {"who": ""},
        {"updated": "True"},
        {"updated": ""},
        {"sensitive_info": "True"},
        {"sensitive_info": ""},
        {"pref_type": "therapy_background"},
        {"pref_type": "something new"},
        {"topic_preference": " "},
        {"preference": "Pays with 4111 1111 1111 1111"},
        {"preference": "Spoons"},
    ],
    ids=lambda fields: ",".join(f"{key}={value}" for key, value in fields.items()),
)
def test_one_wrong_field_keeps_a_row_out(fields: dict[str, str]) -> None:
    """A blank where a yes or no is due is no no."""
    before, after = gather(ROWS), gather(changed(22, **fields))
    assert len(after.people["15"].preferences) == len(before.people["15"].preferences) - 1
    assert sum(after.dropped.values()) == sum(before.dropped.values()) + 1


def test_the_same_seed_draws_the_same_whatever_the_order_of_the_people() -> None:
    """The file may be sorted otherwise; another seed draws others."""
    people = sorted({row["persona_id"] for row in ROWS}, reverse=True)
    gathered = gather(ROWS)
    turned = Gathered(people={name: gathered.people[name] for name in people}, records=37, dropped={})
    assert choose(turned, number=10, seed=0) == made()
    assert len({made(seed=seed).personas for seed in range(6)}) > 1


def test_a_smaller_number_takes_the_first_of_the_draw() -> None:
    """Asking for fewer never draws others."""
    assert made(number=2).personas == made(number=4).personas[:2]


def test_groups_are_kept_as_equal_as_the_rows_allow() -> None:
    """Thirty people who offer every kind make ten personas of each group."""
    choice = choose(gather(many(30)), number=30, seed=3)
    assert [sum(persona.group is group for persona in choice.personas) for group in Group] == [10, 10, 10]


KIND_OF = {"stereotypical_pref": "Collects", "anti_stereotypical_pref": "Draws", "neutral_preferences": "Repairs"}


def word(number: int) -> str:
    """Return the `number`-th of many invented words, no two alike."""
    digest = blake2b(f"word {number}".encode(), digest_size=6).digest()
    return "".join("bdfghklmnprstvwz"[byte % 16] + "aeiou"[byte % 5] for byte in digest)


def many(number: int) -> list[dict[str, str]]:
    """Return rows of people who all offer two preferences of every kind."""
    return [
        dict.fromkeys(COLUMNS, "")
        | {
            "persona_id": str(place),
            "expanded_persona": f'{{"occupation": "{word(place)}", "age": {20 + place}}}',
            "preference": f"{verb} {word(1000 + 10 * place + second)} {word(2000 + 10 * place + second)}",
            "topic_preference": f"topic {second}",
            "pref_type": kind,
            "who": "self",
            "updated": "False",
            "sensitive_info": "False",
        }
        for place in range(number)
        for kind, verb in KIND_OF.items()
        for second in range(2)
    ]


def test_a_second_persona_of_one_trade_is_passed_over() -> None:
    """Its first fact would be the same sentence; personas of other sources count too."""
    rows = [row | {"expanded_persona": f'{{"occupation": "glazier", "pet": "{row["persona_id"]}"}}'} for row in many(4)]
    choice = choose(gather(rows), number=4, seed=0)
    assert len(choice.personas) == 1
    assert choice.passed_over == {"facts too much like another persona's": 3}
    assert choose(gather(rows), number=4, seed=0, others=choice.personas).personas == ()


def test_a_fact_like_another_personas_is_not_drawn() -> None:
    """Another of one's own preferences is drawn instead."""
    rows = many(2)
    rows[6] = rows[6] | {"preference": rows[0]["preference"]}
    for seed in range(6):
        assert validate(choose(gather(rows), number=2, seed=seed).personas, whole=False) == []


def test_a_fact_that_gives_the_name_or_city_away_is_not_drawn() -> None:
    """Only the occupation is told on purpose."""
    rows = changed(3, preference="Grows dahlias behind Stavanger harbour")
    for seed in range(12):
        assert "Stavanger" not in " ".join(by_id(made(seed=seed, rows=rows))["pm2_0007"].facts)


def test_the_file_keeps_licence_source_and_changes() -> None:
    """What CC-BY-4.0 asks for, and what one must know to repeat it."""
    gathered, choice = gather(ROWS), made(seed=4)
    text = persona_toml(choice.personas, header("mini.csv", "00ff", gathered, choice, seed=4))
    comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    for part in ("CC-BY-4.0", "PersonaMem-v2", "Changes:", "mini.csv (37 records, blake2b 00ff), seed 4", "4 personas"):
        assert part in comments


def test_the_written_file_loads_as_it_was(tmp_path: Path) -> None:
    """Provenance included."""
    personas = made().personas
    path = tmp_path / "imported.toml"
    path.write_text(persona_toml(personas, ["a\nheader"]), encoding="utf-8")
    assert load_persona_file(path) == personas


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_survives_the_file_format(fact: str, value: str) -> None:
    """Quotes, control characters and lone surrogates do not break the file."""
    text = persona_toml([_with(ONE, fact, value)], [fact])
    (row,) = tomllib.loads(text)["persona"]
    assert row["attributes"]["quirk"] == value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _with(persona: Persona, fact: str, value: str) -> Persona:
    attributes = msgspec.structs.replace(persona.attributes, quirk=value)
    return msgspec.structs.replace(persona, facts=(fact, fact, fact), attributes=attributes)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_file_without_a_column_is_refused_in_one_line(column: str) -> None:
    """The user learns which column and which file would do."""
    rows = [{key: value for key, value in ROWS[0].items() if key != column}]
    with pytest.raises(UserError, match=f"record 1 has no {column}") as caught:
        gather(rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdefghij0123456789",
        "llm-4F7H9J3D2K8S",
        "AKIA0123456789ABCDEF",
        "4532-8791-4650-2387",
        "4111 1111 1111 1111",
        "078-05-1120",
        "745-203-6891",
        "+44 20 7946 0958",
        "someone@example.org",
        "DL8W3P7R2",
        "BA-5298-7136",
        "the passport in the drawer",
        "my password",
    ],
)
def test_secrets_are_known_by_their_shape(text: str) -> None:
    """Inside of a sentence too."""
    assert looks_secret(text)
    assert looks_secret(f"Keeps {text}, always.")


@pytest.mark.parametrize(
    "text",
    [
        "Loves 90s pop",
        "Collects mid-20th-century radios",
        "Follows the 1984-1985 season",
        "Drives a 4x4",
        "Reads 12 books a year",
    ],
)
def test_everyday_numbers_are_no_secrets(text: str) -> None:
    """Or most rows would be lost."""
    assert not looks_secret(text)


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, st.text(max_size=40))), max_size=6), st.integers(0, 9))
def test_any_rows_are_gathered_and_counted(rows: list[dict[str, str]], seed: int) -> None:
    """Every row is used or counted as dropped; nothing raises."""
    gathered = gather(rows)
    used = sum(len(person.preferences) for person in gathered.people.values())
    assert used + sum(gathered.dropped.values()) == gathered.records == len(rows)
    choose(gathered, number=3, seed=seed)


def test_rows_are_looked_at_once() -> None:
    """A file of any length can be streamed."""
    stream = iter(ROWS)
    gathered: Gathered = gather(stream)
    assert next(stream, None) is None
    assert gathered.records == len(ROWS)
