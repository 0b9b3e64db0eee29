"""How far two labellers agree: accuracy, kappa, F1, ordinal distances, Krippendorff's alpha.

Nearly everything follows from a confusion matrix: rows are the reference (the human), columns the one judged, labels in
their order from best to worst supported. This module knows labels by position only.

References
----------
.. [1] "The Personalization Mirage", Appendix H, Table 11.
.. [2] Fleiss, Cohen and Everitt, Large sample standard errors of kappa and weighted kappa, Psychol. Bull. 72, 1969.
.. [3] Krippendorff, Content Analysis, 3rd edition, 2013, chapter 12.
.. [4] Wilson, Probable inference, the law of succession, and statistical inference, JASA 22, 1927.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from scipy.special import ndtri

from analysis.estimates import LEVEL, NAN, Estimate, FloatArray, IntArray, Interval, Number, missing, seed_of
from analysis.rates import OVER_INFERRED, Totals
from analysis.ratios import divided
from analysis.resampling import RESAMPLES, Resamples

Weighting: TypeAlias = Literal["nominal", "linear", "quadratic"]
Metric: TypeAlias = Literal["nominal", "ordinal"]
Strata: TypeAlias = Literal["rows", "columns"]

NO_ITEMS: Final = "no items that both labelled"
ONE_LABEL: Final = "both use one and the same label"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassScores:
    """Per-class scores against the reference; `nan` where a class has no item to score.

    Parameters
    ----------
    precision, recall, f1 : ndarray of float, shape (labels,)
    support : ndarray of int, shape (labels,)
        Items of each class in the reference.
    macro_f1 : float
        Plain mean of the F1 values that exist.
    """

    precision: FloatArray
    recall: FloatArray
    f1: FloatArray
    support: IntArray
    macro_f1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Disagreements by how many steps apart the labels are.

    Parameters
    ----------
    histogram : tuple of int
        Items 0, 1, 2, ... steps apart.
    mean, mean_of_disagreements : float
        In steps; `nan` without items, and without disagreements.
    adjacent_share : float
        Share of disagreements one step apart.
    """

    histogram: tuple[int, ...]
    mean: float
    mean_of_disagreements: float
    adjacent_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The pair of labels most often taken for each other, in either direction."""

    labels: tuple[int, int]
    items: int
    share_of_disagreements: float


def confusion(reference: IntArray, judged: IntArray, labels: int) -> Totals:
    """Count items by both labels; an item with a negative label on either side is left out.

    Examples
    --------
    >>> confusion(np.array([0, 0, 1, -1]), np.array([0, 1, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    both = (reference >= 0) & (judged >= 0)
    cells = reference[both] * labels + judged[both]
    return np.bincount(cells, minlength=labels**2).reshape(labels, labels).astype(np.int64)


def collapsed(table: IntArray) -> Totals:
    """Reduce the four labels to acceptable and over-inferred.

    Examples
    --------
    >>> collapsed(np.array([[99, 7, 3, 0], [1, 79, 3, 0], [0, 5, 85, 4], [0, 9, 9, 96]])).tolist()
    [[186, 6], [14, 194]]
    """
    over = np.zeros(len(table), dtype=np.int64)
    over[OVER_INFERRED] = 1
    binary = np.zeros((2, 2), dtype=np.int64)
    np.add.at(binary, (over[:, None], over[None, :]), table)
    return binary


def accuracy(table: IntArray, *, level: float = LEVEL) -> Estimate:
    """Return the share of items labelled alike, with Wilson's interval [4]_; `n` is the number of items.

    Examples
    --------
    >>> accuracy(np.array([[9, 1], [0, 10]])).value
    0.95
    """
    return proportion(int(np.trace(table)), int(table.sum()), method="accuracy", level=level)


def proportion(count: float, of: float, *, method: str, level: float = LEVEL) -> Estimate:
    """Return a share of items with Wilson's interval [4]_; `n` is the number of items, which may be shared out.

    Examples
    --------
    >>> found = proportion(99, 100, method="share")
    >>> found.value, round(found.interval.low, 4), round(found.interval.high, 4)
    (0.99, 0.9455, 0.9982)
    """
    if not of:
        return missing(NO_ITEMS, method=method)
    share, z = count / of, float(ndtri((1 + level) / 2))
    middle, scale = share + z * z / (2 * of), 1 + z * z / of
    reach = z * (share * (1 - share) / of + (z / (2 * of)) ** 2) ** 0.5
    # At the ends of the scale the formula is exact but for rounding.
    low = 0.0 if count == 0 else (middle - reach) / scale
    high = 1.0 if count == of else (middle + reach) / scale
    interval = Interval(low=low, high=high, level=level, method="Wilson")
    return Estimate(value=share, n=round(of), interval=interval, method=method)


def f1_estimates(
    table: IntArray,
    rng: np.random.Generator,
    *,
    strata: Strata | None = None,
    count: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[Estimate, ...]:
    """Return F1 per label and their plain mean last, with percentile bootstrap intervals over items.

    Parameters
    ----------
    table, level
        As in `kappa`.
    rng, strata, count
        As in `kappa_bootstrap`.

    Returns
    -------
    tuple of Estimate
        `n` is the items of that label by either side, and all items for the mean. `nan` for a label without an item;
        a resample in which a label has none is dropped there, and the mean is over the others.

    Examples
    --------
    >>> found = f1_estimates(np.array([[8, 2], [0, 10]]), np.random.default_rng(1), count=500)
    >>> [round(estimate.value, 6) for estimate in found]
    [0.888889, 0.909091, 0.89899]
    """
    method, scores = "F1", class_scores(table)
    labels = len(table)
    if not table.any():
        return (missing(NO_ITEMS, method=method),) * (labels + 1)
    draws = resampled_tables(table, rng, count, strata)
    right = np.diagonal(draws, axis1=1, axis2=2)
    each = divided(2 * right, draws.sum(axis=1) + draws.sum(axis=2))
    known = ~np.isnan(each)
    mean = divided(np.where(known, each, 0.0).sum(axis=1), known.sum(axis=1))
    kept = f" within {strata}" if strata else ""
    resamples = Resamples(multiplicities=np.ones((count, 1)), method=f"percentile, item bootstrap{kept}")
    values = [*scores.f1.tolist(), scores.macro_f1]
    sizes = [*(table.sum(axis=0) + table.sum(axis=1) - np.diagonal(table)).tolist(), int(table.sum())]
    replicates = [*each.T, mean]
    return tuple(
        missing(NO_ITEMS, method=method)
        if np.isnan(value)
        else _with_interval(value, size, resamples.interval(drawn, level), method, seed_of(rng))
        for value, size, drawn in zip(values, sizes, replicates, strict=True)
    )


def kappa(table: IntArray, weighting: Weighting = "nominal", *, level: float = LEVEL) -> Estimate:
    """Return Cohen's kappa with its large-sample standard error and interval [2]_.

    Parameters
    ----------
    table : ndarray of int, shape (labels, labels)
    weighting : {"nominal", "linear", "quadratic"}
        How much credit a near miss gets; "nominal" is the plain kappa.
    level : float
        Nominal coverage.

    Returns
    -------
    Estimate
        `n` is the number of items. `nan` when chance agreement is 1. The interval ends at 1.

    Examples
    --------
    >>> found = kappa(np.array([[20, 5], [10, 15]]))
    >>> round(found.value, 12), round(found.standard_error, 6)
    (0.4, 0.126996)
    """
    method = f"Cohen's kappa, {weighting}"
    n = int(table.sum())
    if not n:
        return missing(NO_ITEMS, method=method)
    value = float(kappa_values(table, weighting))
    if np.isnan(value):
        return missing(ONE_LABEL, method=method, n=n)
    error = _kappa_error(table / n, agreement_weights(len(table), weighting)) / n**0.5
    reach = float(ndtri((1 + level) / 2)) * error
    interval = Interval(low=value - reach, high=min(value + reach, 1.0), level=level, method="normal, large sample")
    return Estimate(value=value, n=n, interval=interval, standard_error=error, method=method)


def kappa_bootstrap(
    table: IntArray,
    rng: np.random.Generator,
    weighting: Weighting = "nominal",
    *,
    strata: Strata | None = None,
    count: int = RESAMPLES,
    level: float = LEVEL,
) -> Estimate:
    """Return Cohen's kappa with a percentile bootstrap interval over items.

    Parameters
    ----------
    table, weighting, level
        As in `kappa`.
    rng : numpy.random.Generator
    strata : {"rows", "columns"}, optional
        Keep these totals fixed: columns where items were sampled by the judge's label.
    count : int
        Resamples to draw.
    """
    point = kappa(table, weighting, level=level)
    if np.isnan(point.value):
        return point
    draws = resampled_tables(table, rng, count, strata)
    kept = f" within {strata}" if strata else ""
    resamples = Resamples(multiplicities=np.ones((count, 1)), method=f"percentile, item bootstrap{kept}")
    interval = resamples.interval(kappa_values(draws, weighting), level)
    return replace(point, interval=interval, seed=seed_of(rng), reason="" if interval else "resamples do not vary")


def class_scores(table: IntArray) -> ClassScores:
    """Return precision, recall and F1 per class.

    Examples
    --------
    >>> scores = class_scores(np.array([[8, 2], [0, 10]]))
    >>> scores.recall.tolist(), scores.f1.round(6).tolist()
    ([0.8, 1.0], [0.888889, 0.909091])
    """
    right, given, true = np.diagonal(table), table.sum(axis=0), table.sum(axis=1)
    f1 = divided(2 * right, given + true)
    known = f1[~np.isnan(f1)]
    return ClassScores(
        precision=divided(right, given),
        recall=divided(right, true),
        f1=f1,
        support=true,
        macro_f1=float(known.mean()) if len(known) else NAN,
    )


def distances(table: IntArray) -> Distances:
    """Return how many steps apart the two labels of an item are.

    Examples
    --------
    >>> distances(np.array([[5, 2, 1], [0, 5, 0], [0, 0, 5]])).histogram
    (15, 2, 1)
    """
    steps = np.arange(len(table))
    apart = np.abs(steps[:, None] - steps)
    histogram = np.bincount(apart.ravel(), weights=table.ravel(), minlength=len(table))
    total, wrong, walked = histogram.sum(), histogram[1:].sum(), histogram @ steps
    quotients = divided(np.array([walked, walked, histogram[1:2].sum()]), np.array([total, wrong, wrong]))
    return Distances(
        histogram=tuple(int(count) for count in histogram),
        mean=float(quotients[0]),
        mean_of_disagreements=float(quotients[1]),
        adjacent_share=float(quotients[2]),
    )


def most_contested(table: IntArray) -> Boundary | None:
    """Return the pair of labels with the most disagreements, both directions together; None without any.

    Examples
    --------
    >>> most_contested(np.array([[5, 2, 0], [1, 5, 4], [0, 0, 5]]))
    Boundary(labels=(1, 2), items=4, share_of_disagreements=0.5714285714285714)
    """
    both = np.triu(table + table.T, k=1)
    wrong = int(both.sum())
    if not wrong:
        return None
    first, second = np.unravel_index(int(both.argmax()), both.shape)
    items = int(both.max())
    return Boundary(labels=(int(first), int(second)), items=items, share_of_disagreements=items / wrong)


def krippendorff_alpha(ratings: IntArray, labels: int, metric: Metric = "nominal") -> Estimate:
    """Return Krippendorff's alpha of any number of raters with gaps [3]_.

    Parameters
    ----------
    ratings : ndarray of int, shape (raters, items)
        Label of each item; negative where a rater gave none.
    labels : int
        Number of labels.
    metric : {"nominal", "ordinal"}

    Returns
    -------
    Estimate
        `n` is the number of items with two ratings or more. `nan` when they all have the same label.

    Examples
    --------
    >>> round(krippendorff_alpha(np.array([[0, 0, 1, 1, -1], [0, 1, 1, 1, 1]]), 2).value, 6)
    0.533333
    """
    counts = np.stack([(ratings == label).sum(axis=0) for label in range(labels)], axis=-1).astype(np.float64)
    raters = counts.sum(axis=-1)
    paired = raters > 1
    counts, raters = counts[paired], raters[paired]
    scaled = counts / (raters - 1)[:, None]
    coincidences = scaled.T @ counts - np.diag(scaled.sum(axis=0))
    return _alpha_estimate(coincidences, metric, int(paired.sum()))


def alpha_of_table(table: IntArray, metric: Metric = "nominal") -> Estimate:
    """Return Krippendorff's alpha of two raters from their confusion matrix.

    Examples
    --------
    >>> round(alpha_of_table(np.array([[1, 1], [0, 2]])).value, 6)
    0.533333
    """
    return _alpha_estimate((table + table.T).astype(np.float64), metric, int(table.sum()))


def kappa_values(tables: Number, weighting: Weighting = "nominal") -> FloatArray:
    """Return kappa of one or many tables, shape (..., labels, labels) to (...)."""
    weights = agreement_weights(tables.shape[-1], weighting)
    totals = np.asarray(tables.sum(axis=(-2, -1)), dtype=np.float64)
    observed = (tables * weights).sum(axis=(-2, -1)) * totals
    chance = np.einsum("...i,ij,...j->...", tables.sum(axis=-1), weights, tables.sum(axis=-2))
    return divided(observed - chance, totals**2 - chance)


def agreement_weights(labels: int, weighting: Weighting) -> FloatArray:
    """Return the credit of each pair of labels: 1 on the diagonal, falling to 0 in the far corners.

    Examples
    --------
    >>> agreement_weights(3, "linear").tolist()
    [[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]]
    """
    steps = np.arange(labels)
    apart = np.abs(steps[:, None] - steps) / max(labels - 1, 1)
    power = {"nominal": 0, "linear": 1, "quadratic": 2}[weighting]
    return np.asarray(np.where(apart == 0, 1.0, 1.0 - apart**power))


def resampled_tables(table: Number, rng: np.random.Generator, count: int, strata: Strata | None = None) -> Totals:
    """Draw tables by resampling items, shape (count, labels, labels), with row or column totals fixed if asked.

    Of an item that is shared out between several labels one of them is drawn, which makes intervals rather too wide.
    """
    if strata is None:
        flat = table.ravel()
        return rng.multinomial(round(float(flat.sum())), flat / flat.sum(), size=count).reshape(count, *table.shape)
    turned = table if strata == "rows" else table.T
    lines = [
        rng.multinomial(round(float(line.sum())), divided(line, line.sum()), size=count)
        for line in turned
        if line.any()
    ]
    drawn = np.zeros((count, *turned.shape), dtype=np.int64)
    drawn[:, turned.any(axis=1)] = np.stack(lines, axis=1)
    return drawn if strata == "rows" else drawn.swapaxes(1, 2)


def _with_interval(value: float, n: int, interval: Interval | None, method: str, seed: str) -> Estimate:
    reason = "" if interval else "resamples do not vary: no interval"
    return Estimate(value=value, n=n, interval=interval, method=method, seed=seed if interval else "", reason=reason)


def _kappa_error(shares: FloatArray, weights: FloatArray) -> float:
    """Standard error of kappa for one item, from cell shares [2]_."""
    rows, columns = shares.sum(axis=1), shares.sum(axis=0)
    observed, chance = float((weights * shares).sum()), float(rows @ weights @ columns)
    near = (weights @ columns)[:, None] + (rows @ weights)[None, :]
    spread = (shares * (weights * (1 - chance) - near * (1 - observed)) ** 2).sum()
    variance = (spread - (observed * chance - 2 * chance + observed) ** 2) / (1 - chance) ** 4
    return float(np.sqrt(max(variance, 0.0)))


def _alpha_estimate(coincidences: FloatArray, metric: Metric, items: int) -> Estimate:
    """Alpha from a coincidence matrix [3]_."""
    method = f"Krippendorff's alpha, {metric}"
    margin = coincidences.sum(axis=0)
    apart = 1.0 - np.eye(len(margin)) if metric == "nominal" else _ordinal_distances(margin)
    expected = float(margin @ apart @ margin)
    if not items or expected == 0:
        return missing(ONE_LABEL if items else NO_ITEMS, method=method, n=items)
    alpha = 1 - (margin.sum() - 1) * float((coincidences * apart).sum()) / expected
    return Estimate(value=float(alpha), n=items, method=method)


def _ordinal_distances(margin: FloatArray) -> FloatArray:
    """Squared ordinal distances: ratings passed on the way, half counted at both ends."""
    middle = np.cumsum(margin) - margin / 2
    return np.asarray((middle[:, None] - middle) ** 2)
