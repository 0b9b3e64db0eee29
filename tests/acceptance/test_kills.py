"""Kill -9 at random instants under faults, judged by the bill of the simulator: nothing lost, little repeated."""

import os

import pytest

from bench.throughput.kills import run_kills
from bench.throughput.kills_batches import run_batch_kills

BOUNDED = os.environ.get("MIRAGE_SLOW") == "bounded"


def test_a_sweep_survives_a_few_kills() -> None:
    """The short form, for every run of the tests."""
    report = run_kills(kills=4, calls=400, seed=1)
    assert report.holds, report
    assert report.kills == 4
    assert report.on_the_wire_at_kills == report.engine_estimate_of_double_bills


def test_batches_survive_a_few_kills() -> None:
    """The short form of kills by batch."""
    report = run_batch_kills(kills=4, calls=240, seed=1)
    assert report.holds, report
    assert (report.kills, report.lost, report.billed_twice) == (4, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_batches_survive_many_kills() -> None:
    """The whole form: 200 kills over 20,000 calls at six providers; a tenth of it when bounded."""
    share = 10 if BOUNDED else 1
    report = run_batch_kills(kills=200 // share, calls=20_000 // share, seed=7)
    assert report.holds, report
    assert len(report.providers) == 6
    assert report.steps > (40 if share == 1 else 4)
    assert report.charged_without_answer > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1 if BOUNDED else 10))
def test_no_seed_repeats_or_loses_a_batched_call(seed: int) -> None:
    """Other instants, other faults."""
    report = run_batch_kills(kills=16, calls=1_600, seed=100 + seed)
    assert report.holds, report


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
