"""Writes personas in the format of the files that `instruments.personas` loads: TOML with a header of comments."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final

import msgspec

from engine.request import well_formed
from instruments.personas import Persona

WIDTH: Final = 118


def persona_toml(personas: Iterable[Persona], header: Sequence[str] = ()) -> str:
    """Return a file of personas; `header` becomes comments, wrapped."""
    comments = [f"# {line}" for text in header for line in wrap(_one_line(text), WIDTH)]
    return "\n".join([*comments, *(_table(persona) for persona in personas)]) + "\n"


def _table(persona: Persona) -> str:
    row = msgspec.to_builtins(persona)
    profile = row.pop("attributes")
    facts = ["facts = [", *(f"  {_value(fact)}," for fact in row.pop("facts")), "]"]
    own = [f"{key} = {_value(value)}" for key, value in row.items()]
    return "\n".join(["", "[[persona]]", *own, *facts, "[persona.attributes]", *_lines(profile)])


def _lines(table: dict[str, object]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    """Return a text, number or list as TOML, which takes JSON's spelling of these, all but one character."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return msgspec.json.encode(well_formed(value)).decode().replace("\x7f", "\\u007f")
    return msgspec.json.encode(value).decode()


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in well_formed(text)).split())
