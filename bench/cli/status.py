"""`mirage status`: how far a sweep is and what it has cost, also while it runs."""

from collections.abc import Iterator
from pathlib import Path

import click

from bench.text import one_line
from engine.money import dollars
from engine.status import Batches, Status, read_status


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--sweep", default="", help="Name of the sweep; the newest by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(store: Path, sweep: str, *, as_json: bool) -> int:
    """Show how far the sweep in STORE is, without disturbing it.

    Every planned request is in one of the states planned, sent, in_doubt, settled, read and failed; they add up. Those
    that wait in a batch are among the sent ones. What a killed run left on the wire is in doubt: the next run counts
    it as billed and asks again.
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


def title(found: Status) -> str:
    """Return the sweep's name, with what must stand beside every figure of a simulated one."""
    return f"sweep {one_line(found.sweep)}" + (" · SIMULATED" if found.simulated else "")


def running(found: Status) -> str:
    """Return who works on the sweep."""
    holder = found.holder
    if holder is None:
        return "no run is on"
    process = f"process {holder.pid}" if holder.pid else "a process"
    if found.running is not None:
        return f"running: {process}"
    other = f" runs sweep {one_line(holder.sweep)}" if holder.sweep else " has the store, and no run begun"
    return f"no run of this sweep is on; {process}{other}"


def _show(found: Status) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    from bench.wide import print_table, wide_console

    console = wide_console()
    console.print(title(found), style="bold", soft_wrap=True)
    for line in _lines(found):
        console.print(line, soft_wrap=True)
    if found.by_stage:
        table = Table(Column("stage", no_wrap=True), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in ("cells", "read", "unreadable", "truncated", "failed", "pending"):
            table.add_column(name, justify="right", no_wrap=True)
        for stage, count in found.by_stage.items():
            done = (count.total, count.read, count.unreadable, count.truncated, count.failed)
            table.add_row(one_line(stage), *(f"{number:,}" for number in (*done, count.pending + count.settled)))
        print_table(table, drop=("truncated",), console=console)
    if found.other_sweeps:
        names = ", ".join(one_line(name) for name in found.other_sweeps)
        console.print(f"other sweeps in this store: {names}", soft_wrap=True)


def _lines(found: Status) -> Iterator[str]:
    requests, money = found.requests, found.money
    yield running(found)
    states = ("read", "settled", "sent", "in_doubt", "planned", "failed")
    counts = ", ".join(f"{getattr(requests, state):,} {state}" for state in states)
    yield f"requests: {counts} = {requests.total:,}"
    if requests.failed_by_class:
        classes = ", ".join(f"{one_line(kind)} {number:,}" for kind, number in requests.failed_by_class.items())
        yield f"failed:   {classes}"
    assumed = f" ({dollars(money.assumed_nano)} of it assumed)" if money.assumed_nano else ""
    yield f"money:    {dollars(money.spent_nano)} spent{assumed}, {dollars(money.reserved_nano)} reserved"
    assumed = f" ({found.assumed_tokens:,} of them assumed)" if found.assumed_tokens else ""
    yield f"tokens:   {found.tokens:,}{assumed}"
    if found.batches.by_stage:
        yield f"batches:  {batch_counts(found.batches)}; `mirage batches` lists them"
    yield f"calls:    {_calls(found)}"


def _calls(found: Status) -> str:
    """Return what became of every call; it adds up."""
    calls = found.calls
    ends = {
        "answered": calls.answered,
        "went wrong": calls.failed,
        "taken back, not run and not charged": calls.taken_back,
        "cut off on the wire and assumed billed": calls.assumed,
        "in doubt (cut off on the wire, made again by the next run)": calls.in_doubt,
        "under way": calls.under_way,
    }
    said = ", ".join(f"{number:,} {end}" for end, number in ends.items() if number)
    return f"{said} = {calls.total:,}" if said else "none"
