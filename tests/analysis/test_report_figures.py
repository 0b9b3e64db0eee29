"""Figures: what may come through into the page, and what a figure says to those who do not see it."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from analysis.context import Settings, prepare
from analysis.frames import Table
from analysis.load import load
from analysis.report import comparisons, panels, relations, spending
from analysis.report.drawing import Draw, drawn, family_looks, looks, short
from analysis.report.palette import COLOURS, SERIES, style_sheet
from analysis.report.rounds import accumulation_rounds
from analysis.report.testing import Design, build_store
from analysis.tables import report_of

DRAWINGS = (
    comparisons.leaderboard,
    comparisons.composition,
    comparisons.gradient,
    comparisons.groups,
    comparisons.probe,
    comparisons.self_ranking,
    relations.inversion,
    panels.accumulation,
    panels.leakage,
    spending.cost,
)
HOSTILE = (
    "</text></svg><script>alert(1)</script>",
    "$\\frac{1}{",
    "a\x1b[31m\u202eb",
    "=cmd|' /C calc'!A0",
    "中文",
)
Tables = dict[str, Table]
Made = tuple[Tables, tuple[str, ...]]


def tables_of(path: Path, design: Design) -> Made:
    context = prepare(load(build_store(path, design)), Settings(resamples=200))
    tables = (*report_of(context).tables, accumulation_rounds(context))
    return {table.name: table for table in tables}, context.labels


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return tables_of(tmp_path_factory.mktemp("plain") / "store.sqlite", Design())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Made:
    models = {f"m{place}": HOSTILE[-1 - place] for place in range(len(HOSTILE))}
    labels = {f"m{place}": name for place, name in enumerate(HOSTILE)}
    design = Design(models=models, labels=labels, tasks=(HOSTILE[0], HOSTILE[1]), simulated=True)
    return tables_of(tmp_path_factory.mktemp("hostile") / "store.sqlite", design)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - our own


def sketch(paint: Callable[[Figure], object] = str, *, simulated: bool = False) -> str:
    def painted() -> Figure:
        figure = Figure(figsize=(2, 1))
        paint(figure)
        return figure

    return drawn("sketch", "A sketch.", "words", painted, simulated=simulated).svg


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_every_figure_is_drawn_from_a_full_sweep(draw: Draw, plain: Made) -> None:
    """A sweep with every stage gives every figure, with a caption and words."""
    drawing = draw(*plain)
    assert drawing is not None
    assert drawing.caption.endswith(".")
    root = parsed(drawing.svg)
    assert root.get("role") == "img"
    assert len(root.get("aria-label", "")) > 20


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_foreign_names_stay_text_in_figures(draw: Draw, hostile: Made) -> None:
    """Names that are markup, formulas or escapes neither break a figure nor act in it."""
    drawing = draw(*hostile)
    assert drawing is not None
    assert "<script" not in drawing.svg
    assert "\x1b" not in drawing.svg
    assert "\u202e" not in drawing.svg
    assert {element.tag for element in parsed(drawing.svg).iter()} <= {
        "svg", "g", "path", "use", "text", "tspan", "defs", "clipPath", "rect",
    }  # fmt: skip


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_figures_of_simulated_sweeps_say_so(draw: Draw, plain: Made, hostile: Made) -> None:
    """The mark is part of the drawing and of its words; real sweeps do not have it."""
    simulated, real = draw(*hostile), draw(*plain)
    assert simulated is not None
    assert real is not None
    root = parsed(simulated.svg)
    assert "SIMULATED" in [text.text for text in root.iter("text")]
    assert root.get("aria-label", "").startswith("SIMULATED. ")
    assert "SIMULATED" not in real.svg


def test_a_figure_holds_no_style_and_no_outward_reference(plain: Made) -> None:
    """A strict content policy forbids inline styles; links lead to the figure's own ids."""
    drawing = comparisons.leaderboard(*plain)
    assert drawing is not None
    ids = set(re.findall(r' id="([^"]+)"', drawing.svg))
    targets = re.findall(r'href="([^"]+)"', drawing.svg) + re.findall(r"url\(([^)]+)\)", drawing.svg)
    assert "style=" not in drawing.svg
    assert all(name.startswith("leaderboard-") for name in ids)
    assert targets
    assert {target.removeprefix("#") for target in targets} <= ids


def test_equal_figures_are_equal_to_the_byte() -> None:
    """Nothing of a figure depends on the clock or on chance."""
    assert sketch() == sketch()


def test_palette_colours_get_classes() -> None:
    """So that they follow the reader's scheme; each class is in the style sheet."""
    svg = sketch(lambda figure: figure.text(0.5, 0.5, "x", color=SERIES[0].light))
    assert 'class="f-blue"' in svg
    assert ".f-blue{" in style_sheet()


def test_colours_are_told_apart() -> None:
    """No two colours share a light form, by which a drawing is read, or a name."""
    assert len({colour.light for colour in COLOURS}) == len({colour.name for colour in COLOURS}) == len(COLOURS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_series_stand_out_from_the_paper(scheme: str) -> None:
    """Contrast of at least 3:1 to the paper in both schemes (WCAG 2.2, 1.4.11)."""
    paper = next(colour for colour in COLOURS if colour.name == "paper")
    for colour in SERIES:
        assert contrast(getattr(colour, scheme), getattr(paper, scheme)) >= 3, colour.name


def test_families_differ_in_more_than_colour() -> None:
    """Nine families still have nine different looks."""
    found = looks([f"f{place}" for place in range(9)])
    assert len(set(found.values())) == 9
    assert len({marker for _, marker in list(found.values())[:8]}) == 8


def test_a_family_looks_alike_in_all_figures(plain: Made) -> None:
    """Whatever the order of rows: the second family has the second colour in both."""
    tables, subjects = plain
    assert list(family_looks(tables, subjects)) == ["one", "two"]
    for draw in (comparisons.leaderboard, relations.inversion):
        drawing = draw(tables, subjects)
        assert drawing is not None
        texts = [text.text for text in parsed(drawing.svg).iter("text")]
        assert [text for text in texts if text in {"one", "two"}] == ["one", "two"]


def test_long_names_are_cut_where_they_are_drawn() -> None:
    """A name of any length leaves room for the drawing."""
    assert len(short("x" * 1_000_000)) == 22


def test_without_numbers_there_is_no_figure(tmp_path: Path) -> None:
    """One model and no repeated draw: no correlation to draw is no error."""
    tables, subjects = tables_of(tmp_path / "store.sqlite", Design(models={"m": ""}, personas=1, samples=1, rounds=1))
    assert panels.leakage(tables, subjects) is None
    assert panels.accumulation(tables, subjects) is None
    assert relations.inversion(tables, subjects) is None
    assert comparisons.leaderboard(tables, subjects) is not None


def contrast(one: str, other: str) -> float:
    lights = sorted((luminance(one), luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
