"""Means over models that weigh every model equally, with persona-clustered intervals.

A model's rate is a quotient of totals over personas; the mean is over the models that have one. This module knows
numerators and denominators per persona and model, not what they count.

References
----------
.. [1] "The Personalization Mirage", Appendix B (macro average), section "The Self-Monitoring Inversion" (mean gap).
"""

from dataclasses import dataclass

import numpy as np

from analysis.estimates import LEVEL, BoolArray, Estimates, FloatArray, IntArray, Number
from analysis.ratios import assemble, divided
from analysis.resampling import Resamples

NO_MODEL = "no model has a rate"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Mean:
    """A mean of ratios: over models, under every resample, and each persona's pull on it."""

    value: FloatArray
    replicates: FloatArray
    influence: FloatArray


def mean_ratios(
    numerator: Number, denominator: Number, resamples: Resamples, *, method: str, level: float = LEVEL
) -> Estimates:
    """Return means over models of ratios of totals.

    Parameters
    ----------
    numerator, denominator : ndarray, shape (personas, models, ...)
        Totals; the denominator may broadcast against the numerator.
    resamples : Resamples
        Of the personas.
    method : str
        The statistic's name.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimates
        Shape (...); `n` is the number of models with a denominator. Resamples in which one of them has none are
        dropped and counted.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> top, bottom = np.array([[1, 3], [1, 1]]), np.array([[4, 4], [4, 4]])
    >>> mean_ratios(top, bottom, draw_resamples(2, 100, np.random.default_rng(1)), method="mean rate")[()].value
    0.375
    """
    top, bottom = np.broadcast_arrays(numerator, denominator)
    present = bottom.sum(axis=0) > 0
    return _assembled(_mean(top, bottom, present, resamples), bottom > 0, present, resamples, method, level)


def mean_differences(
    first: tuple[Number, Number],
    second: tuple[Number, Number],
    resamples: Resamples,
    *,
    method: str,
    level: float = LEVEL,
) -> Estimates:
    """Return means over models of differences of two ratios, first minus second, over models that have both.

    Parameters
    ----------
    first, second : (numerator, denominator)
        Each as in `mean_ratios`.
    resamples, method, level
        As in `mean_ratios`; so is the result.
    """
    sides = [np.broadcast_arrays(*side) for side in (first, second)]
    present = np.logical_and(*(bottom.sum(axis=0) > 0 for _, bottom in sides))
    one, other = (_mean(top, bottom, present, resamples) for top, bottom in sides)
    joint = _Mean(
        value=one.value - other.value,
        replicates=one.replicates - other.replicates,
        influence=one.influence - other.influence,
    )
    filled = np.logical_and(*(bottom > 0 for _, bottom in sides))
    return _assembled(joint, filled, present, resamples, method, level)


def _mean(top: Number, bottom: Number, present: BoolArray, resamples: Resamples) -> _Mean:
    models = present.sum(axis=0)
    totals = np.where(present, bottom.sum(axis=0), 1)
    rates = np.where(present, top.sum(axis=0) / totals, 0.0)
    drawn = divided(resamples.sums(top), resamples.sums(bottom))
    pulls = np.where(present, (top - rates * bottom) / totals, 0.0)
    return _Mean(
        value=divided(rates.sum(axis=0), models),
        replicates=divided(np.where(present[..., None], drawn, 0.0).sum(axis=0), np.asarray(models)[..., None]),
        influence=divided(pulls.sum(axis=1), models),
    )


def _assembled(
    mean: _Mean, filled: BoolArray, present: BoolArray, resamples: Resamples, method: str, level: float
) -> Estimates:
    clusters: IntArray = (filled & present).any(axis=1).sum(axis=0)
    return assemble(
        value=mean.value,
        n=present.sum(axis=0),
        replicates=mean.replicates,
        influence=mean.influence,
        clusters=clusters,
        resamples=resamples,
        method=method,
        level=level,
        empty=NO_MODEL,
    )
