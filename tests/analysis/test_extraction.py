"""How many claims are taken out of an answer, and whether longer answers over-infer more."""

from pathlib import Path

import numpy as np
import pytest

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.extraction import claims_per_answer, verbosity
from analysis.frames import Value
from analysis.load import load
from analysis.testing import StoreBuilder

QUICK = Settings(resamples=200, seed=1)


def estimate(value: Value) -> Estimate:
    """Return a cell that must be an estimate."""
    assert isinstance(value, Estimate)
    return value


def prepared(store: StoreBuilder) -> Context:
    """Close a store and prepare its sweep."""
    store.close()
    return prepare(load(store.path), QUICK)


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """A store to fill."""
    return StoreBuilder(tmp_path / "store.db")


@pytest.mark.parametrize("model", ["GPT-5.5", "Qwen3-8B"])
def test_appendix_d_comes_back(store: StoreBuilder, model: str) -> None:
    """The published numbers of claims per answer, as hundredths of a claim, and both ratios of them."""
    judged, own, to_self, to_judge = {
        "GPT-5.5": (1199, 3377, 0.35, 2.82),
        "Qwen3-8B": (1405, 1027, 1.37, 0.73),
    }[model]
    store.sweep(subjects={model: "x"})
    for at in range(100):
        sizes = [total // 100 + (at < total % 100) for total in (judged, own)]
        store.records({"model": model, "persona": f"p{at:02d}", "labels": "F" * sizes[0]})
        store.audits({"model": model, "persona": f"p{at:02d}", "labels": "R" * sizes[1]})
    row = claims_per_answer(prepared(store)).row(model)
    assert estimate(row["judge_claims"]).value == pytest.approx(judged / 100)
    assert estimate(row["self_claims"]).value == pytest.approx(own / 100)
    # The paper cuts 0.355 and 1.368 to two decimals; its ratios are of these same two numbers.
    assert estimate(row["judge_to_self"]).value == pytest.approx(to_self, abs=0.0051)
    assert estimate(row["self_to_judge"]).value == pytest.approx(to_judge, abs=0.0051)


def test_ratios_rest_on_answers_that_both_have(store: StoreBuilder) -> None:
    """A long answer without a readable audit moves neither side."""
    store.sweep(subjects={"m": "x"})
    store.records(
        {"model": "m", "persona": "a", "labels": "FG", "response_characters": 100},
        {"model": "m", "persona": "b", "labels": "F" * 50, "response_characters": 900},
    )
    store.audits(
        {"model": "m", "persona": "a", "labels": "GGGG"},
        {"model": "m", "persona": "b", "state": "unreadable", "reason": "no JSON array", "labels": None},
    )
    row = claims_per_answer(prepared(store)).row("m")
    assert row["records"] == 1
    found = [estimate(row[name]).value for name in ("judge_claims", "self_claims", "self_to_judge", "characters")]
    assert found == pytest.approx([2, 4, 2, 100])


def test_correlations_agree_with_numpy(store: StoreBuilder, rng: np.random.Generator) -> None:
    """Pearson's r of length and rate, over answers that have a claim; the pooled row has all of them."""
    sizes, lengths = rng.integers(0, 9, size=40), rng.integers(100, 900, size=40)
    overs = [int(rng.integers(size + 1)) for size in sizes]
    store.sweep(subjects={"a": "x", "b": "x"})
    for at, (size, over, length) in enumerate(zip(sizes.tolist(), overs, lengths.tolist(), strict=True)):
        place = {"model": "ab"[at % 2], "persona": f"p{at // 2:02d}"}
        labels = "F" * over + "G" * (size - over)
        store.records({**place, "labels": labels, "response_characters": length})
        store.audits({**place, "labels": labels[::-1]})
    table = verbosity(prepared(store))
    some = sizes > 0
    rates = np.array(overs)[some] / sizes[some]
    row = table.row("all models")
    assert estimate(row["judge_claims"]).value == pytest.approx(np.corrcoef(sizes[some], rates)[0, 1])
    assert estimate(row["self_claims"]).value == pytest.approx(np.corrcoef(sizes[some], rates)[0, 1])
    assert estimate(row["characters"]).value == pytest.approx(np.corrcoef(lengths[some], rates)[0, 1])
    mine = some & (np.arange(40) % 2 == 0)
    own = np.corrcoef(sizes[mine], np.array(overs)[mine] / sizes[mine])[0, 1]
    assert estimate(table.row("a")["judge_claims"]).value == pytest.approx(own)


def test_between_models_there_are_as_many_points_as_models(store: StoreBuilder) -> None:
    """Two models give no coefficient; three do, and it says on how many it rests."""
    store.sweep(subjects=dict.fromkeys("abc", "x"))
    for model, labels in (("a", "FG"), ("b", "FFGG"), ("c", "FFFFFG")):
        store.records({"model": model, "persona": "p", "labels": labels, "response_characters": None})
    row = verbosity(prepared(store)).row("between models")
    wanted = np.corrcoef([2, 4, 6], [1 / 2, 1 / 2, 5 / 6])[0, 1]
    assert estimate(row["judge_claims"]).value == pytest.approx(wanted)
    assert estimate(row["judge_claims"]).n == 3
    assert estimate(row["characters"]).reason == "0 models: fewer than 3"
