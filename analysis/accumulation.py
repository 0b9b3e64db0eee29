"""How a memory grows over conversation rounds, and whether anything in it is ever taken back.

Every function takes one model: sizes as an array over (persona, round), or memory states as sets of attributes. Missing
states are `nan` or None and are left out of what needs them. This module knows no text beyond normalising it.

References
----------
.. [1] "The Personalization Mirage", Eq. 4 (Accumulation Rate), Tables 4 and 8, Appendices B and F.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from scipy.stats import linregress

from analysis.estimates import LEVEL, NAN, Estimate, FloatArray, Interval, missing
from analysis.ratios import divided, ratio_estimates
from analysis.resampling import Resamples
from analysis.words import plural

FEWEST_ROUNDS: Final = 2
NO_ENDS: Final = "no persona has both its first and its last memory"
SHORTEST_WORD: Final = 4
NO_STEPS: Final = "no two successive memories to compare"

Attributes: TypeAlias = AbstractSet[Hashable]
States: TypeAlias = Sequence[Sequence[Attributes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Mean memory sizes over the personas with both ends; `n` of each estimate is their number.

    Parameters
    ----------
    first, last : Estimate
        Inferred attributes after the first and the last round.
    growth : Estimate
        Last minus first.
    per_round : Estimate
        Growth over the number of rounds less one: the Accumulation Rate.
    """

    first: Estimate
    last: Estimate
    growth: Estimate
    per_round: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An ordinary least-squares fit of memory size on round; `n` counts the (persona, round) points.

    Parameters
    ----------
    slope : Estimate
        Attributes per round; its standard error is the textbook one, which takes points as independent, its interval
        resamples personas.
    intercept : float
        Fitted size at round 0.
    r2 : Estimate
        Share of variance; `nan` when the sizes do not vary.
    """

    slope: Estimate
    intercept: float
    r2: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """What became of inferences that a later message contradicts.

    Parameters
    ----------
    held : int
        Contradicted attributes in memory just before the contradicting round.
    retracted : int
        Of these, absent right after that round.
    retracted_by_end : int
        Of these, absent from the last known memory.
    other_held, other_removed : int
        The same for all other attributes of that memory: the removal to compare with.
    """

    held: int
    retracted: int
    retracted_by_end: int
    other_held: int
    other_removed: int


def growth(sizes: FloatArray, resamples: Resamples | None = None, *, level: float = LEVEL) -> Growth:
    """Return mean sizes at both ends and what lies between.

    Parameters
    ----------
    sizes : ndarray of float, shape (personas, rounds)
        Inferred attributes in memory; `nan` where a memory is missing.
    resamples : Resamples, optional
        Of the personas, for intervals.
    level : float
        Nominal coverage.

    Examples
    --------
    >>> found = growth(np.array([[18.0, 60.0, 120.0], [19.0, 70.0, 130.0]]))
    >>> found.first.value, found.last.value, found.growth.value, found.per_round.value
    (18.5, 125.0, 106.5, 53.25)
    """
    first, last = sizes[:, 0], sizes[:, -1]
    both = ~np.isnan(first) & ~np.isnan(last)
    steps = sizes.shape[1] - 1
    rates = (last - first) / steps if steps else np.full(len(sizes), NAN)
    columns = {
        "attributes after the first round": first,
        "attributes after the last round": last,
        "growth": last - first,
        "growth per round": rates,
    }
    means = [_mean(np.where(both, column, NAN), resamples, name, NO_ENDS, level) for name, column in columns.items()]
    return Growth(first=means[0], last=means[1], growth=means[2], per_round=means[3])


def line(sizes: FloatArray, resamples: Resamples | None = None, *, level: float = LEVEL) -> Line:
    """Return the least-squares line of size on round number (1 to the last) over all (persona, round) points.

    Parameters
    ----------
    sizes, resamples, level
        As in `growth`.

    Examples
    --------
    >>> fit = line(np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]))
    >>> fit.slope.value, fit.intercept, round(fit.r2.value, 6), fit.slope.n
    (1.0, 1.0, 0.4, 6)
    """
    rounds = np.broadcast_to(np.arange(1.0, sizes.shape[1] + 1), sizes.shape)
    known = ~np.isnan(sizes)
    n = int(known.sum())
    if len(np.unique(rounds[known])) < FEWEST_ROUNDS:
        nothing = missing(f"{plural(n, 'points')}: fewer than two rounds", method="least-squares slope", n=n)
        return Line(slope=nothing, intercept=NAN, r2=replace(nothing, method="R2"))
    fit = linregress(rounds[known], sizes[known])
    flat = bool(np.ptp(sizes[known]) == 0)
    interval = None if resamples is None else _slope_interval(rounds, sizes, resamples, level)
    slope = Estimate(
        value=float(fit.slope),
        n=n,
        interval=interval,
        standard_error=float(fit.stderr),
        method="least-squares slope",
        seed=resamples.seed if resamples and interval else "",
        reason="" if interval or resamples is None else "no variation between personas: no interval",
    )
    r2 = missing("the sizes do not vary", method="R2", n=n) if flat else None
    return Line(
        slope=slope,
        intercept=float(fit.intercept),
        r2=r2 or Estimate(value=float(fit.rvalue) ** 2, n=n, method="R2"),
    )


def removal_shares(states: States) -> FloatArray:
    """Return, per persona and step, the share of unique attributes of round t that are absent at round t + 1.

    Parameters
    ----------
    states : sequence (personas) of sequences (rounds) of sets, or None where a memory is missing

    Returns
    -------
    ndarray of float, shape (personas, rounds - 1)
        `nan` where either memory is missing or the earlier one is empty.

    Examples
    --------
    >>> removal_shares([[{"a", "b"}, {"b", "c"}, {"b", "c"}, None]]).tolist()
    [[0.5, 0.0, nan]]
    """
    steps = max((len(row) - 1 for row in states), default=0)
    shares = np.full((len(states), steps), NAN)
    for persona, row in enumerate(states):
        for step, (before, after) in enumerate(pairwise(row)):
            shares[persona, step] = _removed(before, after)
    return shares


def revision_rate(states: States, resamples: Resamples | None = None, *, level: float = LEVEL) -> Estimate:
    """Return the revision rate: removal shares averaged over steps, then over personas.

    Parameters
    ----------
    states
        As in `removal_shares`.
    resamples, level
        As in `growth`.

    Returns
    -------
    Estimate
        `n` is the number of personas with at least one step.

    Examples
    --------
    >>> revision_rate([[{"a", "b"}, {"b"}, {"b"}], [{"a"}, {"a"}, None]]).value
    0.125
    """
    shares = removal_shares(states)
    known = ~np.isnan(shares)
    per_persona = divided(np.where(known, shares, 0.0).sum(axis=1), known.sum(axis=1))
    return _mean(per_persona, resamples, "revision rate", NO_STEPS, level)


def retraction(states: States, contradicted: Sequence[tuple[int, int, Attributes]]) -> Retraction:
    """Return whether contradicted inferences were retracted, beside the removal of all others in the same step.

    Parameters
    ----------
    states
        As in `removal_shares`.
    contradicted : sequence of (persona, round, attributes)
        Persona's position, the 1-based round whose message contradicts, and the attributes that it contradicts.
        Cases whose memory before or after that round is missing are left out.

    Examples
    --------
    >>> memory = [{"city person", "likes tea"}, {"city person"}, {"hikes"}]
    >>> found = retraction([memory], [(0, 2, {"city person"})])
    >>> found.held, found.retracted, found.retracted_by_end, found.other_held, found.other_removed
    (1, 0, 1, 1, 1)
    """
    held = at_once = by_end = other_held = other_removed = 0
    for persona, turn, attributes in contradicted:
        before, after = states[persona][turn - 2], states[persona][turn - 1]
        if turn < FEWEST_ROUNDS or before is None or after is None:
            continue
        last = next(state for state in reversed(states[persona]) if state is not None)
        bearing, others = before & attributes, before - attributes
        held, at_once, by_end = held + len(bearing), at_once + len(bearing - after), by_end + len(bearing - last)
        other_held, other_removed = other_held + len(others), other_removed + len(others - after)
    return Retraction(
        held=held,
        retracted=at_once,
        retracted_by_end=by_end,
        other_held=other_held,
        other_removed=other_removed,
    )


def normalised(attribute: str) -> str:
    r"""Return an attribute's text for comparison across rounds: case folded, white space collapsed.

    Examples
    --------
    >>> normalised("  Urban   Professional\tlifestyle ")
    'urban professional lifestyle'
    """
    return " ".join(attribute.casefold().split())


def sharing_words(attributes: Iterable[str], statement: str, *, least: int = 2) -> frozenset[str]:
    """Return the attributes that share at least `least` words with a statement: a screen for `retraction`.

    Words of four letters or more match when one begins with the other. The screen is lexical: it misses paraphrases
    and lets through accidents, so print what it found beside any figure that rests on it.

    Examples
    --------
    >>> memory = ["prefers nature trips", "likes trips", "is outdoorsy by nature"]
    >>> sorted(sharing_words(memory, "is an outdoors person who enjoys nature trips"))
    ['is outdoorsy by nature', 'prefers nature trips']
    """
    wanted = _words(statement)
    return frozenset(
        attribute
        for attribute in attributes
        if sum(any(_alike(word, other) for other in _words(attribute)) for word in wanted) >= least
    )


def _words(text: str) -> set[str]:
    """Distinct words that are long enough to mean something."""
    return {word for word in re.findall(r"\w+", text.casefold()) if len(word) >= SHORTEST_WORD}


def _alike(word: str, other: str) -> bool:
    """Whether one word begins with the other."""
    return word.startswith(other) or other.startswith(word)


def _removed(before: Attributes | None, after: Attributes | None) -> float:
    """Share of `before` that is gone."""
    return NAN if not before or after is None else len(before - after) / len(before)


def _mean(values: FloatArray, resamples: Resamples | None, method: str, empty: str, level: float) -> Estimate:
    """Mean over personas that have a value, with an interval over personas if asked for."""
    known = ~np.isnan(values)
    n = int(known.sum())
    if not n:
        return missing(empty, method=method)
    if resamples is None:
        return Estimate(value=float(values[known].mean()), n=n, method=method)
    totals = np.where(known, values, 0.0)
    return ratio_estimates(totals, known.astype(np.int64), resamples, method=method, level=level)[()]


def _slope_interval(rounds: FloatArray, sizes: FloatArray, resamples: Resamples, level: float) -> Interval | None:
    """Percentile interval of the slope over resampled personas, from each persona's sums."""
    known = ~np.isnan(sizes)
    x, y = np.where(known, rounds, 0.0), np.where(known, sizes, 0.0)
    parts = np.stack([known.sum(axis=1), x.sum(axis=1), y.sum(axis=1), (x * x).sum(axis=1), (x * y).sum(axis=1)], 1)
    n, sx, sy, sxx, sxy = resamples.sums(parts)
    return resamples.interval(divided(n * sxy - sx * sy, n * sxx - sx * sx), level)
