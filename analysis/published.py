"""Sets our tables beside the paper's published ones, cell by cell, for models that bear the same label.

The published figures are data (`data/paper.json`), with remarks on where the paper disagrees with itself. Nothing here
is ever tuned to them. This module computes differences only.

References
----------
.. [1] "The Personalization Mirage", all tables and the figures that its text alone gives.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from math import isnan
from typing import Any, Final, TypeAlias

from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Report, Row, Table, Value
from analysis.inversion import FAMILIES, MODELS, RHO
from analysis.judged import ALL_MODELS, MEAN_OF_MODELS
from analysis.notes import titled
from analysis.words import plural

PAPER: Final = "paper"
OVER: Final = {MODELS: "models", FAMILIES: "families"}
POOLS: Final = frozenset({MEAN_OF_MODELS, ALL_MODELS})
#: Rows of ours by the name that the published row has.
Rows: TypeAlias = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The paper's figures.

    Parameters
    ----------
    source, judge : str
        Where they are from; the label of the paper's judge.
    families : mapping of str to str
        Family of every model under test, by label.
    tables : mapping
        Published values by table, row and our column; shares as fractions of 1.
    remarks, marks : mapping
        Where the paper disagrees with itself: lines by table, and words by table and row.
    """

    source: str
    judge: str
    families: Mapping[str, str]
    tables: Mapping[str, Mapping[str, Mapping[str, float | str]]]
    remarks: Mapping[str, Sequence[str]]
    marks: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """Which of our tables a published one is about.

    Parameters
    ----------
    ours, title : str
        The name of our table, and what to call the published one.
    pooled : bool
        Every row pools models, so that it compares only for the same models.
    rows : callable
        Finds our rows by their published names.
    kind : Kind
        Of the column `value`, where our table has none.
    """

    ours: str
    title: str
    pooled: bool = False
    rows: Callable[[Table], Rows]
    kind: Kind = Kind.NUMBER


def published_figures() -> Published:
    """Return the paper's figures."""
    text = files("analysis").joinpath("data/paper.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return Published(**document)


def compare(report: Report, context: Context) -> tuple[Table, ...]:
    """Make one table per published table that shares a row with ours: ours, published, difference.

    Rows of models are compared where labels agree, rows that pool models only where all models are the paper's.

    Parameters
    ----------
    report : Report
    context : Context
        That the report was made of.
    """
    paper = published_figures()
    ours = {table.name: table for table in report.tables}
    matches = {name: match for name, match in MATCHES.items() if match.ours in ours}
    made = (_compared(context, paper, name, match, ours[match.ours]) for name, match in matches.items())
    return tuple(table for table in made if table.rows)


def _compared(context: Context, paper: Published, name: str, match: _Match, ours: Table) -> Table:
    rows, wanted, marks = match.rows(ours), paper.tables[name], paper.marks.get(name, {})
    whole = set(context.labels) == set(paper.families)
    shared = [row for row in wanted if row in rows and (whole or not (match.pooled or row in POOLS))]
    known = [quantity for quantity in _quantities(wanted) if any(quantity in rows[row] for row in shared)]
    kinds = {column.name: column for column in ours.columns}
    columns = [kinds.get(quantity, Column(quantity, match.kind, digits=3)) for quantity in known]
    marked = any(row in marks for row in shared)
    cells: list[Row] = [
        (
            row,
            *(cell for column in columns for cell in _cells(column, rows[row], wanted[row])),
            *([marks.get(row, "")] if marked else []),
        )
        for row in shared
    ]
    return Table(
        name=f"{PAPER}_{name}",
        title=titled(context, f"Beside the paper: {match.title}"),
        columns=(
            Column("row", Kind.TEXT, label=ours.columns[0].heading),
            *(each for column in columns for each in _columns(column)),
            *([Column("remark", Kind.TEXT)] if marked else []),
        ),
        rows=tuple(cells),
        notes=tuple(_notes(context, paper, name, cells)),
        simulated=context.data.sweep.simulated,
    )


def _quantities(wanted: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(quantity for row in wanted.values() for quantity in row))


def _columns(ours: Column) -> Iterator[Column]:
    """Yield the columns of one quantity: ours, the published value and, for numbers, their difference."""
    yield replace(ours, brief=True)
    yield replace(ours, name=f"{ours.name}_published", label="published", brief=False)
    if ours.kind is not Kind.TEXT:
        kind = Kind.POINTS if ours.kind is Kind.SHARE else ours.kind
        yield replace(ours, name=f"{ours.name}_difference", label="difference", kind=kind, brief=False)


def _cells(column: Column, ours: Mapping[str, Value], wanted: Mapping[str, float | str]) -> Iterator[Value]:
    value, published = ours.get(column.name), wanted.get(column.name)
    yield value
    yield published
    if column.kind is not Kind.TEXT:
        yield _difference(value, published)


def _difference(value: Value, published: float | str | None) -> float | None:
    number = value.value if isinstance(value, Estimate) else value
    if isinstance(number, str) or isinstance(published, str) or number is None or published is None or isnan(number):
        return None
    return number - published


def _notes(context: Context, paper: Published, name: str, rows: Sequence[Row]) -> Iterator[str]:
    judge = context.label(context.judge) or "none"
    same = "the same label" if judge == paper.judge else f"the paper's is {paper.judge}: rates need not agree"
    yield f"judge: {judge}; {same}"
    shared = set(context.labels) & set(paper.families)
    if shared != set(paper.families) or len(shared) != len(context.labels):
        yield (
            f"{plural(len(shared), 'models')} of the paper's {len(paper.families)} are in this sweep"
            f" ({plural(len(context.labels), 'models')}): rows that pool models are left out"
        )
    inside, of = _inside(rows)
    if of:
        yield f"published value inside our interval in {inside} of {plural(of, 'cells')}"
    yield "difference: ours minus published; published values as printed, rounded"
    yield from (f"the paper itself: {remark}" for remark in paper.remarks.get(name, ()))


def _inside(rows: Sequence[Row]) -> tuple[int, int]:
    """Count the published values that lie inside the interval of the cell before them, and all that could."""
    pairs = [
        (value.interval, published)
        for row in rows
        for value, published in pairwise(row)
        if isinstance(value, Estimate) and value.interval is not None and isinstance(published, int | float)
    ]
    return sum(interval.low <= published <= interval.high for interval, published in pairs), len(pairs)


def _by_first(table: Table) -> Rows:
    """Find rows by their first cell."""
    return {str(row[table.columns[0].name]): row for row in table.named_rows()}


def _retaining(table: Table) -> Rows:
    """Find the memory rows under the paper's prompt, which asks to retain."""
    return {str(row["model"]): row for row in table.named_rows() if "retain" in str(row["prompt"])}


def _any_human(table: Table) -> Rows:
    """Find the row of the only annotator, or of the majority, which comes last."""
    rows = list(table.named_rows())
    return {"human": rows[-1]} if rows else {}


def _inverted(table: Table) -> Rows:
    """Find the coefficient, its p and the ends of its intervals."""
    rho = [row for row in table.named_rows() if row["statistic"] == RHO]
    found: dict[str, Value] = {}
    for row in rho:
        estimate, over = row["value"], row["interval_over"]
        if not isinstance(estimate, Estimate):
            continue
        if row["p"] is not None:
            found |= {
                "Spearman's rho": replace(estimate, interval=None),
                "p by permutation": row["p"],
                "models": row["n"],
            }
        if estimate.interval is not None and over in OVER:
            found[f"interval over {OVER[str(over)]}, low end"] = estimate.interval.low
            found[f"interval over {OVER[str(over)]}, high end"] = estimate.interval.high
    return {name: {"value": value} for name, value in found.items()}


def _probed(table: Table) -> Rows:
    """Find the range of probe errors over models, and the mean gap."""
    rows = _by_first(table)
    models = [row["error"] for name, row in rows.items() if name != MEAN_OF_MODELS]
    errors = [value for value in models if isinstance(value, Estimate) and not isnan(value.value)]
    if not errors:
        return {}
    return {
        "lowest error of a model": {"value": min(errors, key=lambda found: found.value)},
        "highest error of a model": {"value": max(errors, key=lambda found: found.value)},
        "task OI minus probe error, mean of models": {"value": rows[MEAN_OF_MODELS]["gap_to_error"]},
    }


def _verbose(table: Table) -> Rows:
    """Find the pooled correlation in self-audit data."""
    return {"r, output length and OI rate, self-audit data": {"value": _by_first(table)[ALL_MODELS]["self_claims"]}}


MATCHES: Final[Mapping[str, _Match]] = {
    "table1": _Match(ours="leaderboard", title="Table 1, leaderboard", rows=_by_first),
    "table2": _Match(ours="self_audit", title="Table 2, self-audit against judge", rows=_by_first),
    "table2_caption": _Match(ours="inversion", title="the inversion's coefficient", pooled=True, rows=_inverted),
    "table3": _Match(ours="task_composition", title="Tables 3 and 5, tasks", pooled=True, rows=_by_first),
    "table4": _Match(ours="accumulation", title="Table 4, memory growth", rows=_retaining),
    "table6": _Match(ours="within_model", title="Table 6, self-audit within models", rows=_by_first),
    "table7": _Match(ours="group_breakdown", title="Table 7, persona groups", rows=_by_first),
    "table8": _Match(ours="accumulation", title="Table 8, regression and removal", rows=_retaining),
    "table9": _Match(ours="model_versions", title="Table 9, model versions", rows=_by_first),
    "table10": _Match(ours="model_by_task", title="Table 10, models by task", rows=_by_first),
    "table11": _Match(ours="judge_agreement", title="Table 11, judge against people", rows=_any_human),
    "h2": _Match(ours="judge_by_label", title="H.2, agreement per label", rows=_by_first),
    "h3": _Match(ours="judge_confusion", title="H.3, confusion", rows=_by_first),
    "appendix_d": _Match(ours="claims_per_answer", title="Appendix D, claims per answer", rows=_by_first),
    "appendix_e": _Match(
        ours="group_composition", title="Appendix E, composition by group", pooled=True, rows=_by_first
    ),
    "probe": _Match(ours="probe", title="probe errors and their gap", pooled=True, rows=_probed, kind=Kind.SHARE),
    "verbosity": _Match(ours="verbosity", title="verbosity", pooled=True, rows=_verbose),
}
