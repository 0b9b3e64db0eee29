"""Memory trajectories of the accum stage: integer counts whose means, slope, fit and removal are the published ones.

A deterministic local search (fixed seed per model); pure, used only when the population is calibrated.
"""

from collections.abc import Sequence
from random import Random

from bench.simulator.tables import AccumRow, Trajectory

ROUNDS = 8
STEPS = 60_000
SLOPE_TOLERANCE = 0.004
R2_TOLERANCE = 0.004
REMOVAL_TOLERANCE = 0.0004
_CENTRED = tuple(t - (ROUNDS + 1) / 2 for t in range(1, ROUNDS + 1))
_SXX = sum(x * x for x in _CENTRED)


def regression(paths: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return slope and R2 of the ordinary least-squares line through all points of `paths` against the round."""
    points = [value for path in paths for value in path]
    mean = sum(points) / len(points)
    slope = sum(x * value for path in paths for x, value in zip(_CENTRED, path, strict=True)) / (_SXX * len(paths))
    total = sum((value - mean) ** 2 for value in points)
    return slope, slope * slope * _SXX * len(paths) / total if total else 0.0


def removal_rate(paths: Sequence[Trajectory]) -> float:
    """Return the share of a round's attributes absent in the next, averaged over rounds, then over personas."""
    rates = [
        sum(gone / count for gone, count in zip(path.removed, path.counts, strict=False)) / (ROUNDS - 1)
        for path in paths
    ]
    return sum(rates) / len(rates)


def trajectories(target: AccumRow, name: str) -> tuple[Trajectory, Trajectory]:
    """Return two personas' trajectories that meet `target`.

    Raises:
        ValueError: the search found none.
    """
    rng = Random(f"accum/{name}")  # noqa: S311 - a reproducible search, nothing secret
    counts = _counts(target, rng)
    removed = _removed(target, counts, rng)
    first, second = (Trajectory(tuple(c), tuple(r)) for c, r in zip(counts, removed, strict=True))
    return first, second


def _counts(target: AccumRow, rng: Random) -> list[list[int]]:
    paths = _start(target)
    best = _count_cost(paths, target)
    for _ in range(STEPS):
        if best == 0:
            return paths
        trial = [list(path) for path in paths]
        _disturb(trial, rng)
        cost = _count_cost(trial, target)
        if cost <= best:
            paths, best = trial, cost
    raise ValueError(f"no counts found for {target}")


def _start(target: AccumRow) -> list[list[int]]:
    step = (target.last - target.first) / (ROUNDS - 1)
    mean = [target.first + step * t for t in range(ROUNDS)]
    low = [int(value) for value in mean]
    high = [round(2 * value) - below for value, below in zip(mean, low, strict=True)]
    return [low, high]


def _disturb(paths: list[list[int]], rng: Random) -> None:
    """Move one inner point, or push the two personas apart or together in one round (which keeps the mean)."""
    t = rng.randrange(ROUNDS)
    who, step = rng.randrange(2), rng.choice((-2, -1, 1, 2))
    paths[who][t] += step
    if t in (0, ROUNDS - 1) or rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
        paths[1 - who][t] -= step


def _count_cost(paths: list[list[int]], target: AccumRow) -> float:
    if min(min(path) for path in paths) < 3:  # noqa: PLR2004 - a memory never shrinks to nothing
        return float("inf")
    slope, r2 = regression(paths)
    return max(0.0, abs(slope - target.slope) - SLOPE_TOLERANCE) + max(0.0, abs(r2 - target.r2) - R2_TOLERANCE)


def _removed(target: AccumRow, counts: list[list[int]], rng: Random) -> list[list[int]]:
    share = target.removal / 100
    gone = [[max(_least(path, t), round(share * path[t])) for t in range(ROUNDS - 1)] for path in counts]
    best = _removal_cost(gone, counts, share)
    for _ in range(STEPS):
        if best == 0:
            return gone
        trial = [list(path) for path in gone]
        for _ in range(rng.randint(1, 3)):
            who, t = rng.randrange(2), rng.randrange(ROUNDS - 1)
            trial[who][t] = min(max(trial[who][t] + rng.choice((-1, 1)), _least(counts[who], t)), counts[who][t])
        cost = _removal_cost(trial, counts, share)
        if cost <= best:
            gone, best = trial, cost
    raise ValueError(f"no removals found for {target}")


def _least(path: Sequence[int], t: int) -> int:
    """Return how many must go so that the next count can be reached by adding only."""
    return max(0, path[t] - path[t + 1])


def _removal_cost(gone: list[list[int]], counts: list[list[int]], share: float) -> float:
    paths = [Trajectory(tuple(c), tuple(g)) for c, g in zip(counts, gone, strict=True)]
    return max(0.0, abs(removal_rate(paths) - share) - REMOVAL_TOLERANCE)
