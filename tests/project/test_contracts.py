"""The import contracts hold, and each is seen to break when it is violated."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "providers", "instruments", "analysis", "bench")
# contract -> (module that breaks it, the line that breaks it)
VIOLATIONS = {
    "layers: bench over instruments, providers and analysis over engine": ("providers/openai.py", "import bench.text"),
    "analysis stands alone": ("analysis/load.py", "import engine.money"),
    "the core of the engine is pure": ("engine/limits.py", "import asyncio"),
    "the engine draws nothing and knows no wire": ("engine/store.py", "import rich"),
    "providers see requests, never lanes, ledger, scheduler or store": ("providers/http.py", "import engine.ledger"),
    "instruments are pure: no network, no clock, no event loop": ("instruments/judge.py", "import httpx"),
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a copy of the project."""
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", script, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and their contracts."""
    folder = tmp_path_factory.mktemp("project")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_contract_has_a_violation_in_this_test() -> None:
    """A new contract must be seen to fail as well."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {contract["name"] for contract in tables["tool"]["importlinter"]["contracts"]} == set(VIOLATIONS)


def test_the_contracts_hold(copied: Path) -> None:
    """As the code stands."""
    done = lint_imports(copied)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_contract_breaks_when_it_is_violated(contract: str, copied: Path) -> None:
    """One forbidden import, and only that contract's line says BROKEN."""
    module, line = VIOLATIONS[contract]
    path = copied / module
    before = path.read_text(encoding="utf-8")
    path.write_text(f"{before}\n\ndef _violation() -> None:\n    {line}\n", encoding="utf-8")
    try:
        done = lint_imports(copied)
    finally:
        path.write_text(before, encoding="utf-8")
    assert done.returncode != 0
    words = " ".join(done.stdout.split())
    assert f"{contract} BROKEN" in words
