"""Whole runs over a scripted provider and a real store file."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.clock import SystemClock
from engine.events import Outcome, StageCount
from engine.ledger import Cap, Scope
from engine.limits import RateLimits
from engine.provider import Reply
from engine.request import Completion, Request
from engine.runner import Runner
from engine.testing import EchoReader, ScriptedProvider, make_cell, make_cells, make_completion, make_request

Rig = Any
SWEEP = Scope("sweep", "s")
# What one answer of `make_completion` costs at the rig's price.
PAID = 7_000


def number(coords: bytes) -> int:
    """The number of a cell of `make_cell`."""
    return int(msgspec.json.decode(coords)["n"])


def judged(stage: str, coords: bytes, completion: Completion) -> list[Cell]:
    """Every task is judged, every judgement checked, before new tasks are begun."""
    following = {"task": "judge", "judge": "check"}
    if stage not in following:
        return []
    return [msgspec.structs.replace(make_cell(number(coords), stage=following[stage]), priority=-1)]


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
