"""The sweep file: TOML to frozen records, with errors that name line and mend. Knows no network and no store."""

import difflib
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from bench.plainwords import plain_words
from engine.batch.policy import BatchPolicy
from engine.errors import UserError
from engine.ledger import Cap, Scope
from engine.money import nano_from_usd
from instruments.generator import MOST_TRIES
from instruments.instrument import Stage
from instruments.personas import Group

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
All = Literal["all"]
Sending = Literal["stream", "batch", "auto"]
StageOrAll = Literal["all", "probe", "probe_judge", "task", "audit", "judge", "accum"]
File = TypeVar("File", bound=msgspec.Struct)


class CapTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hard cap: the most that a scope may use."""

    usd: str | float | int | None = None
    tokens: Count | None = None


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Caps of the whole sweep and of its parts."""

    usd: str | float | int | None = None
    tokens: Count | None = None
    provider: dict[str, CapTable] = {}
    model: dict[str, CapTable] = {}
    stage: dict[Stage, CapTable] = {}


class LimitTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this account may do with a model; overrides the catalogue."""

    requests_per_minute: Count | None = None
    requests_per_day: Count | None = None
    input_tokens_per_minute: Count | None = None
    output_tokens_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    share: Share | None = None


class StageTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Generation settings of one stage; what is not given follows the paper (G.9)."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    max_tokens: Count | None = None


class RetryTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one request may go wrong before it fails."""

    failures: Count = 6
    throttles: Count = 60


class ModesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How single stages and models are sent; a model's entry is one word, or a table of stages (`all` for the rest)."""

    stage: dict[Stage, Sending] = {}
    model: dict[str, Sending | dict[StageOrAll, Sending]] = {}


class BatchTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wanted of batches; what is not given is left to the engine."""

    prefer: Literal["cost", "time"] = "cost"
    deadline_hours: Annotated[float, msgspec.Meta(gt=0, le=8_784)] | None = None
    leftovers: Literal["stream", "batch"] | None = None
    flush_after_minutes: Annotated[float, msgspec.Meta(gt=0, le=10_080)] | None = None
    most_requests: Count | None = None
    poll_seconds: Annotated[float, msgspec.Meta(gt=0, le=3_600)] | None = None
    longest_poll_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] | None = None
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] | None = None
    results_patience_minutes: Annotated[float, msgspec.Meta(ge=0, le=10_080)] | None = None


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every run says, whatever it asks: its name and store, its models, and what they may cost."""

    name: Name
    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    judges: tuple[str, ...] = ()
    store: str = ""
    allow_unknown_price: bool = False
    notes: tuple[str, ...] = ()
    budget: BudgetTable = BudgetTable()
    limits: dict[str, LimitTable] = {}
    share: Share = 1.0
    retry: RetryTable = RetryTable()
    mode: Sending = "stream"
    batch: BatchTable = BatchTable()
    provider: dict[str, dict[str, object]] = {}
    model: dict[str, dict[str, object]] = {}
    local: dict[str, object] = {}


class SweepFile(RunFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep as its author wrote it. Every field is explained in the README."""

    stages: tuple[Stage, ...] = tuple(Stage)
    personas: All | Count | tuple[str, ...] = "all"
    imported_personas: str = ""
    generated_personas: str = ""
    tasks: All | tuple[str, ...] = "all"
    samples: Count = 1
    rounds: Annotated[int, msgspec.Meta(ge=1, le=8)] = 8
    accum_personas: All | Annotated[int, msgspec.Meta(ge=0)] | tuple[str, ...] = 2
    memory_prompt: Literal["retain", "neutral"] = "retain"
    structured: bool = False
    seed: int = 0
    settings: dict[Stage, StageTable] = {}
    modes: ModesTable = ModesTable()


class GenerateTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which personas a model is to write."""

    number: Count = 72
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1)] = tuple(Group)
    occupations: Literal["diverse"] | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = "diverse"
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)] = 0
    out: str = ""
    tries: Annotated[int, msgspec.Meta(ge=1, le=MOST_TRIES)] = 6
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.7
    max_tokens: Count = 3000


class GenerateFile(RunFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that has one model write personas, as its author wrote it."""

    generate: GenerateTable = GenerateTable()


_MINUTE: Final = 60.0
_HOUR: Final = 3_600.0
_SQLITE: Final = b"SQLite format 3\0"
_FIELDS: Final = sorted(
    {
        field
        for table in (SweepFile, GenerateTable, BudgetTable, CapTable, LimitTable, StageTable, RetryTable, BatchTable)
        for field in table.__struct_fields__
    }
)


class LoadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A run's file with where it came from."""

    path: Path
    text: str
    sweep: RunFile

    @property
    def store_path(self) -> Path:
        """Where the run's store is: as written, from the current folder, or `runs/NAME.sqlite`."""
        return Path(self.sweep.store or f"runs/{self.sweep.name}.sqlite")


class LoadedSweep(LoadedFile, frozen=True, kw_only=True):
    """A sweep file with where it came from."""

    sweep: SweepFile


class LoadedGeneration(LoadedFile, frozen=True, kw_only=True):
    """A file that describes a generation of personas, with where it came from."""

    sweep: GenerateFile


def load_sweep(path: Path) -> LoadedSweep:
    """Read and check a sweep file.

    Raises:
        UserError: the file cannot be read, is not TOML, or does not say what a sweep needs.
    """
    return parse_sweep(_read(path), path)


def load_generation(path: Path) -> LoadedGeneration:
    """Read and check a file for `mirage personas generate`.

    Raises:
        UserError: the file cannot be read, is not TOML, or does not say what a generation needs.
    """
    return parse_generation(_read(path), path)


def parse_sweep(text: str, path: Path) -> LoadedSweep:
    """Check the text of a sweep file; `path` is where errors say that it stands.

    Raises:
        UserError: it is not TOML, or does not say what a sweep needs.
    """
    sweep = _decode(text, path, SweepFile)
    if set(sweep.stages) & {Stage.JUDGE, Stage.PROBE_JUDGE} and not sweep.judges:
        raise UserError(
            "the sweep has judge stages but no judge",
            where=f"{path}: judges",
            mend='name one, e.g. judges = ["claude-opus-4-7"]',
        )
    return LoadedSweep(path=path, text=text, sweep=sweep)


def parse_generation(text: str, path: Path) -> LoadedGeneration:
    """Check the text of a file for `mirage personas generate`; `path` is where errors say that it stands.

    Raises:
        UserError: it is not TOML, or does not say what a generation needs.
    """
    sweep = _decode(text, path, GenerateFile)
    if len(sweep.models) > 1 or sweep.judges:
        raise UserError("one model writes the personas of a run", where=f"{path}: models", mend="name one, no judges")
    return LoadedGeneration(path=path, text=text, sweep=sweep)


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise UserError("this is no file that can be read again", where=str(path), mend="give the sweep's TOML file")
    try:
        data = path.read_bytes()
        if data.startswith(_SQLITE):
            raise UserError("this is a store, not a sweep file", where=str(path), mend="give the sweep's TOML file")
        return data.decode("utf-8")
    except OSError as error:
        raise UserError(
            f"the sweep file cannot be read: {error.strerror}", where=str(path), mend="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError("the sweep file is not UTF-8 text", where=str(path), mend="save it as UTF-8") from error


def _decode(text: str, path: Path, kind: type[File]) -> File:
    try:
        return msgspec.toml.decode(text, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error), kind) from error
    except msgspec.DecodeError as error:
        raise UserError(f"this is not TOML: {error}", where=str(path), mend="see the examples in sweeps/") from error
    except RecursionError as error:
        raise UserError("this is nested too deeply", where=str(path), mend="see the examples in sweeps/") from error


def caps(loaded: LoadedFile) -> dict[Scope, Cap]:
    """Return the sweep's caps by scope.

    Raises:
        UserError: an amount is not a number of US dollars.
    """
    budget = loaded.sweep.budget
    tables: dict[Scope, tuple[object, int | None]] = {Scope("sweep", loaded.sweep.name): (budget.usd, budget.tokens)}
    for kind, scoped in (("provider", budget.provider), ("model", budget.model), ("stage", budget.stage)):
        for name, table in scoped.items():
            tables[Scope(kind, str(name))] = (table.usd, table.tokens)
    found = {scope: Cap(nano=_nano(loaded, scope, usd), tokens=tokens) for scope, (usd, tokens) in tables.items()}
    return {scope: cap for scope, cap in found.items() if cap != Cap()}


def batch_policy(loaded: LoadedFile) -> BatchPolicy:
    """Return what the file wants of batches; what it does not say is the engine's.

    Raises:
        UserError: the shortest time between two polls is longer than the longest.
    """
    table = loaded.sweep.batch
    given = {
        "flush_after": _times(table.flush_after_minutes, _MINUTE),
        "most_requests": table.most_requests,
        "deadline": _times(table.deadline_hours, _HOUR),
        "leftovers": table.leftovers,
        "first_poll": table.poll_seconds,
        "longest_poll": table.longest_poll_seconds,
        "grace": table.grace_seconds,
        "results_patience": _times(table.results_patience_minutes, _MINUTE),
    }
    policy = msgspec.convert({name: value for name, value in given.items() if value is not None}, BatchPolicy)
    if policy.longest_poll < policy.first_poll:
        raise UserError(
            f"batches would be polled after {policy.first_poll:g} s at first and {policy.longest_poll:g} s at most",
            where=f"{loaded.path}: batch",
            mend="raise longest_poll_seconds, or lower poll_seconds",
        )
    return policy


def _times(amount: float | None, unit: float) -> float | None:
    return None if amount is None else amount * unit


def _nano(loaded: LoadedFile, scope: Scope, usd: object) -> int | None:
    if usd is None:
        return None
    try:
        return nano_from_usd(Decimal(str(usd)) if isinstance(usd, float) else str(usd))
    except ValueError as error:
        raise UserError(
            f"the budget of {scope} is wrong: {error}", where=str(loaded.path), mend='write e.g. usd = "25.00"'
        ) from None


def _explain(path: Path, text: str, message: str, kind: type) -> UserError:
    """Turn msgspec's words into what, where (with the line) and how to mend."""
    what, _, place = message.partition(" - at `")
    place = re.sub(r"`?key`? in `?\$?", "", place)
    keys = re.findall(r"[A-Za-z0-9_-]+", place.rstrip("`").removeprefix("$"))
    unknown = re.search(r"unknown field `([^`]+)`", what)
    if unknown:
        keys.append(unknown[1])
        near = difflib.get_close_matches(unknown[1], _FIELDS, 1)
        mend = f"did you mean `{near[0]}`?" if near else "the README lists what a sweep file may say"
        mend = "`mirage personas generate` runs such files" if unknown[1] == "generate" else mend
        mend = "write [modes.stage] or [modes.model], and the names below it" if keys[0] == "modes" else mend
        what = f"the sweep file knows no `{unknown[1]}`"
    else:
        mend = "the README explains every field"
        what = f"{'.'.join(keys) or 'the file'}: {plain_words(message, kind)}"
    line = _line_of(text, keys)
    return UserError(what, where=f"{path}:{line}" if line else str(path), mend=mend)


def _line_of(text: str, keys: list[str]) -> int | None:
    """Return the line on which the innermost named key stands, searching below its table's header."""
    words = [key for key in keys if not key.isdigit()]
    if not words:
        return None
    lines = text.splitlines()
    start = 0
    if len(words) > 1:
        header = re.compile(r"^\s*\[+\s*\"?" + re.escape(words[0]))
        start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    assignment = re.compile(r"^\s*\"?" + re.escape(words[-1]) + r"\"?\s*=")
    for number in range(start, len(lines)):
        if assignment.match(lines[number]) or (words[-1] in lines[number] and lines[number].lstrip().startswith("[")):
            return number + 1
    return start + 1 if start else None
