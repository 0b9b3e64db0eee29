"""Rho of many resamples at once, against building every resample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from analysis import ranks
from analysis.ranks import resampled_spearman
from analysis.resampling import draw_resamples

VALUES = st.integers(0, 5)
PAIRS = st.lists(st.tuples(VALUES, VALUES, st.integers(0, 4)), min_size=3, max_size=40)


def built(x: np.ndarray, y: np.ndarray, cluster: np.ndarray, row: np.ndarray) -> float:
    """Return rho of the resample that a row of multiplicities describes, made by repeating pairs."""
    repeats = row[cluster].astype(int)
    first, second = np.repeat(x, repeats), np.repeat(y, repeats)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(spearmanr(first, second).statistic)


@pytest.mark.parametrize("least", [0, 10**9], ids=["over triples", "over pairs"])
@given(pairs=PAIRS, seed=st.integers(0, 2**16))
@settings(max_examples=60)
def test_both_ways_agree_with_building_every_resample(least: int, pairs: list[tuple[int, int, int]], seed: int) -> None:
    """Ties, empty clusters and constant resamples included; whichever way is the cheaper one."""
    x, y, cluster = (np.array(column) for column in zip(*pairs, strict=True))
    drawn = draw_resamples(5, 12, np.random.default_rng(seed)).multiplicities
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_LEAST_PAIRS", least)
        found = resampled_spearman(x, y, cluster, drawn)
    wanted = [built(x, y, cluster, row) for row in drawn]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("pairs", [60, 900, 9000], ids=["few", "a model's answers", "many samples"])
def test_single_precision_keeps_six_digits(pairs: int, rng: np.random.Generator) -> None:
    """What many resamples give agrees with what few of them give, which is exact."""
    cluster = np.sort(rng.integers(30, size=pairs))
    x = rng.integers(0, 9, size=pairs) / rng.integers(8, 20, size=pairs)
    y = x + rng.normal(size=pairs).round(1)
    drawn = draw_resamples(30, 200, rng).multiplicities
    exact = np.concatenate([resampled_spearman(x, y, cluster, part) for part in np.split(drawn, 4)])
    np.testing.assert_allclose(resampled_spearman(x, y, cluster, drawn), exact, atol=2e-6)


def test_both_ways_are_taken() -> None:
    """The bound between them lies where a sweep with many samples is on one side and one with few on the other."""
    assert 900 < max(ranks._LEAST_PAIRS, 150**3 // ranks._TRIPLES_PER_PAIR) < 63_000
