"""`mirage run`: run a sweep, or go on with it, then print its tables."""

import os
import sys
from pathlib import Path

import click

from bench.cli.exits import EXITS, OF_OUTCOME, Exit
from bench.design import left_out
from bench.run import Prepared, Result, prepare_file, run_sweep
from bench.runlog import RunLog
from bench.simulated import marked
from bench.text import one_line
from engine.events import Notice
from engine.money import dollars


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), help="SQLite file to use instead of the sweep file's.")
@click.option("--tables/--no-tables", default=True, help="Print and write the tables at the end.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def run(sweep: Path, store: Path | None, *, tables: bool, plain: bool) -> int:
    """Run the sweep described in the TOML file SWEEP, or go on where it stopped.

    Every call is paid for once: what the store already holds is not asked again, also after a crash. Ctrl-C stops
    cleanly, twice hangs up on the calls on the wire.

    The store is what the file calls `store`, taken from the current folder, else runs/NAME.sqlite there. A run that
    begins a new store says where; one that finds the file's store beside the file, or above it, does not begin another.
    """
    prepared = prepare_file(sweep, store=store)
    result = _run(prepared, plain=plain)
    _say_end(prepared, result)
    if tables and result.outcome in {*OF_OUTCOME} and OF_OUTCOME[result.outcome] in {Exit.COMPLETE, Exit.INCOMPLETE}:
        _tables(prepared)
    return int(OF_OUTCOME[result.outcome])


def _run(prepared: Prepared, *, plain: bool) -> Result:
    from rich.console import Console

    from bench.display import Display
    from bench.loop import run_loop
    from providers.registry import check_keys

    console = Console(stderr=True, force_terminal=False if plain else None, markup=False)

    async def body() -> Result:
        run = await marked(prepared)
        async with Display(console, f"sweep {run.manifest.name}", simulated=run.manifest.simulated) as display:
            log = RunLog(run.store_path)

            def listen(notice: Notice) -> None:
                display.listen(notice)
                log.write(notice)

            try:
                return await run_sweep(run, listen=listen, watch=display.watch)
            finally:
                log.close()

    check_keys((prepared.catalog.card(alias) for alias in prepared.manifest.models), os.environ)
    for note in (*prepared.manifest.notes, *filter(None, [left_out(prepared.design)])):
        click.echo(f"note: {note}", err=True)
    if not prepared.store_path.exists():
        said = f"new store: {prepared.store_path.absolute()} (this file, run from another folder, has another store)"
        click.echo(one_line(said), err=True)
    return run_loop(body())


def _say_end(prepared: Prepared, result: Result) -> None:
    click.echo(
        f"{EXITS[OF_OUTCOME[result.outcome]]}. {result.snapshot.calls} calls in this run, "
        f"{dollars(result.snapshot.spent_nano)} spent."
    )
    for short in result.snapshot.short:
        click.echo(f"cap of {one_line(str(short))}")
    if result.snapshot.errors:
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(result.snapshot.errors.items()))
        click.echo(f"calls that went wrong in this run: {counts}; `mirage errors {prepared.store_path}` says what")
    click.echo(f"store: {prepared.store_path}")
    sys.stdout.flush()


def _tables(prepared: Prepared) -> None:
    from analysis.cli import Options, analyze

    out = prepared.store_path.with_name(prepared.store_path.stem + "-tables")
    # The notes stand above already, where they are seen.
    warned = sys.stdout.isatty() and sys.stderr.isatty()
    analyze(Options(store=prepared.store_path, sweep=prepared.manifest.name, out=out, warned=warned))
    click.echo(f"tables: {out}")
    click.echo(f"store: {prepared.store_path}")
