"""`mirage batches`: what is in batches, and orders about them: cancel, harvest, attach."""

import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import Exit
from bench.text import one_line

if TYPE_CHECKING:
    from engine.events import Notice
    from engine.inspection import BatchRow

SWEEP_FILE = click.option(
    "--sweep", "file", type=click.Path(dir_okay=False, path_type=Path),
    help="Any sweep file to take accounts from, instead of those of the file that the store keeps.",
)  # fmt: skip
_HOUR = 3600
_MINUTE = 60


class StoreFirst(click.Group):
    """A group whose flags may also stand behind its argument, as those of every other command may."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move flags that follow STORE in front of it."""
        before = list(takewhile(lambda each: each.startswith("-"), args))
        rest = args[len(before) :]
        flags = list(takewhile(lambda each: each.startswith("-"), rest[1:]))
        return super().parse_args(ctx, [*before, *flags, *rest[:1], *rest[1 + len(flags) :]])


@click.group(cls=StoreFirst, invoke_without_command=True, subcommand_metavar="[ORDER [ARGS]...]")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def batches(context: click.Context, store: Path, *, everything: bool, as_json: bool) -> int:
    """List the batches under way in STORE, or give an order about them.

    Looking and cancelling disturb no run; harvest and attach need the store for themselves.
    """
    if context.invoked_subcommand is not None:
        return 0
    import msgspec

    from bench.loop import run_loop
    from engine.batch.stage import LIVE
    from engine.inspection import is_simulated, read_batches

    found = [row for row in run_loop(read_batches(store)) if everything or row.stage in LIVE]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    mark = " · SIMULATED" if run_loop(is_simulated(store)) else ""
    if found:
        _show(found, f"batches{mark}")
    else:
        hint = "" if everything else "; --all also lists those that are over"
        click.echo(f"no batches{'' if everything else ' under way'}{mark}{hint}")
    return 0


@batches.command("cancel")
@click.argument("batch_id", metavar="ID", type=int)
@SWEEP_FILE
@click.pass_context
def cancel_batch(context: click.Context, batch_id: int, file: Path | None) -> int:
    """Order the provider of batch ID to stop it.

    What it has finished is paid for and kept: the run that is on, or the next one, reads it, and sends the rest again
    as the sweep file says (`leftovers`). Needs the account's key.
    """
    from bench.batchorders import cancel
    from bench.loop import run_loop

    remote = run_loop(cancel(_store(context), batch_id, file))
    status = f"; its provider says: {one_line(remote.status, most=80)}" if remote is not None else ""
    click.echo(f"the cancellation of batch {batch_id} is ordered{status}")
    return 0


@batches.command("harvest")
@SWEEP_FILE
@click.pass_context
def harvest_batches(context: click.Context, file: Path | None) -> int:
    """Look once at every batch, read what has ended, and end, without sending anything.

    New questions that follow from the answers are planned and wait for `mirage run`. Needs the accounts' keys.
    """
    from bench.batchorders import harvest
    from bench.loop import run_loop

    found = run_loop(harvest(_store(context), file, listen=_say))
    for each in found:
        failed = f", {each.failed} failed for good" if each.failed else ""
        click.echo(
            f"{one_line(each.sweep)}: {each.read} batches are over, {each.answers} answers read{failed};"
            f" {each.open} batches are still under way"
        )
        if each.stopped:
            click.echo(one_line(each.stopped, most=300), err=True)
    if not found:
        click.echo("no batches under way")
    return int(Exit.STOPPED if any(each.stopped for each in found) else Exit.COMPLETE)


@batches.command("attach")
@click.argument("batch_id", metavar="ID", type=int)
@click.argument("remote_id")
@SWEEP_FILE
@click.pass_context
def attach_batch(context: click.Context, batch_id: int, remote_id: str, file: Path | None) -> int:
    """Say that batch ID, whose creation was not answered, is REMOTE_ID at its provider.

    It is taken over only if its marker proves it or, where the provider keeps no marker, the ids of its rows once it
    has ended. Needs the account's key.
    """
    from bench.batchorders import attach
    from bench.loop import run_loop

    remote = run_loop(attach(_store(context), batch_id, remote_id, file))
    status = one_line(remote.status, most=80)
    click.echo(f"batch {batch_id} is {one_line(remote.id)} ({status}); `mirage run` or harvest goes on with it")
    return 0


def _store(context: click.Context) -> Path:
    assert context.parent is not None  # noqa: S101 - a subcommand has one
    store = context.parent.params["store"]
    assert isinstance(store, Path)  # noqa: S101 - as its argument says
    return store


def _say(notice: "Notice") -> None:
    click.echo(one_line(notice.text, most=300), err=True)


def _show(rows: "Sequence[BatchRow]", title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bench.wide import print_table

    now, sweeps = time.time() * 1000, {row.sweep for row in rows}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    table.add_column("id", justify="right", no_wrap=True)
    for name in (*(("sweep",) if len(sweeps) > 1 else ()), "model", "stages", "state"):
        table.add_column(name, no_wrap=name != "stages")
    for name in ("requests", "done"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("remote id", no_wrap=True)
    table.add_column("status")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("reason")
    for row in rows:
        name = (one_line(row.sweep),) if len(sweeps) > 1 else ()
        table.add_row(str(row.id), *name, *_cells(row, now))
    # The id, by which one gives orders, the model, the state and the remote id stay.
    print_table(table, drop=("reason", "age", "done", "status", "stages", "requests"))


def _cells(row: "BatchRow", now: float) -> tuple[str, ...]:
    begun, ended = row.created_ms or row.built_ms, row.closed_ms or now
    return (
        one_line(f"{row.provider}/{row.model}"),
        one_line(", ".join(row.stages)),
        row.stage.replace("_", " "),
        f"{row.requests or row.open:,}",
        f"{row.completed:,}",
        one_line(row.remote_id),
        one_line(row.status, most=40) + (", cancelled by us" if row.cancelled else ""),
        _age(max(0.0, ended - begun) / 1000),
        one_line(row.reason, most=200),
    )


def _age(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // _HOUR}:{whole % _HOUR // _MINUTE:02d}:{whole % _MINUTE:02d}"
