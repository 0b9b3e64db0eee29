"""Faults and latencies: scripted or seeded, never by accident."""

import pytest

from bench.simulator.faults import Attempt, Fault, Faults, Rule
from bench.simulator.latency import Latency, Shape, seconds, uniform


def attempt(number: int = 1, content: str = "00", **more: str) -> Attempt:
    fields = {"provider": "openai", "model": "gpt-5.5", "stage": "task", "prompt": "hello"} | more
    return Attempt(hash=content, number=number, **fields)


def kinds(faults: Faults, attempts: list[Attempt]) -> list[Fault | None]:
    return [rule.fault if (rule := faults.decide(one)) else None for one in attempts]


def test_a_rule_hits_once_unless_it_says_otherwise() -> None:
    """Then calls go through again."""
    assert kinds(Faults([Rule(fault=Fault.SERVER_ERROR)], {}, 0), [attempt()] * 3) == [Fault.SERVER_ERROR, None, None]


def test_a_rule_can_let_calls_pass_first_and_hit_several() -> None:
    """Skip one, hit two."""
    faults = Faults([Rule(fault=Fault.QUOTA, skip=1, times=2)], {}, 0)
    assert kinds(faults, [attempt()] * 5) == [None, Fault.QUOTA, Fault.QUOTA, None, None]


def test_a_rule_without_end_hits_for_ever() -> None:
    """`times = 0`."""
    assert set(kinds(Faults([Rule(fault=Fault.AUTH, times=0)], {}, 0), [attempt()] * 20)) == {Fault.AUTH}


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(Rule(fault=Fault.GONE, provider="gemini"), id="provider"),
        pytest.param(Rule(fault=Fault.GONE, model="claude"), id="model"),
        pytest.param(Rule(fault=Fault.GONE, stage="judge"), id="stage"),
        pytest.param(Rule(fault=Fault.GONE, contains="goodbye"), id="words"),
        pytest.param(Rule(fault=Fault.GONE, attempt=2), id="attempt"),
    ],
)
def test_a_rule_leaves_other_calls_alone(rule: Rule) -> None:
    """Each condition by itself keeps the rule away."""
    assert Faults([rule], {}, 0).decide(attempt()) is None


def test_random_faults_depend_on_seed_content_and_attempt_alone() -> None:
    """The order of arrival changes nothing; another seed changes much."""
    attempts = [attempt(number, f"{content:032x}") for content in range(300) for number in (1, 2)]
    first = Faults([], {Fault.OVERLOADED: 0.2}, 1)
    forward = dict(zip(attempts, kinds(first, attempts), strict=True))
    backward = dict(zip(attempts[::-1], kinds(Faults([], {Fault.OVERLOADED: 0.2}, 1), attempts[::-1]), strict=True))
    other = dict(zip(attempts, kinds(Faults([], {Fault.OVERLOADED: 0.2}, 2), attempts), strict=True))
    assert forward == backward
    assert forward != other


def test_random_faults_come_as_often_as_their_chances_say() -> None:
    """Two kinds, each near its share of 4,000 calls."""
    faults = Faults([], {Fault.OVERLOADED: 0.1, Fault.DROP_AFTER: 0.05}, 3)
    found = kinds(faults, [attempt(1, f"{n:032x}") for n in range(4000)])
    assert found.count(Fault.OVERLOADED) / 4000 == pytest.approx(0.1, abs=0.02)
    assert found.count(Fault.DROP_AFTER) / 4000 == pytest.approx(0.05, abs=0.02)


def test_no_rules_and_no_chances_mean_nothing_is_counted() -> None:
    """The server can skip the whole question."""
    assert not Faults([], {}, 0).active


@pytest.mark.parametrize("shape", list(Shape))
def test_half_of_all_calls_are_faster_than_the_median(shape: Shape) -> None:
    """Whatever the form; a fixed time is always the median."""
    latency = Latency(shape=shape, median_ms=200)
    times = [seconds(latency, uniform("test", n), 0) for n in range(2001)]
    assert sorted(times)[1000] == pytest.approx(0.2, rel=0.1)


def test_long_answers_take_longer_up_to_the_most() -> None:
    """Per token, and never beyond the bound."""
    latency = Latency(median_ms=100, token_ms=10, most_ms=500)
    assert [seconds(latency, 0.5, tokens) for tokens in (0, 10, 1000)] == [0.1, 0.2, 0.5]
