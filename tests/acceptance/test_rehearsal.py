"""`mirage rehearse`: a whole sweep, killed and resumed under faults, ends with the right answer and the right bill."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BOUNDED = os.environ.get("MIRAGE_SLOW") == "bounded"
ROOT = Path(__file__).parents[2]
SMALL = """
name = "small"
models = ["gpt-4o-mini", "claude-opus-4-6", "qwen3-8b"]
judges = ["claude-opus-4-7"]
personas = 3
accum_personas = 1
"""
# What an ordinary environment may hold; none of it may be used or found anywhere.
REAL_KEY = "sk-real-0123456789abcdef0123"


def rehearse(folder: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run `mirage rehearse` in `folder`."""
    (folder / "sweep.toml").write_text(text, encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OPENAI_API_KEY": REAL_KEY, "ANTHROPIC_API_KEY": REAL_KEY}
    command = [sys.executable, "-m", "bench", "rehearse", "sweep.toml", "--json", "verdict.json", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_small_sweep_is_rehearsed(tmp_path: Path) -> None:
    """Three models of three kinds, three personas, two kills: every claim and every nano-dollar is as known."""
    done = rehearse(tmp_path, SMALL, "--kills", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "verdict.json").read_text())
    verdict = found["verdict"]
    assert (found["holds"], found["simulated"], verdict["kills"]) == (True, True, 2)
    assert verdict["comparison"]["compared"] == {"judgement": 54, "self-audit": 54, "probe": 9, "memory": 24}
    assert not verdict["comparison"]["different"]
    assert verdict["money"]["matched"] == verdict["money"]["completions"] == verdict["requests"]


def test_a_sweep_by_batch_is_rehearsed(tmp_path: Path) -> None:
    """Batches where they pay, with oddities and kills: the same right answer, and nothing is charged twice by batch."""
    text = SMALL.replace('"qwen3-8b"]', '"qwen3-8b", "gemini-3-flash", "qwen3.6-plus"]') + 'mode = "auto"\n'
    done = rehearse(tmp_path, text, "--kills", "4", "--no-tables")
    assert done.returncode == 0, done.stderr + done.stdout
    verdict = json.loads((tmp_path / "verdict.json").read_text())["verdict"]
    assert verdict["comparison"]["compared"] == {"judgement": 90, "self-audit": 90, "probe": 15, "memory": 40}
    assert not verdict["comparison"]["different"]
    assert verdict["money"]["matched"] == verdict["money"]["completions"] == verdict["requests"]
    assert verdict["money"]["batched"] > verdict["requests"] // 3
    assert verdict["money"]["batched_twice"] == 0


def test_everything_that_a_rehearsal_prints_and_keeps_is_marked(tmp_path: Path) -> None:
    """Tables, store and verdict; and no real key is in any file."""
    text = SMALL.replace('stages = "all"', "").replace("personas = 3", 'personas = 1\nstages = ["task", "judge"]')
    done = rehearse(tmp_path, text.replace("accum_personas = 1", "accum_personas = 0"), "--kills", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "rehearsal of small · SIMULATED" in done.stdout
    assert done.stdout.count("SIMULATED") > 3
    folder = tmp_path / "runs" / "small-rehearsal"
    with sqlite3.connect(folder / "store.sqlite") as connection:
        assert connection.execute("SELECT simulated FROM sweeps").fetchall() == [(1,)]
    connection.close()
    kept = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert REAL_KEY.encode() not in kept
    assert b"sk-rehearsal" not in kept


@pytest.mark.skipif(BOUNDED, reason="takes minutes")
def test_the_papers_sweep_is_rehearsed(tmp_path: Path) -> None:
    """All twelve models, a dozen personas."""
    text = (ROOT / "sweeps" / "paper.toml").read_text(encoding="utf-8").replace('personas = "all"', "personas = 12", 1)
    done = rehearse(tmp_path, text, "--kills", "10", "--no-tables")
    assert done.returncode == 0, done.stderr + done.stdout
