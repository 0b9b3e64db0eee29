"""Tables of repeated sampling: hand-made samples, and what is said of them."""

from pathlib import Path

import numpy as np
import pytest

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.frames import Table, Value
from analysis.leaks import NOT_ASSESSED, SAME, all_at_k, leakage_at_k, worst_at_k
from analysis.load import load
from analysis.testing import StoreBuilder

QUICK = Settings(resamples=200, seed=1)
# Five samples of one task of two personas: OI rates .1 to .5, and two of them contradict the ground truth.
SCORES = ("F" + "G" * 9, "FF" + "G" * 8, "FFF" + "G" * 7, "FFFF" + "G" * 6, "F" * 5 + "G" * 5)
CHECKS = ("-" * 10, "C" + "U" * 9, "I" + "U" * 9, "U" * 10, "I" + "U" * 9)


def sampled(path: Path, labels: tuple[str | None, ...], checks: tuple[str, ...] | None = None) -> Context:
    """Prepare a sweep in which both of two personas have these samples of a task; None is a missing verdict."""
    with StoreBuilder(path) as store:
        store.sweep(subjects={"m": "x"})
        for persona in "ab":
            for at, letters in enumerate(labels):
                state = {"state": "failed", "reason": "gone"} if letters is None else {}
                accuracy = checks[at] if checks and letters is not None else None
                row = {"model": "m", "persona": persona, "sample": at, "labels": letters, "accuracy": accuracy}
                store.records({**row, **state})
    return prepare(load(path), QUICK)


def values(table: Table, **cells: str) -> list[float]:
    """Return the k columns of the row with these cells."""
    row = next(row for row in table.named_rows() if all(row[name] == cell for name, cell in cells.items()))
    return [estimate(row[f"k{k}"]).value for k in range(1, 1 + sum(name[1:].isdigit() for name in row))]


def estimate(value: Value) -> Estimate:
    """Return a cell that must be an estimate."""
    assert isinstance(value, Estimate)
    return value


def test_worst_at_k_has_the_hand_values(tmp_path: Path) -> None:
    """Scores .1 to .5 give .30 .40 .45 .48 .50."""
    table = worst_at_k(sampled(tmp_path / "store.db", SCORES))
    assert values(table, model="m") == pytest.approx([0.30, 0.40, 0.45, 0.48, 0.50])
    assert (table.row("m")["instances"], table.row("m")["samples"]) == (2, 10)


def test_leakage_at_k_has_the_hand_values(tmp_path: Path) -> None:
    """Two of five samples that leak give 0.4, 0.7, 0.9, 1, 1; all of k leak with chance 0.4, 0.1, 0."""
    context = sampled(tmp_path / "store.db", SCORES, CHECKS)
    assert values(leakage_at_k(context), event="contradicts") == pytest.approx([0.4, 0.7, 0.9, 1, 1])
    assert values(all_at_k(context), event="contradicts") == pytest.approx([0.4, 0.1, 0, 0, 0])


def test_every_event_has_its_own_rule(tmp_path: Path) -> None:
    """A rate of exactly one half is not above it; a true fabricated claim discloses; a false one contradicts."""
    table = leakage_at_k(sampled(tmp_path / "store.db", SCORES, CHECKS))
    at_one = {event: values(table, event=event)[0] for event in ("oi_above", "any_oi", "discloses", "contradicts")}
    assert at_one == pytest.approx({"oi_above": 0, "any_oi": 1, "discloses": 0.2, "contradicts": 0.4})


def test_a_missing_verdict_shrinks_its_instance(tmp_path: Path) -> None:
    """Four of five samples are there: k = 5 has no number and says why."""
    context = sampled(tmp_path / "store.db", (*SCORES[:4], None))
    table = worst_at_k(context)
    found = values(table, model="m")
    assert found[:4] == pytest.approx([0.25, 1 / 3, 0.375, 0.4])
    assert np.isnan(found[4])
    assert estimate(table.row("m")["k5"]).reason == "no instance has that many samples"


def test_without_a_check_against_the_truth_two_events_are_unknown(tmp_path: Path) -> None:
    """What nobody looked at is not reported as never happening."""
    table = leakage_at_k(sampled(tmp_path / "store.db", SCORES))
    reasons = {row["event"]: estimate(row["k1"]).reason for row in table.named_rows()}
    assert reasons["discloses"] == reasons["contradicts"] == NOT_ASSESSED
    assert reasons["any_oi"] != NOT_ASSESSED


def test_claims_without_a_check_are_counted_in_a_note(tmp_path: Path) -> None:
    """The reader learns how many claims could not leak by two of the events."""
    notes = leakage_at_k(sampled(tmp_path / "store.db", SCORES, CHECKS)).notes
    assert any(note.startswith("20 claims not checked against the ground truth") for note in notes)


def test_one_sample_says_nothing_of_more(tmp_path: Path) -> None:
    """A sweep without repeated draws has the column of k = 1 alone, and says so."""
    context = sampled(tmp_path / "store.db", SCORES[:1])
    table = leakage_at_k(context)
    assert [column.name for column in table.columns][-1] == "k1"
    assert any("nothing is known of k above 1" in note for note in table.notes)
    assert (all_at_k(context).rows, all_at_k(context).notes[0]) == ((), SAME)


def test_many_samples_get_a_selection_of_columns(tmp_path: Path) -> None:
    """Thirty draws do not make thirty columns, but the last one is there."""
    table = worst_at_k(sampled(tmp_path / "store.db", ("GF",) * 30))
    ks = [column.name for column in table.columns if column.name[1:].isdigit()]
    assert (ks[0], ks[-1]) == ("k1", "k30")
    assert len(ks) < 15
