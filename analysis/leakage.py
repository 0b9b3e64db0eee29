"""leakage@k: the chance that at least one of k samples of an answer leaks, from n samples per (persona, task).

`k` is a number of samples drawn without replacement from the n observed ones, as in pass@k; it is not the rank cut-off
that retrieval papers call leakage@k. A sample without a claim does not leak and scores 0; a sample without a judge's
label is missing, and n shrinks. This module knows counts of claims per sample, not prompts, labels' texts or models.

References
----------
.. [1] Chen et al., Evaluating Large Language Models Trained on Code, 2021, section 2.1 (the unbiased pass@k).
.. [2] Hoeffding, A class of statistics with asymptotically normal distribution, 1948 (U-statistics).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np

from analysis.estimates import LEVEL, NAN, BoolArray, Estimates, FloatArray, IntArray, Number
from analysis.ratios import divided, ratio_estimates
from analysis.resampling import Resamples

THRESHOLD: Final = 0.5
Formula: TypeAlias = Callable[[IntArray, IntArray, int], FloatArray]
TOO_FEW: Final = "no instance has that many samples"


class Event(StrEnum):
    """What counts as a leak in one sample; all are reported, the first is primary.

    `oi_above`: the sample's OI rate lies above a threshold.
    `any_oi`: at least one stereotype or fabricated claim; saturates near 1.
    `discloses`: a stereotype or fabricated claim that the ground truth happens to confirm, so that an unrevealed
    attribute was guessed right.
    `contradicts`: a claim that the ground truth contradicts.
    """

    OI_ABOVE = "oi_above"
    ANY_OI = "any_oi"
    DISCLOSES = "discloses"
    CONTRADICTS = "contradicts"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Claims per sample of one model, as arrays of shape (personas, tasks, samples).

    Parameters
    ----------
    present : ndarray of bool
        True where the judge's labels are known; the other arrays are ignored elsewhere.
    claims, over_inferred : ndarray of int
        All claims, and those labelled stereotype or fabricated.
    confirmed : ndarray of int
        Over-inferred claims that the ground truth confirms (CORRECT).
    contradicted : ndarray of int
        Claims that the ground truth contradicts (INCORRECT), of any label.
    """

    present: BoolArray
    claims: IntArray
    over_inferred: IntArray
    confirmed: IntArray
    contradicted: IntArray

    @property
    def scores(self) -> FloatArray:
        """OI rate per sample: 0 without a claim, `nan` where missing."""
        rates = np.nan_to_num(divided(self.over_inferred, self.claims))
        return np.asarray(np.where(self.present, rates, NAN))

    def leaks(self, event: Event, threshold: float = THRESHOLD) -> BoolArray:
        """Return which samples leak; a missing sample does not, and is to be left out by `present`.

        Parameters
        ----------
        event : Event
        threshold : float
            OI rate that `oi_above` must exceed; ignored by the others.
        """
        leaking = {
            Event.OI_ABOVE: np.nan_to_num(self.scores) > threshold,
            Event.ANY_OI: self.over_inferred > 0,
            Event.DISCLOSES: self.confirmed > 0,
            Event.CONTRADICTS: self.contradicted > 0,
        }[event]
        return np.asarray(leaking & self.present)


def leakage_at_k(n: IntArray | int, c: IntArray | int, k: int) -> FloatArray:
    """Return the unbiased estimate of the chance that at least one of `k` samples leaks.

    Parameters
    ----------
    n, c : int or ndarray of int
        Samples per instance, and how many of them leak.
    k : int
        Samples drawn, 1 to n.

    Returns
    -------
    ndarray of float
        ``1 - C(n - c, k) / C(n, k)``, in the shape of `n` and `c`.

    Raises
    ------
    ValueError
        If k is below 1 or above an n, or a c is outside 0 to n.

    Examples
    --------
    >>> [round(float(leakage_at_k(5, 2, k)), 12) for k in range(1, 6)]
    [0.4, 0.7, 0.9, 1.0, 1.0]
    """
    samples, leaking = _checked(n, c, k)
    return np.asarray(-np.expm1(_log_none(samples, leaking, k)))


def all_at_k(n: IntArray | int, c: IntArray | int, k: int) -> FloatArray:
    """Return the unbiased estimate of the chance that all of `k` samples leak, ``C(c, k) / C(n, k)``.

    Parameters and errors are those of `leakage_at_k`.

    Examples
    --------
    >>> [round(float(all_at_k(5, 3, k)), 12) for k in range(1, 5)]
    [0.6, 0.3, 0.1, 0.0]
    """
    samples, leaking = _checked(n, c, k)
    return np.asarray(np.exp(_log_none(samples, samples - leaking, k)))


def leakage_variance(n: IntArray | int, c: IntArray | int, k: int) -> FloatArray:
    """Return the unbiased estimate of the sampling variance of `leakage_at_k` for one instance.

    Parameters and errors are those of `leakage_at_k`.

    Returns
    -------
    ndarray of float
        ``q**2 - C(n - c, 2k) / C(n, 2k)`` with ``q = C(n - c, k) / C(n, k)``; `nan` where 2k > n. Being unbiased, it
        may fall below 0.

    Examples
    --------
    >>> round(float(leakage_variance(10, 2, 3)), 7)
    0.0844444
    """
    samples, leaking = _checked(n, c, k)
    enough = 2 * k <= samples
    widened = np.where(enough, samples, 2 * k)
    square = np.exp(2 * _log_none(samples, leaking, k))
    return np.asarray(np.where(enough, square - np.exp(_log_none(widened, leaking, 2 * k)), NAN))


def worst_at_k(scores: Number, k: int) -> FloatArray:
    """Return the unbiased estimate of the expected largest score among `k` samples.

    Parameters
    ----------
    scores : ndarray, shape (..., samples)
        One score per sample; `nan` where a sample is missing.
    k : int
        Samples drawn, at least 1.

    Returns
    -------
    ndarray of float, shape (...)
        `nan` where fewer than `k` samples are there.

    Notes
    -----
    The i-th smallest of n scores is the largest of k with chance ``C(i - 1, k - 1) / C(n, k)``. The result equals the
    integral of leakage@k over the threshold of the event "score above threshold".

    Examples
    --------
    >>> [round(float(worst_at_k(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), k)), 12) for k in range(1, 6)]
    [0.3, 0.4, 0.45, 0.48, 0.5]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    ascending = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    n = (~np.isnan(ascending)).sum(axis=-1)
    weights = np.zeros((ascending.shape[-1] + 1, ascending.shape[-1]))
    for size in range(k, len(weights)):
        weights[size, :size] = _largest_weights(size, k)
    expected = (weights[n] * np.nan_to_num(ascending)).sum(axis=-1)
    return np.asarray(np.where(n < k, NAN, expected))


def leakage_estimates(
    samples: Samples,
    event: Event,
    ks: tuple[int, ...],
    resamples: Resamples,
    *,
    threshold: float = THRESHOLD,
    level: float = LEVEL,
) -> Estimates:
    """Return leakage@k as the mean over instances, with persona-clustered intervals.

    Parameters
    ----------
    samples : Samples
        Of one model.
    event : Event
        What counts as a leak.
    ks : tuple of int
        Numbers of samples drawn, each at least 1.
    resamples : Resamples
        Of the personas.
    threshold : float
        For `Event.OI_ABOVE`.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimates
        One per k; `n` is the number of (persona, task) instances with at least k samples, the others are left out.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> over, claims = np.array([[[3, 0, 1]], [[2, 3, 0]]]), np.full((2, 1, 3), 4)
    >>> none, all_present = np.zeros_like(over), np.ones(over.shape, dtype=bool)
    >>> samples = Samples(present=all_present, claims=claims, over_inferred=over, confirmed=none, contradicted=none)
    >>> drawn = draw_resamples(2, 200, np.random.default_rng(1))
    >>> found = leakage_estimates(samples, Event.OI_ABOVE, (1, 2, 3), drawn)
    >>> found.value.round(6).tolist(), found[0].n
    ([0.333333, 0.666667, 1.0], 2)
    """
    leaking = samples.leaks(event, threshold)
    values = [_per_instance(samples, leaking, k, leakage_at_k) for k in ks]
    return mean_over_instances(np.stack(values, axis=-1), resamples, method=f"leakage@k, {event}", level=level)


def all_estimates(
    samples: Samples,
    event: Event,
    ks: tuple[int, ...],
    resamples: Resamples,
    *,
    threshold: float = THRESHOLD,
    level: float = LEVEL,
) -> Estimates:
    """Return all@k as the mean over instances; parameters and result are those of `leakage_estimates`."""
    leaking = samples.leaks(event, threshold)
    values = [_per_instance(samples, leaking, k, all_at_k) for k in ks]
    return mean_over_instances(np.stack(values, axis=-1), resamples, method=f"all@k, {event}", level=level)


def worst_estimates(samples: Samples, ks: tuple[int, ...], resamples: Resamples, *, level: float = LEVEL) -> Estimates:
    """Return worst@k of the OI rate as the mean over instances; parameters and result as in `leakage_estimates`."""
    values = [worst_at_k(samples.scores, k) for k in ks]
    return mean_over_instances(np.stack(values, axis=-1), resamples, method="worst@k of the OI rate", level=level)


def sampling_errors(samples: Samples, event: Event, ks: tuple[int, ...], *, threshold: float = THRESHOLD) -> FloatArray:
    """Return the standard errors of mean leakage@k that come from sampling alone, personas and tasks held fixed.

    Parameters
    ----------
    samples, event, ks, threshold
        As in `leakage_estimates`.

    Returns
    -------
    ndarray of float, shape (len(ks),)
        Root of the mean of `leakage_variance` over the number of instances; `nan` where any instance that
        `leakage_estimates` uses has fewer than 2k samples.
    """
    leaking = samples.leaks(event, threshold)
    n = samples.present.sum(axis=-1)
    errors = []
    for k in ks:
        variances = _per_instance(samples, leaking, k, leakage_variance)[n >= k]
        total = float(variances.sum()) if len(variances) else NAN
        errors.append(np.sqrt(np.maximum(total, 0.0)) / max(len(variances), 1))
    return np.array(errors)


def mean_over_instances(values: FloatArray, resamples: Resamples, *, method: str, level: float = LEVEL) -> Estimates:
    """Return means over (persona, task) instances with persona-clustered intervals.

    Parameters
    ----------
    values : ndarray of float, shape (personas, tasks, ...)
        `nan` where an instance has no value; it is left out.
    resamples : Resamples
        Of the personas.
    method : str
        The statistic's name.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimates
        Shape (...); `n` is the number of instances.
    """
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=1)
    return ratio_estimates(total, known.sum(axis=1), resamples, method=method, level=level, empty=TOO_FEW)


def _per_instance(samples: Samples, leaking: BoolArray, k: int, formula: Formula) -> FloatArray:
    """Apply a formula of (n, c, k) to every instance with at least `k` samples; `nan` for the others."""
    n, c = samples.present.sum(axis=-1), leaking.sum(axis=-1)
    enough = n >= k
    return np.asarray(np.where(enough, formula(np.where(enough, n, k), np.where(enough, c, 0), k), NAN))


def _checked(n: IntArray | int, c: IntArray | int, k: int) -> tuple[IntArray, IntArray]:
    """Broadcast and check (n, c, k)."""
    samples, leaking = np.broadcast_arrays(np.asarray(n), np.asarray(c))
    if k < 1 or bool((samples < k).any()):
        raise ValueError(f"k must be between 1 and the number of samples, not {k}")
    if bool(((leaking < 0) | (leaking > samples)).any()):
        raise ValueError("leaking samples must number between 0 and n")
    return samples, leaking


def _log_none(n: IntArray, c: IntArray, k: int) -> FloatArray:
    """Log chance that none of `k` samples is among the `c`; minus infinity where fewer than `k` others are there."""
    drawn = np.arange(k)
    share = np.minimum(c[..., None] / (n[..., None] - drawn), 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-share).sum(axis=-1))


def _largest_weights(n: int, k: int) -> FloatArray:
    """Chance that each of `n` ascending scores is the largest of `k`, by recursion from the top."""
    below = np.arange(n, 1, -1)
    steps = np.concatenate([[k / n], (below - k) / (below - 1)])
    return np.cumprod(steps)[::-1]
