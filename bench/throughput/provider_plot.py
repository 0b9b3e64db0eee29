"""Draws measurements as one self-contained SVG: answers per second, times, and the ramps."""

import io
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.report.drawing import SIMULATED, looks, name_rows, short, style
from analysis.report.palette import ALARM, BLUE, Colour
from analysis.report.svg import FONT_POINTS, drawing_settings
from bench.throughput.measurements import Measurement

WIDTH: Final = 11.0
ROW: Final = 0.3
EDGE: Final = 1.1
LEAST: Final = 2.6


def drawing(found: Sequence[Measurement]) -> str:
    """Return measurements as the text of an SVG file; simulated ones are marked."""
    with drawing_settings():
        figure = Figure(figsize=(WIDTH, max(LEAST, EDGE + ROW * len(found))), layout="constrained")
        rates, times, ramps = figure.subplots(1, 3)
        _rates(rates, found)
        _times(times, found)
        _ramps(ramps, [each for each in found if each.ramp])
        if any(each.simulated for each in found):
            figure.suptitle(SIMULATED, x=0.995, ha="right", color=ALARM.light, fontsize=FONT_POINTS, fontweight="bold")
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        return written.getvalue()


def _rates(axes: Axes, found: Sequence[Measurement]) -> None:
    style(axes)
    name_rows(axes, [f"{short(each.alias)} {each.mode.value}" for each in found])
    axes.barh(range(len(found)), [each.calls_per_s or 0.0 for each in found], color=BLUE.light, height=0.6)
    axes.set_xlabel("answers per second")


def _times(axes: Axes, found: Sequence[Measurement]) -> None:
    """Draw medians with a line to the 99th percentile; first bytes as a stroke."""
    style(axes)
    axes.set_yticks([])
    axes.set_ylim(len(found) - 0.4, -0.6)
    for place, each in enumerate(found):
        if each.latency_ms is not None:
            axes.plot([each.latency_ms.p50, each.latency_ms.p99], [place, place], color=BLUE.light, linewidth=1.6)
            axes.plot([each.latency_ms.p50], [place], "o", color=BLUE.light, markersize=6)
        if each.first_byte_ms is not None:
            axes.plot([each.first_byte_ms.p50], [place], "|", color=BLUE.light, markersize=12)
    axes.set_xlabel("ms: median to 99 %; stroke: first byte")
    axes.set_xlim(left=0)


def _ramps(axes: Axes, found: Sequence[Measurement]) -> None:
    style(axes, grid="y")
    colours: dict[str, tuple[Colour, str]] = looks([each.alias for each in found])
    for each in found:
        colour, marker = colours[each.alias]
        steps = sorted((step.concurrency, step.calls_per_s) for step in each.ramp)
        axes.plot(*zip(*steps, strict=True), color=colour.light, marker=marker, markersize=5, label=short(each.alias))
    axes.set_xlabel("calls at once")
    axes.set_ylabel("answers per second")
    if found:
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({step.concurrency for each in found for step in each.ramp}))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.legend(frameon=False, fontsize=8)
