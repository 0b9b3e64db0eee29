"""Whole runs over a scripted provider and a real store file."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.clock import SystemClock
from engine.errors import ErrorClass, ProviderError, StoreError, UserError
from engine.events import Outcome, StageCount
from engine.ledger import Cap, Scope
from engine.limits import RateLimits
from engine.money import FREE
from engine.provider import Reply
from engine.request import Completion, Request
from engine.retry import RetryPolicy
from engine.runner import Runner
from engine.testing import EchoReader, ScriptedProvider, make_cell, make_cells, make_completion, make_request

Rig = Any
SWEEP = Scope("sweep", "s")
# What one answer of `make_completion` costs at the rig's price.
PAID = 7_000


def failing(*errors: ProviderError) -> Callable[[Request, int], Any]:
    """A script that raises each error once for every request, then answers."""
    return lambda request, times: errors[times] if times < len(errors) else "hi"


def error(kind: ErrorClass, *, billed: bool = False, retry_after: float | None = None) -> ProviderError:
    """An error of a class."""
    return ProviderError(kind, f"{kind} trouble", retry_after=retry_after, maybe_billed=billed)


def number(coords: bytes) -> int:
    """The number of a cell of `make_cell`."""
    return int(msgspec.json.decode(coords)["n"])


def judged(stage: str, coords: bytes, completion: Completion) -> list[Cell]:
    """Every task is judged, every judgement checked, before new tasks are begun."""
    following = {"task": "judge", "judge": "check"}
    if stage not in following:
        return []
    return [msgspec.structs.replace(make_cell(number(coords), stage=following[stage]), priority=-1)]


def worst(rig: Rig) -> int:
    """About the reservation of one request of `make_cell`."""
    return int(rig.price.output // 1_000_000 * 100)


# ----- the plain way through


async def test_a_sweep_is_planned_sent_settled_and_read(rig: Rig) -> None:
    """Every cell has a reading, every request one answer, and the money adds up."""
    assert await rig.run(make_cells(range(500))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 500}
    assert len(rig.calls) == len(set(rig.calls)) == 500
    assert await rig.spent() == 500 * PAID
    assert rig.last.stages == {"task": StageCount(read=500)}
    assert (rig.last.calls, rig.last.spent_nano, rig.last.planning) == (500, 500 * PAID, False)


async def test_running_a_finished_sweep_again_sends_nothing(rig: Rig) -> None:
    """It has been paid for."""
    await rig.run(make_cells(range(20)))
    assert await rig.run(make_cells(range(20))) is Outcome.COMPLETE
    assert len(rig.calls) == 20


async def test_an_empty_sweep_is_complete(rig: Rig) -> None:
    """Nothing to do is done."""
    assert await rig.run([]) is Outcome.COMPLETE


async def test_a_grown_sweep_sends_only_what_is_new(rig: Rig) -> None:
    """A larger design keeps the answers of the smaller one."""
    await rig.run(make_cells(range(20)))
    assert await rig.run(make_cells(range(30))) is Outcome.COMPLETE
    assert len(rig.calls) == 30


async def test_calls_in_flight_never_exceed_the_lanes_concurrency(rig: Rig) -> None:
    """And it is used."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.001)
    await rig.run(make_cells(range(100)))
    assert rig.provider.most_in_flight == 8


async def test_the_wait_for_a_commit_counts_nothing_twice(rig: Rig) -> None:
    """One attempt row per call."""
    await rig.run(make_cells(range(50)))
    assert await rig.query("SELECT count(*), max(number) FROM attempt") == [(50, 1)]


# ----- what follows


async def test_dependent_stages_stream_as_their_parents_settle(rig: Rig) -> None:
    """Judgements go out while tasks are still waiting: there is no barrier between stages."""
    rig.reader = EchoReader(judged)
    assert await rig.run(make_cells(range(600))) is Outcome.COMPLETE
    assert await rig.query("SELECT stage, count(*) FROM cell GROUP BY stage ORDER BY stage") == [
        ("check", 600), ("judge", 600), ("task", 600),
    ]  # fmt: skip
    last_task = max(at for at, text in enumerate(rig.calls) if text.startswith("task"))
    assert min(at for at, text in enumerate(rig.calls) if text.startswith("check")) < last_task


async def test_a_follow_up_knows_its_parent(rig: Rig) -> None:
    """Across stages."""
    rig.reader = EchoReader(judged)
    await rig.run(make_cells(range(3)))
    wrong = "SELECT count(*) FROM cell c JOIN cell p ON p.id = c.parent_id WHERE p.coords <> c.coords"
    assert await rig.query(wrong) == [(0,)]
    assert await rig.query("SELECT count(*) FROM cell WHERE parent_id IS NULL") == [(3,)]


async def test_follow_ups_in_another_lane_are_sent_there(rig: Rig) -> None:
    """A judge is another model of another provider."""
    other = msgspec.structs.replace(make_request("judge"), provider="other")
    rig.reader = EchoReader(
        lambda stage, coords, completion: (
            [make_cell(1, stage="judge", alias="p", request=other)] if stage == "task" else []
        )
    )
    assert await rig.run(make_cells(range(1))) is Outcome.COMPLETE
    assert len(rig.other.seen) == 1


# ----- equal calls


async def test_equal_calls_of_one_sweep_are_made_once_and_read_for_every_cell(rig: Rig) -> None:
    """Fifty cells, five calls."""
    cells = [make_cell(each, request=make_request(f"same {each % 5}")) for each in range(50)]
    assert await rig.run(cells) is Outcome.COMPLETE
    assert sorted(rig.calls) == [f"same {each}" for each in range(5)]
    assert rig.last.stages == {"task": StageCount(read=50)}


async def test_calls_that_another_sweep_has_paid_for_are_read_and_not_made(rig: Rig) -> None:
    """With everything that follows from them."""
    await rig.run(make_cells(range(10)), sweep="first")
    rig.reader = EchoReader(judged)
    assert await rig.run(make_cells(range(15)), sweep="s") is Outcome.COMPLETE
    assert Counter(text.split()[0] for text in rig.calls) == {"task": 15, "judge": 15, "check": 15}
    assert await rig.query("SELECT count(*) FROM cell WHERE reading_status IS NULL") == [(0,)]


async def test_a_cell_that_joins_a_call_on_the_wire_is_read_before_the_run_ends(rig: Rig) -> None:
    """A follow-up asks what is being asked already; both cells get the answer, and what follows from both is sent."""
    slow = make_request("slow")
    release = asyncio.Event()

    class Waiting(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            if request == slow:
                await release.wait()
            return await super().complete(request)

    def follow(stage: str, coords: bytes, completion: Completion) -> list[Cell]:
        if stage == "task":
            asyncio.get_running_loop().call_later(0.05, release.set)
            return [make_cell(2, stage="probe", request=slow)]
        return judged("task", coords, completion) if stage == "probe" else []

    rig.provider = Waiting(lambda request, times: "hi")
    rig.reader = EchoReader(follow)
    cells = [make_cell(1, stage="probe", request=slow), make_cell(9)]
    assert await rig.run(cells) is Outcome.COMPLETE
    assert Counter(rig.calls) == {"slow": 1, "task 9": 1, "judge 1": 1, "judge 2": 1}
    assert await rig.query("SELECT count(*) FROM cell WHERE reading_status IS NULL") == [(0,)]


async def test_an_answer_that_a_cell_joined_late_is_read_while_the_run_goes_on(rig: Rig) -> None:
    """What follows from it need not wait for the slowest call of the sweep."""
    rig.provider = ScriptedProvider(lambda request, times: "hi")
    rig.look_every = 0.01
    await rig.run([make_cell(1, request=make_request("paid"))], sweep="first")
    judged_meanwhile = asyncio.Event()

    class Waiting(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            reply = await super().complete(request)
            if request == make_request("slow"):
                await judged_meanwhile.wait()
            elif request == make_cell(1, stage="judge").request:
                judged_meanwhile.set()
            return reply

    rig.provider = Waiting(lambda request, times: "hi")
    rig.reader = EchoReader(judged)
    cells = [make_cell(2, stage="probe", request=make_request("slow"))]

    def plan() -> Iterator[Cell]:
        yield from cells
        yield make_cell(1, request=make_request("paid"))

    async with asyncio.timeout(20):
        assert await rig.run(plan()) is Outcome.COMPLETE
    assert Counter(rig.calls) == {"slow": 1, "judge 1": 1, "check 1": 1}


async def test_leases_are_renewed_while_calls_are_under_way(rig: Rig) -> None:
    """A call of ten minutes keeps its request."""
    ends: list[object] = []

    class Looking(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            while len(set(ends)) < 2:
                ends.append((await rig.query("SELECT lease_ms FROM request"))[0][0])
                await asyncio.sleep(0.005)
            return await super().complete(request)

    rig.provider = Looking(lambda request, times: "hi")
    rig.look_every = 0.001
    async with asyncio.timeout(20):
        assert await rig.run(make_cells([1])) is Outcome.COMPLETE
    assert ends == sorted(ends, key=str)


async def test_a_sweep_that_another_one_left_without_answers_is_not_forgotten(rig: Rig) -> None:
    """The other sweep took the calls over and had no money; the first still gets its answers."""
    rig.caps = {Scope("sweep", "first"): Cap(nano=0), Scope("sweep", "second"): Cap(nano=0)}
    assert await rig.run(make_cells(range(5)), sweep="first") is Outcome.BUDGET
    assert await rig.run(make_cells(range(5)), sweep="second") is Outcome.BUDGET
    rig.caps = {}
    assert await rig.run([], sweep="first") is Outcome.COMPLETE
    assert await rig.states() == {"settled": 5}
    assert await rig.run([], sweep="second") is Outcome.COMPLETE
    assert await rig.states() == {"read": 5}
    assert len(rig.calls) == 5


# ----- errors


@pytest.mark.parametrize(
    ("errors", "calls", "outcome", "state"),
    [
        pytest.param([ErrorClass.TRANSIENT] * 2, 3, Outcome.COMPLETE, "read", id="transient: tried again"),
        pytest.param([ErrorClass.TRANSIENT] * 9, 3, Outcome.INCOMPLETE, "failed", id="transient: given up"),
        pytest.param([ErrorClass.RATE] * 4, 5, Outcome.COMPLETE, "read", id="rate: tried again"),
        pytest.param([ErrorClass.RATE] * 9, 6, Outcome.INCOMPLETE, "failed", id="rate: given up"),
        pytest.param(
            [*[ErrorClass.RATE] * 5, *[ErrorClass.TRANSIENT] * 2], 8, Outcome.COMPLETE, "read", id="counted apart"
        ),
        pytest.param([ErrorClass.BAD_REQUEST], 1, Outcome.INCOMPLETE, "failed", id="bad request: failed"),
        pytest.param([ErrorClass.CONTENT], 1, Outcome.INCOMPLETE, "failed", id="content: failed"),
        pytest.param([ErrorClass.GONE], 1, Outcome.INCOMPLETE, "failed", id="gone: failed"),
        pytest.param([ErrorClass.QUOTA], 1, Outcome.STOPPED, "planned", id="quota: stopped"),
        pytest.param([ErrorClass.AUTH], 1, Outcome.STOPPED, "planned", id="key: stopped"),
    ],
)
async def test_each_error_class_has_its_consequence(
    rig: Rig, errors: list[ErrorClass], calls: int, outcome: Outcome, state: str
) -> None:
    """How often a call is made, how the run ends and where the request stands."""
    rig.policy = RetryPolicy(failures=3, throttles=6, base=0.001)
    rig.provider = ScriptedProvider(failing(*(error(kind, retry_after=0.001) for kind in errors)))
    assert await rig.run(make_cells([1])) is outcome
    assert len(rig.calls) == calls
    assert await rig.states() == {state: 1}
    assert rig.last.errors == Counter(kind.value for kind in errors[:calls])


async def test_retry_after_is_respected_by_the_whole_lane(rig: Rig) -> None:
    """Neither the refused request nor its neighbours go before."""
    moments: list[float] = []

    def script(request: Request, times: int) -> Any:
        moments.append(time.monotonic())
        return error(ErrorClass.RATE, retry_after=0.2) if len(moments) == 1 else "hi"

    rig.limits = RateLimits(concurrency=1, adaptive=False)
    rig.provider = ScriptedProvider(script)
    assert await rig.run(make_cells(range(3))) is Outcome.COMPLETE
    assert len(moments) == 4
    assert moments[1] - moments[0] >= 0.2


async def test_a_failed_request_fails_alone(rig: Rig) -> None:
    """It is told, with its class, and the others go on."""
    bad = make_cell(3).request
    rig.provider = ScriptedProvider(lambda request, times: error(ErrorClass.CONTENT) if request == bad else "hi")
    assert await rig.run(make_cells(range(10))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 1, "read": 9}
    assert rig.told("request_failed") == ["task request to m-1 failed (content): content trouble"]
    assert rig.last.stages["task"] == StageCount(read=9, failed=1)


async def test_a_provider_without_quota_stops_and_the_others_go_on(rig: Rig) -> None:
    """Its requests stay planned for another day, in every one of its lanes; nothing is counted as failed."""
    rig.provider = ScriptedProvider(lambda request, times: error(ErrorClass.QUOTA))
    rig.limits = RateLimits(concurrency=1, adaptive=False)
    elsewhere = [msgspec.structs.replace(make_request(f"else {each}"), provider="other") for each in range(5)]
    cells = [
        *make_cells(range(5)),
        *(make_cell(10 + each, alias="o", request=make_request(f"o {each}", model="m-2")) for each in range(5)),
        *(make_cell(20 + each, alias="p", request=request) for each, request in enumerate(elsewhere)),
    ]
    assert await rig.run(cells) is Outcome.STOPPED
    assert await rig.states() == {"planned": 10, "read": 5}
    assert len(rig.calls) <= 2
    assert "scripted takes no more calls in this run (quota): quota trouble" in rig.told("provider_stopped")
    rig.provider = ScriptedProvider(lambda request, times: "hi")
    assert await rig.run(cells) is Outcome.COMPLETE
    assert await rig.states() == {"read": 15}


@pytest.mark.parametrize(
    ("free", "cost"), [(False, 1), (True, 0)], ids=["a priced model: its reservation", "a free model: nothing"]
)
async def test_a_call_that_was_cut_off_costs_what_it_may_have_been_billed(rig: Rig, free: bool, cost: int) -> None:
    """It may have been done and charged although no answer came."""
    if free:
        rig.price = FREE
    rig.provider = ScriptedProvider(failing(error(ErrorClass.TRANSIENT, billed=True)))
    assert await rig.run(make_cells([1])) is Outcome.COMPLETE
    outcomes = await rig.query("SELECT outcome, cost_nano = reserved_nano, tokens > 0 FROM attempt ORDER BY number")
    assert outcomes == [("assumed", 1, 1) if cost else ("error", 1, 0), ("completed", int(free), 1)]


async def test_an_adapter_with_a_defect_fails_one_request_and_not_the_run(rig: Rig) -> None:
    """One odd reply must not end a sweep of a hundred thousand; it may have been paid, so it is counted."""
    odd = make_cell(2).request

    class Odd(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            if request == odd:
                raise KeyError("choices")
            return await super().complete(request)

    rig.provider = Odd(lambda request, times: "hi")
    assert await rig.run(make_cells(range(20))) is Outcome.INCOMPLETE
    assert await rig.states() == {"failed": 1, "read": 19}
    assert rig.told("defect") == ["defect in the adapter of scripted: KeyError: 'choices'"]
    assert await rig.query("SELECT outcome FROM attempt WHERE cost_nano = reserved_nano") == [("assumed",)]


async def test_an_adapter_that_only_has_defects_is_stopped(rig: Rig) -> None:
    """Before it has spent the budget on answers that nobody can read."""

    class Broken(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            await super().complete(request)
            raise TypeError("decode")

    rig.provider = Broken(lambda request, times: "hi")
    assert await rig.run(make_cells(range(200))) is Outcome.STOPPED
    assert len(rig.calls) < 30
    assert (await rig.states())["planned"] > 170


async def test_a_call_that_its_adapter_cancels_is_tried_again(rig: Rig) -> None:
    """It does not vanish, and the run does not wait for it for ever."""

    class Cancelling(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            if not self.seen:
                self.seen.append(request)
                raise asyncio.CancelledError
            return await super().complete(request)

    rig.provider = Cancelling(lambda request, times: "hi")
    assert await rig.run(make_cells([1])) is Outcome.COMPLETE
    assert await rig.query("SELECT outcome FROM attempt ORDER BY number") == [("assumed",), ("completed",)]


# ----- readers


class Clumsy(EchoReader):
    """A reader with a defect for one cell."""

    def __init__(self, defect: str) -> None:
        super().__init__()
        self._defect = defect

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Raise, or return what no store can take."""
        if number(coords) != 3:
            return super().read(stage, coords, completion)
        reading = Reading(status=ReadingStatus.COMPLETE, version=1)
        bad = msgspec.structs.replace(make_cell(1, stage="judge"), coords=b"{")
        match self._defect:
            case "raises":
                raise ZeroDivisionError("oops")
            case "body":
                return Read(reading=msgspec.structs.replace(reading, body=b"no json"))
            case "bytes":
                return Read(reading=msgspec.structs.replace(reading, body=b"\xff"))
            case _:
                return Read(reading=reading, follow_ups=[make_cell(0, stage="judge"), bad])


@pytest.mark.parametrize("defect", ["raises", "body", "bytes", "follow-up"])
async def test_a_defect_in_a_reader_keeps_the_paid_answer(rig: Rig, defect: str) -> None:
    """As unreadable, with the reason; the call is not made again, and the others are read."""
    rig.reader = Clumsy(defect)
    assert await rig.run(make_cells(range(10))) is Outcome.COMPLETE
    assert rig.last.stages == {"task": StageCount(read=10, unreadable=1)}
    rows = await rig.query("SELECT coords, reading_reason FROM cell WHERE reading_status = 'unreadable'")
    assert [row[0] for row in rows] == ['{"n":3}']
    assert str(rows[0][1]).startswith("defect in the reader of task: ")
    assert (await rig.states(), len(rig.calls), await rig.spent()) == ({"read": 10}, 10, 10 * PAID)
    assert len(rig.told("defect")) == 1


@pytest.mark.parametrize("defect", ["raises", "body", "follow-up"])
async def test_a_defect_in_a_reader_does_not_stop_the_reading_of_stored_answers(rig: Rig, defect: str) -> None:
    """Answers that another sweep has paid for are read apart; the same holds there."""
    await rig.run(make_cells(range(10)), sweep="first")
    rig.reader = Clumsy(defect)
    assert await rig.run(make_cells(range(10))) is Outcome.COMPLETE
    assert rig.last.stages == {"task": StageCount(read=10, unreadable=1)}


async def test_hostile_text_runs_through(rig: Rig) -> None:
    """Lone surrogates and NUL in an answer that is quoted in the next prompt."""
    hostile = "\ud800 \0 \udfff"
    rig.provider = ScriptedProvider(lambda request, times: make_completion(hostile))
    rig.reader = EchoReader(
        lambda stage, coords, completion: (
            [make_cell(1, stage="judge", request=make_request(completion.text))] if stage == "task" else []
        )
    )
    assert await rig.run(make_cells([1])) is Outcome.COMPLETE
    assert rig.calls[-1] == "\ufffd \0 \ufffd"


async def test_a_listener_with_a_defect_loses_nothing(rig: Rig) -> None:
    """The display may fail; the answers are stored."""

    def broken(notice: object) -> None:
        raise RuntimeError("no terminal")

    rig.notices = type("Broken", (), {"append": staticmethod(broken)})()
    rig.reader = Clumsy("raises")
    assert await rig.run(make_cells(range(10))) is Outcome.COMPLETE
    assert await rig.states() == {"read": 10}


async def test_a_run_without_a_price_for_a_model_is_not_begun(rig: Rig) -> None:
    """Its answers could not be booked."""
    rig.unpriced = {"p"}
    with pytest.raises(ValueError, match="no price for p"):
        await rig.run(make_cells([1]))
    assert rig.calls == []


async def test_nonsensical_usage_is_booked_as_nothing_and_stops_no_run(rig: Rig) -> None:
    """A reply whose counts are negative is still an answer."""
    rig.provider = ScriptedProvider(lambda request, times: make_completion(input_tokens=-9, output_tokens=-1))
    assert await rig.run(make_cells(range(3))) is Outcome.COMPLETE
    assert (await rig.spent(), await rig.states()) == (0, {"read": 3})


# ----- budgets


async def test_a_cap_leaves_the_rest_planned_and_a_higher_one_goes_on(rig: Rig) -> None:
    """Nothing is repeated, and the cap holds on disk at every end."""
    rig.caps = {SWEEP: Cap(nano=300_000)}
    assert await rig.run(make_cells(range(100))) is Outcome.BUDGET
    first = len(rig.calls)
    assert 0 < first < 100
    assert await rig.spent() <= 300_000
    assert await rig.run(make_cells(range(100))) is Outcome.BUDGET
    assert len(rig.calls) == first
    rig.caps = {SWEEP: Cap(nano=300_000_000)}
    assert await rig.run(make_cells(range(100))) is Outcome.COMPLETE
    assert len(rig.calls) == len(set(rig.calls)) == 100


async def test_what_a_call_did_not_cost_pays_for_others(rig: Rig) -> None:
    """Reservations are far above costs: money comes back, and withheld requests go until it is really used up."""
    rig.caps = {SWEEP: Cap(nano=worst(rig) + 50 * PAID)}
    await rig.run(make_cells(range(100)))
    assert len(rig.calls) >= 50


async def test_an_exhausted_stage_does_not_starve_the_others(rig: Rig) -> None:
    """Its thousand requests stand first in the lane; the other stage's are all made."""
    rig.caps = {Scope("stage", "task"): Cap(nano=0)}
    cells = [*make_cells(range(1_000)), *make_cells(range(20), stage="judge")]
    assert await rig.run(cells) is Outcome.BUDGET
    assert sorted(rig.calls) == sorted(f"judge {each}" for each in range(20))
    assert await rig.states() == {"planned": 1_000, "read": 20}


async def test_a_stage_that_gets_money_back_is_leased_again(rig: Rig) -> None:
    """Passing a stage over is not for ever: its budget pays for all, though not for all reservations at once."""
    rig.limits = RateLimits(concurrency=200, adaptive=False)
    rig.caps = {Scope("stage", "task"): Cap(nano=150 * worst(rig))}
    assert await rig.run([*make_cells(range(1_500)), *make_cells(range(20), stage="judge")]) is Outcome.COMPLETE
    assert Counter(text.split()[0] for text in rig.calls) == {"task": 1_500, "judge": 20}


async def test_an_exhausted_model_does_not_starve_another_of_its_lane(rig: Rig) -> None:
    """Two names of one snapshot have budgets of their own."""
    rig.caps = {Scope("model", "m"): Cap(nano=0)}
    cells = [*make_cells(range(1_000)), *(make_cell(each, stage="x", alias="n") for each in range(5))]
    assert await rig.run(cells) is Outcome.BUDGET
    assert sorted(rig.calls) == [f"x {each}" for each in range(5)]


async def test_a_shrinking_budget_is_told_at_each_threshold(rig: Rig) -> None:
    """Once."""
    rig.caps = {SWEEP: Cap(nano=100 * PAID)}
    rig.limits = RateLimits(concurrency=1, adaptive=False)
    await rig.run(make_cells(range(200)))
    assert rig.told("budget")[:2] == ["sweep s has used 50 % of its budget", "sweep s has used 80 % of its budget"]
    assert len(set(rig.told("budget"))) == len(rig.told("budget"))


# ----- stopping and going on


def stop_after(rig: Rig, calls: int, how: str) -> Callable[[Runner], object]:
    """Have a run stopped once its provider has been called so often and is still busy."""

    def watch(runner: Runner) -> None:
        if len(rig.provider.seen) >= calls and rig.provider.in_flight:
            getattr(runner, how)()
        else:
            asyncio.get_running_loop().call_later(0.001, watch, runner)

    return watch


async def test_a_drained_run_leaves_nothing_half_done(rig: Rig) -> None:
    """The calls on the wire are stored, the rest is planned and free, and the next run repeats nothing."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.005)
    rig.started = stop_after(rig, 20, "drain")
    assert await rig.run(make_cells(range(500))) is Outcome.INTERRUPTED
    assert rig.last.draining
    states = await rig.states()
    assert set(states) <= {"planned", "read"}
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
    assert await rig.query("SELECT count(*) FROM request WHERE owner IS NOT NULL") == [(0,)]
    rig.started = lambda runner: None
    assert await rig.run(make_cells(range(500))) is Outcome.COMPLETE
    assert rig.recovery.calls == 0
    assert len(rig.calls) == len(set(rig.calls)) == 500


async def test_a_drained_run_sends_nothing_that_was_not_on_the_wire(rig: Rig) -> None:
    """Not even what is being announced to the disk at that moment."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.02)
    at_drain: list[int] = []

    def drain_soon(runner: Runner) -> None:
        def drain() -> None:
            runner.drain()
            at_drain.append(len(rig.provider.seen))

        asyncio.get_running_loop().call_later(0.05, drain)

    rig.started = drain_soon
    assert await rig.run(make_cells(range(2_000))) is Outcome.INTERRUPTED
    assert len(rig.provider.seen) == at_drain[0]


async def test_a_run_that_is_stopped_before_it_begins_sends_nothing(rig: Rig) -> None:
    """A second Ctrl-C can come at any time."""
    rig.started = lambda runner: runner.drain()
    assert await rig.run(make_cells(range(50))) is Outcome.INTERRUPTED
    assert rig.calls == []


async def test_an_aborted_runs_calls_count_as_billed_and_are_made_again(rig: Rig) -> None:
    """Nobody knows whether they were done; the next run says how many and how much."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=3_600.0)
    rig.started = stop_after(rig, 8, "abort")
    async with asyncio.timeout(30):
        assert await rig.run(make_cells(range(20))) is Outcome.INTERRUPTED
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(len(rig.calls),)]
    cut_off = await rig.spent()
    calls = len(rig.calls)
    assert calls == 8
    rig.provider = ScriptedProvider(lambda request, times: "hi")
    rig.started = lambda runner: None
    assert await rig.run(make_cells(range(20))) is Outcome.COMPLETE
    assert (rig.recovery.calls, rig.recovery.nano) == (calls, cut_off)
    assert len(rig.calls) == 20
    assert await rig.spent() == cut_off + 20 * PAID


async def test_a_run_whose_task_is_cancelled_still_stores_what_was_on_the_wire(rig: Rig) -> None:
    """Cancellation waits for the calls; what they bring is paid for."""
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.05)
    task = asyncio.create_task(rig.run(make_cells(range(100))))
    while not getattr(rig.provider, "in_flight", 0):  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
    assert (await rig.states())["read"] == len(rig.calls)


# ----- plans that go wrong


def broken_plan(after: int) -> Iterator[Cell]:
    """A plan that fails after so many cells."""
    yield from make_cells(range(after))
    raise UserError("persona 7 has no name", where="personas.toml", mend="give it one")


@pytest.mark.parametrize("after", [0, 10, 500])
async def test_an_error_in_the_plan_is_raised_after_a_clean_drain(rig: Rig, after: int) -> None:
    """At the beginning, in the middle or at the very end; what was on the wire is stored."""
    with pytest.raises(UserError, match="persona 7 has no name"):
        await rig.run(broken_plan(after))
    if after:
        assert set(await rig.states()) <= {"planned", "read"}
        assert await rig.query("SELECT count(*) FROM attempt WHERE outcome = 'open'") == [(0,)]
        assert await rig.run(make_cells(range(after))) is Outcome.COMPLETE
        assert len(rig.calls) == len(set(rig.calls)) == after


async def test_an_error_at_the_end_of_a_plan_is_raised_though_all_its_cells_are_done(rig: Rig) -> None:
    """The plan's last cells are answered before it fails."""
    done = asyncio.Event()

    def plan() -> Iterator[Cell]:
        yield from make_cells(range(3))
        done.set()
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        await rig.run(plan())
    assert done.is_set()


async def test_a_plan_that_was_cut_short_is_planned_again(rig: Rig) -> None:
    """A sweep is marked as planned only at the end."""
    with pytest.raises(UserError):
        await rig.run(broken_plan(300))
    assert await rig.query("SELECT planned FROM sweep") == [(0,)]
    await rig.run(make_cells(range(300)))
    assert await rig.query("SELECT planned FROM sweep") == [(1,)]


async def test_a_store_that_is_closed_under_a_run_ends_it_with_an_error(rig: Rig) -> None:
    """Not with a hang, and not in silence."""

    def close(runner: Runner) -> None:
        rig.closing = asyncio.ensure_future(runner._store.close())

    rig.started = lambda runner: asyncio.get_running_loop().call_later(0.02, close, runner)
    rig.provider = ScriptedProvider(lambda request, times: "hi", latency=0.01)
    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match="the store is closed"):
            await rig.run(make_cells(range(5_000)))
    await rig.closing


async def test_requests_for_models_that_a_run_does_not_use_are_left_and_told(rig: Rig) -> None:
    """A follow-up to a model that the sweep file no longer names is not lost in silence."""
    cells = [*make_cells(range(3)), make_cell(9, alias="q", request=make_request("x", model="m-9"))]
    assert await rig.run(cells) is Outcome.INCOMPLETE
    assert rig.told("left_waiting") == ["1 requests wait for models that this run does not use: scripted/m-9"]
    rig.aliases["q"] = "scripted/m-9"
    assert await rig.run(cells) is Outcome.COMPLETE


# ----- fairness, clocks, looking


async def test_one_lanes_long_queue_does_not_delay_another_lane(rig: Rig) -> None:
    """Two thousand calls wait for a slow lane; the fast lane's are done long before."""
    order: list[str] = []

    class Slow(ScriptedProvider):
        async def complete(self, request: Request) -> Reply:
            reply = await super().complete(request)
            order.append(self.name)
            return reply

    rig.provider = Slow(lambda request, times: "hi", latency=0.005)
    rig.other = Slow(lambda request, times: "hi", name="other")
    rig.limits = RateLimits(concurrency=4, adaptive=False)
    elsewhere = [msgspec.structs.replace(make_request(f"else {each}"), provider="other") for each in range(50)]
    quick = [make_cell(5_000 + each, alias="p", request=request) for each, request in enumerate(elsewhere)]
    cells = [*make_cells(range(1_000)), *quick]
    assert await rig.run(cells) is Outcome.COMPLETE
    assert max(at for at, name in enumerate(order) if name == "other") < 600


async def test_a_wall_clock_that_jumps_hands_nothing_out_twice(rig: Rig) -> None:
    """Forwards by a day and back by a year, at every look."""

    class Jumping(SystemClock):
        looks = 0

        def wall_ms(self) -> int:
            self.looks += 1
            return super().wall_ms() + (86_400_000 if self.looks % 2 else -31_536_000_000)

    rig.clock = Jumping()
    assert await rig.run(make_cells(range(600))) is Outcome.COMPLETE
    assert len(rig.calls) == len(set(rig.calls)) == 600


async def test_a_snapshot_can_be_taken_at_any_time_and_changes_nothing(rig: Rig) -> None:
    """Four times a second or a thousand."""
    shots = []

    def look(runner: Runner) -> None:
        shots.append(runner.snapshot())
        asyncio.get_running_loop().call_later(0.001, look, runner)

    rig.started = look
    rig.caps = {SWEEP: Cap(nano=10**12)}
    assert await rig.run(make_cells(range(300))) is Outcome.COMPLETE
    account = rig.last.accounts[SWEEP]
    assert (account.spent_nano, account.reserved_nano) == (300 * PAID, 0)
    assert [shot.calls for shot in shots] == sorted(shot.calls for shot in shots)
    assert msgspec.json.encode(rig.last.lanes)


# ----- what is told


async def test_a_provider_that_stops_is_told_of_once(rig: Rig) -> None:
    """Every call on the wire gets the same answer."""
    rig.provider = ScriptedProvider(lambda request, times: error(ErrorClass.AUTH), latency=0.01)
    assert await rig.run(make_cells(range(20))) is Outcome.STOPPED
    assert len(rig.calls) > 1
    assert len(rig.told("provider_stopped")) == 1


async def test_the_first_error_of_each_class_is_told(rig: Rig) -> None:
    """The others are counted."""
    rig.provider = ScriptedProvider(failing(error(ErrorClass.TRANSIENT), error(ErrorClass.RATE, retry_after=0.0)))
    assert await rig.run(make_cells(range(2))) is Outcome.COMPLETE
    assert sorted(rig.told("first_error")) == [
        "first rate error of scripted, tried again: rate trouble",
        "first transient error of scripted, tried again: transient trouble",
    ]


async def test_a_days_calls_of_earlier_runs_count_after_a_restart(rig: Rig) -> None:
    """A restart gives nobody a second allowance; another lane has its own."""
    rig.limits = RateLimits(concurrency=8, adaptive=False, requests_per_day=10)
    await rig.run(make_cells(range(10)))
    rig.started = lambda runner: asyncio.get_running_loop().call_later(0.3, runner.drain)
    other = make_cell(99, alias="o", request=make_request("task 99", model="m-2"))
    assert await rig.run([*make_cells(range(15)), other]) is Outcome.INTERRUPTED
    assert (len(rig.calls), await rig.states()) == (11, {"read": 11, "planned": 5})
