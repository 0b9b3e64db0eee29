"""The prompt texts as data, their hashes, and how they are filled. Knows no persona, model or instrument.

Filling replaces every placeholder in one pass over the template: what is put in is never looked at again, so an answer
that contains `[task]` or any other placeholder stays the text that it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from typing import Final

import msgspec

from engine.errors import UserError

TAG_HEX_DIGITS: Final = 8
_PLACEHOLDER: Final = re.compile(r"\[([A-Za-z][A-Za-z0-9_]*)\]")


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One template.

    Attributes:
        version: raised by hand when the text changes on purpose; the hash tells of every change.
        source: `paper G.n` for the paper's own words, `ours` for connecting text.
    """

    name: str
    version: int
    source: str
    text: str

    @property
    def placeholders(self) -> frozenset[str]:
        """The names that `fill` wants, in lower case."""
        return frozenset(name.lower() for name in _PLACEHOLDER.findall(self.text))

    @property
    def content_hash(self) -> str:
        """Thirty-two hex digits that change with any byte of the text."""
        return text_hash(self.text)


class _PromptFile(msgspec.Struct, forbid_unknown_fields=True):
    prompt: list[Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBook:
    """All templates by name."""

    prompts: Mapping[str, Prompt]

    def get(self, name: str) -> Prompt:
        """Return a template.

        Raises:
            UserError: there is none of that name.
        """
        if (prompt := self.prompts.get(name)) is None:
            known = ", ".join(sorted(self.prompts))
            raise UserError(f"no prompt is called {name!r}", where="prompts", mend=f"choose one of {known}")
        return prompt

    def fill(self, name: str, /, **values: str) -> str:
        """Return the text of `name` with every placeholder replaced, literally and once.

        Raises:
            UserError: the prompt is unknown, a placeholder has no value, or a value has no placeholder.
        """
        prompt = self.get(name)
        if problem := _mismatch(prompt.placeholders, frozenset(values)):
            raise UserError(f"prompt {name!r} {problem}", where="prompts", mend="make text and values agree")
        return _PLACEHOLDER.sub(lambda match: values[match[1].lower()], prompt.text)

    def tag(self, *names: str) -> str:
        """Return `name@hash8` for each prompt of a request, joined by `+`."""
        return "+".join(f"{name}@{self.get(name).content_hash[:TAG_HEX_DIGITS]}" for name in names)


def text_hash(text: str) -> str:
    """Return the content hash of a text, 32 hex digits."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def numbered(lines: Sequence[str]) -> str:
    """Return `1. ...` lines, the way G.5 and G.6 list facts; used for the judge's evidence block."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def in_sentence(lines: Sequence[str]) -> str:
    """Return `(1) "..." (2) "..."`, the way G.3 writes facts in running text; used in the system prompt's sentence."""
    return " ".join(f'({number}) "{line}"' for number, line in enumerate(lines, 1))


def load_prompts(toml: bytes | None = None) -> PromptBook:
    """Return the prompts of a TOML text, or those that come with the package.

    Raises:
        UserError: the text is not a prompt file or names a prompt twice.
    """
    source = files("instruments").joinpath("data/prompts.toml").read_bytes() if toml is None else toml
    try:
        prompts = msgspec.toml.decode(source, type=_PromptFile).prompt
    except msgspec.MsgspecError as error:
        raise UserError(f"the prompt file cannot be read: {error}", where="prompts", mend="correct the file") from None
    book = {prompt.name: prompt for prompt in prompts}
    if len(book) < len(prompts):
        raise UserError("a prompt name occurs twice", where="prompts", mend="give every prompt its own name")
    return PromptBook(prompts=book)


def _mismatch(wanted: frozenset[str], given: frozenset[str]) -> str:
    missing, unknown = sorted(wanted - given), sorted(given - wanted)
    parts = [f"lacks a value for {', '.join(missing)}"] if missing else []
    return " and ".join(parts + ([f"has no placeholder {', '.join(unknown)}"] if unknown else []))
