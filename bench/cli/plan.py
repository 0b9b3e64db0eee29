"""`mirage plan`: what a sweep will ask, take and cost, before anything is sent."""

from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.text import one_line
from engine.money import NANO

if TYPE_CHECKING:
    from bench.estimate import Line

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

    What the store has already seen of a model replaces assumptions. Prices of the batch API stand beside the standard
    ones, with the mode that the file says or that `auto` chooses. The time is what your rate limits imply at least for
    what is streamed (or, where no limit is known, what `mirage bench providers` measured), and what the providers may
    take at most for what is batched.
    """
    import msgspec

    from bench.forecasting import forecast_sweep
    from bench.loop import run_loop
    from bench.run import prepare
    from bench.sweepfile import load_sweep

    lines = run_loop(forecast_sweep(prepare(load_sweep(sweep), store=store)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(lines), indent=2).decode())
    else:
        _show(lines)
    return 0


def _show(lines: "list[Line]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from bench.text import wide_console

    reasons = list(dict.fromkeys(line.why for line in lines if line.why))
    notes = [f"({number}) {why}" for number, why in enumerate(reasons, 1)]
    days = sorted({line.measured for line in lines if line.measured})
    measured = [_MEASURED.format(" and ".join(days))] if days else []
    caption = "\n".join((*_CAPTION, *measured, *notes))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name in ("stage", "model"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "tokens in", "out", "stream", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sent by", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for line in lines:
        note = f" ({reasons.index(line.why) + 1})" if line.why else ""
        table.add_row(*_row(line), line.mode.value + note, _bound(line))
    table.add_section()
    table.add_row("all", "", *_totals(lines))
    console = wide_console()
    console.print(table)
    console.print(_summary(lines), soft_wrap=True)


def _row(line: "Line") -> tuple[str, ...]:
    mark = "" if line.learned else " *"
    tokens = (f"{line.calls:,}", _short(line.input_tokens) + mark, _short(line.output_tokens) + mark)
    costs = (money(line.stream_nano), money(line.batch_nano))
    return (line.stage, one_line(line.alias), *tokens, *costs)


def _totals(lines: "list[Line]") -> tuple[str, ...]:
    from bench.estimate import total_nano

    stream = total_nano(lines, lambda line: line.stream_nano)
    batch = total_nano(lines, lambda line: line.stream_nano if line.batch_nano is None else line.batch_nano)
    calls, *tokens = (sum(getattr(line, name) for line in lines) for name in ("calls", "input_tokens", "output_tokens"))
    return (f"{calls:,}", *(_short(each) for each in tokens), money(stream), money(batch))


def _summary(lines: "list[Line]") -> str:
    """Return what the sweep costs as it will be sent, and the time of its two parts."""
    from bench.estimate import chosen_nano, stream_seconds, total_nano

    parts = [f"as it will be sent: {money(total_nano(lines, chosen_nano))}"]
    if (least := stream_seconds(lines)) is not None:
        parts.append(_streamed(lines, least))
    slowest = max(lines, key=lambda line: line.batch_seconds or 0.0, default=None)
    if slowest is not None and slowest.batch_seconds is not None:
        waves = "1 wave" if slowest.waves == 1 else f"{slowest.waves} waves"
        parts.append(f"batches end within {_hours(slowest.batch_seconds)}, in {waves}, most often much sooner")
    if unknown := sorted({one_line(line.alias) for line in lines if line.seconds is None and not line.batch_seconds}):
        how = "[limits] can say it, `mirage bench providers` measures it"
        parts.append(f"no rate limit known of {', '.join(unknown)}, so no time: {how}")
    return "; ".join(parts)


def _streamed(lines: "list[Line]", least: float) -> str:
    """Return the time of what is streamed, and what it rests on."""
    days = sorted({line.measured for line in lines if line.measured})
    if not days:
        return f"streams for {_time(least)} at least, by your rate limits"
    aliases = ", ".join(sorted({one_line(line.alias) for line in lines if line.measured}))
    return f"streams for about {_time(least)}, {aliases} at the pace measured on {' and '.join(days)}"


def _bound(line: "Line") -> str:
    """Return the time that a line takes at least, when it is streamed, or at most, when it is batched."""
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
