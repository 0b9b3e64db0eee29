"""`mirage reparse`: read the stored answers again with the readers of this version."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import Exit
from bench.text import one_line

if TYPE_CHECKING:
    from bench.reparse import Reparsed


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--sweep", default="", help="Only this sweep.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def reparse(store: Path, sweep: str, *, as_json: bool) -> int:
    """Read every answer in STORE again with the readers of this version; no network, no model, nothing is paid.

    Says how many readings came out otherwise. New follow-ups are planned for `mirage run`; those that were planned
    before are kept with their answers.
    """
    import msgspec

    from bench.loop import run_loop
    from bench.reparse import reparse as read_again

    found = run_loop(read_again(store, sweep))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for each in found:
            _show(each)
    return int(Exit.DEFECT if any(each.defects for each in found) else Exit.COMPLETE)


def _show(found: "Reparsed") -> None:
    mark = " · SIMULATED" if found.simulated else ""
    changed = sum(change.cells for change in found.changes)
    click.echo(f"sweep {one_line(found.sweep)}{mark}: {found.answers} answers read again, {changed} came out otherwise")
    for change in found.changes:
        same = " (other content)" if change.before == change.after else ""
        click.echo(f"  {one_line(change.stage)}: {change.cells} {change.before} -> {change.after}{same}")
    if found.planned:
        listed = ", ".join(f"{count} {one_line(stage)}" for stage, count in found.planned.items())
        click.echo(f"  new follow-ups planned: {listed}; `mirage run` sends them")
    if found.kept:
        click.echo(f"  follow-ups kept as they were planned: {sum(found.kept.values())}")
    if found.reworded:
        click.echo(f"  of these, {found.reworded} would be asked in other words today")
    if found.unasked:
        click.echo(f"  {found.unasked} follow-ups would not be asked today; they and their answers are kept")
    if found.outside:
        click.echo(f"  {found.outside} answers belong to personas, tasks or scripts that the sweep no longer has: left")
    if found.defects:
        click.echo(f"  {found.defects} answers left, the reader failed: {one_line(found.defect, most=300)}")
