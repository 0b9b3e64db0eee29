"""Makes a model's own words fit to be read on a page: nothing hidden, nothing reordered, line breaks kept."""

import unicodedata
from typing import Final

_KEPT: Final = frozenset("\n\t\u200c\u200d")
# Controls, formats (bidirectional overrides among them), surrogates, private use, line and paragraph separators.
_HIDING: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def readable(text: str) -> str:
    r"""Return a text in which characters that hide or reorder others are visible escapes.

    Joiners stay, since scripts and emoji need them.

    Examples
    --------
    >>> print(readable("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    plain = text.replace("\r\n", "\n")
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(character if _harmless(character) else _escaped(character) for character in plain)


def _harmless(character: str) -> bool:
    return character in _KEPT or unicodedata.category(character) not in _HIDING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
