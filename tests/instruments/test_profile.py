"""Profiles with free keys become our fifteen attributes; nothing is derived, nothing invented."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instruments.personas import Attributes, Source, load_personas
from instruments.profile import ALIASES, disclosed, read_profile, stems

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children) | st.dictionaries(st.text() | st.sampled_from([*ALIASES, "location"]), children)
    ),
    max_leaves=20,
)


def test_an_alias_for_every_attribute() -> None:
    """The map covers the profile of the paper (G.8), each attribute under its own name too."""
    assert tuple(ALIASES) == Attributes.__struct_fields__
    words = {name: name.replace("_", " ") for name in ALIASES}
    assert all(words[name] in aliases for name, aliases in ALIASES.items())


@pytest.mark.parametrize(
    ("profile", "known"),
    [
        pytest.param({"Occupation": "Baker"}, {"occupation": "Baker"}, id="case"),
        pytest.param({"personalityTraits": ["kind", "slow"]}, {"personality": "kind, slow"}, id="list"),
        pytest.param({"work-life pattern": "nights"}, {"work_life_pattern": "nights"}, id="hyphen"),
        pytest.param({"one quirk": "hums"}, {"quirk": "hums"}, id="the prompt's words"),
        pytest.param({"location": {"city": "Turku", "country": "Finland"}}, {"city": "Turku, Finland"}, id="place"),
        pytest.param({"location": {"country": "Finland"}}, {}, id="a country is no city"),
        pytest.param({"nationality": "Finnish"}, {}, id="a nationality is no city"),
        pytest.param({"demographics": {"age": 40, "gender": "Female"}}, {"age": 40, "gender": "Female"}, id="nested"),
        pytest.param({"family": {"name": "Rosa", "age": 8}}, {}, id="someone else's name and age"),
        pytest.param({"occupation": {"title": "Baker", "since": 1999}}, {"occupation": "Baker"}, id="title"),
        pytest.param(
            {"personality": {"core": ["dry"], "tired": None}}, {"personality": "core: dry"}, id="object as entries"
        ),
        pytest.param({"age": "31 years old"}, {"age": 31}, id="age in words"),
        pytest.param({"age": "thirties"}, {}, id="no exact age"),
        pytest.param({"age": "30-35"}, {}, id="a range of ages"),
        pytest.param({"age": True}, {}, id="a truth value is no age"),
        pytest.param({"hobbies": "chess", "interests": "maps"}, {"hobbies": "chess"}, id="the more telling name wins"),
        pytest.param({"pet": None, "diet": "  ", "quirk": []}, {}, id="empty values"),
        pytest.param({"pets": ["cat", {"kind": "dog"}]}, {"pet": "cat, kind: dog"}, id="mixed list"),
        pytest.param({"quirk": "x" * 500}, {}, id="too long to be a value"),
        pytest.param({"social_media": {"handle": "@x"}, "education": "PhD"}, {}, id="what has no attribute"),
    ],
)
def test_only_what_a_profile_says_is_taken(profile: dict[str, Any], known: dict[str, Any]) -> None:
    """Missing stays missing."""
    assert read_profile(profile).known() == known


@settings(deadline=None)
@given(st.dictionaries(st.text() | st.sampled_from([*ALIASES, "location"]), JSON))
def test_any_profile_can_be_read(profile: dict[str, Any]) -> None:
    """No value raises, and what is taken over is never blank and is printable text or a number."""
    for value in read_profile(profile).known().values():
        assert isinstance(value, int) or (value.strip() and value.isprintable())


def test_a_shared_word_discloses_whatever_its_ending() -> None:
    """Climbs, climbing, climber; numbers, name and city are not looked at."""
    profile = Attributes(name="Climb", age=40, city="Climb", hobbies="rock climbing", pet="a cat", occupation="climber")
    assert disclosed(["I climbed a wall."], profile) == ("hobbies",)


def test_everyday_words_disclose_nothing() -> None:
    """`Every morning` says nothing about a profile that has the words too."""
    assert disclosed(["I work every morning."], Attributes(work_life_pattern="works every morning")) == ()


def test_stems_are_words_without_their_endings() -> None:
    """Doubled consonants included; short words are left out."""
    assert stems("Running runs, stories story, and an ox") == {"run", "stor"}


def test_the_screen_finds_most_of_what_was_marked_by_hand() -> None:
    """On our own personas, whose `reveals` were written by hand; a screen, so not all and not only these."""
    ours = [persona for persona in load_personas() if persona.source is not Source.IMPORTED]
    marked = {(each.id, name) for each in ours for name in each.reveals if name != "occupation"}
    found = {(each.id, name) for each in ours for name in disclosed(each.facts, each.attributes)}
    assert len(found & marked) / len(marked) > 0.75
    assert len(found & marked) / len(found) > 0.5
