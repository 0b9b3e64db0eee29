"""The explorer's data: which responses are drawn, what becomes of their words, and how they stand in the page."""

import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from analysis import database
from analysis.report import reading
from analysis.report.island import PIECE, islands, json_island
from analysis.report.readable import readable
from analysis.report.reading import MOST_CHARACTERS, MOST_CLAIMS, Sampled, sample_responses, text_of
from analysis.report.testing import Design, build_store
from analysis.testing import claims_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("store") / "store.sqlite")


def drawn(store: Path, most: int | None, seed: int = 0) -> Sampled:
    with database.reading(store) as connection:
        return sample_responses(connection, 1, "judge", most=most, seed=seed)


def changed(store: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(statement, values)


def test_a_sample_is_even_over_models_and_tasks(store: Path) -> None:
    """Of 72 responses of 3 models and 2 tasks, 12 are two of each pair."""
    sampled = drawn(store, 12)
    counts = Counter((response.model, response.task) for response in sampled.responses)
    assert sampled.total == 72
    assert set(counts.values()) == {2}
    assert len(counts) == 6


def test_a_sample_can_be_drawn_again(store: Path) -> None:
    """The same seed draws the same responses, another seed others."""
    assert drawn(store, 12) == drawn(store, 12)
    assert drawn(store, 12) != drawn(store, 12, seed=1)


def test_a_larger_sample_holds_the_smaller_one(store: Path) -> None:
    """So that asking for more does not take away what one has read."""
    small, large = ({response.key for response in drawn(store, most).responses} for most in (12, 30))
    assert small < large


def test_all_responses_can_be_had(store: Path) -> None:
    """None draws everything once."""
    responses = drawn(store, None).responses
    assert len({response.key for response in responses}) == len(responses) == 72


def test_no_responses_can_be_had(store: Path) -> None:
    """A page without responses still says how many there are."""
    assert drawn(store, 0) == Sampled(responses=(), total=72)


def test_what_waits_for_its_verdict_is_not_drawn(tmp_path: Path) -> None:
    """Pending records are neither shown nor counted; failed ones are shown with their reason."""
    store = build_store(tmp_path / "store.sqlite")
    changed(store, "UPDATE records SET state = 'pending' WHERE task_cell_id > 2")
    changed(store, "UPDATE records SET state = 'failed', reason = 'content: blocked' WHERE task_cell_id = 1")
    changed(store, "DELETE FROM answers WHERE cell_id = 1")
    sampled = drawn(store, None)
    failed = next(response for response in sampled.responses if response.state == "failed")
    assert sampled.total == 2
    assert (failed.reason, failed.text, failed.why_no_text) == ("content: blocked", "", "no response")


def test_long_texts_are_read_and_bounded() -> None:
    """A megabyte in a zstd frame comes as its beginning, and how much was left out."""
    frame = zstandard.ZstdCompressor().compress(b"ab" * 500_000)
    assert text_of(frame) == ("ab" * (MOST_CHARACTERS // 2), 1_000_000 - MOST_CHARACTERS, "")


def test_a_frame_that_inflates_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more bytes are inflated than are allowed, and a character cut in two is no error."""
    monkeypatch.setattr(reading, "MOST_BYTES", 1001)
    text, cut, why = text_of(zstandard.ZstdCompressor().compress("é".encode() * 10_000_000))
    assert (text, cut, why) == ("é" * 500, 0, "")


@pytest.mark.parametrize(
    "damaged",
    [b"\x28\xb5\x2f\xfd broken", b"", b"\xff\xfe", zstandard.compress(b"a text" * 500)[:-4]],
    ids=["frame", "empty", "no frame", "cut off"],
)
def test_damaged_texts_are_a_reason(damaged: bytes) -> None:
    """Never an empty answer in disguise, never a traceback."""
    text, cut, why = text_of(damaged)
    assert (text, cut) == ("", 0)
    assert why == "the stored text is damaged"


def test_without_zstandard_short_texts_are_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only long texts need the package; they say so."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert text_of("short") == ("short", 0, "")
    assert text_of(b"\x28\xb5\x2f\xfd")[2] == "long texts are compressed; install the `zstandard` package to read them"


def test_claims_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    """What is left out is counted, and a cut claim shows that it was cut."""
    store = build_store(tmp_path / "store.sqlite")
    claims = claims_json("F" * (MOST_CLAIMS + 3), ["x" * 5000] * (MOST_CLAIMS + 3))
    changed(store, "UPDATE records SET claims = ? WHERE task_cell_id = 1", claims)
    response = next(each for each in drawn(store, None).responses if each.key.endswith("001"))
    assert (len(response.claims), response.claims_cut) == (MOST_CLAIMS, 3)
    assert response.claims[0].text == "x" * 2000 + "…"


@pytest.mark.parametrize("claims", ["not JSON", '{"a": 1}', '[1, "x"]', "null"])
def test_claims_that_are_none_are_left_out(claims: str, tmp_path: Path) -> None:
    """A reading of an unexpected kind shows no claim."""
    store = build_store(tmp_path / "store.sqlite")
    changed(store, "UPDATE records SET claims = ?", claims)
    assert all(response.claims == () for response in drawn(store, None).responses)


@given(JSON)
def test_islands_hold_no_markup_and_lose_nothing(value: object) -> None:
    """Whatever the value: only ASCII, no character that HTML knows, and the same value after parsing."""
    text = json_island(value)
    assert text.isascii()
    assert not set(text) & set("<>&")
    assert json.loads(text) == value


def test_pieces_follow_the_index(store: Path) -> None:
    """Row n of the index has its words in piece n // size, at n % size."""
    sampled = drawn(store, None)
    made = islands(sampled, facts={"p0": ("I sing.",)}, label=str.upper, simulated=False)
    index, pieces = json.loads(made.index), [json.loads(piece) for piece in made.pieces]
    assert [len(piece) for piece in pieces] == [PIECE, 72 - PIECE]
    assert index["models"] == ["M-1", "M-2", "M-3"]
    for place, response in enumerate(sampled.responses):
        words, row = pieces[place // PIECE][place % PIECE], index["rows"][place]
        assert words["key"] == response.key
        assert index["models"][row[0]] == response.model.upper()
        assert row[6] == "".join(claim[0] for claim in words["claims"])


def test_facts_stand_by_persona(store: Path) -> None:
    """A persona whose facts are not known has none."""
    index = json.loads(islands(drawn(store, None), facts={"p1": ("a", "b")}, label=str, simulated=True).index)
    assert [index["facts"][index["personas"].index(name)] for name in ("p0", "p1")] == [[], ["a", "b"]]
    assert index["simulated"] is True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("\ud800 \u2028 \ue000", "\\ud800 \\u2028 \\ue000"),
        ("naïve\u00a0中文 👩\u200d💻", "naïve\u00a0中文 👩\u200d💻"),
    ],
    ids=["lines", "terminal", "direction", "hidden", "kept"],
)
def test_nothing_in_a_text_hides_or_reorders(text: str, shown: str) -> None:
    """Characters that act are visible; line breaks, scripts and joined emoji stay as they are."""
    assert readable(text) == shown


def test_responses_of_other_judges_are_not_drawn(tmp_path: Path) -> None:
    """The explorer shows the judge that the tables use."""
    store = build_store(tmp_path / "store.sqlite", Design(personas=1))
    with database.reading(store) as connection:
        assert sample_responses(connection, 1, "other", most=None, seed=0).total == 0
