"""`mirage batches` against the simulator: list, cancel, harvest and attach what an interrupted run left there."""

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.generating import generation_job, prepare_generation
from bench.loop import run_loop
from bench.run import Result, prepare, run_job, run_sweep
from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import PROVIDERS, TAILS
from bench.sweepfile import load_generation, load_sweep
from engine.database import StoreLock
from engine.events import Listener, Notice, Outcome

KEY_ENV = "SIMULATOR_KEY"
SETTINGS = "[batches]\nspeed = 0.0\n"
SWEEP = """
name = "{name}"
models = ["{model}"]
stages = ["task"]
tasks = ["apartment", "birthday_gift"]
personas = 2
mode = "batch"
store = "{name}.sqlite"
[batch]
poll_seconds = 0.05
longest_poll_seconds = 0.1
grace_seconds = {grace}
results_patience_minutes = 5
"""
WITH_MARKER, WITHOUT = "gpt-5.4-nano", "claude-opus-4-6"
LATER = 3_600

Mirage = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One whose batches stand still until they are told to go on."""
    folder = tmp_path_factory.mktemp("orders")
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulator: Running) -> Iterator[None]:
    """Work in an empty folder and home, with the simulator's key; quirks end with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    # An account of its own for every test: markers and lists of others are not seen.
    monkeypatch.setenv(KEY_ENV, f"sk-{tmp_path.name}-0123456789")
    yield
    httpx.delete(f"{simulator.address}/_sim/batches")


def file_of(simulator: Running, name: str = "s", model: str = WITH_MARKER, grace: float = 60.0) -> Path:
    """Write a sweep file whose accounts are the simulator's."""
    accounts = "".join(
        f'[provider.{each}]\nbase_url = "{simulator.url(each)}{TAILS.get(each, "")}"\nkey_env = "{KEY_ENV}"\n'
        for each in PROVIDERS
    )
    path = Path(f"{name}.toml")
    path.write_text(SWEEP.format(name=name, model=model, grace=grace) + accounts, encoding="utf-8")
    return path


def left_open(file: Path, kind: str = "batch_created") -> Path:
    """Run a sweep until it tells of `kind`, stop it as Ctrl-C does, and return its store."""
    prepared = prepare(load_sweep(file))
    stop_at(kind, lambda listen: run_sweep(prepared, listen=listen, watch=lambda snapshot, expected: None))
    return prepared.store_path


def stop_at(kind: str, run: Callable[[Listener], Coroutine[Any, Any, Result]]) -> None:
    """Run something until it tells of `kind`, and stop it as Ctrl-C does."""

    def listen(notice: Notice) -> None:
        if notice.kind == kind:
            os.kill(os.getpid(), signal.SIGINT)

    assert run_loop(run(listen)).outcome is Outcome.INTERRUPTED


def advance(simulator: Running, seconds: float = LATER) -> None:
    """Let the batches' time pass."""
    assert httpx.post(f"{simulator.address}/_sim/batches/advance", json={"seconds": seconds}).status_code == 200


def quirks(simulator: Running, **found: object) -> None:
    """Let something be odd about the next batch."""
    assert httpx.post(f"{simulator.address}/_sim/batches", json=found).status_code == 200


def jobs(simulator: Running) -> list[dict[str, Any]]:
    """Return the batches that the simulator knows."""
    found: list[dict[str, Any]] = httpx.get(f"{simulator.address}/_sim/batches").json()
    return found


def query(store: Path, sql: str) -> list[tuple[Any, ...]]:
    """Look into a store."""
    connection = sqlite3.connect(store)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def change(store: Path, sql: str, *values: object) -> None:
    """Change a store behind its back."""
    connection = sqlite3.connect(store)
    with connection:
        connection.execute(sql, values)
    connection.close()


def charges(simulator: Running) -> int:
    """Return how many calls the simulator has billed."""
    return sum(isinstance(line, Charge) for line in read_bill(simulator.bill))


# ----- looking


def test_what_is_under_way_is_listed_with_its_name_at_the_provider(simulator: Running, mirage: Mirage) -> None:
    """For people and for programs."""
    store = left_open(file_of(simulator))
    (remote,) = [job["id"] for job in jobs(simulator) if job["id"] == query(store, "SELECT remote_id FROM batch")[0][0]]
    code, shown, _ = mirage("batches", store)
    assert code == 0
    assert all(word in shown for word in ("openai/gpt-5.4-nano", "open", remote, "validating"))
    (row,) = json.loads(mirage("batches", store, "--json")[1])
    assert (row["state"], row["requests"], row["completed"], row["open"], row["remote_id"]) == ("open", 4, 0, 4, remote)


def test_status_and_watch_count_batches_and_the_requests_in_them(simulator: Running, mirage: Mirage) -> None:
    """They are among the sent ones, and not on the wire."""
    store = left_open(file_of(simulator))
    found = json.loads(mirage("status", store, "--json")[1])
    assert found["batches"] == {"by_stage": {"open": 1}, "requests": 4}
    assert found["requests"]["sent"] == 4
    assert "1 open (4 requests wait in them)" in mirage("status", store)[1]
    watched = mirage("watch", store, "--once")[1]
    assert "on the wire 0" in watched
    assert "batches 1 open" in watched


def test_an_attempt_tells_in_which_batch_it_went(simulator: Running, mirage: Mirage) -> None:
    """With the provider's name for it."""
    store = left_open(file_of(simulator))
    ((key, remote),) = query(store, "SELECT (SELECT key FROM requests LIMIT 1), remote_id FROM batch")
    shown = mirage("inspect", store, key)[1]
    assert "of batch 1 (open" in shown
    assert remote in shown


def test_finished_batches_are_listed_on_demand(simulator: Running, mirage: Mirage) -> None:
    """Else there is nothing to see."""
    file = file_of(simulator)
    store = left_open(file)
    advance(simulator)
    assert mirage("batches", store, "harvest")[0] == 0
    assert "--all" in mirage("batches", store)[1]
    (row,) = json.loads(mirage("batches", store, "--all", "--json")[1])
    assert (row["state"], row["completed"], row["open"]) == ("closed", 4, 0)


def test_what_a_provider_says_cannot_act_on_the_terminal(simulator: Running, mirage: Mirage) -> None:
    """Escapes are shown as escapes."""
    store = left_open(file_of(simulator))
    hostile = "in\x1b]0;owned\x07progress\n\u202egnp"
    change(store, "UPDATE batch SET remote = ?, remote_id = ?", json.dumps({"status": hostile}), "batch_\x1b[2J")
    for arguments in (("batches", store), ("status", store), ("watch", store, "--once")):
        shown = mirage(*arguments)[1]
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
    assert "\\x1b" in mirage("batches", store)[1]


def test_a_store_without_batches_says_so(simulator: Running, mirage: Mirage) -> None:
    """Also to programs."""
    store = left_open(file_of(simulator))
    advance(simulator)
    mirage("batches", store, "harvest")
    assert json.loads(mirage("batches", store, "--json")[1]) == []


# ----- cancel


def test_a_cancelled_batch_is_told_to_stop_while_a_run_holds_the_store(simulator: Running, mirage: Mirage) -> None:
    """Only the provider hears of it."""
    store = left_open(file_of(simulator))
    lock = StoreLock(store)
    lock.acquire()
    try:
        code, shown, _ = mirage("batches", store, "cancel", 1)
    finally:
        lock.release()
    assert code == 0
    assert "cancellation of batch 1 is ordered" in shown
    assert "cancelling" in shown


def test_what_a_cancelled_batch_did_not_run_is_planned_again_at_no_cost(simulator: Running, mirage: Mirage) -> None:
    """It counts as one try, so that no request is put off for ever."""
    store = left_open(file_of(simulator))
    mirage("batches", store, "cancel", 1)
    advance(simulator)
    before = charges(simulator)
    code, shown, _ = mirage("batches", store, "harvest")
    assert (code, "1 batches are over, 0 answers read" in shown) == (0, True)
    assert query(store, "SELECT state, failures, count(*) FROM request GROUP BY 1, 2") == [("planned", 1, 4)]
    assert charges(simulator) == before


@pytest.mark.parametrize(
    ("stage", "words"), [("in_doubt", "it is in doubt"), ("dropped", "it is dropped (why\\x1b)")], ids=["doubt", "over"]
)
def test_only_a_batch_at_its_provider_can_be_cancelled(
    simulator: Running, mirage: Mirage, stage: str, words: str
) -> None:
    """One line, exit code 2."""
    store = left_open(file_of(simulator))
    change(store, "UPDATE batch SET stage = ?, reason = iif(? = 'dropped', ?, '')", stage, stage, "why\x1b")
    code, _, said = mirage("batches", store, "cancel", 1)
    assert code == 2
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_an_unknown_batch_or_order_is_the_users_mistake(simulator: Running, mirage: Mirage) -> None:
    """Says where to look."""
    store = left_open(file_of(simulator))
    code, _, said = mirage("batches", store, "cancel", 7)
    assert (code, "the store has no batch 7" in said) == (2, True)
    assert mirage("batches", store, "burn", 7)[0] == 2
    assert mirage("batches", "nowhere.sqlite")[0] == 2


def test_a_missing_key_is_named(simulator: Running, mirage: Mirage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    store = left_open(file_of(simulator))
    monkeypatch.delenv(KEY_ENV)
    for order in (("cancel", 1), ("harvest",)):
        code, _, said = mirage("batches", store, *order)
        assert (code, KEY_ENV in said, len(said.strip().splitlines())) == (2, True, 1)


def test_a_simulated_sweep_is_never_taken_to_real_accounts(simulator: Running, mirage: Mirage) -> None:
    """Its store does not know where the simulator was; a file that says so helps."""
    file = file_of(simulator)
    store = left_open(file)
    assert query(store, "SELECT simulated FROM sweeps") == [(1,)]
    change(store, "UPDATE sweep SET manifest = replace(manifest, 'http://127.0.0.1', 'https://example.org')")
    code, _, said = mirage("batches", store, "cancel", 1)
    assert (code, "is simulated" in said) == (2, True)
    assert mirage("batches", store, "cancel", 1, "--sweep", file)[0] == 0


# ----- harvest


def test_harvest_reads_what_has_ended_and_sends_nothing(simulator: Running, mirage: Mirage) -> None:
    """What waits stays planned: the call lane of the model is not touched either."""
    store = left_open(file_of(simulator))
    change(store, "UPDATE request SET lane = 'openai/gpt-5.4-nano' WHERE 0")
    made = len(jobs(simulator))
    assert "0 batches are over, 0 answers read; 1 batches are still under way" in mirage("batches", store, "harvest")[1]
    advance(simulator)
    before = charges(simulator)
    assert "1 batches are over, 4 answers read; 0 batches are still" in mirage("batches", store, "harvest")[1]
    assert query(store, "SELECT state, count(*) FROM requests GROUP BY 1") == [("read", 4)]
    assert query(store, "SELECT count(*), sum(ended_ms IS NULL) FROM run") == [(1, 0)]
    assert (len(jobs(simulator)), charges(simulator)) == (made, before)
    assert "no batches under way" in mirage("batches", store, "harvest")[1]


def test_questions_that_follow_from_a_harvest_are_planned_and_wait(simulator: Running, mirage: Mirage) -> None:
    """Judgements by call: harvest makes none of them, the next run all."""
    file = file_of(simulator)
    text = file.read_text("utf-8").replace('stages = ["task"]', f'judges = ["{WITHOUT}"]\nstages = ["task", "judge"]')
    text = text.replace('mode = "batch"', 'mode = "stream"').replace(
        "[batch]", '[modes.stage]\ntask = "batch"\n[batch]'
    )
    file.write_text(text, encoding="utf-8")
    store = left_open(file)
    advance(simulator)
    before = charges(simulator)
    assert "4 answers read" in mirage("batches", store, "harvest")[1]
    assert charges(simulator) == before
    assert query(store, "SELECT stage, state, count(*) FROM requests GROUP BY 1, 2") == [
        ("judge", "planned", 4), ("task", "read", 4),
    ]  # fmt: skip
    assert mirage("run", file, "--plain", "--no-tables")[0] == 0
    assert charges(simulator) == before + 4


def test_personas_that_a_model_writes_in_batches_are_harvested_too(simulator: Running, mirage: Mirage) -> None:
    """Their file is of another kind."""
    text = file_of(simulator).read_text("utf-8")
    for line in ('stages = ["task"]', 'tasks = ["apartment", "birthday_gift"]', "personas = 2"):
        text = text.replace(f"{line}\n", "")
    file = Path("generate.toml")
    file.write_text(text + "[generate]\nnumber = 4\n", encoding="utf-8")
    job = generation_job(prepare_generation(load_generation(file)))
    stop_at("batch_created", lambda listen: run_job(job, listen=listen, watch=lambda snapshot, expected: None))
    advance(simulator)
    assert "1 batches are over, 4 answers read" in mirage("batches", job.store_path, "harvest")[1]


def test_harvest_leaves_what_was_not_submitted(simulator: Running, mirage: Mirage) -> None:
    """A file that lies ready is the next run's."""
    store = left_open(file_of(simulator))
    change(store, "UPDATE batch SET stage = 'ready', remote_id = '', remote = '{}'")
    made = len(jobs(simulator))
    assert "1 batches are still under way" in mirage("batches", store, "harvest")[1]
    assert query(store, "SELECT stage FROM batch") == [("ready",)]
    assert len(jobs(simulator)) == made


def test_harvest_does_not_wait_for_results_that_are_late(simulator: Running, mirage: Mirage) -> None:
    """They are read another time."""
    quirks(simulator, late_results=30)
    store = left_open(file_of(simulator))
    advance(simulator)
    code, shown, _ = mirage("batches", store, "harvest")
    assert (code, "0 answers read; 1 batches are still under way" in shown) == (0, True)
    assert query(store, "SELECT stage FROM batch") == [("ended",)]


def test_harvest_finds_a_batch_whose_creation_was_not_answered(simulator: Running, mirage: Mirage) -> None:
    """Looked for once, by its marker."""
    quirks(simulator, lose_create="after", list_lag=1)
    store = left_open(file_of(simulator), "batch_in_doubt")
    assert query(store, "SELECT stage FROM batch") == [("in_doubt",)]
    mirage("batches", store, "harvest")
    advance(simulator)
    assert "4 answers read" in mirage("batches", store, "harvest")[1]


def test_harvest_and_a_run_do_not_meet(simulator: Running, mirage: Mirage) -> None:
    """The store is for one of them."""
    store = left_open(file_of(simulator))
    lock = StoreLock(store)
    lock.acquire()
    try:
        code, _, said = mirage("batches", store, "harvest")
    finally:
        lock.release()
    assert (code, "another run is working on this store" in said) == (2, True)


def test_accounts_may_come_from_any_sweep_file(simulator: Running, mirage: Mirage) -> None:
    """Where the one that the store keeps leads nowhere; a file that cannot be read is one line."""
    file = file_of(simulator)
    store = left_open(file)
    other = file_of(simulator, "other")
    manifest = json.loads(query(store, "SELECT manifest FROM sweep")[0][0])
    manifest["sweep_file"] = manifest["sweep_file"].replace(str(simulator.port), "9")
    change(store, "UPDATE sweep SET manifest = ?", json.dumps(manifest))
    advance(simulator)
    Path("broken.toml").write_text("name = 1")
    code, _, said = mirage("batches", store, "harvest", "--sweep", "broken.toml")
    assert (code, "broken.toml" in said, len(said.strip().splitlines())) == (2, True, 1)
    assert "4 answers read" in mirage("batches", store, "harvest", "--sweep", other)[1]


def test_harvest_says_why_a_batch_could_not_be_looked_at(
    simulator: Running, mirage: Mirage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another account does not know it; once it is old enough, that is no longer a list's lag."""
    store = left_open(file_of(simulator, grace=0))
    monkeypatch.setenv(KEY_ENV, "sk-of-somebody-else-0123456789")
    code, shown, said = mirage("batches", store, "harvest")
    assert (code, "1 batches are still under way" in shown) == (0, True)
    assert "batch 1 cannot be looked at" in said


def test_an_account_that_refuses_the_key_has_its_own_exit_code(simulator: Running, mirage: Mirage) -> None:
    """And says which key; nothing is lost."""
    store = left_open(file_of(simulator))
    accounts = Path("closed.toml")
    with running(Path("closed"), config=closed()) as other:
        accounts.write_text(file_of(other, "closed").read_text("utf-8"), encoding="utf-8")
        code, _, said = mirage("batches", store, "harvest", "--sweep", accounts)
    assert (code, KEY_ENV in said) == (4, True)
    assert query(store, "SELECT stage FROM batch") == [("open",)]


def closed() -> Path:
    """Settings of a simulator that knows one key, which nobody has."""
    path = Path("closed.settings.toml")
    path.write_text('keys = ["sk-nobody-has-this-0123456789"]\n', encoding="utf-8")
    return path


# ----- attach


def test_a_batch_in_doubt_is_attached_by_its_marker(simulator: Running, mirage: Mirage) -> None:
    """And read like any other."""
    quirks(simulator, lose_create="after", list_lag=1_000)
    store = left_open(file_of(simulator), "batch_in_doubt")
    remote = jobs(simulator)[-1]["id"]
    code, shown, _ = mirage("batches", store, "attach", 1, remote)
    assert (code, remote in shown) == (0, True)
    assert query(store, "SELECT stage, remote_id FROM batch") == [("open", remote)]
    advance(simulator)
    assert "4 answers read" in mirage("batches", store, "harvest")[1]


def test_without_a_marker_only_rows_prove_whose_a_batch_is(simulator: Running, mirage: Mirage) -> None:
    """So it is refused until it has ended."""
    quirks(simulator, lose_create="after", list_lag=1_000)
    store = left_open(file_of(simulator, model=WITHOUT), "batch_in_doubt")
    remote = jobs(simulator)[-1]["id"]
    code, _, said = mirage("batches", store, "attach", 1, remote)
    assert (code, "nothing proves yet" in said) == (2, True)
    advance(simulator)
    assert mirage("batches", store, "attach", 1, remote)[0] == 0
    assert "4 answers read" in mirage("batches", store, "harvest")[1]


@pytest.mark.parametrize("model", [WITH_MARKER, WITHOUT], ids=["marker", "no marker"])
def test_somebody_elses_batch_is_never_attached(simulator: Running, mirage: Mirage, model: str) -> None:
    """Its marker, or its rows, say that it is another one; the store stays as it was."""
    other = left_open(file_of(simulator, "other", model))
    ((theirs,),) = query(other, "SELECT remote_id FROM batch")
    quirks(simulator, lose_create="after", list_lag=1_000)
    store = left_open(file_of(simulator, model=model), "batch_in_doubt")
    advance(simulator)
    code, _, said = mirage("batches", store, "attach", 1, theirs)
    assert (code, "that is" in said, len(said.strip().splitlines())) == (2, True, 1)
    assert query(store, "SELECT stage, remote_id FROM batch") == [("in_doubt", "")]


def test_what_the_provider_does_not_know_is_not_attached(simulator: Running, mirage: Mirage) -> None:
    """Nor is a batch that is not in doubt, nor one that another batch is already."""
    store = left_open(file_of(simulator))
    ((remote,),) = query(store, "SELECT remote_id FROM batch")
    code, _, said = mirage("batches", store, "attach", 1, remote)
    assert (code, "is not in doubt: it is open" in said) == (2, True)
    change(store, "UPDATE batch SET stage = 'in_doubt'")
    code, _, said = mirage("batches", store, "attach", 1, remote)
    assert (code, "that is batch 1 of this store already" in said) == (2, True)
    change(store, "UPDATE batch SET remote_id = ''")
    code, _, said = mirage("batches", store, "attach", 1, "batch_nonsense")
    assert (code, "knows no such batch" in said) == (2, True)
