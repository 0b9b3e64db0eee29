"""Over-inference rates corrected for the judge's errors, from items that a human labelled too.

The human's items are sampled by the judge's label, so the sample holds far more of the rare labels than the corpus
does. Every figure here weighs the sample's strata by their shares in the corpus; unweighted error rates would be wrong.
This module knows label counts and labelled items, not who judged or what the claims say.

References
----------
.. [1] "The Personalization Mirage", Appendix H (sampling of 100 claims per judged label).
.. [2] Angelopoulos et al., Prediction-powered inference, Science 382, 2023.
.. [3] Cochran, Sampling Techniques, 3rd edition, 1977, section 5.3 (stratified means).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtri

from analysis.agreement import kappa_values, resampled_tables
from analysis.estimates import LEVEL, Estimate, Estimates, FloatArray, IntArray, Interval, Number, missing, seed_of
from analysis.rates import OVER_INFERRED
from analysis.ratios import divided
from analysis.resampling import RESAMPLES, Resamples

METHOD: Final = "judge-corrected OI rate"
UNLABELLED: Final = "a judged label in use has no human-labelled item"
ONE_ITEM: Final = "a judged label in use has one human-labelled item: no interval"
NO_CLAIMS: Final = "no claims"
STILL: Final = "no variation between resamples: no interval"
_SIDES: Final = (slice(0, OVER_INFERRED.start), OVER_INFERRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeErrors:
    """The judge against the human over the whole corpus, on the over-inference decision; `nan` where undefined.

    Parameters
    ----------
    sensitivity : float
        Share of human-labelled over-inference that the judge calls so.
    specificity : float
        Share of human-labelled acceptable claims that the judge calls so.
    accuracy, kappa : float
        Of the binary decision.
    four_class_accuracy, four_class_kappa : float
        Of the four labels.
    """

    sensitivity: float
    specificity: float
    accuracy: float
    kappa: float
    four_class_accuracy: float
    four_class_kappa: float


def human_oi_given_judge(table: Number) -> FloatArray:
    """Return the share of items that the human calls over-inferred, per judged label; `nan` without items.

    Parameters
    ----------
    table : ndarray, shape (4, 4)
        Items by human label (rows) and judge label (columns); an item may be shared out between labels.

    Examples
    --------
    >>> human_oi_given_judge(np.array([[99, 7, 3, 0], [1, 79, 3, 0], [0, 5, 85, 4], [0, 9, 9, 96]])).tolist()
    [0.0, 0.14, 0.94, 1.0]
    """
    return divided(table[OVER_INFERRED].sum(axis=0), table.sum(axis=0))


def corrected_oi(judged: Number, table: Number, *, level: float = LEVEL) -> Estimates:
    """Return OI rates corrected for the judge's errors, with intervals for the human sample's size.

    Parameters
    ----------
    judged : ndarray, shape (..., 4)
        Claims per judged label, or their shares; only proportions matter.
    table : ndarray, shape (4, 4)
        As in `human_oi_given_judge`.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimates
        Shape (...); `n` is the number of human-labelled items. The interval is normal and holds the claims' shares
        fixed; `corrected_oi_bootstrap` lets the personas vary too.

    Notes
    -----
    The stratified mean ``sum_j share_j * p_j`` with variance ``sum_j share_j**2 p_j (1 - p_j) / (n_j - 1)`` [3]_. It is
    prediction-powered inference [2]_ with stratum weights. The same ``p_j`` serves all models: it assumes that the
    judge errs alike on all of them. A stratum in which the human was of one mind adds no variance. Items that are
    shared out between labels count with the variance of one label drawn at random, which is rather too much.

    Examples
    --------
    >>> human = np.array([[99, 7, 3, 0], [1, 79, 3, 0], [0, 5, 85, 4], [0, 9, 9, 96]])
    >>> found = corrected_oi(np.array([25.7, 32.5, 10.7, 31.1]), human)[()]
    >>> round(found.value, 4), round(found.standard_error, 4)
    (0.4571, 0.0116)
    """
    share = divided(judged, np.asarray(judged).sum(axis=-1, keepdims=True))
    chance, items = human_oi_given_judge(table), table.sum(axis=0)
    value = _weighed(share, chance)
    error = np.sqrt(_weighed(share**2, divided(chance * (1 - chance), items - 1)))
    reach = float(ndtri((1 + level) / 2)) * error
    lacking = [np.isnan(share).any(axis=-1), np.isnan(value), np.isnan(error)]
    reason = np.select(lacking, [NO_CLAIMS, UNLABELLED, ONE_ITEM], default="")
    return Estimates(
        value=value,
        n=np.full(value.shape, round(float(table.sum()))),
        low=np.maximum(value - reach, 0.0),
        high=np.minimum(value + reach, 1.0),
        standard_error=error,
        dropped=np.zeros(value.shape, dtype=np.int64),
        reason=np.asarray(reason, dtype=np.str_),
        method=METHOD,
        interval_method="normal, stratified by judge's label",
        level=level,
    )


def corrected_oi_bootstrap(
    counts: IntArray,
    table: Number,
    resamples: Resamples,
    rng: np.random.Generator,
    *,
    level: float = LEVEL,
) -> Estimate:
    """Return the corrected OI rate of one set of claims, letting both personas and human-labelled items vary.

    Parameters
    ----------
    counts : ndarray of int, shape (personas, 4) or (personas, models, 4)
        Claims per persona and judged label; with models, the result is the plain mean of the rates of those that have
        claims.
    table : ndarray, shape (4, 4)
        As in `human_oi_given_judge`.
    resamples : Resamples
        Of the personas.
    rng : numpy.random.Generator
        Draws the human's items anew within each judged label, once per resample.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimate
        `n` is the number of human-labelled items.
    """
    models = counts[:, None] if counts.ndim == 2 else counts[:, counts.sum(axis=(0, 2)) > 0]  # noqa: PLR2004
    observed = models.sum(axis=0)
    share = divided(observed, observed.sum(axis=-1, keepdims=True)).mean(axis=0) if len(observed) else np.zeros(4)
    point = corrected_oi(share, table, level=level)[()]
    if np.isnan(point.value):
        return point
    totals = resamples.sums(models)
    drawn = resampled_tables(table, rng, resamples.count, "columns")
    chance = divided(drawn[:, OVER_INFERRED].sum(axis=1), drawn.sum(axis=1))
    replicates = _weighed(divided(totals, totals.sum(axis=1, keepdims=True)).mean(axis=0).T, chance)
    described = Resamples(
        multiplicities=resamples.multiplicities,
        probability=resamples.probability,
        method=f"{resamples.method} and items within judged labels",
    )
    interval = described.interval(replicates, level)
    return Estimate(
        value=point.value,
        n=point.n,
        interval=interval,
        method=METHOD,
        seed=f"{resamples.seed}, {seed_of(rng)}",
        reason="" if interval else STILL,
    )


def judge_errors(judged: Number, table: Number) -> JudgeErrors:
    """Return the judge's error rates over the corpus rather than over the sample.

    Parameters
    ----------
    judged : ndarray, shape (4,)
        Claims per judged label in the corpus, or their shares.
    table : ndarray, shape (4, 4)
        As in `human_oi_given_judge`.

    Examples
    --------
    >>> human = np.array([[99, 7, 3, 0], [1, 79, 3, 0], [0, 5, 85, 4], [0, 9, 9, 96]])
    >>> found = judge_errors(np.array([25.7, 32.5, 10.7, 31.1]), human)
    >>> round(found.sensitivity, 4), round(found.specificity, 4)
    (0.9005, 0.9882)
    """
    return JudgeErrors(**{name: float(values[0]) for name, values in _errors(judged, table[None]).items()})


def judge_error_intervals(
    judged: Number,
    table: Number,
    rng: np.random.Generator,
    *,
    count: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, Estimate]:
    """Return the fields of `judge_errors` with percentile intervals over the human's items.

    Parameters
    ----------
    judged, table
        As in `judge_errors`; the claims' shares are held fixed.
    rng : numpy.random.Generator
        Draws items anew within each judged label, as they were sampled.
    count : int
        Resamples to draw.
    level : float
        Nominal coverage.

    Returns
    -------
    dict
        By field; `n` is the number of human-labelled items.
    """
    n = round(float(table.sum()))
    observed = _errors(judged, table[None])
    if not n:
        return {name: missing(UNLABELLED, method=name) for name in observed}
    drawn = _errors(judged, resampled_tables(table, rng, count, "columns"))
    items = Resamples(multiplicities=np.ones((count, 1)), method="percentile, bootstrap of items within judged labels")
    found = {}
    for name, values in observed.items():
        interval = None if np.isnan(values[0]) else items.interval(drawn[name], level)
        unknown = UNLABELLED if np.isnan(values[0]) else STILL
        found[name] = Estimate(
            value=float(values[0]),
            n=n,
            interval=interval,
            method=name,
            seed=seed_of(rng) if interval else "",
            reason="" if interval else unknown,
        )
    return found


def prediction_powered_mean(
    human: Number, judge: Number, judge_elsewhere: Number, weights: Number | None = None, *, level: float = LEVEL
) -> Estimate:
    """Return the prediction-powered mean of what the human would say, from any weighted sample of items [2]_.

    Parameters
    ----------
    human, judge : ndarray, shape (n,)
        Both labels of the labelled items, for instance 1 for over-inferred and 0 for not.
    judge_elsewhere : ndarray, shape (N,)
        The judge's labels of the other items.
    weights : ndarray, shape (n,), optional
        Sampling weights of the labelled items; only proportions matter.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimate
        Mean of the judge's labels plus the weighted mean of its errors; `n` is the number of labelled items.

    Examples
    --------
    >>> found = prediction_powered_mean(np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1]), np.array([1, 0, 0, 0]))
    >>> found.value, found.n
    (0.5, 4)
    """
    n, others = len(human), len(judge_elsewhere)
    method = "prediction-powered mean"
    if not n or not others:
        return missing("no labelled items" if others else "no judged items", method=method, n=n)
    weight = np.ones(n) if weights is None else np.asarray(weights) / np.mean(weights)
    errors = weight * (np.asarray(human) - np.asarray(judge))
    value = float(np.mean(judge_elsewhere) + errors.mean())
    error = float(np.sqrt(np.var(judge_elsewhere) / others + errors.var() / n))
    reach = float(ndtri((1 + level) / 2)) * error
    interval = Interval(low=value - reach, high=value + reach, level=level, method="normal, prediction-powered")
    return Estimate(value=value, n=n, interval=interval, standard_error=error, method=method)


def _errors(judged: Number, tables: Number) -> dict[str, FloatArray]:
    """Return the fields of `JudgeErrors` for many tables, shape (tables, 4, 4), each of shape (tables,)."""
    share = divided(judged, np.asarray(judged).sum())
    whole = np.where(share == 0, 0.0, divided(tables, tables.sum(axis=1, keepdims=True)) * share)
    sides = [[whole[:, part, other].sum(axis=(1, 2)) for other in _SIDES] for part in _SIDES]
    binary = np.moveaxis(np.array(sides), -1, 0)
    right = divided(np.diagonal(binary, axis1=1, axis2=2), binary.sum(axis=2))
    return {
        "sensitivity": right[:, 1],
        "specificity": right[:, 0],
        "accuracy": np.trace(binary, axis1=1, axis2=2),
        "kappa": kappa_values(binary),
        "four_class_accuracy": np.trace(whole, axis1=1, axis2=2),
        "four_class_kappa": kappa_values(whole),
    }


def _weighed(weights: FloatArray, values: FloatArray) -> FloatArray:
    """Sum of products over labels; labels of weight 0 need no value."""
    return np.asarray(np.where(weights == 0, 0.0, weights * values).sum(axis=-1))
