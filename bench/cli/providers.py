"""`mirage bench providers`: measure providers under a hard cap, keep the figures, and set them beside earlier ones."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import Exit
from bench.text import one_line

if TYPE_CHECKING:
    from bench.throughput.measurements import Measurement, Spread
    from bench.throughput.provider_plan import Plan, Subject
    from engine.events import Notice

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--models", default="", help="Aliases, separated by commas (`mirage models` lists them).")
@click.option("--calls", type=click.IntRange(1, 100_000), default=200, show_default=True, help="A model and mode.")
@click.option("--modes", default="stream", show_default=True, help="stream, batch, or both with a comma.")
@click.option("--cap", help="The most that all of it may cost, in USD. Required to measure.")
@click.option("--tokens", type=click.IntRange(1), default=400, show_default=True, help="Most tokens of an answer.")
@click.option("--sweep", "file", type=_FILE, help="Sweep file whose accounts, limits and [batch] count.")
@click.option("--yes", is_flag=True, help="Do not ask before calling.")
@click.option("--results", type=_FILE, help="File of measurements. [providers.jsonl in your data folder]")
@click.option("--compare", is_flag=True, help="Set every model beside its measurement before; alone, measure nothing.")
@click.option("--plot", type=_FILE, help="Draw rates, times and ramps into this SVG file.")
@click.option("--json", "as_json", type=_FILE, help="Write every figure to this file, too.")
def providers(
    models: str, calls: int, modes: str, cap: str | None, tokens: int, file: Path | None, results: Path | None,
    plot: Path | None, as_json: Path | None, *, yes: bool, compare: bool,
) -> int:  # fmt: skip
    """Measure providers with real calls, under a hard cap that is said first: rates, times, 429s, cost.

    Up to half of the streamed calls are a ramp that finds the best number of calls at once; the others are measured at
    it. What was measured is kept: --compare sets it beside the time before, and `mirage plan` takes its times from it
    where no rate limit is known. What a simulator answered is marked SIMULATED and no plan uses it.
    """
    from bench.throughput.measurements import kept, results_file

    place = results or results_file()
    code = Exit.COMPLETE
    if models:
        plan = _plan(models, calls, modes, cap, tokens, file)
        found, code = _measured(plan, place, yes=yes)
        _show(found)
    elif compare or plot or as_json:
        found = list(kept(place).measurements)
    else:
        raise click.UsageError("name the models to measure with --models, or use --compare alone")
    if compare:
        _compare(place)
    _write(found, plot, as_json)
    return int(code)


def _plan(models: str, calls: int, modes: str, cap: str | None, tokens: int, file: Path | None) -> "Plan":
    from bench.modes import Mode
    from bench.sweepfile import load_sweep
    from bench.throughput.provider_plan import Plan
    from engine.errors import UserError
    from engine.money import nano_from_usd

    if cap is None:
        raise UserError("nothing is called without a cap", where="--cap", mend="give the most that it may cost, in USD")
    names = list(dict.fromkeys(filter(None, (name.strip() for name in modes.split(",")))))
    wrong = [name for name in names if name not in {mode.value for mode in Mode}]
    if wrong or not names:
        raise UserError(f"there is no mode `{''.join(wrong[:1])}`", where="--modes", mend="stream, batch, or both")
    try:
        nano = nano_from_usd(cap)
    except ValueError as error:
        raise UserError(f"the cap is wrong: {error}", where="--cap", mend="write e.g. --cap 0.50") from None
    return Plan(
        models=tuple(dict.fromkeys(filter(None, (name.strip() for name in models.split(","))))),
        calls=calls,
        modes=tuple(Mode(name) for name in names),
        cap_nano=nano,
        max_tokens=tokens,
        file=None if file is None else load_sweep(file),
    )


# ----- measuring


def _measured(plan: "Plan", place: Path, *, yes: bool) -> "tuple[list[Measurement], Exit]":
    """Say what it may cost, ask, measure, and keep every model's figures as soon as they are there."""
    from bench.loop import run_loop
    from bench.throughput.provider_plan import look
    from bench.throughput.providers import Interrupted

    subjects = run_loop(look(plan))
    _state(plan, subjects)
    if not yes:
        click.confirm("Measure?", abort=True, err=True)
    found: list[Measurement] = []
    try:
        run_loop(_measure(plan, subjects, place, found))
    except Interrupted as stopped:
        if stopped.store is not None:
            click.echo(
                f"stopped; batches may still be at their providers: `mirage batches {stopped.store}` lists them,"
                " `... cancel ID` stops one",
                err=True,
            )
        return found, Exit.INTERRUPTED
    return found, _ended(found)


def _ended(found: "Sequence[Measurement]") -> Exit:
    """Return the exit code of what was measured: that of a run that ended so, the first that did not get to its end."""
    from bench.cli.exits import OF_OUTCOME
    from bench.throughput.provider_figures import CUT

    codes = {words: OF_OUTCOME[outcome] for outcome, words in CUT.items()}
    cut = next((codes[each.cut] for each in found if each.cut), None)
    return cut or (Exit.INCOMPLETE if any(each.failed or each.left_out for each in found) else Exit.COMPLETE)


def _state(plan: "Plan", subjects: "Sequence[Subject]") -> None:
    """State the cap before anything else happens."""
    from bench.cli.plan import money
    from bench.throughput.provider_plan import worst_nano

    names = ", ".join(one_line(each.card.alias) + " (SIMULATED)" * each.simulated for each in subjects)
    modes = " and ".join(mode.value for mode in plan.modes)
    click.echo(
        f"cap: {money(plan.cap_nano)}, whatever happens. {plan.calls} calls to each of {names}, by {modes}, cost up to"
        f" {money(worst_nano(plan, subjects))}, if every answer uses up its {plan.max_tokens} tokens",
        err=True,
    )


async def _measure(plan: "Plan", subjects: "Sequence[Subject]", place: Path, found: "list[Measurement]") -> None:
    from rich.console import Console

    from bench.display import Display
    from bench.modes import Mode
    from bench.throughput.measurements import keep
    from bench.throughput.providers import measure_batches, measure_calls

    left = plan.cap_nano
    for subject in subjects if Mode.STREAM in plan.modes else ():
        measured = await measure_calls(plan, subject, left, listen=_hear, told=_tell)
        keep(place, [measured])
        found.append(measured)
        left -= measured.cost_nano
    if Mode.BATCH in plan.modes:
        console = Console(stderr=True, markup=False)
        async with Display(
            console, "batches of bench providers", simulated=any(s.simulated for s in subjects)
        ) as display:
            batched = await measure_batches(
                plan, subjects, left, listen=display.listen, watch=display.watch, told=_tell
            )
        keep(place, batched)
        found.extend(batched)


def _tell(text: str) -> None:
    click.echo(one_line(text, most=300), err=True)


def _hear(notice: "Notice") -> None:
    from engine.events import Level

    if notice.level is not Level.INFO:
        _tell(notice.text)


# ----- showing


def _show(found: "Sequence[Measurement]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bench.wide import print_table, wide_console

    simulated = any(each.simulated for each in found)
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        title="providers" + " · SIMULATED" * simulated,
        caption="times in ms: median / 90 % / 99 %; best: calls at once, + if more might be better",
    )  # fmt: skip
    table.add_column("model", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    heads = ("calls/s", "tokens/s", "out/s", "first byte", "latency", "429", "retries", "failed", "$/1,000", "best")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in found:
        table.add_row(one_line(each.alias) + " (sim.)" * each.simulated, each.mode.value, *_figures(each))
    console = wide_console()
    print_table(table, drop=("first byte", "out/s", "retries", "failed", "429"), console=console)
    for each in found:
        for note in _notes(each):
            console.print(f"{one_line(each.alias)}, {each.mode.value}: {note}")


def _figures(each: "Measurement") -> tuple[str, ...]:
    best = f"{each.concurrency}{'+' * each.rising}" if each.concurrency else "-"
    return (
        _number(each.calls_per_s), _number(each.tokens_per_s), _number(each.output_tokens_per_s),
        _times(each.first_byte_ms), _times(each.latency_ms), f"{each.throttled_share:.1%}", str(each.retries),
        str(each.failed), _dollars(each.cost_nano_per_1000), best,
    )  # fmt: skip


def _notes(each: "Measurement") -> Iterable[str]:
    if each.cut:
        yield f"cut short: {each.cut}; {each.left_out:,} of {each.calls:,} calls were not sent"
    if each.errors:
        yield "errors: " + ", ".join(f"{one_line(kind)} {number}" for kind, number in sorted(each.errors.items()))
    if each.turnaround is not None:
        yield f"batches took {each.turnaround:,.0f} s from creation to end"


def _compare(place: Path) -> None:
    """Set the newest measurement of every model and mode beside the one before."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bench.throughput.measurements import kept
    from bench.wide import print_table, wide_console

    found = kept(place)
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for each in sorted(found.measurements, key=lambda each: each.at):
        account = "simulated" if each.simulated else each.base_url
        groups.setdefault((each.alias, account, each.model, each.mode), []).append(each)
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="now, and the change since the measurement before"
    )  # fmt: skip
    for name in ("model", "mode", "measured", "before"):
        table.add_column(name, no_wrap=True)
    for name in ("calls/s", "out/s", "p50 ms", "p99 ms", "429", "$/1,000"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups.values():
        table.add_row(*_compared(group))
    console = wide_console()
    if groups:
        print_table(table, drop=("p50 ms", "429", "out/s", "before"), console=console)
    else:
        console.print(f"no measurements in {place}")
    if found.unreadable:
        console.print(f"{found.unreadable} lines of {place} cannot be read and are left out")


def _compared(group: "Sequence[Measurement]") -> tuple[str, ...]:
    now, before = group[-1], group[-2] if len(group) > 1 else None
    then: Mapping[str, float | None] = {} if before is None else _comparable(before)
    cells = [_change(then.get(name), value, name) for name, value in _comparable(now).items()]
    day = "-" if before is None else before.day
    return (one_line(now.alias) + " (sim.)" * now.simulated, now.mode.value, now.day, day, *cells)


def _comparable(each: "Measurement") -> dict[str, float | None]:
    latency = each.latency_ms
    return {
        "calls": each.calls_per_s,
        "tokens": each.output_tokens_per_s,
        "p50": None if latency is None else latency.p50,
        "p99": None if latency is None else latency.p99,
        "share": each.throttled_share,
        "nano": each.cost_nano_per_1000,
    }


def _change(then: float | None, now: float | None, name: str) -> str:
    if now is None:
        return "-"
    if name == "share" or not then:
        return _shown(now, name)
    return f"{_shown(now, name)} {(now - then) / then:+.0%}"


def _shown(value: float, name: str) -> str:
    if name == "share":
        return f"{value:.1%}"
    return _dollars(round(value)) if name == "nano" else _number(value)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _times(found: "Spread | None") -> str:
    return "-" if found is None else f"{found.p50:,.0f} / {found.p90:,.0f} / {found.p99:,.0f}"


def _dollars(nano: int | None) -> str:
    from bench.cli.plan import money

    return money(nano)


def _write(found: "Sequence[Measurement]", plot: Path | None, as_json: Path | None) -> None:
    import msgspec

    from engine.errors import UserError

    try:
        if as_json is not None:
            from bench.throughput.process import machine

            whole = {
                "benchmark": "providers",
                "simulated": any(each.simulated for each in found),
                "machine": machine(),
                "result": found,
            }
            as_json.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")
        if plot is not None:
            from bench.throughput.provider_plot import drawing

            plot.write_text(drawing(found), encoding="utf-8")
    except OSError as error:
        raise UserError(f"the figures cannot be written: {error.strerror}", where=str(plot or as_json)) from error
