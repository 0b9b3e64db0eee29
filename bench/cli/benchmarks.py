"""`mirage bench`: benchmarks, each with a table on the screen and, with `--json FILE`, every figure in a file.

Nothing here calls a provider, but for `providers`, which has a module of its own: the other side is a server of this
program on the same machine. Figures of a busy machine are worth less, so every table says how busy it was.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.cli.exits import Exit
from bench.cli.main import LazyGroup

if TYPE_CHECKING:
    import msgspec

Command = TypeVar("Command", bound=Callable[..., Any])

_NUMBERS = click.IntRange(1)


class Benchmarks(LazyGroup):
    """The benchmarks by name; a module is imported when its benchmark is named."""

    _homes: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "engine": ("bench.cli.benchmarks", "engine"),
            "limits": ("bench.cli.benchmarks", "limits"),
            "kills": ("bench.cli.benchmarks", "kills"),
            "batch": ("bench.cli.batch_benchmarks", "batch"),
            "scale": ("bench.cli.benchmarks", "scale"),
            "analysis": ("bench.cli.benchmarks", "analysis"),
            "local": ("bench.cli.benchmarks", "local"),
            "providers": ("bench.cli.providers", "providers"),
        }
    )


@click.group("bench", cls=Benchmarks)
def bench() -> None:
    """Measure the program itself: its own work per call, its use of rate limits, crashes, size, its tables.

    But for `providers`, no provider is called and nothing is paid: what answers is a process of this program on this
    machine.
    """


def measured(command: Command) -> Command:
    """Give a benchmark the options that all of them have."""
    file, place = click.Path(dir_okay=False, path_type=Path), click.Path(file_okay=False, exists=True, path_type=Path)
    command = click.option("--json", "as_json", type=file, help="Write every figure to this file, too.")(command)
    return click.option("--folder", type=place, help="Where stores are put meanwhile; the disk counts.")(command)


@click.command()
@click.option("--calls", type=_NUMBERS, default=5000, show_default=True, help="Measured calls a case.")
@click.option("--repeats", type=_NUMBERS, default=3, show_default=True, help="Runs a case; the cheapest counts.")
@click.option("--latency", "latencies", type=click.IntRange(0), multiple=True, help="Milliseconds. [0 and 200]")
@click.option("--concurrency", "concurrencies", type=_NUMBERS, multiple=True, help="Calls at a time. [100 and 500]")
@measured
def engine(
    calls: int,
    repeats: int,
    latencies: tuple[int, ...],
    concurrencies: tuple[int, ...],
    as_json: Path | None,
    folder: Path | None,
) -> int:
    """Measure the engine's own processor time per call, durable commits included, beside bare clients.

    The floor is httpx over aiohttp's transport without any engine, in the same run, against the same server.
    """
    from bench.throughput.engine import CONCURRENCIES, LATENCIES, run_cases

    report = run_cases(
        calls=calls,
        repeats=repeats,
        latencies=latencies or LATENCIES,
        concurrencies=concurrencies or CONCURRENCIES,
        folder=folder,
        told=tell,
    )
    rows = [
        (
            f"{case.latency_ms} ms",
            str(case.concurrency),
            case.client,
            f"{case.cpu_s_per_1000:.3f}",
            f"{case.ratio_to_floor:.2f}",
            f"{case.requests_per_s:,.0f}",
            f"{case.share_of_ideal:.0%}" if case.ideal_per_s else "",
            f"{case.peak_mb:.0f}",
        )
        for case in report.cases
    ]
    heads = ("latency", "at a time", "client", "CPU s / 1,000", "to floor", "requests/s", "of ideal", "MB")
    show_figures("the engine's own work per call", heads, rows, report.load_before, report.load_after)
    return end_benchmark("engine", report, as_json)


@click.command()
@click.option("--short", is_flag=True, help="Two short cases instead of all.")
@measured
def limits(as_json: Path | None, folder: Path | None, *, short: bool) -> int:
    """Measure how much of a rate limit is used, and how many calls are told to slow down.

    Limits from 60 to 30,000 requests a minute, token limits and limits on calls at once, given or learned from
    headers; takes about ten minutes.
    """
    from bench.throughput.limits import cases, describe, run_cases

    report = run_cases(cases(bounded=short), folder=folder, told=tell)
    rows = [
        (
            describe(found.case),
            f"{found.share:.1%}",
            f"{found.calls:,}",
            f"{found.throttled:,}",
            f"{found.throttled_share:.2%}",
            f"{found.steady_throttled:,}",
        )
        for found in report.found
    ]
    heads = ("limit", "used in steady state", "calls", "got a 429", "share", "in steady state")
    show_figures("the use of rate limits · SIMULATED provider", heads, rows, report.load_before, report.load_after)
    return end_benchmark("limits", report, as_json)


@click.command()
@click.option("--kills", "times", type=click.IntRange(0), default=200, show_default=True)
@click.option("--calls", type=click.IntRange(10), default=20_000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of faults and instants.")
@click.option("--mode", type=click.Choice(("stream", "batch")), default="stream", show_default=True)
@measured
def kills(times: int, calls: int, seed: int, mode: str, as_json: Path | None, folder: Path | None) -> int:
    """Kill -9 a sweep under faults again and again, resume it, and let the provider's bill say what was repeated.

    Nothing may be lost, and nothing repeated but calls that were on the wire when the process died. By batch, over all
    providers that have batches and with kills aimed between any two steps, nothing at all may be repeated.
    """
    if mode == "batch":
        from bench.cli.batch_benchmarks import batch_kills

        return batch_kills(times, calls, seed, as_json, folder)
    from bench.throughput.kills import run_kills
    from engine.money import dollars

    report = run_kills(kills=times, calls=calls, seed=seed, folder=folder, told=tell)
    rows = [
        ("planned calls", f"{report.calls:,}", ""),
        ("kills", f"{report.kills:,}", f"median life {report.life_s:.2f} s"),
        ("completed", f"{report.completed:,}", ""),
        ("failed", f"{report.failed:,}", "refused for good by a fault"),
        ("lost", f"{report.lost:,}", "must be 0"),
        ("billed twice", f"{report.billed_twice:,}", dollars(report.billed_twice_nano)),
        ("on the wire at kills", f"{report.on_the_wire_at_kills:,}", "the most that may be billed twice"),
        ("engine's estimate", f"{report.engine_estimate_of_double_bills:,}", dollars(report.engine_estimate_nano)),
        ("billed for nothing", f"{report.billed_for_nothing:,}", "answers that a fault spoiled"),
        ("bill", dollars(report.billed_nano), "the provider's"),
        ("ledger", dollars(report.ledger_nano), "the engine's, what it can only assume included"),
        ("agree to the nano-dollar", "yes" if report.exact else "NO", ""),
    ]
    heads = ("what", "number", "")
    show_figures("a sweep that is killed · SIMULATED provider", heads, rows, report.load_before, report.load_after)
    return end_benchmark("kills", report, as_json, holds=report.holds)


@click.command()
@click.option("--requests", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--send", type=click.IntRange(100), default=50_000, show_default=True, help="Requests sent on resuming.")
@measured
def scale(requests: int, send: int, as_json: Path | None, folder: Path | None) -> int:
    """Plan and resume very many requests; memory stays flat, sending starts at once.

    Takes about five minutes and two gigabytes for a million requests.
    """
    from bench.throughput.scale import MOST_MB, MOST_READY_S, MOST_STATUS_S, run_scale

    report = run_scale(requests=requests, send=send, folder=folder, told=tell)
    wanted = {"plan": "", "send": f"first call within {MOST_READY_S:.0f} s", "status": f"within {MOST_STATUS_S:.0f} s"}
    rows = [
        (
            name,
            f"{step.seconds:,.1f}",
            f"{step.ready_s:,.2f}",
            f"{step.peak_mb:.0f}",
            f"{wanted[name]} under {MOST_MB:.0f} MB".strip(),
        )
        for name, step in (("plan", report.plan), ("send", report.send), ("status", report.status))
    ]
    heads = ("step", "seconds", "ready after s", "peak MB", "target")
    title = f"{requests:,} requests, {report.plan_per_s:,.0f} planned/s, store {report.store_mb:,.0f} MB"
    show_figures(title, heads, rows, report.load_before, report.load_after)
    return end_benchmark("scale", report, as_json, holds=report.holds)


@click.command()
@click.option(
    "--claims",
    type=_NUMBERS,
    default=143_616,
    show_default=True,
    help="Judged claims, rounded to whole sweeps of 143,616.",
)
@click.option("--plain-resamples", type=click.IntRange(0), default=20, show_default=True, help="0 leaves it out.")
@measured
def analysis(claims: int, plain_resamples: int, as_json: Path | None, folder: Path | None) -> int:
    """Make all tables of a sweep of the paper's size, on one core, beside plain pandas and scipy.

    The store is made up from a seed. --claims 10000000 takes some minutes and five gigabytes of disk.
    """
    from bench.throughput.analysis import promised, run_analysis

    report = run_analysis(claims=claims, plain_resamples=plain_resamples, folder=folder, told=tell)
    sides = [("ours", report.ours), *([("plain", report.plain)] if report.plain else [])]
    rows = [
        (
            name,
            f"{found.load_s:.2f}",
            f"{found.tables_s:.2f}",
            f"{found.resampling_s:.2f}",
            f"{found.wall_s:.2f}",
            f"{found.resamples:,}",
            f"{found.figures:,}",
            f"{found.peak_mb:,.0f}",
        )
        for name, found in sides
    ]
    heads = ("CPU seconds, one core", "read", "tables", "of it shares", "by the clock", "resamples", "intervals", "MB")
    title = f"all tables of {report.claims:,} claims, store {report.store_mb:,.0f} MB · SIMULATED answers"
    show_figures(title, heads, rows, report.load_before, report.load_after)
    click.echo(f"promised for this size: {promised(report.claims)}")
    if report.plain_extrapolated_s is not None:
        click.echo(
            f"plain pandas and scipy with {report.ours.resamples:,} resamples: about"
            f" {report.plain_extrapolated_s:,.0f} s (extrapolated), {report.times_faster:,.0f} times ours;"
            f" both find the same: {'yes' if report.agrees else 'NO'}"
        )
    return end_benchmark("analysis", report, as_json, holds=report.holds and report.agrees)


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True, help="Alias, folder or hub name of a local model.")
@click.option("--prompts", type=_NUMBERS, default=32, show_default=True, help="Requests a repetition.")
@click.option("--tokens", type=_NUMBERS, default=64, show_default=True, help="Most tokens of an answer.")
@click.option("--repeats", type=_NUMBERS, default=9, show_default=True, help="Pairs; the one in the middle counts.")
@click.option("--json", "as_json", type=click.Path(dir_okay=False, path_type=Path), help="Write every figure there.")
def local(model: str, prompts: int, tokens: int, repeats: int, as_json: Path | None) -> int:
    """Measure the local model in this program beside vLLM's own LLM.chat, on the same prompts, in turns.

    Nothing is simulated: the model computes. Takes some minutes; other work on the machine slows both sides down.
    """
    from bench.throughput.local import LEAST_RATIO, local_model, measure_local

    report = measure_local(local_model(model), prompts=prompts, max_tokens=tokens, repeats=repeats, told=tell)
    rows = [
        (
            row.side,
            f"{row.tokens_per_s:,.1f}",
            f"{row.prompt_tokens_per_s:,.1f}",
            f"{row.requests_per_s:,.2f}",
            f"{row.cpu_s_per_1000_tokens:.2f}",
            "  ".join(f"{each:,.0f}" for each in row.all_tokens_per_s),
        )
        for row in report.rows
    ]
    heads = ("side", "tokens/s", "prompt tokens/s", "requests/s", "CPU s / 1,000 tokens", "all repetitions")
    title = f"{report.model}: {report.prompts} prompts, at most {report.max_tokens} tokens each, {report.dtype}"
    show_figures(title, heads, rows, report.load_before, report.load_after)
    click.echo(
        f"ratio {report.ratio:.3f}, the middle of {report.repeats} pairs (at least {LEAST_RATIO} is promised);"
        f" of the fastest {report.fastest_ratio:.3f}, of processor time {report.cpu_ratio:.3f}"
    )
    click.echo(f"event loop lag: p50 {report.lag_p50_ms:.1f} ms, p99 {report.lag_p99_ms:.1f} ms")
    return end_benchmark("local", report, as_json, holds=report.holds, simulated=False)


def tell(text: str) -> None:
    """Say how far a benchmark is."""
    click.echo(text, err=True)


def show_figures(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], load_before: float, load_after: float
) -> None:
    """Print a table of figures, and what they depend on."""
    from rich.table import Table

    from bench.throughput.process import machine
    from bench.wide import print_table

    known = machine()
    caption = (
        f"{known['processors']} processors, {known['system']}, Python {known['python']}; other work:"
        f" load {load_before:.1f} before, {load_after:.1f} after"
    )
    table = Table(title=title, caption=caption)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 or not head else "right")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def end_benchmark(
    name: str, report: "msgspec.Struct", as_json: Path | None, *, holds: bool = True, simulated: bool = True
) -> int:
    """Write the file, and say by the exit code whether what is promised held."""
    import msgspec

    from bench.throughput.process import machine
    from engine.errors import UserError

    if as_json is not None:
        found = {"benchmark": name, "simulated": simulated, "machine": machine(), "result": report}
        try:
            as_json.parent.mkdir(parents=True, exist_ok=True)
            as_json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        except OSError as error:
            raise UserError(f"the figures cannot be written: {error.strerror}", where=str(as_json)) from error
    if not holds:
        click.echo(f"bench {name}: what is promised did not hold", err=True)
    return int(Exit.COMPLETE if holds else Exit.DEFECT)
