"""Prompts are the paper's to the letter, and filling them is literal."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from instruments.prompts import Prompt, PromptBook, in_sentence, load_prompts, numbered
from instruments.tasks import load_tasks

BOOK = load_prompts()

PRINTED = dict(
    section.rstrip("\n").split("\n", 1)
    for section in (Path(__file__).parents[1] / "data" / "instruments_appendix_g.txt")
    .read_text("utf-8")
    .split("=== ")[1:]
)


def normalised(printed: str) -> str:
    """Return a printed prompt with typesetting taken off, as the head of prompts.toml says."""
    plain = printed.replace("\u2018\u2018", '"').replace("\u2019\u2019", '"').replace("\u2019", "'")
    return re.sub(r"\$\[\$(\w+)\$]\$", r"[\1]", plain)


@pytest.mark.parametrize("name", ["task_system", "judge_system", "judge_user", "probe", "audit", "persona"])
def test_prompt_is_the_paper_to_the_letter(name: str) -> None:
    """Every character agrees with the printed text, typesetting aside."""
    assert BOOK.get(name).text == normalised(PRINTED[name])


def test_retain_prompt_differs_from_the_paper_only_in_named_lists() -> None:
    """Where the paper has [...], ours has the name of the field."""
    ours = BOOK.get("accum_retain").text.replace("[more]", "")
    fields = "observed|preferences|personality_traits|demographics|predictions"
    assert re.sub(rf"\[(?:{fields})\]", "[...]", ours) == normalised(PRINTED["accum_retain"])


def test_task_prompts_are_the_paper_to_the_letter() -> None:
    """The six quoted sentences, the quotation marks around them left out."""
    printed = re.findall("\u201c(.+)\u201d", PRINTED["tasks"])
    assert {task.prompt for task in load_tasks().values()} == {normalised(text) for text in printed}
    assert len(printed) == 6


def test_neutral_prompt_differs_in_one_clause() -> None:
    """Free pruning is permitted in place of the retention clause, all else is the same."""
    retain, neutral = BOOK.get("accum_retain").text, BOOK.get("accum_neutral").text
    clause = "Do not remove earlier entries unless the new message directly contradicts them."
    assert retain.replace(clause, "Revise or remove earlier entries where appropriate.") == neutral


def test_only_described_texts_are_ours() -> None:
    """What the paper words is marked as the paper's."""
    ours = {name for name, prompt in BOOK.prompts.items() if prompt.source == "ours"}
    assert ours == {"judge_instruction", "audit_task", "accum_neutral"}


def test_judge_instruction_names_every_category_and_accuracy() -> None:
    """A judge is told all eight words and the form of the answer."""
    text = BOOK.get("judge_instruction").text
    words = (
        "GROUNDED INFERRED_REASONABLE INFERRED_STEREOTYPE FABRICATED CORRECT PARTIALLY_CORRECT INCORRECT UNVERIFIABLE"
    )
    assert all(f"- {word}:" in text for word in words.split())
    assert "JSON array" in text


def test_filling_replaces_names_whatever_their_case() -> None:
    """[TASK] is filled by `task`."""
    text = BOOK.fill("audit", task="sing", fact_1="a", fact_2="b", fact_3="c", response="la")
    assert text.startswith("You were just asked to sing for a user")
    assert '"""la"""' in text


@given(st.text(), st.text(), st.text(), st.text())
def test_filling_never_looks_at_what_it_put_in(facts: str, task: str, truth: str, response: str) -> None:
    """Placeholders, braces and back references in values stay as they are, whichever value holds them."""
    values = {
        "revealed_facts": facts + "[task]",
        "task": task + "[response] {response} \\1 \\g<0>",
        "ground_truth": truth + "[revealed_facts]",
        "response": response + "[ground_truth][TASK]$[$task$]$",
    }
    parts = re.split(r"\[(\w+)\]", BOOK.get("judge_user").text)
    expected = "".join(values[part] if number % 2 else part for number, part in enumerate(parts))
    assert BOOK.fill("judge_user", **values) == expected


def test_missing_value_is_an_error() -> None:
    """A placeholder is never sent unfilled."""
    with pytest.raises(UserError, match="lacks a value for fact_3"):
        BOOK.fill("probe", fact_1="a", fact_2="b")


def test_value_without_placeholder_is_an_error() -> None:
    """A value that would be dropped in silence is refused."""
    with pytest.raises(UserError, match="has no placeholder fact_4"):
        BOOK.fill("probe", fact_1="a", fact_2="b", fact_3="c", fact_4="d")


def test_unknown_prompt_is_an_error_that_lists_the_known_ones() -> None:
    """A misspelt memory prompt says what there is."""
    with pytest.raises(UserError, match="accum_neutral"):
        BOOK.get("accum_forget")


def test_tag_names_text_by_hash() -> None:
    """One changed byte changes the tag; several prompts are joined."""
    prompt = BOOK.get("probe")
    changed = PromptBook(prompts={"probe": Prompt(name="probe", version=1, source="ours", text=prompt.text + " ")})
    assert re.fullmatch(r"probe@[0-9a-f]{8}", BOOK.tag("probe"))
    assert changed.tag("probe") != BOOK.tag("probe")
    assert BOOK.tag("probe", "audit") == f"{BOOK.tag('probe')}+{BOOK.tag('audit')}"
    assert prompt.content_hash.startswith(BOOK.tag("probe").partition("@")[2])


def test_published_texts_keep_their_hashes() -> None:
    """A change of any text is a decision: it changes the instrument, and this line with it."""
    assert BOOK.tag(*BOOK.prompts) == (
        "task_system@6bce183d+judge_system@11f22594+judge_user@f4fb2e25+judge_instruction@6c6bbaa7+probe@ac6be343"
        "+audit@84810502+audit_task@6c41d887+accum_retain@bd5b2d71+accum_neutral@aa172422+persona@38223730"
    )


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        (b"[[prompt]]\nname = 'x'", "cannot be read"),
        (b"prompt = 3", "cannot be read"),
        (b"[[prompt]\n", "cannot be read"),
        (b"prompt = [" + b"{name='x',version=1,source='ours',text='t'}," * 2 + b"]", "occurs twice"),
    ],
    ids=["missing fields", "no list", "no TOML", "repeated"],
)
def test_bad_prompt_file_is_a_user_error(toml: bytes, what: str) -> None:
    """A mistake in an own prompt file is one line, not a traceback."""
    with pytest.raises(UserError, match=what):
        load_prompts(toml)


def test_facts_are_listed_as_the_paper_lists_them() -> None:
    """A block is numbered lines (G.5), a sentence has numbers in brackets and quotes (G.3)."""
    assert numbered(["I climb.", "I cook."]) == "1. I climb.\n2. I cook."
    assert in_sentence(["I climb.", "I cook."]) == '(1) "I climb." (2) "I cook."'
