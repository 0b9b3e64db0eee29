"""Figures of curves, one small panel a model: memory over rounds, leakage over samples.

In each panel the model's own curve stands before the curves of all others, so that twelve lines need no twelve colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isnan
from typing import Final, TypedDict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.estimates import Estimate
from analysis.frames import Table
from analysis.leakage import Event
from analysis.leaks import WORDS
from analysis.report.drawing import SMALL_POINTS, Drawing, Tables, as_estimate, drawn, extremes, sheet, short, style
from analysis.report.palette import BLUE, FAINT, GRID, INK
from analysis.report.rounds import ROUND

PANELS_A_ROW: Final = 3
PANEL_INCHES: Final = 1.25
AT: Final = "k"
FEWEST_POINTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Estimates along a whole-number axis."""

    name: str
    at: tuple[int, ...]
    estimates: tuple[Estimate, ...]

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """What is known of the curve."""
        pairs = zip(self.at, self.estimates, strict=True)
        return tuple((at, estimate.value) for at, estimate in pairs if not isnan(estimate.value))


def accumulation(tables: Tables, _subjects: Sequence[str]) -> Drawing | None:
    """Draw the mean number of inferred attributes in memory over the rounds."""
    table = tables["accumulation_rounds"]
    prompts = set(table.column("prompt"))
    names = [f"{row['model']} {row['prompt']}" if len(prompts) > 1 else str(row["model"]) for row in table.named_rows()]
    curves = [Curve(name=name, **_along(table, index, ROUND)) for index, name in enumerate(names)]
    return _panels(
        curves,
        table,
        name="accumulation",
        axis=("round", "inferred attributes"),
        caption="Inferred attributes in memory after each round, mean over personas, with 95 % intervals; faint: the"
        " other models.",
        words="Attributes after the last round: {last}",
        unit="",
    )


def leakage(tables: Tables, _subjects: Sequence[str]) -> Drawing | None:
    """Draw the chance that at least one of k samples leaks, over k, for the primary event."""
    table = tables["leakage_at_k"]
    curves = [
        Curve(name=str(row["model"]), **_along(table, index, AT))
        for index, row in enumerate(table.named_rows())
        if row["event"] == Event.OI_ABOVE.value
    ]
    return _panels(
        curves,
        table,
        name="leakage",
        axis=("k, answers to the same request", "leakage@k, %"),
        caption=f"Chance that at least one of k answers has an {WORDS[Event.OI_ABOVE]}, with 95 % intervals; faint: the"
        " other models.",
        words="Chance at the largest k: {last}",
        unit=" %",
    )


class _Along(TypedDict):
    at: tuple[int, ...]
    estimates: tuple[Estimate, ...]


def _along(table: Table, index: int, beginning: str) -> _Along:
    """Return a row's cells in the columns that are named by a beginning and a whole number."""
    found = {
        int(number): as_estimate(value)
        for column, value in zip(table.columns, table.rows[index], strict=True)
        if column.name.startswith(beginning) and (number := column.name.removeprefix(beginning)).isdecimal()
    }
    return {"at": tuple(found), "estimates": tuple(found.values())}


def _panels(
    curves: Sequence[Curve], table: Table, *, name: str, axis: tuple[str, str], caption: str, words: str, unit: str
) -> Drawing | None:
    shown = [curve for curve in curves if len(curve.points) >= FEWEST_POINTS]
    if not shown:
        return None
    scale = 100 if unit else 1

    def paint() -> Figure:
        rows = ceil(len(shown) / PANELS_A_ROW)
        figure = sheet(PANEL_INCHES * rows + 0.55)
        grid = figure.subplots(rows, min(PANELS_A_ROW, len(shown)), sharex=True, sharey=True, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(shown):
                _panel(axes, shown, place, scale)
                axes.tick_params(labelbottom=place + PANELS_A_ROW >= len(shown))
            else:
                axes.set_visible(False)
        figure.supxlabel(axis[0], fontsize=SMALL_POINTS)
        figure.supylabel(axis[1], fontsize=SMALL_POINTS)
        return figure

    ends = [curve.points[-1][1] for curve in shown]
    told = extremes([curve.name for curve in shown], ends, unit, scale)
    return drawn(
        name,
        caption,
        f"Curves, one panel a model. {words.format(last=told)}",
        paint,
        simulated=table.simulated,
    )


def _panel(axes: Axes, curves: Sequence[Curve], place: int, scale: float) -> None:
    style(axes, grid="y")
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color(GRID.light)
    for curve in curves:
        axes.plot(*_scaled(curve, scale), color=FAINT.light, linewidth=0.6, alpha=0.7)
    mine = curves[place]
    for at, estimate in zip(mine.at, mine.estimates, strict=True):
        if estimate.interval is not None:
            ends = [scale * estimate.interval.low, scale * estimate.interval.high]
            axes.plot([at, at], ends, color=BLUE.light, linewidth=1, alpha=0.6)
    axes.plot(*_scaled(mine, scale), color=BLUE.light, linewidth=1.6, marker="o", markersize=2.6)
    axes.set_title(short(mine.name), fontsize=SMALL_POINTS, color=INK.light, loc="left", pad=2)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_ylim(bottom=0)


def _scaled(curve: Curve, scale: float) -> tuple[list[int], list[float]]:
    return [at for at, _ in curve.points], [scale * value for _, value in curve.points]
