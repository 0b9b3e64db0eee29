"""The analysis benchmark: its store is the one that it says, and both sides count the same."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis.context import Settings, prepare
from analysis.judged import leaderboard
from analysis.load import load
from analysis.within import within_model
from bench.throughput.analysis import Report, described
from bench.throughput.judged_store import MODELS, PAPER_CLAIMS, write_store
from bench.throughput.plainly import oi_rates, rank_correlations, read_records, resample
from bench.throughput.tabled import Found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the paper's size."""
    path = tmp_path_factory.mktemp("bench") / "store.sqlite"
    assert write_store(path) == PAPER_CLAIMS == 143_616
    return path


def test_a_made_up_store_is_marked_and_read_like_any_other(store: Path) -> None:
    """Its models have the paper's numbers of claims; its answers are simulated."""
    data = load(store)
    assert data.sweep.simulated
    assert (len(data.records), len(data.models), len(data.axes.personas)) == (10_800, 13, 150)
    by_model = {
        data.axes.models[place]: int(data.records.claims[data.records.model == place].sum()) for place in range(12)
    }
    assert by_model == {name: claims for name, (_, claims, _, _) in MODELS.items()}


def test_the_same_seed_writes_the_same_answers(store: Path, tmp_path: Path) -> None:
    """Runs on different machines measure the same work."""
    again = tmp_path / "again.sqlite"
    write_store(again)
    found = []
    for path in (store, again):
        with closing(sqlite3.connect(path)) as connection:
            found.append(connection.execute("SELECT cell_id, body FROM reading WHERE cell_id % 500 = 0").fetchall())
    assert found[0] == found[1]


def test_both_sides_find_the_same(store: Path) -> None:
    """The plain way is right, so that being faster than it means something."""
    records = read_records(store)
    context = prepare(load(store), Settings(resamples=100))
    rates, correlations = leaderboard(context), within_model(context)
    for model, rate in oi_rates(records).items():
        assert rates.row(model)["oi"].value == pytest.approx(rate, abs=1e-12)  # type: ignore[union-attr]
    for model, rho in rank_correlations(records).items():
        assert correlations.row(model)["rho"].value == pytest.approx(rho, abs=1e-9)  # type: ignore[union-attr]
    assert resample(records, 1, 0) == 12 + 6 + 72 + 2 * 12


def test_what_is_extrapolated_is_called_so() -> None:
    """Nobody takes it for a measurement."""
    ours = Found(load_s=0.5, tables_s=1.5, resampling_s=0.1, resamples=10_000, peak_mb=200, oi={}, rho={}, figures=700)
    plain = Found(load_s=0.4, tables_s=1.0, resampling_s=0.8, resamples=20, peak_mb=300, oi={}, rho={}, figures=114)
    report = Report(
        claims=143_616,
        store_mb=76,
        ours=ours,
        plain=plain,
        plain_extrapolated_s=400.6,
        times_faster=200,
        agrees=True,
        holds=True,
        load_before=0,
        load_after=0,
    )
    lines = list(described(report))
    assert "with only 20 resamples" in lines[2]
    assert "401 (extrapolated)" in lines[2]
