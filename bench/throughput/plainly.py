"""The tables' core as one would write it straight down with pandas and scipy: what the analysis is compared with.

Reads the same views, counts claims row by row, and resamples personas by taking their rows; nothing is clever here, and
nothing is slow on purpose. Needs pandas, which only development installs.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.stats import rankdata, spearmanr

PLACE: Final = ["model", "persona", "task", "sample"]
_QUERY: Final = "SELECT model, persona, task, sample, labels FROM {view} WHERE state IN ('read', 'truncated')"

Frame = Any


def read_records(path: Path) -> Frame:
    """Return one row per answer with its claims and over-inferred claims, by judge and by self-audit."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        sides = [_counted(connection, view) for view in ("records", "audits")]
    return sides[0].merge(sides[1], on=PLACE, suffixes=("", "_self"))


def oi_rates(records: Frame) -> Mapping[str, float]:
    """Return the OI rate of every model."""
    totals = records.groupby("model")[["over", "claims"]].sum()
    return dict(totals["over"] / totals["claims"])


def rank_correlations(records: Frame) -> Mapping[str, float]:
    """Return Spearman's rho between self-audit and judge OI of every model."""
    return {model: float(spearmanr(*_pair(mine)).statistic) for model, mine in records.groupby("model")}


def resample(records: Frame, count: int, seed: int) -> int:
    """Recompute every statistic of the main tables under `count` resamples of the personas; return how many there are.

    These are shares by model, by task and by both, gaps to the self-audit, rho and AUROC within models.
    """
    rng = np.random.default_rng(seed)
    by_persona = dict(list(records.groupby("persona")))
    names = list(by_persona)
    medians = records.assign(rate=records["over"] / records["claims"]).groupby("model")["rate"].median()
    found = 0
    for _ in range(count):
        drawn = pd.concat([by_persona[name] for name in rng.choice(names, size=len(names))])
        for by in (["model"], ["task"], ["model", "task"]):
            totals = drawn.groupby(by)[["over", "claims", "over_self", "claims_self"]].sum()
            found += len(totals["over"] / totals["claims"] - totals["over_self"] / totals["claims_self"])
        for model, mine in drawn.groupby("model"):
            own, judged = _pair(mine)
            found += not np.isnan(spearmanr(own, judged).statistic)
            found += not np.isnan(_auroc(own, judged > medians[model]))
    return found


def _counted(connection: sqlite3.Connection, view: str) -> Frame:
    frame = pd.read_sql_query(_QUERY.format(view=view), connection)
    labels = frame.pop("labels")
    return frame.assign(claims=labels.str.len(), over=labels.str.count("[SF]"))


def _pair(records: Frame) -> tuple[Frame, Frame]:
    some = records[(records["claims"] > 0) & (records["claims_self"] > 0)]
    return some["over_self"] / some["claims_self"], some["over"] / some["claims"]


def _auroc(scores: Frame, positive: Frame) -> float:
    ranks, above = rankdata(scores), int(positive.sum())
    below = len(positive) - above
    return float((ranks[positive.to_numpy()].sum() - above * (above + 1) / 2) / (above * below))
