"""The sweep file: TOML to frozen records, with errors that name line and mend. Knows no network and no store."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from bench.filewords import explained, place_of
from engine.batch.policy import BatchPolicy
from engine.errors import UserError
from engine.ledger import Cap, Scope
from engine.money import nano_from_usd
from instruments.generator import MOST_TRIES
from instruments.instrument import Stage
from instruments.personas import Group
from instruments.reader import FOLLOWS

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
    accum_personas: All | Annotated[int, msgspec.Meta(ge=0)] | tuple[str, ...] | None = None
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
DEFAULT_FOLDER: Final = "runs"
"""Where stores lie that the file does not name; it is made where it is not there."""
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
        return Path(self.sweep.store or f"{DEFAULT_FOLDER}/{self.sweep.name}.sqlite")

    def place(self, *keys: str | None, value: str | None = None, nth: int = 1) -> str:
        """Return `path:line` of a field, or of a text in its list; the path alone where the line cannot be told."""
        return place_of(self.path, self.text, keys, value=value, nth=nth)


class LoadedSweep(LoadedFile, frozen=True, kw_only=True):
    """A sweep file with where it came from."""

    sweep: SweepFile


class LoadedGeneration(LoadedFile, frozen=True, kw_only=True):
    """A file that describes a generation of personas, with where it came from."""

    sweep: GenerateFile


def load_sweep(path: Path) -> LoadedSweep:
    """Read and check a sweep file.

    Raises:
        UserError: the file cannot be read, is not TOML, does not say what a sweep needs, or says something twice.
    """
    loaded = parse_sweep(_read(path), path)
    _check_lists(loaded)
    _check_stages(loaded)
    return loaded


def load_generation(path: Path) -> LoadedGeneration:
    """Read and check a file for `mirage personas generate`.

    Raises:
        UserError: the file cannot be read, is not TOML, does not say what a generation needs, or says something twice.
    """
    loaded = parse_generation(_read(path), path)
    _check_lists(loaded)
    return loaded


def load_file(path: Path) -> LoadedFile:
    """Read and check a sweep file, or one for `mirage personas generate`, which has a [generate] table.

    Raises:
        UserError: as the two above.
    """
    text = _read(path)
    try:
        generates = "generate" in tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        generates = False  # what is wrong is said below
    return load_generation(path) if generates else load_sweep(path)


def parse_sweep(text: str, path: Path) -> LoadedSweep:
    """Check the text of a sweep file; `path` is where errors say that it stands.

    Raises:
        UserError: it is not TOML, or does not say what a sweep needs.
    """
    sweep = _decode(text, path, SweepFile)
    if set(sweep.stages) & {Stage.JUDGE, Stage.PROBE_JUDGE} and not sweep.judges:
        raise UserError(
            "the sweep has judge stages but no judge",
            where=place_of(path, text, ("stages",)),
            mend='name one, e.g. judges = ["claude-opus-4-7"], or choose stages without judging',
        )
    return LoadedSweep(path=path, text=text, sweep=sweep)


def parse_generation(text: str, path: Path) -> LoadedGeneration:
    """Check the text of a file for `mirage personas generate`; `path` is where errors say that it stands.

    Raises:
        UserError: it is not TOML, or does not say what a generation needs.
    """
    sweep = _decode(text, path, GenerateFile)
    if len(sweep.models) > 1 or sweep.judges:
        where = place_of(path, text, ("judges" if sweep.judges else "models",))
        raise UserError("one model writes the personas of a run", where=where, mend="name one, no judges")
    return LoadedGeneration(path=path, text=text, sweep=sweep)


def _check_lists(loaded: LoadedFile) -> None:
    """Refuse what stands twice in a list, and lists of nothing, by which a sweep would ask nothing."""
    for name, words in _lists(loaded.sweep).items():
        if twice := next((word for word, number in Counter(words).items() if number > 1), None):
            where = loaded.place(name, value=twice, nth=2)
            raise UserError(f"`{twice}` stands twice in {name}", where=where, mend="remove one of the two")
        if not words and name != "judges":
            mend = f"name some, or leave {name} out of the file"
            raise UserError(f"{name} is an empty list: nothing would be asked", where=loaded.place(name), mend=mend)


def _lists(sweep: RunFile) -> Mapping[str, Sequence[str]]:
    """Return the lists of names that a file gives; an empty list of scripts is a way to leave accumulation out."""
    found: dict[str, object] = {"models": sweep.models, "judges": sweep.judges}
    if isinstance(sweep, SweepFile):
        stages = tuple(stage.value for stage in sweep.stages)
        found |= {"stages": stages, "personas": sweep.personas, "tasks": sweep.tasks}
        found |= {"accum_personas": sweep.accum_personas} if sweep.accum_personas else {}
    return {name: words for name, words in found.items() if isinstance(words, tuple)}


def _check_stages(loaded: LoadedSweep) -> None:
    """Refuse a stage whose questions are about answers that the sweep does not ask for."""
    for stage in loaded.sweep.stages:
        parent = FOLLOWS.get(stage, stage)
        if parent not in loaded.sweep.stages:
            raise UserError(
                f"stage `{stage}` asks about the answers of `{parent}`, which is not among the stages",
                where=loaded.place("stages", value=stage.value),
                mend=f'add "{parent}": what it has answered before is not paid again',
            )


def _read(path: Path) -> str:
    if path.is_dir():
        raise UserError("this is a folder, not a sweep file", where=str(path), mend="give the sweep's TOML file")
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
        raise explained(path, text, str(error), kind, _FIELDS) from error
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
    keys = ("budget", "usd") if scope.kind == "sweep" else ("budget", scope.kind, scope.name, "usd")
    try:
        return nano_from_usd(str(usd))
    except ValueError:
        raise UserError(
            f"the budget of {scope} is no amount of money: {_written(usd)}",
            where=loaded.place(*keys),
            mend='write US dollars, not negative, with at most 9 decimals, e.g. usd = "25.00"',
        ) from None


def _written(value: object) -> str:
    """Return a value as the file has it."""
    return f'"{value}"' if isinstance(value, str) else str(value)
