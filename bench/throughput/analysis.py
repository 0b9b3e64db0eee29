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
from importlib.util import find_spec
from pathlib import Path
from typing import Final

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
        plain: None where it was left out.
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
    plain_extrapolated_s: float | None
    times_faster: float | None
    agrees: bool
    holds: bool
    load_before: float
    load_after: float


def run_analysis(
    *,
    claims: int = PAPER_CLAIMS,
    plain_resamples: int = PLAIN_RESAMPLES,
    folder: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write a store of about so many claims and measure both ways; it holds whole sweeps of the paper's size.

    `plain_resamples` 0 leaves the plain way out. It is left out, too, where there is no pandas, which only development
    installs.
    """
    before = load()
    if plain_resamples and find_spec("pandas") is None:
        told("the plain way is left out: it needs pandas, which `make setup-dev` installs")
        plain_resamples = 0
    place = Path(tempfile.mkdtemp(prefix="mirage-bench-", dir=folder))
    try:
        store = place / "store.sqlite"
        told("writing a store")
        written = write_store(store, samples=max(round(claims / PAPER_CLAIMS), 1))
        if written != claims:
            told(
                f"{claims:,} claims were asked for; a store holds whole sweeps of {PAPER_CLAIMS:,}: it has {written:,}"
            )
        size = store.stat().st_size / 1e6
        with _one_thread():
            told("all tables")
            ours = _measured(Order(act="ours", store=str(store), resamples=RESAMPLES))
            plain = None
            if plain_resamples:
                told("the plain way")
                plain = _measured(Order(act="plain", store=str(store), resamples=plain_resamples))
    finally:
        shutil.rmtree(place)
    return _report(written, size, ours, plain, before)


def _measured(order: Order) -> Found:
    return in_child("bench.throughput.tabled", order, Found)


def _report(claims: int, size: float, ours: Found, plain: Found | None, before: float) -> Report:
    whole = None if plain is None else _extrapolated(plain, ours.resamples)
    return Report(
        claims=claims,
        store_mb=round(size, 1),
        ours=ours,
        plain=plain,
        plain_extrapolated_s=None if whole is None else round(whole, 1),
        times_faster=None if whole is None else round(whole / (ours.load_s + ours.tables_s), 1),
        agrees=plain is None or (_same(ours.oi, plain.oi) and _same(ours.rho, plain.rho)),
        holds=_holds(claims, ours),
        load_before=before,
        load_after=load(),
    )


def _extrapolated(plain: Found, resamples: int) -> float:
    """Return what all of the plain way would take with so many resamples."""
    return plain.load_s + plain.tables_s - plain.resampling_s + plain.resampling_s / plain.resamples * resamples


def promised(claims: int) -> str:
    """Say what is promised for so many claims."""
    most = f"under {MOST_MB / 1024:.0f} GB"
    if claims <= PAPER_CLAIMS:
        return f"within {MOST_S:.0f} s in all, shares within {MOST_RESAMPLING_S:g} s, {most}"
    return f"within {MOST_LARGE_S:.0f} s in all, {most}"


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
