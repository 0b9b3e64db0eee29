"""`mirage report`: one HTML page with a sweep's tables, figures and responses; it works without a network."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from analysis.report.writing import Written

_RESAMPLES = 10_000
_EXPLORED = 600
_ALL = "all"
_EXTRA = frozenset({"jinja2", "markupsafe", "matplotlib"})
_MEGABYTE = 1_000_000


def _number_or_all(_context: click.Context, _option: click.Parameter, value: str) -> int | None:
    if value == _ALL:
        return None
    if value.isascii() and value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is neither a whole number nor `{_ALL}`")


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--sweep", default="", help="Name of the sweep; needed when the store holds several.")
@click.option("--judge", default="", help="Alias of the judge whose labels count; the sweep's first by default.")
@click.option("--out", type=click.Path(path_type=Path), help="HTML file; beside the store by default.")
@click.option(
    "--truncated",
    type=click.Choice(["use", "missing"]),
    default="use",
    show_default=True,
    help="Use the claims of answers that were cut short, or take such answers for missing.",
)
@click.option("--resamples", type=click.IntRange(100, 1_000_000), default=_RESAMPLES, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the bootstrap and the sample.")
@click.option(
    "--explore",
    metavar="N|all",
    default=str(_EXPLORED),
    show_default=True,
    callback=_number_or_all,
    help="How many responses to embed, evenly over models and tasks.",
)
def report(
    store: Path,
    sweep: str,
    judge: str,
    out: Path | None,
    truncated: str,
    *,
    resamples: int,
    seed: int,
    explore: int | None,
) -> int:
    """Write the sweep in STORE as one HTML page: tables with intervals, figures, responses beside the evidence.

    The page holds everything, asks no server for anything, and can be printed. Works while the sweep runs.
    """
    from analysis.context import NothingToReportError, Settings, UnknownJudgeError
    from analysis.export import ExportError
    from analysis.load import StoreError
    from engine.errors import UserError

    write = _writer()
    settings = Settings(judge=judge, truncated=truncated == "use", resamples=resamples, seed=seed)
    try:
        written = write(store, out or _beside(store), settings, sweep=sweep, explore=explore)
    except (StoreError, UnknownJudgeError, NothingToReportError, ExportError) as error:
        raise UserError(str(error)) from error
    click.echo(
        f"report: {written.path}, {written.size / _MEGABYTE:.1f} MB,"
        f" {written.shown:,} of {written.total:,} responses embedded"
    )
    return 0


def _beside(store: Path) -> Path:
    """Return where the page goes if nobody says; also for a folder of rows, however it is written."""
    place = store if store.name.strip(".") else store.resolve()
    return place.parent / f"{place.stem}.report.html"


def _writer() -> Callable[..., "Written"]:
    """Import what draws and lays out.

    Raises:
        UserError: the `report` extra is not installed.
    """
    from engine.errors import UserError

    try:
        from analysis.report.writing import write
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        what = f"the report needs {package}, which is not installed"
        raise UserError(what, mend=f"pip install {package}") from error
    return write
