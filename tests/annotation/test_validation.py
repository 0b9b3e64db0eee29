"""From labels to tables: the paper's confusion matrix gives the paper's numbers, and gaps are never agreement."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.annotations import (
    MAJORITY,
    ClaimItem,
    SampleInfo,
    Validation,
    ValidationError,
    majority,
    read_validation,
)
from analysis.estimates import Estimate
from analysis.frames import Table, Value
from analysis.validation import make_validation_report
from instruments.annotation.store import LabelRow, Sample, open_annotations, write_labels
from instruments.annotation.testing import make_store

DATA = Path(__file__).parents[1] / "data" / "paper.json"
PAPER: Mapping[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
H3 = np.array(PAPER["h3_confusion"])
ROUNDING = 0.000501  # the paper prints three decimals


def validation(human: list[list[int]], judged: list[int], *, population: tuple[int, ...] = (1, 1, 1, 1)) -> Validation:
    """Labels of annotators a, b, ... on items whose judge labels are `judged`."""
    items = tuple(
        ClaimItem(item=f"i{place}", claim=f"claim {place}", model="m", persona="p", task="t")
        for place in range(len(judged))
    )
    info = SampleInfo(
        name="sample", sweep="sweep", judge="judge", simulated=False, size=len(judged), population=np.array(population)
    )
    return Validation(
        sample=info,
        items=items,
        judged=np.array(judged),
        annotators=tuple("abcdef"[: len(human)]),
        human=np.array(human),
        comments={},
    )


def of_matrix(matrix: np.ndarray[Any, Any], population: tuple[int, ...] = (1, 1, 1, 1)) -> Validation:
    """One annotator's labels with that confusion matrix."""
    pairs = [(row, column) for (row, column), count in np.ndenumerate(matrix) for _ in range(count)]
    return validation([[human for human, _ in pairs]], [judge for _, judge in pairs], population=population)


def table_of(data: Validation, name: str, annotator: str = "") -> Table:
    """One table of the report."""
    return next(table for table in make_validation_report(data, annotator).tables if table.name == name)


def number(value: Value) -> float:
    """A cell's number."""
    return float(value.value if isinstance(value, Estimate) else value)  # type: ignore[arg-type]


def by_first(table: Table, column: str) -> dict[Value, float]:
    """One column's numbers by the first column."""
    return {
        row[0]: number(cell) for row, cell in zip(table.rows, table.column(column), strict=True) if cell is not None
    }


PUBLISHED = of_matrix(H3, population=(257, 325, 107, 311))


def test_the_papers_matrix_gives_table_11() -> None:
    """Accuracy, kappa and macro F1, four labels and two."""
    (row,) = table_of(PUBLISHED, "judge_agreement").named_rows()
    expected = PAPER["table11_agreement"]
    assert row["items"] == 400
    assert number(row["accuracy"]) == pytest.approx(expected["accuracy"]["four_class"], abs=ROUNDING)
    assert number(row["kappa"]) == pytest.approx(expected["kappa"]["four_class"], abs=ROUNDING)
    assert number(row["macro_f1"]) == pytest.approx(expected["macro_f1"]["four_class"], abs=ROUNDING)
    assert number(row["binary_accuracy"]) == pytest.approx(expected["accuracy"]["binary"], abs=ROUNDING)
    assert number(row["binary_kappa"]) == pytest.approx(expected["kappa"]["binary"], abs=ROUNDING)


def test_kappa_comes_with_its_interval() -> None:
    """0.863 with a standard error of 0.0202."""
    (row,) = table_of(PUBLISHED, "judge_agreement").named_rows()
    kappa = row["kappa"]
    assert isinstance(kappa, Estimate)
    assert kappa.interval is not None
    assert kappa.standard_error == pytest.approx(0.0202, abs=0.00005)
    assert (kappa.interval.low, kappa.interval.high) == pytest.approx((0.8237, 0.9029), abs=0.0002)


def test_the_papers_matrix_gives_f1_per_label() -> None:
    """H.2, and the recall of FABRICATED in H.4."""
    table = table_of(PUBLISHED, "judge_by_label")
    expected = [PAPER["h2_per_class_f1"][label]["f1"] for label in "GRSF"]
    assert [number(value) for value in table.column("f1")[:4]] == pytest.approx(expected, abs=ROUNDING)
    assert by_first(table, "recall")["fabricated"] == pytest.approx(0.842, abs=ROUNDING)


def test_the_papers_matrix_comes_back_as_it_is() -> None:
    """H.3: human labels down, judge labels across, with totals."""
    table = table_of(PUBLISHED, "judge_confusion")
    assert [list(row[1:5]) for row in table.rows[:4]] == H3.tolist()
    assert table.column("total") == (109, 83, 94, 114, 400)


def test_the_papers_matrix_gives_the_structure_of_disagreements() -> None:
    """H.4: 41 in all, 29 adjacent, 12 two steps apart, none three; stereotype and fabricated most contested."""
    table = table_of(PUBLISHED, "judge_disagreement_structure")
    items = by_first(table, "items")
    assert [items[name] for name in ("all", "1 step apart (adjacent)", "2 steps apart", "3 steps apart")] == [
        41,
        29,
        12,
        0,
    ]
    assert items["stereotype and fabricated"] == 13
    shares = by_first(table, "of_disagreements")
    assert shares["1 step apart (adjacent)"] == pytest.approx(0.71, abs=0.005)
    assert shares["stereotype and fabricated"] == pytest.approx(0.32, abs=0.005)
    assert by_first(table, "of_items")["2 steps apart"] == pytest.approx(0.03)
    assert "most contested boundary: stereotype and fabricated, 13 items" in table.notes


def test_the_judge_is_more_lenient_than_the_papers_human() -> None:
    """27 labels of the judge see more support, 14 less; 14 over-inferred claims pass the judge, 6 the human."""
    items = by_first(table_of(PUBLISHED, "judge_disagreement_structure"), "items")
    assert items["judge sees more support than the human"] == np.tril(H3, -1).sum()
    assert items["judge sees less support than the human"] == np.triu(H3, 1).sum()
    assert (items["only the human says OI"], items["only the judge says OI"]) == (14, 6)


def test_the_corrected_rate_weighs_the_strata_by_the_sweep() -> None:
    """41.8 % become 45.7 % with the corpus' shares, not the 44.4 % of an unweighted correction."""
    table = table_of(PUBLISHED, "judge_corrected")
    values = by_first(table, "value")
    assert values["OI rate, as the judge labels"] == pytest.approx(0.418)
    assert values["OI rate, judge-corrected"] == pytest.approx(0.457, abs=ROUNDING)
    given = [
        values[f"human says OI where the judge says {label}"] for label in ("grounded", "reasonable", "stereotype")
    ]
    assert given == pytest.approx([0, 0.14, 0.94])


def test_disagreements_are_listed_farthest_first_with_both_labels() -> None:
    """Whoever reads on can look at the claims."""
    data = replace(validation([[0, 0, 1, 3]], [0, 3, 2, 3]), comments={("a", "i1"): "surely not"})
    rows = list(table_of(data, "judge_disagreements").named_rows())
    assert [(row["item"], row["human"], row["judge"], row["steps"]) for row in rows] == [
        ("i1", "grounded", "fabricated", 3),
        ("i2", "reasonable", "stereotype", 1),
    ]
    assert (rows[0]["claim"], rows[0]["comment"]) == ("claim 1", "surely not")


def test_one_annotator_needs_no_table_of_annotators() -> None:
    """And no majority."""
    names = [table.name for table in make_validation_report(PUBLISHED).tables]
    assert "annotator_agreement" not in names
    assert table_of(PUBLISHED, "judge_agreement").column("human") == ("a",)


def test_several_annotators_are_compared_with_each_other() -> None:
    """Every pair, and Krippendorff's alpha over all; items that one labelled only do not count."""
    data = validation([[0, 1, 2, 3, -1], [0, 1, 2, 2, 0], [0, 1, 3, 3, -1]], [0, 1, 2, 3, 0])
    table = table_of(data, "annotator_agreement")
    assert table.column("between") == ("a, b", "a, c", "b, c", "all")
    assert table.column("items") == (4, 4, 4, 4)
    assert [number(cell) for cell in table.column("accuracy")[:3]] == [0.75, 0.75, 0.5]
    assert 0 < number(table.column("alpha")[3]) < 1


def test_the_majority_decides_and_ties_decide_nothing() -> None:
    """A tie is left out, counted and said; it is not a label."""
    data = validation([[0, 1, 2], [0, 2, 2], [1, -1, -1]], [0, 1, 2])
    name, human = data.reference()
    assert (name, human.tolist()) == (MAJORITY, [0, -1, 2])
    table = table_of(data, "judge_agreement")
    assert table.column("human") == ("a", "b", "c", MAJORITY)
    assert table.column("items") == (3, 3, 1, 2)
    assert any("1 more items are tied" in note for note in table.notes)


def test_the_judge_can_be_compared_with_one_of_several_annotators() -> None:
    """By name."""
    data = validation([[0, 1], [0, 2]], [0, 1])
    assert by_first(table_of(data, "judge_confusion", "b"), "stereotype")["total"] == 0
    assert len(table_of(data, "judge_disagreements", "a").rows) == 0
    assert len(table_of(data, "judge_disagreements", "b").rows) == 1


def test_an_annotator_who_labelled_nothing_is_an_error() -> None:
    """One line with the names there are."""
    with pytest.raises(ValidationError, match="choose one of a, b"):
        make_validation_report(validation([[0], [0]], [0]), "carla")


def test_without_a_stratum_there_is_no_corrected_rate() -> None:
    """A judge's label that nobody has looked at yet is not taken for a right one."""
    data = validation([[0, 3]], [0, 3], population=(10, 10, 10, 10))
    assert isnan(by_first(table_of(data, "judge_corrected"), "value")["OI rate, judge-corrected"])


def test_majority_of_nothing_is_nothing() -> None:
    """No rating, no label."""
    assert majority(np.full((2, 3), -1)).tolist() == [-1, -1, -1]


@pytest.fixture
def labelled(store: Path, sample: Sample) -> Path:
    """A store in which anna agrees with the judge on every item but calls its last one grounded, or fabricated."""
    with closing(open_annotations(store)) as connection:
        rows = connection.execute("SELECT id, judge_label FROM annotation_item ORDER BY position").fetchall()
        last, label = rows.pop()
        rows.append((last, "F" if label == "G" else "G"))
        given = [LabelRow(item=item, annotator="anna", label=letter, created_ms=1) for item, letter in rows]
        write_labels(connection, given, now_ms=2)
    return store


def test_labels_in_a_store_become_tables(labelled: Path) -> None:
    """Nineteen of twenty agree, and the twentieth is listed with its claim."""
    data = read_validation(labelled)
    assert (data.sample.size, data.annotators, len(data.items)) == (20, ("anna",), 20)
    assert data.sample.population.sum() == 864
    assert number(table_of(data, "judge_agreement").rows[0][2]) == 0.95
    (row,) = table_of(data, "judge_disagreements").named_rows()
    assert str(row["claim"]).startswith("The user keeps")


def test_retracted_and_skipped_labels_do_not_count(labelled: Path, sample: Sample) -> None:
    """Only what an annotator says now."""
    with closing(open_annotations(labelled)) as connection:
        connection.execute("UPDATE annotation_label SET retracted_ms = 9 WHERE id <= 5")
        first = connection.execute("SELECT id FROM annotation_item WHERE position = 1").fetchone()[0]
        skipped = LabelRow(item=first, annotator="anna", label=None, created_ms=10)
        write_labels(connection, [skipped], now_ms=10)
    data = read_validation(labelled)
    assert len(data.items) == 15
    assert any("anna has labelled 15 of 20 items" in warning for warning in make_validation_report(data).warnings)


def test_a_simulated_sweep_is_called_so(labelled: Path) -> None:
    """In the warnings and in every title."""
    with closing(sqlite3.connect(labelled, isolation_level=None)) as connection:
        connection.execute("UPDATE sweep SET simulated = 1")
    report = make_validation_report(read_validation(labelled))
    assert report.simulated
    assert report.warnings[0].startswith("SIMULATED")
    assert all(table.title.startswith("SIMULATED: ") for table in report.tables)


@pytest.mark.parametrize(
    ("name", "complaint"), [("", "nobody has labelled"), ("other", "has no sample called 'other'; it has sample")]
)
def test_nothing_to_compare_is_one_line(store: Path, sample: Sample, name: str, complaint: str) -> None:
    """It says what to do first."""
    with pytest.raises(ValidationError, match=complaint):
        read_validation(store, name)


@pytest.mark.parametrize("content", [None, b"", b"no database" * 100], ids=["missing", "empty", "text"])
def test_what_is_no_store_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    """No traceback."""
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValidationError, match=r"x\.sqlite"):
        read_validation(path)


def test_a_store_without_a_sample_is_not_said_to_offer_a_choice(tmp_path: Path) -> None:
    """It has the views of samples and none in them, whatever was asked for."""
    path = make_store(tmp_path / "store.sqlite", models=1, personas=2)
    with closing(open_annotations(path)):
        pass
    for name in ("", "other"):
        with pytest.raises(ValidationError, match="holds no sample to label; draw one with") as caught:
            read_validation(path, name)
        assert "choose" not in str(caught.value)
