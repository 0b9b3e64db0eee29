"""The command line: exit codes, one-line mistakes, and no dependency beyond numpy and scipy."""

import io
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from analysis.cli import Exit, Options, analyze, main
from analysis.testing import StoreBuilder
from bench.cli import main as mirage
from bench.cli.analyze import analyze as click_command

ROOT = Path(__file__).parents[2]
QUICK = ["--resamples", "100"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one simulated sweep."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep("one", subjects={"m": "x"}, simulated=True, notes=("a small rehearsal",))
        for persona in "abc":
            store.records({"model": "m", "persona": persona, "labels": "GRSF"})
    return tmp_path / "store.db"


def test_tables_are_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings first, then every table."""
    assert main([str(path), *QUICK]) == Exit.DONE
    printed = capsys.readouterr()
    assert printed.out.startswith("warning: SIMULATED")
    assert "warning: a small rehearsal" in printed.out
    assert "50.0" in printed.out
    assert printed.err == ""


def test_json_is_one_document(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is printed beside it."""
    assert main([str(path), "--json", *QUICK]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert document["tables"][0]["rows"][0]["oi"]["value"] == 0.5


def test_files_are_written(path: Path, tmp_path: Path) -> None:
    """Both formats, beside the printed tables."""
    assert main([str(path), "--out", str(tmp_path / "out"), *QUICK]) == Exit.DONE
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"leaderboard.csv", "leaderboard.json", "cost.csv"} <= names


def test_rows_are_written_where_asked_for(path: Path, tmp_path: Path) -> None:
    """Both formats beside the tables, which then come as Parquet too; and that folder is a source of tables itself."""
    out = tmp_path / "out"
    assert main([str(path), "--out", str(out), "--rows", "csv", "--rows", "parquet", *QUICK]) == Exit.DONE
    assert {"records.csv", "records.parquet", "claims.csv"} <= {file.name for file in (out / "rows").iterdir()}
    assert {"leaderboard.parquet", "leaderboard.tex"} <= {file.name for file in out.iterdir()}
    assert main([str(out), *QUICK]) == Exit.DONE


def test_tables_stand_beside_the_papers_when_asked_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep whose models bear none of the paper's labels says that there is nothing to compare."""
    assert main([str(path), "--against", "paper", *QUICK]) == Exit.DONE
    assert "nothing to compare" in capsys.readouterr().out


def test_answers_cut_short_are_used_or_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice reaches the tables by either command."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records(
            {"model": "m", "persona": "p", "state": "truncated", "labels": "FF"},
            {"model": "m", "persona": "q", "labels": "GG"},
        )
    claims = []
    for command in (main, mirage):
        for choice in ("use", "missing"):
            head = ["analyze"] if command is mirage else []
            with suppress(SystemExit):
                command([*head, str(tmp_path / "store.db"), "--truncated", choice, "--json", *QUICK])
            (board, *_) = json.loads(capsys.readouterr().out)["tables"]
            claims.append(board["rows"][0]["claims"])
    assert claims == [4, 2, 4, 2]


def test_what_can_be_mended_is_one_code_of_the_program(tmp_path: Path) -> None:
    """A sweep without answers is no reached cap, which is what 3 means there."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
    with pytest.raises(SystemExit) as left:
        mirage(["analyze", str(tmp_path / "store.db")])
    assert left.value.code == 2


def test_both_commands_have_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    """`mirage analyze` is `python -m analysis` with the program around it."""
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = set(re.findall(r"--[a-z]+", capsys.readouterr().out))
    assert {option for each in click_command.params for option in each.opts if option.startswith("--")} == listed - {
        "--help"
    }


def test_the_same_seed_prints_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs can be compared byte by byte."""
    printed = []
    for seed in ("7", "7", "8"):
        main([str(path), "--seed", seed, *QUICK])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "seed 8" in printed[2]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param([], Exit.WRONG, "STORE", id="no store"),
        pytest.param(["nowhere.db"], Exit.WRONG, "no such store", id="no such file"),
        pytest.param(["STORE", "--sweep", "two"], Exit.WRONG, "no sweep called 'two'", id="unknown sweep"),
        pytest.param(["STORE", "--judge", "two"], Exit.WRONG, "no judge 'two'", id="unknown judge"),
        pytest.param(["STORE", "--resamples", "5"], Exit.WRONG, "not between 100 and", id="too few resamples"),
        pytest.param(["STORE", "--resamples", "x"], Exit.WRONG, "not a whole number", id="resamples in words"),
        pytest.param(["STORE", "--seed", "-1"], Exit.WRONG, "negative", id="negative seed"),
        pytest.param(["STORE", "--colour"], Exit.WRONG, "unrecognized arguments", id="unknown option"),
        pytest.param(["STORE", "--out", "STORE"], Exit.NOT_WRITTEN, "choose another --out", id="out is a file"),
        pytest.param(["STORE", "--rows", "csv"], Exit.WRONG, "give --out DIR", id="rows without a folder"),
        pytest.param(["STORE", "--rows", "xlsx"], Exit.WRONG, "invalid choice", id="rows in another format"),
        pytest.param(["STORE", "--against", "me"], Exit.WRONG, "invalid choice", id="against somebody else"),
        pytest.param(["no\x1b[31mwhere.db"], Exit.WRONG, r"no\x1b[31mwhere.db", id="hostile name"),
    ],
)
def test_a_mistake_is_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: Exit, message: str
) -> None:
    """It goes to standard error with its exit code, and there is no traceback."""
    full = [str(path) if argument == "STORE" else argument for argument in arguments]
    try:
        found = main(full)
    except SystemExit as exit_:
        found = int(exit_.code or 0)
    printed = capsys.readouterr()
    assert found == code
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_sweep_without_answers_has_its_own_code(tmp_path: Path) -> None:
    """Scripts can tell "not yet" from "wrong"."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
    stderr = io.StringIO()
    assert analyze(Options(store=tmp_path / "store.db"), io.StringIO(), stderr) == Exit.NOTHING
    assert "run it first" in stderr.getvalue()


def test_a_sweep_in_which_nothing_has_come_is_one_line(tmp_path: Path) -> None:
    """Not thirty tables of n/a."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "p", "state": "pending", "labels": None})
        store.calls({"model": "m", "state": "pending"}, {"model": "m", "stage": "audit", "state": "pending"})
    stdout, stderr = io.StringIO(), io.StringIO()
    assert analyze(Options(store=tmp_path / "store.db"), stdout, stderr) == Exit.NOTHING
    assert stdout.getvalue() == ""
    assert stderr.getvalue() == (
        "sweep 'sweep': 2 calls are planned, none has been answered so far; `mirage run` its sweep file first\n"
    )


def test_a_sweep_in_which_all_failed_is_shown(tmp_path: Path) -> None:
    """What went wrong is worth a table."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        failed = {"model": "m", "persona": "p", "state": "failed", "reason": "auth: 401"}
        store.records({**failed, "reason": "task auth: 401", "labels": None})
        store.calls({**failed, "stage": "task"})
    stdout = io.StringIO()
    assert analyze(Options(store=tmp_path / "store.db"), stdout, io.StringIO()) == Exit.DONE
    assert "auth: 401" in stdout.getvalue()


def run(code: str, *arguments: str, stdout: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_numpy_and_scipy_are_enough(path: Path) -> None:
    """No other package of the project's dependencies is needed at run time."""
    blocked = [
        "rich",
        "httpx",
        "vllm",
        "msgspec",
        "orjson",
        "aiosqlite",
        "click",
        "pandas",
        "pyarrow",
        "matplotlib",
        "zstandard",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); from analysis.cli import main; sys.exit(main())"
    done = run(code, str(path), *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Over-inference per model" in done.stdout


def test_the_package_runs_as_a_module(path: Path) -> None:
    """`python -m analysis STORE` works, and `--help` states the exit codes."""
    helped = subprocess.run(
        [sys.executable, "-m", "analysis", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert helped.returncode == 0
    assert "exit codes: 0 done" in " ".join(helped.stdout.split())


def test_a_reader_that_has_seen_enough_is_no_error(path: Path) -> None:
    """`| head` ends quietly."""
    code = (
        "import os, sys; from analysis.cli import main\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        "sys.exit(main())"
    )
    done = run(code, str(path), *QUICK)
    assert done.stderr == ""
    assert done.returncode == 0
