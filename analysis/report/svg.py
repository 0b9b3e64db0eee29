"""Turns a matplotlib figure into a piece of SVG that may stand in the page.

Only known elements and attributes are kept: no style, script, link or metadata can come through. Styles become
attributes, which a strict content policy allows, and colours of the palette get classes, so that they follow the
reader's colour scheme. Text stays text.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

from analysis.report.palette import COLOURS, INK

FONT_POINTS: Final = 9
_SPACE: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_TAGS: Final = frozenset({"svg", "g", "path", "use", "text", "tspan", "defs", "clipPath", "rect"})
_ATTRIBUTES: Final = frozenset({"d", "x", "y", "width", "height", "transform", "viewBox"})
_STYLES: Final = frozenset(
    {
        "fill", "fill-opacity", "font-size", "font-style", "font-weight", "opacity", "stroke", "stroke-dasharray",
        "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor",
    }
)  # fmt: skip
_NAMES: Final = {colour.light: colour.name for colour in COLOURS}
_PAINTS: Final = {"fill": "f", "stroke": "s"}


@contextmanager
def drawing_settings() -> Iterator[None]:
    """Draw with the page's settings, whatever the user's matplotlib is told elsewhere."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        _set()
        # The reader's browser has the glyphs that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _set() -> None:
    settings = mpl.rcParams
    settings["svg.fonttype"] = "none"
    # The same ids in every run.
    settings["svg.hashsalt"] = "mirage"
    # Names are never parsed as formulas.
    settings["text.parse_math"] = False
    settings["text.usetex"] = False
    settings["axes.formatter.use_mathtext"] = False
    settings["font.size"] = FONT_POINTS
    settings["figure.dpi"] = 72


def svg_text(figure: Figure, name: str, words: str) -> str:
    """Return a figure as an `<svg>` element; call it inside `drawing_settings`.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    name : str
        Begins every id, so that figures of one page do not meet.
    words : str
        What the figure shows, for readers who do not see it.
    """
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    root = ET.fromstring(written.getvalue())  # noqa: S314 - matplotlib has just written it
    clean = _cleaned(root, f"{name}-")
    if clean is None:
        raise ValueError(f"figure {name}: matplotlib wrote no SVG element")
    _flatten(clean)
    for size in ("width", "height"):
        clean.attrib.pop(size, None)
    clean.attrib.update({"role": "img", "aria-label": words, "focusable": "false"})
    return ET.tostring(clean, encoding="unicode")


def _cleaned(element: ET.Element, prefix: str) -> ET.Element | None:
    """Return a copy of an element that holds only what is known, or None."""
    tag = element.tag.removeprefix(_SPACE)
    if tag not in _TAGS:
        return None
    clean = ET.Element(tag, _attributes(element, tag, prefix))
    clean.text = element.text if tag in {"text", "tspan"} else None
    clean.extend(child for child in (_cleaned(child, prefix) for child in element) if child is not None)
    return clean


def _attributes(element: ET.Element, tag: str, prefix: str) -> dict[str, str]:
    kept = {name: " ".join(value.split()) for name, value in element.attrib.items() if name in _ATTRIBUTES}
    styles = dict(_styles(element.get("style", "")))
    if tag == "text":
        styles.setdefault("fill", INK.light)
    kept.update(styles)
    classes = [f"{letter}-{_NAMES[kept[paint]]}" for paint, letter in _PAINTS.items() if kept.get(paint) in _NAMES]
    if classes:
        kept["class"] = " ".join(classes)
    identity, link, clip = element.get("id"), element.get(_LINK, ""), element.get("clip-path", "")
    if identity and tag in {"path", "clipPath"}:
        kept["id"] = prefix + identity
    if link.startswith("#"):
        kept["href"] = f"#{prefix}{link[1:]}"
    if clip.startswith("url(#"):
        kept["clip-path"] = f"url(#{prefix}{clip[5:]}"
    return kept


def _styles(style: str) -> Iterator[tuple[str, str]]:
    """Yield the known declarations of a style as attributes."""
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name in _STYLES and "url(" not in value:
            yield name, value


def _flatten(element: ET.Element) -> None:
    """Put the children of groups that say nothing in the place of these groups."""
    children: list[ET.Element] = []
    for child in element:
        _flatten(child)
        if child.tag == "g" and not child.attrib:
            children.extend(child)
        elif len(child) or child.tag not in {"g", "defs"}:
            children.append(child)
    element[:] = children
