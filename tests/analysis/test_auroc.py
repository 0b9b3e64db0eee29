"""Within-model AUROC and rho: against scikit-learn, integer labels, and resamples copied out."""

from fractions import Fraction
from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from analysis.auroc import Pairs, against, auroc, median_ratio, pairs, self_audit_auroc, self_audit_spearman
from analysis.resampling import draw_resamples

ratios = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=20)


def model(rng: np.random.Generator, personas: int = 20, tasks: int = 6) -> Pairs:
    """Records whose self-audit follows the judge in part."""
    n = personas * tasks
    judge_claims, self_claims = rng.poisson(12, n) + 1, rng.poisson(12, n) + 1
    rate = rng.beta(4, 6, n)
    return pairs(
        np.repeat(np.arange(personas), tasks),
        rng.binomial(self_claims, rate),
        self_claims,
        rng.binomial(judge_claims, rate),
        judge_claims,
    )


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
@settings(deadline=None, max_examples=80)
def test_auroc_is_scikit_learns_with_ties(rows: list[tuple[int, bool]]) -> None:
    """Ties count half."""
    scores, positive = (np.array(column) for column in zip(*rows, strict=True))
    assume(0 < positive.sum() < len(positive))
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
@settings(deadline=None, max_examples=40)
def test_reversing_scores_or_labels_mirrors_auroc(rows: list[tuple[int, bool]]) -> None:
    """A signal read backwards is exactly as far from chance."""
    scores, positive = (np.array(column) for column in zip(*rows, strict=True))
    assume(0 < positive.sum() < len(positive))
    value = auroc(scores, positive)
    assert auroc(-scores, positive) == pytest.approx(1 - value, abs=1e-12)
    assert auroc(scores, ~positive) == pytest.approx(1 - value, abs=1e-12)


def test_one_class_has_no_auroc() -> None:
    """scikit-learn warns there; here it is a value."""
    assert isnan(auroc(np.array([1, 2]), np.array([True, True])))


@given(ratios)
@settings(deadline=None, max_examples=80)
def test_the_median_is_that_of_exact_fractions(rows: list[tuple[int, int]]) -> None:
    """Compared with sorting fractions."""
    exact = sorted(Fraction(top, bottom) for top, bottom in rows)
    middle = (exact[(len(exact) - 1) // 2] + exact[len(exact) // 2]) / 2
    top, bottom = np.array(rows).T
    assert median_ratio(top, bottom) == middle


@given(ratios, st.fractions(0, 1, max_denominator=200))
@settings(deadline=None, max_examples=80)
def test_rates_are_compared_as_integers(rows: list[tuple[int, int]], threshold: Fraction) -> None:
    """Above, below and at the threshold partition the records as exact fractions do."""
    top, bottom = np.array(rows).T
    exact = [Fraction(*row) for row in rows]
    assert against(top, bottom, threshold, 1).tolist() == [value > threshold for value in exact]
    assert against(top, bottom, threshold, -1).tolist() == [value < threshold for value in exact]


def test_a_rate_equal_to_the_median_is_not_above_it_though_its_percentage_is() -> None:
    """7/25 as a percentage is 28.000000000000004 when multiplied before, 28 when after."""
    assert 100 * (7 / 25) != 100 * 7 / 25
    top, bottom = np.array([7, 14, 28]), np.array([25, 50, 100])
    assert not against(top, bottom, median_ratio(top, bottom), 1).any()


def test_the_label_and_its_variant_differ_by_the_records_at_the_median(rng: np.random.Generator) -> None:
    """Positives, ties and both AUROCs are printed."""
    judge_oi = np.array([1, 2, 2, 2, 3, 4, 4])
    records = pairs(np.arange(7), np.array([0, 3, 1, 2, 3, 4, 5]), np.full(7, 6), judge_oi, np.full(7, 10))
    found = self_audit_auroc(records, draw_resamples(7, 100, rng))
    assert found.median == Fraction(1, 5)
    assert (found.positives, found.positives_at_least) == (3, 6)
    assert found.estimate.value == pytest.approx(roc_auc_score(judge_oi > 2, records.self_oi), abs=1e-12)
    assert found.at_least.value == pytest.approx(roc_auc_score(judge_oi >= 2, records.self_oi), abs=1e-12)


def test_replicates_equal_scikit_learn_on_copied_records(rng: np.random.Generator) -> None:
    """The kernel over personas stands for copying rows; labels stay those of the observed median."""
    records = model(rng)
    drawn = draw_resamples(20, 60, rng)
    median = median_ratio(records.judge_oi, records.judge_claims)
    positive = against(records.judge_oi, records.judge_claims, median, 1)
    expected = []
    for row in drawn.multiplicities.astype(int):
        at = np.repeat(np.arange(len(records)), row[records.persona])
        expected.append(roc_auc_score(positive[at], records.scores[at]))
    found = self_audit_auroc(records, drawn).estimate.interval
    assert found is not None
    np.testing.assert_allclose([found.low, found.high], np.quantile(expected, [0.025, 0.975]), rtol=1e-12)


def test_rho_and_its_interval_are_scipys_on_copied_records(rng: np.random.Generator) -> None:
    """Ranks are taken anew in every resample."""
    records = model(rng)
    judged = records.judge_oi / records.judge_claims
    drawn = draw_resamples(20, 60, rng)
    expected = []
    for row in drawn.multiplicities.astype(int):
        at = np.repeat(np.arange(len(records)), row[records.persona])
        expected.append(spearmanr(records.scores[at], judged[at]).statistic)
    found = self_audit_spearman(records, drawn)
    assert found.value == pytest.approx(spearmanr(records.scores, judged).statistic, abs=1e-12)
    assert found.interval is not None
    np.testing.assert_allclose([found.interval.low, found.interval.high], np.quantile(expected, [0.025, 0.975]))
    assert found.n == 120


def test_resamples_with_one_class_are_dropped_and_counted(rng: np.random.Generator) -> None:
    """One persona holds all positives; resamples without it have no AUROC."""
    tens = np.full(6, 10)
    records = pairs(
        np.array([0, 0, 1, 1, 2, 2]), np.array([5, 1, 3, 2, 1, 6]), tens, np.array([9, 8, 1, 1, 2, 2]), tens
    )
    drawn = draw_resamples(3, 2000, rng)
    with_positives = np.isin(np.arange(3), [0])
    lacking = (drawn.multiplicities[:, with_positives].sum(axis=1) == 0) | (drawn.multiplicities[:, 0] == 3)
    found = self_audit_auroc(records, drawn)
    assert found.positives == 2
    assert found.estimate.interval is not None
    assert found.estimate.interval.dropped == lacking.sum()


def test_records_without_a_claim_are_left_out_and_counted(rng: np.random.Generator) -> None:
    """They have no OI rate: it is not 0."""
    claims = np.array([3, 0, 4, 5])
    records = pairs(np.arange(4), np.array([1, 0, 2, 3]), claims, np.array([1, 1, 0, 4]), np.array([4, 4, 0, 5]))
    found = self_audit_auroc(records, draw_resamples(4, 50, rng))
    assert (found.estimate.n, found.left_out) == (2, 2)


@pytest.mark.parametrize(
    ("judge_oi", "reason"),
    [
        pytest.param([], "no records with claims on both sides", id="no record"),
        pytest.param([2, 2, 2], "all records are on one side of the median", id="all alike"),
    ],
)
def test_too_few_records_are_nan_with_a_reason(judge_oi: list[int], reason: str, rng: np.random.Generator) -> None:
    """No record, or none above the median."""
    n = len(judge_oi)
    tens, nothing = np.full(n, 10), np.arange(n)
    records = pairs(nothing, nothing, tens, np.array(judge_oi, dtype=int), tens)
    found = self_audit_auroc(records, draw_resamples(3, 20, rng))
    assert isnan(found.estimate.value)
    assert found.estimate.reason == reason
    assert isnan(self_audit_spearman(records, draw_resamples(3, 20, rng)).value)


def test_the_claim_of_nine_models_above_075_is_not_what_the_table_shows(paper: dict[str, Any]) -> None:
    """Table 6 has seven models above 0.75, eight with ties."""
    values = np.array([row["auroc"] for row in paper["table6_within_model"].values()])
    expected = paper["recomputed"]["table6"]
    assert (values > 0.75).sum() == expected["auroc_gt_075"] == 7
    assert (values >= 0.75).sum() == expected["auroc_ge_075"] == 8
