"""API keys: read from the environment, carried in a wrapper that cannot be printed, masked where a reply echoes them.

Must not know: which wire format a key belongs to.
"""

import re
from collections.abc import Mapping
from typing import Final, NoReturn

from engine.errors import UserError

MASK: Final = b"[key]"
# Shorter strings ("EMPTY", "token") are no secrets and could be words of an answer, which must not be altered.
SHORTEST_SECRET: Final = 16
SHORTEST_IN_ERRORS: Final = 4

_VISIBLE_ASCII: Final = re.compile(r"[\x21-\x7e]+")
_LOOKS_LIKE_A_KEY: Final = re.compile(
    r"\b(?:sk|pk|rk)-[\w*.\-]{6,}"
    r"|\bAIza[\w*\-]{8,}"
    r"|\b(?:Bearer|api[_ -]?key[=:])\s*[\w*.\-]{8,}"
    r"|\beyJ[\w\-]{8,}\.[\w.\-]+",
    re.IGNORECASE,
)


class Secret:
    """A key that shows itself only when asked to by name; printing, logging and pickling do not reveal it."""

    __slots__ = ("_bytes", "_text")

    def __init__(self, text: str) -> None:
        self._text, self._bytes = text, text.encode()

    def reveal(self) -> str:
        """Return the key itself, for a header."""
        return self._text

    def mask(self, data: bytes, *, shortest: int = SHORTEST_SECRET) -> bytes:
        """Return `data` with every occurrence of the key replaced, unless the key is shorter than `shortest`."""
        return data.replace(self._bytes, MASK) if len(self._bytes) >= shortest else data

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key must not be pickled")


def redact(text: str) -> str:
    """Return `text` with everything that looks like a key replaced, whoever's key it is."""
    return _LOOKS_LIKE_A_KEY.sub(MASK.decode(), text)


def read_key(variable: str, environ: Mapping[str, str], *, provider: str) -> Secret:
    """Return the key kept in the environment variable `variable`.

    Raises:
        UserError: the variable is unset or empty, or holds something that no HTTP header may carry.
    """
    text = environ.get(variable, "").strip()
    if not text:
        raise UserError(
            f"no API key for {provider}",
            where=f"environment variable {variable} is not set",
            mend=f"set it, e.g. `export {variable}=...`, or leave this provider's models out of the sweep",
        )
    if not _VISIBLE_ASCII.fullmatch(text):
        raise UserError(
            f"the API key for {provider} contains spaces, line breaks or non-ASCII characters",
            where=f"environment variable {variable}",
            mend="copy the key again, without quotes or line breaks",
        )
    return Secret(text)
