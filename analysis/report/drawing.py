"""What all figures share: the sheet they are drawn on, whiskers, legends, and the words that stand for a figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final, TypeAlias

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.estimates import Estimate
from analysis.frames import Table, Value
from analysis.report.palette import ALARM, FAINT, GRID, INK, MARKERS, PAPER, QUIET, SERIES, Colour
from analysis.report.svg import FONT_POINTS, drawing_settings, svg_text
from analysis.show import inert

WIDTH_INCHES: Final = 5.0
ROW_INCHES: Final = 0.235
EDGE_INCHES: Final = 0.85
LONGEST_LABEL: Final = 22
SMALL_POINTS: Final = 8
SIMULATED: Final = "SIMULATED"
#: Markers that fill their square; the others need to be a little larger to look as large.
COMPACT: Final = frozenset("osD|")

Tables: TypeAlias = Mapping[str, Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure of the page.

    Parameters
    ----------
    name : str
        Fixed name, also the beginning of the drawing's ids.
    caption : str
        What is drawn and how to read it; one or two sentences.
    svg : str
        A complete element, safe to stand in the page.
    """

    name: str
    caption: str
    svg: str


Draw: TypeAlias = Callable[[Tables, Sequence[str]], Drawing | None]


def drawn(name: str, caption: str, words: str, paint: Callable[[], Figure], *, simulated: bool) -> Drawing:
    """Draw a figure and take it over into the page.

    Parameters
    ----------
    name, caption
        As in `Drawing`.
    words : str
        The figure in words: what is on which axis, and its extremes.
    paint : callable
        Makes the figure.
    simulated : bool
        Whether to mark it.
    """
    with drawing_settings():
        figure = paint()
        if simulated:
            mark = {"color": ALARM.light, "fontweight": "bold", "fontsize": FONT_POINTS}
            figure.suptitle(SIMULATED, x=0.995, ha="right", **mark)
        told = f"{SIMULATED}. {words}" if simulated else words
        return Drawing(name=name, caption=caption, svg=svg_text(figure, name, told))


def sheet(height: float) -> Figure:
    """Return an empty figure of the page's width."""
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.04)  # type: ignore[union-attr, call-arg]
    return figure


def axes_of(figure: Figure, *, grid: str = "x") -> Axes:
    """Return the only axes of a figure, without a frame."""
    axes = figure.add_subplot()
    style(axes, grid=grid)
    return axes


def style(axes: Axes, *, grid: str = "x") -> None:
    """Give axes the page's looks: quiet ticks, light lines along one direction, no frame."""
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0, colors=QUIET.light, labelsize=SMALL_POINTS)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis=grid, color=GRID.light, linewidth=0.8)  # type: ignore[arg-type]
    axes.xaxis.label.set_color(QUIET.light)
    axes.yaxis.label.set_color(QUIET.light)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Write names beside rows, the first on top."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.tick_params(axis="y", labelcolor=INK.light, labelsize=FONT_POINTS)
    axes.set_ylim(len(names) - 0.4, -0.6)


def whisker(
    axes: Axes,
    at: float,
    estimate: Estimate,
    colour: Colour,
    marker: str = "o",
    *,
    scale: float = 1,
    hollow: bool = False,
) -> None:
    """Draw an estimate in a row: a marker, and its interval as a line."""
    if isnan(estimate.value):
        return
    if estimate.interval is not None:
        ends = [scale * estimate.interval.low, scale * estimate.interval.high]
        width = 1.0 if hollow else 1.6
        axes.plot(ends, [at, at], color=colour.light, linewidth=width, solid_capstyle="round")
    dot(axes, scale * estimate.value, at, colour, marker, hollow=hollow)


def dot(axes: Axes, x: float, y: float, colour: Colour, marker: str = "o", *, hollow: bool = False) -> None:
    """Draw one marker with a thin edge of paper, so that overlapping ones stay apart; or its outline, on paper."""
    size = 6 if marker in COMPACT else 7.5
    fill, edge = (PAPER, colour) if hollow else (colour, PAPER)
    axes.plot(
        [x], [y], linestyle="none", marker=marker, markersize=size - hollow, markerfacecolor=fill.light,
        markeredgecolor=edge.light, markeredgewidth=1.1 if hollow else 0.7, zorder=3,
    )  # fmt: skip


def keys(figure: Figure, entries: Sequence[Artist], *, columns: int = 4) -> None:
    """Write the legend above the drawing."""
    if entries:
        figure.legend(
            handles=entries, loc="outside upper left", ncols=columns, frameon=False, fontsize=SMALL_POINTS,
            handletextpad=0.3, columnspacing=1.0, labelcolor=INK.light, borderaxespad=0.1,
        )  # fmt: skip


def key(name: str, colour: Colour, marker: str = "o", *, hollow: bool = False) -> Line2D:
    """Return a legend's entry for a kind of marker."""
    fill = PAPER if hollow else colour
    return Line2D(
        [], [], linestyle="none", marker=marker, color=colour.light, markerfacecolor=fill.light, markersize=6,
        label=name if hollow else short(name),
    )  # fmt: skip


def looks(names: Sequence[str]) -> dict[str, tuple[Colour, str]]:
    """Return a colour and a marker for every distinct name, in order; after eight they pair up otherwise."""
    found: dict[str, tuple[Colour, str]] = {}
    for place, name in enumerate(dict.fromkeys(names)):
        turn, at = divmod(place, len(SERIES))
        found[name] = (SERIES[at], MARKERS[(at + turn) % len(MARKERS)])
    return found


def family_looks(tables: Tables, subjects: Sequence[str]) -> dict[str, tuple[Colour, str]]:
    """Return the look of every family of the sweep, the same in all figures; where there is no family, of ``""``."""
    rows = tables["leaderboard"].named_rows()
    return looks(sorted(str(row["family"]) for row in rows if row["model"] in subjects))


def family_keys(found: Mapping[str, tuple[Colour, str]], shown: Sequence[Value]) -> list[Line2D]:
    """Return the legend's entries of the families that a figure shows."""
    return [key(name or "no family", *look) for name, look in found.items() if name in shown]


def short(name: str) -> str:
    """Return a name that fits beside a drawing and in which nothing acts."""
    text = inert(name)
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def as_estimate(value: Value) -> Estimate:
    """Return a cell as an estimate; a cell without a number is `nan`."""
    if isinstance(value, Estimate):
        return value
    number = float(value) if isinstance(value, int | float) else float("nan")
    return Estimate(value=number, n=0, method="")


def extremes(names: Sequence[str], values: Sequence[float], unit: str = " %", scale: float = 100) -> str:
    """Return the lowest and the highest of some named values in words."""
    known = [(value, inert(name)) for name, value in zip(names, values, strict=True) if not isnan(value)]
    if not known:
        return "No value is known."
    (low, least), (high, most) = min(known), max(known)
    return f"Lowest {least} {scale * low:.1f}{unit}, highest {most} {scale * high:.1f}{unit}."


def zero_line(axes: Axes, at: float = 0) -> None:
    """Draw a vertical line of reference."""
    axes.axvline(at, color=FAINT.light, linewidth=1.1, zorder=1)
