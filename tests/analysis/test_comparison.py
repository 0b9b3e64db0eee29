"""Models on the same personas: pairs, Holm, ranks and design effects."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests

from analysis.comparison import design_effects, holm, paired_differences, ranks
from analysis.rates import OI, over_inferred, share_estimates
from analysis.resampling import draw_resamples


def sweep(rng: np.random.Generator, personas: int = 40, rates: tuple[float, ...] = (0.5, 0.4, 0.4)) -> np.ndarray:
    """Counts of models with different rates over personas that differ a lot."""
    shift = rng.normal(0, 0.12, (personas, 1, 1))
    claims = rng.poisson(12, (personas, len(rates), 4)) + 1
    over = rng.binomial(claims, np.clip(np.array(rates)[None, :, None] + shift, 0.02, 0.98))
    counts = np.zeros((*claims.shape, 4), dtype=np.int64)
    counts[..., 0], counts[..., 3] = claims - over, over
    return counts


def test_pairing_on_personas_removes_what_they_share(rng: np.random.Generator) -> None:
    """The paired error is well below that of two independent rates."""
    counts = sweep(rng)
    drawn = draw_resamples(40, 2000, rng)
    alone = share_estimates(counts, drawn).standard_error[:, OI]
    found = paired_differences(counts, drawn, rng)[0]
    assert found.difference.standard_error < 0.7 * np.hypot(alone[0], alone[1])
    assert found.difference.interval is not None
    assert found.difference.interval.low > 0
    assert found.test.p < 0.01


def test_all_pairs_come_in_order_with_rates_differences(rng: np.random.Generator) -> None:
    """Without missing records a difference is that of the two published rates."""
    counts = sweep(rng)
    drawn = draw_resamples(40, 100, rng)
    rate = share_estimates(counts, drawn).value[:, OI]
    found = paired_differences(counts, drawn, rng, permutations=100)
    assert [(pair.first, pair.second) for pair in found] == [(0, 1), (0, 2), (1, 2)]
    for pair in found:
        assert pair.difference.value == pytest.approx(rate[pair.first] - rate[pair.second])
        assert pair.test.statistic == pytest.approx(pair.difference.value)
        assert (pair.records, pair.difference.n) == (160, 40)


def test_records_that_one_model_lacks_are_left_out_of_its_pairs_only(rng: np.random.Generator) -> None:
    """A model that failed on the hard persona may not look better for it."""
    counts = sweep(rng)
    present = np.ones(counts.shape[:3], dtype=bool)
    present[:10, 1] = False
    counts[:10, 1] = 0
    drawn = draw_resamples(40, 100, rng)
    found = paired_differences(counts, drawn, rng, present=present, permutations=100)
    over, claims = over_inferred(counts[10:])
    rate = over.sum(axis=0) / claims.sum(axis=0)
    assert found[0].records == 120
    assert found[0].difference.value == pytest.approx(rate[0] - rate[1])
    assert found[1].records == 160


def test_adjusted_p_values_are_holms_over_all_pairs(rng: np.random.Generator) -> None:
    """Sixty-six tests at twelve models."""
    counts = sweep(rng, 30, tuple(np.linspace(0.35, 0.5, 6)))
    found = paired_differences(counts, draw_resamples(30, 50, rng), rng, permutations=500)
    expected = multipletests([pair.test.p for pair in found], method="holm")[1]
    assert len(found) == 15
    np.testing.assert_allclose([pair.test.adjusted for pair in found], expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(deadline=None, max_examples=60)
def test_holm_is_statsmodels(p: list[float]) -> None:
    """Ties and ones included."""
    np.testing.assert_allclose(holm(np.array(p)), multipletests(p, method="holm")[1])


def test_a_test_without_a_p_does_not_count_as_a_test() -> None:
    """A pair without common records costs the others nothing."""
    found = holm(np.array([0.01, np.nan, 0.02]))
    assert found[[0, 2]].tolist() == [0.02, 0.02]
    assert isnan(found[1])


def test_one_model_has_no_pairs(rng: np.random.Generator) -> None:
    """Nothing to compare."""
    assert paired_differences(sweep(rng, rates=(0.4,)), draw_resamples(40, 10, rng), rng) == ()


def test_two_models_without_a_common_record_have_no_difference(rng: np.random.Generator) -> None:
    """The reason says so, n is 0."""
    counts = sweep(rng, 4, (0.4, 0.5))
    present = np.ones(counts.shape[:3], dtype=bool)
    present[:2, 0], present[2:, 1] = False, False
    found = paired_differences(counts, draw_resamples(4, 20, rng), rng, present=present)[0]
    assert isnan(found.difference.value)
    assert isnan(found.test.p)
    assert (found.records, found.difference.n) == (0, 0)
    assert found.difference.reason == "no claims on one side"


def test_ranks_are_those_of_each_resample(rng: np.random.Generator) -> None:
    """Compared with ranking copied personas one resample at a time."""
    counts = sweep(rng)
    drawn = draw_resamples(40, 80, rng)
    over, claims = over_inferred(counts)
    expected = [rankdata(-(row @ over) / (row @ claims)) for row in drawn.multiplicities]
    found = ranks(counts, drawn)
    for place, row in enumerate(found):
        low, high = np.quantile([rank[place] for rank in expected], [0.025, 0.975])
        assert row.rank.interval is not None
        assert (row.rank.interval.low, row.rank.interval.high) == pytest.approx((low, high))
        assert row.chance_highest == pytest.approx(np.mean([rank[place] == 1 for rank in expected]))
    assert found[0].rank.value == 1
    assert sum(row.chance_highest for row in found) == pytest.approx(1)
    assert sum(row.chance_lowest for row in found) == pytest.approx(1)


def test_tied_models_share_rank_and_chances(rng: np.random.Generator) -> None:
    """Two copies of one model."""
    counts = np.repeat(sweep(rng, rates=(0.4,)), 2, axis=1)
    found = ranks(counts, draw_resamples(40, 50, rng))
    assert [row.rank.value for row in found] == [1.5, 1.5]
    assert [row.chance_highest for row in found] == [0.5, 0.5]


def test_a_model_without_claims_has_no_rank_and_takes_none(rng: np.random.Generator) -> None:
    """The others are ranked among themselves."""
    counts = sweep(rng, rates=(0.3, 0.4, 0.5))
    counts[:, 1] = 0
    found = ranks(counts, draw_resamples(40, 50, rng))
    assert [row.rank.value for row in found if row.rank.reason == ""] == [2, 1]
    assert isnan(found[1].rank.value)
    assert (found[1].rank.reason, found[1].rank.interval) == ("no claims", None)
    assert isnan(found[1].chance_highest)
    assert found[0].rank.n == 2


def test_the_design_effect_is_about_one_for_independent_claims(rng: np.random.Generator) -> None:
    """Every claim has the same chance whatever its persona."""
    claims = np.full((2000, 1, 1), 50)
    over = rng.binomial(claims, 0.4)
    counts = np.stack([claims - over, 0 * over, 0 * over, over], axis=-1)
    found = design_effects(counts, draw_resamples(2000, 2, rng))[0]
    assert found.effect == pytest.approx(1, abs=0.12)
    assert found.effective_claims == pytest.approx(100_000 / found.effect)


def test_the_design_effect_of_identical_claims_is_the_cluster_size(rng: np.random.Generator) -> None:
    """If all ten claims of a persona agree, ten tell as much as one."""
    over = 10 * rng.binomial(1, 0.4, (3000, 1, 1))
    counts = np.stack([10 - over, 0 * over, 0 * over, over], axis=-1)
    found = design_effects(counts, draw_resamples(3000, 2, rng))[0]
    assert found.effect == pytest.approx(10, rel=0.01)


def test_the_clustered_error_is_statsmodels(rng: np.random.Generator) -> None:
    """A regression of claims on a constant with cluster-robust errors, up to the usual correction for sample size."""
    counts = sweep(rng, 25, (0.4,))
    over, claims = (part[:, 0] for part in over_inferred(counts))
    labels = np.concatenate(
        [np.repeat([1.0, 0.0], [top, bottom - top]) for top, bottom in zip(over, claims, strict=True)]
    )
    persona = np.repeat(np.arange(25), claims)
    fit = OLS(labels, np.ones(len(labels))).fit(cov_type="cluster", cov_kwds={"groups": persona})
    found = design_effects(counts, draw_resamples(25, 2, rng))[0]
    assert found.standard_error == pytest.approx(fit.bse[0], rel=1e-6)


def test_no_claims_have_no_design_effect(rng: np.random.Generator) -> None:
    """Nor does a rate of 0."""
    nothing = np.zeros((3, 1, 1, 4), dtype=int)
    assert isnan(design_effects(nothing, draw_resamples(3, 5, rng))[0].effect)
    grounded = nothing.copy()
    grounded[..., 0] = 5
    assert isnan(design_effects(grounded, draw_resamples(3, 5, rng))[0].effect)
