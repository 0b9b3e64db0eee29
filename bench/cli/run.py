"""`mirage run`: run a sweep, or go on with it, then print its tables."""

import sys
from pathlib import Path

import click

from bench.cli.exits import EXITS, OF_OUTCOME, Exit
from bench.run import Prepared, Result, make_folder, prepare, run_sweep
from bench.runlog import RunLog
from bench.sweepfile import load_sweep
from engine.events import Notice
from engine.money import usd


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), help="SQLite file to use instead of the sweep file's.")
@click.option("--tables/--no-tables", default=True, help="Print and write the tables at the end.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def run(sweep: Path, store: Path | None, *, tables: bool, plain: bool) -> int:
    """Run the sweep described in the TOML file SWEEP, or go on where it stopped.

    Every call is paid for once: what the store already holds is not asked again, also after a crash. Ctrl-C stops
    cleanly, twice hangs up on the calls on the wire.
    """
    prepared = prepare(load_sweep(sweep), store=store)
    result = _run(prepared, plain=plain)
    _say_end(prepared, result)
    if tables and result.outcome in {*OF_OUTCOME} and OF_OUTCOME[result.outcome] in {Exit.COMPLETE, Exit.INCOMPLETE}:
        _tables(prepared)
    return int(OF_OUTCOME[result.outcome])


def _run(prepared: Prepared, *, plain: bool) -> Result:
    from rich.console import Console

    from bench.display import Display
    from bench.loop import run_loop

    console = Console(stderr=True, force_terminal=False if plain else None, markup=False)

    async def body() -> Result:
        log: RunLog | None = None
        async with Display(
            console, f"sweep {prepared.manifest.name}", simulated=prepared.manifest.simulated
        ) as display:

            def listen(notice: Notice) -> None:
                display.listen(notice)
                if log is not None:
                    log.write(notice)

            make_folder(prepared.store_path)
            log = RunLog(prepared.store_path)
            try:
                return await run_sweep(prepared, listen=listen, watch=display.watch)
            finally:
                log.close()

    for note in prepared.manifest.notes:
        click.echo(f"note: {note}", err=True)
    return run_loop(body())


def _say_end(prepared: Prepared, result: Result) -> None:
    click.echo(
        f"{EXITS[OF_OUTCOME[result.outcome]]}. {result.snapshot.calls} calls in this run, "
        f"{usd(result.snapshot.spent_nano)} spent."
    )
    if result.snapshot.errors:
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(result.snapshot.errors.items()))
        click.echo(f"calls that went wrong in this run: {counts}; `mirage errors {prepared.store_path}` says what")
    click.echo(f"store: {prepared.store_path}")
    sys.stdout.flush()


def _tables(prepared: Prepared) -> None:
    from analysis.cli import Options, analyze

    out = prepared.store_path.with_name(prepared.store_path.stem + "-tables")
    analyze(Options(store=prepared.store_path, sweep=prepared.manifest.name, out=out))
    click.echo(f"tables: {out}")
