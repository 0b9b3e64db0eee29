"""When waiting requests become a batch, and how large it may be."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.lane import BatchLane, Load, Room, Waiting
from engine.batch.policy import BatchPolicy
from engine.batch.provider import BatchLimits

LIMITS = BatchLimits(max_requests=100, max_bytes=10_000, window=86_400.0, results_kept=86_400.0)
ROOM = Room(100, 10_000, None)


def lane(policy: BatchPolicy | None = None, **limits: int) -> BatchLane:
    """A lane with nothing in it."""
    return BatchLane(
        "p/m (batch)",
        provider="p",
        model="m",
        limits=msgspec.structs.replace(LIMITS, **limits),
        policy=policy or BatchPolicy(flush_after=60.0),
    )


@pytest.mark.parametrize(
    ("waiting", "upstream", "waited", "ripe"),
    [
        pytest.param(Waiting(0, 0), False, 0.0, False, id="nothing waits"),
        pytest.param(Waiting(5, 500), True, 0.0, False, id="more may come"),
        pytest.param(Waiting(5, 500), False, 0.0, True, id="nothing more can come"),
        pytest.param(Waiting(100, 500), True, 0.0, True, id="full by count"),
        pytest.param(Waiting(5, 9_000), True, 0.0, True, id="full by bytes"),
        pytest.param(Waiting(5, 500), True, 60.0, True, id="waited long enough"),
        pytest.param(Waiting(5, 500), True, 59.9, False, id="not long enough"),
    ],
)
def test_a_batch_is_formed_when_it_is_ripe(waiting: Waiting, *, upstream: bool, waited: float, ripe: bool) -> None:
    """Full, old, or nothing upstream."""
    under_test = lane()
    under_test.ripe(Waiting(min(1, waiting.requests), 1), ROOM, upstream=True, now=0.0)
    assert under_test.ripe(waiting, ROOM, upstream=upstream, now=waited) is ripe


def test_the_wait_starts_anew_with_every_batch() -> None:
    """What comes after a batch was formed waits for its own time."""
    under_test = lane()
    assert not under_test.ripe(Waiting(1, 1), ROOM, upstream=True, now=0.0)
    assert under_test.ripe(Waiting(1, 1), ROOM, upstream=True, now=60.0)
    under_test.formed()
    assert not under_test.ripe(Waiting(1, 1), ROOM, upstream=True, now=60.0)


def test_there_is_no_room_beside_as_many_batches_as_may_live() -> None:
    """Until one leaves."""
    under_test = lane(live_batches=1)
    under_test.enter(1, Load(10, 10))
    assert under_test.room() is None
    under_test.leave(1)
    assert under_test.room() == ROOM


@given(
    loads=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=8),
    requests=st.integers(1, 200),
    tokens=st.integers(1, 2_000),
)
def test_live_batches_and_the_next_one_never_pass_the_queues_limits(
    loads: list[tuple[int, int]], requests: int, tokens: int
) -> None:
    """Whatever is live, what is offered fits beside it."""
    under_test = lane(enqueued_requests=requests, enqueued_tokens=tokens)
    for number, load in enumerate(loads):
        room = under_test.room()
        if room is None or room.tokens is None:
            continue
        assert 0 < room.requests <= 100
        taken = Load(min(load[0], room.requests), min(load[1], room.tokens))
        under_test.enter(number, taken)
    live = under_test._live.values()
    assert sum(load.requests for load in live) <= requests
    assert sum(load.tokens for load in live) <= tokens


def test_a_full_queue_makes_the_lane_wait_longer_each_time() -> None:
    """Until a batch of ours ends, or the queue takes one."""
    under_test = lane()
    under_test.enter(1, Load(10, 10))
    waits = [under_test.queue_full(0.0) for _ in range(7)]
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    assert not under_test.ready(899.0)
    assert under_test.ready(900.0)
    under_test.accepted()
    assert under_test.queue_full(0.0) == 30.0
    under_test.leave(1)
    assert under_test.ready(0.0)


def test_a_lane_that_was_refused_makes_smaller_batches() -> None:
    """Half as large, and never empty."""
    under_test = lane()
    under_test.shrink(80)
    assert under_test.room() == Room(40, 10_000, None)
    under_test.shrink(1)
    assert under_test.room() == Room(1, 10_000, None)


def test_the_users_own_bound_on_size_holds() -> None:
    """Beside the provider's."""
    assert lane(BatchPolicy(most_requests=7)).room() == Room(7, 10_000, None)


def test_a_stopped_lane_forms_nothing_and_is_idle() -> None:
    """Whatever waits."""
    under_test = lane()
    assert not under_test.idle()
    under_test.stop("no money")
    assert under_test.idle()
    assert not under_test.ready(0.0)
