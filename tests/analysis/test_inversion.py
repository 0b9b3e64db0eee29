"""The cross-model relation of self-audit and judge: the published figures come back, with their cautions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.annotations import SampleInfo, Validation
from analysis.context import Context, Settings, prepare
from analysis.corrected import corrected
from analysis.estimates import Estimate
from analysis.frames import Table, Value
from analysis.inversion import NO_HUMAN, inversion, inversion_by_family
from analysis.judged import leaderboard
from analysis.load import load
from analysis.testing import StoreBuilder

QUICK = Settings(resamples=200, seed=1)
PERSONAS = 10


def spread(over: int, letter: str = "F") -> list[str]:
    """Deal 1,000 claims, so many of them over-inferred, to ten personas."""
    deck = letter * over + "G" * (1000 - over)
    return [deck[at::PERSONAS] for at in range(PERSONAS)]


def rates_context(path: Path, rates: Mapping[str, tuple[float, float]], families: Mapping[str, str]) -> Context:
    """Prepare a sweep whose models have exactly these self-audit and judge OI rates, in percent."""
    with StoreBuilder(path) as store:
        store.sweep(subjects=families)
        for model, (own, judged) in rates.items():
            for at, (audit, record) in enumerate(
                zip(*(spread(round(10 * rate)) for rate in (own, judged)), strict=True)
            ):
                store.audits({"model": model, "persona": f"p{at}", "labels": audit})
                store.records({"model": model, "persona": f"p{at}", "labels": record})
    return prepare(load(path), QUICK)


@pytest.fixture(scope="module")
def published(paper: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A sweep with the rates of Table 2."""
    rates = {name: (row["self_pct"], row["judge_pct"]) for name, row in paper["table2_self_vs_judge"].items()}
    return rates_context(tmp_path_factory.mktemp("inversion") / "store.db", rates, paper["family"])


def estimate(value: Value) -> Estimate:
    """Return a cell that must be an estimate."""
    assert isinstance(value, Estimate)
    return value


def line(table: Table, statistic: str, over: str = "") -> dict[str, Value]:
    """Find a row by its statistic and by what was resampled."""
    return next(
        row for row in table.named_rows() if row["statistic"] == statistic and over in str(row["interval_over"])
    )


def test_rho_and_its_exact_p_come_back(paper: dict[str, Any], published: Context) -> None:
    """All 12! orders are counted, so p is the exact one and not the paper's drawn 0.044."""
    row, wanted = line(inversion(published), "Spearman's rho", "models"), paper["recomputed"]["table2"]
    assert estimate(row["value"]).value == pytest.approx(wanted["spearman_rho"], abs=1e-9)
    assert row["p"] == pytest.approx(wanted["p_exact_two_sided"], abs=1e-10)
    assert row["n"] == 12
    assert "479,001,600" in str(row["test"])


@pytest.mark.parametrize(("over", "key"), [("models", "naive"), ("whole families", "family")], ids=["naive", "family"])
def test_intervals_over_all_resamples_come_back(paper: dict[str, Any], published: Context, over: str, key: str) -> None:
    """Both intervals are exact, without Monte-Carlo error."""
    interval = estimate(line(inversion(published), "Spearman's rho", over)["value"]).interval
    assert interval is not None
    assert [interval.low, interval.high] == pytest.approx(
        paper["recomputed"]["table2"][f"bootstrap_{key}_exact"], abs=1e-4
    )
    assert "exact" in interval.method


def test_personas_as_units_say_something_else(published: Context) -> None:
    """With the models fixed rho hardly moves; the line says what was resampled."""
    row = line(inversion(published), "Spearman's rho", "personas")
    interval = estimate(row["value"]).interval
    assert row["p"] is None
    assert interval is not None
    assert interval.high < 0


def test_kendall_comes_back(paper: dict[str, Any], published: Context) -> None:
    """The other rank correlation stands beside rho."""
    row = line(inversion(published), "Kendall's tau")
    assert estimate(row["value"]).value == pytest.approx(paper["recomputed"]["table2"]["kendall_tau"], abs=1e-8)


def test_leaving_out_one_family_comes_back(paper: dict[str, Any], published: Context) -> None:
    """Each family's row is rho without it."""
    table = inversion_by_family(published)
    found = {str(row["left_out"]): estimate(row["rho"]).value for row in table.named_rows()}
    assert found == pytest.approx(paper["recomputed"]["table2"]["leave_one_family_out_rho"], abs=5e-4)
    whole = paper["recomputed"]["table2"]["spearman_rho"]
    assert [row["change"] for row in table.named_rows()] == pytest.approx([rho - whole for rho in found.values()])


def test_the_numbers_come_with_their_cautions(published: Context) -> None:
    """Twelve models, seven families, and the families on which rho hangs are named."""
    notes = " / ".join(inversion(published).notes)
    assert "exploratory: 12 models of 7 families" in notes
    assert "-0.35 without DeepSeek, -0.70 without Moonshot" in notes
    assert NO_HUMAN in notes


def validation(context: Context, table: list[list[int]]) -> Validation:
    """Make people's labels with this confusion matrix, human labels down."""
    cells = [(human, judge) for human, row in enumerate(table) for judge, count in enumerate(row) for _ in range(count)]
    sample = SampleInfo(
        name="s",
        sweep=context.data.sweep.name,
        judge=context.judge,
        simulated=False,
        size=len(cells),
        population=np.ones(4, np.int64),
    )
    human, judged = np.array(cells).T
    return Validation(sample=sample, items=(), judged=judged, annotators=("ann",), human=human[None], comments={})


def test_rho_against_corrected_rates_stands_beside(paper: dict[str, Any], tmp_path: Path) -> None:
    """People's labels turn stereotype and fabricated shares into other ranks, as recomputed from Table 1."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects=paper["family"])
        for model, row in paper["table1_leaderboard"].items():
            parts = {letter: round(10 * row[f"{name}_pct"]) for letter, name in zip("GSF", NAMES, strict=True)}
            deck = "".join(letter * count for letter, count in parts.items())
            deck += "R" * (1000 - len(deck))
            for at, audit in enumerate(spread(round(10 * paper["table2_self_vs_judge"][model]["self_pct"]))):
                place = {"model": model, "persona": f"p{at}"}
                store.records({**place, "labels": deck[at::PERSONAS]})
                store.audits({**place, "labels": audit})
    context = prepare(load(tmp_path / "store.db"), QUICK)
    context = replace(context, validation=validation(context, paper["h3_confusion"]))
    row = line(inversion(context), "Spearman's rho, judge-corrected OI")
    wanted = paper["recomputed"]["judge_debiasing"]
    assert estimate(row["value"]).value == pytest.approx(wanted["rho_self_vs_corrected"], abs=1e-9)
    table = corrected(context)
    mean = estimate(table.row("mean of models")["corrected_oi"])
    assert 100 * mean.value == pytest.approx(wanted["macro_corrected"], abs=0.05)
    assert mean.interval is not None
    assert mean.interval.low < mean.value < mean.interval.high
    assert any("sample s, ann, 400 items" in note for note in table.notes)
    board = leaderboard(context)
    assert board.columns[-1].name == "corrected_oi"
    assert board.row("mean of models")["corrected_oi"] == mean
    for model in context.labels:
        assert board.row(model)["corrected_oi"] == table.row(model)["corrected_oi"]
    assert any("it assumes that the judge errs alike" in note for note in board.notes)


def test_without_peoples_labels_the_leaderboard_has_no_corrected_rate(published: Context) -> None:
    """Not a column of nothing."""
    assert "corrected_oi" not in [column.name for column in leaderboard(published).columns]


NAMES = ("grounded", "stereotype", "fabricated")


def test_labels_for_another_judge_correct_nothing(published: Context) -> None:
    """A table without labels of this judge says so and is empty."""
    strange = validation(published, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    other = replace(strange, sample=replace(strange.sample, judge="another"))
    context = replace(published, validation=other)
    assert context.human is None
    assert corrected(context).rows == ()
    assert any("nobody has labelled" in note for note in corrected(context).notes)


def test_two_models_are_too_few(tmp_path: Path) -> None:
    """There is no coefficient and no p, but a reason."""
    context = rates_context(tmp_path / "store.db", {"a": (10, 20), "b": (20, 10)}, {"a": "x", "b": "y"})
    table = inversion(context)
    row = line(table, "Spearman's rho")
    assert np.isnan(estimate(row["value"]).value)
    assert row["p"] is None
    assert any("2 models with both rates: too few to correlate" in note for note in table.notes)


def test_every_statistic_says_what_it_varies_over_even_where_it_has_no_value(tmp_path: Path) -> None:
    """So that no two rows look the same."""
    context = rates_context(tmp_path / "store.db", {"a": (10, 20)}, {"a": "x"})
    rows = [(row["statistic"], row["interval_over"]) for row in inversion(context).named_rows()]
    assert len(rows) == len(set(rows)) == 4
