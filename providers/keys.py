"""API keys: read from the environment, carried in a wrapper that cannot be printed, masked where a reply echoes them.

Must not know: which wire format a key belongs to.
"""

import re
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final, NoReturn

from engine.errors import UserError

MASK: Final = b"[key]"
# Shorter strings ("EMPTY", "token") are no secrets and could be words of an answer, which must not be altered.
SHORTEST_SECRET: Final = 16
SHORTEST_IN_ERRORS: Final = 4
# So many characters of a key in a row, forwards or backwards, tell too much of it; a shorter tail is what providers
# show on purpose, so that one knows which key was meant.
SHORTEST_FRAGMENT: Final = 10

_RUN: Final = re.compile(rb"[\x21-\x7e]{%d,}" % SHORTEST_FRAGMENT)
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

    __slots__ = ("_bytes", "_pieces", "_text")

    def __init__(self, text: str) -> None:
        self._text, self._bytes = text, text.encode()
        self._pieces = _windows(self._bytes.lower()) | _windows(self._bytes[::-1].lower())

    def reveal(self) -> str:
        """Return the key itself, for a header."""
        return self._text

    def mask(self, data: bytes, *, shortest: int = SHORTEST_SECRET) -> bytes:
        """Return `data` with every occurrence of the key replaced, unless the key is shorter than `shortest`."""
        return data.replace(self._bytes, MASK) if len(self._bytes) >= shortest else data

    def mask_fragments(self, data: bytes) -> bytes:
        """Return the text of an error with the key and every longer piece of it masked, in any case, reversed too.

        Nothing of the kind may be done to answers: a piece of a key can be a word.
        """
        return _RUN.sub(self._mask_run, self.mask(data, shortest=SHORTEST_IN_ERRORS))

    def _mask_run(self, run: re.Match[bytes]) -> bytes:
        data = run[0]
        lower, hidden = data.lower(), bytearray(len(data))
        for start in range(len(data) - SHORTEST_FRAGMENT + 1):
            if lower[start : start + SHORTEST_FRAGMENT] in self._pieces:
                hidden[start : start + SHORTEST_FRAGMENT] = b"\1" * SHORTEST_FRAGMENT
        pieces = (
            MASK if masked else bytes(byte for byte, _ in group)
            for masked, group in groupby(zip(data, hidden, strict=True), key=itemgetter(1))
        )
        return b"".join(pieces) if any(hidden) else data

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key must not be pickled")


def _windows(key: bytes) -> frozenset[bytes]:
    return frozenset(key[start : start + SHORTEST_FRAGMENT] for start in range(len(key) - SHORTEST_FRAGMENT + 1))


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
