"""The personalization tasks: a system prompt with the three facts, then the user's request (paper G.1).

The response stays in the completion; the reading only says how long it is. Audit and judges follow, on a response that
was cut off too: what it claims, it claims.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from engine.cell import Reading, ReadingStatus
from engine.request import Completion, Finish, Role, chat
from instruments.answers import answer_text, blocked, unreadable, with_finish
from instruments.audit import audit_asks
from instruments.instrument import Ask, Coords, Design, Stage
from instruments.judge import judge_asks
from instruments.personas import Persona
from instruments.prompts import in_sentence
from instruments.schemas import decoding
from instruments.tasks import Task

VERSION: Final = 1


class TaskBody(msgspec.Struct, frozen=True, kw_only=True):
    """How long the response is, thinking left out."""

    characters: int


class TaskInstrument:
    """One response per subject, persona, task and sample."""

    def plan(self, design: Design, /) -> Iterator[Ask]:
        """Yield every task of every persona for every subject; repeated draws stand side by side."""
        if Stage.TASK not in design.stages:
            return
        for persona in design.personas.values():
            for subject in design.subjects:
                for task in design.tasks.values():
                    for sample in range(design.samples):
                        yield task_ask(design, subject, persona, task, sample)

    def read(self, completion: Completion, /) -> Reading:
        """Read nothing but whether there is a response."""
        if reason := blocked(completion):
            return unreadable(VERSION, reason)
        text = answer_text(completion)
        if not text:
            return unreadable(VERSION, with_finish("no response beside thinking", completion))
        body = msgspec.json.encode(TaskBody(characters=len(text)))
        if completion.finish is Finish.TRUNCATED:
            reason = with_finish("cut off", completion)
            return Reading(status=ReadingStatus.TRUNCATED, version=VERSION, reason=reason, body=body)
        return Reading(status=ReadingStatus.COMPLETE, version=VERSION, body=body)

    def follow_up(self, coords: Coords, completion: Completion, reading: Reading, design: Design, /) -> Sequence[Ask]:
        """Return the self-audit and every judge's question."""
        if reading.status is ReadingStatus.UNREADABLE:
            return ()
        response, request = answer_text(completion), design.tasks[coords.task].prompt
        judges = judge_asks(design, coords, Stage.JUDGE, request=request, response=response)
        return [*audit_asks(design, coords, response), *judges]


def task_ask(design: Design, subject: str, persona: Persona, task: Task, sample: int) -> Ask:
    """Return one task question."""
    system = design.prompts.fill("task_system", revealed_facts=in_sentence(persona.facts))
    return Ask(
        alias=subject,
        stage=Stage.TASK,
        coords=Coords(
            model=subject,
            persona=persona.id,
            group=persona.group,
            task=task.id,
            sample=sample,
            prompt=f"{design.prompts.tag('task_system')}+{task.tag}",
        ),
        messages=chat((Role.SYSTEM, system), (Role.USER, task.prompt)),
        decoding=decoding(design, Stage.TASK),
    )
