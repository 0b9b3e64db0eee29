"""Ours beside the paper: the figures as printed, their differences, and where the paper disagrees with itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.annotations import ClaimItem, SampleInfo, Validation
from analysis.context import Context, Settings, prepare
from analysis.frames import Kind, Report, Table
from analysis.load import load
from analysis.published import MATCHES, compare, published_figures
from analysis.tables import NOTHING_TO_COMPARE, report_of
from analysis.testing import StoreBuilder

QUICK = Settings(resamples=200, seed=1)
PAPERS_NAMES = {
    "table1": ("table1_leaderboard", {"oi": "oi_pct", "stereotype": "stereotype_pct", "claims": "claims"}),
    "table2": ("table2_self_vs_judge", {"self_oi": "self_pct", "judge_oi": "judge_pct", "delta": "delta_pp"}),
    "table3": ("table3_task_composition", {"reasonable": "reasonable_pct", "oi": "oi_pct"}),
    "table4": ("table4_accumulation", {"first": "r1", "last": "r8", "growth": "growth", "per_round": "per_round"}),
    "table6": ("table6_within_model", {"rho": "spearman", "auroc": "auroc", "records": "n_records"}),
    "table7": ("table7_persona_group", {"counter-stereotypical": "counter_pct", "delta": "delta_pp"}),
    "table8": ("table8_accum_regression", {"slope": "slope", "r2": "r2", "removal": "removal_pct"}),
    "table10": ("table10_model_by_task", {"apartment": "apartment", "all": "all"}),
}
EVERYWHERE = {"mean of models", "all models"}


@pytest.mark.parametrize("name", PAPERS_NAMES)
def test_the_figures_are_the_published_ones(paper: dict[str, Any], name: str) -> None:
    """What ships with the package equals the tables that the tests hold, percentages as shares."""
    known, columns = PAPERS_NAMES[name]
    rows = {row: cells for row, cells in published_figures().tables[name].items() if row not in EVERYWHERE}
    whole = {row: cells for row, cells in paper[known].items() if row not in {"Mean", "Pooled"}}
    assert rows.keys() == whole.keys()
    for row, cells in rows.items():
        for ours, theirs in columns.items():
            percent = theirs.endswith(("_pct", "_pp")) or name == "table10"
            assert cells[ours] == pytest.approx(whole[row][theirs] / (100 if percent else 1), abs=1e-12), (row, ours)


def test_every_published_table_is_about_columns_of_ours(whole: tuple[Report, Context]) -> None:
    """A renamed column or row of ours does not silently leave the comparison."""
    report, _ = whole
    paper = published_figures()
    for name, match in MATCHES.items():
        ours = {column.name for table in report.tables if table.name == match.ours for column in table.columns}
        wanted = {quantity for row in paper.tables[name].values() for quantity in row} - {"value"}
        assert not ours or wanted <= ours, name


def one_answer_each(path: Path, labels: dict[str, str], judge: str = "Claude-Opus-4-7") -> Context:
    """Prepare a sweep of models under their labels, each with a few answers and a conversation."""
    tasks = list(published_figures().tables["table3"])
    groups = ("stereotypical", "counter-stereotypical", "neutral")
    with StoreBuilder(path) as store:
        store.sweep(subjects=dict.fromkeys(labels, "x"), labels={**labels, "judge": judge})
        for model in labels:
            for group in groups:
                place: dict[str, Any] = {"model": model, "persona": group, "persona_group": group}
                for task in tasks:
                    store.records({**place, "task": task, "labels": "GRSF", "response_characters": 9})
                    store.audits({**place, "task": task, "labels": "GGSF"})
                store.probes({**place, "labels": "GF", "accuracy": "CI"})
            store.memory(model, "neutral", [["a"], ["a", "b"], ["b", "c"]], prompt="accum_retain@1")
            store.memory(model, "neutral", [["a"], ["a"], ["a"]], prompt="accum_neutral@1")
    return prepare(load(path), QUICK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Context]:
    """A sweep of all twelve models."""
    families = published_figures().families
    context = one_answer_each(
        tmp_path_factory.mktemp("paper") / "s.db", {f"m{at}": name for at, name in enumerate(families)}
    )
    return report_of(context), context


def by_name(tables: tuple[Table, ...]) -> dict[str, Table]:
    """Return tables by name."""
    return {table.name: table for table in tables}


def test_ours_stand_beside_the_published_with_their_difference(whole: tuple[Report, Context]) -> None:
    """Half of our claims are over-inferred; shares differ in points, counts in numbers."""
    table = by_name(compare(*whole))["paper_table1"]
    row = table.row("Qwen3-8B")
    assert (row["claims"], row["claims_published"], row["claims_difference"]) == (72, 12687, 72 - 12687)
    assert row["oi_published"] == 0.487
    assert row["oi_difference"] == pytest.approx(0.013)
    kinds = {column.name: column.kind for column in table.columns}
    assert (kinds["oi"], kinds["oi_difference"]) == (Kind.SHARE, Kind.POINTS)


def test_all_published_tables_are_there_but_for_people(whole: tuple[Report, Context]) -> None:
    """With the paper's twelve models every table has a row; those of people's labels need labels."""
    people = {"table11", "h2", "h3"}
    wanted = {f"paper_{name}" for name in MATCHES if name not in people} - {"paper_table2_caption"}
    assert wanted <= by_name(compare(*whole)).keys()


def test_memory_is_compared_under_the_papers_prompt(whole: tuple[Report, Context]) -> None:
    """The neutral variant, which the paper does not have, stays out."""
    table = by_name(compare(*whole))["paper_table4"]
    (row,) = (row for row in table.named_rows() if row["row"] == "GPT-5.5")
    assert row["growth_published"] == 106.5
    assert row["growth_difference"] == pytest.approx(1 - 106.5)


def test_the_papers_own_disagreements_are_marked(whole: tuple[Report, Context]) -> None:
    """A reader does not take them for ours."""
    tables = by_name(compare(*whole))
    assert tables["paper_table10"].row("mean of models")["remark"] == "not the mean of its columns"
    assert any("9 of 12" in note for note in tables["paper_table6"].notes)
    assert any("-0.35" in note for note in tables["paper_table2"].notes)


def test_only_models_that_bear_the_papers_label_are_compared(tmp_path: Path) -> None:
    """Another model has no row, and rows that pool models are left out."""
    context = one_answer_each(tmp_path / "s.db", {"a": "GPT-5.5", "b": "GPT-5.5-turbo"}, judge="Judge-1")
    tables = by_name(compare(report_of(context), context))
    assert tables["paper_table1"].column("row") == ("GPT-5.5",)
    assert "paper_table3" not in tables
    notes = " / ".join(tables["paper_table1"].notes)
    assert "judge: Judge-1; the paper's is Claude-Opus-4-7" in notes
    assert "1 model of the paper's 12 are in this sweep" in notes


def test_a_sweep_of_other_models_has_nothing_to_compare(tmp_path: Path) -> None:
    """It says so above the tables instead of printing empty ones."""
    context = one_answer_each(tmp_path / "s.db", {"a": "Model-1"}, judge="Judge-1")
    report = report_of(context, against_paper=True)
    assert NOTHING_TO_COMPARE in report.warnings
    assert not any(table.name.startswith("paper_") for table in report.tables)


def test_people_stand_beside_the_papers_annotator(paper: dict[str, Any], tmp_path: Path) -> None:
    """The published confusion gives the published agreement, cell by cell, within its rounding."""
    context = one_answer_each(tmp_path / "s.db", {"a": "GPT-5.5"})
    table = np.array(paper["h3_confusion"])
    human, judged = (np.repeat(side.ravel(), table.ravel()) for side in np.indices(table.shape))
    sample = SampleInfo(
        name="s", sweep="sweep", judge="judge", simulated=False, size=400, population=np.full(4, 100, np.int64)
    )
    items = tuple(ClaimItem(item=f"i{at}", claim="c", model="a", persona="p", task="t") for at in range(400))
    people = Validation(sample=sample, items=items, judged=judged, annotators=("x",), human=human[None], comments={})
    tables = by_name(report_of(replace(context, validation=people), against_paper=True).tables)
    for name in ("paper_table11", "paper_h2", "paper_h3"):
        differences = [
            value
            for row in tables[name].named_rows()
            for column, value in row.items()
            if column.endswith("_difference")
        ]
        assert differences
        assert all(isinstance(value, int | float) and abs(value) < 0.0006 for value in differences), name
