"""The submission of a batch as a table; a missing (stage, step) pair is an error. Pure.

    building ──seal──▶ ready ──upload──▶ uploaded ──create──▶ creating ──accept──▶ open ──end──▶ ended
    creating ──refuse──▶ uploaded           creating ──doubt──▶ in_doubt ──accept──▶ open
    ended ──settle──▶ settled ──close──▶ closed
    uploaded ──renew──▶ ready               (the provider has thrown the input away)
    building, ready, uploaded, in_doubt, open ──drop──▶ dropped

Nothing is sent in `building` and `ready`, and nothing is paid for before `creating`, which is on disk before the create
call: whoever finds a batch there does not know whether it exists, and asks. `dropped` batches have given their requests
back: they never existed, were refused whole, or are known to have run nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.errors import IllegalTransition


class Stage(StrEnum):
    """Where a batch's submission stands."""

    BUILDING = "building"
    READY = "ready"
    UPLOADED = "uploaded"
    CREATING = "creating"
    IN_DOUBT = "in_doubt"
    OPEN = "open"
    ENDED = "ended"
    SETTLED = "settled"
    CLOSED = "closed"
    DROPPED = "dropped"


class Step(StrEnum):
    """What happens to a batch."""

    SEAL = "seal"
    UPLOAD = "upload"
    RENEW = "renew"
    CREATE = "create"
    REFUSE = "refuse"
    DOUBT = "doubt"
    ACCEPT = "accept"
    END = "end"
    SETTLE = "settle"
    CLOSE = "close"
    DROP = "drop"


STEPS: Final[Mapping[tuple[Stage, Step], Stage]] = MappingProxyType(
    {
        (Stage.BUILDING, Step.SEAL): Stage.READY,
        (Stage.BUILDING, Step.DROP): Stage.DROPPED,
        (Stage.READY, Step.UPLOAD): Stage.UPLOADED,
        (Stage.READY, Step.DROP): Stage.DROPPED,
        (Stage.UPLOADED, Step.CREATE): Stage.CREATING,
        (Stage.UPLOADED, Step.RENEW): Stage.READY,
        (Stage.UPLOADED, Step.DROP): Stage.DROPPED,
        (Stage.CREATING, Step.ACCEPT): Stage.OPEN,
        (Stage.CREATING, Step.REFUSE): Stage.UPLOADED,
        (Stage.CREATING, Step.DOUBT): Stage.IN_DOUBT,
        (Stage.IN_DOUBT, Step.ACCEPT): Stage.OPEN,
        (Stage.IN_DOUBT, Step.DROP): Stage.DROPPED,
        (Stage.OPEN, Step.END): Stage.ENDED,
        (Stage.OPEN, Step.DROP): Stage.DROPPED,
        (Stage.ENDED, Step.SETTLE): Stage.SETTLED,
        (Stage.SETTLED, Step.CLOSE): Stage.CLOSED,
    }
)

LIVE: Final = frozenset(set(Stage) - {Stage.CLOSED, Stage.DROPPED})
AT_PROVIDER: Final = frozenset({Stage.CREATING, Stage.IN_DOUBT, Stage.OPEN})
"""Stages in which a batch may fill the provider's queue."""


def step(stage: Stage, event: Step) -> Stage:
    """Return the stage after `event`.

    Raises:
        IllegalTransition: the table has no such arrow.
    """
    try:
        return STEPS[stage, event]
    except KeyError:
        raise IllegalTransition(f"a batch that is {stage} cannot {event}") from None
