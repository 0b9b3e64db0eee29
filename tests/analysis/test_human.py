"""Finding people's labels in a store."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from analysis.annotations import ClaimItem, SampleInfo, Validation
from analysis.context import Settings, prepare
from analysis.correction import corrected_oi
from analysis.human import find_validation
from analysis.load import load
from analysis.tables import report_of
from analysis.testing import StoreBuilder
from analysis.validation import make_validation_tables

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


def test_people_who_differ_count_alike() -> None:
    """The corrected rate is the mean of what either alone would give; leaving ties out would flatter the judge."""
    judged = np.repeat(np.arange(4), 10)
    strict, lenient = judged.copy(), judged.copy()
    strict[10:14], lenient[20:23] = 3, 1
    population = np.array([25, 30, 15, 30])
    rates = []
    for human in (strict[None], lenient[None], np.stack([strict, lenient])):
        people = labelled(judged, human, population)
        rates.append(corrected_oi(population, people.shared_table())[()])
    assert rates[2].value == pytest.approx((rates[0].value + rates[1].value) / 2)
    assert rates[2].n == 40
    assert rates[2].interval is not None
    (row,) = (
        row
        for table in make_validation_tables(labelled(judged, np.stack([strict, lenient]), population))
        for row in table.named_rows()
        if row.get("quantity") == "OI rate, judge-corrected"
    )
    assert row["value"] == rates[2]
    majority_alone = corrected_oi(population, labelled(judged, np.stack([strict, lenient]), population).table())[()]
    assert majority_alone.value == pytest.approx(0.45)


def test_an_item_that_one_of_two_has_labelled_counts_whole() -> None:
    """Every item weighs one, whoever has labelled it; one without a judge's label weighs nothing."""
    judged = np.array([0, 1, 2, -1])
    table = labelled(judged, np.array([[0, 3, -1, 1], [0, -1, 2, 1]]), np.ones(4)).shared_table()
    assert table.sum(axis=0).tolist() == [1, 1, 1, 0]
    assert table[3, 1] == table[2, 2] == 1


def labelled(judged: np.ndarray, human: np.ndarray, population: np.ndarray) -> Validation:
    """Make people's labels of some items."""
    items = tuple(ClaimItem(item=f"i{at}", claim="c", model="m", persona="p", task="t") for at in range(len(judged)))
    sample = SampleInfo(name="s", sweep="mine", judge="judge", simulated=False, size=len(judged), population=population)
    names = tuple("ab"[: len(human)])
    return Validation(sample=sample, items=items, judged=judged, annotators=names, human=human, comments={})
