"""Where a sweep's store is: never by accident in a new place, and never half there."""

import os
from pathlib import Path

import pytest

from bench.cli import main
from bench.storeplace import store_place
from bench.sweepfile import load_sweep
from engine.errors import UserError

SWEEP = 'name = "s"\nmodels = ["gpt-4o-mini"]\nstages = ["task"]\npersonas = 1\n'


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an empty home and without keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("XDG_")]:
        monkeypatch.delenv(name)


def written(path: str, text: str = SWEEP) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


def begun(path: str) -> Path:
    """Make something that stands where a store would."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()
    return Path(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("words", ["", 'store = "runs/s.sqlite"\n'], ids=["by default", "as the file says"])
@pytest.mark.parametrize(
    ("first", "later"),
    [("study", "."), (".", "study"), ("study", "elsewhere")],
    ids=["beside the file, then above", "above, then beside the file", "beside the file, then anywhere"],
)
def test_a_sweep_that_was_run_in_another_folder_is_not_begun_again(
    words: str, first: str, later: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would pay again; the store is named, and so is the way to begin another one all the same."""
    file = written("study/sweep.toml", SWEEP + words).absolute()
    store = begun(f"{first}/runs/s.sqlite").absolute()
    Path(later).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / later)
    loaded = load_sweep(Path(os.path.relpath(file)))
    with pytest.raises(UserError, match=f"there is {store}") as caught:
        store_place(loaded, None)
    assert f"--store {store}" in caught.value.mend
    assert store_place(loaded, store) == store
    assert store_place(loaded, Path("runs/s.sqlite")) == Path("runs/s.sqlite")


def test_the_store_in_the_current_folder_comes_first() -> None:
    """Whatever lies elsewhere."""
    file = written("study/sweep.toml")
    begun("study/runs/s.sqlite")
    begun("runs/s.sqlite")
    assert store_place(load_sweep(file), None) == Path("runs/s.sqlite")


@pytest.mark.parametrize("place", ["rusn/s.sqlite", "data/runs/s.sqlite"])
def test_a_folder_that_is_not_there_is_not_made_for_a_store(place: str) -> None:
    """It is misspelt, most often; only `runs` is made by itself."""
    loaded = load_sweep(written("sweep.toml", SWEEP + f'store = "{place}"\n'))
    with pytest.raises(UserError, match="there is no folder") as caught:
        store_place(loaded, None)
    assert caught.value.where == "sweep.toml:5"
    assert f"mkdir -p {Path(place).parent}" in caught.value.mend


def test_a_folder_is_no_store() -> None:
    """Neither by the file nor by the option."""
    Path("data").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        store_place(load_sweep(written("sweep.toml", SWEEP + 'store = "data"\n')), None)
    with pytest.raises(UserError, match="is a folder"):
        store_place(load_sweep(written("sweep.toml")), Path("data"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("", id="missing key"),
        pytest.param('store = "rusn/s.sqlite"\n', id="misspelt folder"),
        pytest.param("[budget.provider.opnai]\nusd = 1\n", id="misspelt cap"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_behind(change: str) -> None:
    """No folder, no empty log, no store."""
    written("sweep.toml", SWEEP + change)
    assert run("run", "sweep.toml", "--plain") == 2
    assert sorted(each.name for each in Path().rglob("*")) == ["sweep.toml"]


def test_help_says_where_the_store_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anybody has paid twice."""
    run("run", "--help")
    assert "taken from the current folder" in " ".join(capsys.readouterr().out.split())
