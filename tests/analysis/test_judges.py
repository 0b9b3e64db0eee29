"""Several judges of the same answers: compared by answer, and by claim only where both word a claim alike."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from analysis.context import Context, Settings, prepare
from analysis.estimates import Estimate
from analysis.frames import Value
from analysis.judges import NO_MATCH, ONE_JUDGE, judge_models, judge_pairs, judges
from analysis.load import load
from analysis.testing import StoreBuilder, claims_json

QUICK = Settings(resamples=200, seed=1)


def judged(path: Path, *answers: dict[str, tuple[str, list[str]] | None]) -> Context:
    """Prepare a sweep with two judges; one answer per persona, labels and claims by judge, None where it is missing."""
    with StoreBuilder(path) as store:
        store.sweep(subjects={"m": "x"}, judges=("strict", "mild"), labels={"strict": "Strict-1"})
        for place, answer in enumerate(answers):
            for judge, found in answer.items():
                row: dict[str, Any] = {"model": "m", "persona": f"p{place}", "judge": judge}
                if found is None:
                    store.records({**row, "state": "failed", "reason": "gone"})
                else:
                    store.records({**row, "labels": found[0], "claims": claims_json(*found)})
    return prepare(load(path), QUICK)


def estimate(value: Value) -> Estimate:
    """Return a cell that must be an estimate."""
    assert isinstance(value, Estimate)
    return value


AGREEING = (
    {"strict": ("GF", ["a", "b"]), "mild": ("GR", ["A ", "b"])},
    {"strict": ("GGF", ["a", "b", "c"]), "mild": ("GGF", ["a", "b", "other"])},
    {"strict": ("FF", ["x", "y"]), "mild": ("FS", ["x", "y"])},
)


def test_each_judge_has_its_own_rates(tmp_path: Path) -> None:
    """Labels of two judges are never mixed, and the table has a row per judge whichever one the other tables use."""
    context = judged(tmp_path / "store.db", *AGREEING)
    rates = {row["judge"]: estimate(row["oi_micro"]).value for row in judges(context).named_rows()}
    assert rates == pytest.approx({"Strict-1": 4 / 7, "mild": 3 / 7})
    assert [row["claims"] for row in judge_models(context).named_rows()] == [7, 7]


def test_claims_are_matched_by_their_words(tmp_path: Path) -> None:
    """Six claims are worded alike; the labels of three pairs agree, a fourth only in being over-inferred."""
    (row,) = judge_pairs(judged(tmp_path / "store.db", *AGREEING)).named_rows()
    assert (row["first"], row["second"], row["records"]) == ("Strict-1", "mild", 3)
    assert (row["claims_alike"], row["share_alike"]) == (6, 6 / 7)
    # Of the six: G and G three times, F and R, F and F, F and S.
    observed, chance = 4 / 6, (3 * 3 + 3 * 1) / 36
    assert estimate(row["kappa_claims"]).value == pytest.approx((observed - chance) / (1 - chance))
    observed, chance = 5 / 6, (3 * 4 + 3 * 2) / 36
    assert estimate(row["kappa_oi"]).value == pytest.approx((observed - chance) / (1 - chance))


def test_answers_are_compared_by_their_rates(tmp_path: Path) -> None:
    """Differences and rho rest on answers that both have read."""
    missing: dict[str, tuple[str, list[str]] | None] = {"strict": ("FFFF", list("abcd")), "mild": None}
    (row,) = judge_pairs(judged(tmp_path / "store.db", *AGREEING, missing)).named_rows()
    assert row["records"] == 3
    assert estimate(row["difference"]).value == pytest.approx(1 / 7)
    wanted = spearmanr([1 / 2, 1 / 3, 1], [0, 1 / 3, 1]).statistic
    assert estimate(row["rho_records"]).value == pytest.approx(wanted)
    assert estimate(row["kappa_records"]).value == pytest.approx(1)


def test_a_wording_twice_in_an_answer_counts_once(tmp_path: Path) -> None:
    """A claim that a judge repeats is matched by its first label."""
    answer = {"strict": ("FG", ["a", "a"]), "mild": ("F", ["a"])}
    (row,) = judge_pairs(judged(tmp_path / "store.db", answer, answer)).named_rows()
    assert row["claims_alike"] == 2
    assert estimate(row["kappa_claims"]).reason == "both judges use one and the same label"


def test_without_a_common_wording_there_is_no_kappa(tmp_path: Path) -> None:
    """It has a reason, not a 0."""
    answer = {"strict": ("F", ["a"]), "mild": ("F", ["b"])}
    (row,) = judge_pairs(judged(tmp_path / "store.db", answer)).named_rows()
    assert row["claims_alike"] == 0
    assert estimate(row["kappa_claims"]).reason == NO_MATCH


def test_one_judge_is_said_to_be_one(tmp_path: Path) -> None:
    """The table of pairs is empty and says what that means."""
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"})
        store.records({"model": "m", "persona": "p", "labels": "GF"})
    context = prepare(load(tmp_path / "store.db"), QUICK)
    assert judge_pairs(context).rows == ()
    assert ONE_JUDGE in judge_pairs(context).notes
    assert ONE_JUDGE in judges(context).notes


def test_three_judges_make_three_pairs(tmp_path: Path) -> None:
    """Every two judges are compared, in their order."""
    names = ("one", "two", "three")
    with StoreBuilder(tmp_path / "store.db") as store:
        store.sweep(subjects={"m": "x"}, judges=names)
        for persona, (first, _) in enumerate(pairwise("GFGF")):
            store.records(*({"model": "m", "persona": f"p{persona}", "judge": name, "labels": first} for name in names))
    table = judge_pairs(prepare(load(tmp_path / "store.db"), QUICK))
    assert [(row["first"], row["second"]) for row in table.named_rows()] == [
        ("one", "two"),
        ("one", "three"),
        ("two", "three"),
    ]
