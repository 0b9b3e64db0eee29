"""A store with judged claims, a sample of it, and a desk to label at."""

import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from instruments.annotation.desk import Answer, Desk
from instruments.annotation.store import Sample, open_annotations
from instruments.annotation.testing import make_sample, make_store

MakeAnswer = Callable[..., Answer]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sample]:
    """A store with 216 answers of four claims, and a sample of 20 claims in it; made once and copied."""
    path = make_store(tmp_path_factory.mktemp("template") / "store.sqlite", models=3, personas=12)
    return path, make_sample(path, 20)


@pytest.fixture
def store(template: tuple[Path, Sample], tmp_path: Path) -> Path:
    """A store of one's own."""
    return Path(shutil.copy(template[0], tmp_path / "store.sqlite"))


@pytest.fixture
def sample(template: tuple[Path, Sample]) -> Sample:
    """The sample in that store."""
    return template[1]


@pytest.fixture
def connection(store: Path, sample: Sample) -> Iterator[sqlite3.Connection]:
    """A connection that sees everything."""
    with closing(open_annotations(store)) as opened:
        yield opened


@pytest.fixture
def desk(store: Path, sample: Sample) -> Iterator[Desk]:
    """A desk at which every item is everyone's."""
    with closing(Desk.open(store, sample.id)) as opened:
        yield opened


@pytest.fixture
def answer() -> MakeAnswer:
    """Make answers, each a press of its own unless `submission` says otherwise."""
    numbers = itertools.count()

    def make(
        item: str, label: str | None = "G", annotator: str = "anna", submission: str = "", **more: object
    ) -> Answer:
        name = submission or f"press-{next(numbers):020}"
        return Answer(annotator=annotator, item=item, label=label, submission=name, **more)  # type: ignore[arg-type]

    return make
