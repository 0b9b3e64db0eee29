"""Personas written by a model: what is asked, which answers are accepted, and what is asked again."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cell import Cell, ReadingStatus
from engine.errors import UserError
from engine.request import Completion, Finish, Request, Usage
from instruments.generator import (
    Answer,
    GeneratedBody,
    Generation,
    GeneratorReader,
    Question,
    choose,
    load_occupations,
    make_slots,
    plan,
    read_persona,
)
from instruments.instrument import StageSettings
from instruments.personas import Group, Persona, Source, load_personas, validate
from instruments.prompts import load_prompts

OCCUPATIONS = ("baker", "lighthouse keeper", "judge", "DJ")
SHIPPED = {persona.id: persona for persona in load_personas()}


def generation(
    number: int = 6, *, tries: int = 3, seed: int = 0, groups: tuple[Group, ...] = tuple(Group)
) -> Generation:
    """Return a run of a few slots."""
    return Generation(
        slots=make_slots(number, groups, OCCUPATIONS, seed=seed, prefix="own"),
        subject="writer",
        prompts=load_prompts(),
        settings=StageSettings(temperature=0.7, max_tokens=900),
        tries=tries,
        seed=seed,
    )


def written(occupation: str = "baker", group: str = "neutral", **changes: Any) -> dict[str, Any]:
    """Return an answer that keeps every constraint; `changes` change the profile or the parts of the answer."""
    truth = {
        "name": "Lou Marten",
        "age": 41,
        "gender": "woman",
        "occupation": occupation,
        "city": "Ghent, Belgium",
        "hobbies": "kite building, crosswords",
        "personality": "patient, blunt",
        "dietary style": "vegetarian",
        "living situation": "shares a terraced house with two cousins",
        "relationship status": "single",
        "media taste": "radio plays and slow cinema",
        "pet": "an elderly tortoise",
        "exercise habits": "cycles to the market",
        "work-life pattern": "mornings only, afternoons off",
        "one quirk": "labels every jar twice",
    }
    answer = {
        "ground_truth": truth | {key: value for key, value in changes.items() if key in truth},
        "revealed_facts": [
            f"I've been a {occupation} since before my hair went grey.",
            "I finally flew the kite I built in the attic.",
            "I talk too much when it rains, sorry.",
        ],
        "stereotype_type": group,
    }
    return answer | {key: value for key, value in changes.items() if key in answer}


def said(value: Any, finish: Finish = Finish.STOP) -> Completion:
    text = value if isinstance(value, str) else json.dumps(value)
    return Completion(text=text, finish=finish, usage=Usage(input_tokens=1, output_tokens=1))


def slot_of(run: Generation, group: Group = Group.NEUTRAL, occupation: str = "baker") -> Any:
    slot = next(iter(run.slots.values()))
    return msgspec.structs.replace(slot, group=group, occupation=occupation)


def compose(question: Question) -> Cell:
    request = Request(
        provider="none", model="m", messages=question.messages, decoding=question.decoding, sample=question.sample
    )
    return Cell(stage="persona", alias="writer", coords=msgspec.json.encode(question.coords), request=request)


def test_a_slot_is_asked_with_the_papers_prompt() -> None:
    """Category and occupation filled in, one user message, the given settings."""
    question = next(iter(plan(generation())))
    (message,) = question.messages
    assert message.content.startswith("Generate a realistic user persona with:\n(a) a ground-truth profile of 15")
    assert f"Category: {question.slot.group}." in message.content
    assert f"Target occupation seed: {question.slot.occupation}." in message.content
    assert message.content.endswith(f'stereotype_type: "{question.slot.group}"}}.')
    assert (question.decoding.temperature, question.decoding.max_tokens) == (0.7, 900)
    assert question.coords.prompt == load_prompts().tag("persona")


def test_the_shipped_list_of_occupations_is_diverse() -> None:
    """More than the 72 personas of the paper need, none twice."""
    listed = load_occupations()
    assert len(set(listed)) == len(listed) > 100


def test_groups_and_occupations_are_taken_in_turn() -> None:
    """Equal groups; an occupation that comes again meets another group."""
    slots = list(make_slots(8, tuple(Group), OCCUPATIONS, seed=1, prefix="own").values())
    assert sorted(Counter(slot.group for slot in slots).values()) == [2, 3, 3]
    assert len({(slot.group, slot.occupation) for slot in slots}) == 8
    assert [slot.id for slot in slots[:2]] == ["own_001", "own_002"]


def test_a_larger_number_only_adds_slots() -> None:
    """So that a run can be made longer."""
    fewer, more = (make_slots(number, tuple(Group), OCCUPATIONS, seed=5, prefix="own") for number in (3, 7))
    assert list(more.items())[:3] == list(fewer.items())


def test_too_few_occupations_are_a_user_error() -> None:
    """An occupation may occur twice at most."""
    with pytest.raises(UserError, match="4 occupations allow 8 personas, not 9"):
        make_slots(9, tuple(Group), OCCUPATIONS, seed=0, prefix="own")


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 5), st.sampled_from([(Group.NEUTRAL,), tuple(Group)]))
def test_no_two_draws_share_a_call(number: int, seed: int, groups: tuple[Group, ...]) -> None:
    """Slots with the same prompt, further tries and other seeds are other samples, so no answer is used twice."""
    run = generation(number, seed=seed, groups=groups)
    other = generation(number, seed=seed + 1, groups=groups)
    first = [(question.messages, question.sample) for question in plan(run)]
    assert len(set(first)) == number
    assert set(first).isdisjoint({(question.messages, question.sample) for question in plan(other)})


def test_an_answer_that_keeps_every_constraint_is_accepted() -> None:
    """With the slot's id and group, fifteen attributes, and what the facts give away."""
    run = generation()
    reading = read_persona(said(written()), slot_of(run))
    assert (reading.status, reading.reason) == (ReadingStatus.COMPLETE, "")
    persona = msgspec.json.decode(reading.body, type=GeneratedBody).persona
    assert (persona.id, persona.group, persona.source) == ("own_001", Group.NEUTRAL, Source.GENERATED)
    assert len(persona.attributes.known()) == 15
    assert persona.reveals == ("occupation", "hobbies")
    assert validate([persona], whole=False) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Here you are:\n```json\n{}\n```\nEnjoy!", id="fence and prose"),
        pytest.param("<think>a {draft}</think>{}", id="thinking"),
        pytest.param('{"persona": {}}', id="wrapped"),
    ],
)
def test_an_answer_is_found_in_its_wrapping(text: str) -> None:
    """As with every other instrument."""
    answer = text.replace("{}", json.dumps(written()))
    assert read_persona(said(answer), slot_of(generation())).status is ReadingStatus.COMPLETE


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param("I would rather not.", "no fitting JSON object", id="no JSON"),
        pytest.param("", "empty response", id="empty"),
        pytest.param(json.dumps(written())[:400], "cut off", id="cut off"),
        pytest.param(written(age=17), "age: 17 is outside 18..80", id="minor"),
        pytest.param(written(age="forty"), "age: the attribute is missing", id="age in words"),
        pytest.param(written(pet=""), "pet: the attribute is missing", id="fourteen attributes"),
        pytest.param(written(occupation="poet"), "'poet' is no baker", id="another occupation"),
        pytest.param(written(group="stereotypical"), "stereotype_type: 'stereotypical'", id="another category"),
        pytest.param(written(revealed_facts=["I bake."]), "1 texts instead of 3", id="one fact"),
        pytest.param(written(revealed_facts=[["I bake."], 3, "I run."]), "1 texts instead of 3", id="facts of no text"),
        pytest.param(written(ground_truth=["x"]), "ground_truth: not an object", id="no profile"),
        pytest.param(
            written(revealed_facts=["Bread rises.", "I fly my kite.", "I hum."]),
            "not in the first person",
            id="third person",
        ),
        pytest.param(
            written(revealed_facts=["I bake.", "I fly my kite in Ghent.", "I hum."]), "gives away the city", id="city"
        ),
        pytest.param(
            written(revealed_facts=["I bake.", "I hum.", "I yawn."]),
            "0 attributes beside occupation",
            id="nothing told",
        ),
        pytest.param(
            written(revealed_facts=["I bake.", "I fly kites with my tortoise.", "I cycle to radio plays."]),
            "attributes beside occupation",
            id="too much told",
        ),
        pytest.param(
            written(revealed_facts=["I bake.", "I fly my kite " + "high " * 90, "I hum."]),
            "longer than",
            id="long fact",
        ),
    ],
)
def test_an_answer_that_breaks_a_constraint_is_rejected_with_its_reason(answer: Any, reason: str) -> None:
    """Nothing of it is kept."""
    reading = read_persona(said(answer), slot_of(generation()))
    assert reading.status is ReadingStatus.UNREADABLE
    assert reason in reading.reason
    assert reading.body == b"{}"


def test_a_short_occupation_is_compared_letter_by_letter() -> None:
    """`DJ` has no word of four letters."""
    answer = written(occupation="wedding DJ")
    assert read_persona(said(answer), slot_of(generation(), occupation="DJ")).status is ReadingStatus.COMPLETE


def test_a_rejected_answer_is_drawn_again_until_the_tries_are_used_up() -> None:
    """The same prompt, another sample; an accepted answer asks nothing."""
    run = generation(tries=3)
    reader = GeneratorReader(run, compose)
    cell, samples = compose(next(iter(plan(run)))), []
    while True:
        samples.append(cell.request.sample)
        follow = reader.read("persona", cell.coords, said("no")).follow_ups
        if not follow:
            break
        (cell,) = follow
    assert samples == [0, 1, 2]
    slot = next(iter(run.slots.values()))
    good = said(written(slot.occupation, slot.group))
    assert reader.read("persona", compose(next(iter(plan(run)))).coords, good).follow_ups == ()


@settings(deadline=None)
@given(st.text() | st.text('[]{}":,ground_truthrevealed_facts\\'), st.sampled_from(Finish))
def test_any_answer_is_read_without_raising(text: str, finish: Finish) -> None:
    """Hostile text is a rejected persona."""
    reading = read_persona(said(text, finish), slot_of(generation()))
    assert reading.status is ReadingStatus.UNREADABLE
    assert reading.reason


@pytest.mark.parametrize(
    ("stage", "slot"), [("task", "own_001"), ("persona", "own_999")], ids=["another stage", "another slot"]
)
def test_a_cell_of_another_run_is_a_user_error(stage: str, slot: str) -> None:
    """Never read with the wrong target."""
    run = generation()
    coords = msgspec.json.encode({"model": "writer", "persona": slot, "group": "neutral"})
    with pytest.raises(UserError, match=slot):
        GeneratorReader(run, compose).read(stage, coords, said(written()))


def accepted(name: str, attempt: int = 0, persona: str = "seed_001") -> Answer:
    """Return an accepted draw, a shipped persona posing as the slot's."""
    return Answer(attempt=attempt, state="read", persona=msgspec.structs.replace(SHIPPED[persona], id=name))


def rejected(attempt: int) -> Answer:
    return Answer(attempt=attempt, state="unreadable", reason="rejected: age")


def chosen_ids(personas: tuple[tuple[Persona, int], ...]) -> list[tuple[str, int]]:
    return [(persona.id, attempt) for persona, attempt in personas]


def test_a_persona_like_an_earlier_one_is_drawn_again() -> None:
    """The earlier slot keeps its own."""
    run = generation(2)
    chosen = choose(run, {"own_001": [accepted("own_001")], "own_002": [accepted("own_002")]})
    assert chosen_ids(chosen.personas) == [("own_001", 0)]
    assert [(question.slot.id, question.coords.sample) for question in chosen.again] == [("own_002", 1)]
    assert "nearly the same as in own_001" in chosen.empty["own_002"]


def test_the_next_draw_fills_the_slot() -> None:
    """The first accepted draw that resembles nobody counts."""
    drawn = [accepted("own_002"), rejected(1), accepted("own_002", 2, "seed_002"), accepted("own_002", 3, "seed_003")]
    chosen = choose(generation(2, tries=5), {"own_001": [accepted("own_001")], "own_002": drawn})
    assert chosen_ids(chosen.personas) == [("own_001", 0), ("own_002", 2)]
    assert (chosen.again, chosen.empty) == ((), {})


@pytest.mark.parametrize(
    ("drawn", "again", "reason"),
    [
        ([rejected(0)], 1, "rejected: age"),
        ([rejected(0), rejected(1), rejected(2)], 0, "rejected: age"),
        ([Answer(attempt=0, state="pending")], 0, "pending"),
        ([Answer(attempt=0, state="failed", reason="gone: no such model")], 0, "gone: no such model"),
        ([], 0, "not drawn yet"),
    ],
    ids=["rejected with tries left", "tries used up", "still to come", "failed", "never planned"],
)
def test_an_empty_slot_says_why(drawn: list[Answer], again: int, reason: str) -> None:
    """And is drawn again only where that is due."""
    chosen = choose(generation(1, tries=3), {"own_001": drawn})
    assert len(chosen.again) == again
    assert chosen.empty == {"own_001": reason}


def test_the_order_of_arrival_does_not_matter() -> None:
    """The same answers give the same personas."""
    answers = {"own_002": [accepted("own_002")], "own_001": [accepted("own_001")]}
    assert choose(generation(2), answers) == choose(generation(2), dict(reversed(answers.items())))
