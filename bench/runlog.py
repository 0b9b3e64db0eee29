"""The log of a run: one JSON object a line, next to the store, for programs and for later questions."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import orjson

from engine.errors import UserError
from engine.events import Notice
from providers.keys import redact


class RunLog:
    """Appends notices to `STORE.log`; only the owner can read it, and whatever looks like a key is masked.

    A log that is not there is begun with the first notice: a run that is refused before leaves none.
    """

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".log")
        self._file: IO[bytes] | None = None
        if not self.path.exists():
            return
        try:
            self._file = _opened(self.path)
        except OSError as error:
            raise UserError(
                f"the log cannot be written: {error.strerror}",
                where=str(self.path),
                mend="check the folder's permissions",
            ) from error

    def write(self, notice: Notice) -> None:
        """Append one notice; a full disk must not end the run, so a line that cannot be written is dropped."""
        record = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": notice.kind,
            "level": notice.level.value,
            "text": redact(notice.text),
            **{name: redact(value) if isinstance(value, str) else value for name, value in notice.fields.items()},
        }
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str)
        try:
            self._file = self._file or _opened(self.path)
            self._file.write(line)
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _opened(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)
