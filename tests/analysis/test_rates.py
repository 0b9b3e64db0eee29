"""Rates from integer counts: the paper's tables, tallies, groups and gaps."""

from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis import rates
from analysis.resampling import Resamples, draw_resamples, enumerate_resamples

Paper = dict[str, Any]
counts_arrays = arrays(np.int64, st.tuples(*[st.integers(1, 4)] * 3, st.just(4)), elements=st.integers(0, 9))


def published(paper: Paper) -> np.ndarray:
    """Table 1 as claims per (one persona, model, one task, label), rounded to whole claims."""
    rows = list(paper["table1_leaderboard"].values())
    claims = np.array([row["claims"] for row in rows])
    percent = np.array([[row["grounded_pct"], row["stereotype_pct"], row["fabricated_pct"]] for row in rows])
    grounded, stereotype, fabricated = np.rint(claims * percent.T / 100).astype(int)
    table = np.stack([grounded, claims - grounded - stereotype - fabricated, stereotype, fabricated], axis=1)
    return table[None, :, None, :]


def split(counts: np.ndarray, rng: np.random.Generator, personas: int) -> np.ndarray:
    """Deal out the claims of one persona over several."""
    return np.moveaxis(rng.multinomial(counts[0], np.full(personas, 1 / personas)), -1, 0)


@pytest.fixture
def resamples() -> Resamples:
    """Of one persona: values only."""
    return draw_resamples(1, 1, np.random.default_rng(1))


def test_macro_and_micro_rates_are_the_papers(paper: Paper, resamples: Resamples) -> None:
    """41.6 and 41.8 %, up to the rounding of the published shares."""
    counts, expected = published(paper), paper["recomputed"]["table1"]
    macro, micro = rates.oi_macro(counts, resamples), rates.oi_micro(counts, resamples)
    assert 100 * macro.value == pytest.approx(expected["oi_macro"], abs=0.05)
    assert 100 * micro.value == pytest.approx(expected["oi_micro_from_rounded"], abs=0.05)
    assert (macro.n, micro.n) == (12, expected["claims_sum"])


def test_each_models_shares_are_the_papers(paper: Paper, resamples: Resamples) -> None:
    """Every row of the leaderboard; OI is summed before rounding, so 0.1 pp may separate it from the printed sum."""
    found = rates.share_estimates(published(paper), resamples)
    for place, row in enumerate(paper["table1_leaderboard"].values()):
        assert 100 * found[place, 0].value == pytest.approx(row["grounded_pct"], abs=0.05)
        assert 100 * found[place, rates.OI].value == pytest.approx(row["oi_pct"], abs=0.11)
        assert found[place, rates.OI].n == row["claims"]


def test_task_rates_weighted_by_claims_give_the_micro_rate(paper: Paper, resamples: Resamples) -> None:
    """Table 3 times Table 5 sums to 41.78 %."""
    tasks = paper["table3_task_composition"]
    claims = np.array([paper["table5_task_claims"][task]["claims"] for task in tasks])
    names = ("grounded_pct", "reasonable_pct", "stereotype_pct", "fabricated_pct")
    percent = np.array([[tasks[task][name] for name in names] for task in tasks])
    counts = np.rint(claims[:, None] * percent / 100).astype(int)[None, None]
    by_task = rates.share_estimates(counts, resamples, by=("task",))
    for place, row in enumerate(tasks.values()):
        assert 100 * by_task[place, rates.OI].value == pytest.approx(row["oi_pct"], abs=0.1)
    expected = paper["recomputed"]["table3_x_table5"]
    whole = rates.share_estimates(counts, resamples, by=())
    assert 100 * whole.value[2] == pytest.approx(expected["stereotype_micro"], abs=0.002)
    assert 100 * whole.value[3] == pytest.approx(expected["fabricated_micro"], abs=0.002)
    assert 100 * whole.value[rates.OI] == pytest.approx(expected["oi_micro"], abs=0.05)


def test_group_differences_are_the_papers(paper: Paper) -> None:
    """Table 7: stereotypical minus counter-stereotypical, per model, 0.1 pp for twice rounded numbers."""
    rows = {model: row for model, row in paper["table7_persona_group"].items() if model != "Pooled"}
    percent = np.array([[row["stereotypical_pct"], row["counter_pct"], row["neutral_pct"]] for row in rows.values()])
    over = np.rint(100 * percent).astype(int).T
    counts = np.zeros((3, len(rows), 1, 4), dtype=int)
    counts[:, :, 0, 3], counts[:, :, 0, 0] = over, 10_000 - over
    groups = np.arange(3)
    every = enumerate_resamples(3)
    found = rates.group_differences(counts, groups == 0, groups == 1, every)
    in_groups = rates.group_estimates(counts, groups, 3, every)
    for place, row in enumerate(rows.values()):
        assert 100 * found.value[place] == pytest.approx(row["delta_pp"], abs=0.101)
        assert 100 * in_groups.value[0, place, rates.OI] == pytest.approx(row["stereotypical_pct"], abs=1e-9)


def test_self_monitoring_gaps_are_the_papers(paper: Paper, resamples: Resamples) -> None:
    """Table 2: judge minus self, 0.1 pp for twice rounded numbers."""
    rows = paper["table2_self_vs_judge"].values()
    sides = []
    for name in ("judge_pct", "self_pct"):
        over = np.rint([100 * row[name] for row in rows]).astype(int)
        counts = np.zeros((1, len(rows), 1, 4), dtype=int)
        counts[0, :, 0, 2], counts[0, :, 0, 1] = over, 10_000 - over
        sides.append(counts)
    found = rates.gap_estimates(sides[0], sides[1], resamples)
    for place, row in enumerate(rows):
        assert 100 * found.value[place] == pytest.approx(row["delta_pp"], abs=0.101)


def test_a_tally_adds_records_of_the_same_cell() -> None:
    """Several samples of one (persona, task) fall into one cell."""
    persona, model, task = np.array([1, 1, 0]), np.array([0, 0, 2]), np.array([1, 1, 0])
    labels = np.array([[1, 2, 3, 4], [10, 0, 0, 0], [0, 0, 0, 5]], dtype=np.int32)
    found = rates.tally(persona, model, task, labels, (2, 3, 2))
    assert found[1, 0, 1].tolist() == [11, 2, 3, 4]
    assert found[0, 2, 0].tolist() == [0, 0, 0, 5]
    assert found.sum() == labels.sum()
    assert found.dtype == np.int64


@given(counts_arrays)
@settings(deadline=None, max_examples=60)
def test_four_shares_sum_to_one_and_oi_is_the_last_two(counts: np.ndarray) -> None:
    """By construction, wherever there are claims."""
    found = rates.shares(counts.sum(axis=0))
    some = counts.sum(axis=(0, 3)) > 0
    np.testing.assert_allclose(found[some][:, :4].sum(axis=-1), 1)
    np.testing.assert_allclose(found[some][:, 4], found[some][:, 2:4].sum(axis=-1))
    assert np.isnan(found[~some]).all()


@given(counts_arrays)
@settings(deadline=None, max_examples=60)
def test_pooling_keeps_every_claim(counts: np.ndarray) -> None:
    """However a table is cut, its n sums to the corpus."""
    drawn = draw_resamples(len(counts), 2, np.random.default_rng(1))
    for by in ((), ("model",), ("task",), ("model", "task")):
        assert rates.share_estimates(counts, drawn, by=by).n[..., rates.OI].sum() == counts.sum()


@given(counts_arrays, st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_the_order_of_personas_does_not_matter(counts: np.ndarray, seed: int) -> None:
    """Values and standard errors are symmetric in the personas."""
    order = np.random.default_rng(seed).permutation(len(counts))
    drawn = draw_resamples(len(counts), 2, np.random.default_rng(1))
    one, other = (rates.share_estimates(part, drawn) for part in (counts, counts[order]))
    np.testing.assert_array_equal(one.value, other.value)
    np.testing.assert_allclose(one.standard_error, other.standard_error, rtol=1e-9, atol=1e-12)


def test_axes_come_in_the_order_asked_for(rng: np.random.Generator) -> None:
    """Task by model is the transpose of model by task."""
    counts = rng.poisson(3, (4, 3, 2, 4))
    drawn = draw_resamples(4, 10, rng)
    one = rates.share_estimates(counts, drawn, by=("model", "task")).value
    other = rates.share_estimates(counts, drawn, by=("task", "model")).value
    np.testing.assert_array_equal(one, other.swapaxes(0, 1))


def test_groups_partition_the_claims(rng: np.random.Generator) -> None:
    """Each persona is in one group."""
    counts = rng.poisson(3, (6, 2, 2, 4))
    groups = np.array([0, 1, 2, 0, 1, 2])
    found = rates.group_estimates(counts, groups, 3, draw_resamples(6, 10, rng, strata=groups))
    assert found.shape == (3, 2, 5)
    assert found.n[..., 0].sum() == counts.sum()


def test_the_macro_rates_interval_averages_models_within_each_resample(rng: np.random.Generator) -> None:
    """Compared with copying personas; the linearised error is close to the resamples' spread."""
    counts = rng.poisson(rng.gamma(2, 2, (30, 3, 1, 4)), (30, 3, 2, 4))
    drawn = draw_resamples(30, 3000, rng)
    found = rates.oi_macro(counts, drawn)
    over, claims = rates.over_inferred(counts)
    expected = [np.mean((row @ over) / (row @ claims)) for row in drawn.multiplicities]
    assert found.interval is not None
    np.testing.assert_allclose([found.interval.low, found.interval.high], np.quantile(expected, [0.025, 0.975]))
    assert found.standard_error == pytest.approx(np.std(expected), rel=0.1)


def test_macro_leaves_out_models_without_claims_and_says_so(rng: np.random.Generator) -> None:
    """A model that gave nothing has no rate; it does not count as 0."""
    counts = rng.poisson(5, (5, 3, 2, 4))
    counts[:, 1] = 0
    found = rates.oi_macro(counts, draw_resamples(5, 50, rng))
    by_model = rates.share_estimates(counts, draw_resamples(5, 50, rng)).value[:, rates.OI]
    assert found.value == pytest.approx(np.nanmean(by_model))
    assert (found.n, found.reason) == (2, "1 model without claims left out")


def test_macro_of_nothing_is_nan(rng: np.random.Generator) -> None:
    """No model has claims."""
    found = rates.oi_macro(np.zeros((3, 2, 1, 4), dtype=int), draw_resamples(3, 50, rng))
    assert isnan(found.value)
    assert (found.n, found.reason) == (0, "no claims")


def test_replicates_of_rates_start_with_the_observed_one(rng: np.random.Generator) -> None:
    """The rest are the rates of copied personas."""
    counts = rng.poisson(3, (5, 2, 3, 4))
    counts[:, 1] = 0
    drawn = draw_resamples(5, 6, rng)
    found = rates.oi_replicates(counts, drawn)
    assert found.shape == (2, 7)
    assert found[0, 0] == rates.share_estimates(counts, drawn).value[0, rates.OI]
    copied = counts[np.repeat(np.arange(5), drawn.multiplicities[2].astype(int))]
    assert found[0, 3] == rates.share_estimates(copied, drawn_of(copied)).value[0, rates.OI]
    assert np.isnan(found[1]).all()


def drawn_of(counts: np.ndarray) -> Resamples:
    """Any resamples of the right size."""
    return draw_resamples(len(counts), 1, np.random.default_rng(1))


def test_clustering_widens_the_interval_where_personas_differ(paper: Paper, rng: np.random.Generator) -> None:
    """The same rates dealt out evenly are known better than when each persona has its own rate."""
    even = split(published(paper), rng, 40)
    rate = rng.beta(4, 6, (40, 1, 1))
    uneven = even.copy()
    claims = even.sum(axis=-1)
    over = rng.binomial(claims, np.broadcast_to(rate, claims.shape))
    uneven[..., 3], uneven[..., 0] = over, claims - over
    uneven[..., 1:3] = 0
    drawn = draw_resamples(40, 500, rng)
    assert rates.oi_micro(uneven, drawn).standard_error > 3 * rates.oi_micro(even, drawn).standard_error
