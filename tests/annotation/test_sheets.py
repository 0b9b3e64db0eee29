"""Labels as CSV: nothing is a formula, everything comes back as it was, and a wrong row keeps all rows out."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from instruments.annotation.desk import clean_comment
from instruments.annotation.sheets import COLUMNS, neutral, plain, read_sheet, write_sheet
from instruments.annotation.store import LabelRow

ITEMS = [
    ("bcdfgh", ("I bake.", "=1+1", "'quoted"), "Describe my home.", "The user bakes."),
    ("jkmnpq", ("I bake.", "I ride.", "I sing."), "Describe my home.", '=HYPERLINK("http://evil.example")'),
]
IDS = {item for item, *_ in ITEMS}
HEAD = "item,annotator,label,comment,seconds,labelled_at\n"
SIGNS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def read(text: str, annotator: str = "anna") -> tuple[list[LabelRow], int]:
    """Read a sheet of those items."""
    return read_sheet(text.encode(), IDS, annotator=annotator, now_ms=77, where="sheet.csv")


def labelled(item: str = "bcdfgh", label: str = "G", **more: object) -> LabelRow:
    """One label of anna's."""
    values: dict[str, object] = {"comment": "", "elapsed_ms": None, "created_ms": 1_700_000_000_123, **more}
    return LabelRow(item=item, annotator="anna", label=label, **values)  # type: ignore[arg-type]


@given(
    texts
    | st.builds(
        "{}{}{}".format, st.sampled_from(["", "'", "''", " ", "' "]), st.sampled_from([*SIGNS, "\t", "\r"]), texts
    )
)
def test_no_cell_is_a_formula_and_every_cell_comes_back(text: str) -> None:
    """Quoting is undone exactly, also for texts that began with a quote."""
    cell = neutral(text)
    assert not cell.strip().startswith(SIGNS)
    assert not cell.startswith(("\t", "\r", "\n"))
    assert plain(cell) == text


@given(texts.map(clean_comment), st.integers(0, 10**8), st.integers(0, 4 * 10**12), st.sampled_from("GRSF"))
def test_a_label_survives_the_way_through_a_sheet(comment: str, elapsed: int, moment: int, label: str) -> None:
    """Label, comment, time on screen and moment are read as they were written."""
    row = labelled(label=label, comment=comment, elapsed_ms=min(elapsed, 86_400_000), created_ms=moment)
    rows, blank = read(write_sheet(ITEMS, [row], ["anna"]))
    assert (rows, blank) == ([row], 1)


def test_a_sheet_is_as_blind_as_the_page() -> None:
    """It has these columns and no other, and a mark that tells spreadsheets it is UTF-8."""
    text = write_sheet(ITEMS, [], ["anna"])
    assert text.startswith("\ufeff")
    head, first, second = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    assert tuple(head) == COLUMNS
    assert first == [
        "bcdfgh", "anna", "", "", "", "", "I bake.", "'=1+1", "'quoted", "Describe my home.", "The user bakes.",
    ]  # fmt: skip
    assert second[-1].startswith("'=HYPERLINK")


def test_every_annotator_has_a_row_for_every_item() -> None:
    """Item by item, annotator by annotator."""
    lines = list(csv.reader(io.StringIO(write_sheet(ITEMS, [labelled()], ["anna", "ben"]))))[1:]
    assert [(line[1], line[2]) for line in lines] == [("anna", "GROUNDED"), ("ben", ""), ("anna", ""), ("ben", "")]


@pytest.mark.parametrize(
    ("word", "letter"),
    [
        pytest.param("GROUNDED", "G", id="name"),
        pytest.param("inferred stereotype", "S", id="name in other spelling"),
        pytest.param("f", "F", id="letter"),
        pytest.param("B", "R", id="the page's key"),
        pytest.param(" C ", "S", id="with blanks"),
    ],
)
def test_a_label_may_be_a_name_a_letter_or_a_key(word: str, letter: str) -> None:
    """A to D are the page's keys, G R S F the taxonomy's letters; none is both."""
    assert [row.label for row in read(f"item,label\nbcdfgh,{word}\n")[0]] == [letter]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_sheet_may_be_separated_as_the_spreadsheet_likes(separator: str) -> None:
    """Commas, semicolons or tabs."""
    assert len(read(f"label,item\nG,bcdfgh\n".replace(",", separator))[0]) == 1  # noqa: F541


def test_what_the_sheet_does_not_say_is_filled_in() -> None:
    """The annotator from the command, the moment from the clock; time on screen stays unknown."""
    (row,), _ = read("item,label\nbcdfgh,G\n")
    assert row == LabelRow(item="bcdfgh", annotator="anna", label="G", created_ms=77)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("item,label\nzzz,G\n", "line 2: the sample has no item 'zzz'", id="unknown item"),
        pytest.param("item,label\nbcdfgh,maybe\n", "line 2: 'maybe' is no label", id="wrong label"),
        pytest.param("item,label\nbcdfgh,inferred\n", "'inferred' is no label", id="ambiguous label"),
        pytest.param("item,label\nbcdfgh,G\njkmnpq,G\nbcdfgh,F\n", "line 4: item bcdfgh stands in line 2", id="twice"),
        pytest.param(f"{HEAD}bcdfgh,ben,G,,,\n", "line 2: the row is by 'ben', not by 'anna'", id="another's"),
        pytest.param(f"{HEAD}bcdfgh,,G,,soon,\n", "'soon' is no number of seconds", id="seconds"),
        pytest.param(f"{HEAD}bcdfgh,,G,,-1,\n", "'-1' is no number of seconds", id="negative seconds"),
        pytest.param(f"{HEAD}bcdfgh,,G,,inf,\n", "'inf' is no number of seconds", id="endless seconds"),
        pytest.param(f"{HEAD}bcdfgh,,G,,,yesterday\n", "'yesterday' is no moment", id="moment"),
        pytest.param(f"{HEAD}bcdfgh,,G,{'x' * 2001},,\n", "2000 is the most", id="long comment"),
        pytest.param("item;etc\nbcdfgh;G\n", "no single column 'label'", id="no label column"),
        pytest.param("item,label,label\nbcdfgh,G,F\n", "no single column 'label'", id="two label columns"),
        pytest.param("", "no single column 'item'", id="empty"),
        pytest.param('item,label\n"bcdfgh,G\n', "line 2", id="open quote"),
    ],
)
def test_a_wrong_sheet_is_refused_with_its_line(text: str, complaint: str) -> None:
    """What, where and how to mend, in one message."""
    with pytest.raises(UserError) as caught:
        read(text)
    assert complaint in str(caught.value)
    assert "sheet.csv" in str(caught.value)


def test_all_wrong_rows_are_named_at_once_but_not_hundreds() -> None:
    """Ten, and how many more."""
    with pytest.raises(UserError, match="and 5 more"):
        read("item,label\n" + "zzz,G\n" * 15)


def test_a_row_without_annotator_needs_one() -> None:
    """Nobody's label is nobody's."""
    with pytest.raises(UserError, match="nobody is named"):
        read("item,label\nbcdfgh,G\n", annotator="")


def test_a_sheet_in_another_encoding_is_refused() -> None:
    """Guessing would damage comments."""
    with pytest.raises(UserError, match="UTF-8"):
        read_sheet("item,label\nbcdfgh,é\n".encode("latin-1"), IDS, annotator="a", now_ms=1, where="sheet.csv")
