"""The command line: help for people, one line for mistakes, exit codes that scripts can trust."""

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import pytest

from bench.cli import main
from bench.cli.exits import EXITS, OF_OUTCOME
from engine.events import Outcome
from engine.store import Store

HOSTED = 'name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["task"]\npersonas = 1\n'


def run(*arguments: str) -> int:
    """Run `mirage` in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an empty home and without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)


def sweep(text: str) -> str:
    """Write a sweep file and return its name."""
    Path("sweep.toml").write_text(text, encoding="utf-8")
    return "sweep.toml"


COMMANDS = [
    "run",
    "plan",
    "status",
    "batches",
    "watch",
    "analyze",
    "inspect",
    "errors",
    "retry",
    "doctor",
    "models",
    "personas",
    "annotate",
]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_explains_every_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And exits with 0."""
    assert run(*command, "--help") == 0
    assert "Usage: mirage" in capsys.readouterr().out


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Every code with its meaning."""
    run("--help")
    shown = capsys.readouterr().out
    for code, meaning in EXITS.items():
        assert f"{int(code)}  {meaning}" in " ".join(shown.split()).replace(f"{int(code)} ", f"{int(code)}  ")


def test_every_outcome_has_its_own_exit_code() -> None:
    """A script can tell how a run ended."""
    assert set(OF_OUTCOME) == set(Outcome)
    assert len(set(OF_OUTCOME.values())) == len(Outcome)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("name = 1", "must be a text", id="wrong type"),
        pytest.param(HOSTED.replace("gpt-4o-mini", "gpt-4o-mimi"), "gpt-4o-mini", id="unknown model"),
        pytest.param(HOSTED, "OPENAI_API_KEY", id="missing key"),
        pytest.param(HOSTED + '[limits."gpt-5.5"]\nconcurrency = 1\n', "gpt-5.5", id="limit of another model"),
        pytest.param(HOSTED + '[modes.model]\n"gpt-5.5" = "batch"\n', "gpt-5.5", id="mode of another model"),
        pytest.param(HOSTED + "[batch]\npoll_seconds = 900\n", "longest_poll_seconds", id="polls that begin too late"),
        pytest.param(HOSTED + "accum_personas = 99\n" + 'stages = ["task"]', "TOML", id="key twice"),
        pytest.param(HOSTED.replace("personas = 1", 'personas = ["nobody"]'), "nobody", id="unknown persona"),
        pytest.param(HOSTED + 'store = "/proc/nowhere/s.sqlite"\n', "/proc/nowhere", id="unwritable path"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    text: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, nothing on standard output."""
    if "/proc" in text:
        monkeypatch.setenv("OPENAI_API_KEY", "x" * 20)
    assert run("run", sweep(text), "--plain") == 2
    captured = capsys.readouterr()
    line = captured.err.strip().splitlines()[-1]
    assert words in line
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", ["status", "analyze", "errors", "watch"])
def test_a_missing_store_is_the_users_mistake(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking must not create a file."""
    assert run(command, "nowhere.sqlite") == 2
    assert "nowhere.sqlite" in capsys.readouterr().err
    assert not Path("nowhere.sqlite").exists()


def test_a_file_that_is_no_store_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither text nor another program's database is touched."""
    Path("text").write_text("hello, this is a text that is long enough to be read as a header by SQLite" * 10)
    assert run("status", "text") == 2
    connection = sqlite3.connect("other.sqlite")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert run("status", "other.sqlite") == 2
    assert "some other program" in capsys.readouterr().err


def test_an_unknown_option_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """With click's own words."""
    assert run("run", "--fast", "x.toml") == 2
    assert "--fast" in capsys.readouterr().err


async def test_status_json_counts_requests_by_state_and_stage(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty sweep counts zero everywhere, in every field that programs rely on."""
    async with await Store.open(Path("s.sqlite")) as store:
        await store.add_sweep("s", "{}", "h", simulated=False, now_ms=1)
    assert await asyncio.to_thread(run, "status", "s.sqlite", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == {
        "total": 0, "planned": 0, "sent": 0, "in_doubt": 0, "settled": 0, "read": 0, "failed": 0, "failed_by_class": {},
    }  # fmt: skip
    assert found["by_stage"] == {}
    assert found["money"] == {"spent_nano": 0, "reserved_nano": 0, "assumed_nano": 0}
