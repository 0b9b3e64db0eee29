"""Builds small stores for tests: SQLite files with tables that look exactly like the views that `load` reads.

Knows the views' columns and nothing of the engine behind them; a test compares the two.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from analysis.rowfiles import ROWS

Cell: TypeAlias = str | int | None

COLUMNS: Final = ROWS


class StoreBuilder:
    """Writes rows of one sweep after another; use it as a context manager, or call `close` before reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path)
        # A test's store need not survive a power cut.
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = MEMORY")
        self._sweep = ("", 0)
        for view, columns in COLUMNS.items():
            self._connection.execute(f"CREATE TABLE {view} ({', '.join(columns)})")

    def __enter__(self) -> Self:
        """Return the builder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Commit and close the file."""
        self._connection.commit()
        self._connection.close()

    def insert(self, view: str, rows: Iterable[Mapping[str, Cell]]) -> None:
        """Insert rows of the current sweep; columns that a row does not name are NULL.

        Raises
        ------
        ValueError
            A row names a column that the view does not have.
        """
        columns = COLUMNS[view]
        name, number = self._sweep
        full = [{"sweep_id": number, "sweep": name, **row} for row in rows]
        unknown = {column for row in full for column in row} - {*columns, "sweep_id", "sweep"}
        if unknown:
            raise ValueError(f"view {view} has no column {', '.join(sorted(unknown))}")
        values = [tuple(row.get(column) for column in columns) for row in full]
        marks = ", ".join("?" * len(columns))
        # Names come from this module.
        self._connection.executemany(f"INSERT INTO {view} VALUES ({marks})", values)  # noqa: S608

    def sweep(
        self,
        name: str = "sweep",
        *,
        subjects: Mapping[str, str],
        judges: Sequence[str] = ("judge",),
        simulated: bool = False,
        toy_judge: bool = False,
        notes: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        contradictions: Mapping[str, Mapping[str, Cell]] | None = None,
    ) -> None:
        """Begin a sweep; `subjects` maps aliases to families, `labels` aliases to names in print."""
        self._sweep = (name, self._sweep[1] + 1)
        families = {**dict.fromkeys(judges, "judges"), **subjects}
        entries = {
            alias: {"family": family, "provider": "provider", "model": f"{alias}-snapshot"}
            for alias, family in families.items()
        }
        manifest = {
            "name": name,
            "simulated": simulated,
            "toy_judge": toy_judge,
            "subjects": list(subjects),
            "judges": list(judges),
            "models": entries,
            "notes": list(notes),
            **({"contradictions": contradictions} if contradictions else {}),
        }
        self.insert("sweeps", [{"simulated": int(simulated), "manifest": json.dumps(manifest), "created_ms": 0}])
        self.insert(
            "models",
            [
                {
                    "model": alias,
                    "label": (labels or {}).get(alias, alias),
                    "family": entry["family"],
                    "provider": entry["provider"],
                    "snapshot": entry["model"],
                    "is_subject": int(alias in subjects),
                    "is_judge": int(alias in judges),
                }
                for alias, entry in entries.items()
            ],
        )

    def records(self, *rows: Mapping[str, Cell]) -> None:
        """Insert judged task answers."""
        self.insert("records", (_answer({"judge": "judge", "task": "task", **row}) for row in rows))

    def audits(self, *rows: Mapping[str, Cell]) -> None:
        """Insert self-audits."""
        self.insert("audits", (_answer({"task": "task", **row}) for row in rows))

    def probes(self, *rows: Mapping[str, Cell]) -> None:
        """Insert judged probe answers."""
        self.insert("probes", (_answer({"judge": "judge", **row}) for row in rows))

    def memory(self, model: str, persona: str, states: Sequence[Sequence[str] | None], **more: Cell) -> None:
        """Insert the memories of one conversation, one per round; None is a memory that could not be read."""
        base: dict[str, Cell] = {"model": model, "persona": persona, "persona_group": "neutral", "prompt": "retain@0"}
        self.insert(
            "memories",
            (
                {
                    **base,
                    "round": place,
                    "sample": 0,
                    "state": "unreadable" if inferred is None else "read",
                    "reason": "no JSON object" if inferred is None else "",
                    "inferred": None if inferred is None else json.dumps(list(inferred)),
                    **more,
                }
                for place, inferred in enumerate(states, start=1)
            ),
        )

    def calls(self, *rows: Mapping[str, Cell]) -> None:
        """Insert planned calls."""
        base: dict[str, Cell] = {"stage": "task", "state": "read", "reason": "", "attempts": 1, "changes": ""}
        self.insert("calls", ({**base, "subject": row.get("model"), **row} for row in rows))


def claims_json(labels: str, texts: Sequence[str]) -> str:
    """Return claims as a view shows them, one letter and one text each."""
    words = {"G": "GROUNDED", "R": "INFERRED_REASONABLE", "S": "INFERRED_STEREOTYPE", "F": "FABRICATED"}
    pairs = zip(labels, texts, strict=True)
    return json.dumps([{"text": text, "label": words[letter]} for letter, text in pairs])


def _answer(row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {"persona_group": "neutral", "sample": 0, "state": "read", "reason": "", "unread": 0, **row}
