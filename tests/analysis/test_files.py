"""Files that are there whole or not at all: after errors, signals and kills."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from analysis.files import replaced, write_whole

ROOT = Path(__file__).parents[2]
# Says when it is in the middle of writing, then waits for what comes.
WRITER = """
import sys, time
from pathlib import Path
from analysis.files import replaced
with replaced(Path(sys.argv[1])) as temporary, temporary.open("w") as file:
    file.write("half")
    file.flush()
    print("writing", flush=True)
    while True:
        time.sleep(60)
"""


def writing(path: Path) -> "subprocess.Popen[str]":
    """Start a process that is in the middle of writing a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_leaves_no_part(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, a polite kill, a terminal that closes: what was there stays, and nothing beside it."""
    target = tmp_path / "table.csv"
    target.write_text("old")
    process = writing(target)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in {-number, 128 + number}
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    assert target.read_text() == "old"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """Nobody can clean up after kill -9 but the next one who comes."""
    target = tmp_path / "ta[b]le*.csv"
    process = writing(target)
    process.kill()
    process.communicate(timeout=30)
    (part,) = tmp_path.iterdir()
    assert part.name == f".{target.name}.{process.pid}.part"
    write_whole(target, "new")
    assert [file.name for file in tmp_path.iterdir()] == [target.name]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    """Two exports of one table: each writes a file of its own, the later one wins."""
    target = tmp_path / "table.csv"
    process = writing(target)
    write_whole(target, "new")
    assert {file.name for file in tmp_path.iterdir()} == {"table.csv", f".table.csv.{process.pid}.part"}
    process.terminate()
    process.communicate(timeout=30)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    """Only our own kind of name with the number of a dead process goes."""
    names = {".table.csv.notes.part", ".table.csv.part", ".other.csv.1.part", f".table.csv.{os.getpid()}0.parts"}
    for name in names:
        (tmp_path / name).touch()
    write_whole(tmp_path / "table.csv", "new")
    assert {file.name for file in tmp_path.iterdir()} == {*names, "table.csv"}


def test_signals_are_as_they_were_afterwards(tmp_path: Path) -> None:
    """Handlers of the program around it are left alone, and the default comes back."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    mine = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with replaced(tmp_path / "a") as temporary:
            temporary.touch()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, mine)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_another_thread_may_write(tmp_path: Path) -> None:
    """Where signals cannot be handled, files are written all the same."""
    thread = threading.Thread(target=write_whole, args=(tmp_path / "table.csv", "new"))
    thread.start()
    thread.join()
    assert (tmp_path / "table.csv").read_text() == "new"
