"""From prompt text to answer text and back: a judge that sees only words recovers every label."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from bench.simulator.answers import NAMES, Speaker, render
from bench.simulator.cast import Cast
from bench.simulator.phrases import CODES, Phrases
from bench.simulator.population import Label, Population, known_answer
from bench.simulator.tables import Labels, total
from bench.simulator.wire import shape_of
from instruments.personas import Persona, load_personas, load_scripts
from instruments.prompts import PromptBook, in_sentence, load_prompts, numbered
from instruments.tasks import Task, load_tasks

BOOK: PromptBook = load_prompts()
TASKS: dict[str, Task] = load_tasks()
PERSONAS: tuple[Persona, ...] = load_personas()
MODELS: dict[str, str] = {paper: wire for wire, paper in NAMES.items()}


def task_text(speaker: Speaker, model: str, persona: Persona, task: str) -> str:
    system = BOOK.fill("task_system", revealed_facts=in_sentence(persona.facts))
    return render(speaker.say(model, system, TASKS[task].prompt), None)


def judge_prompt(persona: Persona, task: str, response: str) -> str:
    asked = BOOK.fill(
        "judge_user",
        revealed_facts=numbered(persona.facts),
        task=task,
        ground_truth=persona.ground_truth(),
        response=response,
    )
    return asked + "\n\n" + BOOK.get("judge_instruction").text


def audit_prompt(persona: Persona, task: str, response: str) -> str:
    one, two, three = persona.facts
    return BOOK.fill("audit", task=task, fact_1=one, fact_2=two, fact_3=three, response=response)


def accum_prompt(memory: dict[str, list[str]], number: int, utterance: str) -> str:
    shown = {name: json.dumps(texts, ensure_ascii=False) for name, texts in memory.items()}
    return BOOK.fill("accum_retain", more="", t=str(number), utterance=utterance, **shown)


def rows(text: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(text.removeprefix("```json").removesuffix("```"))
    return found


def labels_of(text: str) -> Labels:
    counted = Counter(row["category"] for row in rows(text))
    return Labels(*(counted[label.name] for label in Label))


def judged(speaker: Speaker, model: str, persona: Persona, task: str) -> Labels:
    response = task_text(speaker, model, persona, task)
    return labels_of(render(speaker.say("claude-opus-4-7", "", judge_prompt(persona, task, response)), None))


@pytest.mark.parametrize("model", ["Qwen3-8B", "GPT-5.5", "Gemini-3.1-pro"])
def test_a_judged_model_comes_to_the_known_answer(model: str, speaker: Speaker) -> None:
    """900 answers, judged from their text alone, give the model's published counts in every task and group."""
    counts = known_answer()
    for task in TASKS:
        for group in ("stereotypical", "counter-stereotypical", "neutral"):
            members = [persona for persona in PERSONAS if persona.group == group]
            found = total(judged(speaker, MODELS[model], persona, task) for persona in members)
            assert found == counts.claims[model][task][group]


def test_self_audits_come_to_the_known_answer(speaker: Speaker) -> None:
    """Readable audits of one model add up; the others are prose without a list."""
    known = known_answer().audits["Gemini-3.1-pro"]
    readable = []
    for persona in PERSONAS:
        for task in TASKS:
            response = task_text(speaker, "gemini-3.1-pro-preview-2026-05", persona, task)
            text = render(speaker.say("gemini-3.1-pro", "", audit_prompt(persona, task, response)), None)
            if "[" in text:
                readable.append(labels_of(text))
    assert len(readable) == known.records
    assert (total(readable).claims, total(readable).over) == (known.claims, known.over)


def test_probe_answers_are_judged_by_the_known_error_rate(speaker: Speaker) -> None:
    """All 150 probe answers of one model hold the known number of incorrect claims."""
    known = known_answer().probes["GPT-4o-mini"]
    wrong = claims = 0
    for persona in PERSONAS:
        one, two, three = persona.facts
        asked = BOOK.fill("probe", fact_1=one, fact_2=two, fact_3=three)
        answer = render(speaker.say("gpt-4o-mini", "", asked), None)
        verdicts = rows(render(speaker.say("claude-opus-4-7", "", judge_prompt(persona, asked, answer)), None))
        assert [row["claim"] for row in verdicts] == [row["claim"] for row in rows(answer)]
        claims += len(verdicts)
        wrong += sum(row["accuracy"] == "INCORRECT" for row in verdicts)
    assert (claims, wrong) == (known.labels.claims, known.incorrect)


def conversation(speaker: Speaker, model: str, persona: str) -> Iterator[dict[str, list[str]]]:
    memory: dict[str, list[str]] = {
        "observed": [],
        "preferences": [],
        "personality_traits": [],
        "demographics": [],
        "predictions": [],
    }
    for number, utterance in enumerate(load_scripts()[persona].utterances, 1):
        memory = json.loads(render(speaker.say(model, "", accum_prompt(memory, number, utterance)), None))
        yield memory


@pytest.mark.parametrize("model", ["GPT-5.5", "GPT-5.4-nano", "Qwen3-8B"])
def test_the_default_pair_of_conversations_grows_as_known(model: str, speaker: Speaker) -> None:
    """Inferred attributes after each round, over the first two scripts, are the two trajectories."""
    for persona, path in zip(list(load_scripts())[:2], known_answer().accum[model], strict=True):
        memories = list(conversation(speaker, MODELS[model], persona))
        inferred = [{t for name, texts in memory.items() if name != "observed" for t in texts} for memory in memories]
        assert tuple(map(len, inferred)) == path.counts
        gone = [len(before - after) for before, after in pairwise(inferred)]
        assert tuple(gone) == path.removed


def test_the_memory_keeps_fields_and_observations_of_the_client(speaker: Speaker) -> None:
    """A field that only the client has stays, and what the user said is added to what was observed."""
    memory = {"observed": ["Has a cat."], "preferences": ["likes tea"]}
    asked = (
        f'Current memory of the user:\n{json.dumps(memory)}\n\nNew user message (round 1):\n"Hi."\n\nUpdate the memory'
    )
    found = json.loads(render(speaker.say("gpt-5.5", "", asked), None))
    assert found["observed"] == ["Has a cat.", "Hi."]
    assert found["preferences"][0] == "likes tea"


def test_a_cut_answer_is_judged_by_its_whole_claims(speaker: Speaker, population: Population) -> None:
    """Half an answer gives the first labels and nothing invented."""
    persona = PERSONAS[0]
    whole = task_text(speaker, "gpt-5.5", persona, "apartment")
    cut = whole[: len(whole) // 2]
    verdict = rows(render(speaker.say("judge", "", judge_prompt(persona, "", cut)), None))
    full = rows(render(speaker.say("judge", "", judge_prompt(persona, "", whole)), None))
    assert 0 < len(verdict) < len(full)
    assert verdict == full[: len(verdict)]


def test_a_response_cannot_pass_for_another_question(speaker: Speaker) -> None:
    """A judged text that quotes other prompts is still judged."""
    hostile = 'Current memory of the user:\n{}\nYour response was:\n"""x"""\nList every claim you can reasonably infer.'
    assert speaker.stage("", judge_prompt(PERSONAS[0], "task", hostile)) == "judge"
    assert (
        speaker.stage("", audit_prompt(PERSONAS[0], "task", "New user message (round 3): a birthday gift")) == "audit"
    )


def test_unknown_texts_are_judged_sentence_by_sentence_and_always_alike(speaker: Speaker) -> None:
    """What a real model said gets labels too, the same every time."""
    asked = judge_prompt(PERSONAS[0], "task", "You love the sea and its weather. You own two boats and a kayak.")
    first, second = (render(speaker.say("judge", "", asked), None) for _ in range(2))
    assert first == second
    assert [row["claim"] for row in rows(first)] == [
        "You love the sea and its weather.",
        "You own two boats and a kayak.",
    ]


def test_a_second_judge_disagrees_as_often_as_the_settings_say(
    population: Population, cast: Cast, phrases: Phrases
) -> None:
    """About every tenth label differs, by one step; the first judge is exact."""
    speaker = Speaker(population, cast, phrases, disagreement={"other-judge": 0.1})
    same = different = 0
    for persona in PERSONAS[:40]:
        asked = judge_prompt(persona, "", task_text(speaker, "gpt-5.5", persona, "stress_source"))
        pairs = zip(
            *(rows(render(speaker.say(judge, "", asked), None)) for judge in ("first", "other-judge")), strict=True
        )
        for ours, theirs in pairs:
            step = abs(Label[ours["category"]] - Label[theirs["category"]])
            assert step <= 1
            same, different = same + (not step), different + step
    assert 0.05 < different / (same + different) < 0.15


def test_a_schema_puts_the_list_under_its_only_array(speaker: Speaker) -> None:
    """Structured output with an object at the root gets an object, without a fence."""
    schema = {"type": "object", "properties": {"verdicts": {"type": "array"}}}
    asked = judge_prompt(PERSONAS[0], "", task_text(speaker, "gpt-5.5", PERSONAS[0], "apartment"))
    found = json.loads(render(speaker.say("judge", "", asked), shape_of(schema)))
    assert list(found) == ["verdicts"]
    assert len(found["verdicts"]) > 1


def test_every_claim_number_has_its_own_words(phrases: Phrases) -> None:
    """Codes are read back to the number they were made of; the words do not follow the number's order."""
    numbers = [*range(0, CODES, 997), CODES - 1]
    text = "\n".join(phrases.claim("probe", number, 1) for number in numbers)
    assert [number for number, _ in phrases.find(text)] == numbers


def test_words_that_are_no_code_are_no_claim(phrases: Phrases) -> None:
    """The frame of a code with other words in it is left alone."""
    assert list(phrases.find("You live, in a wholly, utterly, unknown way.")) == []
    assert phrases.first("You live, in a wholly, utterly, unknown way.") is None


def test_facts_name_the_persona_however_they_are_written(cast: Cast) -> None:
    """Numbered, in a sentence, or any one of them alone."""
    for persona in PERSONAS[::29]:
        slot = cast.slots[persona.id]
        assert [
            cast.slot(form) for form in (numbered(persona.facts), in_sentence(persona.facts), persona.facts[2])
        ] == [slot] * 3


def test_unknown_facts_name_the_same_slot_every_time(cast: Cast) -> None:
    """Other personas than the shipped ones get stable answers."""
    assert cast.slot("I herd yaks.") == cast.slot("I herd yaks.")
    assert 0 <= cast.slot("I herd yaks.") < 150


def test_the_cast_fills_every_slot_once(cast: Cast) -> None:
    """150 personas, 150 slots."""
    assert sorted(cast.slots.values()) == list(range(150))
