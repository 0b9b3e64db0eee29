"""The personalization tasks: identity, words and place on the groundability gradient. Knows no persona and no model."""

from importlib.resources import files

import msgspec

from engine.errors import UserError
from instruments.prompts import TAG_HEX_DIGITS, text_hash


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to ask of a personalized assistant.

    Attributes:
        name: short name, as the paper's tables print it.
        position: place on the groundability gradient, 1 goes furthest beyond the facts (Table 3).
        prompt: the user's words (G.1).
    """

    id: str
    name: str
    position: int
    prompt: str

    @property
    def tag(self) -> str:
        """`id@hash8` of the prompt's text."""
        return f"{self.id}@{text_hash(self.prompt)[:TAG_HEX_DIGITS]}"


class _TaskFile(msgspec.Struct, forbid_unknown_fields=True):
    task: list[Task]


def load_tasks(toml: bytes | None = None) -> dict[str, Task]:
    """Return the tasks of a TOML text, or the paper's six, by id and from least to most groundable.

    Raises:
        UserError: the text is not a task file or names a task twice.
    """
    source = files("instruments").joinpath("data/tasks.toml").read_bytes() if toml is None else toml
    try:
        tasks = msgspec.toml.decode(source, type=_TaskFile).task
    except msgspec.MsgspecError as error:
        raise UserError(f"the task file cannot be read: {error}", where="tasks", mend="correct the file") from None
    by_id = {task.id: task for task in sorted(tasks, key=lambda task: task.position)}
    if len(by_id) < len(tasks):
        raise UserError("a task id occurs twice", where="tasks", mend="give every task its own id")
    return by_id
