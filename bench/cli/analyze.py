"""`mirage analyze`: the tables of a sweep, with intervals; CSV and JSON on request."""

from pathlib import Path
from typing import Literal

import click

from bench.cli.exits import Exit
from bench.text import one_line

_RESAMPLES = 10_000


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--sweep", default="", help="Name of the sweep; needed when the store holds several.")
@click.option("--judge", default="", help="Alias of the judge whose labels count; the sweep's first by default.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for CSV, JSON and LaTeX files, one each a table.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("--rows", type=click.Choice(["csv", "parquet"]), multiple=True, help="Write the sweep's rows there too.")
@click.option("--against", type=click.Choice(["paper"]), help="Set the published values beside ours.")
@click.option(
    "--truncated",
    type=click.Choice(["use", "missing"]),
    default="use",
    show_default=True,
    help="Use the claims of answers that were cut short, or take such answers for missing.",
)
@click.option("--resamples", type=click.IntRange(100, 1_000_000), default=_RESAMPLES, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the bootstrap.")
def analyze(
    store: Path,
    sweep: str,
    judge: str,
    out: Path | None,
    rows: tuple[Literal["csv", "parquet"], ...],
    against: Literal["paper"] | None,
    truncated: Literal["use", "missing"],
    *,
    as_json: bool,
    resamples: int,
    seed: int,
) -> int:
    """Print the tables of the sweep in STORE with their 95 % intervals; every table prints its n.

    Works while the sweep runs: what is missing is counted, never guessed. `python -m analysis STORE` does the same
    without the rest of the program.
    """
    from analysis.cli import Options
    from analysis.cli import analyze as print_tables

    code = print_tables(
        Options(
            store=store,
            sweep=sweep,
            judge=judge,
            out=out,
            json=as_json,
            rows=rows,
            against=against or "",
            truncated=truncated == "use",
            resamples=resamples,
            seed=seed,
        )
    )
    if out is not None and code == Exit.COMPLETE:
        click.echo(f"tables: {one_line(str(out))}", err=as_json)
    # That command has codes of its own; here all that a user can mend is one.
    return int(Exit.COMPLETE if code == Exit.COMPLETE else Exit.USAGE)
