"""The life of a request: the table, its diagram, and what of it is durable."""

import re
from itertools import product

import pytest

from engine import state as module
from engine.errors import IllegalTransition
from engine.state import DURABLE, PENDING, TRANSITIONS, Event, State, advance, sources

ARROW = re.compile(r"(\w+) ──(\w+)──▶ (?=(\w+))")


@pytest.mark.parametrize(("state", "event"), [*product(State, Event)], ids=lambda part: part.value)
def test_advance_follows_the_table_and_refuses_everything_else(state: State, event: Event) -> None:
    """Every pair of State x Event either has an arrow or is an error."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"a {state} request cannot {event}"):
            advance(state, event)


def test_the_diagram_draws_every_arrow_of_the_table_and_no_other() -> None:
    """The docstring is the table."""
    drawn = {
        (State(source), Event(event)): State(target) for source, event, target in ARROW.findall(str(module.__doc__))
    }
    assert drawn == dict(TRANSITIONS)


def test_every_state_can_be_reached_from_planned() -> None:
    """There is no state that a request cannot come into."""
    reached = {State.PLANNED}
    for _ in State:
        reached |= {target for (source, _), target in TRANSITIONS.items() if source in reached}
    assert reached == set(State)


def test_only_answered_and_failed_requests_are_at_rest() -> None:
    """What is not pending is settled, read or failed."""
    assert set(State) - PENDING == {State.SETTLED, State.READ, State.FAILED}


@pytest.mark.parametrize(
    ("event", "states"),
    [
        pytest.param(Event.SEND, (State.PLANNED,), id="admitted is stored as planned"),
        pytest.param(
            Event.COMPLETE,
            (State.PLANNED, State.SENT, State.IN_DOUBT, State.FAILED),
            id="a late answer is taken in every state but settled",
        ),
        pytest.param(Event.RETRY, (State.SENT, State.IN_DOUBT), id="only what was sent is retried"),
        pytest.param(Event.REVIVE, (State.FAILED,), id="only what failed is revived"),
    ],
)
def test_sources_are_the_durable_states_that_allow_an_event(event: Event, states: tuple[State, ...]) -> None:
    """The SQL guards are made from these."""
    assert sources(event) == states


@pytest.mark.parametrize("event", [*Event], ids=lambda event: event.value)
def test_sources_are_durable(event: Event) -> None:
    """A statement never names a state that no row can have."""
    assert set(sources(event)) <= set(DURABLE)
