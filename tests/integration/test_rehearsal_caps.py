"""A rehearsal under caps that are too small says which, keeps its verdict, and ends as the run would."""

import json
from pathlib import Path

import pytest

from bench.cli import main

SWEEP = """
name = "capped"
models = ["qwen3-8b"]
judges = ["claude-opus-4-7"]
stages = ["task", "judge"]
personas = 1
tasks = ["apartment"]
"""


def rehearse(folder: Path, caps: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    Path("s.toml").write_text(SWEEP + caps, encoding="utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["rehearse", "s.toml", "--kills", "0", "--no-tables", "--json", "verdict.json"])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("caps", "scope", "read"),
    [
        pytest.param("[budget.stage.judge]\ntokens = 10\n", "stage judge", 1, id="after the first stage"),
        pytest.param("[budget.provider.vllm]\ntokens = 10\n", "provider simulated-local", 0, id="of a local model"),
    ],
)
def test_a_rehearsal_ends_with_its_caps_and_says_which(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caps: str,
    scope: str,
    read: int,
) -> None:
    """Exit code 3, the verdict on what was answered, and the cap; a local account's cap holds for its stand-in."""
    assert rehearse(tmp_path, caps, capsys, monkeypatch) == 3
    out = capsys.readouterr().out
    assert f"cap of {scope}: 0 of 10 tokens used; the next call may need" in out
    assert "was not finished: a cap was reached" in out
    found = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8"))
    verdict = found["verdict"]
    assert (found["holds"], verdict["ended"], verdict["unfinished"]) == (False, 3, 1)
    assert verdict["requests"] - verdict["unfinished"] == read
    assert verdict["comparison"]["different"] == {}
    (reached,) = verdict["reached"]
    assert reached.startswith(scope)


def test_a_rehearsal_refuses_the_tables_that_a_run_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it changes these tables itself."""
    assert rehearse(tmp_path, '[provider.opnai]\nbase_url = "http://x/v1"\n', capsys, monkeypatch) == 2
    assert "[provider] names `opnai`" in capsys.readouterr().err
