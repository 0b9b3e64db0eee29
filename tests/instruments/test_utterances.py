"""The shipped conversations fit their personas, and broken ones are named with a way to mend them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from instruments.personas import ROUNDS, PersonaError, Script, Source, load_personas, load_scripts, validate_scripts

PERSONAS = load_personas()
BY_ID = {persona.id: persona for persona in PERSONAS}
SCRIPTS = load_scripts()
MESSAGES = tuple(f"I saw bird number {number} today." for number in range(1, ROUNDS + 1))


def as_toml(persona: str, messages: tuple[str, ...] = MESSAGES, extra: str = "") -> str:
    """Write one script in the format of the shipped file."""
    return f"[[script]]\npersona = {json.dumps(persona)}\nutterances = {json.dumps(messages)}\n{extra}\n"


def one(persona: str = "seed_001", messages: tuple[str, ...] = MESSAGES) -> Mapping[str, Script]:
    """Return a set of one script."""
    return {persona: Script(persona=persona, utterances=messages)}  # type: ignore[arg-type]


def test_at_least_ten_personas_have_a_conversation() -> None:
    """More than the paper's two, so that accumulation can be measured with a spread."""
    assert len(SCRIPTS) >= 10


def test_the_default_pair_leads_with_the_first_seed() -> None:
    """The first two scripts are one stereotypical and one counter-stereotypical persona, both overturning a guess."""
    first, second = tuple(SCRIPTS.values())[:2]
    assert first.persona == "seed_001"
    assert BY_ID[first.persona].group is not BY_ID[second.persona].group
    assert first.contradiction is not None
    assert first.contradiction.round in (7, 8)


def test_at_least_four_conversations_overturn_an_early_inference() -> None:
    """Revision can only be seen where there is something to revise."""
    late = [script for script in SCRIPTS.values() if script.contradiction and script.contradiction.round >= 7]
    assert len(late) >= 4


def test_the_shipped_conversations_have_no_problem() -> None:
    """Every script belongs to a shipped persona and says eight different things."""
    assert [str(problem) for problem in validate_scripts(SCRIPTS, PERSONAS)] == []


def test_only_our_own_personas_speak() -> None:
    """Imported personas can be replaced by a user, so no shipped script depends on one."""
    assert Source.IMPORTED not in {BY_ID[name].source for name in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_messages_are_short_and_do_not_repeat_the_facts(script: Script) -> None:
    """A message reveals little: at most forty words, never one of the three facts."""
    assert max(len(text.split()) for text in script.utterances) <= 40
    assert set(script.utterances).isdisjoint(BY_ID[script.persona].facts)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_messages_tell_neither_name_nor_city(script: Script) -> None:
    """Name and city stay unsaid to the end, so that a memory that holds them has made them up."""
    attributes = BY_ID[script.persona].attributes
    text = " ".join(script.utterances)
    proper = [word.strip(",") for word in f"{attributes.name} {attributes.city}".split() if word[0].isupper()]
    assert [word for word in proper if word in text.split()] == []


def test_scripts_cannot_be_changed_by_those_who_read_them() -> None:
    """The mapping is a read-only view."""
    with pytest.raises(TypeError):
        SCRIPTS["seed_001"] = SCRIPTS["seed_006"]  # type: ignore[index]


def test_a_contradiction_is_read_from_the_file(tmp_path: Path) -> None:
    """Round and overturned inference come back as written."""
    path = tmp_path / "mine.toml"
    path.write_text(as_toml("seed_002", extra='contradiction = { round = 8, contradicts = "hates birds" }'), "utf-8")
    contradiction = load_scripts(path)["seed_002"].contradiction
    assert contradiction is not None
    assert (contradiction.round, contradiction.contradicts) == (8, "hates birds")


@pytest.mark.parametrize(
    ("scripts", "field"),
    [
        pytest.param(one("nobody"), "persona", id="unknown persona"),
        pytest.param(one(messages=(*MESSAGES[:7], " ")), "utterances", id="blank message"),
        pytest.param(one(messages=(*MESSAGES[:7], MESSAGES[0].upper())), "utterances", id="said twice"),
        pytest.param(one(messages=tuple(f"Birds: {n}." for n in range(ROUNDS))), "utterances", id="nobody speaks"),
    ],
)
def test_a_broken_conversation_gives_a_problem_at_that_field(scripts: Mapping[str, Script], field: str) -> None:
    """Each rule is found, and nothing else is reported."""
    assert [problem.field for problem in validate_scripts(scripts, PERSONAS)] == [field]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (as_toml("seed_001", MESSAGES[:7]), "utterances"),
        (as_toml("seed_001", extra='contradiction = { round = 9, contradicts = "x" }'), "contradiction.round"),
        (as_toml("seed_001", extra='contradiction = { round = 1, contradicts = "x" }'), "contradiction.round"),
        (as_toml("seed_001", extra='contradiction = { round = 7, contradicts = "" }'), "contradiction.contradicts"),
        (as_toml("seed_001", extra='mood = "good"'), "mood"),
    ],
    ids=["seven messages", "round too late", "round too early", "nothing contradicted", "unknown field"],
)
def test_a_malformed_script_is_named_with_its_field(tmp_path: Path, text: str, field: str) -> None:
    """The error is one line with file, persona, field and mend."""
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PersonaError) as caught:
        load_scripts(path)
    message = str(caught.value)
    assert all(part in message for part in ("bad.toml", "persona seed_001", f"field {field}", "; "))
    assert "\n" not in message


def test_two_scripts_for_one_persona_are_refused(tmp_path: Path) -> None:
    """Neither of them is silently dropped."""
    path = tmp_path / "twice.toml"
    path.write_text(as_toml("seed_001") * 2, encoding="utf-8")
    with pytest.raises(PersonaError, match=r"two scripts .*twice\.toml, persona seed_001.*keep one"):
        load_scripts(path)
