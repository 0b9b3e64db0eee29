"""Ctrl-C with a local model: what is queued is given back at once, and nobody speaks of bills."""

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it"),
]

TOGETHER = 4
REQUESTS = 60
SWEEP = """
name = "stopping"
store = "store.sqlite"
models = ["qwen3-8b"]
stages = ["task"]
personas = 10
settings.task = {{ temperature = 1.0, max_tokens = 3000 }}

[local]
model = "{folder}"
load_format = "dummy"
dtype = "float32"
max_num_seqs = {together}
kv_cache_bytes = 67108864
"""
DEADLINE = 120.0


def counts(store: Path) -> tuple[int, int, int]:
    """Return how many requests are answered, planned, and anything else."""
    if not store.exists():
        return 0, 0, 0
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            found = dict(connection.execute("SELECT state, count(*) FROM request GROUP BY state").fetchall())
        except sqlite3.OperationalError:
            return 0, 0, 0
    answered, planned = found.pop("settled", 0) + found.pop("read", 0), found.pop("planned", 0)
    return answered, planned, sum(found.values())


def run_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait for the process to get so far."""
    deadline = time.monotonic() + DEADLINE
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "it ended by itself"


def test_stopping_gives_back_what_is_queued(qwen3: Path, run_mirage: Any, tmp_path: Path) -> None:
    """Once: what is computed finishes, the rest stays planned. Twice: at once. What is said is true of a free model."""
    store, errors = tmp_path / "store.sqlite", tmp_path / "errors.txt"
    (tmp_path / "sweep.toml").write_text(SWEEP.format(folder=qwen3, together=TOGETHER), encoding="utf-8")

    first = run_mirage(tmp_path, "run", "sweep.toml", "--plain", "--no-tables")
    run_until(first, lambda: counts(store)[0] > 0)
    first.send_signal(signal.SIGINT)
    assert first.wait(DEADLINE) == 130
    answered, planned, others = counts(store)
    assert (answered + planned, others) == (REQUESTS, 0)
    # Those that were computed finish, and those that had finished before the signal was heard.
    assert planned > REQUESTS // 2
    assert "calls on the wire may finish" in errors.read_text()

    second = run_mirage(tmp_path, "run", "sweep.toml", "--plain", "--no-tables")
    run_until(second, lambda: counts(store)[0] > answered)
    second.send_signal(signal.SIGINT)
    run_until(second, lambda: errors.read_text().count("may finish") > 1)
    second.send_signal(signal.SIGINT)
    assert second.wait(DEADLINE) == 130
    assert "is computed again next time" in errors.read_text()
    assert "billed" not in errors.read_text()
