"""Whole runs over a provider that errs, and budgets that run out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.errors import ErrorClass, ProviderError
from engine.events import Outcome, StageCount
from engine.ledger import Cap, Scope
from engine.limits import RateLimits
from engine.money import FREE
from engine.provider import Reply
from engine.request import Request
from engine.retry import RetryPolicy
from engine.testing import ScriptedProvider, make_cell, make_cells, make_request

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


def worst(rig: Rig) -> int:
    """About the reservation of one request of `make_cell`."""
    return int(rig.price.output // 1_000_000 * 100)


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


async def test_a_run_that_ends_for_its_caps_says_which(rig: Rig) -> None:
    """Every cap in the way, as a notice and as data; caps with room are not among them."""
    stage = Scope("stage", "task")
    rig.caps = {SWEEP: Cap(nano=300_000_000), stage: Cap(tokens=1), Scope("model", "m"): Cap(nano=1)}
    assert await rig.run(make_cells(range(3))) is Outcome.BUDGET
    assert rig.last is not None
    found = {(each.scope, each.cap, each.spent) for each in rig.last.short}
    assert found == {(Scope("model", "m"), 1, 0), (stage, 1, 0)}
    assert rig.told("cap_reached") == [str(each) for each in rig.last.short]
    (_, told) = [notice for notice in rig.notices if notice.kind == "cap_reached"]
    assert (told.fields["scope"], told.fields["unit"], told.fields["cap"]) == ("stage task", "tokens", 1)


async def test_a_run_that_ends_for_another_reason_names_no_cap(rig: Rig) -> None:
    """However near they were."""
    rig.caps = {SWEEP: Cap(nano=worst(rig) + 50 * PAID)}
    assert await rig.run(make_cells(range(3))) is Outcome.COMPLETE
    assert rig.last is not None
    assert (rig.last.short, rig.told("cap_reached")) == ((), [])


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
