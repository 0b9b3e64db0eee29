"""The frozen results that every statistic returns: a number never travels without its n, its method and its interval.

Too little data is `nan` with a reason, never 0. This module computes nothing and draws nothing at random.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.integer]
BoolArray: TypeAlias = NDArray[np.bool_]
TextArray: TypeAlias = NDArray[np.str_]
Number: TypeAlias = NDArray[np.integer] | NDArray[np.floating]
Alternative: TypeAlias = Literal["two-sided", "less", "greater"]
Index: TypeAlias = int | tuple[int, ...]

LEVEL: Final = 0.95
NAN: Final = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval and how it was made.

    Parameters
    ----------
    low, high : float
        The ends, in the unit of the estimate.
    level : float
        Nominal coverage, 0.95 unless asked otherwise.
    method : str
        How the ends were found, for instance ``"percentile, persona bootstrap"``.
    resamples : int
        Resamples drawn (or enumerated); 0 for a closed formula.
    dropped : int
        Resamples in which the statistic was undefined; they are left out of the percentiles.
    dropped_share : float
        Probability of such a resample: ``dropped / resamples``, or the exact sum where resamples were enumerated.
    """

    low: float
    high: float
    level: float = LEVEL
    method: str
    resamples: int = 0
    dropped: int = 0
    dropped_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One number as it may be published.

    Parameters
    ----------
    value : float
        The estimate; `nan` when there is too little data.
    n : int
        What it rests on, in the unit that the function's documentation names.
    interval : Interval or None
        None where no interval can be given; `reason` then says why.
    standard_error : float
        By formula, in the unit of `value`; `nan` where none is given.
    method : str
        The statistic's name.
    seed : str
        Entropy of the generator behind the interval; empty when no chance was used.
    reason : str
        Why `value` or `interval` is missing, or what was left out; empty when nothing was.

    Examples
    --------
    >>> missing("no claims", method="share")
    Estimate(value=nan, n=0, interval=None, standard_error=nan, method='share', seed='', reason='no claims')
    """

    value: float
    n: int
    interval: Interval | None = None
    standard_error: float = NAN
    method: str
    seed: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PValue:
    """A test's result.

    Parameters
    ----------
    p : float
        The p-value; `nan` when there is too little data.
    statistic : float
        The observed statistic.
    n : int
        Units that the test permutes.
    alternative : {"two-sided", "less", "greater"}
        The alternative hypothesis.
    method : str
        Says whether all permutations were counted or some were drawn.
    permutations : int
        How many were counted or drawn.
    adjusted : float
        `p` after correction for multiplicity; `nan` where none was asked for.
    seed, reason : str
        As in `Estimate`.
    """

    p: float
    statistic: float
    n: int
    alternative: Alternative = "two-sided"
    method: str
    permutations: int = 0
    adjusted: float = NAN
    seed: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimates:
    """Many estimates of one kind, as arrays of one shape; indexing gives an `Estimate`.

    Parameters
    ----------
    value, low, high, standard_error : ndarray of float
        As in `Estimate` and `Interval`; `low` and `high` are `nan` where no interval can be given.
    n, dropped : ndarray of int
        As in `Estimate` and `Interval`.
    reason : ndarray of str
        As in `Estimate`.
    method, interval_method, level, resamples, seed
        Shared by all.
    """

    value: FloatArray
    n: IntArray
    low: FloatArray
    high: FloatArray
    standard_error: FloatArray
    dropped: IntArray
    reason: TextArray
    method: str
    interval_method: str
    level: float = LEVEL
    resamples: int = 0
    seed: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of the arrays."""
        return self.value.shape

    def __getitem__(self, index: Index) -> Estimate:
        """Return one estimate; `index` must name a single element, and is `()` when there is only one."""
        low, high, dropped = float(self.low[index]), float(self.high[index]), int(self.dropped[index])
        interval = Interval(
            low=low,
            high=high,
            level=self.level,
            method=self.interval_method,
            resamples=self.resamples,
            dropped=dropped,
            dropped_share=dropped / self.resamples if self.resamples else 0.0,
        )
        return Estimate(
            value=float(self.value[index]),
            n=int(self.n[index]),
            interval=None if np.isnan(low) or np.isnan(high) else interval,
            standard_error=float(self.standard_error[index]),
            method=self.method,
            seed=self.seed,
            reason=str(self.reason[index]),
        )


def missing(reason: str, *, method: str, n: int = 0) -> Estimate:
    """Return the estimate that says why there is none."""
    return Estimate(value=NAN, n=n, method=method, reason=reason)


def seed_of(rng: np.random.Generator) -> str:
    """Return what a generator was seeded with, so that a printed number can be drawn again.

    Examples
    --------
    >>> seed_of(np.random.default_rng(42))
    '42'
    >>> seed_of(np.random.default_rng(42).spawn(2)[1])
    '42/1'
    """
    sequence = rng.bit_generator.seed_seq
    if not isinstance(sequence, np.random.SeedSequence):
        return ""
    entropy = sequence.entropy
    words = [] if entropy is None else [entropy] if isinstance(entropy, int) else list(entropy)
    return "/".join(str(word) for word in (",".join(map(str, words)), *sequence.spawn_key))
