"""What a simulator answers is marked as simulated, whether or not anybody says so, and never mixed with what is real.

Plans of stores that runs have filled stand here too, since filling one needs somebody who answers.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.loop import run_loop
from bench.run import prepare_file, user_catalog
from bench.simulated import find_simulators, marked, real_accounts
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import PROVIDERS, TAILS, price_settings
from engine.errors import UserError
from engine.status import read_status

KEY_ENV = "SIMULATOR_KEY"
SWEEP = """
name = "{name}"
models = ["gpt-4o-mini"]
judges = ["claude-opus-4-7"]
stages = ["task", "judge"]
personas = {personas}
tasks = ["apartment", "birthday_gift"]
"""
REAL = "sk-real-0123456789abcdef0123"

Mirage = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that charges the catalogue's prices."""
    folder = tmp_path_factory.mktemp("marks")
    (folder / "settings.toml").write_text(price_settings(user_catalog(None).cards.values()), encoding="utf-8")
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder and home, with the simulator's key and no other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(KEY_ENV, f"sk-{tmp_path.name}-0123456789")


def addresses(simulator: Running, accounts: tuple[str, ...] = PROVIDERS) -> str:
    return "".join(
        f'[provider.{each}]\nbase_url = "{simulator.url(each)}{TAILS.get(each, "")}"\nkey_env = "{KEY_ENV}"\n'
        for each in accounts
    )


def written(text: str, name: str = "s", personas: int = 1) -> Path:
    path = Path(f"{name}.toml")
    path.write_text(SWEEP.format(name=name, personas=personas) + text, encoding="utf-8")
    return path


def run(mirage: Mirage, file: Path, *options: object) -> tuple[int, str, str]:
    return mirage("run", file, "--plain", "--no-tables", "--store", "s.sqlite", *options)


def is_marked(sweep: str = "s") -> bool:
    return run_loop(read_status(Path("s.sqlite"), sweep)).simulated


# ----- the mark


def test_a_run_that_the_simulator_answers_is_marked_without_being_told(simulator: Running, mirage: Mirage) -> None:
    """In the store, and so in everything that is made of it."""
    code, _, said = run(mirage, written(addresses(simulator)))
    assert (code, is_marked()) == (0, True), said


def test_tables_of_such_a_run_are_marked_too(simulator: Running, mirage: Mirage) -> None:
    """They are what is copied into papers."""
    code, out, _ = mirage("run", written(addresses(simulator)), "--plain", "--store", "s.sqlite")
    assert (code, "SIMULATED" in out) == (0, True)


def test_personas_that_the_simulator_wrote_are_marked_too(simulator: Running, mirage: Mirage) -> None:
    """Whatever runs goes the same way."""
    head = 'name = "s"\nmodels = ["gpt-4o-mini"]\n[generate]\nnumber = 1\ntries = 1\nout = "own.toml"\n'
    Path("g.toml").write_text(head + addresses(simulator), encoding="utf-8")
    mirage("personas", "generate", "g.toml", "--plain", "--store", "s.sqlite")
    assert is_marked()


def test_plan_and_doctor_say_that_a_simulator_answers(simulator: Running, mirage: Mirage) -> None:
    """Before anything is sent."""
    file = written(addresses(simulator))
    assert "SIMULATED" in mirage("plan", file)[1]
    code, out, _ = mirage("doctor", file)
    assert (code, out.count("SIMULATED")) == (0, 2)


def test_real_answers_do_not_go_into_a_store_of_simulated_ones(
    simulator: Running, mirage: Mirage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal calls are shared within a store: a sweep of another name would take over what no model has said."""
    run(mirage, written(addresses(simulator)))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, REAL)
    for name in ("s", "other"):
        for answer in (run(mirage, written("", name)), mirage("plan", written("", name), "--store", "s.sqlite")):
            assert answer[0] == 2
            assert "the store holds simulated answers (sweep `s`)" in answer[2]


def test_a_simulator_beside_real_accounts_is_refused(
    simulator: Running, mirage: Mirage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real judge would be paid for judging what no model has said."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", REAL)
    code, _, said = run(mirage, written(addresses(simulator, ("openai",))))
    assert (code, "a simulator answers for openai, but not for anthropic" in said) == (2, True)
    assert not Path("s.sqlite").exists()


def test_a_sweep_without_answers_takes_the_mark_of_who_answers_now(simulator: Running, mirage: Mirage) -> None:
    """It was begun under a cap of nothing, while nobody was there."""
    nowhere = addresses(simulator).replace(str(simulator.port), "1")
    assert run(mirage, written(nowhere + "[budget]\ntokens = 1\n"))[0] == 3
    assert not is_marked()
    assert run(mirage, written(addresses(simulator)))[0] == 0
    assert is_marked()


def test_a_simulated_sweep_stays_one_while_nobody_answers(simulator: Running, mirage: Mirage) -> None:
    """A finished one is finished also when its simulator is gone."""
    run(mirage, written(addresses(simulator)))
    code, out, said = run(mirage, written(addresses(simulator).replace(str(simulator.port), "1")))
    assert (code, "0 calls in this run" in out) == (0, True), said
    assert is_marked()


async def test_nobody_there_means_that_nothing_is_known(simulator: Running) -> None:
    """And a real provider's address is not asked at all."""
    path = written(addresses(simulator, ("openai",)).replace(str(simulator.port), "1"))
    prepared = prepare_file(path)
    cards = {alias: prepared.catalog.card(alias) for alias in prepared.manifest.models}
    assert await find_simulators(cards.values()) == {}
    assert real_accounts(cards, {}) == ["anthropic"]
    assert await marked(prepared) is prepared


async def test_a_server_that_is_no_simulator_is_real(simulator: Running) -> None:
    """Whatever of this machine answers without the mark."""
    prepared = prepare_file(written(addresses(simulator)))
    cards = {alias: prepared.catalog.card(alias) for alias in prepared.manifest.models}
    assert await find_simulators(cards.values()) == {"openai": True, "anthropic": True}
    assert real_accounts(cards, {"openai": False, "anthropic": True}) == ["openai"]
    with pytest.raises(UserError, match="answers for anthropic, but not for openai") as caught:
        await marked(prepare_file(written(addresses(simulator, ("anthropic",)))))
    assert str(caught.value.where).startswith("s.toml:")


# ----- what a plan says of a store


def planned(mirage: Mirage, file: Path, *options: str) -> list[dict[str, Any]]:
    code, out, said = mirage("plan", file, "--store", "s.sqlite", "--json", *options)
    assert code == 0, said
    return list(json.loads(out))


def test_what_is_answered_is_not_planned_again(simulator: Running, mirage: Mirage) -> None:
    """Neither calls nor cost nor time; and both are said."""
    file = written(addresses(simulator))
    before = planned(mirage, file)
    assert [(line["calls"], line["answered"], line["left"]) for line in before] == [(2, 0, 2), (2, 0, 2)]
    run(mirage, file)
    after = planned(mirage, file)
    assert [(line["calls"], line["answered"], line["left"]) for line in after] == [(2, 2, 0), (2, 2, 0)]
    assert sum(line["stream_nano"] for line in after) == 0
    paid = run_loop(read_status(Path("s.sqlite"))).money.spent_nano
    assert sum(line["paid_nano"] for line in after) == paid > 0
    shown = mirage("plan", file, "--store", "s.sqlite")[1]
    assert "already answered: 4 calls" in shown
    assert "nothing is left to send" in shown


def test_only_what_is_new_is_planned(simulator: Running, mirage: Mirage) -> None:
    """A second persona brings as much as the first has brought."""
    run(mirage, written(addresses(simulator)))
    more = planned(mirage, written(addresses(simulator), personas=2))
    assert [(line["calls"], line["answered"], line["left"]) for line in more] == [(4, 2, 2), (4, 2, 2)]
    shown = mirage("plan", written(addresses(simulator), personas=2), "--store", "s.sqlite")[1]
    assert "still to send: 4 calls, as it will be sent: $" in shown


def test_what_another_sweep_of_the_store_has_answered_is_known(simulator: Running, mirage: Mirage) -> None:
    """As far as it can be: what will be asked first."""
    run(mirage, written(addresses(simulator)))
    task, judge = planned(mirage, written(addresses(simulator), name="again"))
    assert (task["left"], judge["left"]) == (0, 2)


def test_caps_that_will_not_do_for_the_rest_are_named(simulator: Running, mirage: Mirage) -> None:
    """With what is used already; a run then stops there, and says the same cap."""
    run(mirage, written(addresses(simulator)))
    caps = "[budget]\nusd = 0.07\n[budget.stage.judge]\ntokens = 3_000\n[budget.provider.openai]\nusd = 5\n"
    file = written(addresses(simulator) + caps, personas=2)
    shown = mirage("plan", file, "--store", "s.sqlite")[1]
    named = [line for line in shown.splitlines() if line.startswith("cap of")]
    assert [line.partition(":")[0] for line in named] == ["cap of sweep s", "cap of stage judge"]
    assert all("is used" in line and "exit code 3" in line for line in named)
    code, out, _ = run(mirage, file)
    assert (code, "cap of stage judge: " in out, "the next call may need" in out) == (3, True, True)


def test_a_plan_for_programs_says_of_caps_elsewhere(simulator: Running, mirage: Mirage) -> None:
    """Standard output stays one JSON array."""
    file = written(addresses(simulator) + "[budget]\nusd = 0.000001\n")
    code, out, said = mirage("plan", file, "--json")
    assert (code, len(json.loads(out)), "cap of sweep s: $0.000001 will not do" in said) == (0, 2, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param("[settings.task]\ntemperature = 0.1\n", "other settings", id="another temperature"),
        pytest.param('[model."gpt-4o-mini"]\nmodel = "gpt-9"\nprice = { input = 1, output = 1 }\n', "stands for",
                     id="another model"),
    ],
)  # fmt: skip
def test_a_plan_refuses_what_a_run_refuses(simulator: Running, mirage: Mirage, change: str, words: str) -> None:
    """In the same words."""
    run(mirage, written(addresses(simulator)))
    file = written(addresses(simulator) + change)
    code, _, said = mirage("plan", file, "--store", "s.sqlite")
    assert (code, words in said) == (2, True), said
    assert run(mirage, file)[2].splitlines()[-1] == said.strip()


@pytest.mark.parametrize("place", ["text", "folder"])
def test_a_plan_refuses_what_is_no_store(mirage: Mirage, place: str) -> None:
    """Instead of planning beside it."""
    Path("text").write_text("hello, this is no store at all" * 50, encoding="utf-8")
    Path("folder").mkdir()
    code, _, said = mirage("plan", written(""), "--store", place)
    assert (code, place in said, len(said.strip().splitlines())) == (2, True, 1)
