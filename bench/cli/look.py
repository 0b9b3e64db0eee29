"""`mirage inspect`, `errors`, `retry`, `watch`: look at requests, at failures, and at a run from another terminal."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.status import running
from bench.text import one_line, printable
from engine.errors import ErrorClass
from engine.money import dollars

if TYPE_CHECKING:
    from engine.failures import Place, Retried, Troubles
    from engine.inspection import RequestView
    from engine.request import Request
    from engine.status import Status

# The words of `mirage status`.
_READ = {"complete": "read", "truncated": "read, truncated", "": "not read"}
_OUTCOME = {"completed": "answered", "open": "under way", "in_doubt": "in doubt", "error": "went wrong"}
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def errors(store: Path, sweep: str, *, as_json: bool) -> int:
    """Show what went wrong in STORE by cause: what failed for good, what cannot be read, what was tried again.

    Every cause has the key of an example for `mirage inspect`.
    """
    import msgspec

    from bench.loop import run_loop
    from engine.failures import read_errors

    found = run_loop(read_errors(store, sweep))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    for line in _troubles(found, store):
        click.echo(line)
    return 0


@click.command()
@STORE
@click.option("--sweep", default="", help="Name of the sweep; the newest by default.")
@click.option("--class", "kind", default="", help=f"Only requests that failed so: {', '.join(ErrorClass)}.")
def retry(store: Path, sweep: str, kind: str) -> int:
    """Plan requests of STORE that have failed for good once more; `mirage run` then sends them."""
    from bench.loop import run_loop
    from bench.reviving import revive
    from engine.errors import UserError

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
    """Watch a sweep in STORE from another terminal, for as long as a run is on; it does not disturb the run."""
    from bench.loop import run_loop
    from engine.status import read_status

    while True:
        found = run_loop(read_status(store, sweep))
        click.echo(_watched(found))
        # A process that has begun no run yet may be loading a model for one.
        working = found.running is not None or (found.holder is not None and not found.holder.sweep)
        if once or not working:
            click.echo(running(found))
            return 0
        time.sleep(every)


def _watched(found: "Status") -> str:
    """Return one look as one line."""
    from bench.cli.status import batch_counts

    requests, mark = found.requests, " · SIMULATED" if found.simulated else ""
    batches = f"  batches {batch_counts(found.batches)}" if found.batches.by_stage else ""
    doubt = f"  in doubt {requests.in_doubt}" if requests.in_doubt else ""
    return (
        f"{time.strftime('%H:%M:%S')}  {one_line(found.sweep)}{mark}  read {requests.read}/{requests.total}"
        f"  planned {requests.planned}  on the wire {max(0, requests.sent - found.batches.requests)}{doubt}{batches}"
        f"  failed {requests.failed}  spent {dollars(found.money.spent_nano)}"
        f"  reserved {dollars(found.money.reserved_nano)}"
    )


# ----- what went wrong


def _troubles(found: "Troubles", store: Path) -> Iterator[str]:
    """Yield totals, then the causes: what is lost first, then what was made good by trying again."""
    mark = " · SIMULATED" if found.simulated else ""
    named = f"sweep {one_line(found.sweeps[0])}" if len(found.sweeps) == 1 else f"{len(found.sweeps)} sweeps"
    yield f"errors of {named}{mark}"
    if not (found.failed or found.unreadable or found.retried):
        yield f"nothing went wrong, in {_count(found.requests, 'request')}"
        return
    yield (
        f"of {_count(found.requests, 'request')} {found.failed_requests:,} failed for good;"
        f" {_count(found.unreadable_cells, 'answer')} cannot be read;"
        f" {_count(found.retried_attempts, 'attempt')} went wrong or were not run, and were or will be made again"
    )
    if found.failed:
        yield "\nfailed for good (`mirage retry` plans them once more)"
        for failed in found.failed:
            yield from _cause(failed.error_class, failed.status, failed.error)
            yield _where(_count(failed.requests, "request"), failed.places, store, failed.example)
    if found.unreadable:
        yield "\nanswers that cannot be read"
        for unreadable in found.unreadable:
            yield f"  {one_line(unreadable.reason or 'no reason is known', most=300)}"
            yield _where(_count(unreadable.cells, "answer"), unreadable.places, store, unreadable.example)
    if found.retried:
        yield "\ntried again"
        for retried in found.retried:
            yield from _cause(retried.error_class, retried.status, retried.error)
            yield _where(_since(retried), retried.places, store, retried.example)


def _cause(kind: str, status: int | None, error: str) -> Iterator[str]:
    # What a provider says often begins with the status.
    number = f" {status}" if status and not error.startswith(f"HTTP {status}") else ""
    yield f"  {one_line(kind)}{number}: {one_line(error, most=300)}"


def _since(retried: "Retried") -> str:
    waiting = retried.attempts - retried.answered - retried.failed
    if retried.answered == retried.attempts:
        return f"{_count(retried.attempts, 'attempt')}, {'all ' * (retried.answered > 1)}answered since"
    parts = [f"{retried.answered:,} answered since"] if retried.answered else []
    parts += [f"{retried.failed:,} failed since"] if retried.failed else []
    parts += [f"{waiting:,} to be tried again"] if waiting else []
    return f"{_count(retried.attempts, 'attempt')} ({', '.join(parts)})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _where(number: str, places: "Sequence[Place]", store: Path, example: str) -> str:
    by_model: dict[str, list[str]] = {}
    for place in places:
        by_model.setdefault(place.alias, []).append(f"{one_line(place.stage)} {place.number:,}")
    models = "; ".join(f"{one_line(alias)}: {', '.join(stages)}" for alias, stages in by_model.items())
    return f"    {number}; {models}; e.g. `mirage inspect {store} {example[:12]}`"


# ----- one request


def _show_request(found: "RequestView") -> None:
    from rich.rule import Rule

    from bench.wide import wide_console

    console = wide_console()
    whole = not console.is_terminal  # programs get texts without line breaks of ours
    mark = "  SIMULATED" if found.simulated else ""
    console.print(
        f"request {found.key}{mark}  {found.state}  {one_line(found.alias)} = {one_line(found.request.model)}",
        soft_wrap=True,
    )
    console.print(_asked(found.request), soft_wrap=True)
    for message in found.request.messages:
        console.print(Rule(message.role.value))
        console.print(printable(message.content), soft_wrap=whole)
    if found.text is not None:
        console.print(Rule(f"reply ({found.finish})"))
        console.print(printable(found.text), soft_wrap=whole)
        console.print(Rule("cost"))
        tokens = f"{found.input_tokens:,} tokens in ({found.cached_tokens:,} cached), {found.output_tokens:,} out"
        console.print(
            f"{dollars(found.cost_nano or 0)}  {tokens}  {found.latency_ms} ms  {one_line(found.model_echo or '')}"
        )
    console.print(Rule("attempts"))
    for line in _attempts(found):
        console.print(line, soft_wrap=True)
    for cell in found.cells:
        console.print(Rule(f"{one_line(cell.sweep)} · {cell.stage} · {one_line(cell.coords)}"))
        console.print(f"{_READ.get(cell.status or '', cell.status or 'not read')} {one_line(cell.reason)}".rstrip())
        if cell.changes:
            console.print(f"changed parameters: {one_line(cell.changes)}")
        if cell.reading:
            console.print(printable(cell.reading), soft_wrap=whole)


def _asked(request: "Request") -> str:
    """Return how the answer was to be made: what was said, each with its name."""
    import msgspec

    # What is left to the provider is not in it.
    said = msgspec.to_builtins(request.decoding)
    parts = [f"{name} {_value(value)}" for name, value in said.items()]
    return ", ".join((*parts, f"sample {request.sample}"))


def _value(value: object) -> str:
    """Return a setting as it stands in a sweep file."""
    import msgspec

    return one_line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), most=300)


def _attempts(found: "RequestView") -> Iterator[str]:
    for attempt in found.attempts:
        error = one_line(f"{attempt.error_class}: {attempt.error}", most=300) if attempt.error_class else ""
        outcome = _OUTCOME.get(attempt.outcome, attempt.outcome)
        yield f"{attempt.number}  {outcome}  {dollars(attempt.cost_nano)}  {error}".rstrip()
        if attempt.batch is not None:
            remote = f", {one_line(attempt.remote_id)} at its provider" if attempt.remote_id else ""
            yield f"   line {attempt.line} of batch {attempt.batch} ({attempt.batch_stage}{remote})"
