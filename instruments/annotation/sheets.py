"""Labels as CSV, for people who label in a spreadsheet: written so that no cell is a formula, read back exactly.

Pure: texts in, texts out. A sheet is as blind as the page; it never holds what the judge said.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Final

from engine.errors import UserError
from instruments.annotation.desk import MOST_COMMENT, MOST_ELAPSED_MS, clean_comment
from instruments.annotation.store import LabelRow
from instruments.claims import Label, read_label

COLUMNS: Final = (
    *("item", "annotator", "label", "comment", "seconds", "labelled_at"),
    *("fact_1", "fact_2", "fact_3", "request_not_evidence", "claim"),
)
MOST_SHOWN: Final = 10
_NEEDED: Final = ("item", "label")
# What a spreadsheet may take for a formula, also behind blanks and in full width; one more quote marks a quoted one.
_ACTING: Final = re.compile(r"'*\s*[=+\-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}"
                            r"\N{FULLWIDTH COMMERCIAL AT}]|'*[\t\r\n]")  # fmt: skip
_BY_LETTER: Final = {label.letter: label for label in Label}
_BY_KEY: Final = dict(zip("ABCD", Label, strict=True))

ShownItem = tuple[str, Sequence[str], str, str]


def write_sheet(items: Iterable[ShownItem], labels: Iterable[LabelRow], annotators: Sequence[str]) -> str:
    """Return one row per item and annotator as CSV, the label left empty where there is none.

    Args:
        items: (id, facts, task, claim) in the order of the sample.
        labels: what annotators say now.
        annotators: whose rows to write.
    """
    given = {(row.item, row.annotator): row for row in labels}
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for item, facts, task, claim in items:
        for annotator in annotators:
            texts = (*facts[:3], *[""] * (3 - len(facts)), task, claim)
            row = given.get((item, annotator))
            writer.writerow([item, *(neutral(cell) for cell in (annotator, *_label_cells(row), *texts))])
    # Spreadsheets know UTF-8 by this mark only.
    return "\N{ZERO WIDTH NO-BREAK SPACE}" + lines.getvalue()


def read_sheet(
    data: bytes, items: AbstractSet[str], *, annotator: str = "", now_ms: int, where: str
) -> tuple[list[LabelRow], int]:
    """Return the labels of a sheet and the number of rows that hold none.

    Columns are found by name and may stand in any order; others are ignored. `label` may be a name of the taxonomy, its
    letter (G, R, S, F) or the page's key (A to D).

    Args:
        data: the file, UTF-8; separated by commas, semicolons or tabs.
        items: ids of the sample.
        annotator: who labelled, where the sheet has no such column; must agree where it has.
        now_ms: when, where the sheet does not say.
        where: the file's name, for errors.

    Raises:
        UserError: anything is wrong with any row; the message names the first lines that are.
    """
    rows, blank, problems = [], 0, []
    seen: dict[tuple[str, str], int] = {}
    for line, cells in _records(data, where):
        try:
            row = _row(cells, items, annotator, now_ms)
        except ValueError as error:
            problems.append(f"line {line}: {error}")
            continue
        if row is None:
            blank += 1
            continue
        if (first := seen.setdefault((row.item, row.annotator), line)) != line:
            problems.append(f"line {line}: item {row.item} stands in line {first} already")
        rows.append(row)
    if problems:
        more = f"; and {len(problems) - MOST_SHOWN} more" if len(problems) > MOST_SHOWN else ""
        mend = "nothing was imported; correct the file"
        raise UserError("; ".join(problems[:MOST_SHOWN]) + more, where=where, mend=mend)
    return rows, blank


def neutral(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula; `plain` gives the text back.

    Examples:
        >>> neutral("=1+1"), plain(neutral("=1+1")), plain(neutral("'=1+1"))
        ("'=1+1", '=1+1', "'=1+1")
    """
    return f"'{text}" if _ACTING.match(text) else text


def plain(cell: str) -> str:
    """Return the text that `neutral` was given."""
    return cell[1:] if cell.startswith("'") and _ACTING.match(cell) else cell


def _label_cells(row: LabelRow | None) -> tuple[str, str, str, str]:
    if row is None:
        return ("", "", "", "")
    label = "" if row.label is None else _BY_LETTER[row.label].value
    seconds = "" if row.elapsed_ms is None else f"{row.elapsed_ms / 1000:.3f}"
    moment = datetime.fromtimestamp(row.created_ms / 1000, UTC).isoformat(timespec="milliseconds") if label else ""
    return (label, row.comment, seconds if label else "", moment)


def _records(data: bytes, where: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the sheet is not UTF-8 text ({error.reason})"
        raise UserError(what, where=where, mend="save it as CSV UTF-8") from None
    head = text.split("\n", 1)[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count), strict=True)
    try:
        names = [name.strip().casefold() for name in next(reader, [])]
        if missing := [name for name in _NEEDED if names.count(name) != 1]:
            what = f"the sheet has no single column {missing[0]!r}"
            raise UserError(what, where=where, mend="keep the exported heading")
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, dict(zip(names, map(plain, cells), strict=False))
    except csv.Error as error:
        raise UserError(f"line {reader.line_num}: {error}", where=where, mend="save it as CSV again") from None


def _row(cells: Mapping[str, str], items: AbstractSet[str], annotator: str, now_ms: int) -> LabelRow | None:
    item, word = cells.get("item", "").strip(), cells.get("label", "").strip()
    if item not in items:
        raise ValueError(f"the sample has no item {item[:40]!r}")
    if not word:
        return None
    label = _BY_LETTER.get(word.upper()) or _BY_KEY.get(word.upper()) or read_label(word)
    if label is None:
        raise ValueError(f"{word[:40]!r} is no label; use one of {', '.join(each.value for each in Label)}")
    comment = clean_comment(cells.get("comment", ""))
    if len(comment) > MOST_COMMENT:
        raise ValueError(f"the comment has {len(comment)} characters; {MOST_COMMENT} is the most")
    return LabelRow(
        item=item,
        annotator=_annotator(" ".join(cells.get("annotator", "").split()), annotator),
        label=label.letter,
        comment=comment,
        elapsed_ms=_elapsed(cells.get("seconds", "").strip()),
        created_ms=_moment(cells.get("labelled_at", "").strip(), now_ms),
    )


def _annotator(written: str, given: str) -> str:
    if written and given and written != given:
        raise ValueError(f"the row is by {written[:40]!r}, not by {given!r}")
    if not (written or given):
        raise ValueError("nobody is named as annotator; give --annotator")
    return written or given


def _elapsed(cell: str) -> int | None:
    if not cell:
        return None
    try:
        elapsed = round(float(cell.replace(",", ".")) * 1000)
    except (ValueError, OverflowError):
        elapsed = -1
    if not 0 <= elapsed <= MOST_ELAPSED_MS:
        raise ValueError(f"{cell[:40]!r} is no number of seconds")
    return elapsed


def _moment(cell: str, now_ms: int) -> int:
    if not cell:
        return now_ms
    try:
        moment = datetime.fromisoformat(cell)
    except ValueError:
        raise ValueError(f"{cell[:40]!r} is no moment; write it like 2026-01-31T12:00:00+00:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
