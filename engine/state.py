"""The life of a request as a table; a missing (state, event) pair is an error.

    planned ──admit──▶ admitted ──send──▶ sent ──complete──▶ settled ──read──▶ read ──read──▶ read
    planned ──fail──▶ failed ──revive──▶ planned ──complete──▶ settled
    admitted ──withdraw──▶ planned
    admitted ──complete──▶ settled
    sent ──retry──▶ planned
    sent ──fail──▶ failed ──complete──▶ settled
    sent ──lose──▶ in_doubt ──complete──▶ settled
    in_doubt ──retry──▶ planned
    in_doubt ──fail──▶ failed

`admitted` lives in memory only: what was not sent before a crash is found planned again. `read` is kept with the cells
that a request answers, since one answer can be read for several. Everything else is the request's column `state`.
A completion is accepted in every state but settled and read: a late result has been paid for and is kept.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.errors import IllegalTransition


class State(StrEnum):
    """Where a request stands."""

    PLANNED = "planned"
    ADMITTED = "admitted"
    SENT = "sent"
    IN_DOUBT = "in_doubt"
    SETTLED = "settled"
    READ = "read"
    FAILED = "failed"


class Event(StrEnum):
    """What happens to a request."""

    ADMIT = "admit"
    WITHDRAW = "withdraw"
    SEND = "send"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    LOSE = "lose"
    READ = "read"
    REVIVE = "revive"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.PLANNED, Event.ADMIT): State.ADMITTED,
        (State.PLANNED, Event.FAIL): State.FAILED,
        (State.PLANNED, Event.COMPLETE): State.SETTLED,
        (State.ADMITTED, Event.WITHDRAW): State.PLANNED,
        (State.ADMITTED, Event.SEND): State.SENT,
        (State.ADMITTED, Event.COMPLETE): State.SETTLED,
        (State.SENT, Event.COMPLETE): State.SETTLED,
        (State.SENT, Event.RETRY): State.PLANNED,
        (State.SENT, Event.FAIL): State.FAILED,
        (State.SENT, Event.LOSE): State.IN_DOUBT,
        (State.IN_DOUBT, Event.COMPLETE): State.SETTLED,
        (State.IN_DOUBT, Event.RETRY): State.PLANNED,
        (State.IN_DOUBT, Event.FAIL): State.FAILED,
        (State.SETTLED, Event.READ): State.READ,
        (State.READ, Event.READ): State.READ,
        (State.FAILED, Event.REVIVE): State.PLANNED,
        (State.FAILED, Event.COMPLETE): State.SETTLED,
    }
)

DURABLE: Final = (State.PLANNED, State.SENT, State.IN_DOUBT, State.SETTLED, State.FAILED)
PENDING: Final = frozenset({State.PLANNED, State.ADMITTED, State.SENT, State.IN_DOUBT})


def advance(state: State, event: Event) -> State:
    """Return the state after `event`.

    Raises:
        IllegalTransition: the table has no such arrow.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a {state} request cannot {event}") from None


def sources(event: Event) -> tuple[State, ...]:
    """Return the durable states in which `event` may happen; `admitted` is stored as planned."""
    found = {State.PLANNED if state is State.ADMITTED else state for state, each in TRANSITIONS if each is event}
    return tuple(state for state in DURABLE if state in found)
