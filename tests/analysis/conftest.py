"""What the tests of `analysis` share: the paper's published numbers and what follows from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data" / "paper.json"


@pytest.fixture(scope="session")
def paper() -> dict[str, Any]:
    """The published tables by name, families of models, and recomputed values."""
    tables: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return tables


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(20240607)
