"""Agreement: the paper's Table 11 and H.3 to the digit, scikit-learn, statsmodels, krippendorff."""

from math import isnan
from typing import Any

import krippendorff
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, precision_score, recall_score
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.proportion import proportion_confint

from analysis.agreement import (
    Metric,
    Weighting,
    accuracy,
    agreement_weights,
    alpha_of_table,
    class_scores,
    collapsed,
    confusion,
    distances,
    f1_estimates,
    kappa,
    kappa_bootstrap,
    kappa_values,
    krippendorff_alpha,
    most_contested,
    resampled_tables,
)

Paper = dict[str, Any]
tables = arrays(np.int64, (4, 4), elements=st.integers(0, 12))


@pytest.fixture
def table(paper: Paper) -> np.ndarray:
    """H.3: human labels in rows, judge labels in columns."""
    return np.array(paper["h3_confusion"])


def unrolled(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both labels of every item of a table."""
    rows, columns = np.indices(table.shape)
    return np.repeat(rows.ravel(), table.ravel()), np.repeat(columns.ravel(), table.ravel())


def test_kappa_and_its_error_are_the_papers(table: np.ndarray, paper: Paper) -> None:
    """0.8633, standard error 0.0202."""
    expected, found = paper["recomputed"]["table11"], kappa(table)
    assert found.value == pytest.approx(expected["kappa"], abs=1e-10)
    assert found.standard_error == pytest.approx(expected["kappa_se"], abs=1e-10)
    assert found.interval is not None
    assert [found.interval.low, found.interval.high] == pytest.approx(expected["kappa_ci"], abs=1e-10)
    assert found.n == 400


def test_weighted_kappas_are_the_papers(table: np.ndarray, paper: Paper) -> None:
    """Linear and quadratic."""
    expected = paper["recomputed"]["table11"]
    assert kappa(table, "linear").value == pytest.approx(expected["kappa_linear"], abs=1e-10)
    assert kappa(table, "quadratic").value == pytest.approx(expected["kappa_quadratic"], abs=1e-10)


def test_the_binary_decision_is_the_papers(table: np.ndarray, paper: Paper) -> None:
    """Accuracy 0.950, kappa 0.900 with its error, macro F1."""
    expected, binary = paper["recomputed"]["table11"], collapsed(table)
    found = kappa(binary)
    assert binary.tolist() == expected["binary_confusion"]
    assert accuracy(binary).value == expected["binary_accuracy"]
    assert found.value == pytest.approx(expected["binary_kappa"], abs=1e-12)
    assert found.standard_error == pytest.approx(expected["binary_kappa_se"], abs=1e-9)
    assert found.interval is not None
    assert [found.interval.low, found.interval.high] == pytest.approx(expected["binary_kappa_ci"], abs=1e-9)
    assert class_scores(binary).macro_f1 == pytest.approx(expected["binary_macro_f1"], abs=1e-9)


def test_class_scores_are_the_papers(table: np.ndarray, paper: Paper) -> None:
    """F1, recall, precision and macro F1; the human is the reference."""
    expected, found = paper["recomputed"]["table11"], class_scores(table)
    assert found.f1.tolist() == pytest.approx(expected["f1"], abs=1e-9)
    assert found.recall.tolist() == pytest.approx(expected["recall"], abs=1e-8)
    assert found.precision.tolist() == pytest.approx(expected["precision"], abs=1e-9)
    assert found.macro_f1 == pytest.approx(expected["macro_f1"], abs=1e-9)
    assert found.support.tolist() == [109, 83, 94, 114]
    assert [round(value, 3) for value in found.f1.tolist()] == [row["f1"] for row in paper["h2_per_class_f1"].values()]


def test_distances_are_the_papers(table: np.ndarray, paper: Paper) -> None:
    """359 / 29 / 12 / 0, of 41 disagreements 71 % adjacent."""
    expected, found = paper["recomputed"]["table11"], distances(table)
    assert list(found.histogram) == expected["distance_histogram"]
    assert found.mean == pytest.approx(expected["mean_ordinal_distance"])
    assert found.mean_of_disagreements == pytest.approx(expected["mean_ordinal_distance_among_disagreements"])
    assert found.adjacent_share == pytest.approx(29 / 41)


def test_the_most_contested_boundary_is_stereotype_against_fabricated(table: np.ndarray) -> None:
    """13 items, 32 % of all disagreements."""
    found = most_contested(table)
    assert found is not None
    assert (found.labels, found.items) == ((2, 3), 13)
    assert found.share_of_disagreements == pytest.approx(13 / 41)


def test_alphas_are_the_papers(table: np.ndarray, paper: Paper) -> None:
    """Nominal and ordinal."""
    expected = paper["recomputed"]["table11"]
    assert alpha_of_table(table).value == pytest.approx(expected["krippendorff_nominal"], abs=1e-10)
    assert alpha_of_table(table, "ordinal").value == pytest.approx(expected["krippendorff_ordinal"], abs=1e-10)


def test_the_stratified_bootstrap_interval_is_the_papers(
    table: np.ndarray, paper: Paper, rng: np.random.Generator
) -> None:
    """Items were sampled 100 per judge label, so columns keep their totals."""
    found = kappa_bootstrap(table, rng, strata="columns").interval
    assert found is not None
    assert [found.low, found.high] == pytest.approx(paper["recomputed"]["table11"]["kappa_boot_stratified"], abs=0.004)


@given(tables, st.sampled_from(["nominal", "linear", "quadratic"]))
@settings(deadline=None, max_examples=80)
def test_kappa_is_scikit_learns_and_its_error_statsmodels(table: np.ndarray, weighting: Weighting) -> None:
    """Any table on which both labellers vary."""
    assume((table.sum(axis=1) > 0).sum() > 1)
    assume((table.sum(axis=0) > 0).sum() > 1)
    human, judge = unrolled(table)
    names = None if weighting == "nominal" else weighting
    found = kappa(table, weighting)
    expected = cohen_kappa_score(human, judge, weights=names, labels=range(4))
    assert found.value == pytest.approx(expected, abs=1e-12)
    with np.errstate(all="ignore"):
        variance = max(cohens_kappa(table, wt=names).var_kappa, 0.0)
    assert found.standard_error**2 == pytest.approx(variance, abs=1e-12)


@given(tables)
@settings(deadline=None, max_examples=60)
def test_scores_are_scikit_learns(table: np.ndarray) -> None:
    """Wherever a class can be scored at all."""
    assume(table.sum() > 0)
    human, judge = unrolled(table)
    found = class_scores(table)
    for ours, theirs in ((found.precision, precision_score), (found.recall, recall_score), (found.f1, f1_score)):
        reference = theirs(human, judge, labels=range(4), average=None, zero_division=np.nan)
        known = ~np.isnan(ours)
        np.testing.assert_allclose(ours[known], reference[known])
    assert accuracy(table).value == pytest.approx(accuracy_score(human, judge))


@given(tables, st.sampled_from(["nominal", "ordinal"]))
@settings(deadline=None, max_examples=60)
def test_alpha_of_two_raters_is_krippendorffs(table: np.ndarray, metric: Metric) -> None:
    """From the table and from the ratings alike."""
    human, judge = unrolled(table)
    assume(len(np.union1d(human, judge)) > 1)
    reference = krippendorff.alpha(
        reliability_data=np.stack([human, judge]), level_of_measurement=metric, value_domain=list(range(4))
    )
    assert alpha_of_table(table, metric).value == pytest.approx(reference, abs=1e-9)
    assert krippendorff_alpha(np.stack([human, judge]), 4, metric).value == pytest.approx(reference, abs=1e-9)


@given(arrays(np.int64, st.tuples(st.integers(2, 5), st.integers(2, 15)), elements=st.integers(-1, 3)))
@settings(deadline=None, max_examples=60)
def test_alpha_of_many_raters_with_gaps_is_krippendorffs(ratings: np.ndarray) -> None:
    """Items with one rating do not count."""
    paired = (ratings >= 0).sum(axis=0) > 1
    assume(paired.any())
    assume(len(np.unique(ratings[:, paired][ratings[:, paired] >= 0])) > 1)
    data = np.where(ratings < 0, np.nan, ratings.astype(float))
    for metric in ("nominal", "ordinal"):
        reference = krippendorff.alpha(
            reliability_data=data, level_of_measurement=metric, value_domain=[0.0, 1.0, 2.0, 3.0]
        )
        found = krippendorff_alpha(ratings, 4, metric)
        assert found.value == pytest.approx(reference, abs=1e-9)
        assert found.n == paired.sum()


@given(st.integers(1, 300), st.data())
@settings(deadline=None, max_examples=40)
def test_accuracys_interval_is_wilsons(n: int, data: st.DataObject) -> None:
    """As statsmodels computes it."""
    right = data.draw(st.integers(0, n))
    found = accuracy(np.array([[right, n - right], [0, 0]])).interval
    assert found is not None
    assert [found.low, found.high] == pytest.approx(proportion_confint(right, n, method="wilson"), abs=1e-12)


@given(tables)
@settings(deadline=None, max_examples=40)
def test_kappa_does_not_care_who_is_the_reference(table: np.ndarray) -> None:
    """Transposing changes neither kappa nor alpha nor distances."""
    for weighting in ("nominal", "linear", "quadratic"):
        np.testing.assert_allclose(kappa_values(table, weighting), kappa_values(table.T, weighting), atol=1e-12)
    assert distances(table).histogram == distances(table.T).histogram


def test_perfect_agreement_has_kappa_one_and_an_interval_that_ends_there() -> None:
    """The error is 0 and no end passes 1."""
    found = kappa(np.diag([5, 5, 5, 5]))
    assert (found.value, found.standard_error) == (1.0, 0.0)
    assert found.interval is not None
    assert found.interval.high == 1.0


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        pytest.param(np.zeros((4, 4), int), "no items that both labelled", id="no items"),
        pytest.param(np.diag([7, 0, 0, 0]), "both use one and the same label", id="one label"),
    ],
)
def test_undefined_agreement_is_nan_with_a_reason(table: np.ndarray, reason: str, rng: np.random.Generator) -> None:
    """scikit-learn says nan or 1 there, depending on the version."""
    for found in (kappa(table), kappa_bootstrap(table, rng), alpha_of_table(table)):
        assert isnan(found.value)
        assert (found.reason, found.interval) == (reason, None)


def test_no_items_have_no_accuracy_and_no_contested_boundary() -> None:
    """Nor a mean distance."""
    nothing = np.zeros((4, 4), int)
    assert isnan(accuracy(nothing).value)
    assert most_contested(nothing) is None
    assert isnan(distances(nothing).mean)
    assert isnan(class_scores(nothing).macro_f1)


def test_items_that_one_side_left_out_are_not_counted() -> None:
    """A negative label is a missing one."""
    found = confusion(np.array([0, 3, -1, 2]), np.array([0, 2, 1, -1]), 4)
    assert found.sum() == 2
    assert found[3, 2] == 1


def test_resampled_tables_keep_the_totals_of_their_strata(table: np.ndarray, rng: np.random.Generator) -> None:
    """Columns, rows, or only the grand total; an empty stratum stays empty."""
    table = table.copy()
    table[:, 1] = 0
    assert (resampled_tables(table, rng, 20, "columns").sum(axis=1) == table.sum(axis=0)).all()
    assert (resampled_tables(table, rng, 20, "rows").sum(axis=2) == table.sum(axis=1)).all()
    assert (resampled_tables(table, rng, 20).sum(axis=(1, 2)) == table.sum()).all()


def test_weights_fall_with_distance() -> None:
    """Quadratic forgives near misses more than linear."""
    linear, quadratic = agreement_weights(4, "linear"), agreement_weights(4, "quadratic")
    assert linear[0].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert quadratic[0].tolist() == pytest.approx([1, 8 / 9, 5 / 9, 0])


def test_f1_intervals_are_those_of_scikit_learn_on_every_resample(table: np.ndarray) -> None:
    """The same resampled items, scored one by one, have the same percentiles; so has their mean."""
    found = f1_estimates(table, np.random.default_rng(3), strata="columns", count=200)
    draws = resampled_tables(table, np.random.default_rng(3), 200, "columns")
    scores = []
    for drawn in draws:
        human, judged = (np.repeat(side.ravel(), drawn.ravel()) for side in np.indices(drawn.shape))
        each = f1_score(human, judged, average=None)
        scores.append([*each, each.mean()])
    low, high = np.percentile(scores, [2.5, 97.5], axis=0)
    for place, estimate in enumerate(found):
        assert estimate.interval is not None
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx((low[place], high[place]), abs=1e-12)
    wanted = class_scores(table)
    assert [estimate.value for estimate in found] == pytest.approx([*wanted.f1, wanted.macro_f1], abs=1e-12)


def test_f1_of_a_label_that_nobody_gave_is_missing() -> None:
    """It is no zero, and the mean is over the others."""
    found = f1_estimates(np.array([[5, 0, 1], [0, 0, 0], [1, 0, 5]]), np.random.default_rng(1), count=100)
    assert isnan(found[1].value)
    assert found[-1].value == pytest.approx(5 / 6)
