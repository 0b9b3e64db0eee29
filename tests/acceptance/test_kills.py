"""Kill -9 at random instants under faults, judged by the bill of the simulator: nothing lost, little repeated."""

import os

import pytest

from bench.throughput.kills import run_kills

BOUNDED = os.environ.get("MIRAGE_SLOW") == "bounded"


def test_a_sweep_survives_a_few_kills() -> None:
    """The short form, for every run of the tests."""
    report = run_kills(kills=4, calls=400, seed=1)
    assert report.holds, report
    assert report.kills == 4
    assert report.on_the_wire_at_kills == report.engine_estimate_of_double_bills


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_sweep_survives_many_kills() -> None:
    """The whole form: 200 kills over 20,000 calls; a tenth of it when bounded."""
    share = 10 if BOUNDED else 1
    report = run_kills(kills=200 // share, calls=20_000 // share, seed=7)
    assert report.holds, report
    assert report.billed_twice > 0
    assert sum(report.errors.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2 if BOUNDED else 20))
def test_no_seed_loses_a_call(seed: int) -> None:
    """Other instants, other faults."""
    report = run_kills(kills=8, calls=800, seed=100 + seed)
    assert report.holds, report
