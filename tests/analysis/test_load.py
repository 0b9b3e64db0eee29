"""Reading a store's views into arrays."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import sources
from analysis.columns import count_letters
from analysis.load import NOT_UNDERSTOOD, VIEWS, StoreError, load
from analysis.records import ACCURACIES, LABELS, STATES, Dataset
from analysis.rowfiles import ROWS
from analysis.testing import COLUMNS, StoreBuilder, claims_json

ROOT = Path(__file__).parents[2]
CLAIM = st.tuples(st.sampled_from(LABELS), st.sampled_from(ACCURACIES))


def small_store(path: Path, *, personas: tuple[str, ...] = ("ann", "bob")) -> Path:
    """Write a store of one sweep with two models, two personas and one task."""
    with StoreBuilder(path) as store:
        store.sweep("small", subjects={"m2": "x", "m1": "y"})
        for persona in personas:
            store.records(
                {"model": "m1", "persona": persona, "labels": "GRSF", "accuracy": "CIPU"},
                {"model": "m1", "persona": persona, "sample": 1, "labels": "G", "accuracy": "C"},
                {"model": "m2", "persona": persona, "labels": "FF", "accuracy": None},
            )
            store.audits({"model": "m1", "persona": persona, "labels": "GG"})
            store.probes({"model": "m1", "persona": persona, "labels": "GR", "accuracy": "CI"})
        store.calls({"model": "m1", "stage": "task"}, {"model": "judge", "subject": "m1", "stage": "judge"})
    return path


def reasons_of(data: Dataset) -> list[tuple[str, str]]:
    """Return state and reason of every record."""
    records = data.records
    pairs = zip(records.state, records.reason, strict=True)
    return [(STATES[state], records.reasons[reason]) for state, reason in pairs]


@given(st.lists(st.lists(CLAIM, max_size=20), max_size=20))
def test_letters_are_counted_as_a_plain_loop_counts_them(rows: list[list[tuple[str, str]]]) -> None:
    """The vectorised count agrees with a Counter, row by row."""
    crossed = count_letters(
        ["".join(label for label, _ in row) for row in rows], ["".join(letter for _, letter in row) for row in rows]
    )
    for found, row in zip(crossed, rows, strict=True):
        wanted = Counter(row)
        assert all(
            found[at, to] == wanted[label, accuracy]
            for at, label in enumerate(LABELS)
            for to, accuracy in enumerate(ACCURACIES)
        )


@given(st.text(min_size=1).filter(lambda text: bool(set(text) - set(LABELS))))
def test_a_row_with_letters_that_mean_nothing_is_marked(letters: str) -> None:
    """Any other letter, line breaks and non-ASCII included, spoils its own row and no other."""
    crossed = count_letters([letters, "GF"], [None, "CU"])
    assert (crossed[0] == -1).all()
    assert crossed[1].sum() == 2


@pytest.mark.parametrize(
    ("labels", "accuracy"),
    [
        pytest.param("GXF", "CCC", id="unknown label"),
        pytest.param("GRF", "CC", id="fewer accuracies than labels"),
        pytest.param("GRF", "CCZ", id="unknown accuracy"),
    ],
)
def test_a_record_that_is_not_understood_is_unreadable(tmp_path: Path, labels: str, accuracy: str) -> None:
    """It keeps a state and a reason, and none of its claims count."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "p", "labels": labels, "accuracy": accuracy})
    data = load(tmp_path / "store.db")
    assert reasons_of(data) == [("unreadable", NOT_UNDERSTOOD)]
    assert data.records.claims.tolist() == [0]


def test_a_missing_record_is_not_an_empty_one(tmp_path: Path) -> None:
    """An answer without claims is present, a pending one is not."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records(
            {"model": "m", "persona": "p", "labels": "", "accuracy": ""},
            {"model": "m", "persona": "q", "state": "pending", "labels": None},
        )
    data = load(tmp_path / "store.db")
    assert data.records.present().tolist() == [True, False]


def test_records_cut_short_count_only_when_asked_for(tmp_path: Path) -> None:
    """Truncated rows are present by default and can be left out."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "p", "state": "truncated", "labels": "GF"})
    records = load(tmp_path / "store.db").records
    assert records.present().tolist() == [True]
    assert records.present(truncated=False).tolist() == [False]


def test_columns_arrive_with_their_names(tmp_path: Path) -> None:
    """Models keep the manifest's order, claims are counted by label and accuracy."""
    data = load(small_store(tmp_path / "store.db"))
    assert data.axes.models == ("m2", "m1", "judge")
    assert [(model.alias, model.family, model.is_subject) for model in data.models] == [
        ("m2", "x", True),
        ("m1", "y", True),
        ("judge", "judges", False),
    ]
    assert data.records.labels.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 2]] * 2
    assert data.records.accuracy.tolist() == [[1, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 2]] * 2
    assert data.records.over_inferred.tolist() == [2, 0, 2, 2, 0, 2]
    assert data.probes.accuracy.tolist() == [[1, 1, 0, 0, 0]] * 2
    assert data.audits.labels.tolist() == [[2, 0, 0, 0]] * 2


def test_tables_print_labels_that_tell_models_apart(tmp_path: Path) -> None:
    """A label stands for its alias; two models with one label keep their aliases beside it."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"a": "x", "b": "x", "c": "x"}, labels={"a": "A-1", "b": "B-1", "c": "B-1"})
    models = load(tmp_path / "store.db").models
    assert [model.label for model in models if model.is_subject] == ["A-1", "B-1 (b)", "B-1 (c)"]


def test_elements_that_were_no_claim_are_counted(tmp_path: Path) -> None:
    """They are kept beside the claims, and dropped with an answer that is missing."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records(
            {"model": "m", "persona": "p", "labels": "GF", "accuracy": "C-", "unread": 3, "unread_accuracy": 1},
            {"model": "m", "persona": "q", "state": "failed", "labels": None, "unread": None},
        )
        store.audits({"model": "m", "persona": "p", "labels": "G", "unread": 2})
    data = load(tmp_path / "store.db")
    assert (data.records.unread.tolist(), data.records.unread_accuracy.tolist()) == ([3, 0], [1, 0])
    assert data.audits.unread.tolist() == [2]


def test_claims_are_told_apart_by_words_where_judges_are_several(tmp_path: Path) -> None:
    """Case and spaces do not matter; with one judge nobody pays for reading them."""
    with StoreBuilder(tmp_path / "store.db") as store:
        for name, judges in (("two", ("judge", "other")), ("one", ("judge",))):
            store.sweep(name, subjects={"m": "x"}, judges=judges)
            for persona, texts in (("p", ["Likes  tea", "owns a cat"]), ("q", ["likes TEA", "x"])):
                store.records({"model": "m", "persona": persona, "labels": "GF", "claims": claims_json("GF", texts)})
    records = load(tmp_path / "store.db", "two").records
    words = records.wordings.words.tolist()
    assert (records.worded.tolist(), records.start.tolist()) == ([2, 2], [0, 2])
    assert words[0] == words[2]
    assert len(set(words)) == 3
    assert records.wordings.labels.tolist() == [0, 3, 0, 3]
    assert load(tmp_path / "store.db", "one").records.worded.tolist() == [0, 0]


def test_contradictions_come_from_the_manifest(tmp_path: Path) -> None:
    """An entry that is none is left out."""
    told: Any = {"p": {"round": 7, "contradicts": "loves nature"}, "q": {"round": "x"}, "r": 3}
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"}, contradictions=told)
    (found,) = load(tmp_path / "store.db").sweep.contradictions
    assert (found.persona, found.round, found.statement) == ("p", 7, "loves nature")


def test_order_of_rows_does_not_change_positions(tmp_path: Path) -> None:
    """Personas are numbered by name, so that a seed draws the same personas whatever the store's row order."""
    one = load(small_store(tmp_path / "one.db", personas=("ann", "bob", "cy")))
    other = load(small_store(tmp_path / "other.db", personas=("cy", "ann", "bob")))
    assert one.axes == other.axes
    assert sorted(one.records.persona.tolist()) == sorted(other.records.persona.tolist())
    assert other.axes.personas[other.records.persona[0]] == "cy"


def test_chunks_do_not_show_in_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read three at a time give the arrays that rows read at once give."""
    path = small_store(tmp_path / "store.db", personas=tuple("abcdefg"))
    whole = load(path)
    monkeypatch.setattr(sources, "CHUNK_ROWS", 3)
    parts = load(path)
    assert np.array_equal(parts.records.crossed, whole.records.crossed)
    assert np.array_equal(parts.records.persona, whole.records.persona)


def test_another_sweep_in_the_store_stays_apart(tmp_path: Path) -> None:
    """Rows are those of the sweep that was named."""
    with StoreBuilder(tmp_path / "store.db") as store:
        for name, labels in (("first", "G"), ("second", "FFF")):
            store.sweep(name, subjects={"m": "x"}, simulated=name == "second")
            store.records({"model": "m", "persona": "p", "labels": labels})
    data = load(tmp_path / "store.db", "second")
    assert data.records.claims.tolist() == [3]
    assert data.sweep.simulated


def test_the_manifest_says_what_the_sweep_is(tmp_path: Path) -> None:
    """Judges keep their order; notes and the toy mark come through."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"}, judges=("z", "a"), toy_judge=True, notes=("small judge",))
    sweep = load(tmp_path / "store.db").sweep
    assert (sweep.judges, sweep.toy_judge, sweep.notes) == (("z", "a"), True, ("small judge",))


def test_memory_attributes_are_normalised(tmp_path: Path) -> None:
    """Case and white space do not make an attribute new; one held twice is there twice."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.memory("m", "p", [["Likes  Tea", "likes tea"], [], None])
    memories = load(tmp_path / "store.db").memories
    assert [memories.pool.texts[code] for code in memories.attributes(0)] == ["likes tea", "likes tea"]
    assert memories.size.tolist() == [2, 0, 0]
    assert memories.complete.tolist() == [True, True, False]


@pytest.mark.parametrize("inferred", ["{}", "[1]", "not json", None], ids=["object", "numbers", "text", "null"])
def test_a_memory_that_is_no_list_of_texts_is_unreadable(tmp_path: Path, inferred: str | None) -> None:
    """It is missing with a reason, never an empty memory."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.memory("m", "p", [[]], inferred=inferred)
    memories = load(tmp_path / "store.db").memories
    assert not memories.complete.any()
    assert memories.reasons[memories.reason[0]] == NOT_UNDERSTOOD


def test_spending_counts_requests_and_adds_the_ledger(tmp_path: Path) -> None:
    """Tokens come from requests, money from the ledger; nothing answered is None, not 0."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        tokens = {"input_tokens": 10, "cached_tokens": 1, "output_tokens": 5, "reasoning_tokens": 2}
        store.insert(
            "requests", [{"alias": "m", "stage": "task", "finish": "stop", **tokens}, {"alias": "m", "stage": "task"}]
        )
        store.insert("requests", [{"alias": "m", "stage": "probe"}])
        money = {"attempts": 3, "cost_nano": 7, "assumed": 1, "assumed_nano": 2}
        store.insert("spending", [{"alias": "m", "stage": "task", **money}])
    probe, task = load(tmp_path / "store.db").spending
    assert (task.requests, task.answered, task.input_tokens, task.cost_nano, task.assumed) == (2, 1, 10, 7, 1)
    assert (probe.requests, probe.answered, probe.input_tokens, probe.cost_nano) == (1, 0, None, None)


def test_the_store_is_not_written_to(tmp_path: Path) -> None:
    """Reading leaves the bytes alone, in a folder whose name needs quoting in a URI."""
    folder = tmp_path / "a?b#c%20d"
    folder.mkdir()
    path = small_store(folder / "store.db")
    before = path.read_bytes()
    load(path)
    assert path.read_bytes() == before


def test_a_running_sweep_can_be_read(tmp_path: Path) -> None:
    """A writer in the middle of a transaction neither blocks the reader nor shows through."""
    path = small_store(tmp_path / "store.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM records")
    assert len(load(path).records) == 6
    writer.execute("ROLLBACK")
    writer.close()


def empty_file(path: Path) -> None:
    """A file of no bytes is an empty database."""
    path.touch()


def no_database(path: Path) -> None:
    """A file of words is none."""
    path.write_text("hello " * 1000, encoding="utf-8")


def no_sweep(path: Path) -> None:
    """A store before its first sweep."""
    StoreBuilder(path).close()


def two_sweeps(path: Path) -> None:
    """A store with two sweeps."""
    with StoreBuilder(path) as store:
        store.sweep("one", subjects={})
        store.sweep("two", subjects={})


def bad_manifest(path: Path) -> None:
    """A store whose manifest is no JSON."""
    with StoreBuilder(path) as store:
        store.insert("sweeps", [{"sweep": "one", "simulated": 0, "manifest": "{"}])


def old_views(path: Path) -> None:
    """A store whose views an older version made."""
    StoreBuilder(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE models DROP COLUMN label")


def new_state(path: Path) -> None:
    """A store made by a later version."""
    with StoreBuilder(path) as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "p", "state": "teleported"})


@pytest.mark.parametrize(
    ("make", "sweep", "message"),
    [
        pytest.param(lambda path: None, "", "no such store", id="no file"),
        pytest.param(Path.mkdir, "", "this is a folder; give the store's file", id="a folder"),
        pytest.param(empty_file, "", "is empty, no sweep has been planned", id="empty file"),
        pytest.param(no_database, "", "not a database", id="not a database"),
        pytest.param(no_sweep, "", "no sweep yet", id="no sweep"),
        pytest.param(two_sweeps, "", "choose one with --sweep: one, two", id="several sweeps"),
        pytest.param(two_sweeps, "three", "no sweep called 'three'; it has one, two", id="unknown sweep"),
        pytest.param(bad_manifest, "", "is not JSON", id="broken manifest"),
        pytest.param(old_views, "", r"older than this program \(no models.label\)", id="views of an older version"),
        pytest.param(new_state, "", "state 'teleported'", id="unknown state"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, make: object, sweep: str, message: str) -> None:
    """Every mistake becomes a StoreError of one line."""
    path = tmp_path / "store.db"
    assert callable(make)
    make(path)
    with pytest.raises(StoreError, match=message) as caught:
        load(path, sweep)
    assert "\n" not in str(caught.value)


def test_no_store_is_made_by_looking_for_one(tmp_path: Path) -> None:
    """Opening read-only does not create a file."""
    with pytest.raises(StoreError):
        load(tmp_path / "store.db")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def real_views() -> sqlite3.Connection:
    """An empty database with the engine's schema and the instruments' views."""
    connection = sqlite3.connect(":memory:")
    for script in sorted((ROOT / "engine/sql/migrations").glob("*.sql")):
        connection.executescript(script.read_text(encoding="utf-8"))
    connection.executescript((ROOT / "instruments/sql/views.sql").read_text(encoding="utf-8"))
    return connection


@pytest.mark.parametrize("view", VIEWS)
def test_the_views_have_the_columns_that_tests_build(real_views: sqlite3.Connection, view: str) -> None:
    """Tables of `StoreBuilder` look like the store's own views, so that what is tested is what runs."""
    columns = [name for _, name, *_ in real_views.execute(f"PRAGMA table_info({view})")]
    assert set(COLUMNS[view]) <= set(columns)


def test_a_row_has_exactly_the_columns_of_its_view(real_views: sqlite3.Connection) -> None:
    """What is exported is the whole view, in its order of meaning, nothing more."""
    for view, columns in ROWS.items():
        found = {name for _, name, *_ in real_views.execute(f"PRAGMA table_info({view})")}
        assert set(columns) == found, view
