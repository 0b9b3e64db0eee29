"""What the project ships: five packages with their data, nothing else, and no word of the machine it was made on."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"engine", "providers", "instruments", "analysis", "bench"}
HOUSE_LIMIT = 600


def python_files() -> list[Path]:
    """Every module of the five packages."""
    return [path for package in sorted(PACKAGES) for path in sorted((ROOT / package).rglob("*.py"))]


def test_no_module_is_longer_than_the_house_allows() -> None:
    """A reader should be able to hold a module in mind."""
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: lines for name, lines in long.items() if lines > HOUSE_LIMIT} == {}


def test_every_module_says_what_it_is() -> None:
    """A docstring on top, before anything else."""
    missing = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if not path.read_text(encoding="utf-8").lstrip().removeprefix("r").startswith('"""')
    ]
    assert missing == []


@pytest.mark.slow
def test_the_wheel_holds_five_packages_and_their_data(tmp_path: Path) -> None:
    """An application's five folders, with the texts, schemas and views that they read."""
    copy = tmp_path / "source"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__", "tests", ".*_cache")
    )
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(copy)]
    subprocess.run(command, check=True, timeout=240)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not re.search(r"\.(dist-info|data)$", name)} == PACKAGES
    wanted = {
        "engine/sql/queries.sql", "engine/sql/migrations/0001_initial.sql", "instruments/sql/views.sql",
        "instruments/data/prompts.toml", "instruments/data/personas/hand.toml", "providers/catalog.toml",
        "instruments/annotation/page.html",
    }  # fmt: skip
    assert wanted <= set(names)
