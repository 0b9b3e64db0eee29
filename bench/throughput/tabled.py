"""The two sides of `mirage bench analysis`, each in a process of its own: all our tables, and the plain way."""

import time
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from analysis import rates
from analysis.context import Settings, prepare
from analysis.estimates import Estimate
from analysis.frames import Value
from analysis.load import load
from analysis.resampling import draw_resamples
from analysis.tables import report_of
from bench.throughput.process import answer, peak_mb

AXES: Final[tuple[tuple[rates.Axis, ...], ...]] = (("model",), ("task",), ("model", "task"), ())


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do with the store."""

    act: Literal["ours", "plain"]
    store: str
    resamples: int
    seed: int = 0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a child found.

    Attributes:
        load_s, tables_s: processor time to read the store, and to make all tables (plain: the core of them).
        resampling_s: of that, drawing resamples and all shares, differences and their intervals; plain: all resampling.
        wall_s: reading and tables by the clock on the wall.
        oi, rho: OI rate and within-model Spearman's rho by model, to compare the two.
        figures: estimates with an interval.
    """

    load_s: float
    tables_s: float
    resampling_s: float
    wall_s: float
    resamples: int
    peak_mb: float
    oi: dict[str, float]
    rho: dict[str, float]
    figures: int


async def _child(order: Order) -> Found:
    return (_ours if order.act == "ours" else _plain)(Path(order.store), order.resamples, order.seed)


def _ours(store: Path, resamples: int, seed: int) -> Found:
    begun, start = time.perf_counter(), time.process_time()
    data = load(store)
    loaded = time.process_time()
    context = prepare(data, Settings(resamples=resamples, seed=seed))
    report = report_of(context)
    done, wall = time.process_time(), time.perf_counter() - begun
    cells = [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, Estimate)]
    by_model = {name: report.table(name) for name in ("leaderboard", "within_model")}
    names = context.labels
    return Found(
        load_s=round(loaded - start, 3),
        tables_s=round(done - loaded, 3),
        resampling_s=round(_resampling(context.judged, context.audited, resamples, seed), 3),
        wall_s=round(wall, 3),
        resamples=context.resamples.count,
        peak_mb=round(peak_mb(), 1),
        oi={name: _value(by_model["leaderboard"].row(name)["oi"]) for name in names},
        rho={name: _value(by_model["within_model"].row(name)["rho"]) for name in names},
        figures=sum(cell.interval is not None for cell in cells),
    )


def _resampling(judged: rates.Totals, audited: rates.Totals, resamples: int, seed: int) -> float:
    """Return the processor time to draw resamples anew and to make all shares and gaps with their intervals."""
    start = time.process_time()
    drawn = draw_resamples(len(judged), resamples, np.random.default_rng(seed))
    for by in AXES:
        rates.share_estimates(judged, drawn, by=by)
    rates.share_estimates(audited, drawn)
    rates.gap_estimates(judged, audited, drawn)
    rates.oi_macro(judged, drawn)
    return time.process_time() - start


def _value(cell: Value) -> float:
    return cell.value if isinstance(cell, Estimate) else float("nan")


def _plain(store: Path, resamples: int, seed: int) -> Found:
    # Only this child needs pandas, which only development installs.
    from bench.throughput.plainly import oi_rates, rank_correlations, read_records, resample  # noqa: PLC0415

    begun, start = time.perf_counter(), time.process_time()
    records = read_records(store)
    loaded = time.process_time()
    oi, rho = oi_rates(records), rank_correlations(records)
    counted = time.process_time()
    figures = resample(records, resamples, seed) // max(resamples, 1)
    done, wall = time.process_time(), time.perf_counter() - begun
    return Found(
        load_s=round(loaded - start, 3),
        tables_s=round(done - loaded, 3),
        resampling_s=round(done - counted, 3),
        wall_s=round(wall, 3),
        resamples=resamples,
        peak_mb=round(peak_mb(), 1),
        oi={name: float(rate) for name, rate in oi.items()},
        rho=dict(rho),
        figures=figures,
    )


if __name__ == "__main__":
    answer(Order, _child)
