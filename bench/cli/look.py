"""`mirage inspect`, `errors`, `retry`, `watch`: look at requests, at failures, and at a run from another terminal."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.text import one_line, printable

if TYPE_CHECKING:
    from engine.inspection import RequestView

STORE = click.argument("store", type=click.Path(path_type=Path))


@click.command("inspect")
@STORE
@click.argument("key")
@click.option("--raw", is_flag=True, help="Print the provider's reply as it came, nothing else.")
def inspect_request(store: Path, key: str, *, raw: bool) -> int:
    """Show one request of STORE: prompt, reply, attempts, readings and cost. KEY is the beginning of its key."""
    from bench.loop import run_loop
    from engine.inspection import read_request

    found = run_loop(read_request(store, key))
    if raw:
        click.echo(printable(found.raw.decode("utf-8", "replace")))
    else:
        _show_request(found)
    return 0


@click.command()
@STORE
@click.option("--sweep", default="", help="Only this sweep.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def errors(store: Path, sweep: str, *, as_json: bool) -> int:
    """Show what went wrong in STORE, grouped by class and cause, with the key of an example for `mirage inspect`."""
    import msgspec

    from bench.loop import run_loop
    from engine.inspection import read_errors

    groups = run_loop(read_errors(store, sweep))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(groups), indent=2).decode())
        return 0
    if not groups:
        click.echo("nothing went wrong")
        return 0
    for group in groups:
        status = f" {group.status}" if group.status else ""
        click.echo(f"{group.error_class}{status}: {one_line(group.error, most=300)}")
        click.echo(
            f"    {one_line(group.alias)}, {one_line(group.stage)}: {group.attempts} attempts, "
            f"{group.failed} requests failed for good; e.g. `mirage inspect {store} {group.example[:12]}`"
        )
    return 0


@click.command()
@STORE
@click.option("--sweep", default="", help="Name of the sweep; the newest by default.")
@click.option(
    "--class", "kind", default="", help="Only requests that failed so: transient, rate, bad_request, content, gone."
)
def retry(store: Path, sweep: str, kind: str) -> int:
    """Plan requests of STORE that have failed for good once more; `mirage run` then sends them."""
    from bench.loop import run_loop
    from bench.reviving import revive
    from engine.errors import ErrorClass, UserError

    if kind and kind not in {each.value for each in ErrorClass}:
        raise UserError(f"there is no error class `{kind}`", where="--class", mend=f"one of {', '.join(ErrorClass)}")
    revived = run_loop(revive(store, sweep, ErrorClass(kind) if kind else None))
    click.echo(f"{revived} requests are planned again; `mirage run` sends them")
    return 0


@click.command()
@STORE
@click.option("--sweep", default="", help="Name of the sweep; the newest by default.")
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once.")
def watch(store: Path, sweep: str, *, every: float, once: bool) -> int:
    """Watch a sweep in STORE from another terminal; it does not disturb the run."""
    from bench.cli.status import batch_counts
    from bench.loop import run_loop
    from engine.money import usd
    from engine.status import read_status

    while True:
        found = run_loop(read_status(store, sweep))
        requests, batched = found.requests, found.batches.requests
        batches = f"  batches {batch_counts(found.batches)}" if found.batches.by_stage else ""
        on_wire = max(0, requests.sent - batched)
        click.echo(
            f"{time.strftime('%H:%M:%S')}  {one_line(found.sweep)}  read {requests.read}/{requests.total}"
            f"  planned {requests.planned}  on the wire {on_wire}{batches}  failed {requests.failed}"
            f"  spent {usd(found.money.spent_nano)}  reserved {usd(found.money.reserved_nano)}"
        )
        if once or found.running is None:
            return 0
        time.sleep(every)


def _show_request(found: "RequestView") -> None:
    from rich.rule import Rule

    from bench.text import wide_console
    from engine.money import usd

    console = wide_console()
    console.print(f"request {found.key}  {found.state}  {one_line(found.alias)} = {one_line(found.request.model)}")
    console.print(f"decoding {found.request.decoding}  sample {found.request.sample}")
    for message in found.request.messages:
        console.print(Rule(message.role.value))
        console.print(printable(message.content))
    if found.text is not None:
        console.print(Rule(f"reply ({found.finish})"))
        console.print(printable(found.text))
        console.print(Rule("cost"))
        tokens = f"{found.input_tokens} tokens in ({found.cached_tokens} cached), {found.output_tokens} out"
        console.print(
            f"{usd(found.cost_nano or 0)}  {tokens}  {found.latency_ms} ms  {one_line(found.model_echo or '')}"
        )
    console.print(Rule("attempts"))
    for attempt in found.attempts:
        error = one_line(f"{attempt.error_class}: {attempt.error}", most=300) if attempt.error_class else ""
        console.print(f"{attempt.number}  {attempt.outcome}  {usd(attempt.cost_nano)}  {error}".rstrip())
        if attempt.batch is not None:
            remote = f", {one_line(attempt.remote_id)} at its provider" if attempt.remote_id else ""
            console.print(f"   line {attempt.line} of batch {attempt.batch} ({attempt.batch_stage}{remote})")
    for cell in found.cells:
        console.print(Rule(f"{one_line(cell.sweep)} · {cell.stage} · {one_line(cell.coords)}"))
        console.print(f"{cell.status or 'not read'} {one_line(cell.reason)}")
        if cell.changes:
            console.print(f"changed parameters: {one_line(cell.changes)}")
        if cell.reading:
            console.print(printable(cell.reading))
