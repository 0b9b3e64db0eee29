"""Kill -9 of a real run on the real local model: nothing answered is asked again, and the tables come out the same."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.timeout(540)]

SWEEP = """
name = "kill"
store = "kill.sqlite"
models = ["smollm2-135m"]
judges = ["smollm2-135m"]
personas = ["seed_001"]
tasks = ["apartment", "birthday_gift"]
accum_personas = 1
rounds = 2
structured = true

[settings]
probe = { temperature = 0.0 }
task = { temperature = 0.0, max_tokens = 48 }
audit = { temperature = 0.0 }
accum = { temperature = 0.0 }

[local]
dtype = "float32"           # equal prompts give equal answers whichever requests share a batch
max_num_seqs = 16
kv_cache_bytes = 268435456
"""
CELLS = 10  # probe, its judgement, 2 tasks, 2 audits, 2 judgements, 2 rounds
DEADLINE = 240.0


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start `mirage run` on the sweep in `folder`."""
    (folder / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    command = [sys.executable, "-m", "bench", "run", "sweep.toml", "--plain", "--no-tables"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=log)


def environment() -> dict[str, str]:
    """Let the child find the packages when the project is run from its folder without being installed."""
    here = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}


def completions(folder: Path) -> dict[str, tuple[int, str]]:
    """Return attempt number and answer of every completed request, by key."""
    store = folder / "kill.sqlite"
    if not store.exists():
        return {}
    connection = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT hex(r.key), d.attempt, d.settled_ms || ':' || hex(d.raw) FROM completion d"
            " JOIN request r ON r.id = d.request_id"
        ).fetchall()
    except sqlite3.OperationalError:
        return {}
    finally:
        connection.close()
    return {key: (attempt, answer) for key, attempt, answer in rows}


def tables(folder: Path) -> list[object]:
    """Return the analysis of the store in `folder`, times and costs left out."""
    command = [sys.executable, "-m", "analysis", "kill.sqlite", "--json", "--resamples", "200"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, check=True, timeout=120)
    found = json.loads(done.stdout)["tables"]
    named = found.items() if isinstance(found, dict) else ((table["name"], table) for table in found)
    return [table for name, table in sorted(named) if "cost" not in name]


def test_a_killed_run_repeats_nothing_and_ends_with_the_same_tables(tmp_path: Path) -> None:
    """One run in peace, one killed at a random instant between its first and last answer, then resumed."""
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    calm.mkdir()
    killed.mkdir()
    assert start(calm).wait(DEADLINE) == 0, (calm / "log").read_text()

    process = start(killed)
    wanted = random.randint(1, CELLS - 2)  # noqa: S311
    deadline = time.monotonic() + DEADLINE
    while len(completions(killed)) < wanted and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = completions(killed)
    assert len(before) >= wanted, (killed / "log").read_text()

    assert start(killed).wait(DEADLINE) == 0, (killed / "log").read_text()
    after = completions(killed)
    assert len(after) == CELLS
    assert {key: after[key] for key in before} == before
    assert tables(killed) == tables(calm)
