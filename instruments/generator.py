"""Personas written by a model with the paper's prompt (G.8): what is asked, accepted, and asked again. Pure.

A run has slots, each with a target group and a target occupation. An answer that keeps every constraint of the paper
and of `personas.validate` fills its slot; any other is rejected with its reason and the slot is drawn again, a bounded
number of times. Whether two accepted personas resemble each other can only be seen from all of them: `choose` looks at
the slots in order, so that the same answers always give the same personas, and says which slots to draw again.

What the facts give away is found by words that they share with the profile: a screen, not a judgement.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.resources import files
from typing import Final

import msgspec

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.errors import UserError
from engine.request import Completion, Decoding, Message, Role, chat
from instruments.answers import blocked, plain_key, unreadable, with_finish
from instruments.instrument import Coords, StageSettings
from instruments.lenient import Json
from instruments.modeljson import find_object, sound
from instruments.personas import MAX_PER_OCCUPATION, Attributes, Crowd, Group, Persona, Source, validate
from instruments.profile import disclosed, read_profile, stems
from instruments.prompts import PromptBook

STAGE: Final = "persona"
PROMPT: Final = "persona"
VERSION: Final = 1
FACTS: Final = 3
MAX_FACT: Final = 400
MOST_TRIES: Final = 50
_REASON: Final = 300
_REPETITIONS: Final = 10  # more than an occupation may occur
_GROUNDS: Final = frozenset({"groundtruth", "groundtruthprofile", "profile"})
_FACTS: Final = frozenset({"revealedfacts", "facts"})
_TYPES: Final = frozenset({"stereotypetype", "category"})
_coords = msgspec.json.Decoder(Coords)


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One persona to be written.

    Attributes:
        number: 0-based place among the slots.
        repetition: how many earlier slots have the same group and occupation.
    """

    id: str
    number: int
    group: Group
    occupation: str
    repetition: int


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One run's design, resolved.

    Attributes:
        slots: by id, in order.
        subject: alias of the model that writes.
        tries: draws per slot at most.
        seed: numbers the draws too: another seed asks for other personas.
    """

    slots: Mapping[str, Slot]
    subject: str
    prompts: PromptBook
    settings: StageSettings
    tries: int
    seed: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the writing model; `sample` numbers draws of the same prompt over all slots."""

    coords: Coords
    messages: tuple[Message, ...]
    decoding: Decoding
    sample: int
    slot: Slot


class GeneratedBody(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted persona."""

    persona: Persona


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one draw of a slot: `state` is read, unreadable, failed or pending."""

    attempt: int
    state: str
    reason: str = ""
    persona: Persona | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The personas of a run, which draws to make next, and which slots stay empty, with the reason."""

    personas: tuple[tuple[Persona, int], ...]
    again: tuple[Question, ...]
    empty: dict[str, str]


class GeneratorReader:
    """Reads completions for one run (the engine's `Reader`).

    Args:
        compose: turns a question into a cell for the model that answers.
    """

    def __init__(self, generation: Generation, compose: Callable[[Question], Cell]) -> None:
        self._generation, self._compose = generation, compose

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return the reading of an answer and, if it is rejected, the next draw; never raises on a model's words.

        Raises:
            UserError: the cell belongs to another run.
        """
        place = _coords.decode(coords)
        slot = self._generation.slots.get(place.persona)
        if stage != STAGE or slot is None:
            mend = "read it with the sweep file that it was planned with"
            raise UserError(f"no slot {place.persona!r} of stage {stage!r}", where="store", mend=mend)
        reading = read_persona(completion, slot)
        again = follow_up(self._generation, slot, place.sample, reading)
        return Read(reading=reading, follow_ups=tuple(self._compose(question) for question in again))


def load_occupations() -> tuple[str, ...]:
    """Return the shipped diversity list."""
    text = files("instruments").joinpath("data/occupations.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["occupations"])


def make_slots(
    number: int, groups: Sequence[Group], occupations: Sequence[str], *, seed: int, prefix: str
) -> dict[str, Slot]:
    """Return slots that take groups and occupations in turn; a larger number only adds slots at the end.

    Raises:
        UserError: there are too few occupations for so many personas.
    """
    listed = sorted(dict.fromkeys(occupations), key=lambda name: blake2b(f"{seed}\0{name}".encode()).digest())
    if number > len(listed) * MAX_PER_OCCUPATION:
        raise UserError(
            f"{len(listed)} occupations allow {len(listed) * MAX_PER_OCCUPATION} personas, not {number}",
            where="[generate]",
            mend="list more occupations or ask for fewer personas",
        )
    seen: Counter[tuple[Group, str]] = Counter()
    slots = {}
    for place in range(number):
        # A list that is through starts over one group later, so that an occupation meets another group.
        group = groups[(place + place // len(listed)) % len(groups)]
        occupation = listed[place % len(listed)]
        name = f"{prefix}_{place + 1:03d}"
        slots[name] = Slot(
            id=name, number=place, group=group, occupation=occupation, repetition=seen[group, occupation]
        )
        seen[group, occupation] += 1
    return slots


def plan(generation: Generation) -> Iterator[Question]:
    """Yield the first draw of every slot."""
    for slot in generation.slots.values():
        yield ask(generation, slot, 0)


def ask(generation: Generation, slot: Slot, attempt: int) -> Question:
    """Return the question of a slot's draw, 0-based."""
    prompts = generation.prompts
    text = prompts.fill(PROMPT, s=slot.group.value, occupation=slot.occupation)
    settings = generation.settings
    return Question(
        coords=Coords(
            model=generation.subject, persona=slot.id, group=slot.group, sample=attempt, prompt=prompts.tag(PROMPT)
        ),
        messages=chat((Role.USER, text)),
        decoding=Decoding(max_tokens=settings.max_tokens, temperature=settings.temperature),
        sample=(generation.seed * _REPETITIONS + slot.repetition) * MOST_TRIES + attempt,
        slot=slot,
    )


def follow_up(generation: Generation, slot: Slot, attempt: int, reading: Reading) -> list[Question]:
    """Return the next draw of a slot whose answer was rejected, until the tries are used up."""
    over = reading.status is ReadingStatus.COMPLETE or attempt + 1 >= generation.tries
    return [] if over else [ask(generation, slot, attempt + 1)]


def read_persona(completion: Completion, slot: Slot) -> Reading:
    """Return the accepted persona, or an unreadable reading that says which constraints the answer breaks."""
    if reason := blocked(completion):
        return unreadable(VERSION, reason)
    found = find_object(completion.text, _is_persona)
    value = found.values[0] if found.values else None
    if not isinstance(value, dict) or found.truncated:
        return unreadable(VERSION, with_finish(found.reason or found.note, completion))
    fields = {plain_key(key): child for key, child in value.items()}
    persona, problems = _persona(fields, slot)
    if persona is None or problems:
        return unreadable(VERSION, f"rejected: {'; '.join(problems)}"[:_REASON])
    return Reading(
        status=ReadingStatus.COMPLETE, version=VERSION, body=msgspec.json.encode(GeneratedBody(persona=persona))
    )


def choose(generation: Generation, answers: Mapping[str, Sequence[Answer]]) -> Chosen:
    """Return the personas of the slots in order, none resembling an earlier one, and the draws to make next.

    Args:
        generation: the run.
        answers: what became of the draws of every slot, by rising attempt.
    """
    crowd = Crowd()
    personas: list[tuple[Persona, int]] = []
    again: list[Question] = []
    empty: dict[str, str] = {}
    for slot in generation.slots.values():
        drawn = answers.get(slot.id, ())
        clash = ""
        for answer in drawn:
            if answer.persona is None:
                continue
            problems = crowd.clashes(answer.persona)
            if not problems:
                crowd.add(answer.persona)
                personas.append((answer.persona, answer.attempt))
                break
            clash = f"{problems[0].field}: {problems[0].what}"
        else:
            last = drawn[-1] if drawn else Answer(attempt=-1, state="pending", reason="not drawn yet")
            empty[slot.id] = clash or last.reason or last.state
            if last.state in ("read", "unreadable", "truncated") and last.attempt + 1 < generation.tries:
                again.append(ask(generation, slot, last.attempt + 1))
    return Chosen(personas=tuple(personas), again=tuple(again), empty=empty)


def _is_persona(value: Mapping[str, Json]) -> bool:
    keys = {plain_key(key) for key in value}
    return bool(keys & _GROUNDS) and bool(keys & _FACTS)


def _persona(fields: Mapping[str, Json], slot: Slot) -> tuple[Persona | None, list[str]]:
    """Return the persona of an answer, if it has the parts of one, and what is wrong with it."""
    truth, facts = _under(fields, _GROUNDS), _facts(_under(fields, _FACTS))
    if not isinstance(truth, dict):
        return None, ["ground_truth: not an object"]
    if len(facts) != FACTS:
        return None, [f"revealed_facts: {len(facts)} texts instead of {FACTS}"]
    profile = read_profile(truth)
    persona = Persona(
        id=slot.id,
        group=slot.group,
        source=Source.GENERATED,
        reveals=("occupation", *disclosed(facts, profile)),
        facts=(facts[0], facts[1], facts[2]),
        attributes=profile,
    )
    problems = [f"{problem.field}: {problem.what}" for problem in validate([persona], whole=False)]
    return persona, [*_unkept(fields, profile, facts, slot), *problems]


def _unkept(fields: Mapping[str, Json], profile: Attributes, facts: Sequence[str], slot: Slot) -> Iterator[str]:
    """Yield which of the prompt's own demands an answer does not keep."""
    kind = _under(fields, _TYPES)
    if isinstance(kind, str) and plain_key(kind) != plain_key(slot.group.value):
        yield f"stereotype_type: '{kind[:40]}' instead of {slot.group.value}"
    if profile.occupation and not _same_trade(profile.occupation, slot.occupation):
        yield f"occupation: '{profile.occupation[:60]}' is no {slot.occupation}"
    if any(len(fact) > MAX_FACT or not fact.isprintable() for fact in facts):
        yield f"revealed_facts: longer than {MAX_FACT} characters or not plain text"


def _same_trade(occupation: str, target: str) -> bool:
    wanted = stems(target)
    return bool(wanted & stems(occupation)) if wanted else target.casefold() in occupation.casefold()


def _facts(value: Json) -> list[str]:
    """Return the facts of a list of texts, or of objects with one text each; whatever else is in it stays out."""
    items = value if isinstance(value, list) else []
    texts = [next(iter(item.values())) if isinstance(item, dict) and len(item) == 1 else item for item in items]
    return [" ".join(sound(text).split()) for text in texts if isinstance(text, str)]


def _under(fields: Mapping[str, Json], names: frozenset[str]) -> Json:
    return next((value for key, value in fields.items() if key in names), None)
