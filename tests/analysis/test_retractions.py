"""Whether contradicted inferences are taken back, and what the figures rest on."""

from math import isnan
from pathlib import Path

import pytest

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.load import load
from analysis.retractions import NO_SCRIPTS, contradicted_attributes, retraction
from analysis.testing import StoreBuilder

TOLD = {"p": {"round": 3, "contradicts": "is an outdoors person who enjoys nature trips"}}
KEPT = ["prefers nature trips", "likes tea"]


def told(path: Path, *states: list[list[str] | None], contradictions: object = TOLD) -> Context:
    """Prepare a sweep with one conversation of persona `p` per argument, as samples."""
    with StoreBuilder(path) as store:
        store.sweep(subjects={"m": "x"}, contradictions=contradictions)  # type: ignore[arg-type]
        for sample, memory in enumerate(states):
            store.memory("m", "p", memory, sample=sample)
    return prepare(load(path), Settings(resamples=200))


def test_what_is_retracted_stands_beside_what_else_is_removed(tmp_path: Path) -> None:
    """One conversation keeps the contradicted attribute and drops another, one takes it back, one does so later."""
    context = told(
        tmp_path / "store.db",
        [["x"], KEPT, ["prefers nature trips"], ["prefers nature trips"]],
        [["x"], KEPT, ["likes tea"], ["likes tea"]],
        [["x"], KEPT, KEPT, ["likes tea"]],
    )
    row = retraction(context).row("m")
    assert (row["conversations"], row["held"], row["retracted"], row["retracted_by_end"]) == (3, 3, 1, 2)
    rate = row["retraction"]
    assert isinstance(rate, Estimate)
    assert (rate.value, rate.n) == (pytest.approx(1 / 3), 3)
    assert (row["other_held"], row["other_removed"]) == (3, 1)


def test_every_attribute_behind_the_figures_is_listed(tmp_path: Path) -> None:
    """They are found by shared words, so a reader must be able to look at them."""
    context = told(
        tmp_path / "store.db",
        [["x"], KEPT, KEPT, KEPT],
        [["x"], KEPT, [], []],
        [["x"], KEPT, KEPT, []],
    )
    rows = list(contradicted_attributes(context).named_rows())
    assert [(row["sample"], row["attribute"], row["fate"]) for row in rows] == [
        (0, "prefers nature trips", "kept to the end"),
        (1, "prefers nature trips", "retracted at once"),
        (2, "prefers nature trips", "retracted later"),
    ]
    assert rows[0]["contradicts"] == TOLD["p"]["contradicts"]


def test_a_conversation_with_a_gap_there_is_left_out(tmp_path: Path) -> None:
    """Without the memory before or after the message nothing can be said; a gap elsewhere does not matter."""
    context = told(
        tmp_path / "store.db",
        [["x"], None, KEPT, KEPT],
        [["x"], KEPT, None, KEPT],
        [["x"], KEPT],
        [None, KEPT, KEPT, KEPT],
    )
    row = retraction(context).row("m")
    assert (row["conversations"], row["missing"]) == (1, 3)


def test_nothing_held_is_no_rate(tmp_path: Path) -> None:
    """A memory that never assumed it has neither kept nor retracted it."""
    context = told(tmp_path / "store.db", [["x"], ["likes tea"], ["likes tea"]])
    row = retraction(context).row("m")
    assert row["held"] == 0
    rate = row["retraction"]
    assert isinstance(rate, Estimate)
    assert isnan(rate.value)
    assert rate.reason == "no such attribute held"


def test_rates_have_intervals_over_personas(tmp_path: Path) -> None:
    """One persona's model takes it back, the other's does not: with two personas, anything from none to all."""
    told = dict.fromkeys(("p", "q"), TOLD["p"])
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"}, contradictions=told)  # type: ignore[arg-type]
        store.memory("m", "p", [["x"], KEPT, KEPT])
        store.memory("m", "q", [["x"], KEPT, ["likes tea"]])
    row = retraction(prepare(load(tmp_path / "store.db"), Settings(resamples=200))).row("m")
    rate, other = row["retraction"], row["other_removal"]
    assert isinstance(rate, Estimate)
    assert isinstance(other, Estimate)
    assert rate.interval is not None
    assert (rate.value, rate.interval.low, rate.interval.high) == (0.5, 0, 1)
    assert (other.value, other.interval) == (0, None)


@pytest.mark.parametrize(
    "contradictions",
    [
        pytest.param({"nobody": {"round": 3, "contradicts": "x"}}, id="a persona that is not there"),
        pytest.param({"p": {"round": 1, "contradicts": "x"}}, id="the first message"),
        pytest.param({"p": {"round": 9, "contradicts": "x"}}, id="a round that was not played"),
    ],
)
def test_a_contradiction_that_does_not_fit_is_left_out(tmp_path: Path, contradictions: object) -> None:
    """It counts no conversation."""
    context = told(tmp_path / "store.db", [["x"], KEPT, KEPT], contradictions=contradictions)
    row = retraction(context).row("m")
    assert (row["conversations"], row["missing"]) == (0, 0)


def test_a_manifest_without_contradictions_is_said_to_have_none(tmp_path: Path) -> None:
    """Both tables are empty with that reason."""
    context = told(tmp_path / "store.db", [["x"], KEPT, KEPT], contradictions=None)
    for table in (retraction(context), contradicted_attributes(context)):
        assert table.rows == ()
        assert NO_SCRIPTS in table.notes
