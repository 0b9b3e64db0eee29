"""Over-inference rates and label shares from integer counts over (persona, model, task, label).

A share is always a total over a total (the paper's micro average); the macro average is the plain mean of models'
rates. Counts stay integers until the one division. This module knows labels, models and tasks by position only.

References
----------
.. [1] "The Personalization Mirage", Eq. 1 and Appendix B (OI rate, gap), Tables 1 to 3, 7 and 10, Appendix E.
"""

from dataclasses import replace
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import LEVEL, NAN, BoolArray, Estimate, Estimates, FloatArray, IntArray
from analysis.ratios import assemble, difference_estimates, divided, ratio_estimates
from analysis.resampling import Resamples
from analysis.words import plural

LABELS: Final = ("grounded", "reasonable", "stereotype", "fabricated")
COLUMNS: Final = (*LABELS, "oi")
OI: Final = len(LABELS)
OVER_INFERRED: Final = slice(2, 4)

Axis: TypeAlias = Literal["model", "task"]
Totals: TypeAlias = NDArray[np.int64]
BY_MODEL: Final[tuple[Axis, ...]] = ("model",)
_POSITION: Final = {"model": 1, "task": 2}


def tally(persona: IntArray, model: IntArray, task: IntArray, labels: IntArray, shape: tuple[int, int, int]) -> Totals:
    """Add up records into counts.

    Parameters
    ----------
    persona, model, task : ndarray of int, shape (records,)
        Positions of each record.
    labels : ndarray of int, shape (records, 4)
        Claims per label, in the order of `LABELS`.
    shape : tuple of int
        Numbers of personas, models and tasks.

    Returns
    -------
    ndarray of int64, shape (personas, models, tasks, 4)

    Examples
    --------
    >>> once = np.array([0, 0])
    >>> tally(once, once, once, np.array([[1, 0, 0, 2], [0, 1, 0, 0]]), (1, 1, 1)).tolist()
    [[[[1, 1, 0, 2]]]]
    """
    counts = np.zeros((*shape, len(LABELS)), dtype=np.int64)
    np.add.at(counts, (persona, model, task), labels)
    return counts


def shares(totals: IntArray) -> FloatArray:
    """Return each label's share and the OI rate of totals over labels, shape (..., 4) to (..., 5).

    Examples
    --------
    >>> shares(np.array([99, 79, 85, 137])).tolist()
    [0.2475, 0.1975, 0.2125, 0.3425, 0.555]
    """
    return divided(with_oi(totals), totals.sum(axis=-1, keepdims=True))


def with_oi(totals: IntArray) -> Totals:
    """Append stereotype plus fabricated as a fifth column to totals over labels."""
    over = totals[..., OVER_INFERRED].sum(axis=-1, keepdims=True)
    return np.concatenate([totals, over], axis=-1, dtype=np.int64)


def over_inferred(counts: IntArray, by: tuple[Axis, ...] = BY_MODEL) -> tuple[Totals, Totals]:
    """Return over-inferred and all claims per persona, each of shape (personas, *by)."""
    kept = _kept(counts, by)
    return kept[..., OVER_INFERRED].sum(axis=-1), kept.sum(axis=-1)


def oi_replicates(counts: IntArray, resamples: Resamples) -> FloatArray:
    """Return each model's OI rate, observed and under every resample, for statistics that compare models.

    Parameters
    ----------
    counts : ndarray of int, shape (personas, models, tasks, 4)
    resamples : Resamples
        Of the personas.

    Returns
    -------
    ndarray of float, shape (models, 1 + resamples)
        The observed rate first; `nan` without claims.
    """
    over, claims = over_inferred(counts)
    observed = divided(over.sum(axis=0), claims.sum(axis=0))
    return np.column_stack([observed, divided(resamples.sums(over), resamples.sums(claims))])


def share_estimates(
    counts: IntArray, resamples: Resamples, *, by: tuple[Axis, ...] = BY_MODEL, level: float = LEVEL
) -> Estimates:
    """Return label shares and OI rates with persona-clustered intervals.

    Parameters
    ----------
    counts : ndarray of int, shape (personas, models, tasks, 4)
    resamples : Resamples
        Of the personas.
    by : tuple of {"model", "task"}
        What is kept apart, in this order; the rest is pooled. ``()`` pools everything.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimates
        Shape (*by, 5), last axis as in `COLUMNS`; `n` is the number of claims.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts = np.array([[[[2, 1, 0, 1]]], [[[2, 0, 1, 1]]], [[[1, 1, 1, 3]]]])
    >>> table = share_estimates(counts, draw_resamples(3, 1000, np.random.default_rng(1)))
    >>> table.shape, table[0, OI].value, table[0, OI].n
    ((1, 5), 0.5, 14)
    """
    kept = _kept(counts, by)
    return ratio_estimates(
        with_oi(kept), kept.sum(axis=-1, keepdims=True), resamples, method="share of claims", level=level
    )


def oi_micro(counts: IntArray, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return the claim-weighted OI rate over all models; `n` is the number of claims.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts = np.array([[[[2, 0, 0, 2]], [[9, 0, 0, 1]]], [[[2, 0, 1, 1]], [[8, 0, 0, 2]]]])
    >>> found = oi_micro(counts, draw_resamples(2, 1000, np.random.default_rng(1)))
    >>> found.value, found.n
    (0.25, 28)
    """
    return share_estimates(counts, resamples, by=(), level=level)[OI]


def oi_macro(counts: IntArray, resamples: Resamples, *, level: float = LEVEL) -> Estimate:
    """Return the unweighted mean of the models' OI rates; `n` is the number of models that have claims.

    Models without a claim are left out, and `reason` counts them.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts = np.array([[[[2, 0, 0, 2]], [[9, 0, 0, 1]]], [[[2, 0, 1, 1]], [[8, 0, 0, 2]]]])
    >>> oi_macro(counts, draw_resamples(2, 1000, np.random.default_rng(1))).value.__round__(6)
    0.325
    """
    over, claims = over_inferred(counts)
    present = claims.sum(axis=0) > 0
    over, claims = over[:, present], claims[:, present]
    models = int(present.sum())
    rates = divided(over.sum(axis=0), claims.sum(axis=0))
    replicates = divided(resamples.sums(over), resamples.sums(claims))
    pull = (over - rates * claims) / claims.sum(axis=0) / max(models, 1)
    found = assemble(
        value=np.asarray(rates.mean() if models else NAN),
        n=np.asarray(models),
        replicates=replicates.mean(axis=0) if models else np.full(resamples.count, NAN),
        influence=pull.sum(axis=1),
        clusters=np.asarray((claims.sum(axis=1) > 0).sum()),
        resamples=resamples,
        method="mean of models' OI rates",
        level=level,
    )[()]
    left_out = len(present) - models
    note = f"{plural(left_out, 'models')} without claims left out"
    return found if found.reason or not left_out else replace(found, reason=note)


def group_estimates(
    counts: IntArray,
    groups: IntArray,
    group_count: int,
    resamples: Resamples,
    *,
    by: tuple[Axis, ...] = BY_MODEL,
    level: float = LEVEL,
) -> Estimates:
    """Return label shares and OI rates within persona groups.

    Parameters
    ----------
    counts, resamples, by, level
        As in `share_estimates`. Resamples drawn within groups keep the group sizes that the design fixes.
    groups : ndarray of int, shape (personas,)
        Group of each persona, 0 to `group_count` - 1.
    group_count : int

    Returns
    -------
    Estimates
        Shape (group_count, *by, 5); `n` is the number of claims.
    """
    member = np.asarray(groups)[:, None] == np.arange(group_count)
    kept = _kept(counts, by)[:, None] * member.reshape(*member.shape, *[1] * (len(by) + 1))
    return ratio_estimates(
        with_oi(kept), kept.sum(axis=-1, keepdims=True), resamples, method="share of claims", level=level
    )


def group_differences(
    counts: IntArray,
    first: BoolArray,
    second: BoolArray,
    resamples: Resamples,
    *,
    by: tuple[Axis, ...] = BY_MODEL,
    level: float = LEVEL,
) -> Estimates:
    """Return differences in OI rate between two groups of personas, first minus second.

    Parameters
    ----------
    counts, resamples, by, level
        As in `group_estimates`.
    first, second : ndarray of bool, shape (personas,)
        Members of each group, disjoint.

    Returns
    -------
    Estimates
        Shape `by`; `n` is the number of personas with claims.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> counts, first = np.array([[[[2, 0, 0, 6]]], [[[6, 0, 0, 2]]]]), np.array([True, False])
    >>> group_differences(counts, first, ~first, draw_resamples(2, 1000, np.random.default_rng(1)))[0].value
    0.5
    """
    over, claims = over_inferred(counts, by)
    masks = [np.asarray(mask).reshape(-1, *[1] * len(by)) for mask in (first, second)]
    sides = [(over * mask, claims * mask) for mask in masks]
    return difference_estimates(
        sides[0], sides[1], resamples, method="difference in OI rate between groups", level=level
    )


def gap_estimates(
    judged: IntArray, audited: IntArray, resamples: Resamples, *, by: tuple[Axis, ...] = BY_MODEL, level: float = LEVEL
) -> Estimates:
    """Return the self-monitoring gap, judge's OI rate minus self-audit's, over the same resampled personas.

    Parameters
    ----------
    judged, audited : ndarray of int, shape (personas, models, tasks, 4)
        Counts by the judge's and by the model's own labels; the two extract their claims independently.
    resamples, by, level
        As in `share_estimates`.

    Returns
    -------
    Estimates
        Shape `by`; positive where the model admits less than it does. `n` is the number of personas with claims.

    Examples
    --------
    >>> from analysis.resampling import draw_resamples
    >>> judged, audited = np.array([[[[2, 0, 1, 1]]], [[[2, 1, 0, 1]]]]), np.array([[[[6, 2, 0, 0]]], [[[3, 3, 1, 1]]]])
    >>> found = gap_estimates(judged, audited, draw_resamples(2, 1000, np.random.default_rng(1)))[0]
    >>> found.value, found.n
    (0.25, 2)
    """
    return difference_estimates(
        over_inferred(judged, by), over_inferred(audited, by), resamples, method="self-monitoring gap", level=level
    )


def _kept(counts: IntArray, by: tuple[Axis, ...]) -> Totals:
    """Sum out the axes that are not named, and put the named ones in order."""
    out = tuple(place for name, place in _POSITION.items() if name not in by)
    summed = counts.sum(axis=out, dtype=np.int64)
    return np.asarray(summed.swapaxes(1, 2) if by == ("task", "model") else summed)
