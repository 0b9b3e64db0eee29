"""The analysis benchmark: its store is the one that it says, and both sides count the same."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from analysis.context import Settings, prepare
from analysis.judged import leaderboard
from analysis.load import load
from analysis.within import within_model
from bench.cli import main
from bench.throughput.analysis import _holds, run_analysis
from bench.throughput.judged_store import MODELS, PAPER_CLAIMS, write_store
from bench.throughput.plainly import oi_rates, rank_correlations, read_records, resample
from bench.throughput.tabled import Found

FOUND = Found(
    load_s=0.5, tables_s=1.5, resampling_s=0.1, wall_s=2.0, resamples=10_000, peak_mb=200, oi={}, rho={}, figures=1
)


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


def test_the_command_measures_both_sides_and_writes_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was only extrapolated is called so; the file says that answers are simulated and on which machine it ran."""
    out = tmp_path / "figures.json"
    with pytest.raises(SystemExit) as left:
        main(["bench", "analysis", "--plain-resamples", "1", "--json", str(out), "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    found = json.loads(out.read_text(encoding="utf-8"))
    assert left.value.code in {0, 1}
    assert "(extrapolated)" in printed
    assert "SIMULATED" in printed
    assert (found["benchmark"], found["simulated"]) == ("analysis", True)
    assert found["result"]["agrees"] is True
    assert found["result"]["claims"] == PAPER_CLAIMS
    assert found["result"]["ours"]["resamples"] == 10_000
    assert found["machine"]["processors"] > 0
    assert [file.name for file in tmp_path.iterdir()] == ["figures.json"]


def test_without_pandas_ours_alone_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users do not have it; they are told, and nothing is extrapolated from nothing."""
    monkeypatch.setattr("bench.throughput.analysis.find_spec", lambda _: None)
    told: list[str] = []
    report = run_analysis(claims=1, folder=tmp_path, told=told.append)
    assert (report.plain, report.plain_extrapolated_s, report.times_faster) == (None, None, None)
    assert any("`make setup-dev` installs" in line for line in told)


@pytest.mark.parametrize(("claims", "told"), [(5_000, True), (300_000, True), (PAPER_CLAIMS, False)])
def test_a_store_of_another_size_than_was_asked_for_is_said_to_be_one(
    claims: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores hold whole sweeps of the paper's size."""
    said: list[str] = []
    monkeypatch.setattr("bench.throughput.analysis.write_store", _touched)
    monkeypatch.setattr("bench.throughput.analysis._measured", lambda _order: FOUND)
    report = run_analysis(claims=claims, plain_resamples=0, folder=tmp_path, told=said.append)
    line = f"{claims:,} claims were asked for; a store holds whole sweeps of 143,616: it has {report.claims:,}"
    assert (line in said) is told


def _touched(path: Path, samples: int) -> int:
    path.touch()
    return samples * PAPER_CLAIMS


@pytest.mark.parametrize(
    ("claims", "changes", "holds"),
    [
        pytest.param(PAPER_CLAIMS, {}, True, id="all kept"),
        pytest.param(PAPER_CLAIMS, {"tables_s": 2.6}, False, id="tables too slow"),
        pytest.param(PAPER_CLAIMS, {"resampling_s": 0.6}, False, id="resampling too slow"),
        pytest.param(10**7, {"tables_s": 50.0, "resampling_s": 0.6}, True, id="more claims may take longer"),
        pytest.param(10**7, {"load_s": 60.0}, False, id="but not longer than a minute"),
        pytest.param(10**7, {"peak_mb": 2100.0}, False, id="nor more than two gigabytes"),
    ],
)
def test_a_promise_is_held_or_not(claims: int, changes: dict[str, float], holds: bool) -> None:
    """Each limit alone decides."""
    assert _holds(claims, msgspec.structs.replace(FOUND, **changes)) is holds
