"""The shape of every instrument: what it asks, how it reads, what follows. No instrument calls a model itself."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from engine.cell import Reading
from engine.request import Completion, Decoding, Message
from instruments.personas import Persona, Script
from instruments.prompts import PromptBook
from instruments.tasks import Task


class Stage(StrEnum):
    """The stages of the benchmark; a request belongs to one."""

    PROBE = "probe"
    PROBE_JUDGE = "probe_judge"
    TASK = "task"
    AUDIT = "audit"
    JUDGE = "judge"
    ACCUM = "accum"


class Coords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where in the design a request stands.

    Attributes:
        model: alias of the model under test (also for judge calls).
        persona, group: persona id and its stereotype group.
        task: task id, for task, audit and judge.
        round: 1-based conversation round, for accum.
        sample: 0-based repeated draw.
        judge: alias of the judging model, for judge stages.
        prompt: name and hash of the prompt text used, `name@hash`.
    """

    model: str
    persona: str
    group: str
    task: str = ""
    round: int = 0
    sample: int = 0
    judge: str = ""
    prompt: str = ""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the model called `alias`; the wiring turns it into a request for that model's snapshot."""

    alias: str
    stage: Stage
    coords: Coords
    messages: tuple[Message, ...]
    decoding: Decoding


class StageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Generation settings of one stage.

    Attributes:
        temperature: 0.7 for generation and 0.0 for judging in the paper (G.9).
        max_tokens: output allowance in tokens.
    """

    temperature: float | None
    max_tokens: int


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep's design, resolved: everything the instruments need to plan and to read.

    Attributes:
        subjects: aliases of the models under test.
        judges: aliases of the judges; the first is the one that tables use.
        samples: draws per (persona, task), and per persona for probe and accum.
        scripts: accum scripts by persona id; empty leaves accum out.
        stages: the stages to run; follow-ups outside of it are not asked.
        settings: generation settings per stage.
        structured: constrain answers by JSON Schema with bounded sizes, for models that cannot keep a format.
        memory_prompt: `retain` (the paper's) or `neutral`.
    """

    personas: Mapping[str, Persona]
    tasks: Mapping[str, Task]
    scripts: Mapping[str, Script]
    prompts: PromptBook
    subjects: tuple[str, ...]
    judges: tuple[str, ...]
    stages: frozenset[Stage]
    settings: Mapping[Stage, StageSettings]
    samples: int = 1
    rounds: int = 8
    structured: bool = False
    memory_prompt: str = "retain"


class Instrument(Protocol):
    """One stage: pure functions from design to questions and from answers to readings.

    Reading depends on the answer alone, so that it can be repeated without the design.
    """

    def plan(self, design: Design, /) -> Iterator[Ask]:
        """Yield the questions that need no earlier answer."""
        ...

    def read(self, completion: Completion, /) -> Reading:
        """Read an answer; never raises on a model's words: unreadable is a reading with its reason."""
        ...

    def follow_up(self, coords: Coords, completion: Completion, reading: Reading, design: Design, /) -> Sequence[Ask]:
        """Return the questions that this answer calls for."""
        ...
