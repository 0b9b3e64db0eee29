"""`mirage annotate`: from judged claims to agreement on the command line; mistakes are one line and change nothing."""

import csv
import io
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bench.annotating import Listening, hosts_of, serve_page
from bench.cli import main
from engine.errors import UserError
from instruments.annotation.sample import Candidate
from instruments.annotation.store import Sample, open_annotations, shown_items
from instruments.annotation.testing import JUDGE, make_store

Run = tuple[int, str, str]


def annotate(capsys: pytest.CaptureFixture[str], *arguments: object) -> Run:
    """Run `mirage annotate ...` and return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(["annotate", *map(str, arguments)])
    caught = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, caught.out, caught.err


def rows_of(sheet: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(sheet.read_text(encoding="utf-8-sig"))))


def write_rows(sheet: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as a spreadsheet would."""
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def sheet(store: Path, sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Anna's empty sheet, filled with A to D in turn."""
    path = tmp_path / "anna.csv"
    annotate(capsys, "export", store, "--annotator", "anna", "--out", path)
    rows = rows_of(path)
    for number, row in enumerate(rows):
        row["label"] = "ABCD"[number % 4]
    rows[0]["comment"] = "=SUM(1)"
    write_rows(path, rows)
    return path


def test_a_sample_is_drawn_once_and_stays(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawing again with the same settings finds it, also when the sweep has gone on."""
    code, out, _ = annotate(capsys, "sample", store, "--size", 8)
    assert (code, out.splitlines()[0]) == (0, f"sample invented-{JUDGE}-8-42 drawn: 8 of 864 claims")
    with closing(open_annotations(store)) as connection:
        before = connection.execute("SELECT * FROM annotation_item ORDER BY id").fetchall()
        connection.execute("UPDATE reading SET body = '{}' WHERE cell_id > 200")
    _, again, _ = annotate(capsys, "sample", store, "--size", 8)
    assert "exists already" in again
    with closing(open_annotations(store)) as connection:
        assert connection.execute("SELECT * FROM annotation_item ORDER BY id").fetchall() == before


def test_the_same_store_gives_the_same_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two copies of a store: the same claims, order and ids."""
    first = make_store(tmp_path / "first.sqlite", models=2, personas=4)
    second = Path(shutil.copy(first, tmp_path / "second.sqlite"))
    found = []
    for path in (first, second):
        annotate(capsys, "sample", path, "--size", 12)
        with closing(open_annotations(path)) as connection:
            found.append(connection.execute("SELECT * FROM annotation_item ORDER BY position").fetchall())
    assert found[0] == found[1]


def test_a_sample_of_that_name_drawn_otherwise_is_not_replaced(
    store: Path, sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels hang on it."""
    code, _, err = annotate(capsys, "sample", store, "--size", 12, "--name", "sample")
    assert (code, err.count("\n")) == (2, 1)
    assert "drawn otherwise" in err


def test_items_hold_what_the_judge_saw(store: Path, sample: Sample) -> None:
    """Facts of the persona, the request of the task, the claim as the judge put it, and its label."""
    with closing(open_annotations(store)) as connection:
        rows = connection.execute("SELECT judge_cell_id, claim_index, judge_label, claim, facts FROM annotation_item")
        for cell, place, label, claim, facts in rows.fetchall():
            (body,) = connection.execute("SELECT body FROM reading WHERE cell_id = ?", (cell,)).fetchone()
            reading = msgspec.json.decode(body)
            assert (reading["claims"][place]["text"], reading["labels"][place]) == (claim, label)
            assert len(msgspec.json.decode(facts)) == 3


def test_facts_that_have_changed_since_the_sweep_are_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People must see what the judge saw."""
    with closing(open_annotations(store)) as connection:
        (persona,) = connection.execute("SELECT persona FROM records LIMIT 1").fetchone()
        manifest = {"judges": [JUDGE], "fixed": {"personas": dict.fromkeys([persona], "0" * 32)}}
        connection.execute("UPDATE sweep SET manifest = ?", (msgspec.json.encode(manifest).decode(),))
    code, _, err = annotate(capsys, "sample", store, "--size", 400, "--name", "all")
    assert code == 2
    assert f"persona '{persona}' has changed since the sweep" in err


def test_a_reading_that_does_not_match_its_labels_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Better no sample than one with a wrong label of the judge."""
    with closing(open_annotations(store)) as connection:
        connection.execute("UPDATE reading SET body = json_set(body, '$.labels', 'FFFF') WHERE body ->> 'labels' <> ''")
    code, _, err = annotate(capsys, "sample", store, "--size", 12)
    assert code == 2
    assert "does not match its labels" in err
    with closing(open_annotations(store)) as connection:
        assert connection.execute("SELECT name FROM annotation_sample").fetchall() == [("sample",)]


def test_a_sheet_filled_elsewhere_comes_back(
    store: Path, sample: Sample, sheet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels, comments that look like formulas, and nothing twice."""
    code, out, _ = annotate(capsys, "import", store, sheet)
    assert (code, out) == (0, "20 labels imported, 0 were there already, 0 rows hold none\n")
    with closing(open_annotations(store)) as connection:
        labels = [label for (label,) in connection.execute("SELECT label FROM annotations ORDER BY position")]
        comments = {comment for (comment,) in connection.execute("SELECT comment FROM annotations")}
    assert labels == list("GRSF" * 5)
    assert comments == {"=SUM(1)", ""}
    assert "0 labels imported, 20 were there already" in annotate(capsys, "import", store, sheet)[1]


def test_exported_labels_can_be_brought_into_another_copy_of_the_store(
    store: Path, sample: Sample, sheet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Export, import and export again: the same file."""
    copy = Path(shutil.copy(store, tmp_path / "copy.sqlite"))
    annotate(capsys, "import", store, sheet)
    out = [tmp_path / "one.csv", tmp_path / "two.csv"]
    annotate(capsys, "export", store, "--out", out[0])
    annotate(capsys, "import", copy, out[0])
    annotate(capsys, "export", copy, "--out", out[1])
    assert out[0].read_bytes() == out[1].read_bytes()
    assert rows_of(out[0])[0]["comment"] == "'=SUM(1)"


def test_a_sheet_that_contradicts_the_store_changes_nothing_unless_told_to(
    store: Path, sample: Sample, sheet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--replace` retracts the old label and keeps its row."""
    annotate(capsys, "import", store, sheet)
    rows = rows_of(sheet)
    rows[3]["label"] = "GROUNDED"
    write_rows(sheet, rows)
    code, _, err = annotate(capsys, "import", store, sheet)
    assert code == 2
    assert "has labelled item" in err
    assert "1 labels imported, 19 were there already" in annotate(capsys, "import", store, sheet, "--replace")[1]
    with closing(open_annotations(store)) as connection:
        assert connection.execute("SELECT count(*), count(retracted_ms) FROM annotation_label").fetchone() == (21, 1)


def test_one_wrong_row_keeps_the_whole_sheet_out(
    store: Path, sample: Sample, sheet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names file and line."""
    rows = rows_of(sheet)
    rows[7]["label"] = "perhaps"
    write_rows(sheet, rows)
    code, _, err = annotate(capsys, "import", store, sheet)
    assert (code, err.count("\n")) == (2, 1)
    assert "line 9: 'perhaps' is no label" in err
    with closing(open_annotations(store)) as connection:
        assert connection.execute("SELECT count(*) FROM annotation_label").fetchone() == (0,)


def test_agreement_prints_and_exports_tables(
    store: Path, sample: Sample, sheet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables on the terminal, CSV and JSON in a folder."""
    annotate(capsys, "import", store, sheet)
    code, out, _ = annotate(capsys, "agreement", store, "--out", tmp_path / "tables")
    assert code == 0
    assert "Agreement of the judge with people" in out
    assert (tmp_path / "tables" / "judge_confusion.csv").exists()
    assert msgspec.json.decode(annotate(capsys, "agreement", store, "--json")[1])["sweep"] == "invented"


SERVE = ("serve", "{store}", "--annotator")
MISTAKES = {
    "no store": (("sample", "{none}"), "there is no such store"),
    "no such judge": (("sample", "{store}", "--judge", "nobody"), "has no judge 'nobody'"),
    "no such sweep": (("sample", "{store}", "--sweep", "none"), "no sweep called 'none'"),
    "no sample": ((*SERVE, "anna", "--sample", "x"), "no sample called 'x'"),
    "no name": ((*SERVE, ""), "cannot be an annotator's name"),
    "bad name": ((*SERVE, "a\x1bb"), "cannot be an annotator's name"),
    "bad overlap": ((*SERVE, "anna", "--overlap", "-1"), "is no overlap"),
    "open to others": ((*SERVE, "anna", "--host", "0.0.0.0"), "other machines"),  # noqa: S104
    "not our address": ((*SERVE, "anna", "--host", "192.0.2.1", "--allow-remote"), "cannot listen"),
    "nobody": (("serve", "{store}"), "Missing option '--annotator'"),
    "export of nothing": (("export", "{store}"), "nobody has labelled yet"),
    "no sheet": (("import", "{store}", "{none}"), "cannot be read"),
    "agreement of nothing": (("agreement", "{store}"), "nobody has labelled"),
}


@pytest.mark.parametrize(("arguments", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained_in_one_line(
    store: Path, sample: Sample, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    """Exit code 2, no traceback."""
    filled = [each.format(store=store, none=store.with_name("none")) for each in arguments]
    code, _, err = annotate(capsys, *filled)
    assert code == 2
    assert complaint in err
    assert "Traceback" not in err


def test_a_name_in_another_spelling_is_asked_about(
    store: Path, sample: Sample, sheet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anna and anna would be two people in every table."""
    annotate(capsys, "import", store, sheet)
    code, _, err = annotate(capsys, "export", store, "--annotator", "Anna")
    assert code == 2
    assert "'Anna' is nearly 'anna'" in err


def test_a_port_in_use_is_explained(store: Path, sample: Sample) -> None:
    """With a way out."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        listening = Listening(port=other.getsockname()[1])
        with pytest.raises(UserError, match="--port"):
            serve_page(store, sample.id, ["anna"], None, listening, tell=print, warn=print)


@pytest.mark.parametrize(
    ("address", "asked", "inside", "outside"),
    [
        pytest.param("127.0.0.1", "localhost", "localhost", "*", id="loopback"),
        pytest.param("::1", "::1", "::1", "*", id="loopback, IPv6"),
        pytest.param("0.0.0.0", "0.0.0.0", "*", "evil.example", id="everywhere"),  # noqa: S104
        pytest.param("192.0.2.7", "box.example", "box.example", "localhost", id="one address"),
    ],
)
def test_the_page_answers_to_its_own_names_only(address: str, asked: str, inside: str, outside: str) -> None:
    """Which are those of the address it is bound to."""
    names = hosts_of(address, asked)
    assert inside in names
    assert outside not in names


def test_every_item_is_shown_with_three_facts(store: Path, sample: Sample) -> None:
    """What a sheet shows is what the page shows."""
    with closing(open_annotations(store)) as connection:
        assert all(len(facts) == 3 and task and claim for _, facts, task, claim in shown_items(connection, sample.id))


def test_a_sample_lives_in_its_store_only(store: Path, sample: Sample, tmp_path: Path) -> None:
    """The judge's side of every item is beside it, for the analysis and nobody else."""
    with closing(sqlite3.connect(store)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(annotation_item)")]
    assert {"judge_label", "model", "persona"} <= set(columns)
    assert set(Candidate.__struct_fields__) >= {"label", "model", "persona"}
