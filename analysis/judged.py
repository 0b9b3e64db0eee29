"""Tables of judged task answers: leaderboard, tasks, persona groups.

Each function makes one table from a `Context`. Statistics come from `rates` and `ratios`; here they are only laid out.

References
----------
.. [1] "The Personalization Mirage", Tables 1, 3, 5, 7 and 10, Appendices B, C and E.
"""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Final

import numpy as np

from analysis import rates
from analysis.context import Context
from analysis.estimates import Estimate, Estimates
from analysis.frames import Column, Kind, Row, Table, Value
from analysis.human import corrected_rate, people_notes
from analysis.macro import mean_ratios
from analysis.notes import coverage, denominators_note, interval_note, missing_by_state, titled
from analysis.records import Answers, AnswersT, Mask, Records

MEAN_OF_MODELS: Final = "mean of models"
ALL_MODELS: Final = "all models"
STEREOTYPICAL: Final = ("stereotypical",)
COUNTER: Final = ("counter-stereotypical", "counter")

MODEL: Final = (Column("model", Kind.TEXT), Column("family", Kind.TEXT))
ANSWERS: Final = (
    Column("records", Kind.COUNT, "answers"),
    Column("missing", Kind.COUNT, "answers"),
    Column("why_missing", Kind.TEXT),
    Column("claims", Kind.COUNT, "claims"),
    Column("unread", Kind.COUNT, "elements"),
)
_SHARES: Final = (
    *(Column(label, Kind.SHARE, "share", brief=True) for label in rates.LABELS),
    Column("oi", Kind.SHARE, "share", "OI"),
)
CORRECTED_OI: Final = "corrected_oi"
_OI: Final = len(MODEL) + len(ANSWERS) + rates.OI


def leaderboard(context: Context) -> Table:
    """Make the leaderboard: claims, label shares and OI rate per model, worst first (the paper's Table 1).

    With people's labels, the OI rate corrected for the judge's errors stands beside the judge's.
    """
    by_model = rates.share_estimates(context.judged, context.resamples)
    whole = rates.share_estimates(context.judged, context.resamples, by=())
    claims = context.judged.sum(axis=2)
    rows: list[Row] = [
        (
            model.label,
            model.family,
            *sizes(context, of_model(context.records, place)),
            *_along(by_model, place),
            *_corrected(context, claims[:, place]),
        )
        for place, model in enumerate(context.subjects)
    ]
    macro: Row = (*_macro_shares(context), rates.oi_macro(context.judged, context.resamples))
    mean: Row = (MEAN_OF_MODELS, "", *[None] * len(ANSWERS), *macro, *_corrected(context, claims))
    everything = (*sizes(context, context.records), *_along(whole), *_corrected(context, claims.sum(axis=1)))
    extra = Column(CORRECTED_OI, Kind.SHARE, "share", "corrected OI", brief=True)
    return Table(
        name="leaderboard",
        title=titled(context, "Over-inference per model, as the judge labels it"),
        columns=(*MODEL, *ANSWERS, *_SHARES, *([] if context.human is None else [extra])),
        rows=(*falling(rows, by=_OI), mean, (ALL_MODELS, "", *everything)),
        notes=(
            *judged_notes(context),
            *denominators_note(context, ("records", context.records)),
            "OI is stereotype plus fabricated, as shares of a model's own claims",
            f"{MEAN_OF_MODELS!r} weighs models equally (macro), {ALL_MODELS!r} weighs claims equally (micro)",
            *people_notes(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def task_composition(context: Context) -> Table:
    """Make the composition of claims by task, pooled over models (Tables 3 and 5)."""
    by_task = rates.share_estimates(context.judged, context.resamples, by=("task",))
    whole = rates.share_estimates(context.judged, context.resamples, by=())
    rows: list[Row] = [
        (task, *sizes(context, context.records.where(context.records.task == place)), *_along(by_task, place))
        for place, task in enumerate(context.tasks)
    ]
    return Table(
        name="task_composition",
        title=titled(context, "Claims by task, all models pooled"),
        columns=(Column("task", Kind.TEXT), *ANSWERS, *_SHARES),
        rows=(*falling(rows), ("all tasks", *sizes(context, context.records), *_along(whole))),
        notes=judged_notes(context),
        simulated=context.data.sweep.simulated,
    )


def model_by_task(context: Context) -> Table:
    """Make the matrix of OI rates by model and task (Table 10); `n` of every cell is its number of claims."""
    cells = rates.share_estimates(context.judged, context.resamples, by=("model", "task"))
    by_task = rates.share_estimates(context.judged, context.resamples, by=("task",))
    by_model = rates.share_estimates(context.judged, context.resamples)
    tasks = range(len(context.tasks))
    rows: list[Row] = [
        (model.label, *(cells[place, task, rates.OI] for task in tasks), by_model[place, rates.OI])
        for place, model in enumerate(context.subjects)
    ]
    over, claims = rates.over_inferred(context.judged, by=("model", "task"))
    by_task_macro = mean_ratios(over, claims, context.resamples, method="mean of models' OI rates")
    macro = rates.oi_macro(context.judged, context.resamples)
    micro = rates.oi_micro(context.judged, context.resamples)
    columns = [Column(task, Kind.SHARE, "share", brief=True) for task in context.tasks]
    return Table(
        name="model_by_task",
        title=titled(context, "OI rate by model and task"),
        columns=(Column("model", Kind.TEXT), *columns, Column("all", Kind.SHARE, "share")),
        rows=(
            *falling(rows),
            (MEAN_OF_MODELS, *_along(by_task_macro), macro),
            (ALL_MODELS, *(by_task[task, rates.OI] for task in tasks), micro),
        ),
        notes=judged_notes(context),
        simulated=context.data.sweep.simulated,
    )


def group_breakdown(context: Context) -> Table:
    """Make OI rates by persona group, and stereotypical minus counter-stereotypical (Table 7)."""
    groups, order = context.persona_group, _group_order(context.groups)
    first, second = (_members(context, names) for names in (STEREOTYPICAL, COUNTER))
    found, differences = [], []
    for by in (rates.BY_MODEL, ()):
        found.append(rates.group_estimates(context.judged, groups, len(context.groups), context.resamples, by=by))
        differences.append(rates.group_differences(context.judged, first, second, context.resamples, by=by))
    rows: list[Row] = [
        (label, *(found[0][group, place, rates.OI] for group in order), differences[0][place])
        for place, label in enumerate(context.labels)
    ]
    pooled: Row = (ALL_MODELS, *(found[1][group, rates.OI] for group in order), differences[1][()])
    columns = tuple(Column(context.groups[group], Kind.SHARE, "share") for group in order)
    return Table(
        name="group_breakdown",
        title=titled(context, "OI rate by persona group"),
        columns=(Column("model", Kind.TEXT), *columns, Column("delta", Kind.POINTS, "share")),
        rows=(*falling(rows, by=1), pooled),
        notes=(*judged_notes(context), f"delta: stereotypical minus counter-stereotypical; {_group_sizes(context)}"),
        simulated=context.data.sweep.simulated,
    )


def group_composition(context: Context) -> Table:
    """Make the composition of claims by persona group, pooled over models (Appendix E)."""
    found = rates.group_estimates(context.judged, context.persona_group, len(context.groups), context.resamples, by=())
    rows: tuple[Row, ...] = tuple(
        (context.groups[group], *sizes(context, _of_group(context, group)), *_along(found, group))
        for group in _group_order(context.groups)
    )
    return Table(
        name="group_composition",
        title=titled(context, "Claims by persona group, all models pooled"),
        columns=(Column("group", Kind.TEXT), *ANSWERS, *_SHARES),
        rows=rows,
        notes=(*judged_notes(context), _group_sizes(context)),
        simulated=context.data.sweep.simulated,
    )


def judged_notes(context: Context) -> tuple[str, ...]:
    """Return the notes of a table of judged task answers."""
    judge = context.label(context.judge) or "none"
    return (
        f"judge: {judge}",
        *coverage(context, context.records, "records"),
        interval_note(context),
    )


def of_model(rows: AnswersT, place: int) -> AnswersT:
    """Return one model's rows."""
    return rows.where(rows.model == place)


def _corrected(context: Context, counts: rates.Totals) -> Row:
    """Return the cell of the corrected rate, or no cell where there is nothing to correct by."""
    found = corrected_rate(context, counts)
    return () if found is None else (found,)


def _macro_shares(context: Context) -> tuple[Estimate, ...]:
    """Return the means over models of the four shares."""
    totals = context.judged.sum(axis=2)
    drawn = mean_ratios(totals, totals.sum(axis=-1, keepdims=True), context.resamples, method="mean share of claims")
    return _along(drawn)


def _along(estimates: Estimates, *place: int) -> tuple[Estimate, ...]:
    return tuple(estimates[*place, column] for column in range(estimates.shape[-1]))


def sizes(context: Context, rows: Answers) -> Row:
    """Return the cells of `ANSWERS`: answers read and missing, why, their claims, and elements that were no claim."""
    kept = context.read(rows)
    gone = missing_by_state(rows.state, truncated=context.settings.truncated)
    why = ", ".join(f"{count:,} {state}" for state, count in gone.items())
    return (len(kept), len(rows) - len(kept), why, int(kept.claims.sum()), int(kept.unread.sum()))


def falling(rows: Iterable[Row], by: int = -1) -> list[Row]:
    """Sort rows by the estimate in one column, highest first, those without a number last."""
    return sorted(rows, key=lambda row: _descending(row[by]))


def _descending(value: Value) -> tuple[bool, float]:
    number = value.value if isinstance(value, Estimate) else 0.0
    return isnan(number), 0.0 if isnan(number) else -number


def _group_order(groups: Sequence[str]) -> list[int]:
    wanted = (*STEREOTYPICAL, *COUNTER)
    return sorted(range(len(groups)), key=lambda at: wanted.index(groups[at]) if groups[at] in wanted else len(wanted))


def _members(context: Context, names: Sequence[str]) -> Mask:
    return np.isin(context.persona_group, [at for at, group in enumerate(context.groups) if group in names])


def _of_group(context: Context, group: int) -> Records:
    return context.records.where(context.records.group == group)


def _group_sizes(context: Context) -> str:
    sizes = [f"{(context.persona_group == at).sum()} {context.groups[at]}" for at in _group_order(context.groups)]
    return f"personas: {', '.join(sizes)}"
