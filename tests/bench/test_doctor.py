"""`mirage doctor`: one line for every model, and what to do where something is missing."""

import os
from pathlib import Path

import pytest

from bench.cli import main
from bench.doctor import Finding, look_for_local
from bench.run import user_catalog
from providers import smollm

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an empty home and without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    wanted = [name for name in os.environ if name.endswith("_API_KEY") or name.startswith(("XDG_", "HF_"))]
    for name in wanted:
        monkeypatch.delenv(name)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_a_missing_key_is_said_with_its_remedy_and_the_code_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor` and `run` say the same of the same mistake."""
    Path("s.toml").write_text('name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["task"]\n', encoding="utf-8")
    code = run("doctor", "s.toml")
    assert "export OPENAI_API_KEY=..." in capsys.readouterr().out
    assert code == run("run", "s.toml", "--plain") == 2


def test_a_sweep_of_local_models_is_not_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's model is on this machine, or can be made here."""
    code = run("doctor", str(ROOT / "sweeps" / "demo.toml"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("smollm2-135m")
    assert "local model" in line
    assert code in (0, 2)


def test_the_whole_catalogue_has_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Local models too."""
    run("doctor")
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == set(user_catalog(None).cards)


@pytest.mark.parametrize("there", [True, False], ids=["unpacked", "not yet"])
def test_the_embedded_model_is_looked_for_and_not_made(tmp_path: Path, *, there: bool) -> None:
    """Where it would be is told in both cases."""
    (tmp_path / "model.gguf").write_bytes(b"weights")
    folder, _ = smollm.unpacked(cache=tmp_path / "cache", gguf=tmp_path / "model.gguf")
    if there:
        folder.mkdir(parents=True)
        for name in smollm.NEEDED:
            (folder / name).touch()
    assert smollm.unpacked(cache=tmp_path / "cache", gguf=tmp_path / "model.gguf") == (folder, there)
    assert folder.exists() is there


@pytest.mark.parametrize(
    ("place", "listed", "words"),
    [
        pytest.param("{folder}", True, "found in the folder", id="folder"),
        pytest.param("./nowhere", False, "there is no folder ./nowhere", id="no such folder"),
        pytest.param("mine/model", True, "fetches mine/model", id="hub, not here yet"),
        pytest.param("yours/model", True, "found in the cache at", id="hub, here"),
    ],
)
def test_a_local_model_is_looked_for_where_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, words: str, *, listed: bool
) -> None:
    """Nothing is loaded, nothing fetched."""
    monkeypatch.setattr("bench.doctor.find_spec", lambda name: name)
    (tmp_path / "home" / ".cache" / "huggingface" / "hub" / "models--yours--model").mkdir(parents=True)
    found = look_for_local(user_catalog(None).card("qwen3-8b"), place.format(folder=tmp_path))
    assert (found.local, found.listed, found.good, words in found.note) == (True, listed, listed, True)


def test_without_vllm_no_local_model_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is its installation."""
    monkeypatch.setattr("bench.doctor.find_spec", lambda name: None)
    found = look_for_local(user_catalog(None).card("qwen3-8b"))
    assert (found.good, "pip install" in found.note) == (False, True)


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (Finding(alias="a", provider="p", key=True, listed=True), True),
        (Finding(alias="a", provider="p", key=True, listed=None), False),
        (Finding(alias="a", provider="p", key=True, listed=None, called=True), True),
        (Finding(alias="a", provider="p", key=True, listed=True, called=False), False),
        (Finding(alias="a", provider="p", key=False), False),
    ],
    ids=["listed", "could not be asked", "answered all the same", "listed but silent", "no key"],
)
def test_an_answer_is_worth_more_than_a_list(found: Finding, *, good: bool) -> None:
    """Some accounts list nothing."""
    assert found.good is good


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_a_file_that_has_personas_written_is_taken(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its calls and the most that they cost are forecast, its account is looked at."""
    code = run(command, str(ROOT / "sweeps" / "personas.toml"))
    out = capsys.readouterr().out
    assert "gpt-4o-mini" in out
    assert code == (0 if command == "plan" else 2)
    if command == "plan":
        assert "72 calls if every first answer is accepted, at most 432" in out
        assert "cap of the run: $2.00" in out


def test_doctor_refuses_the_names_that_run_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """It is asked before."""
    text = 'name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["task"]\n[budget.model."gpt-4o-mimi"]\nusd = 1\n'
    Path("s.toml").write_text(text, encoding="utf-8")
    assert run("doctor", "s.toml") == 2
    assert "[budget.model] names `gpt-4o-mimi`" in capsys.readouterr().err
