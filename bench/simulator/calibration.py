"""Derives the population's integer counts from the published tables; run once, the result is kept as data.

    python -m bench.simulator.calibration        writes data/counts.json

Order of the derivation, each step exact in the margins named first:

1. Per model: claims, grounded, stereotype, fabricated (Table 1, nearest integers that also round to its OI column).
2. Claims by model and task: exact in Table 1's claims per model and Table 5's claims per task. The published tables
   contradict each other (Table 10 weighted by Table 5 does not give Table 1), so every model's task mix is tilted by
   its Table 10 row until the remaining contradiction is the same number of points for all models.
3. Over-inference by model and task: Table 10 shifted by that number of points, exact in Table 1.
4. By model and group: Table 7, with group sizes moved from one third just so far that Table 1 is met.
5. Model x task x group: iterative proportional fitting of steps 2 to 4, then controlled rounding per model.
6. Stereotype out of over-inference and grounded out of the rest: fitted to Table 3's and Appendix E's tendencies, exact
   in Table 1.

Self-audit, probe and accum counts follow Tables 2, 6, 4 and 8; figures under `ours` in paper.toml are our choice.
"""

from collections.abc import Sequence
from math import ceil, floor
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import spearmanr

from bench.simulator.paths import trajectories
from bench.simulator.population import Population
from bench.simulator.rounding import Real, Whole, controlled, fit, largest_remainder
from bench.simulator.tables import (
    DATA,
    PERSONAS,
    Counts,
    JudgeRow,
    Labels,
    ModelRow,
    Paper,
    Probe,
    SelfAudit,
    load_paper,
)

HALF_DIGIT = 0.05
TILT_STEPS = 400
TILT_RATE = 0.004
FOLLOW_STEPS = 14
PROBE_SHARES = (0.46, 0.44, 0.05, 0.05)


def derive(paper: Paper, follows: dict[str, float]) -> Counts:
    """Return the counts that follow from `paper`; `follows` gives each model's `SelfAudit.follows`."""
    claims = task_group_labels(paper)
    return Counts(
        claims=claims,
        audits={name: _self_audit(row, claims[name], follows[name]) for name, row in paper.model.items()},
        probes={name: _probe(row) for name, row in paper.model.items()},
        accum={name: trajectories(row.accum, name) for name, row in paper.model.items()},
    )


def model_labels(row: JudgeRow) -> Labels:
    """Return Table 1's nearest integers: every share, and the over-inference rate, rounds to what is printed.

    Raises:
        ValueError: no integers do.
    """
    n = row.claims
    best = min(
        (
            (abs(s - n * row.stereotype / 100) + abs(f - n * row.fabricated / 100), s, f)
            for s in _rounding_to(row.stereotype, n)
            for f in _rounding_to(row.fabricated, n)
            if s + f in _rounding_to(row.over_inference, n)
        ),
        default=None,
    )
    if best is None:
        raise ValueError(f"no counts out of {n} round to {row}")
    grounded = round(n * row.grounded / 100)
    return Labels(grounded, n - grounded - best[1] - best[2], best[1], best[2])


def task_group_labels(paper: Paper) -> dict[str, dict[str, dict[str, Labels]]]:
    """Return labels by model, task and group (steps 1 to 6 of the module's text)."""
    totals = {name: model_labels(row.judge) for name, row in paper.model.items()}
    tasks = claims_by_task(paper)
    over_tasks = _over_by_task(paper, tasks, totals)
    claims: list[Whole] = []
    over: list[Whole] = []
    for place, (name, row) in enumerate(paper.model.items()):
        sizes, group_over = _groups(row, totals[name])
        cells = controlled(np.outer(tasks[place], sizes) / totals[name].claims)
        rates = np.outer(over_tasks[place] / tasks[place], group_over / sizes)
        claims.append(cells)
        seed = np.asarray(cells * rates, dtype=np.float64)
        over.append(controlled(fit(seed, over_tasks[place].astype(float), group_over.astype(float))))
    stereotype = _part(np.array(over), [t.stereotype for t in totals.values()], *_stereotype_tendencies(paper))
    rest = np.array(claims) - np.array(over)
    grounded = _part(rest, [t.grounded for t in totals.values()], *_grounded_tendencies(paper))
    parts = np.stack([grounded, rest - grounded, stereotype, np.array(over) - stereotype], axis=-1)
    return {
        name: {
            task: {group: Labels(*(int(v) for v in parts[m, t, g])) for g, group in enumerate(paper.groups)}
            for t, task in enumerate(paper.tasks)
        }
        for m, name in enumerate(paper.model)
    }


def claims_by_task(paper: Paper) -> Whole:
    """Return claims by model (rows) and task (columns), exact in Table 1's and Table 5's claims (step 2)."""
    claims = np.array([row.judge.claims for row in paper.model.values()], dtype=float)
    columns = np.array([paper.task[task].claims for task in paper.tasks], dtype=float)
    rates = np.array([row.task for row in paper.model.values()])
    target = np.array([row.judge.over_inference for row in paper.model.values()])
    tilt = np.zeros(len(claims))
    for _ in range(TILT_STEPS):
        mix = fit(columns * np.exp(tilt[:, None] * (rates - rates.mean(axis=1, keepdims=True))), claims, columns)
        gap = target - (rates * mix).sum(axis=1) / claims
        tilt += TILT_RATE * (gap - gap.mean())
    return controlled(mix)


def _over_by_task(paper: Paper, tasks: Whole, totals: dict[str, Labels]) -> Whole:
    rows = []
    for place, (name, row) in enumerate(paper.model.items()):
        wanted = tasks[place] * np.array(row.task) / 100
        shift = (totals[name].over - wanted.sum()) / totals[name].claims
        rows.append(largest_remainder(list(wanted + shift * tasks[place]), totals[name].over))
    return np.array(rows)


def _groups(row: ModelRow, total: Labels) -> tuple[Whole, Whole]:
    """Return claims and over-inferred claims by group (step 4)."""
    rates = np.array(row.group)
    off = 100 * total.over / total.claims - rates.mean()
    centred = rates - rates.mean()
    sizes = np.array(largest_remainder(list(1 / 3 + off * centred / (centred**2).sum()), total.claims))
    return sizes, np.array(largest_remainder(list(sizes * rates), total.over))


def _part(whole: Whole, totals: Sequence[int], task_share: Real, group_share: Real) -> Whole:
    """Return how much of `whole` (model x task x group) carries a label: exact per model, near the given tendencies."""
    rows = np.array(totals, dtype=float)
    by_task, by_group = whole.sum(axis=2), whole.sum(axis=1)
    tasks = fit(by_task * task_share, rows, _scaled(by_task.sum(axis=0), task_share, rows.sum()))
    groups = fit(by_group * group_share, rows, _scaled(by_group.sum(axis=0), group_share, rows.sum()))
    parts = []
    for m in range(len(rows)):
        task_margin = np.array(largest_remainder(list(tasks[m]), int(rows[m])), dtype=float)
        group_margin = np.array(largest_remainder(list(groups[m]), int(rows[m])), dtype=float)
        parts.append(
            controlled(_bounded_fit(whole[m] * np.outer(task_share, group_share), whole[m], task_margin, group_margin))
        )
    return np.array(parts)


def _scaled(sizes: Whole, shares: Real, total: float) -> Real:
    """Return `sizes` times `shares`, every share moved by one common odds factor so that the sum is `total`."""
    low, high = 1e-3, 1e3
    for _ in range(200):
        factor = (low * high) ** 0.5
        moved = sizes * factor * shares / (1 - shares + factor * shares)
        low, high = (factor, high) if moved.sum() < total else (low, factor)
    return np.asarray(moved * total / moved.sum())


def _bounded_fit(seed: Real, bound: Whole, rows: Real, columns: Real) -> Real:
    """Fit `seed` to the margins; raises when a cell would pass its bound."""
    fitted = fit(seed, rows, columns)
    if (fitted > bound + HALF_DIGIT).any():
        raise ValueError("a label would need more claims than its cell has")
    return fitted


def _stereotype_tendencies(paper: Paper) -> tuple[Real, Real]:
    tasks = np.array(
        [paper.task[t].shares[2] / (paper.task[t].shares[2] + paper.task[t].shares[3]) for t in paper.tasks]
    )
    rows = [paper.group[group] for group in paper.groups]
    return tasks, np.array([row.stereotype / (row.stereotype + row.fabricated) for row in rows])


def _grounded_tendencies(paper: Paper) -> tuple[Real, Real]:
    tasks = np.array(
        [paper.task[t].shares[0] / (paper.task[t].shares[0] + paper.task[t].shares[1]) for t in paper.tasks]
    )
    return tasks, np.full(len(paper.groups), tasks.mean())


def _rounding_to(percent: float, n: int) -> range:
    """Return the integers whose percentage of `n` is printed as `percent` with one decimal."""
    return range(ceil(n * (percent - HALF_DIGIT) / 100), floor(n * (percent + HALF_DIGIT) / 100 - 1e-9) + 1)


def _self_audit(row: ModelRow, cells: dict[str, dict[str, Labels]], follows: float) -> SelfAudit:
    judged = sum(label.claims for groups in cells.values() for label in groups.values())
    claims = round(judged * row.ours.self_to_judge * row.audits.records / 900)
    return SelfAudit(row.audits.records, claims, round(claims * row.self_rate / 100), follows)


def _probe(row: ModelRow) -> Probe:
    claims = PERSONAS * row.ours.probe_claims
    labels = largest_remainder(PROBE_SHARES, claims)
    return Probe(Labels(*labels), round(claims * row.ours.probe_error / 100))


def fit_follows(paper: Paper, counts: Counts) -> dict[str, float]:
    """Return each model's `SelfAudit.follows` that brings the rank correlation of its records nearest to Table 6."""
    return {name: _follow(name, row.audits.spearman, counts) for name, row in paper.model.items()}


def record_spearman(population: Population, model: str) -> float:
    """Return the rank correlation of self-audit and judge rates over the records that have both."""
    place = population.models.index(model)
    pairs = [
        (audit.rate, record.rate)
        for audit, record in zip(population.audits[place], population.records[place], strict=True)
        if audit is not None
    ]
    return float(spearmanr([ours for ours, _ in pairs], [judged for _, judged in pairs]).statistic)


def _follow(model: str, wanted: float, counts: Counts) -> float:
    low, high = 0.0, 1.0
    for _ in range(FOLLOW_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if record_spearman(_with(counts, model, middle), model) < wanted else (low, middle)
    return round((low + high) / 2, 4)


def _with(counts: Counts, model: str, follows: float) -> Population:
    """Return the population of `model` alone, with another `follows`."""
    audit = msgspec.structs.replace(counts.audits[model], follows=follows)
    return Population(Counts({model: counts.claims[model]}, {model: audit}, counts.probes, counts.accum))


def main() -> None:
    """Derive the counts, fit how far self-audits follow the judge, and write the data file."""
    paper = load_paper()
    first = derive(paper, dict.fromkeys(paper.model, 0.5))
    counts = derive(paper, fit_follows(paper, first))
    target = Path(str(DATA / "counts.json"))
    target.write_bytes(msgspec.json.format(msgspec.json.encode(counts), indent=1) + b"\n")


if __name__ == "__main__":
    main()
