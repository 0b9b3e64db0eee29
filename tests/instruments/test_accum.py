"""A memory that is rewritten round by round."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from engine.request import Completion
from instruments.accum import AccumInstrument, entries, normalised, read_memory, unique
from instruments.instrument import Ask, Design, Stage
from instruments.reader import plan

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)
MEMORY = {
    "observed": ["climbs [t]"],
    "preferences": ["tea"],
    "personality_traits": [],
    "demographics": ['says "hi"'],
    "predictions": [],
}


def first_round(design: Design) -> Ask:
    """Return the first question of the first chain."""
    return next(ask for ask in plan(design) if ask.stage is Stage.ACCUM)


def next_round(design: Design, ask: Ask, completion: Completion) -> list[Ask]:
    """Return what follows from an answer."""
    instrument = AccumInstrument()
    return list(instrument.follow_up(ask.coords, completion, instrument.read(completion), design))


def test_first_round_starts_from_the_three_facts(design: Design) -> None:
    """Nothing is inferred before anything was said."""
    ask = first_round(design)
    assert ask.messages[0].content.startswith(
        "Current memory of the user:\n"
        '{observed: ["I am ann.", "I work as a [task].", "My {claim} is [fact_1]."], preferences: [], '
        "personality_traits: [], demographics: [], predictions: []}\n\n"
        'New user message (round 1):\n"ann says number 1"\n\nUpdate the memory'
    )
    assert (ask.coords.round, ask.coords.prompt) == (1, design.prompts.tag("accum_retain"))


def test_next_round_is_asked_with_the_new_memory(design: Design, answer: Callable[..., Completion]) -> None:
    """What the model returned is shown again, literally, with the next message."""
    (ask,) = next_round(design, first_round(design), answer(json.dumps(MEMORY)))
    assert ask.messages[0].content.startswith(
        'Current memory of the user:\n{observed: ["climbs [t]"], preferences: ["tea"], personality_traits: [], '
        'demographics: ["says \\"hi\\""], predictions: []}\n\nNew user message (round 2):\n"ann says number 2"\n\n'
    )
    assert ask.coords.round == 2


def test_fields_that_the_model_adds_are_kept(design: Design, answer: Callable[..., Completion]) -> None:
    """They are shown behind the five, so that the model is not made to forget them."""
    grown = MEMORY | {"hobbies": ["chess"], "odd key": {"a": 1}}
    (ask,) = next_round(design, first_round(design), answer(json.dumps(grown)))
    assert 'predictions: [], hobbies: ["chess"], "odd key": ["a: 1"]}\n' in ask.messages[0].content


def test_chain_ends_with_the_designs_rounds(design: Design, answer: Callable[..., Completion]) -> None:
    """Three rounds, then nothing."""
    ask, rounds = first_round(design), [1]
    while follow := next_round(design, ask, answer(json.dumps(MEMORY))):
        (ask,) = follow
        rounds.append(ask.coords.round)
    assert rounds == [1, 2, 3]


def test_chain_never_outlasts_its_script(vary: Callable[..., Design], answer: Callable[..., Completion]) -> None:
    """With more rounds than messages it ends with the messages."""
    design = vary(rounds=20)
    ask, count = first_round(design), 1
    while follow := next_round(design, ask, answer(json.dumps(MEMORY))):
        (ask,), count = follow, count + 1
    assert count == 8


@pytest.mark.parametrize(
    "reply", ["no memory", '{"observed": ["a"], "preferences": ["b', ""], ids=["unreadable", "cut off", "empty"]
)
def test_memory_that_is_not_whole_ends_the_chain(reply: str, design: Design, answer: Callable[..., Completion]) -> None:
    """Going on from part of a memory would count the cut as a revision."""
    assert next_round(design, first_round(design), answer(reply)) == []


def test_neutral_prompt_is_chosen_by_the_design(vary: Callable[..., Design]) -> None:
    """The other wording, and its tag in the coordinates."""
    design = vary(memory_prompt="neutral")
    ask = first_round(design)
    assert "Revise or remove earlier entries where appropriate." in ask.messages[0].content
    assert ask.coords.prompt == design.prompts.tag("accum_neutral")


def test_unknown_memory_prompt_is_a_user_error(vary: Callable[..., Design]) -> None:
    """The message lists the prompts that there are."""
    with pytest.raises(UserError, match="accum_retain"):
        list(plan(vary(memory_prompt="forget")))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (["a", " b ", "", None], ["a", "b"]),
        ("a", ["a"]),
        (3, ["3"]),
        (0.5, ["0.5"]),
        (False, ["false"]),
        (None, []),
        ({"age": 30, "city": None, "pets": ["cat", "dog"]}, ["age: 30", "pets: cat", "pets: dog"]),
        ([{"b": 1, "a": ["x", "y"]}, {"a": None}], ["a: x, y; b: 1"]),
        ([["a", ["b"]], "c"], ["a", "b", "c"]),
        ({"a": {"b": {"c": 1}}}, ["a: b: c: 1"]),
    ],
)
def test_values_become_texts_in_one_fixed_way(value: Any, texts: list[str]) -> None:
    """An item of a list is one entry, an entry of an object is `key: text`."""
    assert entries(value) == texts


@given(JSON)
def test_any_value_becomes_texts_that_can_be_stored(value: Any) -> None:
    """No value raises, no entry is empty, and all are valid UTF-8."""
    texts = entries(value)
    assert all(texts)
    "".join(texts).encode()


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), min_size=1)))
def test_order_of_keys_does_not_change_an_entry(items: list[Any]) -> None:
    """The same object is the same attribute in every round."""
    assert entries(items) == entries([dict(reversed(item.items())) for item in items])


def test_both_spellings_of_observed_are_one_field() -> None:
    """Their entries join."""
    memory, missing = read_memory({"directly_observed": ["a"], "Observed": ["b"], "predictions": []})
    assert memory["observed"] == ["a", "b"]
    assert missing == ("preferences", "personality_traits", "demographics")


@given(st.lists(st.text()))
def test_unique_attributes_differ_by_more_than_case_and_spacing(texts: list[str]) -> None:
    """Each normalised text is there once, and normalising again changes nothing but case pairs already folded."""
    seen = unique(texts)
    assert len(set(seen)) == len(seen)
    assert set(seen) == {normalised(text) for text in texts}


def test_normalised_text_ignores_case_and_spacing() -> None:
    """Straße and STRASSE, tabs and line breaks."""
    assert normalised("  Lives in\n\tSTRASSE ") == normalised("lives in straße")
