"""How well a model's self-audit ranks its own records: AUROC and Spearman's rho with persona-clustered intervals.

A record is positive when its judged OI rate lies strictly above the model's median. Rates are quotients of small
integers and are compared as such; a median between two rates is kept as a fraction. This module knows records of one
model, as four integers each.

References
----------
.. [1] "The Personalization Mirage", section "The Self-Monitoring Inversion", Appendix D, Table 6.
.. [2] Hanley and McNeil, The meaning and use of the area under a ROC curve, Radiology 143, 1982.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analysis.correlation import spearman
from analysis.estimates import LEVEL, BoolArray, Estimate, FloatArray, IntArray, Number, missing
from analysis.ranks import resampled_spearman
from analysis.ratios import divided
from analysis.resampling import Resamples

METHOD: Final = "AUROC of self-audit OI"
ONE_CLASS: Final = "all records are on one side of the median"
NO_INTERVAL: Final = "no variation between personas: no interval"
_SINGLE_BELOW: Final = 2**22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """The records of one model that have claims by both raters.

    Parameters
    ----------
    persona : ndarray of int, shape (n,)
        Position of each record's persona among the resampled ones.
    self_oi, self_claims, judge_oi, judge_claims : ndarray of int, shape (n,)
        Over-inferred and all claims by the model's own audit and by the judge; all claims are positive.
    left_out : int
        Records without a claim on one side, which have no OI rate.
    """

    persona: IntArray
    self_oi: IntArray
    self_claims: IntArray
    judge_oi: IntArray
    judge_claims: IntArray
    left_out: int = 0

    @property
    def scores(self) -> FloatArray:
        """Self-audit OI rates; equal fractions give equal numbers."""
        return divided(self.self_oi, self.self_claims)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.persona)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auroc:
    """The AUROC of one model and all that it hangs on.

    Parameters
    ----------
    estimate : Estimate
        Positive: judge OI strictly above the median. `n` is the number of records.
    at_least : Estimate
        The variant with positive: judge OI at least the median.
    median : Fraction or None
        The model's median judge OI.
    positives, positives_at_least : int
        Positive records under each rule; the difference is the number of records at the median.
    left_out : int
        Records without an OI rate.
    """

    estimate: Estimate
    at_least: Estimate
    median: Fraction | None
    positives: int
    positives_at_least: int
    left_out: int


def pairs(
    persona: IntArray, self_oi: IntArray, self_claims: IntArray, judge_oi: IntArray, judge_claims: IntArray
) -> Pairs:
    """Pair one model's records, leaving out (and counting) those without a claim on either side.

    Parameters
    ----------
    persona, self_oi, self_claims, judge_oi, judge_claims : ndarray of int, shape (records,)
        As in `Pairs`, where claims may be 0.
    """
    kept = (np.asarray(self_claims) > 0) & (np.asarray(judge_claims) > 0)
    columns = [np.asarray(column)[kept] for column in (persona, self_oi, self_claims, judge_oi, judge_claims)]
    return Pairs(
        persona=columns[0],
        self_oi=columns[1],
        self_claims=columns[2],
        judge_oi=columns[3],
        judge_claims=columns[4],
        left_out=int((~kept).sum()),
    )


def self_audit_auroc(records: Pairs, resamples: Resamples, *, level: float = LEVEL) -> Auroc:
    """Return how well self-audit OI tells records above the model's median judge OI from the others.

    Parameters
    ----------
    records : Pairs
        Of one model.
    resamples : Resamples
        Of the personas. The labels stay those of the observed median in every resample.
    level : float
        Nominal coverage.

    Returns
    -------
    Auroc
        `nan` when there is no record on one side of the median; such resamples are dropped and counted.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> tens = np.full(4, 10)
    >>> records = pairs(np.arange(4), np.array([1, 4, 3, 8]), tens, np.array([2, 3, 5, 9]), tens)
    >>> found = self_audit_auroc(records, draw_resamples(4, 200, np.random.default_rng(1)))
    >>> found.estimate.value, found.median, found.positives
    (0.75, Fraction(2, 5), 2)
    """
    if not len(records):
        nothing = missing("no records with claims on both sides", method=METHOD)
        return Auroc(
            estimate=nothing,
            at_least=nothing,
            median=None,
            positives=0,
            positives_at_least=0,
            left_out=records.left_out,
        )
    median = median_ratio(records.judge_oi, records.judge_claims)
    above, below = (against(records.judge_oi, records.judge_claims, median, sign) for sign in (1, -1))
    return Auroc(
        estimate=_estimate(records, above, resamples, level),
        at_least=_estimate(records, ~below, resamples, level),
        median=median,
        positives=int(above.sum()),
        positives_at_least=int((~below).sum()),
        left_out=records.left_out,
    )


def self_audit_spearman(records: Pairs, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return Spearman's rho between self-audit and judge OI over one model's records.

    Parameters
    ----------
    records, resamples, level
        As in `self_audit_auroc`; ranks are taken anew in every resample.
    """
    judged = divided(records.judge_oi, records.judge_claims)
    point = spearman(records.scores, judged)
    if np.isnan(point.value):
        return point
    replicates = resampled_spearman(records.scores, judged, records.persona, resamples.multiplicities)
    interval = resamples.interval(replicates, level)
    return replace(point, interval=interval, seed=resamples.seed, reason="" if interval else NO_INTERVAL)


def auroc(scores: Number, positive: BoolArray) -> float:
    """Return the chance that a positive scores above a negative, ties counting half; `nan` with one class only.

    Examples
    --------
    >>> auroc(np.array([1, 2, 2, 3]), np.array([False, False, True, True]))
    0.875
    """
    together = np.zeros(len(scores), dtype=np.int64)
    return float(_replicates(scores, positive, together, np.ones((1, 1)))[0])


def median_ratio(numerator: IntArray, denominator: IntArray) -> Fraction:
    """Return the median of fractions as a fraction; the mean of the middle two for an even number.

    Examples
    --------
    >>> median_ratio(np.array([1, 1]), np.array([3, 2]))
    Fraction(5, 12)
    """
    order = np.argsort(divided(numerator, denominator), kind="stable")
    middle = {order[(len(order) - 1) // 2], order[len(order) // 2]}
    return Fraction(sum(Fraction(int(numerator[at]), int(denominator[at])) for at in middle), len(middle))


def against(numerator: IntArray, denominator: IntArray, threshold: Fraction, sign: int) -> NDArray[np.bool_]:
    """Return which fractions lie above (`sign` 1) or below (`sign` -1) a threshold, by cross-multiplying integers.

    Examples
    --------
    >>> against(np.array([1, 2, 3]), np.array([5, 10, 10]), Fraction(1, 5), 1).tolist()
    [False, False, True]
    """
    left = np.asarray(numerator, dtype=np.int64) * threshold.denominator
    right = np.asarray(denominator, dtype=np.int64) * threshold.numerator
    return np.asarray(sign * (left - right) > 0)


def _estimate(records: Pairs, positive: BoolArray, resamples: Resamples, level: float) -> Estimate:
    """AUROC with its interval, under one rule for the label."""
    value = auroc(records.scores, positive)
    if np.isnan(value):
        return missing(ONE_CLASS, method=METHOD, n=len(records))
    replicates = _replicates(records.scores, positive, records.persona, resamples.multiplicities)
    interval = resamples.interval(replicates, level)
    return Estimate(
        value=value,
        n=len(records),
        interval=interval,
        method=METHOD,
        seed=resamples.seed,
        reason="" if interval else NO_INTERVAL,
    )


def _replicates(scores: Number, positive: BoolArray, cluster: IntArray, multiplicities: Number) -> FloatArray:
    """AUROC of every resample from a cluster-by-cluster kernel.

    Entry (p, q) of the kernel counts the pairs of a positive of p and a negative of q that are ordered rightly; under
    multiplicities w the concordant pairs are w' K w. Sums are of half integers, hence exact.
    """
    block = np.unique(scores, return_inverse=True)[1]
    held = np.zeros((2, multiplicities.shape[1], int(block.max(initial=0)) + 1))
    np.add.at(held, (np.asarray(positive, dtype=np.int64), cluster, block), 1.0)
    negatives, positives = held
    kernel = positives @ (np.cumsum(negatives, axis=1) - negatives / 2).T
    # Half integers of this size are exact in single precision, too, which is twice as fast.
    exact = multiplicities.sum(axis=1).max(initial=0) * kernel.max(initial=0.0) < _SINGLE_BELOW
    kind: type[np.floating] = np.float32 if exact else np.float64
    weights = np.asarray(multiplicities, dtype=np.float64)
    pulls = np.asarray(multiplicities, dtype=kind) @ kernel.astype(kind)
    concordant = np.einsum("rc,rc->r", pulls.astype(np.float64), weights)
    return divided(concordant, (weights @ positives.sum(axis=1)) * (weights @ negatives.sum(axis=1)))
