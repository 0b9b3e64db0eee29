"""`mirage bench providers`: what it counts, what it keeps, what it spends, and what the plan takes from it."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench.cli.providers import _ended, _notes
from bench.modes import Mode
from bench.run import user_catalog
from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import PROVIDERS, TAILS, price_settings
from bench.sweepfile import load_sweep
from bench.throughput.measurements import FEWEST, Measurement, Spread, Step, keep, kept, pace_of, results_file
from bench.throughput.provider_figures import Call, rate, spread
from bench.throughput.provider_plan import Plan, look
from bench.throughput.provider_plot import drawing
from bench.throughput.providers import Interrupted, best_step, between_steps, measure_batches, pays
from engine.batch.stage import LIVE
from engine.errors import UserError
from engine.events import Notice
from engine.inspection import read_batches
from engine.money import NANO

KEY_ENV = "SIMULATOR_KEY"
SETTINGS = """
[latency."*"]
shape = "fixed"
median_ms = 200
[limits."openai/gpt-4o-mini-2024-07-18"]
concurrency = 6
[batches]
speed = 3600.0
[batch_discount]
openai = "0.5"
"""
SWEEP = """
name = "accounts"
models = ["gpt-4o-mini"]
stages = ["task"]
[batch]
poll_seconds = 0.05
longest_poll_seconds = 0.1
"""
PLANNED = """
name = "s"
models = ["gpt-5.5", "deepseek-v4-pro"]
stages = ["task"]
personas = 5
[limits."deepseek-v4-pro"]
requests_per_minute = 1
"""
ALIAS = "gpt-4o-mini"

Mirage = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that lets six calls through at once and charges the catalogue's prices."""
    folder = tmp_path_factory.mktemp("providers")
    prices = price_settings(user_catalog(None).cards.values())
    (folder / "settings.toml").write_text(SETTINGS + prices, encoding="utf-8")
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder and home, with the simulator's key and no other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(KEY_ENV, f"sk-{tmp_path.name}-0123456789")


def accounts(simulator: Running) -> Path:
    """Write a sweep file that leads every account to the simulator."""
    tables = "".join(
        f'[provider.{each}]\nbase_url = "{simulator.url(each)}{TAILS.get(each, "")}"\nkey_env = "{KEY_ENV}"\n'
        for each in PROVIDERS
    )
    path = Path("accounts.toml")
    path.write_text(SWEEP + tables, encoding="utf-8")
    return path


def billed(simulator: Running, since: int = 0) -> list[Charge]:
    """Return what the simulator has charged, from a line of its bill on."""
    return [line for line in read_bill(simulator.bill) if isinstance(line, Charge)][since:]


def measure(mirage: Mirage, simulator: Running, *options: object, cap: str = "5") -> tuple[list[Any], str, int]:
    """Measure; return the figures, what was said on the way, and the exit code."""
    code, _, said = mirage(
        "bench", "providers", "--cap", cap, "--sweep", accounts(simulator), "--yes", "--json", "found.json", *options
    )
    return json.loads(Path("found.json").read_text("utf-8"))["result"], said, code


def measurement(**fields: object) -> Measurement:
    """A measurement of the catalogue's gpt-5.5."""
    card = user_catalog(None).card("gpt-5.5")
    plain: dict[str, object] = {
        "at": 1_790_000_000.0, "alias": card.alias, "provider": card.provider, "model": card.model,
        "base_url": card.base_url, "mode": Mode.STREAM, "simulated": False, "calls": 100, "completed": 100,
        "failed": 0, "attempts": 101, "retries": 1, "throttled_share": 0.01, "calls_per_s": 2.0,
        "tokens_per_s": 1000.0, "output_tokens_per_s": 600.0, "input_tokens": 200.0, "output_tokens": 300.0,
        "cost_nano": 5, "cost_nano_per_1000": 50, "concurrency": 4,
        "latency_ms": Spread(n=100, p50=900.0, p90=1000.0, p99=1500.0, most=2000.0),
        "ramp": (Step(concurrency=1, calls_per_s=1.0, throttled_share=0.0),),
    }  # fmt: skip
    return Measurement(**{**plain, **fields})  # type: ignore[arg-type]


def call(sent: int, settled: int, **fields: object) -> Call:
    """An answered call."""
    plain: dict[str, object] = {
        "request": sent, "outcome": "completed", "error": "", "sent_ms": sent, "settled_ms": settled, "cost_nano": 1,
        "latency_ms": settled - sent, "input_tokens": 1, "output_tokens": 1, "batched": False,
    }  # fmt: skip
    return Call(**{**plain, **fields})  # type: ignore[arg-type]


def steps(*found: tuple[int, float, float]) -> list[Step]:
    """Steps of a ramp: calls at once, answers per second, share of 429s."""
    return [Step(concurrency=at, calls_per_s=speed, throttled_share=share) for at, speed, share in found]


# ----- counting


def test_the_rate_is_that_of_a_full_lane() -> None:
    """Two at once, a second each: two answers a second, though the last ones come after the last was sent."""
    calls = [
        call(1000 * number, 1000 * number + 1000, request=2 * number + each) for number in range(5) for each in (0, 1)
    ]
    assert rate(calls) == 2.0


def test_where_all_were_sent_at_once_the_rate_is_that_of_the_whole_time() -> None:
    """Ten in two seconds."""
    assert rate([call(0, 200 * (number + 1), request=number) for number in range(10)]) == 5.0


def test_without_an_answer_there_is_no_rate() -> None:
    """Never 0."""
    assert rate([call(0, 5, outcome="error", error="rate")]) is None
    assert spread([]) is None


def test_a_spread_has_median_percentiles_and_the_slowest() -> None:
    """Of known numbers."""
    assert spread([float(number) for number in range(101)]) == Spread(n=101, p50=50.0, p90=90.0, p99=99.0, most=100.0)


RAMPS = {
    "still rising": (steps((1, 1, 0), (2, 2, 0), (4, 4, 0)), True, 4, 0),
    "flat after two": (steps((1, 1, 0), (2, 2, 0), (4, 2.1, 0)), False, 2, 0),
    "throttled at eight": (steps((1, 1, 0), (2, 2, 0), (4, 4, 0), (8, 9, 0.3)), False, 4, 6),
    "narrowed": (steps((4, 4, 0), (8, 9, 0.3), (6, 6, 0)), False, 6, 7),
    "throttled at once": (steps((1, 1, 0.5)), False, 1, 0),
    "neighbours": (steps((1, 1, 0), (2, 2, 0.1)), False, 1, 0),
}


@pytest.mark.parametrize(("found", "worth", "best", "between"), RAMPS.values(), ids=RAMPS.keys())
def test_a_ramp_finds_the_fewest_calls_at_once_that_are_as_good_as_any(
    found: Sequence[Step], worth: bool, best: int, between: int
) -> None:
    """What was told to slow down does not count, and is looked below."""
    assert (pays(found), best_step(found, 32), between_steps(found)) == (worth, best, between)


# ----- keeping


def test_measurements_are_kept_in_order(tmp_path: Path) -> None:
    """Appended, never replaced."""
    path = tmp_path / "deep" / "kept.jsonl"
    first, second = measurement(), measurement(at=1_790_000_001.0, mode=Mode.BATCH, latency_ms=None)
    keep(path, [first])
    keep(path, [second])
    assert [msgspec.to_builtins(each) for each in kept(path).measurements] == msgspec.to_builtins([first, second])
    assert kept(tmp_path / "nothing").measurements == ()


def test_a_line_that_was_cut_off_loses_nothing_else(tmp_path: Path) -> None:
    """It is counted, and the next one begins anew; so do lines of later versions."""
    path = tmp_path / "kept.jsonl"
    keep(path, [measurement()])
    with path.open("ab") as file:
        file.write(b'{"version":9}\n{"version":1,"at":12')
    keep(path, [measurement()])
    found = kept(path)
    assert (len(found.measurements), found.unreadable) == (2, 2)


def test_a_file_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    """In words."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="choose another --results"):
        keep(tmp_path / "file" / "kept.jsonl", [measurement()])


OTHERS = {
    "simulated": {"simulated": True},
    "batches": {"mode": Mode.BATCH},
    "too few": {"completed": FEWEST - 1},
    "no answers": {"calls_per_s": None},
    "another address": {"base_url": "http://127.0.0.1:1"},
    "another snapshot": {"model": "gpt-5.5-2020"},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS.keys())
def test_only_real_calls_to_the_same_model_and_address_say_how_fast_it_is(fields: dict[str, object]) -> None:
    """The newest of them; anything else is passed over, however new."""
    card = user_catalog(None).card("gpt-5.5")
    good = [measurement(), measurement(at=1_790_000_500.0)]
    other = measurement(at=1_790_000_900.0, **fields)
    assert pace_of(card, [other]) is None
    assert pace_of(card, [*good, other]) is good[1]


# ----- the plan


def planned(mirage: Mirage) -> tuple[str, dict[str, Any]]:
    """Return what `mirage plan` prints, and its lines by model."""
    Path("planned.toml").write_text(PLANNED, encoding="utf-8")
    lines = {line["alias"]: line for line in json.loads(mirage("plan", "planned.toml", "--json")[1])}
    return mirage("plan", "planned.toml")[1], lines


def test_the_plan_takes_times_from_a_measurement_where_no_limit_is_known(mirage: Mirage) -> None:
    """It says of which day; where a limit is known, that counts."""
    keep(results_file(), [measurement(calls_per_s=0.5, output_tokens_per_s=1e6)])
    shown, lines = planned(mirage)
    line = lines["gpt-5.5"]
    assert (line["measured"], line["seconds"]) == ("2026-09-21", line["calls"] / 0.5)
    assert (lines["deepseek-v4-pro"]["measured"], lines["deepseek-v4-pro"]["seconds"]) == ("", 60.0 * line["calls"])
    assert "measured on 2026-09-21" in " ".join(shown.split())
    assert "~ 0:01:00" in shown


def test_longer_answers_than_the_measured_ones_take_longer(mirage: Mirage) -> None:
    """By their tokens."""
    keep(results_file(), [measurement(calls_per_s=1e6, output_tokens_per_s=10.0)])
    line = planned(mirage)[1]["gpt-5.5"]
    assert line["seconds"] == line["output_tokens"] / 10.0


def test_a_simulated_measurement_never_reaches_a_plan(mirage: Mirage) -> None:
    """Nor does a file that cannot be read stop it."""
    keep(results_file(), [measurement(simulated=True)])
    with results_file().open("ab") as file:
        file.write(b"\xff\xfe nonsense")
    shown, lines = planned(mirage)
    assert (lines["gpt-5.5"]["seconds"], lines["gpt-5.5"]["measured"]) == (None, "")
    assert "no limit known" in shown


# ----- against the simulator


def test_calls_and_batches_are_measured_counted_and_kept(mirage: Mirage, simulator: Running) -> None:
    """The cost is the bill, the ramp finds the account's limit, and everything says that it is simulated."""
    before = len(billed(simulator))
    found, said, code = measure(mirage, simulator, "--models", ALIAS, "--calls", 100, "--modes", "stream,batch")
    streamed, batched = found
    assert code == 0
    assert said.index("cap: $5.00") < said.index(f"{ALIAS}: 4 calls, 1 at once")
    charges = billed(simulator, before)
    assert streamed["cost_nano"] + batched["cost_nano"] == sum(charge.nano for charge in charges)
    assert [each["completed"] for each in found] == [100, 100] == [each["calls"] for each in found]
    assert 4 <= streamed["concurrency"] <= 6
    assert 0.4 * streamed["concurrency"] / 0.2 <= streamed["calls_per_s"] <= 1.1 * streamed["concurrency"] / 0.2
    assert streamed["throttled_share"] == pytest.approx(streamed["retries"] / streamed["attempts"], abs=1e-3)
    assert 195 <= streamed["first_byte_ms"]["p50"] <= streamed["latency_ms"]["p50"] + 5
    assert batched["turnaround"] > 0
    assert batched["cost_nano_per_1000"] == pytest.approx(streamed["cost_nano_per_1000"] / 2, rel=0.2)
    assert (batched["first_byte_ms"], batched["latency_ms"], batched["concurrency"]) == (None, None, 0)
    assert [each["simulated"] for each in found] == [True, True]
    assert json.loads(msgspec.json.encode(kept(results_file()).measurements)) == found


def test_runs_compare_over_time(mirage: Mirage, simulator: Running) -> None:
    """The newest beside the one before; alone it measures nothing."""
    for calls in (8, 12):
        measure(mirage, simulator, "--models", ALIAS, "--calls", calls)
    before = len(billed(simulator))
    code, shown, _ = mirage("bench", "providers", "--compare")
    assert (code, len(billed(simulator))) == (0, before)
    (row,) = [row for row in shown.splitlines() if ALIAS in row]
    assert "(sim.)" in row
    assert "%" in row.split("stream")[1]


def test_the_cap_holds_over_all_models_and_what_is_cut_short_says_so(mirage: Mirage, simulator: Running) -> None:
    """The ledger keeps it; the exit code tells."""
    before = len(billed(simulator))
    found, _, code = measure(
        mirage, simulator, "--models", "claude-opus-4-6,gpt-5.5", "--calls", 60, "--tokens", 100, cap="0.03"
    )
    spent = sum(charge.nano for charge in billed(simulator, before))
    assert 0 < spent <= 30_000_000
    assert spent == sum(each["cost_nano"] for each in found)
    assert [each["cut"] for each in found] == ["the cap was reached"] * 2
    assert found[1]["completed"] < 60
    assert [(each["failed"], each["completed"] + each["left_out"]) for each in found] == [(0, 60)] * 2
    assert code == 3


@pytest.mark.parametrize("modes", ["stream", "batch"])
def test_calls_that_a_cap_held_back_did_not_fail(mirage: Mirage, simulator: Running, modes: str) -> None:
    """Not one was sent; the exit code is that of a cap, and the table says how many are left."""
    options = ("--models", ALIAS, "--calls", 20, "--modes", modes)
    found, _, code = measure(mirage, simulator, *options, cap="0.0001")
    assert code == 3
    assert [(each["attempts"], each["failed"], each["left_out"]) for each in found] == [(0, 0, 20)]
    assert "the cap was reached; 20 of 20 calls were not sent" in " ".join(_notes(found_measurement(found[0])))


def found_measurement(found: object) -> Measurement:
    """Read one back."""
    return msgspec.convert(found, Measurement)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({}, 0, id="whole"),
        pytest.param({"failed": 1}, 5, id="some failed"),
        pytest.param({"cut": "the cap was reached", "left_out": 3}, 3, id="cap"),
        pytest.param({"cut": "the provider refused key or quota", "failed": 1}, 4, id="refused key"),
        pytest.param({"cut": "the disk took no more writes"}, 6, id="disk"),
    ],
)
def test_the_exit_code_is_that_of_a_run_that_ended_so(fields: dict[str, object], code: int) -> None:
    """The same words for scripts as everywhere else."""
    assert _ended([measurement(), measurement(**fields)]) == code


async def test_batches_that_were_paid_for_are_not_lost_when_one_stops(
    simulator: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their store is kept and named; `mirage batches` goes on with it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plan = Plan(
        models=(ALIAS,), calls=4, modes=(Mode.BATCH,), cap_nano=NANO, file=load_sweep(accounts(simulator)),
    )  # fmt: skip

    def stop(notice: Notice) -> None:
        if notice.kind == "batch_created":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        await measure_batches(
            plan, await look(plan), NANO, listen=stop, watch=lambda snapshot, expected: None, told=lambda text: None
        )
    assert stopped.value.store is not None
    (row,) = await read_batches(stopped.value.store)
    assert (row.requests, row.stage in LIVE) == (4, True)


def test_a_model_without_batches_is_left_out_of_them(mirage: Mirage, simulator: Running) -> None:
    """And said so."""
    found, said, _ = measure(mirage, simulator, "--models", "deepseek-v4-pro", "--calls", 5, "--modes", "batch")
    assert found == []
    assert "deepseek-v4-pro: no batch API" in said


def test_nothing_is_called_without_a_yes(mirage: Mirage, simulator: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap is said before the question; no answer is a no."""
    before = len(billed(simulator))
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        code, _, said = mirage("bench", "providers", "--models", ALIAS, "--cap", "1", "--sweep", accounts(simulator))
    assert (code, len(billed(simulator))) == (130, before)
    assert "cap: $1.00" in said


MISTAKES = {
    "no cap": (("--models", ALIAS), "nothing is called without a cap"),
    "cap is no number": (("--models", ALIAS, "--cap", "much"), "the cap is wrong"),
    "unknown mode": (("--models", ALIAS, "--cap", "1", "--modes", "pigeon"), "there is no mode `pigeon`"),
    "unknown model": (("--models", "gpt-4o-mimi", "--cap", "1"), "did you mean gpt-4o-mini"),
    "missing key": (("--models", ALIAS, "--cap", "1"), "OPENAI_API_KEY"),
    "local model": (("--models", "smollm2-135m", "--cap", "1"), "mirage bench local"),
    "nothing to do": ((), "--models"),
}


@pytest.mark.parametrize(("options", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_and_nothing_is_called(mirage: Mirage, options: tuple[str, ...], words: str) -> None:
    """Exit code 2."""
    code, _, said = mirage("bench", "providers", *options)
    assert code == 2
    assert words in said


def test_an_address_that_does_not_answer_is_one_line(mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is simulated could not be known."""
    Path("s.toml").write_text(SWEEP + f'[provider.openai]\nbase_url = "http://127.0.0.1:9/v1"\nkey_env = "{KEY_ENV}"\n')
    code, _, said = mirage("bench", "providers", "--models", ALIAS, "--cap", "1", "--sweep", "s.toml")
    assert (code, len(said.strip().splitlines())) == (2, 1)
    assert "cannot be reached" in said


# ----- drawing


def test_the_drawing_is_one_file_that_needs_no_other() -> None:
    """Names are text, simulated figures are marked, and batches without times are drawn too."""
    text = drawing(
        [measurement(alias="a<b>&$x$"), measurement(simulated=True, mode=Mode.BATCH, latency_ms=None, ramp=())]
    )
    root = ET.fromstring(text)  # noqa: S314 - just written
    words = " ".join("".join(each.itertext()) for each in root.iter() if each.tag.endswith("text"))
    assert "a<b>&$x$" in words
    assert "SIMULATED" in words
    assert "SIMULATED" not in drawing([measurement()])
    assert not [each for each in root.iter() if each.tag.endswith(("script", "image"))]
