"""Says what is wrong with a run's file, where, and how it is written right, with an example of every field. Pure."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.filelines import line_of
from bench.plainwords import plain_words
from engine.errors import UserError

# How every field may be written; `[table]` fields stand below their table's header.
EXAMPLES: Final[Mapping[str, str]] = {
    "name": 'name = "pilot"',
    "models": 'models = ["gpt-4o-mini"]',
    "judges": 'judges = ["claude-opus-4-7"]',
    "store": 'store = "runs/pilot.sqlite"',
    "allow_unknown_price": "allow_unknown_price = true",
    "notes": 'notes = ["a pilot"]',
    "share": "share = 0.5",
    "mode": 'mode = "auto"',
    "stages": 'stages = ["task", "judge"]',
    "personas": 'personas = 30, "all", or a list of ids',
    "imported_personas": 'imported_personas = "personas/imported.toml"',
    "generated_personas": 'generated_personas = "personas/own.toml"',
    "tasks": 'tasks = "all", or a list of ids',
    "samples": "samples = 1",
    "rounds": "rounds = 8",
    "accum_personas": "accum_personas = 2, or a list of ids",
    "memory_prompt": 'memory_prompt = "retain"',
    "structured": "structured = true",
    "seed": "seed = 0",
    "budget": "a [budget] table with usd = 25.00",
    "limits": 'a [limits."gpt-4o-mini"] table with concurrency = 16',
    "retry": "a [retry] table with failures = 6",
    "modes": 'a [modes.stage] table with judge = "batch"',
    "batch": "a [batch] table with deadline_hours = 48",
    "settings": "a [settings.task] table with max_tokens = 2000",
    "generate": "a [generate] table with number = 72",
    "provider": "a [provider.NAME] table",
    "model": "a [model.ALIAS] table",
    "local": "a [local] table with threads = 2",
    "stage": 'judge = "batch" below [modes.stage], or a [budget.stage.judge] table',
    "usd": 'usd = "25.00"',
    "tokens": "tokens = 400_000",
    "requests_per_minute": "requests_per_minute = 500",
    "requests_per_day": "requests_per_day = 10_000",
    "input_tokens_per_minute": "input_tokens_per_minute = 200_000",
    "output_tokens_per_minute": "output_tokens_per_minute = 50_000",
    "tokens_per_minute": "tokens_per_minute = 200_000",
    "concurrency": "concurrency = 16",
    "temperature": "temperature = 0.7",
    "max_tokens": "max_tokens = 2000",
    "failures": "failures = 6",
    "throttles": "throttles = 60",
    "prefer": 'prefer = "cost"',
    "deadline_hours": "deadline_hours = 48",
    "leftovers": 'leftovers = "stream"',
    "flush_after_minutes": "flush_after_minutes = 30",
    "most_requests": "most_requests = 5_000",
    "poll_seconds": "poll_seconds = 5",
    "longest_poll_seconds": "longest_poll_seconds = 300",
    "grace_seconds": "grace_seconds = 300",
    "results_patience_minutes": "results_patience_minutes = 60",
    "number": "number = 72",
    "groups": 'groups = ["neutral"]',
    "occupations": 'occupations = "diverse", or a list of your own',
    "out": 'out = "personas/own.toml"',
    "tries": "tries = 6",
}
_STEP: Final = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")


def place_of(path: Path, text: str, keys: Sequence[str | None], *, value: str | None = None, nth: int = 1) -> str:
    """Return `path:line` of a field or of a text in its list, or the path alone where the line cannot be told."""
    line = line_of(text, keys, value=value, nth=nth)
    return f"{path}:{line}" if line else str(path)


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return which known name was probably meant, or what else to do."""
    exact = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), exact, 1)
    return f"did you mean `{exact[close[0]]}`?" if close else otherwise


def explained(path: Path, text: str, message: str, kind: type, fields: Iterable[str]) -> UserError:
    """Turn msgspec's words about a file into what, where (with the line) and how to mend.

    Args:
        path: where the file is.
        text: what stands in it.
        message: what msgspec says.
        kind: what the file was to be.
        fields: every name that such files know.
    """
    keys = _keys(message)
    if unknown := _UNKNOWN.search(message):
        return _unknown(path, text, [*keys, unknown[1]], fields)
    missing = _MISSING.search(message)
    last = missing[1] if missing else next((key for key in reversed(keys) if key), "")
    example = EXAMPLES.get(last, "")
    mend = f"write e.g. {example}" if example else "see the examples in sweeps/"
    named = ".".join(key for key in keys if key) or "the file"
    what = f"{named}: {plain_words(message, kind)}"
    return UserError(what, where=place_of(path, text, keys), mend=mend)


def _unknown(path: Path, text: str, keys: Sequence[str | None], fields: Iterable[str]) -> UserError:
    name, place = keys[-1] or "", place_of(path, text, keys)
    if name == "generate":
        return UserError(
            "this file has a model write personas ([generate]), it is no sweep",
            where=place,
            mend="`mirage personas generate` runs such files; `mirage plan` and `mirage doctor` look at them",
        )
    known = (each for each in fields if each != name)  # one that other tables know
    mend = suggestion(name, known, "remove it, or see the README's list of fields")
    mend = "write [modes.stage] or [modes.model], and the names below it" if keys[0] == "modes" else mend
    return UserError(f"the sweep file knows no `{name}`", where=place, mend=mend)


def _keys(message: str) -> list[str | None]:
    """Return the names on the way to what msgspec complains of; None for the name of a table that it does not tell."""
    steps = _STEP.findall(message.partition(" - at `")[2])
    return [name or None for name, index in steps if name or index == "..."]
