"""`mirage plan`: what a sweep will ask, take and cost, before anything is sent."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.text import one_line
from engine.money import NANO

if TYPE_CHECKING:
    from bench.estimate import Line

_DAY = 86_400


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), help="Store to learn from instead of the sweep file's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def plan(sweep: Path, store: Path | None, *, as_json: bool) -> int:
    """Forecast calls, tokens, cost and time of the sweep file SWEEP per stage and model; sends nothing.

    What the store has already seen of a model replaces assumptions. Prices of the batch API stand beside the standard
    ones; the time is what your rate limits imply.
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
    from rich.table import Table

    from bench.estimate import total_nano
    from bench.text import wide_console

    table = Table(caption="* assumed lengths; nothing of it in the store yet", caption_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("model", no_wrap=True)
    for name in ("calls", "tokens in", "out", "stream", "batch", "at least"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        mark = "" if line.learned else " *"
        tokens = (f"{line.calls:,}", _short(line.input_tokens) + mark, _short(line.output_tokens) + mark)
        costs = (_money(line.stream_nano), _money(line.batch_nano), _time(line.seconds))
        table.add_row(line.stage, one_line(line.alias), *tokens, *costs)
    table.add_section()
    stream = total_nano(lines, lambda line: line.stream_nano)
    batch = total_nano(lines, lambda line: line.stream_nano if line.batch_nano is None else line.batch_nano)
    totals = [sum(getattr(line, name) for line in lines) for name in ("calls", "input_tokens", "output_tokens")]
    table.add_row(
        "all", "", f"{totals[0]:,}", *(_short(each) for each in totals[1:]), _money(stream), _money(batch), ""
    )
    wide_console().print(table)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    days, rest = divmod(round(seconds), _DAY)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days} d {clock}" if days else clock


def _money(nano: int | None) -> str:
    """Return a forecast in cents; it is not exact enough for more."""
    return "-" if nano is None else f"${nano / NANO:,.2f}"


def _short(tokens: int) -> str:
    """Return a number of tokens with three digits."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)
