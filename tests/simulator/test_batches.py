"""The life of simulated batches, without a socket: stages by age, what runs, what is charged, what is odd."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.simulator.answers import Speaker
from bench.simulator.batches import Batches
from bench.simulator.batchjobs import ENDED, Clerk, Complaint, Fate, Job, Line, Stage
from bench.simulator.batchrules import BatchSettings, Quirks
from bench.simulator.bill import Bill
from bench.simulator.config import Config
from bench.simulator.desk import Desk
from bench.simulator.faults import Fault, Faults, Rule
from bench.simulator.openai import CHAT, OpenAI

STILL = BatchSettings(speed=0.0, validating=5, request=1, finalizing=5, cancelling=5)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


@pytest.fixture
def bill(tmp_path: Path) -> Iterator[Bill]:
    found = Bill(tmp_path)
    yield found
    found.close()


def office(bill: Bill, speaker: Speaker, settings: BatchSettings = STILL, *rules: Rule) -> Batches:
    """Return a simulator's batches with one provider."""
    clock, wire = Clock(), OpenAI()
    batches = Batches(settings, Desk(Config(), speaker, bill, clock), Faults(rules, {}, 0), clock)
    read = lambda _job, line: wire.read(CHAT, {}, line.body)  # noqa: E731
    batches.serve("openai", Clerk(read, wire.write, wire.reject, wire.trouble))
    return batches


def job(batches: Batches, count: int = 4, *, window: float = 86_400.0, bad: str = "", **quirks: object) -> Job:
    """Start a job of so many lines."""
    lines = [Line(f"r-{n}", {"model": "m", "messages": [{"role": "user", "content": f"q {n}"}]}) for n in range(count)]
    return batches.add_job(
        Job(
            id="b",
            provider="openai",
            owner=b"",
            model="m",
            lines=lines,
            quirks=Quirks(shuffle=False, **quirks),  # type: ignore[arg-type]
            created=batches.real,
            born=batches.now(),
            window=window,
            complaint=Complaint(bad, "") if bad else None,
        )
    )


def fates(found: Job) -> list[Fate]:
    """Return what became of the lines."""
    assert found.outcomes is not None
    return [outcome.fate for outcome in found.outcomes]


def test_a_job_passes_through_its_stages_by_age(bill: Bill, speaker: Speaker) -> None:
    """Validating, running, finalizing, completed; a counter that grows meanwhile."""
    batches = office(bill, speaker)
    found, seen = job(batches), []
    for seconds in (0, 5, 2, 2, 5):
        batches.advance(seconds)
        seen.append((batches.stage(found), batches.finished(found)))
    assert seen == [
        (Stage.VALIDATING, 0),
        (Stage.RUNNING, 0),
        (Stage.RUNNING, 2),
        (Stage.FINALIZING, 4),
        (Stage.COMPLETED, 4),
    ]


def test_every_row_is_charged_once_however_often_one_looks(bill: Bill, speaker: Speaker) -> None:
    """And repeated or lost rows change nothing about that."""
    batches = office(bill, speaker)
    found = job(batches, repeat_rows=2, lose_rows=1)
    batches.advance(1000)
    for _ in range(3):
        assert batches.stage(found) is Stage.COMPLETED
    assert (bill.calls, len(found.outcomes or [])) == (4, 5)


def test_a_job_that_fails_runs_nothing(bill: Bill, speaker: Speaker) -> None:
    """Nothing is charged."""
    batches = office(bill, speaker)
    found = job(batches, bad="duplicate_custom_id")
    batches.advance(1000)
    assert (batches.stage(found), fates(found), bill.calls) == (Stage.FAILED, [], 0)


def test_a_window_cuts_a_slow_job(bill: Bill, speaker: Speaker) -> None:
    """What finished in time is charged."""
    batches = office(bill, speaker)
    found = job(batches, window=25, slow=10.0)
    batches.advance(1000)
    assert (batches.stage(found), fates(found)) == (Stage.EXPIRED, [Fate.ANSWERED] * 2 + [Fate.EXPIRED] * 2)
    assert bill.calls == 2


def test_a_cancelled_job_keeps_what_had_finished(bill: Bill, speaker: Speaker) -> None:
    """At the moment of the order, not of its end."""
    batches = office(bill, speaker)
    found = job(batches)
    batches.advance(6.5)
    assert batches.cancel(found)
    assert batches.stage(found) is Stage.CANCELLING
    batches.advance(5)
    assert (batches.stage(found), fates(found)) == (Stage.CANCELLED, [Fate.ANSWERED] + [Fate.CANCELLED] * 3)
    assert not batches.cancel(found)


def test_a_job_that_is_stuck_never_ends_by_itself(bill: Bill, speaker: Speaker) -> None:
    """Also past its window."""
    batches = office(bill, speaker)
    found = job(batches, stuck=True)
    batches.advance(10**6)
    assert batches.stage(found) is Stage.FINALIZING


def test_a_job_that_is_stuck_ends_with_its_window_where_that_is_asked_for(bill: Bill, speaker: Speaker) -> None:
    """As a provider promises that lets every batch expire."""
    batches = office(bill, speaker, msgspec.structs.replace(STILL, stuck_for_ever=False))
    found = job(batches, stuck=True)
    batches.advance(found.window - 1)
    assert batches.stage(found) is Stage.FINALIZING
    batches.advance(2)
    assert batches.stage(found) is Stage.COMPLETED


def test_a_fault_hits_a_line_and_not_its_job(bill: Bill, speaker: Speaker) -> None:
    """Refused lines are not charged."""
    batches = office(bill, speaker, STILL, Rule(fault=Fault.SERVER_ERROR, contains="q 2"))
    found = job(batches)
    batches.advance(1000)
    batches.stage(found)
    assert fates(found) == [Fate.ANSWERED, Fate.ANSWERED, Fate.REFUSED, Fate.ANSWERED]
    assert (bill.calls, found.outcomes is not None and found.outcomes[2].reply.status) == (3, 500)


def test_rows_come_in_an_order_of_their_own(bill: Bill, speaker: Speaker) -> None:
    """The same one every time."""
    batches = office(bill, speaker)
    found = job(batches, count=20)
    found.quirks = Quirks()
    batches.advance(1000)
    batches.stage(found)
    ids = [outcome.custom_id for outcome in found.outcomes or []]
    assert ids != [line.custom_id for line in found.lines]
    assert sorted(ids) == sorted(line.custom_id for line in found.lines)


async def test_a_large_job_lets_others_be_served_while_it_ends(bill: Bill, speaker: Speaker) -> None:
    """Its requests run in slices; it has ended when the last one has."""
    batches = office(bill, speaker, BatchSettings(speed=1.0, request=0.0))
    found = job(batches, count=450)
    batches.advance(1000)
    seen = []
    while batches.stage(found) not in ENDED:
        seen.append(bill.calls)
        await asyncio.sleep(0)
    assert seen == sorted(seen)
    assert {200, 400} <= set(seen)
    assert (bill.calls, len(fates(found))) == (450, 450)


async def test_a_job_is_not_cancelled_while_its_last_requests_run(bill: Bill, speaker: Speaker) -> None:
    """Or they would be charged and called cancelled."""
    batches = office(bill, speaker, BatchSettings(speed=1.0, request=0.0))
    found = job(batches, count=450)
    batches.advance(1000)
    assert not batches.cancel(found)
    for _ in range(5):
        await asyncio.sleep(0)
    assert batches.stage(found) is Stage.COMPLETED


def test_a_batch_that_is_to_expire_is_cut_in_half_by_its_window(bill: Bill, speaker: Speaker) -> None:
    """However many requests it has, and however short the settings make the window."""
    batches = office(bill, speaker, msgspec.structs.replace(STILL, window=100.0))
    found = job(batches, count=10, expire=True)
    batches.advance(99)
    assert batches.stage(found) is Stage.RUNNING
    batches.advance(1)
    assert (batches.stage(found), Counter(fates(found))) == (Stage.EXPIRED, {Fate.ANSWERED: 4, Fate.EXPIRED: 6})


def test_a_random_fault_does_not_hit_a_request_in_every_batch(bill: Bill, speaker: Speaker) -> None:
    """The second time it is another attempt, with a draw of its own."""
    clock, wire = Clock(), OpenAI()
    faults = Faults([], {Fault.SERVER_ERROR: 0.5}, 0)
    batches = Batches(STILL, Desk(Config(), speaker, bill, clock), faults, clock)
    read = lambda _job, line: wire.read(CHAT, {}, line.body)  # noqa: E731
    batches.serve("openai", Clerk(read, wire.write, wire.reject, wire.trouble))
    tries = []
    for _ in range(6):
        found = job(batches, count=20)
        batches.advance(1000)
        batches.stage(found)
        tries.append(fates(found))
    assert all(Fate.ANSWERED in column for column in zip(*tries, strict=True))


def test_an_ended_job_keeps_no_prompts(bill: Bill, speaker: Speaker) -> None:
    """Nor, once they are in a file, its answers."""
    batches = office(bill, speaker)
    found = job(batches)
    batches.advance(1000)
    batches.stage(found)
    assert [line.body for line in found.lines] == [{}] * 4
    assert all(outcome.reply.body for outcome in found.outcomes or [])
    found.filed(["file-1"])
    assert (found.files, [outcome.reply.body for outcome in found.outcomes or []]) == (["file-1"], [b""] * 4)
    assert fates(found) == [Fate.ANSWERED] * 4


async def test_moments_are_told_in_real_time(bill: Bill, speaker: Speaker) -> None:
    """A day of the batches' time is a minute at this speed."""
    batches = office(bill, speaker, BatchSettings(speed=1440.0))
    found = job(batches)
    assert batches.moment(found, 86_400.0) == found.created + 60.0
