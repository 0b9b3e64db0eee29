"""Assembles the page: one HTML document that needs nothing else, runs only its own script and lets nothing out.

Templates escape everything they are given. A content policy names the page's own style and script by their hashes, so
that markup which slipped through would still neither run nor load anything.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from analysis.estimates import Estimate
from analysis.export import csv_text
from analysis.frames import Column, Kind, Table, Value
from analysis.report.drawing import SIMULATED
from analysis.report.island import Islands
from analysis.report.palette import style_sheet
from analysis.report.provenance import Provenance
from analysis.report.sections import Section
from analysis.show import cell_text, footnotes, headings, visible

ASSETS: Final = "assets"
#: Characters of CSV that may stand in a link as they are.
PLAIN: Final = ",:;=+()[]/-._~'*!@$?"
POLICY: Final = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that stands on the page.

    Parameters
    ----------
    sweep : str
    simulated : bool
    warnings, findings, caveats : tuple of str
        Sentences, in order.
    sections : tuple of Section
    islands : Islands
        The explorer's data.
    provenance : Provenance
    """

    sweep: str
    simulated: bool
    warnings: tuple[str, ...]
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    sections: tuple[Section, ...]
    islands: Islands
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as the page shows it: the number or text, its interval, and whether it is a number."""

    text: str
    interval: str
    number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table as the page shows it."""

    name: str
    title: str
    headings: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]
    download: str


def render(contents: Contents) -> str:
    """Return the page as HTML."""
    style, script = style_sheet() + _asset("page.css"), _asset("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    environment.filters["breakable"] = breakable
    template = environment.from_string(_asset("page.html"))
    return template.render(
        page=contents,
        mark=SIMULATED,
        policy=POLICY.format(style=_hash(style), script=_hash(script)),
        # Our own files, and JSON without a `<`: the only texts that are not escaped beside drawings and links.
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        index=Markup(contents.islands.index),  # noqa: S704
        pieces=[Markup(piece) for piece in contents.islands.pieces],  # noqa: S704
        sections=[
            (
                section,
                [(drawing, Markup(drawing.svg)) for drawing in section.drawings],  # noqa: S704
                [sheet(table, contents.warnings, contents.sweep) for table in section.tables],
            )
            for section in contents.sections
        ],
    )


def breakable(text: str) -> Markup:
    """Return a text as markup in which a line may break after every underscore.

    Examples
    --------
    >>> breakable("weekend_<b>")
    Markup('weekend_<wbr>&lt;b&gt;')
    """
    return Markup("_<wbr>").join(text.split("_"))


def sheet(table: Table, warnings: Sequence[str], sweep: str) -> Sheet:
    """Return a table as the page shows it, with its CSV in a link; the page's own heading names the sweep."""
    numbers = [column.kind is not Kind.TEXT for column in table.columns]
    return Sheet(
        name=table.name,
        title=visible(table.title.removesuffix(f" (sweep {sweep})")),
        headings=tuple(Cell(heading, "", number) for heading, number in zip(headings(table), numbers, strict=True)),
        rows=tuple(tuple(_cells(row, table.columns)) for row in table.rows),
        notes=tuple(footnotes(table)),
        download=csv_link(table, warnings),
    )


def csv_link(table: Table, warnings: Sequence[str]) -> str:
    """Return a table's CSV as the address of a download; formulas in it are inert, as in exported files."""
    return "data:text/csv;charset=utf-8," + quote(csv_text(table, warnings), safe=PLAIN)


def _cells(row: Sequence[Value], columns: Sequence[Column]) -> Iterator[Cell]:
    for value, column in zip(row, columns, strict=True):
        text = cell_text(value, column)
        if isinstance(value, Estimate) and value.interval is not None:
            middle, space, rest = text.partition(" ")
            yield Cell(middle, space + rest, True)
        else:
            yield Cell(text, "", column.kind is not Kind.TEXT)


def _asset(name: str) -> str:
    return (files(__package__) / ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}"
