"""The within-model table against scipy and a plain count, and what it says of its records."""

from fractions import Fraction
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.frames import Value
from analysis.load import load
from analysis.testing import StoreBuilder
from analysis.within import paired_rates, within_model

PERSONAS = 30


def claims(over: int, all_of_them: int) -> str:
    """Return so many claims, the first of them over-inferred."""
    return "F" * over + "G" * (all_of_them - over)


@pytest.fixture
def context(tmp_path: Path, rng: np.random.Generator) -> Context:
    """One model with thirty personas and two tasks; some answers lack one side or have no claim."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        for at in range(2 * PERSONAS):
            place = {"model": "m", "persona": f"p{at // 2:02d}", "task": f"t{at % 2}"}
            size, own = (int(rng.integers(2, 9)) for _ in range(2))
            over = int(rng.integers(size + 1))
            audited = min(own, round(own * over / size + rng.normal()) % (own + 1))
            store.records({**place, "labels": claims(over, size)})
            store.audits({**place, "labels": claims(audited, own)})
        for task, (record, audit) in {"none": ("", "GF"), "half": ("GF", None)}.items():
            place = {"model": "m", "persona": "p00", "task": task}
            store.records({**place, "labels": record})
            state = {"state": "unreadable"} if audit is None else {}
            store.audits({**place, "labels": audit, **state})
    return prepare(load(tmp_path / "store.db"), Settings(resamples=300, seed=1))


def number(value: Value) -> float:
    """Return an estimate's value."""
    assert isinstance(value, Estimate)
    return value.value


def test_records_are_those_that_both_have_read(context: Context) -> None:
    """An unreadable audit leaves its answer out; a verdict without a claim is counted as left out."""
    row = within_model(context).row("m")
    assert (row["records"], row["left_out"]) == (2 * PERSONAS, 1)


def test_rho_and_auroc_agree_with_scipy(context: Context) -> None:
    """AUROC is the Mann-Whitney statistic over the pairs; the median is taken over fractions."""
    row, (pairs,) = within_model(context).row("m"), paired_rates(context)
    judged = [Fraction(int(a), int(b)) for a, b in zip(pairs.judge_oi, pairs.judge_claims, strict=True)]
    middle = median(judged)
    above, at_least = (np.array([test(rate) for rate in judged]) for test in (middle.__lt__, middle.__le__))
    for name, positive in (("auroc", above), ("auroc_at_least", at_least)):
        statistic = mannwhitneyu(pairs.scores[positive], pairs.scores[~positive]).statistic
        assert number(row[name]) == pytest.approx(statistic / (positive.sum() * (~positive).sum()))
    assert number(row["rho"]) == pytest.approx(spearmanr(pairs.scores, [float(rate) for rate in judged]).statistic)
    assert (row["positives"], row["at_median"]) == (above.sum(), at_least.sum() - above.sum())
    assert row["median"] == pytest.approx(float(middle))


def test_the_range_is_said_in_words(context: Context) -> None:
    """A reader sees at once in how many models the ranking is clear."""
    notes = within_model(context).notes
    assert notes[0].startswith("AUROC from 0.")
    assert "above 0.75 in" in notes[0]
