"""Small designs and answers for the instruments' tests."""

from collections.abc import Callable

import msgspec
import pytest

from engine.request import Completion, Finish, Usage
from instruments.instrument import Design, Stage, StageSettings
from instruments.personas import Attributes, Group, Persona, Script, Source
from instruments.prompts import load_prompts
from instruments.tasks import load_tasks


def _persona(name: str, group: Group) -> Persona:
    return Persona(
        id=name,
        group=group,
        source=Source.HAND_CRAFTED,
        reveals=("occupation",),
        facts=(f"I am {name}.", "I work as a [task].", "My {claim} is [fact_1]."),
        attributes=Attributes(name=name, age=40, occupation="baker"),
    )


def _script(name: str) -> Script:
    first, second, third, fourth, fifth, sixth, seventh, eighth = (f"{name} says number {n}" for n in range(1, 9))
    return Script(persona=name, utterances=(first, second, third, fourth, fifth, sixth, seventh, eighth))


@pytest.fixture
def design() -> Design:
    """Two personas of which one has a script, two subjects, two judges, two samples, three rounds, every stage."""
    personas = (_persona("ann", Group.STEREOTYPICAL), _persona("bob", Group.NEUTRAL))
    return Design(
        personas={persona.id: persona for persona in personas},
        tasks=load_tasks(),
        scripts={"ann": _script("ann")},
        prompts=load_prompts(),
        subjects=("small", "large"),
        judges=("strict", "mild"),
        samples=2,
        rounds=3,
        stages=frozenset(Stage),
        settings={stage: StageSettings(temperature=0.7, max_tokens=500) for stage in Stage},
    )


@pytest.fixture
def vary(design: Design) -> Callable[..., Design]:
    """Return a function that changes fields of the design."""
    return lambda **changes: msgspec.structs.replace(design, **changes)


@pytest.fixture
def answer() -> Callable[..., Completion]:
    """Return a function that makes a completion of a text."""

    def make(text: str, finish: Finish = Finish.STOP) -> Completion:
        return Completion(text=text, finish=finish, usage=Usage(input_tokens=1, output_tokens=1))

    return make
