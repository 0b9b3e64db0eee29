"""How every stage is sent on every model: call by call, or through the provider's batch API. Pure.

The sweep file may say it for the sweep, a stage, a model, or a stage on a model; the most specific word wins, and a
model counts as more specific than a stage. `auto` batches what saves most first, as long as neither it nor anything
that waits for it can end later than the user allows; every wave of batches counts with the longest time that its
provider may take.
Must not know: stores, clocks, the network.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from bench.sweepfile import LoadedFile, Sending, StageOrAll, SweepFile
from engine.errors import UserError
from instruments.generator import STAGE as PERSONA_STAGE
from instruments.generator import Generation
from instruments.instrument import Design, Stage
from instruments.reader import FOLLOWS, count_asks
from providers.anthropic_batch import LIMITS as ANTHROPIC_LIMITS
from providers.batch_dialect import BATCH_DIALECTS
from providers.batch_registry import has_batches
from providers.card import ModelCard
from providers.dialect import Dialect, Wire
from providers.gemini_batch import LIMITS as GEMINI_LIMITS

DEADLINE_HOURS: Final = 48.0
_HOUR: Final = 3_600.0

Key = tuple[str, str]
"""(alias, stage)."""


class Mode(StrEnum):
    """How requests are sent."""

    STREAM = "stream"
    BATCH = "batch"


class By(StrEnum):
    """Which entry of the file decided, the most specific first."""

    CELL = "cell"
    MODEL = "model"
    STAGE = "stage"
    SWEEP = "sweep"


class Asked(msgspec.Struct, frozen=True):
    """What the file says of one stage on one model, and which entry says it."""

    sending: Sending
    by: By


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One stage on one model, as far as it matters for how it is sent.

    Attributes:
        waves: batches that must follow each other within the step, since answers lead to its own next questions.
        follows: the steps whose answers it asks about.
        output_tokens: allowance of all its calls together; weighs what a batch saves.
    """

    alias: str
    stage: str
    waves: int = 1
    follows: tuple[Key, ...] = ()
    output_tokens: int = 0

    @property
    def key(self) -> Key:
        """(alias, stage)."""
        return self.alias, self.stage


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is sent, and why.

    Attributes:
        why: a few words where the file does not say it itself, else empty.
        waves: batches one after the other up to its last, those that it waits for included; 0 when streamed.
        seconds: the longest that the providers may take for these; 0.0 when streamed.
    """

    mode: Mode
    why: str = ""
    waves: int = 0
    seconds: float = 0.0


def resolve_modes(loaded: LoadedFile, steps: Sequence[Step], cards: Mapping[str, ModelCard]) -> dict[Key, Mode]:
    """Return how every step is sent; raises as `choose_modes`."""
    return {key: choice.mode for key, choice in choose_modes(loaded, steps, cards).items()}


def choose_modes(loaded: LoadedFile, steps: Sequence[Step], cards: Mapping[str, ModelCard]) -> dict[Key, Choice]:
    """Return how every step is sent, with the reasons, in the order of `steps`.

    Args:
        loaded: the file that says how.
        steps: every stage on every model, those that others follow before these.
        cards: the models by alias.

    Raises:
        UserError: a model that is not used is named, or batches are asked of one that has none.
    """
    _check_names(loaded, steps)
    table = loaded.sweep.batch
    deadline = _HOUR * (DEADLINE_HOURS if table.deadline_hours is None else table.deadline_hours)
    plan, open_steps = _Plan(steps, cards), []
    for step in steps:
        said, lack = asked(loaded, step.alias, step.stage), lacks(cards[step.alias])
        if said.sending == "batch" and lack and _is_named(loaded, said.by):
            raise _no_batches(loaded, step.alias, lack)
        if said.sending == "batch" and not lack:
            plan.batched.add(step.key)
        elif said.sending == "auto" and table.prefer == "time":
            plan.why[step.key] = "time is preferred"
        elif said.sending == "auto" and not (lack := lack or _dear(cards[step.alias])):
            open_steps.append(step)
        else:
            plan.why[step.key] = lack if said.sending != "stream" else ""
    for step in sorted(open_steps, key=lambda step: -_saving(step, cards[step.alias])):
        plan.try_batch(step, deadline)
    return {step.key: plan.choice(step) for step in steps}


def asked(loaded: LoadedFile, alias: str, stage: str) -> Asked:
    """Return what the file says of a stage on a model: the most specific of its words."""
    sweep = loaded.sweep
    if isinstance(sweep, SweepFile):
        entry = sweep.modes.model.get(alias, {})
        cells: Mapping[StageOrAll, Sending] = {"all": entry} if isinstance(entry, str) else entry
        for name, said in cells.items():
            if name == stage:
                return Asked(said, By.CELL)
        if "all" in cells:
            return Asked(cells["all"], By.MODEL)
        for each, said in sweep.modes.stage.items():
            if each.value == stage:
                return Asked(said, By.STAGE)
    return Asked(sweep.mode, By.SWEEP)


def sweep_steps(design: Design) -> list[Step]:
    """Return the steps of a sweep, in the order of the stages."""
    counts = count_asks(design)
    order = list(Stage)
    return [
        Step(
            alias=alias,
            stage=stage.value,
            waves=design.rounds if stage is Stage.ACCUM else 1,
            follows=tuple((subject, FOLLOWS[stage].value) for subject in _answerers(design, stage, alias)),
            output_tokens=calls * design.settings[stage].max_tokens,
        )
        for (stage, alias), calls in sorted(counts.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    ]


def generation_steps(generation: Generation) -> list[Step]:
    """Return the one step of a generation of personas; every further draw of a slot is a wave."""
    tokens = len(generation.slots) * generation.settings.max_tokens
    return [Step(alias=generation.subject, stage=PERSONA_STAGE, waves=generation.tries, output_tokens=tokens)]


def lacks(card: ModelCard) -> str:
    """Return why a model cannot be sent in batches, or "" when it can."""
    if card.dialect.wire is Wire.IN_PROCESS:
        return "runs in this process"
    return "" if card.batch and has_batches(card.dialect) else "no batch API"


def batch_window(dialect: Dialect) -> float:
    """Return the seconds after which the provider gives a batch up; `has_batches` must hold of the dialect."""
    if dialect.wire is Wire.ANTHROPIC:
        return ANTHROPIC_LIMITS.window
    return GEMINI_LIMITS.window if dialect.wire is Wire.GEMINI else BATCH_DIALECTS[dialect.errors].limits.window


class _Plan:
    """What is batched so far, and how long it may take."""

    def __init__(self, steps: Sequence[Step], cards: Mapping[str, ModelCard]) -> None:
        self._steps, self._cards = {step.key: step for step in steps}, cards
        self.batched: set[Key] = set()
        self.why: dict[Key, str] = {}

    def try_batch(self, step: Step, deadline: float) -> None:
        """Batch a step, unless it or what follows it would then come too late."""
        self.batched.add(step.key)
        later = [each for each in self._steps.values() if step.key in each.follows and each.key in self.batched]
        last = max((step, *later), key=lambda each: self._reach(each)[1])
        waves, seconds = self._reach(last)
        if seconds <= deadline:
            self.why[step.key] = _cheaper(self._cards[step.alias])
        else:
            self.batched.remove(step.key)
            what = (f"{waves} waves" if waves > 1 else "1 wave") if last is step else f"{last.stage} would end after"
            self.why[step.key] = f"{what}{',' * (last is step)} {seconds / _HOUR:g} h > {deadline / _HOUR:g} h"

    def choice(self, step: Step) -> Choice:
        """Return how the step is sent now that everything is decided."""
        why = self.why.get(step.key, "")
        if step.key not in self.batched:
            return Choice(mode=Mode.STREAM, why=why)
        waves, seconds = self._reach(step)
        return Choice(mode=Mode.BATCH, why=why, waves=waves, seconds=seconds)

    def _reach(self, step: Step) -> tuple[int, float]:
        """Return the waves and seconds at most until the step's last batch has ended, along the slowest way."""
        before = [self._reach(self._steps[key]) for key in step.follows if key in self._steps]
        waves, seconds = max(before, key=lambda reach: reach[1], default=(0, 0.0))
        if step.key not in self.batched:
            return waves, seconds
        return waves + step.waves, seconds + step.waves * batch_window(self._cards[step.alias].dialect)


def _answerers(design: Design, stage: Stage, alias: str) -> tuple[str, ...]:
    """Return the models whose answers the step asks about."""
    if stage not in FOLLOWS:
        return ()
    return (alias,) if stage is Stage.AUDIT else design.subjects


def _dear(card: ModelCard) -> str:
    """Return why batches would save nothing, or "" when they do."""
    price, batch = card.price, card.batch_price
    if price is None or batch is None:
        return "price unknown"
    equal = (batch.input, batch.output) == (price.input, price.output)
    return "no saving" if equal or batch.input > price.input or batch.output > price.output else ""


def _cheaper(card: ModelCard) -> str:
    """Return what a batch saves of the output price, or of the input price where only that is lower."""
    price, batch = card.price, card.batch_price
    if price is None or batch is None:
        return ""
    old, new = (price.output, batch.output) if batch.output < price.output else (price.input, batch.input)
    return f"saves {100 * (old - new) / old:.0f} %"


def _saving(step: Step, card: ModelCard) -> int:
    """Return what a batch would save if every answer used up its allowance; compares steps, is no forecast."""
    price, batch = card.price, card.batch_price
    return 0 if price is None or batch is None else step.output_tokens * (price.output - batch.output)


def _check_names(loaded: LoadedFile, steps: Iterable[Step]) -> None:
    named = loaded.sweep.modes.model if isinstance(loaded.sweep, SweepFile) else {}
    used = (*loaded.sweep.models, *loaded.sweep.judges, *(step.alias for step in steps))
    for alias in named:
        if alias not in used:
            raise UserError(
                f"[modes.model] names `{alias}`, which this sweep does not use",
                where=str(loaded.path),
                mend="remove it",
            )


def _is_named(loaded: LoadedFile, by: By) -> bool:
    """Whether the file's word is meant for the model, and not for whatever model it may concern."""
    return by in (By.CELL, By.MODEL) or not isinstance(loaded.sweep, SweepFile)


def _no_batches(loaded: LoadedFile, alias: str, lack: str) -> UserError:
    return UserError(
        f"{alias} cannot be sent in batches: {lack}",
        where=f"{loaded.path}: {'modes.model' if isinstance(loaded.sweep, SweepFile) else 'mode'}",
        mend='write "stream", or remove the entry',
    )
