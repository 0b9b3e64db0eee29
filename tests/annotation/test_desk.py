"""Labelling: every press is stored once, nothing is lost, nobody is in each other's way, and nothing unblinds."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from engine.errors import StoreError, UserError
from engine.store import Store
from instruments.annotation.desk import Answer, Desk, Outcome, Shown, shown_text
from instruments.annotation.store import Sample, current_labels, open_annotations, open_blind

MakeAnswer = Callable[..., Answer]


def item_of(desk: Desk, annotator: str = "anna", *, skipped: bool = False) -> Shown:
    """The item that is on the annotator's desk."""
    item = desk.view(annotator, skipped=skipped).item
    assert item is not None
    return item


def label_all(desk: Desk, answer: MakeAnswer, annotator: str, most: int = 1000) -> list[str]:
    """Label what comes, and return the items' ids."""
    labelled: list[str] = []
    while len(labelled) < most and (item := desk.view(annotator).item) is not None:
        assert desk.answer(annotator, answer(item.id, "R", annotator), 5) is Outcome.SAVED
        labelled.append(item.id)
    return labelled


def test_a_label_is_on_disk_when_the_press_returns(
    desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection, sample: Sample
) -> None:
    """Another connection finds label, comment, time and annotator."""
    item = item_of(desk)
    desk.answer("anna", answer(item.id, "S", comment="hm", elapsed_ms=1234), 99)
    (row,) = current_labels(connection, sample.id)
    assert (row.item, row.annotator, row.label, row.comment, row.elapsed_ms, row.created_ms) == (
        item.id, "anna", "S", "hm", 1234, 99,
    )  # fmt: skip


def test_items_come_in_the_order_of_the_sample(desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection) -> None:
    """The pre-shuffled order is the order of labelling."""
    positions = [item for (item,) in connection.execute("SELECT id FROM annotation_item ORDER BY position")]
    assert label_all(desk, answer, "anna") == positions


def test_labelling_goes_on_where_it_was_left(store: Path, sample: Sample, answer: MakeAnswer) -> None:
    """A desk opened anew continues with the next item."""
    with closing(Desk.open(store, sample.id)) as first:
        label_all(first, answer, "anna", most=7)
        following = item_of(first)
    with closing(Desk.open(store, sample.id)) as second:
        view = second.view("anna")
    assert (view.done, view.total, view.item) == (7, 20, following)


def test_sending_a_press_twice_stores_one_label(desk: Desk, answer: MakeAnswer) -> None:
    """A repeated request is answered as the first one was."""
    press = answer(item_of(desk).id, "F")
    assert desk.answer("anna", press, 1) is Outcome.SAVED
    assert desk.answer("anna", press, 2) is Outcome.REPEATED
    assert desk.view("anna").done == 1


def test_a_late_repetition_does_not_bring_back_what_was_undone(desk: Desk, answer: MakeAnswer) -> None:
    """The network may deliver a press once more after the undo."""
    press = answer(item_of(desk).id, "F")
    desk.answer("anna", press, 1)
    desk.undo("anna", press.item, 2)
    assert desk.answer("anna", press, 3) is Outcome.REPEATED
    assert desk.view("anna").done == 0


def test_the_second_of_two_tabs_does_not_overwrite_the_first(
    desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection, sample: Sample
) -> None:
    """Both tabs show one item; the label that came first stays."""
    item = item_of(desk)
    assert desk.answer("anna", answer(item.id, "G"), 1) is Outcome.SAVED
    assert desk.answer("anna", answer(item.id, "F"), 2) is Outcome.TAKEN
    assert [row.label for row in current_labels(connection, sample.id)] == ["G"]


def test_a_press_name_of_another_item_is_refused(desk: Desk, answer: MakeAnswer) -> None:
    """A submission names one press on one item."""
    item = item_of(desk)
    desk.answer("anna", answer(item.id, "G", submission="the-same-press-1"), 1)
    assert desk.answer("anna", answer(item_of(desk).id, "G", submission="the-same-press-1"), 2) is Outcome.MOVED


def test_an_item_that_the_sample_does_not_have_is_refused(desk: Desk, answer: MakeAnswer) -> None:
    """Nothing is stored for it."""
    assert desk.answer("anna", answer("bcdfghjkmnpq"), 1) is Outcome.UNKNOWN
    assert desk.view("anna").done == 0


def test_undo_brings_the_item_back_with_its_comment(desk: Desk, answer: MakeAnswer) -> None:
    """And keeps the retracted row."""
    item = item_of(desk)
    desk.answer("anna", answer(item.id, "G", comment="really?"), 1)
    assert desk.view("anna").undo == item.id
    assert desk.undo("anna", item.id, 2) is Outcome.SAVED
    view = desk.view_of("anna", item.id)
    assert view.item is not None
    assert (view.item.id, view.item.comment, view.done, view.undo) == (item.id, "really?", 0, None)


def test_undo_goes_back_step_by_step(desk: Desk, answer: MakeAnswer) -> None:
    """Three labels, three undos, in reverse."""
    labelled = label_all(desk, answer, "anna", most=3)
    undone = []
    while (last := desk.view("anna").undo) is not None:
        desk.undo("anna", last, 9)
        undone.append(last)
    assert undone == labelled[::-1]


def test_an_undo_that_came_too_late_changes_nothing(desk: Desk, answer: MakeAnswer) -> None:
    """Another tab has labelled on since the page was drawn."""
    first, second = label_all(desk, answer, "anna", most=2)
    assert desk.undo("anna", first, 9) is Outcome.MOVED
    assert (desk.view("anna").done, desk.view("anna").undo) == (2, second)


def test_one_annotator_cannot_undo_another_ones_label(desk: Desk, answer: MakeAnswer) -> None:
    """Undo is one's own."""
    (item,) = label_all(desk, answer, "anna", most=1)
    assert desk.undo("ben", item, 9) is Outcome.MOVED
    assert desk.view("anna").done == 1


def test_skipped_items_wait_until_they_are_asked_for(desk: Desk, answer: MakeAnswer) -> None:
    """They come back oldest first, marked, and can be labelled then."""
    skipped = [item_of(desk).id]
    desk.answer("anna", answer(skipped[0], None, comment="later"), 1)
    skipped.append(item_of(desk).id)
    desk.answer("anna", answer(skipped[1], None), 2)
    label_all(desk, answer, "anna")
    view = desk.view("anna")
    assert (view.item, view.done, view.skipped, view.total) == (None, 18, 2, 20)
    again = item_of(desk, skipped=True)
    assert (again.id, again.skipped, again.comment) == (skipped[0], True, "later")
    assert desk.answer("anna", answer(again.id, "F"), 3) is Outcome.SAVED
    assert item_of(desk, skipped=True).id == skipped[1]


def test_skipping_once_more_sends_an_item_to_the_end(desk: Desk, answer: MakeAnswer) -> None:
    """So that one can go round the skipped ones."""
    first, second = item_of(desk).id, ""
    desk.answer("anna", answer(first, None), 1)
    second = item_of(desk).id
    desk.answer("anna", answer(second, None), 2)
    desk.answer("anna", answer(first, None), 3)
    assert item_of(desk, skipped=True).id == second


def test_everyone_gets_every_item_by_default(desk: Desk, answer: MakeAnswer) -> None:
    """Full overlap; one annotator's labels do not show at another's desk."""
    label_all(desk, answer, "anna")
    view = desk.view("ben")
    assert (view.done, view.total) == (0, 20)


def test_beyond_the_overlap_items_go_to_whoever_comes_first(store: Path, sample: Sample, answer: MakeAnswer) -> None:
    """Six items are everyone's; each of the others is labelled once."""
    with closing(Desk.open(store, sample.id, overlap=6)) as desk:
        anna = label_all(desk, answer, "anna", most=10)
        ben = label_all(desk, answer, "ben")
        assert desk.view("anna").item is None
    assert anna[:6] == ben[:6]
    assert not set(anna[6:]) & set(ben[6:])
    assert len({*anna, *ben}) == 20


def test_two_people_at_once_are_not_shown_the_same_unshared_item(store: Path, sample: Sample) -> None:
    """What is on one desk is kept from the other while there is something else."""
    with closing(Desk.open(store, sample.id, overlap=0)) as desk:
        assert item_of(desk, "anna").id != item_of(desk, "ben").id
        assert item_of(desk, "anna") == item_of(desk, "anna")


def test_an_undone_item_beyond_the_overlap_is_free_again(store: Path, sample: Sample, answer: MakeAnswer) -> None:
    """A retracted label claims nothing."""
    with closing(Desk.open(store, sample.id, overlap=0)) as desk:
        (item,) = label_all(desk, answer, "anna", most=1)
        assert desk.view("ben").total == 19
        desk.undo("anna", item, 9)
        assert desk.view("ben").total == 20


def test_presses_from_many_threads_are_stored_once_each(desk: Desk, answer: MakeAnswer) -> None:
    """Ten tabs press at the same moment: one label, nine refusals."""
    item = item_of(desk)
    presses = [answer(item.id, "G") for _ in range(10)]
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda press=press: outcomes.append(desk.answer("anna", press, 1))) for press in presses
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [Outcome.SAVED, *[Outcome.TAKEN] * 9]


async def test_labels_are_saved_while_a_sweep_has_the_store(store: Path, sample: Sample, answer: MakeAnswer) -> None:
    """The sweep's process holds the store's lock and writes; the page writes too, and both find their rows."""
    async with await Store.open(store) as sweep:
        with closing(Desk.open(store, sample.id)) as desk:
            await sweep.add_sweep("another", "{}", "", simulated=True, now_ms=1)
            assert desk.answer("anna", answer(item_of(desk).id, "G"), 1) is Outcome.SAVED
            await sweep.add_sweep("a third", "{}", "", simulated=True, now_ms=1)
            assert desk.view("anna").done == 1
        assert await sweep.find_sweep("a third") is not None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT judge_label FROM annotation_item",
        "SELECT model FROM annotation_item",
        "SELECT persona FROM annotation_item",
        "SELECT judge_cell_id FROM annotation_item",
        "SELECT population FROM annotation_sample",
        "SELECT body FROM reading",
        "SELECT text FROM completion",
        "SELECT manifest FROM sweep",
        "SELECT label FROM annotations",
        "SELECT labels FROM records",
        "SELECT count(*) FROM cell",
        "DELETE FROM annotation_label",
        "UPDATE annotation_item SET claim = ''",
        "ATTACH ':memory:' AS other",
    ],
)
def test_the_pages_connection_is_blind(store: Path, sample: Sample, query: str) -> None:
    """SQLite itself refuses whatever would unblind or damage."""
    with (
        closing(open_blind(store)) as connection,
        pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized"),
    ):
        connection.execute(query)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("DELETE FROM annotation_label", id="delete"),
        pytest.param("UPDATE annotation_label SET label = 'F', retracted_ms = 1", id="change"),
        pytest.param("UPDATE annotation_label SET retracted_ms = NULL", id="not a retraction"),
    ],
)
def test_labels_cannot_be_changed_behind_the_desk(
    desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection, statement: str
) -> None:
    """The store keeps every label; the only change is a retraction."""
    label_all(desk, answer, "anna", most=1)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


def test_a_label_is_retracted_only_once(desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection) -> None:
    """When it was taken back stays known."""
    (item,) = label_all(desk, answer, "anna", most=1)
    desk.undo("anna", item, 7)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE annotation_label SET retracted_ms = 8")


def test_a_full_disk_or_a_locked_store_is_explained(desk: Desk, answer: MakeAnswer, store: Path) -> None:
    """Another program that does not let go becomes one line, and nothing is half saved."""
    item = item_of(desk)
    desk._connection.set_authorizer(None)
    desk._connection.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another program is writing"):
            desk.answer("anna", answer(item.id), 1)
        other.execute("ROLLBACK")
    assert desk.view("anna").done == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param('<b>plain</b> & "quoted"', '<b>plain</b> & "quoted"', id="markup stays text"),
        pytest.param("line\nline\ttab", "line\nline\ttab", id="white space stays"),
        pytest.param("a\u202eb\u2066c", "a\ufffdb\ufffdc", id="direction overrides"),
        pytest.param("a\x1b[31m\x00\x9b", "a\ufffd[31m\ufffd\ufffd", id="controls"),
        pytest.param("\U0001f469\u200d\U0001f52c", "\U0001f469\u200d\U0001f52c", id="emoji stay whole"),
    ],
)
def test_text_is_shown_so_that_nothing_in_it_acts(text: str, shown: str) -> None:
    """Model output is hostile, also to a reader's eye."""
    assert shown_text(text) == shown


def test_comments_lose_what_acts_and_keep_the_rest(
    desk: Desk, answer: MakeAnswer, connection: sqlite3.Connection, sample: Sample
) -> None:
    """A comment goes into sheets and terminals later."""
    desk.answer("anna", answer(item_of(desk).id, comment="  naïve\r\nécole \x1b[2J\u202e "), 1)
    assert current_labels(connection, sample.id)[0].comment == "naïve\nécole [2J"


def test_a_desk_needs_a_sample(store: Path) -> None:
    """One line, and the store is closed again."""
    with pytest.raises(UserError, match="no such sample"):
        Desk.open(store, 99)


@pytest.mark.parametrize("make", ["missing", "text", "other"])
def test_what_is_no_store_is_refused(tmp_path: Path, make: str) -> None:
    """One line instead of a traceback, and nothing is created."""
    path = tmp_path / "x.sqlite"
    if make == "text":
        path.write_text("not a database, but long enough to look at it " * 40, encoding="utf-8")
    if make == "other":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreError):
        open_annotations(path)
    assert path.exists() == (make != "missing")
