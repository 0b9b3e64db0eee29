"""Finding people's labels in a store."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis.context import Settings, prepare
from analysis.human import find_validation
from analysis.load import load
from analysis.tables import report_of
from analysis.testing import StoreBuilder

SAMPLES = "sample, sweep, judge, simulated, manifest, items, population, created_ms"
LABELS = "sample, position, item, annotator, label, judge_label, claim, comment, model, persona, task"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a labelled sample, a newer one that nobody has labelled, and one of another judge."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep("mine", subjects={"m": "x"})
        for persona in "abc":
            store.records({"model": "m", "persona": persona, "labels": "GRSF"})
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute(f"CREATE TABLE s ({SAMPLES})")
        connection.execute(f"CREATE TABLE l ({LABELS})")
        connection.execute("CREATE VIEW annotation_samples AS SELECT * FROM s")
        connection.execute("CREATE VIEW annotations AS SELECT * FROM l")
        population = json.dumps(dict.fromkeys("GRSF", 3))
        for created, (name, judge) in enumerate(
            (("old", "judge"), ("labelled", "judge"), ("new", "judge"), ("x", "y"))
        ):
            row = (name, "mine", judge, 0, '{"notes": []}', 8, population, created)
            connection.execute("INSERT INTO s VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        for name in ("old", "labelled"):
            for place, (human, judged) in enumerate(("GG", "GG", "RR", "SR", "SS", "FS", "FF", "FF")):
                row = (name, place, f"{name}{place}", "ann", human, judged, "claim", "", "m", "a", "task")
                connection.execute("INSERT INTO l VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.commit()
    return tmp_path / "store.db"


def test_the_newest_labelled_sample_of_the_judge_is_used(path: Path) -> None:
    """Samples that nobody has labelled, and those of other judges, are passed over."""
    found = find_validation(path, "mine", "judge")
    assert found is not None
    assert found.sample.name == "labelled"


@pytest.mark.parametrize(("sweep", "judge"), [("mine", "y"), ("other", "judge")], ids=["unlabelled", "other sweep"])
def test_without_labels_there_are_none(path: Path, sweep: str, judge: str) -> None:
    """Nothing to correct by is no error."""
    assert find_validation(path, sweep, judge) is None


def test_a_store_without_samples_has_none(tmp_path: Path) -> None:
    """A sweep that nobody validated is reported all the same."""
    StoreBuilder(tmp_path / "store.db").close()
    assert find_validation(tmp_path / "store.db", "mine", "judge") is None


def test_peoples_tables_follow_the_others(path: Path) -> None:
    """Agreement, confusion and correction are part of the report; half of the judge's R are people's S."""
    found = find_validation(path, "mine", "judge")
    context = prepare(load(path), Settings(resamples=200, seed=1), found)
    report = report_of(context)
    names = [table.name for table in report.tables]
    assert {"judge_agreement", "judge_confusion", "judge_corrected"} <= set(names)
    assert "judge_disagreements" not in names
    row = report.table("corrected").row("m")
    assert row["human_items"] == 8
    assert row["correction"] == pytest.approx(0.5 / 4)
