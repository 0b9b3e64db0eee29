"""Makes foreign text safe to show: model output and provider messages must not drive a terminal."""

import unicodedata
from typing import Final

_KEPT: Final = {"\n", "\t"}
# Bidirectional overrides and isolates reorder what a reader sees; format characters hide.
_HIDING: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str, *, most: int = 0) -> str:
    """Return `text` with control, format and surrogate characters shown as escapes; `most` cuts long texts."""
    if most and len(text) > most:
        text = text[: most - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _harmless(char) else _escaped(char) for char in text)


def one_line(text: str, *, most: int = 0) -> str:
    """Return `text` as one safe line."""
    return printable(" ".join(text.split()), most=most)


def _harmless(char: str) -> bool:
    return char in _KEPT or unicodedata.category(char) not in _HIDING


def _escaped(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"  # noqa: PLR2004 - width of the escape
