"""The figure of what a sweep cost: money by answering model, or tokens where nothing was paid."""

from collections.abc import Sequence
from math import isnan
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from analysis.report.drawing import (
    EDGE_INCHES,
    ROW_INCHES,
    SMALL_POINTS,
    Drawing,
    Tables,
    as_estimate,
    axes_of,
    drawn,
    extremes,
    name_rows,
    sheet,
)
from analysis.report.palette import BLUE, INK

NANO: Final = 1_000_000_000


def cost(tables: Tables, _subjects: Sequence[str]) -> Drawing | None:
    """Draw the total of every answering model over all stages."""
    table = tables["cost"]
    rows = list(table.named_rows())[:-1]
    names = list(dict.fromkeys(str(row["model"]) for row in rows))

    def totals(column: str, scale: int) -> list[float]:
        return [
            sum(_number(as_estimate(row[column]).value) for row in rows if row["model"] == name) / scale
            for name in names
        ]

    paid, written = totals("cost_nano", NANO), totals("output_tokens", 1)
    money = any(paid)
    values = paid if money else written
    if not any(values):
        return None
    order = sorted(range(len(names)), key=lambda at: -values[at])
    unit, digits = ("US dollars", 2) if money else ("output tokens", 0)

    def paint() -> Figure:
        figure = sheet(ROW_INCHES * len(names) + EDGE_INCHES)
        axes = axes_of(figure)
        bars = axes.barh(range(len(order)), [values[at] for at in order], height=0.62, color=BLUE.light)
        labels = [f"{values[at]:,.{digits}f}" for at in order]
        axes.bar_label(bars, labels, padding=3, fontsize=SMALL_POINTS, color=INK.light)
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
        name_rows(axes, [names[at] for at in order])
        axes.set_xlabel(unit)
        return figure

    return drawn(
        "cost",
        "Money by answering model, all stages together."
        if money
        else "Output tokens by answering model, all stages together; nothing was paid.",
        f"Bars of {unit} by answering model. {extremes(names, values, f' {unit}', scale=1)}",
        paint,
        simulated=table.simulated,
    )


def _number(value: float) -> float:
    return 0.0 if isnan(value) else value
