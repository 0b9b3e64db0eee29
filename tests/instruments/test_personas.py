"""The shipped personas keep the paper's constraints, and broken ones are named with a way to mend them."""

import json
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instruments.personas import (
    Attributes,
    Group,
    Persona,
    PersonaError,
    Source,
    load_persona_file,
    load_personas,
    validate,
)

PERSONAS = load_personas()
BY_ID = {persona.id: persona for persona in PERSONAS}
OURS = tuple(persona for persona in PERSONAS if persona.source is not Source.IMPORTED)
SEED = BY_ID["seed_001"]


def changed(persona: Persona = SEED, **fields: object) -> Persona:
    """Return a persona with some fields changed; attribute names change the profile."""
    own = {name: value for name, value in fields.items() if name in Persona.__struct_fields__}
    profile = {name: value for name, value in fields.items() if name in Attributes.__struct_fields__}
    attributes = msgspec.structs.replace(persona.attributes, **profile)
    return msgspec.structs.replace(persona, **{"attributes": attributes, **own})


def fact_with(sentence: str) -> tuple[str, str, str]:
    """Return the seed's facts with the last one replaced."""
    return (SEED.facts[0], SEED.facts[1], sentence)


def as_toml(persona: Persona) -> str:
    """Write one persona in the format of the shipped files."""
    row = msgspec.to_builtins(persona)
    profile = row.pop("attributes")

    def lines(table: dict[str, object]) -> list[str]:
        return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]

    return "\n".join(["[[persona]]", *lines(row), "[persona.attributes]", *lines(profile), ""])


def found(*personas: Persona) -> set[tuple[str, str]]:
    """Return (persona, field) of every problem in a set that need not be whole."""
    return {(problem.persona, problem.field) for problem in validate(personas, whole=False)}


def test_a_whole_benchmark_has_150_personas_from_three_sources() -> None:
    """8 hand-crafted, 70 imported, 72 generated (paper, section Personas)."""
    counts = Counter(persona.source for persona in PERSONAS)
    assert counts == {Source.HAND_CRAFTED: 8, Source.IMPORTED: 70, Source.GENERATED: 72}


def test_the_three_groups_have_fifty_personas_each() -> None:
    """Stereotypical, counter-stereotypical and neutral are balanced."""
    assert Counter(persona.group for persona in PERSONAS) == dict.fromkeys(Group, 50)


def test_the_shipped_personas_have_no_problem() -> None:
    """Every check that a user's file must pass holds for ours."""
    assert [str(problem) for problem in validate(PERSONAS)] == []


def test_our_eighty_occupations_are_all_different() -> None:
    """Hand-crafted and generated personas never share an occupation."""
    assert len({persona.attributes.occupation for persona in OURS}) == len(OURS) == 80


def test_our_personas_have_all_fifteen_attributes() -> None:
    """Only imported personas may leave an attribute out."""
    assert {len(persona.attributes.known()) for persona in OURS} == {15}


def test_every_decade_of_adult_life_is_there() -> None:
    """Ages run from 18 to 80; no decade between is empty, and the middle ones hold at least five of us."""
    decades = Counter((persona.attributes.age or 0) // 10 for persona in OURS)
    assert set(decades) == {1, 2, 3, 4, 5, 6, 7, 8}
    assert min(decades[decade] for decade in range(1, 8)) >= 5


def test_names_are_not_shared() -> None:
    """No two of our personas have the same name."""
    assert len({persona.attributes.name for persona in OURS}) == len(OURS)


@pytest.mark.parametrize("persona", PERSONAS, ids=lambda persona: persona.id)
def test_facts_keep_name_city_and_pet_name_to_themselves(persona: Persona) -> None:
    """No proper name of an unrevealed name, city or pet occurs in a fact."""
    unsaid = [str(getattr(persona.attributes, name)) for name in ("name", "city", "pet") if name in persona.unrevealed]
    proper = {word for text in unsaid for word in re.findall(r"[^\W\d_]\w+", text) if word[0].isupper()}
    assert proper.isdisjoint(re.findall(r"[^\W\d_]\w+", " ".join(persona.facts)))


@pytest.mark.parametrize("persona", PERSONAS, ids=lambda persona: persona.id)
def test_facts_mention_no_partner_unless_revealed(persona: Persona) -> None:
    """A wife, boyfriend or the like in a fact gives the relationship status away."""
    said = re.findall(r"\b(wife|husband|girlfriend|boyfriend|fiancée?|spouse)\b", " ".join(persona.facts).casefold())
    assert not said or "relationship_status" in persona.reveals


@pytest.mark.parametrize("persona", PERSONAS, ids=lambda persona: persona.id)
def test_most_of_the_profile_stays_unsaid(persona: Persona) -> None:
    """Facts reveal the occupation and one or two other attributes (G.8)."""
    assert "occupation" in persona.reveals
    assert len(persona.reveals) in (2, 3)
    assert set(persona.unrevealed) == set(persona.attributes.known()) - set(persona.reveals)


@pytest.mark.parametrize(
    ("name", "occupation", "words"),
    [("seed_001", "software engineer", "climbing Pixel"), ("seed_006", "kindergarten teacher", "scarf girlfriend 500")],
    ids=["G.3 stereotypical", "G.3 counter-stereotypical"],
)
def test_the_papers_two_sketches_are_seeds(name: str, occupation: str, words: str) -> None:
    """The two examples of G.3 keep their substance."""
    assert BY_ID[name].attributes.occupation == occupation
    assert all(word in " ".join(BY_ID[name].facts) for word in words.split())


def test_ground_truth_names_every_known_attribute_on_its_own_line() -> None:
    """The judge's block lists label and value in the paper's order."""
    lines = SEED.ground_truth().splitlines()
    assert lines[0] == "Name: Alex Chen"
    assert lines[1] == "Age: 28"
    assert len(lines) == 15


def test_ground_truth_leaves_out_what_an_imported_profile_does_not_say() -> None:
    """A missing attribute is left out, never written as None or guessed."""
    persona = changed(pet=None, age=None, source=Source.IMPORTED)
    assert "None" not in persona.ground_truth()
    assert len(persona.ground_truth().splitlines()) == 13
    assert "pet" not in persona.unrevealed


def test_a_seed_without_a_changed_field_has_no_problem() -> None:
    """The base of the tests below is sound, so what they find is what they changed."""
    assert found(SEED) == set()


@pytest.mark.parametrize(
    ("persona", "field"),
    [
        pytest.param(changed(facts=SEED.facts[:2]), "facts", id="two facts"),
        pytest.param(changed(facts=fact_with("The cat Pixel sent a coffee flying.")), "facts", id="no first person"),
        pytest.param(changed(facts=fact_with(" ")), "facts", id="blank fact"),
        pytest.param(changed(facts=fact_with("I love living in Seattle.")), "facts", id="city leaks"),
        pytest.param(changed(facts=fact_with("They call me Alex at work.")), "facts", id="name leaks"),
        pytest.param(changed(facts=fact_with("My Wife named the cat.")), "facts", id="partner leaks"),
        pytest.param(changed(facts=fact_with("I'm 28 and tired.")), "facts", id="age leaks"),
        pytest.param(changed(reveals=("hobbies", "pet")), "reveals", id="occupation unrevealed"),
        pytest.param(changed(reveals=("occupation",)), "reveals", id="nothing else revealed"),
        pytest.param(changed(reveals=("occupation", "hobbies", "pet", "age")), "reveals", id="too much revealed"),
        pytest.param(changed(reveals=("occupation", "pet", "pet")), "reveals", id="revealed twice"),
        pytest.param(changed(reveals=("occupation", "shoe_size")), "reveals", id="unknown attribute"),
        pytest.param(changed(age=17), "age", id="too young"),
        pytest.param(changed(age=81), "age", id="too old"),
        pytest.param(changed(quirk=None), "quirk", id="attribute missing"),
        pytest.param(changed(quirk="  "), "quirk", id="attribute blank"),
    ],
)
def test_one_broken_rule_gives_a_problem_at_that_field(persona: Persona, field: str) -> None:
    """Each rule of the format is found, and nothing else is reported."""
    assert found(persona) == {("seed_001", field)}


def test_a_problem_says_who_what_and_how_to_mend_in_one_line() -> None:
    """Problems are for people."""
    (problem,) = validate([changed(age=17)], whole=False)
    assert str(problem) == "seed_001: age: 17 is outside 18..80; choose an adult age in that range"


def test_an_imported_persona_may_leave_attributes_out() -> None:
    """Imported profiles say less than ours."""
    assert found(changed(quirk=None, source=Source.IMPORTED)) == set()


def test_an_id_used_twice_is_reported() -> None:
    """Ids are keys of the design."""
    assert ("seed_001", "id") in found(SEED, changed(BY_ID["seed_002"], id="seed_001"))


def test_a_third_persona_with_the_same_occupation_is_reported() -> None:
    """An occupation may occur twice at most, however it is capitalised."""
    twice = (changed(BY_ID["seed_002"], occupation="Bus Driver"), changed(BY_ID["seed_003"], occupation="bus driver"))
    assert found(*twice) == set()
    third = changed(BY_ID["seed_004"], occupation="bus driver ")
    assert found(*twice, third) == {("seed_004", "occupation")}


def test_a_planted_near_duplicate_of_facts_is_refused() -> None:
    """One fact copied with a word changed is found although everything else differs."""
    copy = changed(
        BY_ID["gen_003"], facts=("I test apps.", "I'm a map fan.", SEED.facts[1].replace("Saturday", "Sunday"))
    )
    assert found(SEED, copy) == {("gen_003", "facts")}


def test_a_planted_near_duplicate_of_attributes_is_refused() -> None:
    """A profile with a new name, age and city is still the same profile."""
    copy = changed(id="copy", name="Bo Lind", age=35, city="Malmö, Sweden", facts=BY_ID["gen_003"].facts)
    assert ("copy", "attributes") in found(SEED, copy)


def test_an_empty_decade_is_reported_for_the_whole_set_only() -> None:
    """A user's small set need not cover all ages."""
    young = [persona for persona in PERSONAS if (persona.attributes.age or 0) < 70]
    assert {problem.what for problem in validate(young) if problem.field == "age"} == {
        "nobody is between 70 and 79",
        "nobody is between 80 and 89",
    }
    assert validate(young, whole=False) == []


def test_unbalanced_groups_are_reported() -> None:
    """Comparisons between groups need equal groups."""
    fewer = [persona for persona in PERSONAS if persona.group is not Group.NEUTRAL]
    assert any(problem.field == "group" for problem in validate(fewer))


@given(st.sampled_from(PERSONAS), st.integers(18, 80), st.text(min_size=1), st.sampled_from(Group))
def test_a_persona_survives_json(persona: Persona, age: int, quirk: str, group: Group) -> None:
    """What is stored with a sweep comes back equal."""
    before = changed(persona, age=age, quirk=quirk, group=group)
    assert msgspec.json.decode(msgspec.json.encode(before), type=Persona) == before


def test_personas_survive_their_file_format(tmp_path: Path) -> None:
    """Written as TOML and loaded again, all personas are equal."""
    path = tmp_path / "all.toml"
    path.write_text("\n".join(as_toml(persona) for persona in PERSONAS), encoding="utf-8")
    assert load_persona_file(path) == PERSONAS


def test_a_file_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Some editors put one there."""
    path = tmp_path / "bom.toml"
    path.write_text(as_toml(SEED), encoding="utf-8-sig")
    assert load_persona_file(path) == (SEED,)


def test_an_own_file_takes_the_place_of_the_imported_personas(tmp_path: Path) -> None:
    """Hand-crafted and generated personas stay."""
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(changed(id="mine_1", source=Source.IMPORTED)), encoding="utf-8")
    loaded = load_personas(imported=path)
    assert [persona.id for persona in loaded if persona.source is Source.IMPORTED] == ["mine_1"]
    assert len(loaded) == len(OURS) + 1


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"stereotypical"', '"typical"', "group"),
        ("age = 28", 'age = "28"', "attributes.age"),
        ("reveals =", "shows =", "shows"),
        ("quirk =", "oddity =", "attributes.oddity"),
        (json.dumps(SEED.facts[0]) + ", ", "", "facts"),
        ('id = "seed_001"', 'id = "seed 001\\n"', "id"),
        ("[persona.attributes]", "[persona.profile]", "profile"),
    ],
    ids=[
        "group",
        "age as text",
        "unknown field",
        "unknown attribute",
        "two facts",
        "id with a line break",
        "no profile",
    ],
)
def test_a_malformed_persona_is_named_with_its_field(tmp_path: Path, old: str, new: str, field: str) -> None:
    """The error is one line with file, persona, field and mend."""
    text = as_toml(SEED)
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(PersonaError) as caught:
        load_persona_file(path)
    message = str(caught.value)
    assert all(part in message for part in ("bad.toml", "persona seed", f"field {field}", "; "))
    assert "\n" not in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[[persona]\n", "line 1"),
        (b"\xff\xfe", "not a TOML file"),
        (b"", "[[persona]]"),
        (b"people = 3", "[[persona]]"),
    ],
    ids=["syntax", "encoding", "empty", "other content"],
)
def test_an_unreadable_file_is_an_error_that_names_it(tmp_path: Path, data: bytes, says: str) -> None:
    """Whatever the file holds, the user learns which file it was."""
    path = tmp_path / "odd.toml"
    path.write_bytes(data)
    with pytest.raises(PersonaError, match=r"odd\.toml") as caught:
        load_persona_file(path)
    assert says in str(caught.value)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(PersonaError, match=r"nowhere\.toml.*check the path"):
        load_persona_file(tmp_path / "nowhere.toml")
