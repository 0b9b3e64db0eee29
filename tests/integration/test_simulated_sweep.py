"""A small whole sweep through real adapters and real sockets against the simulator, in this process."""

import os
from pathlib import Path

import msgspec
import pytest

from bench.known import compare
from bench.loop import run_loop
from bench.reconcile import reconcile
from bench.rehearsal import led_to
from bench.rehearsed import KEY, KEY_ENV, rehearsed, run
from bench.run import Prepared, Result, expected_cells, user_catalog
from bench.simulator.launch import running
from bench.simulator.rehearsal import price_settings
from bench.sweepfile import load_sweep
from engine.events import Outcome
from engine.status import read_status

SWEEP = """
name = "whole"
models = ["gpt-4o-mini", "gemini-3-flash"]
judges = ["claude-opus-4-7", "gpt-5.5"]
personas = 2
tasks = ["apartment", "birthday_gift"]
accum_personas = 1
rounds = 3
"""
FAULTS = """
[[faults.rules]]
fault = "overloaded"
provider = "anthropic"
times = 2

[[faults.rules]]
fault = "drop_after"
provider = "openai"
stage = "task"

[[faults.rules]]
fault = "malformed_json"
provider = "gemini"
"""


class Finished(msgspec.Struct, frozen=True):
    """A sweep that was run, and the bill of it."""

    prepared: Prepared
    result: Result
    bill: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run the sweep once for all tests of this file."""
    folder = tmp_path_factory.mktemp("simulated")
    file, settings = folder / "sweep.toml", folder / "simulator.toml"
    file.write_text(SWEEP, encoding="utf-8")
    loaded = load_sweep(file)
    catalog = user_catalog(loaded)
    settings.write_text(price_settings(catalog.cards.values()) + FAULTS, encoding="utf-8")
    with running(folder / "simulator", config=settings) as simulator, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.endswith("_API_KEY")]:
            patch.delenv(name)
        patch.setenv(KEY_ENV, KEY)
        prepared = rehearsed(loaded, folder / "store.sqlite", *led_to(simulator, loaded, catalog))
        result = run_loop(run(prepared))
    return Finished(prepared, result, simulator.bill)


def test_the_sweep_is_complete(finished: Finished) -> None:
    """Every expected cell is read."""
    assert finished.result.outcome is Outcome.COMPLETE
    status = run_loop(read_status(finished.prepared.store_path))
    assert {stage: count.read for stage, count in status.by_stage.items()} == expected_cells(finished.prepared.design)
    assert status.simulated


def test_every_reading_is_the_known_answer(finished: Finished) -> None:
    """Both judges, self-audits, probes and memories, label by label."""
    found = compare(finished.prepared.store_path, "whole")
    assert found.compared == {"judgement": 16, "self-audit": 8, "probe": 8, "memory": 6}
    assert found.equal, found.examples
    assert found.claims > 0


def test_another_seed_would_be_another_answer(finished: Finished) -> None:
    """The comparison can fail."""
    assert not compare(finished.prepared.store_path, "whole", seed=1).equal


def test_ledger_and_bill_agree_to_the_nano_dollar(finished: Finished) -> None:
    """Answers cost what they were billed; two spoiled ones were paid for and are counted as assumed."""
    found = reconcile(finished.prepared.store_path, finished.bill)
    assert found.exact
    assert (found.completions, found.twice, found.absent) == (found.matched, 0, 0)
    assert (found.spoiled, found.assumed, found.cut_off) == (2, 2, 0)
    assert found.billed_nano == found.completed_nano + found.spoiled_nano > 0
