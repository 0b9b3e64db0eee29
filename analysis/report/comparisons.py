"""Figures that compare rates row by row: models, labels, tasks, persona groups, probe against task.

Every function takes the tables by name and the aliases of the models under test, and returns None where the tables hold
nothing to draw.
"""

from collections.abc import Sequence
from math import isnan
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.estimates import Estimate
from analysis.frames import Kind, Table, Value
from analysis.judged import ALL_MODELS, CORRECTED_OI, MEAN_OF_MODELS
from analysis.report.drawing import (
    EDGE_INCHES,
    ROW_INCHES,
    Drawing,
    Tables,
    as_estimate,
    axes_of,
    dot,
    drawn,
    extremes,
    family_keys,
    family_looks,
    key,
    keys,
    looks,
    name_rows,
    sheet,
    whisker,
    zero_line,
)
from analysis.report.palette import BLUE, FAINT, INK, LABELS, PAPER, SERIES, Colour
from analysis.show import inert

PERCENT: Final = 100
OI_PERCENT: Final = "OI rate, % of claims"
LEGEND_INCHES: Final = 0.3
#: Rows between a row's middle and either of two marks in it.
BESIDE: Final = 0.2


def leaderboard(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw every model's OI rate with its interval, and the mean of the models as a line."""
    table = tables["leaderboard"]
    rows = [row for row in _rows_of(table, subjects) if not isnan(as_estimate(row["oi"]).value)]
    if not rows:
        return None
    names, rates = [str(row["model"]) for row in rows], [as_estimate(row["oi"]) for row in rows]
    family = family_looks(tables, subjects)
    mean = as_estimate(table.row(MEAN_OF_MODELS)["oi"]).value
    corrected = [as_estimate(row.get(CORRECTED_OI)) for row in rows]
    people = any(not isnan(estimate.value) for estimate in corrected)

    def paint() -> Figure:
        figure = sheet((1.5 if people else 1) * ROW_INCHES * len(rows) + EDGE_INCHES + LEGEND_INCHES * (1 + people))
        axes = axes_of(figure)
        zero_line(axes, PERCENT * mean)
        for place, row in enumerate(rows):
            look = family[str(row["family"])]
            whisker(axes, place - BESIDE * people, rates[place], *look, scale=PERCENT)
            whisker(axes, place + BESIDE, corrected[place], *look, scale=PERCENT, hollow=True)
        name_rows(axes, names)
        axes.set_xlabel(OI_PERCENT)
        entries = family_keys(family, [row["family"] for row in rows])
        keys(figure, [*entries, *([key("hollow: corrected by people", INK, hollow=True)] if people else [])])
        return figure

    also = " Hollow marks: corrected for the judge's errors by people's labels." if people else ""
    words = extremes(names, [rate.value for rate in corrected])
    return drawn(
        "leaderboard",
        "OI rate of each model with its 95 % interval over personas; the vertical line is the mean of the models."
        f"{also}",
        f"Dot plot of OI rates by model with intervals. {extremes(names, [rate.value for rate in rates])}"
        f" Mean of models {PERCENT * mean:.1f} %.{f' Corrected by people: {words}' if people else ''}",
        paint,
        simulated=table.simulated,
    )


def composition(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw what every model's claims consist of, as stacked bars."""
    table = tables["leaderboard"]
    rows = [row for row in _rows_of(table, subjects) if not isnan(as_estimate(row["oi"]).value)]
    if not rows:
        return None

    def paint() -> Figure:
        figure = sheet(ROW_INCHES * len(rows) + EDGE_INCHES + LEGEND_INCHES)
        axes = axes_of(figure)
        for place, row in enumerate(rows):
            left = 0.0
            for label in LABELS:
                width = PERCENT * as_estimate(row[label.name]).value
                axes.barh(place, width, left=left, height=0.72, color=label.light, edgecolor=PAPER.light, linewidth=0.8)
                left += width
        name_rows(axes, [str(row["model"]) for row in rows])
        axes.set_xlim(0, PERCENT)
        axes.set_xlabel("% of the model's claims")
        keys(figure, [Patch(facecolor=label.light, label=label.name) for label in LABELS])
        return figure

    words = "; ".join(
        f"{inert(str(row['model']))}: "
        + ", ".join(f"{label.name} {PERCENT * as_estimate(row[label.name]).value:.0f} %" for label in LABELS)
        for row in rows
    )
    return drawn(
        "composition",
        "What the claims consist of. Blue is supported by the three facts, orange is over-inference.",
        f"Stacked bars of label shares by model. {words}.",
        paint,
        simulated=table.simulated,
    )


def gradient(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw OI rates by task: all models pooled with intervals, and each model as a faint mark behind."""
    table, by_model = tables["task_composition"], tables["model_by_task"]
    rows = [row for row in list(table.named_rows())[:-1] if not isnan(as_estimate(row["oi"]).value)]
    if not rows:
        return None
    tasks, rates = [str(row["task"]) for row in rows], [as_estimate(row["oi"]) for row in rows]
    behind = [[as_estimate(row[task]).value for row in _rows_of(by_model, subjects)] for task in tasks]

    def paint() -> Figure:
        figure = sheet(1.25 * ROW_INCHES * len(rows) + EDGE_INCHES + LEGEND_INCHES)
        axes = axes_of(figure)
        for place, rate in enumerate(rates):
            known = [PERCENT * value for value in behind[place] if not isnan(value)]
            axes.plot(known, [place] * len(known), linestyle="none", marker="|", markersize=9, color=FAINT.light)
            whisker(axes, place, rate, BLUE, scale=PERCENT)
        name_rows(axes, tasks)
        axes.set_xlabel(OI_PERCENT)
        keys(figure, [key("all models", BLUE), key("one model", FAINT, "|")])
        return figure

    return drawn(
        "gradient",
        "OI rate by task, all models pooled, with 95 % intervals; each stroke is one model.",
        f"Dot plot of OI rates by task, all models pooled. {extremes(tasks, [rate.value for rate in rates])}",
        paint,
        simulated=table.simulated,
    )


def groups(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw OI rates by persona group, one row a model, and the pooled gap in words."""
    table = tables["group_breakdown"]
    names = [column.name for column in table.columns if column.kind is Kind.SHARE]
    rows = [row for row in table.named_rows() if row["model"] in {*subjects, ALL_MODELS}]
    rows = [row for row in rows if any(not isnan(as_estimate(row[name]).value) for name in names)]
    if not rows or not names:
        return None
    look = looks(names)

    def paint() -> Figure:
        figure = sheet(ROW_INCHES * len(rows) + EDGE_INCHES + LEGEND_INCHES)
        axes = axes_of(figure)
        for place, row in enumerate(rows):
            _dumbbell(axes, place, [as_estimate(row[name]).value for name in names], list(look.values()))
        name_rows(axes, [str(row["model"]) for row in rows])
        axes.set_xlabel(OI_PERCENT)
        keys(figure, [key(name, *look[name]) for name in names], columns=3)
        return figure

    pooled = as_estimate(table.row(ALL_MODELS)["delta"])
    return drawn(
        "groups",
        "OI rate by persona group, one row a model. The table below gives the gaps with their intervals.",
        f"Dots of OI rates by persona group and model. All models pooled, stereotypical minus counter-stereotypical:"
        f" {_points(pooled)}.",
        paint,
        simulated=table.simulated,
    )


def probe(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw the probe's error and OI rates beside the OI rate of task answers."""
    table = tables["probe"]
    kinds = {"error": "incorrect when asked", "probe_oi": "OI when asked", "task_oi": "OI in tasks"}
    rows = [row for row in _rows_of(table, subjects) if not isnan(as_estimate(row["error"]).value)]
    if not rows:
        return None
    look = dict(zip(kinds, zip(SERIES, ("o", "^", "s"), strict=False), strict=False))

    def paint() -> Figure:
        figure = sheet(ROW_INCHES * len(rows) + EDGE_INCHES + LEGEND_INCHES)
        axes = axes_of(figure)
        for place, row in enumerate(rows):
            _dumbbell(axes, place, [as_estimate(row[name]).value for name in kinds], [look[name] for name in kinds])
        name_rows(axes, [str(row["model"]) for row in rows])
        axes.set_xlabel("% of claims")
        keys(figure, [key(words, *look[name]) for name, words in kinds.items()], columns=3)
        return figure

    errors = [as_estimate(row["error"]).value for row in rows]
    return drawn(
        "probe",
        "The same models asked directly what they infer, and at work on tasks.",
        "Dots by model: share of incorrect claims when asked directly, OI rate when asked directly, OI rate in tasks."
        f" Incorrect when asked: {extremes([str(row['model']) for row in rows], errors)}",
        paint,
        simulated=table.simulated,
    )


def self_ranking(tables: Tables, subjects: Sequence[str]) -> Drawing | None:
    """Draw each model's AUROC of self-audit against judge, with the line of pure chance."""
    table = tables.get("within_model")
    if table is None or "auroc" not in [column.name for column in table.columns]:
        return None
    rows = [row for row in _rows_of(table, subjects) if not isnan(as_estimate(row["auroc"]).value)]
    if not rows:
        return None
    names, values = [str(row["model"]) for row in rows], [as_estimate(row["auroc"]) for row in rows]

    def paint() -> Figure:
        figure = sheet(ROW_INCHES * len(rows) + EDGE_INCHES)
        axes = axes_of(figure)
        zero_line(axes, 0.5)
        for place, value in enumerate(values):
            whisker(axes, place, value, BLUE)
        name_rows(axes, names)
        axes.set_xlabel("AUROC; 0.5 is chance")
        return figure

    return drawn(
        "within_model",
        "How well a model's self-audit ranks its own answers by the judge's OI rate. The line at 0.5 is chance.",
        f"Dot plot of AUROC by model. {extremes(names, [value.value for value in values], unit='', scale=1)}",
        paint,
        simulated=table.simulated,
    )


def _rows_of(table: Table, subjects: Sequence[str]) -> list[dict[str, Value]]:
    """Return the rows of models under test, without means and totals."""
    return [row for row in table.named_rows() if row["model"] in subjects]


def _dumbbell(axes: Axes, place: int, values: Sequence[float], looks_of: Sequence[tuple[Colour, str]]) -> None:
    known = [PERCENT * value for value in values if not isnan(value)]
    if known:
        axes.plot([min(known), max(known)], [place, place], color=FAINT.light, linewidth=1.6, zorder=1)
    for value, (colour, marker) in zip(values, looks_of, strict=True):
        if not isnan(value):
            dot(axes, PERCENT * value, place, colour, marker)


def _points(estimate: Estimate) -> str:
    if isnan(estimate.value):
        return "not known"
    text = f"{PERCENT * estimate.value:+.1f} percentage points"
    if estimate.interval is None:
        return text
    return f"{text}, 95 % interval {PERCENT * estimate.interval.low:+.1f} to {PERCENT * estimate.interval.high:+.1f}"
