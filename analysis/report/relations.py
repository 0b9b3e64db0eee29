"""Figures of two numbers at once: what models say of themselves against what the judge says."""

from collections.abc import Sequence
from math import isnan
from typing import Final, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimates import Estimate
from analysis.frames import Value
from analysis.report.drawing import (
    SMALL_POINTS,
    Drawing,
    Tables,
    as_estimate,
    axes_of,
    dot,
    drawn,
    family_keys,
    family_looks,
    keys,
    sheet,
    short,
)
from analysis.report.palette import FAINT, INK, QUIET, Colour
from analysis.show import inert

PERCENT: Final = 100
FEWEST: Final = 2
HEIGHT_INCHES: Final = 4.4
#: Where a name may stand beside its marker, best first: offset in points, horizontal and vertical anchor.
PLACES: Final = (
    (6, 0, "left", "center"),
    (-6, 0, "right", "center"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    (5, 6, "left", "bottom"),
    (-5, 6, "right", "bottom"),
    (5, -6, "left", "top"),
    (-5, -6, "right", "top"),
)
CHARACTER_POINTS: Final = 4.4
LINE_POINTS: Final = 9.0
#: Left, bottom, right, top, in points.
Box: TypeAlias = tuple[float, float, float, float]


def inversion(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw the OI rate that models report of themselves against the one that the judge finds, by family."""
    table = tables["self_audit"]
    rows = [row for row in table.named_rows() if row["model"] in subjects and _known(row)]
    if len(rows) < FEWEST:
        return None
    family = family_looks(tables, subjects)

    def paint() -> Figure:
        figure = sheet(HEIGHT_INCHES)
        axes = axes_of(figure, grid="both")
        axes.set_xlabel("OI rate by the model's own audit, %")
        axes.set_ylabel("OI rate by the judge, %")
        points = []
        for row in rows:
            own, judged = as_estimate(row["self_oi"]), as_estimate(row["judge_oi"])
            _cross(axes, own, judged, *family[str(row["family"])])
            points.append((PERCENT * own.value, PERCENT * judged.value))
        _equal_line(axes)
        keys(figure, family_keys(family, [row["family"] for row in rows]))
        _write_names(figure, axes, points, [short(str(row["model"])) for row in rows])
        return figure

    pairs = "; ".join(
        f"{inert(str(row['model']))} {PERCENT * as_estimate(row['self_oi']).value:.1f} and"
        f" {PERCENT * as_estimate(row['judge_oi']).value:.1f}"
        for row in rows
    )
    return drawn(
        "inversion",
        "Each mark is a model, with 95 % intervals both ways; shape and colour are its family. On the dashed line a"
        " model would report what the judge finds; above it, it reports too little.",
        f"Scatter plot of OI rate by self-audit (first) and by judge (second), in percent: {pairs}.",
        paint,
        simulated=table.simulated,
    )


def _known(row: dict[str, Value]) -> bool:
    return not any(isnan(as_estimate(row[name]).value) for name in ("self_oi", "judge_oi"))


def _cross(axes: Axes, own: Estimate, judged: Estimate, colour: Colour, marker: str) -> None:
    x, y = PERCENT * own.value, PERCENT * judged.value
    for xs, ys in ((_ends(own), [y, y]), ([x, x], _ends(judged))):
        axes.plot(xs, ys, color=colour.light, linewidth=1, alpha=0.6)
    dot(axes, x, y, colour, marker)


def _ends(estimate: Estimate) -> list[float]:
    """Return both ends of an interval in percent; twice the value where there is none."""
    interval = estimate.interval
    ends = (estimate.value, estimate.value) if interval is None else (interval.low, interval.high)
    return [PERCENT * end for end in ends]


def _equal_line(axes: Axes) -> None:
    """Draw where both sides agree, as far as that lies within what is drawn."""
    x, y = axes.get_xlim(), axes.get_ylim()
    low, high = max(x[0], y[0]), min(x[1], y[1])
    if low < high:
        axes.plot([low, high], [low, high], color=FAINT.light, linestyle="--", linewidth=1.1, zorder=1)
        axes.text(high, high, "equal ", color=QUIET.light, fontsize=SMALL_POINTS, ha="right", va="top")
    axes.set_xlim(*x)
    axes.set_ylim(*y)


def _write_names(figure: Figure, axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write each name where it covers no marker and no other name, as far as there is such a place."""
    figure.draw_without_rendering()
    left, right = axes.bbox.x0, axes.bbox.x1
    marks = [tuple(axes.transData.transform(point)) for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
    for name, point, (x, y) in zip(names, points, marks, strict=True):
        boxes = [_box(x, y, name, place) for place in PLACES]
        costs = [_overlap(box, taken) + PERCENT * (box[0] < left or box[2] > right) for box in boxes]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        dx, dy, horizontal, vertical = PLACES[best]
        axes.annotate(
            name, point, (dx, dy), textcoords="offset points", ha=horizontal, va=vertical, fontsize=SMALL_POINTS,
            color=INK.light,
        )  # fmt: skip


def _box(x: float, y: float, name: str, place: tuple[int, int, str, str]) -> Box:
    dx, dy, horizontal, vertical = place
    width, height = CHARACTER_POINTS * len(name), LINE_POINTS
    left = x + dx - {"left": 0.0, "center": width / 2, "right": width}[horizontal]
    bottom = y + dy - {"bottom": 0.0, "center": height / 2, "top": height}[vertical]
    return left, bottom, left + width, bottom + height


def _overlap(box: Box, others: Sequence[Box]) -> float:
    """Return the area that a box shares with others."""
    return sum(_shared(box, other, 0) * _shared(box, other, 1) for other in others)


def _shared(box: Box, other: Box, side: int) -> float:
    return max(0.0, min(box[side + 2], other[side + 2]) - max(box[side], other[side]))
