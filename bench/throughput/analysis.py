"""`mirage bench analysis`: all tables of a sweep, with 10,000 resamples of the personas, beside plain pandas and scipy.

A store of the wanted size is written from a seed. One process reads it and makes every table on one thread; another
does the core of the same work as one would write it straight down, with few resamples, since it would take too long
with all of them. Processor time counts: other work on the machine moves it less than wall time.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bench.throughput.judged_store import PAPER_CLAIMS, write_store
from bench.throughput.process import in_child, load
from bench.throughput.tabled import Found, Order

RESAMPLES: Final = 10_000
PLAIN_RESAMPLES: Final = 20
MOST_S: Final = 3.0
MOST_RESAMPLING_S: Final = 0.5
MOST_LARGE_S: Final = 60.0
MOST_MB: Final = 2048.0
AGREEING: Final = 1e-9
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both, and their ratio.

    Attributes:
        plain_extrapolated_s: what the plain way would take with as many resamples as ours: measured per resample, times
            their number. An extrapolation, not a measurement.
        times_faster: that over ours, reading and tables together.
        agrees: both find the same rates and correlations.
        holds: ours keeps within what is promised for this size.
    """

    claims: int
    store_mb: float
    ours: Found
    plain: Found | None
    plain_extrapolated_s: float
    times_faster: float
    agrees: bool
    holds: bool
    load_before: float
    load_after: float


def run(size: int = PAPER_CLAIMS, out: Path | None = None) -> dict[str, Any]:
    """Measure a store of about `size` judged claims, put meanwhile into the folder `out`; return every figure."""
    found = msgspec.to_builtins(run_analysis(claims=size, folder=out))
    return dict(found)


def run_analysis(
    *,
    claims: int = PAPER_CLAIMS,
    plain_resamples: int = PLAIN_RESAMPLES,
    folder: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write a store of about so many claims, measure both ways; `plain_resamples` 0 leaves the plain way out."""
    before = load()
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    try:
        store = place / "store.sqlite"
        told("writing a store")
        written = write_store(store, samples=max(round(claims / PAPER_CLAIMS), 1))
        size = store.stat().st_size / 1e6
        with _one_thread():
            told("all tables")
            ours = _measured(Order(act="ours", store=str(store), resamples=RESAMPLES))
            told("the plain way")
            plain = (
                _measured(Order(act="plain", store=str(store), resamples=plain_resamples)) if plain_resamples else None
            )
    finally:
        shutil.rmtree(place)
    return _report(written, size, ours, plain, before)


def _measured(order: Order) -> Found:
    return in_child("bench.throughput.tabled", order, Found)


def _report(claims: int, size: float, ours: Found, plain: Found | None, before: float) -> Report:
    total = ours.load_s + ours.tables_s
    whole = 0.0
    if plain is not None:
        whole = plain.load_s + plain.tables_s - plain.resampling_s
        whole += plain.resampling_s / plain.resamples * ours.resamples
    return Report(
        claims=claims,
        store_mb=round(size, 1),
        ours=ours,
        plain=plain,
        plain_extrapolated_s=round(whole, 1),
        times_faster=round(whole / total, 1),
        agrees=plain is None or (_same(ours.oi, plain.oi) and _same(ours.rho, plain.rho)),
        holds=_holds(claims, ours),
        load_before=before,
        load_after=load(),
    )


def _holds(claims: int, ours: Found) -> bool:
    small = claims <= PAPER_CLAIMS
    quick = ours.resampling_s <= MOST_RESAMPLING_S or not small
    return quick and ours.load_s + ours.tables_s <= (MOST_S if small else MOST_LARGE_S) and ours.peak_mb <= MOST_MB


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(abs(value - other[name]) <= AGREEING for name, value in one.items())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hold children to one thread, so that processor time is that of one core."""
    kept = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@click.command("analysis")
@click.option("--claims", type=click.IntRange(1), default=PAPER_CLAIMS, show_default=True, help="Judged claims, about.")
@click.option("--plain-resamples", type=click.IntRange(0), default=PLAIN_RESAMPLES, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where the store is put.")
@click.option("--json", "as_json", type=click.Path(dir_okay=False, path_type=Path), help="Write every figure there.")
def analysis_bench(claims: int, plain_resamples: int, folder: Path | None, as_json: Path | None) -> int:
    """Make all tables of a sweep of the paper's size, on one core, beside plain pandas and scipy.

    The store is made up from a seed and marked as simulated. --claims 10000000 takes some minutes and five gigabytes.
    """
    report = run_analysis(
        claims=claims, plain_resamples=plain_resamples, folder=folder, told=lambda text: click.echo(text, err=True)
    )
    for line in described(report):
        click.echo(line)
    if as_json is not None:
        as_json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if report.holds and report.agrees else 1


def described(report: Report) -> Iterator[str]:
    """Yield what a reader wants to know, a line each."""
    ours, plain = report.ours, report.plain
    yield f"{report.claims:,} claims, store of {report.store_mb:,.0f} MB, one core; processor seconds"
    yield (
        f"ours: read {ours.load_s:.2f}, all tables {ours.tables_s:.2f} with {ours.resamples:,} resamples,"
        f" {ours.figures:,} intervals, peak {ours.peak_mb:,.0f} MB; resampling of shares alone {ours.resampling_s:.2f}"
    )
    if plain is not None:
        yield (
            f"plain pandas and scipy: read {plain.load_s:.2f}, core of the tables {plain.tables_s:.2f} with only"
            f" {plain.resamples} resamples and {plain.figures} figures each; with {ours.resamples:,} about"
            f" {report.plain_extrapolated_s:,.0f} (extrapolated), {report.times_faster:,.0f} times ours"
        )
        yield f"the same rates and correlations: {'yes' if report.agrees else 'NO'}"
    busy = f"load {report.load_before:.1f} before, {report.load_after:.1f} after"
    yield f"within what is promised: {'yes' if report.holds else 'NO'}; other work on the machine: {busy}"
