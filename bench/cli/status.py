"""`mirage status`: how far a sweep is and what it has cost, also while it runs."""

from pathlib import Path

import click

from bench.text import one_line
from engine.status import Batches, Status, read_status


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--sweep", default="", help="Name of the sweep; the newest by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(store: Path, sweep: str, *, as_json: bool) -> int:
    """Show how far the sweep in STORE is, without disturbing it.

    Every planned request is in one of the states planned, sent, in_doubt, settled, read and failed; they add up. Those
    that wait in a batch are among the sent ones.
    """
    from bench.loop import run_loop

    found = run_loop(read_status(store, sweep))
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found)
    return 0


def batch_counts(batches: Batches) -> str:
    """Return batches by stage, and the requests that wait in them, as a few words."""
    stages = ", ".join(f"{number} {stage.replace('_', ' ')}" for stage, number in batches.by_stage.items())
    return f"{stages} ({batches.requests:,} requests wait in them)" if batches.requests else stages


def _show(found: Status) -> None:
    from rich.table import Table

    from bench.text import wide_console
    from engine.money import usd

    console = wide_console()
    requests = found.requests
    title = f"sweep {one_line(found.sweep)}" + (" · SIMULATED" if found.simulated else "")
    console.print(title, style="bold")
    states = ("read", "settled", "sent", "in_doubt", "planned", "failed")
    counts = ", ".join(f"{getattr(requests, state)} {state}" for state in states)
    console.print(f"requests: {counts} = {requests.total}")
    if requests.failed_by_class:
        console.print("failed:   " + ", ".join(f"{one_line(kind)} {n}" for kind, n in requests.failed_by_class.items()))
    money = found.money
    assumed = f" ({usd(money.assumed_nano)} of it assumed for {found.assumed_calls} calls cut off on the wire)"
    spent = usd(money.spent_nano) + " spent" + (assumed if found.assumed_calls else "")
    console.print(f"money:    {spent}, {usd(money.reserved_nano)} reserved")
    if found.batches.by_stage:
        console.print(f"batches:  {batch_counts(found.batches)}; `mirage batches` lists them")
    console.print(f"calls:    {found.completions} answered of {found.attempts} sent, {found.tokens:,} tokens")
    table = Table("stage")
    for name in ("cells", "read", "unreadable", "truncated", "failed", "pending"):
        table.add_column(name, justify="right")
    for stage, count in found.by_stage.items():
        cells = (
            count.total,
            count.read,
            count.unreadable,
            count.truncated,
            count.failed,
            count.pending + count.settled,
        )
        table.add_row(one_line(stage), *(str(number) for number in cells))
    console.print(table)
    if found.other_sweeps:
        console.print("other sweeps in this store: " + ", ".join(one_line(name) for name in found.other_sweeps))
