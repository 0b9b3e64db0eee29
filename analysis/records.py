"""What a sweep's results are in memory: one row per answer as small integer arrays, never one object per claim.

Names (models, personas, tasks, reasons) are stored once and rows hold their positions. This module knows no SQL, no
files and no statistics.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.integer[Any]]
Counts: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

STATES: Final = ("read", "truncated", "unreadable", "failed", "pending")
READ, TRUNCATED, UNREADABLE, FAILED, PENDING = range(len(STATES))
#: Why a whole labelling counts as truncated.
ANSWER_CUT: Final = "the answer itself was cut short"
LABELS: Final = "GRSF"
ACCURACIES: Final = "CIPU-"
GROUNDED, REASONABLE, STEREOTYPE, FABRICATED = range(len(LABELS))
CORRECT, INCORRECT, PARTIAL, UNVERIFIABLE, NOT_GIVEN = range(len(ACCURACIES))
ABSENT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A message of a conversation that overturns what the earlier ones make it natural to assume.

    Parameters
    ----------
    persona : str
    round : int
        The message's round, from 1.
    statement : str
        The assumption, in words.
    """

    persona: str
    round: int
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """One sweep, as its manifest describes it.

    Parameters
    ----------
    simulated : bool
        True when a simulated provider gave any of the answers.
    toy_judge : bool
        True when the judge is too weak for its labels to mean anything.
    subjects, judges : tuple of str
        Model aliases in the manifest's order; the first judge is the one that tables use.
    notes : tuple of str
        The manifest's own warnings, in plain words.
    contradictions : tuple of Contradiction
        Of the conversations' scripts; empty where the manifest does not say.
    """

    sweep_id: int
    name: str
    simulated: bool
    toy_judge: bool
    subjects: tuple[str, ...]
    judges: tuple[str, ...]
    notes: tuple[str, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model of a sweep.

    Parameters
    ----------
    alias : str
        The sweep's own name for it, which rows point to.
    label : str
        The name that tables print, unlike any other model's of the sweep.
    snapshot : str
        The provider's exact identifier.
    """

    alias: str
    label: str
    family: str
    provider: str
    snapshot: str
    is_subject: bool
    is_judge: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The names that rows point to. Models keep the manifest's order, the others are sorted."""

    models: tuple[str, ...]
    personas: tuple[str, ...]
    groups: tuple[str, ...]
    tasks: tuple[str, ...]
    judges: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Columns of equal length. Subclasses add columns; a field that is not an array is shared by all rows."""

    def __len__(self) -> int:
        """Return the number of rows."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                return len(value)
        return 0

    def where(self, mask: Mask) -> Self:
        """Return the rows at which `mask` is true."""
        return self.at(mask)

    def at(self, rows: Mask | Ints) -> Self:
        """Return the rows that a mask or positions name, in that order."""
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value[rows] for name, value in kept.items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers(Rows):
    """Rows of one labelled answer each; the base of `Records`, `Audits` and `Probes`.

    Parameters
    ----------
    model, persona, group, sample : ndarray of int32, shape (n,)
        Positions in `Axes`; `sample` is the 0-based repeated draw.
    state, reason : ndarray of int32, shape (n,)
        Positions in `STATES` and in `reasons`.
    labels : ndarray of int32, shape (n, 4)
        Claims per label, in the order of `LABELS`. Zero for a missing answer, which `present` tells apart.
    unread : ndarray of int32, shape (n,)
        Elements of a read answer that held no claim or no known label; they are in no count of claims.
    """

    model: Ints
    persona: Ints
    group: Ints
    sample: Ints
    state: Ints
    reason: Ints
    reasons: tuple[str, ...]
    labels: Ints
    unread: Ints

    @property
    def claims(self) -> Counts:
        """Claims per row, shape (n,)."""
        claims: Counts = self.labels.sum(axis=1, dtype=np.int64)
        return claims

    @property
    def over_inferred(self) -> Counts:
        """Claims labelled stereotype or fabricated per row, shape (n,)."""
        over_inferred: Counts = self.labels[:, STEREOTYPE:].sum(axis=1, dtype=np.int64)
        return over_inferred

    def present(self, *, truncated: bool = True) -> Mask:
        """Return which rows were read; rows cut short count only when `truncated`."""
        states = (READ, TRUNCATED) if truncated else (READ,)
        return np.isin(self.state, states)


AnswersT = TypeVar("AnswersT", bound=Answers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audits(Answers):
    """Self-audits: one row per (model, persona, task, sample)."""

    task: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probes(Answers):
    """Judged probe answers: one row per (model, persona, sample, judge).

    Parameters
    ----------
    crossed : ndarray of int32, shape (n, 4, 5)
        Claims by label and accuracy, in the orders of `LABELS` and `ACCURACIES`.
    unread_accuracy : ndarray of int32, shape (n,)
        Claims whose accuracy was given in words that mean nothing; they count as not given.
    """

    judge: Ints
    crossed: Ints
    unread_accuracy: Ints

    @property
    def accuracy(self) -> Counts:
        """Claims per accuracy against the ground truth, shape (n, 5), in the order of `ACCURACIES`."""
        accuracy: Counts = self.crossed.sum(axis=1, dtype=np.int64)
        return accuracy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wordings:
    """Claims of all records, end to end, told apart by their words.

    Parameters
    ----------
    words : ndarray of int64
        A number for the text, case-folded with white space normalised; the same within one run of the program only.
    labels : ndarray of int8
        Positions in `LABELS`, `ABSENT` for none of them.
    """

    words: Counts
    labels: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records(Probes):
    """Judged task answers: one row per (model, persona, task, sample, judge).

    Parameters
    ----------
    characters : ndarray of int32, shape (n,)
        Length of the task answer, -1 where unknown.
    start, worded : ndarray, shape (n,)
        Where a record's claims begin in `wordings`, and how many there are: 0 unless several judges make it worth
        reading them.
    """

    task: Ints
    characters: Ints
    start: Ints
    worded: Ints
    wordings: Wordings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attributes:
    """Inferred attributes of all memories, end to end; texts are case-folded with white space normalised."""

    codes: Ints
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Memories(Rows):
    """Memory states: one row per (model, persona, round, sample, prompt).

    An attribute that a memory holds twice is there twice.
    """

    model: Ints
    persona: Ints
    group: Ints
    round: Ints
    sample: Ints
    prompt: Ints
    prompts: tuple[str, ...]
    state: Ints
    reason: Ints
    reasons: tuple[str, ...]
    start: Ints
    size: Ints
    pool: Attributes

    @property
    def complete(self) -> Mask:
        """Which memories were read whole: one that was cut short would pass for one that forgot."""
        return np.asarray(self.state == READ)

    def attributes(self, row: int) -> Ints:
        """Return the inferred attributes of one row, as positions in `pool.texts`."""
        return self.pool.codes[self.start[row] : self.start[row] + self.size[row]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls(Rows):
    """One row per planned call: who was asked, and how it went. Tokens and money are in `Spend`.

    Parameters
    ----------
    stage, persona, state, reason, changes : ndarray of int32, shape (n,)
        Positions in `stages`, `personas`, `STATES`, `reasons` and `changed`. Personas are numbered apart from `Axes`:
        a call may be about none.
    model, subject : ndarray of int32, shape (n,)
        Positions in `Axes.models`: who answers, and who is under test.
    """

    stage: Ints
    stages: tuple[str, ...]
    model: Ints
    subject: Ints
    persona: Ints
    personas: tuple[str, ...]
    state: Ints
    reason: Ints
    reasons: tuple[str, ...]
    changes: Ints
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What one model and stage of a sweep asked and cost, each paid request counted once.

    Parameters
    ----------
    model, stage : str
        Who answers, and to what.
    requests, answered : int
        Requests that this sweep pays for, and those with an answer.
    input_tokens, cached_tokens, output_tokens, reasoning_tokens : int or None
        Totals over answers; None when there is none. Cached tokens are part of input, reasoning tokens of output.
    attempts, cost_nano, assumed, assumed_nano : int or None
        From the ledger: sendings; nano-dollars; sendings without an answer that may have been billed, and what they may
        have cost (part of `cost_nano`). None when nothing was sent.
    """

    model: str
    stage: str
    requests: int
    answered: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    attempts: int | None
    cost_nano: int | None
    assumed: int | None
    assumed_nano: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Everything that the tables need of one sweep."""

    sweep: SweepInfo
    models: tuple[ModelInfo, ...]
    axes: Axes
    records: Records
    audits: Audits
    probes: Probes
    memories: Memories
    calls: Calls
    spending: tuple[Spend, ...]
