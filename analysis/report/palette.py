"""The colours of figures and page, each in a light and a dark form, and the style sheet that switches between them.

Figures are drawn in the light colours; the page finds those in the drawing and lets the reader's scheme replace them.
Families differ by marker as well as by colour, labels by lightness as well as by hue: no reading rests on hue alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour by name, in the light and in the dark scheme; the light forms of all colours differ."""

    name: str
    light: str
    dark: str


INK: Final = Colour("ink", "#1c1e22", "#ecedf0")
QUIET: Final = Colour("quiet", "#555a63", "#b3b9c4")
GRID: Final = Colour("grid", "#dedcd5", "#343941")
FAINT: Final = Colour("faint", "#b9bdc6", "#5d6470")
PAPER: Final = Colour("paper", "#fffffe", "#1b1e23")
ALARM: Final = Colour("alarm", "#a3211b", "#ff9d96")

BLUE: Final = Colour("blue", "#0067a5", "#6db6f2")
#: For up to eight families; contrast to the paper is at least 3:1 in both schemes.
SERIES: Final = (
    BLUE,
    Colour("vermilion", "#d05a00", "#ff9b5e"),
    Colour("green", "#00805c", "#3fcf9f"),
    Colour("purple", "#a3348a", "#f190d6"),
    Colour("gold", "#946c00", "#e6c34a"),
    Colour("slate", "#4d5566", "#c3cad8"),
    Colour("brown", "#8a4b1f", "#d3a47d"),
    Colour("teal", "#0f7d8a", "#63d4e0"),
)
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p")
#: Grounded, reasonable, stereotype, fabricated: blue is acceptable, orange is over-inference, dark is the stronger one.
LABELS: Final = (
    Colour("grounded", "#2a6aad", "#5b9ee0"),
    Colour("reasonable", "#a5c8e6", "#3a6596"),
    Colour("stereotype", "#f2b880", "#8c5a2b"),
    Colour("fabricated", "#b8480b", "#f08a4b"),
)
COLOURS: Final = (INK, QUIET, GRID, FAINT, PAPER, ALARM, *SERIES, *LABELS)


def style_sheet() -> str:
    """Return the custom properties of both schemes and one class a colour for fills and one for strokes."""
    light = "".join(f"--c-{colour.name}:{colour.light};" for colour in COLOURS)
    dark = "".join(f"--c-{colour.name}:{colour.dark};" for colour in COLOURS)
    lines = [f":root{{{light}}}", f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}", *_classes()]
    return "\n".join(lines) + "\n"


def _classes() -> Iterator[str]:
    for colour in COLOURS:
        yield f".f-{colour.name}{{fill:var(--c-{colour.name})}}.s-{colour.name}{{stroke:var(--c-{colour.name})}}"
