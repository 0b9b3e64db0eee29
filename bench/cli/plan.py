"""`mirage plan`: what a sweep will ask, take and cost, before anything is sent."""

from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import Exit
from bench.text import one_line
from engine.money import NANO, usd

if TYPE_CHECKING:
    from bench.estimate import Line, Shortfall
    from bench.forecasting import Forecast, GenerationForecast
    from instruments.instrument import Design

_DAY = 86_400
_HOUR = 3_600
_CAPTION = (
    "* assumed lengths; nothing of it in the store yet",
    "> at least, by your rate limits; < at most, by the time providers take for batches",
)
_MEASURED = "~ no rate limit known: by `mirage bench providers`, measured on {}"


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), help="Store to learn from instead of the sweep file's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def plan(sweep: Path, store: Path | None, *, as_json: bool) -> int:
    """Forecast calls, tokens, cost and time of the sweep file SWEEP per stage and model; sends nothing.

    What the store already answers is left out of the cost and said apart, and caps that will not do for the rest are
    named. A file that `mirage run` would refuse is refused; keys are not needed. For a file of `mirage personas
    generate` it says how many calls that may take and what they cost at most.

    What the store has already seen of a model replaces assumptions. Prices of the batch API stand beside the standard
    ones, with the mode that the file says or that `auto` chooses. The time is what your rate limits imply at least for
    what is streamed (or, where no limit is known, what `mirage bench providers` measured), and what the providers may
    take at most for what is batched.
    """
    import msgspec

    from bench.forecasting import forecast_generation, forecast_sweep
    from bench.loop import run_loop
    from bench.run import prepare_file
    from bench.sweepfile import LoadedGeneration, load_file

    loaded = load_file(sweep)
    if isinstance(loaded, LoadedGeneration):
        written = forecast_generation(loaded, store)
        click.echo(msgspec.json.encode([written]).decode() if as_json else _said_of_generation(written))
        return 0
    prepared = prepare_file(sweep, store=store)
    found = run_loop(forecast_sweep(prepared))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found.lines), indent=2).decode())
    else:
        _show(list(found.lines))
    for line in _remarks(found, prepared.design):
        click.echo(line, err=as_json)
    return 0


def _remarks(found: "Forecast", design: "Design") -> list[str]:
    """Return what must be said beside the figures."""
    from bench.design import left_out

    simulated = ["SIMULATED: a simulator answers for these accounts, and the run will be marked so"] * found.simulated
    return [*simulated, *filter(None, [left_out(design)]), *map(_said_of_cap, found.short)]


def _said_of_cap(short: "Shortfall") -> str:
    from engine.ledger import TOKENS

    def said(amount: int) -> str:
        return f"{_short(amount)} tokens" if short.unit == TOKENS else money(amount)

    cap = f"{short.cap:,} tokens" if short.unit == TOKENS else usd(short.cap)
    used, more = (f", of which {said(short.used)} is used,", " more") if short.used else ("", "")
    what = f"{said(short.needed)}{more}"
    if short.used + short.needed <= short.cap:
        what = f"a call that may need {said(short.call)}, though {what} are forecast for all"
    rest = f"will not do for {what}: the run will stop there, exit code {int(Exit.BUDGET)}"
    return f"cap of {one_line(short.scope)}: {cap}{used} {rest}"


def _said_of_generation(found: "GenerationForecast") -> str:
    price = "a call costs nothing, or its price is not known"
    if found.worst_nano:
        price = (
            f"a call costs at most {money(found.worst_nano)}, all of them {money(found.calls * found.worst_nano)} to"
        )
        price += f" {money(found.most_calls * found.worst_nano)}"
    cap = "; no cap" if found.cap_nano is None else f"; cap of the run: {usd(found.cap_nano)}"
    return (
        f"{found.calls:,} personas by {one_line(found.alias)}: {found.calls:,} calls if every first answer is accepted,"
        f" at most {found.most_calls:,}; {price}{cap}\n"
        "`mirage personas generate` runs this file"
    )


def _show(lines: "list[Line]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bench.wide import print_table, wide_console

    reasons = list(dict.fromkeys(line.why for line in lines if line.why))
    notes = [f"({number}) {why}" for number, why in enumerate(reasons, 1)]
    days = sorted({line.measured for line in lines if line.measured})
    measured = [_MEASURED.format(" and ".join(days))] if days else []
    caption = "\n".join((*_CAPTION, *measured, *notes))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name in ("stage", "model"):
        table.add_column(name, no_wrap=True)
    for name in (("answered",) if _any_done(lines) else ()) + ("calls", "tokens in", "out", "stream", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sent by", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for line in lines:
        note = f" ({reasons.index(line.why) + 1})" if line.why else ""
        answered = (f"{line.answered:,}",) if _any_done(lines) else ()
        table.add_row(line.stage, one_line(line.alias), *answered, *_row(line), line.mode.value + note, _bound(line))
    table.add_section()
    answered = (f"{sum(line.answered for line in lines):,}",) if _any_done(lines) else ()
    table.add_row("all", "", *answered, *_totals(lines))
    console = wide_console()
    # What a sweep costs and asks is never left out; tokens and times can be had from --json.
    print_table(table, drop=("out", "tokens in", "time", "sent by"), console=console)
    console.print(_summary(lines), soft_wrap=True)


def _row(line: "Line") -> tuple[str, ...]:
    mark = "" if line.learned else " *"
    tokens = (f"{line.left:,}", _short(line.input_tokens) + mark, _short(line.output_tokens) + mark)
    costs = (money(line.stream_nano), money(line.batch_nano))
    return (*tokens, *costs)


def _any_done(lines: "list[Line]") -> bool:
    return any(line.answered or line.failed for line in lines)


def _totals(lines: "list[Line]") -> tuple[str, ...]:
    from bench.estimate import total_nano

    stream = total_nano(lines, lambda line: line.stream_nano)
    batch = total_nano(lines, lambda line: line.stream_nano if line.batch_nano is None else line.batch_nano)
    calls, *tokens = (sum(getattr(line, name) for line in lines) for name in ("left", "input_tokens", "output_tokens"))
    return (f"{calls:,}", *(_short(each) for each in tokens), money(stream), money(batch))


def _summary(lines: "list[Line]") -> str:
    """Return what the sweep costs as it will be sent, and the time of its two parts."""
    from bench.estimate import chosen_nano, stream_seconds, total_nano

    left = sum(line.left for line in lines)
    cost = f"as it will be sent: {money(total_nano(lines, chosen_nano))}"
    parts = [f"{_past(lines)}still to send: {left:,} calls, {cost}" if _any_done(lines) else cost]
    if not left:
        return f"{_past(lines)}nothing is left to send"
    if (least := stream_seconds(lines)) is not None:
        parts.append(_streamed(lines, least))
    slowest = max(lines, key=lambda line: line.batch_seconds or 0.0, default=None)
    if slowest is not None and slowest.batch_seconds is not None:
        waves = "1 wave" if slowest.waves == 1 else f"{slowest.waves} waves"
        parts.append(f"batches end within {_hours(slowest.batch_seconds)}, in {waves}, most often much sooner")
    if unknown := sorted(
        {one_line(line.alias) for line in lines if line.left and line.seconds is None and not line.batch_seconds}
    ):
        how = "[limits] can say it, `mirage bench providers` measures it"
        parts.append(f"no rate limit known of {', '.join(unknown)}, so no time: {how}")
    return "; ".join(parts)


def _past(lines: "list[Line]") -> str:
    """Return what is done already."""
    answered, failed = (sum(getattr(line, name) for line in lines) for name in ("answered", "failed"))
    lost = f"{failed:,} failed for good (`mirage retry` plans them again); " if failed else ""
    return f"already answered: {answered:,} calls, {money(sum(line.paid_nano for line in lines))} paid; {lost}"


def _streamed(lines: "list[Line]", least: float) -> str:
    """Return the time of what is streamed, and what it rests on."""
    days = sorted({line.measured for line in lines if line.measured})
    if not days:
        return f"streams for {_time(least)} at least, by your rate limits"
    aliases = ", ".join(sorted({one_line(line.alias) for line in lines if line.measured}))
    return f"streams for about {_time(least)}, {aliases} at the pace measured on {' and '.join(days)}"


def _bound(line: "Line") -> str:
    """Return the time that a line takes at least, when it is streamed, or at most, when it is batched."""
    if not line.left:
        return "-"
    if line.batch_seconds is not None:
        return f"< {_hours(line.batch_seconds)}"
    if line.seconds is None:
        return "no limit known"
    return f"{'~' if line.measured else '>'} {_time(line.seconds)}"


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR:g} h"


def _time(seconds: float) -> str:
    days, rest = divmod(round(seconds), _DAY)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days} d {clock}" if days else clock


def money(nano: int | None) -> str:
    """Return a forecast in cents, below a dollar with two digits that count; it is not exact enough for more."""
    if nano is None:
        return "-"
    if not 0 < nano < NANO:
        return f"${nano / NANO:,.2f}"
    digits = max(2, 1 - floor(log10(nano / NANO)))
    return f"${nano / NANO:.{digits}f}"


def _short(tokens: int) -> str:
    """Return a number of tokens with three digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)
