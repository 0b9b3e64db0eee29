"""The parts of the page: which tables and figures stand together, and how each part introduces itself.

Tables that no part names come last, so that a new table is never left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from analysis.frames import Table
from analysis.report import comparisons, panels, relations, spending
from analysis.report.drawing import Draw, Drawing, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The plan of one part of the page.

    Parameters
    ----------
    name : str
        Its anchor.
    title, words : str
        Heading, and a sentence or two on what is shown.
    figures : tuple of callables
    tables : tuple of str
        Names of tables, in order; those that do not exist are passed over.
    """

    name: str
    title: str
    words: str
    figures: tuple[Draw, ...] = ()
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page with what it holds; `bare` says why it has no figure although one belongs there."""

    name: str
    title: str
    words: str
    drawings: tuple[Drawing, ...]
    tables: tuple[Table, ...]
    bare: bool


PARTS: Final = (
    Part(
        name="leaderboard",
        title="Leaderboard",
        words="How much of what a model says about a user goes beyond the evidence. OI, over-inference, is the share of"
        " a model's claims that the judge calls stereotype or fabricated. Lower is better.",
        figures=(comparisons.leaderboard, comparisons.composition),
        tables=("leaderboard", "model_ranks", "paired_differences", "clustering"),
    ),
    Part(
        name="inversion",
        title="Self-audit against judge",
        words="Whether models that report little over-inference of themselves have little of it. A cross-model pattern"
        " over so few models is exploratory.",
        figures=(relations.inversion,),
        tables=("self_audit", "inversion", "inversion_by_family"),
    ),
    Part(
        name="within_model",
        title="Self-audit within a model",
        words="Whether a model's own audit at least ranks its own answers as the judge does.",
        figures=(comparisons.self_ranking,),
        tables=("within_model",),
    ),
    Part(
        name="gradient",
        title="Imagination gradient",
        words="The further a task leads away from what the user has said, the more must be imagined.",
        figures=(comparisons.gradient,),
        tables=("task_composition", "model_by_task"),
    ),
    Part(
        name="groups",
        title="Persona groups",
        words="Whether users who fit the stereotypes of their occupation or age are treated differently from users who"
        " do not.",
        figures=(comparisons.groups,),
        tables=("group_breakdown", "group_composition"),
    ),
    Part(
        name="accumulation",
        title="Memory over a conversation",
        words="How many attributes that nobody stated a model's memory of the user holds after each round.",
        figures=(panels.accumulation,),
        tables=("accumulation_rounds", "accumulation", "retraction", "contradicted_attributes"),
    ),
    Part(
        name="leakage",
        title="Leakage over repeated samples",
        words="What comes out when the same request is answered k times: the chance that at least one answer leaks.",
        figures=(panels.leakage,),
        tables=("leakage_at_k", "all_at_k", "worst_at_k"),
    ),
    Part(
        name="probe",
        title="Probe",
        words="What models infer when asked directly, beside what they infer while they write for the user.",
        figures=(comparisons.probe,),
        tables=("probe",),
    ),
    Part(
        name="length",
        title="Length of answers",
        words="Whether models over-infer more simply because they write more.",
        tables=("verbosity", "claims_per_answer"),
    ),
    Part(
        name="judges",
        title="Judges and people",
        words="How far the labels can be trusted: judges against each other, and against people where people have"
        " labelled a sample.",
        tables=(
            "judges",
            "judge_models",
            "judge_pairs",
            "judge_agreement",
            "judge_by_label",
            "judge_confusion",
            "judge_disagreement_structure",
            "judge_corrected",
            "annotator_agreement",
            "corrected",
        ),
    ),
    Part(
        name="cost",
        title="Cost and throughput",
        words="What the sweep asked for and paid, and how fast answers came.",
        figures=(spending.cost,),
        tables=("cost", "throughput"),
    ),
    Part(
        name="missing",
        title="What is missing",
        words="Answers that are not in the tables above, and why. None of them is counted as zero.",
        tables=("missing_answers", "parse_failures", "parameter_changes", "model_versions"),
    ),
)
MORE: Final = Part(name="more", title="Further tables", words="Tables that belong to no part above.")


def sections(tables: Tables, subjects: Sequence[str]) -> Iterator[Section]:
    """Yield the parts that have a table, with their figures drawn.

    Parameters
    ----------
    tables : mapping from name to Table
    subjects : sequence of str
        Printed names of the models under test.
    """
    for part in PARTS:
        yield from _section(part, tables, subjects)
    named = {name for part in PARTS for name in part.tables}
    rest = tuple(name for name in tables if name not in named)
    yield from _section(
        Part(name=MORE.name, title=MORE.title, words=MORE.words, tables=rest), tables, subjects
    )  # fmt: skip


def _section(part: Part, tables: Tables, subjects: Sequence[str]) -> Iterator[Section]:
    held = tuple(tables[name] for name in part.tables if name in tables)
    if held:
        drawings = tuple(drawing for draw in part.figures if (drawing := draw(tables, subjects)) is not None)
        yield Section(
            name=part.name,
            title=part.title,
            words=part.words,
            drawings=drawings,
            tables=held,
            bare=bool(part.figures) and not drawings,
        )
