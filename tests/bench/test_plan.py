"""`mirage plan`: both prices, how everything will be sent and why, what that costs, and how long it may take."""

import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.cli.plan import money
from bench.estimate import Done, Line, calls_left, chosen_nano, shortfalls, stream_seconds, total_nano
from bench.modes import Mode
from bench.run import prepare
from bench.sweepfile import load_sweep
from engine.ledger import Amount, Cap, Scope
from instruments.instrument import Stage
from instruments.reader import count_asks

SWEEP = """
name = "s"
models = ["gpt-5.5", "deepseek-v4-pro"]
judges = ["claude-opus-4-7"]
stages = ["task", "judge", "accum"]
personas = 5
{mode}
[limits."gpt-5.5"]
requests_per_minute = 2
[limits."deepseek-v4-pro"]
requests_per_minute = 1
"""


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an empty home and without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)


def planned(capsys: pytest.CaptureFixture[str], mode: str, *options: str) -> str:
    """Return what `mirage plan` prints for the sweep in this mode."""
    Path("sweep.toml").write_text(SWEEP.format(mode=mode), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(("plan", "sweep.toml", *options))
    assert not ended.value.code
    return capsys.readouterr().out


def lines(capsys: pytest.CaptureFixture[str], mode: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(line["alias"], line["stage"]): line for line in json.loads(planned(capsys, mode, "--json"))}


def line(**fields: object) -> Line:
    plain = {
        "stage": "task", "alias": "a", "calls": 1, "input_tokens": 1, "output_tokens": 1, "learned": 0,
        "stream_nano": 10, "batch_nano": 5, "seconds": 60.0, "mode": Mode.STREAM, "why": "", "waves": 0,
        "batch_seconds": None,
    }  # fmt: skip
    return Line(**{**plain, **fields})  # type: ignore[arg-type]


def test_every_line_has_both_prices_its_mode_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """For programs, too."""
    found = lines(capsys, 'mode = "auto"')
    task, judge = found["gpt-5.5", "task"], found["claude-opus-4-7", "judge"]
    assert (task["mode"], task["why"], task["waves"], task["batch_seconds"]) == ("batch", "saves 50 %", 1, 86_400.0)
    assert (judge["mode"], judge["waves"], judge["batch_seconds"]) == ("batch", 2, 172_800.0)
    assert 2 * task["batch_nano"] == pytest.approx(task["stream_nano"])
    other = found["deepseek-v4-pro", "task"]
    assert (other["mode"], other["why"], other["batch_nano"], other["batch_seconds"]) == (
        "stream", "no batch API", None, None,
    )  # fmt: skip


def test_the_table_ends_with_what_the_sweep_costs_as_it_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    """Batch prices where it is batched, and the times of both parts apart."""
    found = lines(capsys, 'mode = "auto"')
    nano = sum(each["batch_nano"] if each["mode"] == "batch" else each["stream_nano"] for each in found.values())
    shown = planned(capsys, 'mode = "auto"')
    dollars = (Decimal(nano) / 10**9).quantize(Decimal("0.01"))
    assert f"as it will be sent: ${dollars}; streams for 0:46:00 at least" in shown
    assert "batches end within 48 h, in 2 waves" in shown
    assert ") saves 50 %" in shown
    assert "8 waves, 192 h > 48 h" in shown


def test_a_sweep_that_streams_needs_no_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """And no word on batches, but their prices stand beside."""
    shown = planned(capsys, "")
    assert "(1)" not in shown
    assert "batches end" not in shown
    assert all(each["mode"] == "stream" for each in lines(capsys, "").values())
    assert lines(capsys, "")["gpt-5.5", "task"]["batch_nano"]


def test_models_without_batches_say_so_where_the_sweep_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    """They stream, with the reason."""
    shown = planned(capsys, 'mode = "batch"')
    assert "(1) no batch API" in shown
    assert "batches end within 192 h, in 8 waves" in shown


def test_every_row_fits_a_terminal_of_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """No number is cut."""
    rows = [row.rstrip() for row in planned(capsys, 'mode = "auto"').splitlines() if "stream" in row or "batch" in row]
    assert rows
    assert max(len(row) for row in rows if not row.startswith("as it")) <= 100


@pytest.mark.parametrize(
    ("fields", "nano"),
    [
        ({}, 10),
        ({"mode": Mode.BATCH}, 5),
        ({"mode": Mode.BATCH, "batch_nano": None}, 10),
        ({"stream_nano": None, "batch_nano": None}, None),
    ],
    ids=["streamed", "batched", "batched at an unknown price", "price unknown"],
)
def test_a_line_costs_what_its_mode_costs(fields: Mapping[str, object], nano: int | None) -> None:
    """A price that nobody knows is never taken for a discount."""
    assert chosen_nano(line(**fields)) == nano


def test_costs_add_up_over_modes() -> None:
    """Lines without a price are left out."""
    both = [line(), line(mode=Mode.BATCH), line(stream_nano=None, batch_nano=None)]
    assert total_nano(both, chosen_nano) == 15


def test_stages_of_a_model_wait_for_each_other_and_models_do_not() -> None:
    """What is batched takes nothing of the rate limits."""
    found = [line(), line(stage="probe"), line(alias="b", seconds=90.0), line(mode=Mode.BATCH, seconds=1e6)]
    assert stream_seconds(found) == 120.0
    assert stream_seconds([line(seconds=None), line(mode=Mode.BATCH)]) is None


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (None, "-"), (0, "$0.00"), (1_234_500_000_000, "$1,234.50"), (1_500_000_000, "$1.50"), (420_000_000, "$0.42"),
        (4_200_000, "$0.0042"), (42_351, "$0.000042"), (1, "$0.0000000010"), (999_999_999, "$1.00"),
    ],
)  # fmt: skip
def test_small_money_is_shown_with_digits_that_count(nano: int | None, shown: str) -> None:
    """A sweep of a third of a cent is not free."""
    assert money(nano) == shown


def test_a_model_without_a_known_limit_has_no_time_and_the_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A dash would leave one guessing."""
    shown = planned(capsys, "")
    assert "no limit known" in shown
    assert "no rate limit known of claude-opus-4-7, so no time" in shown


# ----- what is left, and which caps will not do for it


@pytest.mark.parametrize(
    ("task", "judge", "left"),
    [
        pytest.param(Done(), Done(), (30, 30), id="nothing done"),
        pytest.param(Done(answered=10, read=10, pending=20), Done(pending=10), (20, 30), id="a third answered"),
        pytest.param(Done(answered=30, read=30), Done(answered=29), (0, 0), id="one answer had no claims"),
        pytest.param(Done(answered=29, read=29, failed=1), Done(answered=20, failed=2, pending=7), (0, 7), id="failed"),
        pytest.param(Done(answered=30, read=28), Done(answered=28), (0, 2), id="answers still to be read"),
    ],
)
def test_what_can_still_be_sent_follows_from_what_is_still_to_be_read(
    task: Done, judge: Done, left: tuple[int, int]
) -> None:
    """A finished sweep has nothing left, also where some answers led to no question."""
    Path("sweep.toml").write_text(
        'name = "s"\nmodels = ["gpt-5.5"]\njudges = ["claude-opus-4-7"]\nstages = ["task", "judge"]\npersonas = 5\n',
        encoding="utf-8",
    )
    design = prepare(load_sweep(Path("sweep.toml"))).design
    done = {("task", "gpt-5.5"): task, ("judge", "claude-opus-4-7"): judge}
    counts = count_asks(design)
    places = ((Stage.TASK, "gpt-5.5"), (Stage.JUDGE, "claude-opus-4-7"))
    assert tuple(calls_left(design, stage, alias, counts, done) for stage, alias in places) == left


@pytest.mark.parametrize(
    ("scope", "cap", "used", "short"),
    [
        pytest.param(Scope("sweep", "s"), Cap(nano=19), 0, True, id="below the forecast"),
        pytest.param(Scope("sweep", "s"), Cap(nano=20), 0, False, id="just enough"),
        pytest.param(Scope("sweep", "s"), Cap(nano=20), 1, True, id="enough but for what is used"),
        pytest.param(Scope("model", "a"), Cap(nano=9), 0, True, id="of a model"),
        pytest.param(Scope("provider", "p"), Cap(tokens=3), 0, True, id="of an account, in tokens"),
        pytest.param(Scope("stage", "judge"), Cap(nano=0, tokens=0), 0, False, id="of a stage that asks nothing"),
    ],
)
def test_a_cap_is_short_where_use_and_forecast_pass_it(scope: Scope, cap: Cap, used: int, *, short: bool) -> None:
    """Of whatever it caps, and of nothing else."""
    lines = [line(left=1), line(left=1, alias="b"), line(left=0, alias="b", stage="judge")]
    found = shortfalls(lines, {"a": "p", "b": "p"}, "s", {scope: cap}, {scope: Amount(used, 0)})
    assert [each.scope for each in found] == [str(scope)] * short


def test_a_cap_that_no_single_call_fits_under_is_short_whatever_is_forecast() -> None:
    """Every call sets its worst case aside before it is sent."""
    caps = {Scope("sweep", "s"): Cap(tokens=100)}
    (found,) = shortfalls([line(left=1, worst_tokens=101)], {"a": "p"}, "s", caps, {})
    assert (found.needed, found.call, found.cap) == (2, 101, 100)


def test_a_cap_below_a_single_call_is_named_by_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """With the exit code that a run would end with."""
    shown = planned(capsys, "[budget.stage.judge]\ntokens = 500\n[budget]\nusd = 0.6\n")
    assert "cap of sweep s: $0.60 will not do for $" in shown
    assert "cap of stage judge: 500 tokens will not do for" in shown
    assert shown.count("the run will stop there, exit code 3") == 2


def test_a_stage_without_questions_is_said_by_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left out in silence."""
    assert "accum asks nothing" in planned(capsys, "accum_personas = 0")
