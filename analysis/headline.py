"""The one line that stands last, below all tables: the OI rate, of how many models, by whose labels."""

from math import isnan
from typing import Final

from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Report, Table
from analysis.judged import ALL_MODELS, MEAN_OF_MODELS
from analysis.notes import SIMULATED
from analysis.show import cell_text, inert
from analysis.words import plural

TOY: Final = "the judge is a toy: this measures nothing"
"""Said of every number of such a judge."""


def headline(context: Context, report: Report) -> str:
    """Return the sweep's result in one line, or why it has none.

    Parameters
    ----------
    context : Context
    report : Report
        Its tables.
    """
    table, sweep = report.table("leaderboard"), context.data.sweep
    mark, toy = SIMULATED if sweep.simulated else "", f"; {TOY}" if sweep.toy_judge else ""
    rates = _rates(table)
    if not rates:
        return f"{mark}sweep {inert(sweep.name)}: no claim is labelled, so there is no OI rate yet"
    claims, judge = plural(_claims(table), "claims"), inert(context.label(context.judge))
    return f"{mark}sweep {inert(sweep.name)}: {_level(table, rates)}; {claims}, judge {judge}{toy}"


def _level(table: Table, rates: dict[str, Estimate]) -> str:
    (first, *_), (*_, last) = rates, rates
    if len(rates) == 1:
        return f"{inert(first)} has an OI rate of {_text(table, rates[first])}"
    mean = table.row(MEAN_OF_MODELS)["oi"]
    whole = _text(table, mean) if isinstance(mean, Estimate) else ""
    ends = f"highest {inert(first)} {_text(table, rates[first])}, lowest {inert(last)} {_text(table, rates[last])}"
    return f"mean OI rate of {plural(len(rates), 'models')} {whole}; {ends}"


def _rates(table: Table) -> dict[str, Estimate]:
    """Return the OI rates of the models that have one, highest first."""
    rows = [row for row in table.named_rows() if row["model"] not in (MEAN_OF_MODELS, ALL_MODELS)]
    cells = {str(row["model"]): row["oi"] for row in rows}
    return {name: cell for name, cell in cells.items() if isinstance(cell, Estimate) and not isnan(cell.value)}


def _claims(table: Table) -> int:
    claims = table.row(ALL_MODELS)["claims"]
    return claims if isinstance(claims, int) else 0


def _text(table: Table, estimate: Estimate) -> str:
    """Return a rate with its interval, as the table prints it, with its unit."""
    (column,) = [column for column in table.columns if column.name == "oi"]
    value, *ends = cell_text(estimate, column).split(" ", 1)
    return " ".join([value, "%", *ends])
