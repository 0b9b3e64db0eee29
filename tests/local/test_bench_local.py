"""`mirage bench local`: what it compares and how it judges, and one run of it, in a size of no use to anybody."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from bench.cli import main
from bench.throughput.local import LEAST_RATIO, Report, local_model, percentile, report_of
from bench.throughput.sides import SIDES, Found, Order, Run, Side, questions
from engine.errors import UserError
from providers.vllm_settings import VllmSettings

ORDER = Order(settings=VllmSettings(name="m"), prompts=8, max_tokens=16, repeats=2)


def run(side: Side, seconds: float) -> Run:
    """Return a repetition of 100 output tokens."""
    return Run(side=side, requests=8, input_tokens=200, output_tokens=100, seconds=seconds, cpu_s=2 * seconds)


def report(*runs: Run, lags: Sequence[float] = ()) -> Report:
    """Return the report on some repetitions."""
    found = Found(runs=runs, dtype="float32", lags_ms=tuple(lags), versions={}, peak_mb=1.0)
    return report_of(ORDER, found, 0.0, 0.0)


def test_the_pair_in_the_middle_counts() -> None:
    """Other work on the machine hits one side of a pair, and another pair the other way round."""
    seconds = {"mirage": (10, 4, 5), "LLM.chat": (5, 4, 8)}
    found = report(*(run(side, each) for side in SIDES for each in seconds[side]))
    assert (found.pair_ratios, found.ratio) == ((0.5, 1.0, 1.6), 1.0)
    assert [(row.side, row.tokens_per_s, row.all_tokens_per_s) for row in found.rows] == [
        ("mirage", 25.0, (10.0, 25.0, 20.0)),
        ("LLM.chat", 25.0, (20.0, 25.0, 12.5)),
    ]
    assert found.fastest_ratio == 1.0
    assert [row.cpu_s_per_1000_tokens for row in found.rows] == [pytest.approx(126.6667), pytest.approx(113.3333)]
    assert found.cpu_ratio == pytest.approx(19 / 17, abs=1e-4)


@pytest.mark.parametrize(("seconds", "holds"), [(1 / LEAST_RATIO, True), (1.01 / LEAST_RATIO, False)])
def test_ours_may_be_a_twentieth_slower(seconds: float, *, holds: bool) -> None:
    """And no more."""
    assert report(run("mirage", seconds), run("LLM.chat", 1.0)).holds is holds


def test_lag_is_told_by_its_percentiles() -> None:
    """One bad moment in a hundred is what the last percentile shows."""
    found = report(run("mirage", 1), run("LLM.chat", 1), lags=[900.0, *range(1, 100)])
    assert (found.lag_p50_ms, found.lag_p99_ms, found.lag_max_ms) == (50.0, 99.0, 900.0)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([3.0], 0.0, 3.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0], 0.51, 2.0), ([1.0, 2.0, 3.0], 1.0, 3.0)],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    """The smallest value that so many do not exceed."""
    assert percentile(values, share) == expected


def test_both_sides_are_asked_what_the_benchmark_asks() -> None:
    """Task prompts of the shipped personas, all different, to the model that is measured."""
    requests = questions(ORDER)
    assert len({request.messages for request in requests}) == 8
    assert {(request.model, request.decoding.max_tokens) for request in requests} == {("m", 16)}


@pytest.mark.parametrize(
    ("name", "model", "context"),
    [
        pytest.param("qwen3-8b", "Qwen/Qwen3-8B", 40960, id="alias"),
        pytest.param("/models/mine", "/models/mine", 0, id="folder"),
        pytest.param("someone/model", "someone/model", 0, id="hub name"),
    ],
)
def test_a_model_is_an_alias_a_folder_or_a_hub_name(name: str, model: str, context: int) -> None:
    """What the catalogue does not know is taken for a place."""
    settings = local_model(name)
    assert (settings.model, settings.context) == (model, context)


def test_a_hosted_model_is_no_local_one() -> None:
    """Nothing is sent anywhere."""
    with pytest.raises(UserError, match=r"gpt-5\.5 is no local model"):
        local_model("gpt-5.5")


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it")
def test_it_measures_the_real_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides compute the same prompts; figures of so small a run judge nobody, so that either exit code will do."""
    file = tmp_path / "local.json"
    with pytest.raises(SystemExit):
        main(["bench", "local", "--prompts", "6", "--tokens", "8", "--repeats", "1", "--json", str(file)])
    found = json.loads(file.read_text())
    assert (found["benchmark"], found["simulated"]) == ("local", False)
    result = msgspec.convert(found["result"], Report)
    assert [row.side for row in result.rows] == ["mirage", "LLM.chat"]
    assert all(row.tokens_per_s > 0 and len(row.all_tokens_per_s) == 1 for row in result.rows)
    assert result.lag_max_ms >= result.lag_p99_ms >= result.lag_p50_ms >= 0
    shown = capsys.readouterr().out
    assert "smollm2-135m" in shown
    assert f"ratio {result.ratio:.3f}" in shown
