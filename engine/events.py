"""What happened and what it looks like: events to tell people about, and a snapshot to draw. Records only."""

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from engine.lane import LaneSnapshot
from engine.ledger import Account, Scope, Shortage


class Outcome(StrEnum):
    """How a run ended.

    complete: nothing is left; incomplete: some requests failed for good, or wait for a model that this run lacks;
    budget: a cap withholds the rest; stopped: a provider refused for quota or key; interrupted: the user asked to
    stop; refused: the disk took no more writes.
    """

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    BUDGET = "budget"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"


class Level(StrEnum):
    """How much an event matters to somebody watching."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person should hear of.

    Attributes:
        kind: a stable word for filters, e.g. `recovered`, `budget`, `provider_stopped`, `request_failed`, `defect`.
        text: one line for people.
        fields: the same facts for programs.
    """

    kind: str
    level: Level
    text: str
    fields: Mapping[str, str | float] = {}


Listener = Callable[[Notice], None]


class StageCount(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one stage, in cells; `known` of them were in the store when the run began, done or not."""

    read: int = 0
    unreadable: int = 0
    failed: int = 0
    known: int = 0


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch under way.

    Attributes:
        stage: where its submission stands; status: the provider's own word.
        created_ms: Unix milliseconds of its creation, 0 while it has not been created.
    """

    id: int
    lane: str
    stage: str
    requests: int
    status: str
    created_ms: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The run at one instant.

    Attributes:
        stages: finished cells by stage, over all runs of the sweep.
        errors: failed attempts of this run by error class.
        calls, input_tokens, output_tokens, spent_nano: of this run.
        started, now: monotonic seconds.
        planning: root cells are still being planned.
        short: the caps that withhold the rest, once a run has ended for them.
    """

    stages: Mapping[str, StageCount]
    lanes: tuple[LaneSnapshot, ...]
    accounts: Mapping[Scope, Account]
    errors: Mapping[str, int]
    calls: int
    input_tokens: int
    output_tokens: int
    spent_nano: int
    started: float
    now: float
    planning: bool
    draining: bool
    refused: str
    batches: tuple[BatchView, ...] = ()
    short: tuple[Shortage, ...] = ()
