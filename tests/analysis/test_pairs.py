"""Tables that compare models: on the answers that both have, with correction, ranks and the price of clustering."""

from itertools import product
from pathlib import Path

import pytest

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.frames import Value
from analysis.load import load
from analysis.pairs import clustering, model_ranks, paired_differences
from analysis.testing import StoreBuilder

LABELS = {"high": "FFFG", "middle": "FFGG", "low": "FGGG"}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Three models and eight personas with two samples each; `low` lacks the second sample of one persona."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects=dict.fromkeys(LABELS, "x"), labels={"high": "High-1"})
        for (model, labels), persona, sample in product(LABELS.items(), "abcdefgh", range(2)):
            gone = (model, persona, sample) == ("low", "a", 1)
            state = {"state": "unreadable", "reason": "no JSON array"} if gone else {}
            row = {"model": model, "persona": persona, "sample": sample, "labels": None if gone else labels}
            store.records({**row, **state})
    return prepare(load(tmp_path / "store.db"), Settings(resamples=300, seed=1))


def number(value: Value) -> float:
    """Return an estimate's value."""
    assert isinstance(value, Estimate)
    return value.value


def test_pairs_rest_on_answers_that_both_have(context: Context) -> None:
    """A missing sample leaves one answer out of its model's pairs, and of no other pair."""
    rows = {(row["first"], row["second"]): row for row in paired_differences(context).named_rows()}
    assert {pair: row["records"] for pair, row in rows.items()} == {
        ("High-1", "low"): 15,
        ("High-1", "middle"): 16,
        ("middle", "low"): 15,
    }
    assert number(rows["High-1", "low"]["difference"]) == pytest.approx(0.5)


def test_p_is_exact_for_few_personas_and_corrected_for_all_pairs(context: Context) -> None:
    """Eight personas that all agree give 2 of 256 swaps; three tests make it three times that."""
    table = paired_differences(context)
    row = table.row("High-1")
    assert row["p"] == pytest.approx(2 / 256)
    assert row["p_holm"] == pytest.approx(6 / 256)
    assert table.notes[0] == "3 of 3 pairs differ at the 5% level after Holm's correction"


def test_ranks_begin_with_the_highest_rate(context: Context) -> None:
    """Without variation between personas the order is the same in every resample."""
    table = model_ranks(context)
    assert [(row["model"], number(row["rank"])) for row in table.named_rows()] == [
        ("High-1", 1),
        ("middle", 2),
        ("low", 3),
    ]
    assert (table.row("High-1")["chance_highest"], table.row("low")["chance_lowest"]) == (1, 1)


def test_clustering_compares_two_standard_errors(tmp_path: Path) -> None:
    """Personas that are alike within cost claims: three personas of ten claims weigh like fewer than thirty."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        for persona, over in (("a", 9), ("b", 1), ("c", 5)):
            store.records({"model": "m", "persona": persona, "labels": "F" * over + "G" * (10 - over)})
    row = clustering(prepare(load(tmp_path / "store.db"), Settings(resamples=200))).row("m")
    assert row["design_effect"] == pytest.approx(6.4)
    assert row["effective_claims"] == pytest.approx(30 / 6.4)
