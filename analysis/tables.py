"""All tables of a sweep, in reading order, and the warnings that stand above them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from analysis.annotations import Validation
from analysis.context import Context, Settings, prepare
from analysis.corrected import corrected
from analysis.extraction import claims_per_answer, verbosity
from analysis.frames import Report, Table
from analysis.inversion import inversion, inversion_by_family
from analysis.judged import group_breakdown, group_composition, leaderboard, model_by_task, task_composition
from analysis.judges import judge_models, judge_pairs, judges
from analysis.leaks import all_at_k, leakage_at_k, worst_at_k
from analysis.memory import accumulation
from analysis.monitoring import probe, self_audit
from analysis.pairs import clustering, model_ranks, paired_differences
from analysis.published import compare
from analysis.records import Dataset
from analysis.retractions import contradicted_attributes, retraction
from analysis.roster import model_versions
from analysis.runs import cost, missing_answers, parameter_changes, parse_failures
from analysis.validation import make_validation_tables
from analysis.within import within_model

TABLES: Final[tuple[Callable[[Context], Table], ...]] = (
    leaderboard,
    model_ranks,
    paired_differences,
    clustering,
    task_composition,
    model_by_task,
    self_audit,
    inversion,
    inversion_by_family,
    within_model,
    probe,
    leakage_at_k,
    all_at_k,
    worst_at_k,
    group_breakdown,
    group_composition,
    accumulation,
    retraction,
    contradicted_attributes,
    claims_per_answer,
    verbosity,
    judges,
    judge_models,
    judge_pairs,
    corrected,
    model_versions,
    missing_answers,
    parse_failures,
    parameter_changes,
    cost,
)
NOTHING_TO_COMPARE: Final = "no model of this sweep bears a label of the paper: nothing to compare with it"
DISPUTED: Final = "judge_disagreements"
ITS_OWN: Final = "judges its own answers"
WHEN_SIMULATED: Final = "SIMULATED: answers come from a simulator; no figure says anything about a real model"
WHEN_TOY: Final = "the judge is a toy: its labels show that the pipeline works and measure nothing"


def make_report(data: Dataset, settings: Settings, validation: Validation | None = None) -> Report:
    """Make every table.

    Parameters
    ----------
    data : Dataset
    settings : Settings
    validation : Validation, optional
        People's labels of a sample of claims; their tables follow the others.

    Raises
    ------
    UnknownJudgeError
        The sweep has no such judge.
    NothingToReportError
        The sweep has no planned answer, or none of them has come.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from analysis.load import load
    >>> from analysis.testing import StoreBuilder
    >>> with TemporaryDirectory() as folder:
    ...     with StoreBuilder(Path(folder) / "store.sqlite") as store:
    ...         store.sweep("small", subjects={"m": "family"})
    ...         store.records(*({"model": "m", "persona": name, "labels": "GRSF"} for name in "abc"))
    ...     report = make_report(load(Path(folder) / "store.sqlite"), Settings(resamples=100))
    >>> found = report.table("leaderboard").row("m")
    >>> found["claims"], found["oi"].value, found["oi"].n
    (12, 0.5, 12)
    """
    return report_of(prepare(data, settings, validation))


def report_of(context: Context, *, against_paper: bool = False) -> Report:
    """Make every table of a sweep that is prepared already; and, if asked to, each beside the paper's."""
    sweep = context.data.sweep
    report = Report(
        sweep=sweep.name,
        simulated=sweep.simulated,
        warnings=tuple(warnings_of(context)),
        tables=(*(make(context) for make in TABLES), *validation_tables(context)),
    )
    if not against_paper:
        return report
    compared = compare(report, context)
    warnings = report.warnings if compared else (*report.warnings, NOTHING_TO_COMPARE)
    return replace(report, warnings=warnings, tables=(*report.tables, *compared))


def validation_tables(context: Context) -> tuple[Table, ...]:
    """Make the tables of the judge against people; none where nobody labelled claims of this judge."""
    if context.human is None or context.validation is None:
        return ()
    # The list of claims in dispute is for `mirage annotate report`, it would be the longest of all.
    return tuple(table for table in make_validation_tables(context.validation) if table.name != DISPUTED)


def warnings_of(context: Context) -> Iterator[str]:
    """Yield what a reader must know before any number, the manifest's own notes last."""
    sweep = context.data.sweep
    if sweep.simulated:
        yield WHEN_SIMULATED
    if sweep.toy_judge and not sweep.notes:
        yield WHEN_TOY
    if judged_by_itself(context) and not any(ITS_OWN in note for note in sweep.notes):
        yield f"the judge {context.label(context.judge)} is also under test: it {ITS_OWN}"
    if not context.judge:
        yield "the sweep has no judge: nothing is labelled"
    yield from sweep.notes


def judged_by_itself(context: Context) -> bool:
    """Return whether the judge is one of the models under test, under its own or another alias."""
    judges = {(model.provider, model.snapshot) for model in context.data.models if model.alias == context.judge}
    same = {(model.provider, model.snapshot) for model in context.subjects} & judges
    return bool(same) or context.judge in context.aliases
