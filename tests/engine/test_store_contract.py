"""What every store must hold, whatever it is built on: one suite for all backends."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from engine.cell import Read, Reading, ReadingStatus
from engine.errors import ErrorClass, StoreError
from engine.ledger import Amount, Scope
from engine.request import request_key
from engine.state import State
from engine.store import LEASE_MS, Recovery, Store
from engine.testing import make_cell, make_cells, make_completion, make_request, make_ticket

Desk = Any
Seat = Callable[..., Awaitable[Any]]
HOSTILE = "a\ud800b\0c" + "\udfff" * 3


# ----- planning


async def test_planning_twice_adds_nothing(desk: Desk) -> None:
    """The same cells are the same cells."""
    assert await desk.plan(*make_cells(range(5))) == 5
    assert await desk.plan(*make_cells(range(7))) == 2
    assert len(await desk.lease()) == 7


async def test_two_cells_with_equal_calls_share_one_request(desk: Desk) -> None:
    """It is leased once and both cells wait for it."""
    same = make_request("same")
    await desk.plan(make_cell(1, request=same), make_cell(2, request=same))
    (leased,) = await desk.lease()
    assert [cell.coords for cell in leased.cells] == [b'{"n":1}', b'{"n":2}']


async def test_a_request_comes_out_as_it_went_in(desk: Desk) -> None:
    """Content, key, size and what pays for it."""
    request = make_request("où " * 1_000, sample=3)
    await desk.plan(make_cell(1, stage="judge", request=request))
    (leased,) = await desk.lease()
    assert (leased.request, leased.key) == (request, request_key(request))
    assert (leased.stage, leased.alias, leased.size, leased.messages) == ("judge", "m", 4_000, 1)


async def test_a_call_planned_by_two_sweeps_is_paid_by_the_one_that_sends_it(store: Store, seat: Seat) -> None:
    """The second sweep adopts it while it is unanswered."""
    first, second = await seat(store, "first"), await seat(store, "second")
    await first.plan(make_cell(1))
    await second.plan(make_cell(1))
    assert await first.lease() == []
    (leased,) = await second.lease()
    await second.settle(await second.send(leased))
    assert (await first.spent(), await second.spent()) == (Amount(0, 0), Amount(400, 7))


async def test_a_call_that_another_sweep_has_paid_for_is_read_and_not_sent(store: Store, seat: Seat) -> None:
    """Its answer is there already."""
    first, second = await seat(store, "first"), await seat(store, "second")
    (ticket,) = await first.on_wire(make_cell(1))
    await first.settle(ticket, text="paid")
    assert await second.plan(make_cell(1)) == 1
    assert await second.lease() == []
    assert [text for _, text in await second.unread()] == ["paid"]


async def test_a_sweep_whose_request_was_adopted_and_answered_reads_the_answer(store: Store, seat: Seat) -> None:
    """The first sweep's cell is not forgotten."""
    first, second = await seat(store, "first"), await seat(store, "second")
    await first.plan(make_cell(1))
    (ticket,) = await second.on_wire(make_cell(1))
    await second.settle(ticket, text="theirs")
    assert [text for _, text in await first.unread()] == ["theirs"]


async def test_a_sweep_takes_back_what_another_adopted_and_left_unanswered(store: Store, seat: Seat) -> None:
    """Nothing waits for ever for a sweep that is never run again."""
    first, second = await seat(store, "first"), await seat(store, "second")
    await first.plan(make_cell(1))
    await second.plan(make_cell(1))
    assert await first.store.adopt(first.sweep.id) == 1
    assert await second.lease() == []
    (leased,) = await first.lease()
    assert [cell.stage for cell in leased.cells] == ["task"]
    assert await first.store.adopt(first.sweep.id) == 0


async def test_a_renamed_model_takes_its_planned_requests_along(desk: Desk) -> None:
    """Planning again under another alias changes whose budget pays."""
    await desk.plan(make_cell(1, alias="old"))
    await desk.plan(make_cell(2, alias="new", request=make_cell(1).request))
    (leased,) = await desk.lease(aliases=["new"])
    assert leased.alias == "new"


# ----- leases


async def test_a_leased_request_is_not_leased_again(desk: Desk) -> None:
    """Not even by the same run."""
    await desk.plan(*make_cells(range(3)))
    assert len(await desk.lease(2)) == 2
    assert len(await desk.lease(2)) == 1
    assert await desk.lease(2) == []


async def test_requests_are_leased_by_priority_and_then_by_age(desk: Desk) -> None:
    """Lower numbers first."""
    cells = make_cells(range(4))
    await desk.plan(msgspec.structs.replace(cells[0], priority=5), *cells[1:3])
    await desk.plan(msgspec.structs.replace(cells[3], priority=-1))
    leased = await desk.lease()
    assert [each.cells[0].coords for each in leased] == [b'{"n":3}', b'{"n":1}', b'{"n":2}', b'{"n":0}']


@pytest.mark.parametrize(
    ("choice", "numbers"),
    [
        pytest.param({"lane": "scripted/m-2"}, [], id="another lane"),
        pytest.param({"skip_stages": ["task"]}, [2], id="a stage passed over"),
        pytest.param({"skip_stages": ["task", "judge"]}, [], id="all stages passed over"),
        pytest.param({"aliases": ["n"]}, [1], id="one alias"),
        pytest.param({"aliases": []}, [], id="no alias"),
    ],
)
async def test_a_lease_takes_only_what_it_asks_for(desk: Desk, choice: dict[str, Any], numbers: list[int]) -> None:
    """By lane, stage and alias."""
    await desk.plan(make_cell(0), make_cell(1, alias="n"), make_cell(2, stage="judge"))
    assert [each.cells[0].coords for each in await desk.lease(**choice)] == [b'{"n":%d}' % each for each in numbers]


async def test_a_released_request_can_be_leased_again(desk: Desk) -> None:
    """Only by whom it belongs to."""
    await desk.plan(make_cell(1))
    (leased,) = await desk.lease()
    await desk.store.release(desk.run_id + 1, [leased.id])
    assert await desk.lease() == []
    await desk.store.release(desk.run_id, [leased.id])
    assert len(await desk.lease()) == 1


async def test_a_lease_that_ran_out_goes_to_another_run(store: Store, seat: Seat) -> None:
    """Not before its time."""
    first, second = await seat(store), await seat(store)
    await first.plan(make_cell(1))
    await first.lease(now_ms=0)
    assert await second.lease(now_ms=LEASE_MS) == []
    assert len(await second.lease(now_ms=LEASE_MS + 1)) == 1


async def test_a_renewed_lease_lasts_longer(store: Store, seat: Seat) -> None:
    """From the moment of the renewal."""
    first, second = await seat(store), await seat(store)
    await first.plan(make_cell(1))
    (leased,) = await first.lease(now_ms=0)
    assert await store.renew(first.run_id, [leased.id], LEASE_MS) == [True]
    assert await second.lease(now_ms=2 * LEASE_MS - 1) == []


async def test_a_run_never_takes_over_its_own_lease(desk: Desk) -> None:
    """A wall clock that jumps forward must not hand a request out twice in one process."""
    await desk.plan(make_cell(1))
    await desk.lease(now_ms=0)
    assert await desk.lease(now_ms=10**13) == []


async def test_a_run_that_lost_its_lease_hears_so_and_may_not_send(store: Store, seat: Seat) -> None:
    """Fenced: renewing says False, sending is refused, and the new owner goes on."""
    first, second = await seat(store), await seat(store)
    await first.plan(*make_cells(range(2)))
    lost, kept = await first.lease(now_ms=0)
    await store.renew(first.run_id, [kept.id], 10)
    (taken,) = await second.lease(now_ms=LEASE_MS + 5)
    assert await store.renew(first.run_id, [lost.id, kept.id], 0) == [False, True]
    assert not await store.send(make_ticket(lost), first.run_id, 0)
    assert await store.send(make_ticket(taken), second.run_id, 0)


async def test_nothing_is_sent_without_a_lease(desk: Desk) -> None:
    """Neither before nor after."""
    await desk.plan(make_cell(1))
    (leased,) = await desk.lease()
    await desk.store.release(desk.run_id, [leased.id])
    assert not await desk.store.send(make_ticket(leased), desk.run_id, 0)
    assert await desk.spent() == Amount(0, 0)


async def test_waiting_counts_what_is_planned_and_not_leased(desk: Desk) -> None:
    """By lane."""
    await desk.plan(*make_cells(range(3)), make_cell(9, request=make_request("x", model="m-2")))
    await desk.lease(1)
    assert await desk.store.waiting(desk.sweep.id) == {"scripted/m-1": 2, "scripted/m-2": 1}


# ----- sending and settling


async def test_a_sent_attempt_counts_at_its_reservation_until_it_ends(desk: Desk) -> None:
    """In every scope."""
    (ticket,) = await desk.on_wire(make_cell(1))
    _, reserved = await desk.store.used(desk.sweep)
    names = [("sweep", "s"), ("provider", "scripted"), ("model", "m"), ("stage", "task")]
    assert reserved == {Scope(kind, name): Amount(1_000, 100) for kind, name in names}
    await desk.settle(ticket)
    assert set((await desk.store.used(desk.sweep))[0].values()) == {Amount(400, 7)}


async def test_sending_the_same_attempt_twice_is_refused(desk: Desk) -> None:
    """The request is on the wire already; the first attempt stands."""
    (ticket,) = await desk.on_wire(make_cell(1))
    again = make_ticket(ticket.leased)
    again.attempt = 2
    assert not await desk.store.send(again, desk.run_id, 11)
    assert await desk.spent() == Amount(1_000, 100)


async def test_a_settled_request_is_never_leased_again(desk: Desk) -> None:
    """It has been paid for."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.settle(ticket)
    assert await desk.plan(make_cell(1)) == 0
    assert await desk.lease() == []
    assert await desk.store.revive(desk.sweep.id, None) == 0


async def test_settling_twice_changes_nothing(desk: Desk) -> None:
    """Neither the cost nor what follows is doubled."""
    (ticket,) = await desk.on_wire(make_cell(1))
    for _ in range(2):
        await desk.settle(ticket, follow_ups=make_cells(range(3), stage="judge"))
    assert await desk.spent() == Amount(400, 7)
    assert len(await desk.lease()) == 3


async def test_an_answer_that_comes_after_the_attempt_was_assumed_billed_replaces_the_assumption(desk: Desk) -> None:
    """It is paid for, so it is kept, at its real cost."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.store.recover([], 40)
    assert await desk.spent() == Amount(1_000, 100)
    await desk.settle(ticket)
    assert await desk.spent() == Amount(400, 7)
    assert await desk.lease() == []


@pytest.mark.parametrize("state", [State.PLANNED, State.FAILED], ids=str)
async def test_an_answer_that_comes_after_its_attempt_had_failed_is_kept_and_paid(desk: Desk, state: State) -> None:
    """Whether the request was to be retried or given up."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.fail(ticket, state=state)
    await desk.settle(ticket)
    assert await desk.spent() == Amount(400, 7)
    assert await desk.lease() == []


async def test_a_second_answer_to_one_request_is_paid_but_not_read(store: Store, seat: Seat) -> None:
    """A fenced run's call and its successor's both came back: the first stands, with its reading and what follows."""
    first = await seat(store)
    (early,) = await first.on_wire(make_cell(1))
    await store.recover([], 40)
    second = await seat(store)
    (leased,) = await second.lease()
    late = await second.send(leased)
    await first.settle(early, text="one")
    await second.settle(late, text="two", follow_ups=make_cells(range(2), stage="judge"))
    assert await second.spent() == Amount(800, 14)
    assert await second.lease() == []


async def test_a_late_failure_of_an_old_attempt_does_not_touch_the_new_one(store: Store, seat: Seat) -> None:
    """The request that is on the wire again stays on the wire."""
    first = await seat(store)
    (early,) = await first.on_wire(make_cell(1))
    await store.recover([], 40)
    second = await seat(store)
    (leased,) = await second.lease()
    late = await second.send(leased)
    await first.fail(early, state=State.PLANNED)
    assert await second.lease() == []
    await second.settle(late)
    assert await second.spent() == Amount(1_400, 107)


async def test_an_answer_its_readings_and_what_follows_are_stored_together(desk: Desk) -> None:
    """The follow-ups can be leased at once, and nothing is left to read."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.settle(ticket, follow_ups=[make_cell(1, stage="judge"), make_cell(2, stage="judge")])
    assert await desk.unread() == []
    assert {each.stage for each in await desk.lease()} == {"judge"}


async def test_two_cells_of_one_request_are_both_read(desk: Desk) -> None:
    """By one settlement."""
    same = make_request("same")
    (ticket,) = await desk.on_wire(make_cell(1, request=same), make_cell(2, request=same))
    assert len(ticket.leased.cells) == 2
    await desk.settle(ticket)
    assert await desk.unread() == []


async def test_a_cell_that_joins_a_request_on_the_wire_is_found_unread_afterwards(desk: Desk) -> None:
    """The settlement could not know of it."""
    same = make_request("same")
    (ticket,) = await desk.on_wire(make_cell(1, request=same))
    await desk.plan(make_cell(2, request=same))
    await desk.settle(ticket, text="both")
    assert [text for _, text in await desk.unread()] == ["both"]


async def test_a_cell_that_joins_an_answered_request_is_found_unread(desk: Desk) -> None:
    """And can be read, with what follows."""
    same = make_request("same")
    (ticket,) = await desk.on_wire(make_cell(1, request=same))
    await desk.settle(ticket)
    await desk.plan(make_cell(2, request=same))
    ((cell_id, _),) = await desk.unread()
    reading = Reading(status=ReadingStatus.COMPLETE, version=1)
    read = Read(reading=reading, follow_ups=make_cells(range(2), stage="judge"))
    await desk.store.read(desk.sweep.id, cell_id, read)
    assert await desk.unread() == []
    assert len(await desk.lease()) == 2


async def test_an_answer_settled_without_readings_is_found_unread(desk: Desk) -> None:
    """Whoever stores an answer first and reads it later loses nothing."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.settle(ticket, text="later", read=False)
    assert [text for _, text in await desk.unread()] == ["later"]


async def test_unread_cells_come_in_pages(desk: Desk) -> None:
    """By rising id, each once."""
    for ticket in await desk.on_wire(*make_cells(range(5))):
        await desk.settle(ticket, read=False)
    pages, after = [], 0
    while page := await desk.store.unread(desk.sweep.id, after, 2):
        after = page[-1].cell.id
        pages.append([each.cell.coords for each in page])
    assert pages == [[b'{"n":0}', b'{"n":1}'], [b'{"n":2}', b'{"n":3}'], [b'{"n":4}']]


async def test_hostile_text_is_stored_and_comes_back(desk: Desk) -> None:
    """NUL and lone surrogates in the answer are kept; in what a provider calls things they are made readable."""
    (ticket,) = await desk.on_wire(make_cell(1))
    completion = msgspec.structs.replace(
        make_completion(HOSTILE),
        thinking=HOSTILE,
        finish_raw=HOSTILE,
        model_echo=HOSTILE,
        provider_request_id=HOSTILE,
        raw=b"\x28\xb5\x2f\xfd" + b"\0\xff" * 2_000,
    )
    await desk.settle(ticket, completion=completion, read=False)
    (found,) = await desk.store.unread(desk.sweep.id, 0, 10)
    assert (found.completion.text, found.completion.thinking) == (HOSTILE, HOSTILE)
    assert found.completion.raw == completion.raw
    assert found.completion.model_echo == "a\ufffdb\0c\ufffd\ufffd\ufffd"


async def test_a_hostile_error_message_is_stored_cut_and_clean(desk: Desk) -> None:
    """It comes from the wire like everything else."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.fail(ticket, message=HOSTILE * 1_000)
    assert len(await desk.lease()) == 1


# ----- failing


async def test_a_failed_attempt_can_be_tried_again_under_the_same_lease(desk: Desk) -> None:
    """The next attempt has the next number, and nobody else can lease it meanwhile."""
    (ticket,) = await desk.on_wire(make_cell(1))
    await desk.fail(ticket, keep=True)
    assert await desk.lease() == []
    await desk.settle(await desk.send(ticket.leased, number=2))
    assert await desk.spent() == Amount(400, 7)


async def test_tries_and_attempts_survive_from_run_to_run(store: Store, seat: Seat) -> None:
    """A request cannot use up its retries anew with every start."""
    first = await seat(store)
    (ticket,) = await first.on_wire(make_cell(1))
    await first.fail(ticket, ErrorClass.RATE)
    second = await seat(store)
    (leased,) = await second.lease()
    assert (leased.attempts, leased.tries.throttles, leased.tries.failures) == (1, 1, 0)


@pytest.mark.parametrize(
    ("revived", "count"),
    [(ErrorClass.CONTENT, 1), (ErrorClass.GONE, 0), (ErrorClass.BAD_REQUEST, 2), (None, 3)],
    ids=str,
)
async def test_failed_requests_are_revived_by_class(desk: Desk, revived: ErrorClass | None, count: int) -> None:
    """With fresh tries."""
    kinds = [ErrorClass.CONTENT, ErrorClass.BAD_REQUEST, ErrorClass.BAD_REQUEST]
    for ticket, kind in zip(await desk.on_wire(*make_cells(range(3))), kinds, strict=True):
        await desk.fail(ticket, kind, state=State.FAILED)
    assert await desk.lease() == []
    assert await desk.store.revive(desk.sweep.id, revived) == count
    assert [(each.tries.failures, each.attempts) for each in await desk.lease()] == [(0, 1)] * count


async def test_reviving_one_sweep_leaves_the_others_alone(store: Store, seat: Seat) -> None:
    """Each has its own money."""
    first, second = await seat(store, "first"), await seat(store, "second")
    (ticket,) = await first.on_wire(make_cell(1))
    await first.fail(ticket, state=State.FAILED)
    assert await store.revive(second.sweep.id, None) == 0


# ----- recovery


@pytest.mark.parametrize(
    ("free", "nano", "left"),
    [
        pytest.param([], 1_000, Amount(1_000, 100), id="billed"),
        pytest.param(["scripted"], 1_000, Amount(0, 0), id="free provider"),
        pytest.param([], 0, Amount(0, 0), id="free model"),
    ],
)
async def test_recovery_counts_what_was_on_the_wire_as_billed_unless_it_is_free(
    desk: Desk, free: list[str], nano: int, left: Amount
) -> None:
    """And plans it again."""
    await desk.on_wire(make_cell(1), nano=nano)
    assert await desk.store.recover(free, 40) == Recovery(calls=1, nano=left.nano)
    assert await desk.spent() == left
    (leased,) = await desk.lease()
    assert leased.attempts == 1


async def test_recovery_frees_what_was_only_leased_and_touches_nothing_else(desk: Desk) -> None:
    """Answers stay answers, failures stay failures."""
    await desk.plan(*make_cells(range(3)))
    leased = await desk.lease()
    await desk.settle(await desk.send(leased[0]))
    await desk.fail(await desk.send(leased[1]), state=State.FAILED)
    assert await desk.store.recover([], 40) == Recovery(calls=0, nano=0)
    assert [each.id for each in await desk.lease()] == [leased[2].id]


async def test_recovering_twice_counts_once(desk: Desk) -> None:
    """A crash during recovery is no harm."""
    await desk.on_wire(make_cell(1))
    await desk.store.recover([], 40)
    assert await desk.store.recover([], 41) == Recovery(calls=0, nano=0)
    assert await desk.spent() == Amount(1_000, 100)


# ----- sweeps


async def test_a_sweep_comes_back_as_it_was_registered(store: Store) -> None:
    """And an unknown one is None."""
    sweep_id = await store.add_sweep("s", '{"a":1}', "hash", simulated=True, now_ms=1)
    sweep = await store.find_sweep("s")
    assert sweep is not None
    assert (sweep.id, sweep.manifest, sweep.plan_hash, sweep.simulated, sweep.planned) == (
        sweep_id, '{"a":1}', "hash", True, False,
    )  # fmt: skip
    assert await store.find_sweep("t") is None


async def test_a_changed_sweep_is_planned_again(store: Store) -> None:
    """The mark of a finished plan belongs to the plan."""
    sweep_id = await store.add_sweep("s", "{}", "h", simulated=False, now_ms=1)
    await store.mark_planned(sweep_id)
    await store.update_sweep(sweep_id, "{}", "h2", planned=False)
    sweep = await store.find_sweep("s")
    assert sweep is not None
    assert (sweep.plan_hash, sweep.planned, sweep.simulated) == ("h2", False, False)


async def test_a_closed_store_takes_nothing_more(desk: Desk) -> None:
    """And closing twice is no harm."""
    await desk.store.close()
    await desk.store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        await desk.plan(make_cell(1))
