"""The command line: exit codes, one-line mistakes, and no dependency beyond numpy and scipy."""

import csv
import io
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
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


def test_the_result_stands_last(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, marked like everything else."""
    assert main([str(path), *QUICK]) == Exit.DONE
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "SIMULATED: sweep one: m has an OI rate of 50.0 %; 12 claims, judge judge"


def test_the_result_of_several_models_is_their_mean_with_both_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model without a claim has no rate, and a toy judge measures nothing."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"low": "x", "high": "y", "none": "z"}, toy_judge=True)
        for model, labels in (("low", "GGGF"), ("high", "GFFF"), ("none", "")):
            store.records({"model": model, "persona": "a", "labels": labels})
    assert main([str(tmp_path / "store.db"), *QUICK]) == Exit.DONE
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("sweep sweep: mean OI rate of 2 models 50.0 %; highest high 75.0 %, lowest low 25.0 %")
    assert last.endswith("8 claims, judge judge; the judge is a toy: this measures nothing")


def test_without_a_labelled_claim_the_last_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing result is no 0."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"}, judges=())
        store.memory("m", "a", [["x"], ["y"]])
    assert main([str(tmp_path / "store.db"), *QUICK]) == Exit.DONE
    assert capsys.readouterr().out.splitlines()[-1] == "sweep sweep: no claim is labelled, so there is no OI rate yet"


def test_notes_that_were_said_before_are_not_said_again(path: Path, tmp_path: Path) -> None:
    """On the screen; every file still bears them, and what is no note of the manifest stays."""
    told = io.StringIO()
    assert analyze(Options(store=path, out=tmp_path / "out", resamples=100, warned=True), told) == Exit.DONE
    assert "a small rehearsal" not in told.getvalue()
    assert told.getvalue().startswith("warning: SIMULATED")
    assert "warning: a small rehearsal" in (tmp_path / "out" / "leaderboard.csv").read_text()


@pytest.mark.parametrize("kind", ["csv", "tex", "json", "parquet"])
def test_no_file_of_a_simulated_sweep_can_be_taken_for_a_real_one(path: Path, tmp_path: Path, kind: str) -> None:
    """Tables and rows alike, also where a reader skips comments and metadata."""
    assert main([str(path), "--out", str(tmp_path), "--rows", "csv", "--rows", "parquet", *QUICK]) == Exit.DONE
    files = sorted(tmp_path.rglob(f"*.{kind}"))
    assert len(files) > 20
    assert [file.name for file in files if not says_simulated(file)] == []


def says_simulated(file: Path) -> bool:
    """Whether what a reader gets of a file says that it is simulated."""
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        return "simulated" in table.column_names and set(table["simulated"].to_pylist()) <= {1}
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".csv":
        rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
        header = next(line for line in text.splitlines() if not line.startswith("#"))
        return header.split(",")[-1] == "simulated" and all(row["simulated"] == "1" for row in rows)
    return json.loads(text)["simulated"] is True if file.suffix == ".json" else "SIMULATED" in text


def test_rows_of_a_real_sweep_say_so_and_its_tables_have_no_such_column(tmp_path: Path) -> None:
    """0 in every row."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "a", "labels": "G"})
    assert main([str(tmp_path / "store.db"), "--out", str(tmp_path), "--rows", "csv", *QUICK]) == Exit.DONE
    with (tmp_path / "rows" / "records.csv").open(newline="") as file:
        assert [row["simulated"] for row in csv.DictReader(file)] == ["0"]
    assert "simulated" not in (tmp_path / "leaderboard.csv").read_text()


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_a_folder_given_as_a_store_is_said_to_be_one(
    command: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However it is written, with the stores that are in it."""
    (path.parent / "empty").mkdir()
    monkeypatch.chdir(path.parent)
    for folder, stores in ((".", ": store.db"), ("empty", ""), (f"../{path.parent.name}", ": store.db")):
        with pytest.raises(SystemExit, match="2"):
            mirage([command, folder])
        said = capsys.readouterr().err
        assert said.removeprefix("mirage: ") == f"{folder}: this is a folder; give the store's file{stores}\n"


def test_a_report_is_not_written_into_a_folders_place(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says that --out is a file."""
    with pytest.raises(SystemExit, match="2"):
        mirage(["report", str(path), "--out", str(path.parent)])
    assert "is a folder; give --out the name of an HTML file" in capsys.readouterr().err


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
