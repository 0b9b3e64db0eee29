"""Looking at a store from the command line: marks of simulated answers, one set of words, tables that fit, mistakes."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from bench.cli.benchmarks import show_figures
from bench.cli.providers import _compare, _show
from bench.modes import Mode
from bench.throughput.measurements import Measurement, Spread, keep
from engine.cell import Read, Reading, ReadingStatus
from engine.errors import ErrorClass, ProviderError
from engine.ledger import ZERO, Amount
from engine.request import Decoding, Request, Role, chat
from engine.state import State
from engine.store import Store
from engine.testing import make_cell, make_completion, make_ticket

Mirage = Callable[..., tuple[int, str, str]]
STORE = Path("s.sqlite")
REMOTE = "msgbatch_9b9ec136441bcc69fdf5d9e2"
MODEL = "claude-opus-4-6-20260415"
WIDTHS = (60, 80, 100, 120)
QUESTION = Request(
    provider="scripted", model="m-1", messages=chat((Role.USER, "what do you know of me?")),
    decoding=Decoding(max_tokens=6000, temperature=0.7, thinking=False),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an empty home and without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)


async def _fill(*, simulated: bool) -> str:
    """Make a store in which one of everything happened; return the key of the answered request."""
    async with await Store.open(STORE) as store:
        sweep = await store.add_sweep("s", "{}", "h", simulated=simulated, now_ms=1)
        run = await store.begin_run(sweep, "{}", 1)
        await store.plan(sweep, [make_cell(0, request=QUESTION), *(make_cell(number) for number in range(1, 4))])
        leased = await store.lease(sweep_id=sweep, run_id=run, lane="scripted/m-1", most=9, now_ms=1)
        tickets = [make_ticket(each, nano=387_214_393) for each in leased]
        for ticket in tickets:
            assert await store.send(ticket, run, 1)
        for ticket, status in zip(tickets, (ReadingStatus.COMPLETE, ReadingStatus.UNREADABLE), strict=False):
            made = Read(reading=Reading(status=status, version=1, reason="" if status == "complete" else "no JSON"))
            await store.settle(
                ticket, make_completion("hi"), [(cell.id, made) for cell in ticket.leased.cells], sweep_id=sweep,
                paid=Amount(387_214_393, 7), latency_ms=1, now_ms=1,
            )  # fmt: skip
        no = ProviderError(ErrorClass.CONTENT, "scripted: blocked", status=400)
        await store.fail(tickets[2], no, state=State.FAILED, keep=False, paid=ZERO, now_ms=1)
    return leased[0].key.hex()


def filled(*, simulated: bool = True) -> str:
    """Make the store, with a batch in it that holds what is still on the wire."""
    key = asyncio.run(_fill(simulated=simulated))
    connection = sqlite3.connect(STORE)
    with connection:
        for number, remote in enumerate(("", REMOTE), 1):
            connection.execute(
                "INSERT INTO batch (id, sweep_id, run_id, lane, provider, model, stage, marker, remote_id, remote,"
                " reason, count, built_ms) VALUES (?, 1, 1, 'l', 'anthropic', ?, ?, 'k', ?, ?, ?, 123456, 1)",
                (
                    number, MODEL, "open" if remote else "dropped", remote, json.dumps({"status": "validating"}),
                    "" if remote else "the provider found it too large",
                ),
            )  # fmt: skip
        connection.execute("UPDATE attempt SET batch_id = 2, line = 0 WHERE request_id = 4")
    connection.close()
    return key


# ----- simulated


VIEWS = [("status",), ("watch",), ("errors",), ("batches",), ("batches", "--all"), ("inspect", "KEY")]


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_the_first_line_of_every_view_says_whether_it_is_simulated(
    view: tuple[str, ...], simulated: bool, mirage: Mirage
) -> None:
    """No figure of a simulator is taken for a real one."""
    key = filled(simulated=simulated)
    command, *rest = [key if word == "KEY" else word for word in view]
    code, shown, _ = mirage(command, STORE, *rest)
    assert code == 0
    assert ("SIMULATED" in shown.splitlines()[0]) is simulated


@pytest.mark.parametrize("command", ["status", "errors", "batches"])
def test_the_first_field_for_programs_says_that_it_is_simulated(command: str, mirage: Mirage) -> None:
    """Of every batch in a list of them."""
    filled()
    found = json.loads(mirage(command, STORE, "--json")[1])
    assert next(iter((found[0] if isinstance(found, list) else found).items())) == ("simulated", True)


@pytest.mark.parametrize("command", [("errors",), ("batches",), ("batches", "--all")], ids=" ".join)
def test_a_view_of_nothing_is_marked_too(command: tuple[str, ...], mirage: Mirage) -> None:
    """Nothing went wrong in a simulation is no news of a provider."""

    async def empty() -> None:
        async with await Store.open(STORE) as store:
            await store.add_sweep("s", "{}", "h", simulated=True, now_ms=1)

    asyncio.run(empty())
    assert "SIMULATED" in mirage(command[0], STORE, *command[1:])[1].splitlines()[0]


# ----- is a run on?


KILLED = """
import asyncio, os, signal
from pathlib import Path
from engine.store import Store

async def main():
    store = await Store.open(Path("s.sqlite"))
    sweep = await store.find_sweep("s")
    await store.begin_run(sweep.id, "{}", 1)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_watch_ends_when_the_run_was_killed(mirage: Mirage) -> None:
    """And says why; status names no dead process."""
    filled()
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -signal.SIGKILL
    code, shown, _ = mirage("watch", STORE)
    assert (code, shown.splitlines()[-1], len(shown.splitlines())) == (0, "no run is on", 2)
    assert json.loads(mirage("status", STORE, "--json")[1])["running"] is None


def test_status_says_who_runs_the_sweep(mirage: Mirage, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody, this process, or a process that has begun no run."""
    filled()
    assert "no run is on" in mirage("status", STORE)[1].splitlines()

    async def held(*, run: bool) -> str:
        async with await Store.open(STORE) as store:
            if run:
                await store.begin_run(1, "{}", 1)
            return (await asyncio.to_thread(mirage, "status", STORE))[1]

    waiting = f"no run of this sweep is on; process {os.getpid()} has the store, and no run begun"
    connection = sqlite3.connect(STORE)
    with connection:
        connection.execute("UPDATE run SET pid = pid + 1")
    connection.close()
    assert waiting in asyncio.run(held(run=False)).splitlines()
    assert f"running: process {os.getpid()}" in asyncio.run(held(run=True)).splitlines()


# ----- words and figures


def test_status_says_what_became_of_every_call(mirage: Mirage) -> None:
    """Nothing looks lost; sums can be read, and are exact for programs."""
    filled()
    shown = mirage("status", STORE)[1]
    assert "calls:    2 answered, 1 went wrong, 1 under way = 4" in shown
    assert "money:    $0.7744 spent, $0.3872 reserved" in shown
    assert json.loads(mirage("status", STORE, "--json")[1])["money"]["spent_nano"] == 774_428_786


def test_errors_tells_what_is_lost_before_what_was_made_good(mirage: Mirage) -> None:
    """Totals, the failed, the unreadable with their reasons; no provider's name twice."""
    filled()
    lines = mirage("errors", STORE)[1].splitlines()
    assert lines[1].startswith("of 4 requests 1 failed for good; 1 answer cannot be read; 0 attempts")
    assert "  content 400: blocked" in lines
    assert lines.index("  content 400: blocked") < lines.index("  no JSON")
    assert "Traceback" not in mirage("inspect", STORE, lines[5].rpartition(" ")[2].strip("`"))[2]


def test_inspect_speaks_as_status_does(mirage: Mirage) -> None:
    """Read, not settled or complete; settings by name, not as a program writes them."""
    shown = mirage("inspect", STORE, filled())[1]
    head, settings, *rest = shown.splitlines()
    assert "  read  m = m-1" in head
    assert settings == "max_tokens 6000, temperature 0.7, thinking false, sample 0"
    assert "1  answered  $0.3872" in rest
    assert "read" in rest
    assert not {"settled", "complete", "completed"} & set(shown.split())


def test_batches_has_the_sweeps_stages_and_its_own_state(mirage: Mirage) -> None:
    """As the README says: model, stage."""
    filled()
    heads, _, row = [line.split() for line in mirage("batches", STORE)[1].splitlines() if line.strip()][1:4]
    assert heads[:4] == ["id", "model", "stages", "state"]
    assert row[:4] == ["2", f"anthropic/{MODEL}", "task", "open"]
    (found,) = json.loads(mirage("batches", STORE, "--json")[1])
    assert (found["stages"], found["state"]) == (["task"], "open")


def test_the_classes_of_retry_are_those_that_its_help_lists(mirage: Mirage) -> None:
    """All of them."""
    shown = " ".join(mirage("retry", "--help")[1].split())
    assert all(each.value in shown for each in ErrorClass)


def test_models_shows_the_limits_that_its_help_promises(mirage: Mirage) -> None:
    """As far as the catalogue knows."""
    shown = mirage("models")[1]
    assert "limits" in shown
    assert "2,500 at once" in shown


# ----- tables


PLAN = 'name = "s"\nmodels = ["gpt-5.5", "claude-opus-4-6"]\njudges = ["claude-opus-4-7"]\nmode = "auto"\n'
TABLES = {
    "batches": (("batches", STORE, "--all"), ("2", f"anthropic/{MODEL}", REMOTE, "123,456")),
    "status": (("status", STORE), ("task", "unreadable", "pending")),
    "models": (("models",), ("gemini-3.1-pro-preview-2026-05", "claude-opus-4-6-20260415", "gpt-5.4-nano")),
    "personas": (("personas", "list"), ("seed_001", "counter-stereotypical")),
    "plan": (("plan", "sweep.toml"), ("claude-opus-4-6", "probe_judge", "stream")),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_every_table_fits_and_cuts_no_figure_and_no_name(
    name: str, width: int, mirage: Mirage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one needs for an order stays; every word of the narrow table is a word of the wide one."""
    filled()
    Path("sweep.toml").write_text(PLAN, encoding="utf-8")
    arguments, kept = TABLES[name]
    wide = mirage(*arguments)[1]
    monkeypatch.setenv("COLUMNS", str(width))
    code, shown, _ = mirage(*arguments)
    assert code == 0
    lines = shown.splitlines()
    table = [line for line in lines if line.startswith((" ", "│", "┃", "┏", "└"))]
    assert max(map(cell_len, table)) <= width
    words = set(shown.replace("│", " ").replace("┃", " ").split())
    assert set(kept) - {"123,456", "stream"} <= {word.rstrip(":,") for word in words}
    added = {"left", "out", "for", "want", "of", "room", "M", "in"}
    known = {word.strip(":,") for word in wide.replace("│", " ").replace("┃", " ").split()} | added
    assert not [word for word in words if word.strip(":,") not in known and not set(word) & set("┏━┳┡╇┩└─┴┘")]
    assert "…" not in shown


MEASURED = Measurement(
    at=1_796_000_000.0, alias="claude-opus-4-6", provider="anthropic", model=MODEL, base_url="https://a.example",
    mode=Mode.BATCH, simulated=True, calls=200, completed=199, failed=1, attempts=230, retries=31,
    throttled_share=0.123, calls_per_s=1234.5, tokens_per_s=98765.4, output_tokens_per_s=54321.0, input_tokens=1.0,
    output_tokens=1.0, first_byte_ms=Spread(n=1, p50=12345.0, p90=23456.0, p99=34567.0, most=1.0),
    latency_ms=Spread(n=1, p50=12346.0, p90=23457.0, p99=34568.0, most=1.0), cost_nano=1,
    cost_nano_per_1000=12_345_000_000, concurrency=384, rising=True,
)  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["measured", "compared", "figures"])
def test_tables_of_benchmarks_fit_and_cut_no_figure(
    name: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured stays; of what is left out, the table says so."""
    monkeypatch.setenv("COLUMNS", str(width))
    if name == "measured":
        _show([MEASURED])
        kept = {"claude-opus-4-6", "1,234", "12,346 / 23,457 / 34,568", "384+"}
    elif name == "compared":
        keep(tmp_path / "kept.jsonl", [MEASURED, MEASURED])
        _compare(tmp_path / "kept.jsonl")
        kept = {"claude-opus-4-6", "1,234 +0%", "34,568 +0%"}
    else:
        heads = ("what", "the engine's, in a second", "the floor's, in a second", "of it")
        show_figures("t", heads, [("requests planned and sent", "123,456,789", "987,654,321", "12.5 %")], 0.1, 0.2)
        kept = {"123,456,789", "987,654,321", "12.5 %"}
    shown = capsys.readouterr().out
    # A caption is a sentence, and goes over the edge as sentences do.
    table = [line for line in shown.splitlines() if line.startswith((" ", "│", "┃", "┏", "└"))]
    assert max(map(cell_len, table), default=0) <= width
    assert all(whole in shown for whole in kept), shown
    assert "…" not in shown


# ----- mistakes


ON_STORES = [
    ("status",), ("watch", "--once"), ("errors",), ("batches",), ("batches", "--all", "--json"), ("inspect", "abcd"),
    ("retry",), ("reparse",), ("annotate", "sample"),
    ("annotate", "agreement"),
]  # fmt: skip


@pytest.mark.parametrize("folder", [".", "runs", "/"])
@pytest.mark.parametrize("command", ON_STORES, ids=" ".join)
def test_a_folder_given_as_store_is_one_line_and_the_users_mistake(
    command: tuple[str, ...], folder: str, mirage: Mirage
) -> None:
    """It names the store that was meant, and is no fault of the disk."""
    Path("runs").mkdir()
    Path("runs/pilot.sqlite").touch()
    name, *rest = command
    arguments = (name, rest[0], folder) if name == "annotate" else (name, folder, *rest)
    code, shown, said = mirage(*arguments)
    assert (code, shown, len(said.splitlines())) == (2, "", 1)
    assert "this is a folder" in said
    assert ("runs/pilot.sqlite" in said) is (folder == "runs")
    assert sorted(each.name for each in Path().rglob("*")) == ["pilot.sqlite", "runs"]


@pytest.mark.parametrize("order", [("cancel", "1"), ("harvest",), ("attach", "1", "r")], ids=" ".join)
def test_orders_about_batches_refuse_a_folder_too(order: tuple[str, ...], mirage: Mirage) -> None:
    """Before anybody is asked."""
    code, _, said = mirage("batches", ".", *order)
    assert code == 2
    assert "this is a folder" in said


@pytest.mark.parametrize("folder", [".", "..", "runs", "/"])
@pytest.mark.parametrize("command", ["analyze", "report"])
def test_a_folder_without_rows_is_a_mistake_for_the_analysis_too(command: str, folder: str, mirage: Mirage) -> None:
    """It reads folders of rows; this is none."""
    Path("runs").mkdir()
    code, _, said = mirage(command, folder)
    assert code == 2
    assert "Traceback" not in said
    assert "folder" in said
