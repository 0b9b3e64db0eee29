"""All tables of a sweep, in reading order, and the warnings that stand above them."""

from collections.abc import Callable, Iterator
from typing import Final

from analysis.context import Context, Settings, prepare
from analysis.frames import Report, Table
from analysis.judged import group_breakdown, group_composition, leaderboard, model_by_task, task_composition
from analysis.memory import accumulation
from analysis.monitoring import probe, self_audit
from analysis.records import Dataset
from analysis.runs import cost, missing_answers, parameter_changes, parse_failures

TABLES: Final[tuple[Callable[[Context], Table], ...]] = (
    leaderboard,
    task_composition,
    model_by_task,
    self_audit,
    group_breakdown,
    group_composition,
    accumulation,
    probe,
    missing_answers,
    parse_failures,
    parameter_changes,
    cost,
)
WHEN_SIMULATED: Final = "SIMULATED: answers come from a simulator; no figure says anything about a real model"
WHEN_TOY: Final = "the judge is a toy: its labels show that the pipeline works and measure nothing"


def make_report(data: Dataset, settings: Settings) -> Report:
    """Make every table.

    Raises
    ------
    UnknownJudgeError
        The sweep has no such judge.
    NothingToReportError
        The sweep has no planned answer.
    """
    context = prepare(data, settings)
    return Report(
        sweep=data.sweep.name,
        simulated=data.sweep.simulated,
        warnings=tuple(warnings_of(context)),
        tables=tuple(make(context) for make in TABLES),
    )


def warnings_of(context: Context) -> Iterator[str]:
    """Yield what a reader must know before any number, the manifest's own notes last."""
    sweep = context.data.sweep
    if sweep.simulated:
        yield WHEN_SIMULATED
    if sweep.toy_judge and not sweep.notes:
        yield WHEN_TOY
    if judged_by_itself(context):
        yield f"the judge {context.label(context.judge)} is also under test: it judges its own answers"
    if not context.judge:
        yield "the sweep has no judge: nothing is labelled"
    yield from sweep.notes


def judged_by_itself(context: Context) -> bool:
    """Return whether the judge is one of the models under test, under its own or another alias."""
    judges = {(model.provider, model.snapshot) for model in context.data.models if model.alias == context.judge}
    same = {(model.provider, model.snapshot) for model in context.subjects} & judges
    return bool(same) or context.judge in context.aliases
