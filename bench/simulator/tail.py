"""Follows a bill while a simulator writes it: how many lines there are, without reading any of them twice."""

from pathlib import Path


class Tail:
    """Counts the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0
        self.lines = 0

    def look(self) -> int:
        """Return how many lines there are now."""
        if self._path.exists() and self._path.stat().st_size > self._place:
            with self._path.open("rb") as file:
                file.seek(self._place)
                new = file.read()
            self._place += len(new)
            self.lines += new.count(b"\n")
        return self.lines
