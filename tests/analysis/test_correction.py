"""Judge-corrected rates: the recomputed numbers, ppi-python, and what the strata weights are for."""

from math import isnan
from typing import Any

import numpy as np
import ppi_py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom

from analysis.agreement import resampled_tables
from analysis.correction import (
    corrected_oi,
    corrected_oi_bootstrap,
    human_oi_given_judge,
    judge_error_intervals,
    judge_errors,
    prediction_powered_mean,
)
from analysis.correlation import spearman
from analysis.resampling import draw_resamples

Paper = dict[str, Any]
HUMAN = np.array([[99, 7, 3, 0], [1, 79, 3, 0], [0, 5, 85, 4], [0, 9, 9, 96]])


def leaderboard(paper: Paper) -> np.ndarray:
    """Claims per model and judged label, from published shares; reasonable is what the others leave."""
    rows = paper["table1_leaderboard"].values()
    claims = np.array([row["claims"] for row in rows])
    names = ("grounded_pct", "stereotype_pct", "fabricated_pct")
    grounded, stereotype, fabricated = np.array([[row[name] for name in names] for row in rows]).T
    percent = np.stack([grounded, 100 - grounded - stereotype - fabricated, stereotype, fabricated], axis=1)
    return np.asarray(claims[:, None] * percent / 100)


def test_the_corrected_micro_rate_is_the_recomputed_one(paper: Paper) -> None:
    """45.69 [43.41, 47.97], up from a raw 41.8."""
    expected = paper["recomputed"]["judge_debiasing"]
    found = corrected_oi(leaderboard(paper).sum(axis=0), np.array(paper["h3_confusion"]))[()]
    assert 100 * found.value == pytest.approx(expected["micro_corrected"], abs=0.005)
    assert 100 * found.standard_error == pytest.approx(expected["se_pp"], abs=0.005)
    assert found.interval is not None
    assert [100 * found.interval.low, 100 * found.interval.high] == pytest.approx(expected["ci"], abs=0.01)
    assert found.n == 400


def test_the_corrected_macro_rate_is_the_recomputed_one(paper: Paper) -> None:
    """45.5, with one set of judge errors for all models; the order of models stays inverted."""
    expected = paper["recomputed"]["judge_debiasing"]
    found = corrected_oi(leaderboard(paper), HUMAN)
    assert 100 * found.value.mean() == pytest.approx(expected["macro_corrected"], abs=0.02)
    audits = paper["table2_self_vs_judge"]
    self_audit = np.array([audits[model]["self_pct"] for model in paper["table1_leaderboard"]])
    assert spearman(self_audit, found.value).value == pytest.approx(expected["rho_self_vs_corrected"], abs=1e-9)


def test_the_judges_errors_are_those_of_the_corpus_not_of_the_sample(paper: Paper) -> None:
    """Sensitivity 0.900 and specificity 0.988; the raw sample says 0.933 and 0.969."""
    expected = paper["recomputed"]["judge_debiasing"]
    found = judge_errors(leaderboard(paper).sum(axis=0), HUMAN)
    assert found.sensitivity == pytest.approx(expected["sens_population"], abs=1e-4)
    assert found.specificity == pytest.approx(expected["spec_population"], abs=1e-4)
    raw = judge_errors(HUMAN.sum(axis=0), HUMAN)
    assert raw.sensitivity == pytest.approx(expected["sens_raw400"])
    assert raw.specificity == pytest.approx(expected["spec_raw400"])
    assert (raw.four_class_accuracy, raw.accuracy) == pytest.approx((0.8975, 0.95))
    assert (raw.four_class_kappa, raw.kappa) == pytest.approx((0.8633333333, 0.9))


def test_each_judged_label_has_its_own_chance_of_over_inference(paper: Paper) -> None:
    """0, .14, .94 and 1."""
    expected = paper["recomputed"]["judge_debiasing"]["p_human_oi_given_judge_GRSF"]
    assert human_oi_given_judge(HUMAN).tolist() == expected


def sample_and_corpus(paper: Paper) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Human and judge decisions on 400 items, their sampling weights, and the judge's decisions on the corpus."""
    totals = np.rint(leaderboard(paper).sum(axis=0)).astype(int)
    rows, columns = np.indices(HUMAN.shape)
    human, judge = (np.repeat(part.ravel(), HUMAN.ravel()) for part in (rows, columns))
    weights = (totals / HUMAN.sum(axis=0))[judge]
    elsewhere = np.repeat(np.arange(4), totals) >= 2
    return (human >= 2).astype(float), (judge >= 2).astype(float), weights, elsewhere.astype(float)


def test_stratum_weights_make_it_prediction_powered_inference(paper: Paper) -> None:
    """ppi-python with weights gives 0.457, as we do; without weights 0.444 or, untuned, 0.438, which are wrong."""
    human, judge, weights, elsewhere = sample_and_corpus(paper)
    weighted = ppi_py.ppi_mean_pointestimate(human, judge, elsewhere, lam=1, w=weights).item()
    unweighted = [ppi_py.ppi_mean_pointestimate(human, judge, elsewhere, lam=lam).item() for lam in (None, 1)]
    assert round(weighted, 3) == 0.457
    assert [round(value, 3) for value in unweighted] == [0.444, 0.438]
    assert prediction_powered_mean(human, judge, elsewhere, weights).value == pytest.approx(weighted)
    assert corrected_oi(leaderboard(paper).sum(axis=0), HUMAN).value == pytest.approx(weighted, abs=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_prediction_powered_interval_is_ppi_pythons(paper: Paper, weighted: bool) -> None:
    """With and without sampling weights, no power tuning."""
    human, judge, weights, elsewhere = sample_and_corpus(paper)
    chosen = weights if weighted else None
    low, high = ppi_py.ppi_mean_ci(human, judge, elsewhere, alpha=0.05, lam=1, w=chosen)
    found = prediction_powered_mean(human, judge, elsewhere, chosen).interval
    assert found is not None
    assert [found.low, found.high] == pytest.approx([float(low[0]), float(high[0])])


@given(arrays(np.int64, 4, elements=st.integers(0, 1000)).filter(lambda counts: counts.sum() > 0))
@settings(deadline=None, max_examples=50)
def test_a_judge_that_never_errs_needs_no_correction(counts: np.ndarray) -> None:
    """Then the corrected rate is the judged one, without any doubt from the human sample."""
    found = corrected_oi(counts, np.diag([10, 10, 10, 10]))[()]
    assert found.value == pytest.approx(counts[2:].sum() / counts.sum())
    assert found.standard_error == 0


@given(arrays(np.int64, 4, elements=st.integers(0, 1000)).filter(lambda counts: counts.sum() > 0), st.integers(2, 50))
@settings(deadline=None, max_examples=50)
def test_only_proportions_of_claims_matter(counts: np.ndarray, factor: int) -> None:
    """Counts or shares, small corpus or large."""
    one, other = corrected_oi(counts, HUMAN), corrected_oi(counts * factor, HUMAN)
    np.testing.assert_allclose([one.value, one.low], [other.value, other.low], rtol=1e-12)


def test_a_judged_label_that_no_human_saw_leaves_no_estimate() -> None:
    """Unless the corpus does not use it either."""
    blind = HUMAN.copy()
    blind[:, 2] = 0
    found = corrected_oi(np.array([[5, 5, 1, 5], [5, 5, 0, 5]]), blind)
    assert isnan(found[0].value)
    assert found[0].reason == "a judged label in use has no human-labelled item"
    assert found[1].value == pytest.approx((0.14 * 5 + 5) / 15)
    assert isnan(judge_errors(np.array([5, 5, 1, 5]), blind).sensitivity)


def test_one_item_of_a_label_gives_a_rate_but_no_interval() -> None:
    """Its variance is unknown, not 0."""
    lone = np.diag([10, 1, 10, 10])
    found = corrected_oi(np.array([5, 5, 5, 5]), lone)[()]
    assert found.value == 0.5
    assert found.interval is None
    assert found.reason == "a judged label in use has one human-labelled item: no interval"


def test_no_claims_have_no_corrected_rate() -> None:
    """A model without judged claims."""
    found = corrected_oi(np.zeros((2, 4), int), HUMAN)[0]
    assert isnan(found.value)
    assert found.reason == "no claims"


def test_letting_personas_vary_widens_the_interval(rng: np.random.Generator) -> None:
    """Both sources of doubt add up, here in about equal parts."""
    claims = rng.poisson(60, 30) + 1
    over = rng.binomial(claims, rng.beta(8, 12, 30))
    counts = np.stack([claims - over, over * 0, over * 0, over], axis=1)
    counts[:, 1] = rng.poisson(30, 30)
    drawn = draw_resamples(30, 4000, rng)
    fixed = corrected_oi(counts.sum(axis=0), HUMAN)[()]
    found = corrected_oi_bootstrap(counts, HUMAN, drawn, rng)
    over_inferred = counts @ human_oi_given_judge(HUMAN)
    influence = (over_inferred - fixed.value * counts.sum(axis=1)) / counts.sum()
    personas = np.sqrt(30 / 29 * (influence**2).sum())
    assert found.value == fixed.value
    assert found.interval is not None
    half = (found.interval.high - found.interval.low) / 2
    assert half == pytest.approx(1.96 * np.hypot(fixed.standard_error, personas), rel=0.08)
    assert found.interval.method == "percentile, persona bootstrap and items within judged labels"


def test_items_are_drawn_anew_within_judged_labels(rng: np.random.Generator) -> None:
    """Ten items of one judged label, half of them over-inferred: their number is binomial; personas do not differ."""
    table = np.zeros((4, 4), dtype=int)
    table[1, 1] = table[2, 1] = 5
    counts = np.tile([0, 8, 0, 0], (6, 1))
    found = corrected_oi_bootstrap(counts, table, draw_resamples(6, 20_000, rng), rng).interval
    assert found is not None
    assert [found.low, found.high] == pytest.approx(binom.ppf([0.025, 0.975], 10, 0.5) / 10)


def test_personas_without_claims_have_no_corrected_rate(rng: np.random.Generator) -> None:
    """Letting personas vary does not make claims."""
    found = corrected_oi_bootstrap(np.zeros((3, 4), int), HUMAN, draw_resamples(3, 10, rng), rng)
    assert isnan(found.value)
    assert (found.reason, found.interval) == ("no claims", None)


def test_no_labelled_items_have_no_prediction_powered_mean() -> None:
    """Nor do no judged ones."""
    nothing, some = np.array([]), np.array([1.0, 0.0])
    assert prediction_powered_mean(nothing, nothing, some).reason == "no labelled items"
    assert prediction_powered_mean(some, some, nothing).reason == "no judged items"


def test_error_intervals_are_the_percentiles_over_resampled_items() -> None:
    """Table by table, the plain function gives what the vectorised one takes percentiles of."""
    population = np.array([257, 325, 107, 311])
    found = judge_error_intervals(population, HUMAN, np.random.default_rng(5), count=200)
    draws = resampled_tables(HUMAN, np.random.default_rng(5), 200, "columns")
    for name, estimate in found.items():
        assert estimate.value == pytest.approx(getattr(judge_errors(population, HUMAN), name), abs=1e-12)
        each = [getattr(judge_errors(population, drawn), name) for drawn in draws]
        assert estimate.interval is not None
        ends = (estimate.interval.low, estimate.interval.high)
        assert ends == pytest.approx(np.percentile(each, [2.5, 97.5]), abs=1e-12), name


def test_errors_without_items_are_missing() -> None:
    """There is nothing to say about a judge whom nobody checked."""
    found = judge_error_intervals(np.ones(4), np.zeros((4, 4), np.int64), np.random.default_rng(1))
    assert all(isnan(estimate.value) and estimate.reason for estimate in found.values())


def test_the_mean_of_corrected_rates_weighs_models_equally(rng: np.random.Generator) -> None:
    """A model with a thousand times the claims counts as one model; one without claims counts as none."""
    counts = np.zeros((4, 3, 4), np.int64)
    counts[:, 0], counts[:, 1] = [1, 0, 0, 1], [1000, 0, 0, 0]
    found = corrected_oi_bootstrap(counts, HUMAN, draw_resamples(4, 200, rng), rng)
    each = [corrected_oi(counts[:, place].sum(axis=0), HUMAN)[()].value for place in (0, 1)]
    assert found.value == pytest.approx(np.mean(each), abs=1e-12)
