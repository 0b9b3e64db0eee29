"""`mirage rehearse`: try a whole sweep, crashes included, against the simulator before it costs anything."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import EXITS

if TYPE_CHECKING:
    from bench.rehearsal import Verdict


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--kills", type=click.IntRange(0, 1000), default=3, show_default=True, help="Times to kill -9 the run.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of answers, faults and kills.")
@click.option("--latency", type=click.FloatRange(0), default=50.0, show_default=True, help="Median milliseconds.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="[runs/NAME-rehearsal]")
@click.option("--tables/--no-tables", default=True, help="Print and write the tables at the end.")
@click.option("--json", "as_json", type=click.Path(dir_okay=False, path_type=Path), help="Write the verdict here, too.")
def rehearse(
    sweep: Path, kills: int, seed: int, latency: float, folder: Path | None, as_json: Path | None, *, tables: bool
) -> int:
    """Run the sweep file SWEEP against a simulator of its providers, with faults, and kill -9 it on the way.

    Needs no key and costs nothing. The right answer is known there: at the end every claim is compared with it, and the
    simulator's bill with the ledger. Everything that it prints is marked SIMULATED. Caps hold as in a run: one that is
    too small ends the rehearsal with exit code 3, and what was answered before is judged. The folder of an earlier
    rehearsal of the same name is replaced.
    """
    from bench.rehearsal import Plan, rehearse
    from bench.sweepfile import load_sweep

    loaded = load_sweep(sweep)
    place = folder or Path("runs") / f"{loaded.sweep.name}-rehearsal"
    plan = Plan(folder=place, kills=kills, seed=seed, latency_ms=latency)
    verdict = rehearse(loaded, plan, lambda text: click.echo(f"rehearsal: {text}", err=True))
    if tables:
        _tables(verdict, place)
    _show(verdict)
    if as_json is not None:
        _write(verdict, as_json)
    return int(verdict.code)


def _tables(verdict: "Verdict", folder: Path) -> None:
    from analysis.cli import Options, analyze

    analyze(Options(store=Path(verdict.store), sweep=verdict.sweep, out=folder / "tables"))


def _show(verdict: "Verdict") -> None:
    from rich.table import Table

    from bench.text import one_line
    from bench.wide import print_table, wide_console
    from engine.money import usd

    console = wide_console()
    known, money = verdict.comparison, verdict.money
    table = Table(title=f"rehearsal of {one_line(verdict.sweep)} · SIMULATED")
    for head in ("what", "expected", "found"):
        table.add_column(head, justify="left" if head == "what" else "right")
    read = verdict.requests - verdict.unfinished - verdict.failed
    found = sum(row.found for row in known.rows)
    equal = sum(row.known == row.found for row in known.rows)
    table.add_row("requests read", f"{verdict.requests:,}", f"{read:,}")
    table.add_row("judged claims", f"{known.claims:,}", f"{found:,}")
    table.add_row("counts by model, task and label", f"{len(known.rows):,}", f"{equal:,} equal")
    for kind, number in known.compared.items():
        table.add_row(f"{kind} readings", f"{number:,}", f"{number - known.different.get(kind, 0):,} equal")
    table.add_row("answers and their charges", f"{money.completions:,}", f"{money.matched:,} equal to the nano-dollar")
    table.add_row("answers", usd(money.completed_nano), usd(money.ledger_nano - money.assumed_nano))
    table.add_row("bill", "", f"{money.charges:,} charges  {usd(money.billed_nano)}")
    table.add_row("charged for answers that a fault spoiled", "", f"{money.spoiled:,}  {usd(money.spoiled_nano)}")
    table.add_row("charged twice", f"at most {money.cut_off:,}", f"{money.twice:,}  {usd(money.twice_nano)}")
    table.add_row("charged twice by batch", "0", f"{money.batched_twice:,}  of {money.batched:,} charges")
    table.add_row("counted as spent without an answer", "", f"{money.assumed:,}  {usd(money.assumed_nano)}")
    print_table(table, console=console)
    for line in (*known.examples, *(f"no equal charge for {each}" for each in money.wrong)):
        console.print(one_line(line, most=300))
    console.print(f"killed {verdict.kills} times; {verdict.seconds:.0f} s; store {verdict.store}, bill {verdict.bill}")
    console.print(_verdict(verdict), style="bold", soft_wrap=True)
    for cap in verdict.reached:
        console.print(f"cap of {one_line(cap)}", soft_wrap=True)


def _verdict(verdict: "Verdict") -> str:
    if verdict.holds:
        return "everything is as it must be"
    if verdict.code == verdict.ended:
        return f"the rehearsed run was not finished: {EXITS[verdict.code]}. What it did until then is as it must be"
    return "NOT everything is as it must be"


def _write(verdict: "Verdict", path: Path) -> None:
    import msgspec

    from engine.errors import UserError

    found = {"simulated": True, "holds": verdict.holds, "verdict": verdict}
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    except OSError as error:
        raise UserError(f"the verdict cannot be written: {error.strerror}", where=str(path)) from error
