"""Addresses of endpoints: which may be called, and which are this machine. Pure, and cheap to import.

Must not know: keys, transports.
"""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from engine.errors import UserError

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"[\w.:-]+")
_NO_ADDRESS: Final = SplitResult("", "", "", "", "")


def check_base_url(base_url: str, *, where: str) -> None:
    """Raise UserError unless `base_url` is an absolute http(s) address without user, query or fragment."""
    parts = _parts(base_url)
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.hostname or ""):
        raise UserError("base_url must be an absolute http or https address", where=where, mend="e.g. https://host/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "base_url must not carry a user, password, query or fragment", where=where, mend="put the key into key_env"
        )


def is_loopback(base_url: str) -> bool:
    """Return whether `base_url` points to this machine itself."""
    return _parts(base_url).hostname in LOOPBACK


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port out of range is found only when asked for
    except ValueError:
        return _NO_ADDRESS
    return parts
