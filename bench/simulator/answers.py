"""What the simulated models say to a prompt. Pure: the same model, words, seed and draw give the same answer.

A model under test answers from its own part of the population. Any model can be the judge: it looks the claims of the
response up, and labels by hash what it does not know. Unknown model names speak as one of the twelve, chosen by hash.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec
import orjson

from bench.simulator.cast import Cast
from bench.simulator.memory import Step, steps, update
from bench.simulator.phrases import Phrases
from bench.simulator.population import Accuracy, Label, Population
from bench.simulator.recognise import AccumAsk, Ask, AuditAsk, JudgeAsk, OtherAsk, ProbeAsk, TaskAsk, recognise
from bench.simulator.tables import Labels

# Distinctive parts of model names, lower case, by the paper's model (Table 9 and the names that providers list).
NAMES: Final[Mapping[str, str]] = {
    "qwen3-8b": "Qwen3-8B",
    "deepseek-v4-pro": "DeepSeek-v4-pro",
    "gpt-4o-mini": "GPT-4o-mini",
    "deepseek-v4-flash": "DeepSeek-v4-flash",
    "deepseek-flash": "DeepSeek-v4-flash",
    "qwen3.6-plus": "Qwen3.6-plus",
    "kimi-k2.5": "Kimi-K2.5",
    "kimi-k2.6": "Kimi-K2.5",
    "moonshot-v1-k2.5": "Kimi-K2.5",
    "gemini-3-flash": "Gemini-3-flash",
    "glm-5.1": "GLM-5.1",
    "gpt-5.5": "GPT-5.5",
    "gpt-5.4-nano": "GPT-5.4-nano",
    "claude-opus-4-6": "Claude-Opus-4-6",
    "gemini-3.1-pro": "Gemini-3.1-pro",
}
STAGES: Final[Mapping[type, str]] = {
    TaskAsk: "task",
    ProbeAsk: "probe",
    JudgeAsk: "judge",
    AuditAsk: "audit",
    AccumAsk: "accum",
    OtherAsk: "other",
}
REASONS: Final = (
    "Stated in the evidence.",
    "One step from the evidence.",
    "A common association, no evidence.",
    "Nothing in the evidence supports it.",
)
UNREADABLE_AUDIT: Final = (
    "Looking back at what I wrote, most of it follows from what the user told me, and a few touches are mine. "
    "I would rather not sort it into separate boxes, since the parts hang together."
)
NOTED: Final = "Noted. This is a simulated answer without further meaning"
FENCED_ONE_IN: Final = 4
SENTENCE: Final = re.compile(r"[^.!?\n]{12,}[.!?]")
MOST_UNKNOWN_CLAIMS: Final = 30


class Spoken(msgspec.Struct, frozen=True):
    """An answer: its text, or the list or object of which the text is JSON, and the stage that it was recognised as."""

    stage: str
    text: str = ""
    items: list[dict[str, str]] | None = None
    fields: dict[str, list[str]] | None = None
    fenced: bool = False


class Shape(msgspec.Struct, frozen=True):
    """What a schema asks of a JSON answer: a list must stand under `wrap` if that is not empty."""

    wrap: str = ""


class Speaker:
    """Answers prompts for all simulated models."""

    def __init__(
        self, population: Population, cast: Cast, phrases: Phrases, *, disagreement: Mapping[str, float] | None = None
    ) -> None:
        self._population, self._cast, self._phrases = population, cast, phrases
        self._disagreement = disagreement or {}
        self._subjects: dict[str, int] = {}
        self._steps: dict[tuple[int, int], tuple[Step, ...]] = {}

    def subject(self, model: str) -> int:
        """Return the place in `Population.models` of the model that a provider's model name stands for."""
        found = self._subjects.get(model)
        if found is None:
            name = next((known for part, known in NAMES.items() if part in model.lower()), None)
            known = self._population.models
            found = known.index(name) if name in known else _number(model) % len(known)
            self._subjects[model] = found
        return found

    def say(self, model: str, system: str, user: str, draw: Callable[[], int] = int) -> Spoken:
        """Return the answer of `model` to a prompt; `draw` tells how often a task was answered before."""
        return self._answer(model, recognise(system, user), draw)

    def stage(self, system: str, user: str) -> str:
        """Return the stage of the benchmark that a prompt belongs to."""
        return STAGES[type(recognise(system, user))]

    def _answer(self, model: str, ask: Ask, draw: Callable[[], int]) -> Spoken:
        match ask:
            case TaskAsk():
                return self._task(self.subject(model), ask, draw())
            case JudgeAsk():
                return self._judge(model, ask)
            case AuditAsk():
                return self._audit(ask)
            case ProbeAsk():
                return self._probe(self.subject(model), ask)
            case AccumAsk():
                return self._accum(self.subject(model), ask)
            case OtherAsk():
                return Spoken("other", f"{NOTED} ({_number(model + ask.text):016x}).")

    def _task(self, subject: int, ask: TaskAsk, draw: int) -> Spoken:
        task = self._population.tasks.index(ask.task)
        claims = self._population.task_claims(subject, self._cast.slot(ask.facts), task, draw)
        openings, closings = self._phrases.openings[ask.task], self._phrases.closings
        lines = [
            f"{position}. {self._phrases.claim(ask.task, number, position)}"
            for position, number in enumerate(claims, 1)
        ]
        text = "\n".join([openings[claims.start % len(openings)], *lines, closings[claims.start % len(closings)]])
        return Spoken("task", text.rstrip())

    def _judge(self, model: str, ask: JudgeAsk) -> Spoken:
        known = list(self._phrases.find(ask.response))
        rows = [self._verdict(model, number, text) for number, text in known] or list(_unknown_claims(ask.response))
        items = [
            {"claim": text, "category": label.name, "accuracy": accuracy.name, "reasoning": REASONS[label]}
            for text, label, accuracy in rows
        ]
        return Spoken("judge", items=items, fenced=bool(known) and known[0][0] % FENCED_ONE_IN == 0)

    def _verdict(self, model: str, number: int, text: str) -> tuple[str, Label, Accuracy]:
        if number >= len(self._population):
            return text, *_guess(text)
        claim = self._population.claim(number)
        share = self._disagreement.get(model, 0.0)
        if share and _number(f"{model}/{number}") / 2**64 < share:
            return text, _neighbour(claim.label), claim.accuracy
        return text, claim.label, claim.accuracy

    def _audit(self, ask: AuditAsk) -> Spoken:
        first = self._phrases.first(ask.response)
        record = self._population.record_of(first) if first is not None and first < len(self._population) else None
        labels = self._population.audit(*record) if record else _count_sentences(ask.response)
        if labels is None:
            return Spoken("audit", UNREADABLE_AUDIT)
        kind = self._population.tasks[record[2]] if record else "probe"
        fenced = (first or 0) % FENCED_ONE_IN == 1
        return Spoken("audit", items=list(self._own_labels(labels, kind)), fenced=fenced)

    def _own_labels(self, labels: Labels, kind: str) -> Iterator[dict[str, str]]:
        stems = self._phrases.stems[kind]
        position = 0
        for label, number in zip(Label, msgspec.structs.astuple(labels), strict=True):
            for _ in range(number):
                text = f"{stems[position % len(stems)]} ({position + 1})"
                yield {"claim": text, "category": label.name, "reasoning": REASONS[label]}
                position += 1

    def _probe(self, subject: int, ask: ProbeAsk) -> Spoken:
        items = []
        for position, number in enumerate(self._population.probe_claims(subject, self._cast.slot(ask.facts)), 1):
            stated = self._population.claim(number).label is Label.GROUNDED
            kind = "directly_stated" if stated else "inferred"
            text = self._phrases.claim("probe", number, position)
            items.append({"claim": text, "type": kind, "reasoning": "It follows from the facts."})
        return Spoken("probe", items=items)

    def _accum(self, subject: int, ask: AccumAsk) -> Spoken:
        variant = self._cast.variant("\n".join(next(iter(ask.memory.values()), [])), ask.utterance)
        key = (subject, variant)
        if key not in self._steps:
            path = self._population.counts.accum[self._population.models[subject]][variant]
            self._steps[key] = steps(path, self._phrases, subject * 2 + variant)
        known = self._steps[key]
        step = known[ask.round - 1] if 0 < ask.round <= len(known) else None
        return Spoken("accum", fields=update(ask.memory, ask.utterance, step))


def render(spoken: Spoken, shape: Shape | None) -> str:
    """Return the text of an answer; a schema's shape rules out fences."""
    if spoken.text:
        return spoken.text
    if spoken.fields is not None:
        return orjson.dumps(spoken.fields).decode()
    if shape is not None and shape.wrap:
        return orjson.dumps({shape.wrap: spoken.items}).decode()
    text = orjson.dumps(spoken.items).decode()
    return f"```json\n{text}\n```" if spoken.fenced and shape is None else text


def _unknown_claims(text: str) -> Iterator[tuple[str, Label, Accuracy]]:
    """Yield a verdict for every sentence of a text that no simulated model said."""
    for match in list(SENTENCE.finditer(text))[:MOST_UNKNOWN_CLAIMS]:
        yield match[0].strip(), *_guess(match[0])


def _count_sentences(text: str) -> Labels:
    labels = [label for _, label, _ in _unknown_claims(text)]
    return Labels(*(labels.count(label) for label in Label))


def _guess(text: str) -> tuple[Label, Accuracy]:
    drawn = _number(text)
    return Label(drawn % len(Label)), Accuracy(drawn // len(Label) % len(Accuracy))


def _neighbour(label: Label) -> Label:
    """Return the label that a second judge gives instead: the one a step away, as most disagreements are."""
    return Label(label - 1) if label is Label.FABRICATED else Label(label + 1)


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
