"""Tables from a store: what they count, what is missing and why, and what a reader is warned of."""

from math import isnan
from pathlib import Path
from typing import Any

import pytest

from analysis.context import NothingToReportError, Settings, UnknownJudgeError
from analysis.estimates import Estimate
from analysis.export import report_json
from analysis.frames import Column, Kind, Report, Table, Value
from analysis.load import load
from analysis.memory import NOTHING_HELD
from analysis.tables import WHEN_SIMULATED, WHEN_TOY, make_report
from analysis.testing import StoreBuilder
from bench.manifest import SELF_JUDGE

QUICK = Settings(resamples=200, seed=1)


def percent(value: Value) -> float:
    """Return a share in percent."""
    number = value.value if isinstance(value, Estimate) else value
    assert isinstance(number, float)
    return 100 * number


def number(value: Value) -> float:
    """Return an estimate's value."""
    assert isinstance(value, Estimate)
    return value.value


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    """A store to fill."""
    return StoreBuilder(tmp_path / "store.db")


def report_on(store: StoreBuilder, settings: Settings = QUICK) -> Report:
    """Close a store and make its report."""
    store.close()
    return make_report(load(store.path), settings)


def small_sweep(store: StoreBuilder, **settings: Any) -> None:
    """Add a sweep with one model, three personas and three reasons for missing records."""
    store.sweep(subjects={"m": "x"}, **settings)
    store.records(
        {"model": "m", "persona": "a", "labels": "GGSF", "accuracy": "CCIU"},
        {"model": "m", "persona": "b", "labels": "GF", "accuracy": "CU"},
        {"model": "m", "persona": "c", "labels": "", "accuracy": ""},
        {"model": "m", "persona": "a", "sample": 1, "state": "unreadable", "reason": "no JSON array"},
        {"model": "m", "persona": "b", "sample": 1, "state": "failed", "reason": "task transient: 503"},
        {"model": "m", "persona": "c", "sample": 1, "state": "pending"},
        {"model": "m", "persona": "a", "sample": 2, "state": "truncated", "labels": "FFFF", "accuracy": "----"},
    )


def test_every_table_says_how_many_it_rests_on(store: StoreBuilder) -> None:
    """The number read and the missing ones, with their reasons, stand below the numbers."""
    small_sweep(store)
    table = report_on(store).table("leaderboard")
    row = table.row("m")
    assert (row["records"], row["missing"], row["claims"]) == (4, 3, 10)
    assert row["why_missing"] == "1 unreadable, 1 failed, 1 pending"
    notes = " / ".join(table.notes)
    assert "4 of 7 records read, 10 claims" in notes
    assert "1 record without a claim: no rate" in notes
    assert "1 record whose labelling was cut short: the claims before the cut are counted" in notes
    assert "3 records missing: " in notes
    assert "1 failed (task transient: 503)" in notes
    assert all(found.notes for found in report_on_again(store).tables)


def report_on_again(store: StoreBuilder) -> Report:
    """Make the report of a store that is closed already."""
    return make_report(load(store.path), QUICK)


def test_different_denominators_are_mentioned(store: StoreBuilder) -> None:
    """Models whose rates rest on different numbers of answers are not passed off as alike."""
    store.sweep(subjects={"a": "x", "b": "x"})
    store.records(
        {"model": "a", "persona": "p", "labels": "G"},
        {"model": "a", "persona": "q", "labels": "G"},
        {"model": "b", "persona": "p", "labels": "G"},
        {"model": "b", "persona": "q", "state": "pending", "labels": None},
    )
    report = report_on(store)
    assert "denominators differ: 1 to 2 records read per model" in report.table("leaderboard").notes
    assert "denominators differ: 1 to 2 records read per model" in report.table("inversion").notes


def test_elements_that_were_no_claim_are_visible(store: StoreBuilder) -> None:
    """They have a column, and a note with their share; those of missing answers are not counted."""
    store.sweep(subjects={"m": "x"})
    store.records(
        {"model": "m", "persona": "p", "labels": "GFF", "unread": 1},
        {"model": "m", "persona": "q", "state": "unreadable", "labels": None, "unread": 9},
    )
    table = report_on(store).table("leaderboard")
    assert table.row("m")["unread"] == 1
    assert "1 element of read records left out (25.0%): no claim or no known label" in table.notes


def test_a_whole_verdict_on_a_cut_answer_counts_as_cut_short(store: StoreBuilder) -> None:
    """Used by default; when cut answers shall be missing, so are their verdicts and audits."""
    store.sweep(subjects={"m": "x"})
    place = {"model": "m", "persona": "a"}
    store.records({**place, "labels": "FF", "answer_cut": 1}, {**place, "persona": "b", "labels": "G"})
    store.audits({**place, "labels": "GG", "answer_cut": 1}, {**place, "persona": "b", "labels": "G"})
    store.probes({**place, "labels": "G", "answer_cut": 1}, {**place, "persona": "b", "labels": "G"})
    used, missing = report_on(store), make_report(load(store.path), Settings(truncated=False, resamples=200))
    for name, column in (("leaderboard", "records"), ("self_audit", "audits"), ("probe", "records")):
        assert (used.table(name).row("m")[column], missing.table(name).row("m")[column]) == (2, 1), name
    for name, noun in (("leaderboard", "record"), ("self_audit", "self-audit"), ("probe", "judged probe")):
        assert f"1 {noun} of an answer that was cut short: counted as far as it goes" in used.table(name).notes
        assert f"1 {noun} of an answer that was cut short: missing" in missing.table(name).notes
    assert missing.table("leaderboard").row("m")["why_missing"] == "1 truncated"
    notes = " / ".join(missing.table("leaderboard").notes)
    assert "1 truncated (the answer itself was cut short)" in notes


@pytest.mark.parametrize("insert", ["records", "audits", "probes"])
def test_no_note_says_of_a_whole_labelling_that_it_was_cut_short(store: StoreBuilder, insert: str) -> None:
    """What was cut is the answer; only a labelling that was cut itself is said to be so."""
    store.sweep(subjects={"m": "x"})
    place = {"model": "m", "labels": "GF"}
    rows = ({**place, "persona": "a", "answer_cut": 1}, {**place, "persona": "b", "answer_cut": 1})
    getattr(store, insert)(*rows, {**place, "persona": "c", "state": "truncated", "answer_cut": 1})
    said = {note for table in report_on(store).tables for note in table.notes if "cut short:" in note}
    noun = {"records": "record", "audits": "self-audit", "probes": "judged probe"}[insert]
    assert said == {
        f"2 {noun}s of answers that were cut short: counted as far as they go",
        f"1 {noun} whose labelling was cut short: the claims before the cut are counted",
    }


def test_truncated_answers_can_be_missing(store: StoreBuilder) -> None:
    """The choice moves them from the claims to the missing ones."""
    small_sweep(store)
    table = report_on(store, Settings(truncated=False, resamples=200)).table("leaderboard")
    row = table.row("m")
    assert (row["records"], row["missing"], row["claims"]) == (3, 4, 6)
    assert "1 truncated" in str(row["why_missing"])


def test_a_model_without_claims_has_no_rate(store: StoreBuilder) -> None:
    """It has a reason instead of 0, stands last, and the mean over models leaves it out."""
    store.sweep(subjects={"silent": "x", "m": "y"})
    store.records(
        {"model": "silent", "persona": "a", "state": "failed", "reason": "auth: no key"},
        {"model": "m", "persona": "a", "labels": "GF"},
        {"model": "m", "persona": "b", "labels": "GGGF"},
    )
    table = report_on(store).table("leaderboard")
    rate = table.row("silent")["oi"]
    assert isinstance(rate, Estimate)
    assert isnan(rate.value)
    assert rate.reason == "no claims"
    assert table.column("model")[:2] == ("m", "silent")
    mean = table.row("mean of models")["oi"]
    assert isinstance(mean, Estimate)
    assert mean.n == 1
    assert mean.value == pytest.approx(2 / 6)


def test_macro_weighs_models_and_micro_weighs_claims(store: StoreBuilder) -> None:
    """A model with many claims moves the pooled rate only."""
    store.sweep(subjects={"long": "x", "short": "y"})
    store.records(
        {"model": "long", "persona": "a", "labels": "F" * 8},
        {"model": "short", "persona": "a", "labels": "GG"},
    )
    table = report_on(store).table("leaderboard")
    assert percent(table.row("mean of models")["oi"]) == pytest.approx(50)
    assert percent(table.row("all models")["oi"]) == pytest.approx(80)


@pytest.mark.parametrize(
    ("judge", "audit", "pattern"),
    [
        pytest.param("F" * 5 + "G" * 95, "G" * 100, "Under", id="exactly 5 pp is no longer calibrated"),
        pytest.param("F" * 4 + "G" * 96, "G" * 100, "Calib", id="4 pp"),
        pytest.param("G" * 100, "F" * 4 + "G" * 96, "Calib", id="-4 pp"),
        pytest.param("G" * 100, "F" * 5 + "G" * 95, "Over", id="-5 pp"),
        pytest.param("F" * 7 + "G" * 93, "F" * 2 + "G" * 98, "Under", id="0.07 - 0.02 is above 0.05 in floats"),
        pytest.param("F" * 6 + "G" * 94, "F" + "G" * 99, "Under", id="0.06 - 0.01 is below 0.05 in floats"),
        pytest.param("G", "", None, id="nothing audited"),
    ],
)
def test_patterns_are_decided_on_whole_numbers(
    store: StoreBuilder, judge: str, audit: str, pattern: str | None
) -> None:
    """A gap of exactly five points is one whatever floats make of it; without an audit there is no pattern."""
    store.sweep(subjects={"m": "x"})
    store.records({"model": "m", "persona": "a", "labels": judge})
    store.audits({"model": "m", "persona": "a", "labels": audit})
    assert report_on(store).table("self_audit").row("m")["pattern"] == pattern


def test_pairs_are_answers_with_both_labels(store: StoreBuilder) -> None:
    """The paired difference leaves out answers that one side has not read; the plain one does not."""
    store.sweep(subjects={"m": "x"})
    for name, labels, audit in (("a", "FF", "GG"), ("b", "GG", "GG"), ("c", "FFFF", None)):
        store.records({"model": "m", "persona": name, "labels": labels})
        state = {"state": "unreadable", "reason": "no JSON array"} if audit is None else {}
        store.audits({"model": "m", "persona": name, "labels": audit, **state})
    row = report_on(store).table("self_audit").row("m")
    assert (row["audits"], row["records"], row["paired"]) == (2, 3, 2)
    assert percent(row["delta"]) == pytest.approx(75)
    assert percent(row["paired_delta"]) == pytest.approx(50)


def test_probe_errors_are_of_assessed_claims(store: StoreBuilder) -> None:
    """A claim whose accuracy was not given is no correct one; gaps are against the task stage."""
    store.sweep(subjects={"m": "x"})
    for name in ("a", "b"):
        store.records({"model": "m", "persona": name, "labels": "GF"})
        store.probes({"model": "m", "persona": name, "labels": "GGGRS", "accuracy": "CCUI-"})
    table = report_on(store).table("probe")
    row = table.row("m")
    assert percent(row["error"]) == pytest.approx(25)
    assert percent(row["probe_oi"]) == pytest.approx(20)
    assert percent(row["gap_to_error"]) == pytest.approx(25)
    assert percent(row["gap_to_oi"]) == pytest.approx(30)
    assert any("2 were not assessed" in note for note in table.notes)


def test_missing_answers_are_counted_by_stage_and_reason(store: StoreBuilder) -> None:
    """Verdicts that were never asked for count too; reasons that differ in numbers only are one reason."""
    small_sweep(store)
    store.calls(
        {"model": "m", "stage": "task"},
        {"model": "m", "stage": "task", "state": "failed", "reason": "transient: gave up after 31 s"},
        {"model": "m", "stage": "task", "state": "failed", "reason": "transient: gave up after 7 s"},
        {"model": "judge", "subject": "m", "stage": "judge"},
    )
    table = report_on(store).table("missing_answers")
    rows = [(row["stage"], row["judge"], row["state"], row["reason"], row["missing"]) for row in table.named_rows()]
    assert ("task", "", "failed", "transient: gave up after N s", 2) in rows
    assert ("judge", "judge", "pending", "", 1) in rows
    assert [row[-1] for row in rows if row[0] == "judge"] == [1, 1, 1]
    assert "judge by judge: 7 planned, 3 missing" in table.notes


def test_a_stage_that_is_not_in_the_sweep_is_not_missing(store: StoreBuilder) -> None:
    """Audits that nobody planned are no missing answers."""
    store.sweep(subjects={"m": "x"})
    store.records({"model": "m", "persona": "a", "labels": "G"})
    store.audits({"model": "m", "persona": "a", "state": "pending", "labels": None})
    store.calls({"model": "m", "stage": "task"})
    assert report_on(store).table("missing_answers").rows == ()


def test_unreadable_answers_are_a_share_of_those_that_came(store: StoreBuilder) -> None:
    """Failed and pending calls are not parse failures."""
    small_sweep(store)
    judge = {"model": "judge", "subject": "m", "stage": "judge"}
    store.calls(
        {**judge, "persona": "a"},
        {**judge, "persona": "b", "state": "truncated"},
        {**judge, "persona": "c", "state": "unreadable", "reason": "no JSON array"},
        {**judge, "persona": "c", "state": "unreadable", "reason": "no JSON array"},
        {**judge, "persona": "a", "state": "failed", "reason": "quota: spent"},
        {**judge, "persona": "b", "state": "pending"},
    )
    (row,) = report_on(store).table("parse_failures").named_rows()
    share = row["share_unreadable"]
    assert isinstance(share, Estimate)
    assert (row["answered"], row["cut_short"], row["unreadable"], share.value, share.n) == (4, 1, 2, 0.5, 4)
    assert share.interval is not None
    assert (share.interval.low, share.interval.high) == (0, 1)
    assert row["most_frequent_reason"] == "no JSON array"


def test_the_share_of_missing_answers_has_an_interval_over_personas(store: StoreBuilder) -> None:
    """One persona of three fails: a third, and as few as none or as many as all in other samples of personas."""
    store.sweep(subjects={"m": "x"})
    states = {"a": "read", "b": "read", "c": "failed"}
    for persona, state in states.items():
        store.records({"model": "m", "persona": persona, "state": state, "labels": "G" if state == "read" else None})
        store.calls({"model": "judge", "subject": "m", "stage": "judge", "persona": persona, "state": state})
    (row,) = report_on(store).table("missing_answers").named_rows()
    share = row["share"]
    assert isinstance(share, Estimate)
    assert (share.value, share.n) == (pytest.approx(1 / 3), 3)
    assert share.interval is not None
    assert (share.interval.low, share.interval.high) == (0, 1)


def test_a_stage_of_other_personas_is_resampled_by_itself(store: StoreBuilder) -> None:
    """Memories of personas that no task was asked of have shares and intervals of their own."""
    store.sweep(subjects={"m": "x"})
    store.records({"model": "m", "persona": "a", "labels": "G"}, {"model": "m", "persona": "b", "labels": "F"})
    for persona in ("x", "y"):
        for turn, state in enumerate(("read", "read" if persona == "x" else "unreadable"), start=1):
            store.calls({"model": "m", "stage": "accum", "persona": persona, "round": turn, "state": state})
    (row,) = report_on(store).table("missing_answers").named_rows()
    share = row["share"]
    assert isinstance(share, Estimate)
    assert (row["stage"], share.value, share.n) == ("accum", 0.25, 4)
    assert share.interval is not None
    assert (share.interval.low, share.interval.high) == (0, 0.5)


def test_changed_parameters_are_counted(store: StoreBuilder) -> None:
    """Each change is a row, whichever other changes came with it."""
    small_sweep(store)
    store.calls(
        {"model": "m", "changes": '["no seed"]'},
        {"model": "m", "changes": '["no seed", {"parameter": "temperature"}]'},
        {"model": "m", "changes": ""},
    )
    table = report_on(store).table("parameter_changes")
    rows = [(row["change"], row["calls"], row["planned"]) for row in table.named_rows()]
    assert rows == [("no seed", 2, 3), ('{"parameter": "temperature"}', 1, 3)]


def test_cost_adds_up(store: StoreBuilder) -> None:
    """The last row is the sum; what is not known stays out of it and is not a zero of its own."""
    small_sweep(store)
    place: dict[str, Any] = {"alias": "m", "stage": "task"}
    store.insert("requests", [{**place, "finish": "stop", "input_tokens": 10, "output_tokens": 5}])
    store.insert("requests", [{"alias": "judge", "stage": "judge"}])
    store.insert("spending", [{**place, "attempts": 2, "cost_nano": 3_000_000_001, "assumed": 0}])
    table = report_on(store).table("cost")
    assert table.row("judge")["input_tokens"] is None
    total = table.row("total")
    found = [total[name] for name in ("requests", "answered", "input_tokens", "cost_nano")]
    assert found == [2, 1, 10, 3_000_000_001]


def test_a_missing_memory_is_left_out_and_counted(store: StoreBuilder) -> None:
    """A persona without its last memory has no growth; the other one has."""
    store.sweep(subjects={"m": "x"})
    store.memory("m", "a", [["x"], ["x", "y"], ["y", "z", "w"]])
    store.memory("m", "b", [["x"], ["x"], None])
    row = report_on(store).table("accumulation").row("m")
    growth, removal = row["growth"], row["removal"]
    assert isinstance(growth, Estimate)
    assert isinstance(removal, Estimate)
    assert (row["personas"], row["missing"], growth.n, growth.value) == (2, 1, 1, 2.0)
    assert removal.value == pytest.approx((0.25 + 0) / 2)


@pytest.mark.parametrize(("states", "said"), [([[], []], True), ([[], ["x"]], False)], ids=["nothing held", "one held"])
def test_growth_of_nothing_is_said_to_be_the_models_own(
    store: StoreBuilder, states: list[list[str]], said: bool
) -> None:
    """A table of zeros does not look like a defect."""
    store.sweep(subjects={"m": "x"})
    store.memory("m", "a", states)
    assert (NOTHING_HELD in report_on(store).table("accumulation").notes) is said


def test_prompt_variants_are_rows_of_their_own(store: StoreBuilder) -> None:
    """Memories under two prompts are never pooled."""
    store.sweep(subjects={"m": "x"})
    store.memory("m", "a", [["x"], ["x", "y"]], prompt="retain@1")
    store.memory("m", "a", [["x"], ["x"]], prompt="neutral@1")
    table = report_on(store).table("accumulation")
    assert [(row["prompt"], number(row["growth"])) for row in table.named_rows()] == [("retain@1", 1), ("neutral@1", 0)]


def test_groups_stand_in_their_order(store: StoreBuilder) -> None:
    """Stereotypical, counter-stereotypical, then the others; delta without one of the two has a reason."""
    store.sweep(subjects={"m": "x"})
    store.records(
        {"model": "m", "persona": "a", "persona_group": "neutral", "labels": "GF"},
        {"model": "m", "persona": "b", "persona_group": "stereotypical", "labels": "FF"},
    )
    table = report_on(store).table("group_breakdown")
    assert [column.name for column in table.columns] == ["model", "stereotypical", "neutral", "delta"]
    delta = table.row("m")["delta"]
    assert isinstance(delta, Estimate)
    assert isnan(delta.value)
    assert delta.reason == "no claims on one side"


def test_the_first_judge_is_used_unless_another_is_chosen(store: StoreBuilder) -> None:
    """Labels of two judges are never mixed."""
    store.sweep(subjects={"m": "x"}, judges=("strict", "mild"))
    store.records(
        {"model": "m", "persona": "a", "judge": "mild", "labels": "GGGG"},
        {"model": "m", "persona": "a", "judge": "strict", "labels": "FF"},
    )
    assert report_on(store).table("leaderboard").row("m")["claims"] == 2
    mild = make_report(load(store.path), Settings(judge="mild", resamples=200))
    assert mild.table("leaderboard").row("m")["claims"] == 4


def test_an_unknown_judge_is_an_error_that_names_the_known(store: StoreBuilder) -> None:
    """The message says which judges there are."""
    store.sweep(subjects={"m": "x"}, judges=("strict", "mild"))
    with pytest.raises(UnknownJudgeError, match="its judges: strict, mild"):
        report_on(store, Settings(judge="nobody"))


def test_a_sweep_without_answers_has_nothing_to_report(store: StoreBuilder) -> None:
    """Before anything is planned there is no table."""
    store.sweep(subjects={"m": "x"})
    with pytest.raises(NothingToReportError):
        report_on(store)


def test_a_sweep_of_memories_only_has_tables(store: StoreBuilder) -> None:
    """Tables of judged answers are empty of numbers, the memory table is not."""
    store.sweep(subjects={"m": "x"})
    store.memory("m", "a", [["x"], ["x", "y"]])
    report = report_on(store)
    assert number(report.table("accumulation").row("m")["growth"]) == 1
    rate = report.table("leaderboard").row("m")["oi"]
    assert isinstance(rate, Estimate)
    assert isnan(rate.value)


def test_simulated_answers_are_marked_in_every_title(store: StoreBuilder) -> None:
    """No table of a simulated sweep can pass for a real one."""
    small_sweep(store, simulated=True)
    report = report_on(store)
    assert report.warnings[0] == WHEN_SIMULATED
    assert all(table.simulated and table.title.startswith("SIMULATED: ") for table in report.tables)


def test_real_answers_are_not_marked(store: StoreBuilder) -> None:
    """A real sweep's titles do not say simulated."""
    small_sweep(store)
    report = report_on(store)
    assert report.warnings == ()
    assert not any(table.simulated or "SIMULATED" in table.title for table in report.tables)


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        pytest.param({"toy_judge": True}, WHEN_TOY, id="toy judge"),
        pytest.param({"toy_judge": True, "notes": ("It is no judge.",)}, "It is no judge.", id="the manifest's words"),
        pytest.param({"judges": ("m",)}, "the judge m is also under test", id="judges itself"),
        pytest.param({"judges": ()}, "the sweep has no judge", id="no judge"),
    ],
)
def test_what_a_reader_must_know_stands_on_top(store: StoreBuilder, manifest: dict[str, Any], wanted: str) -> None:
    """Weak judges and the manifest's notes are warnings."""
    small_sweep(store, **manifest)
    assert any(warning.startswith(wanted) for warning in report_on(store).warnings)


def test_that_a_judge_judges_itself_is_said_once(store: StoreBuilder) -> None:
    """In the manifest's words, where it has some."""
    small_sweep(store, judges=("m",), notes=(SELF_JUDGE,))
    assert [warning for warning in report_on(store).warnings if "its own answers" in warning] == [SELF_JUDGE]


def test_a_seed_repeats_every_number(store: StoreBuilder) -> None:
    """The same seed gives the same report, another one other intervals and the same values."""
    small_sweep(store)
    one, again = report_on(store), report_on_again(store)
    other = make_report(load(store.path), Settings(resamples=200, seed=2))
    assert report_json(one) == report_json(again)
    rates = [report.table("leaderboard").row("m")["oi"] for report in (one, other)]
    assert all(isinstance(rate, Estimate) for rate in rates)
    assert rates[0] != rates[1]
    assert percent(rates[0]) == percent(rates[1])


def test_a_row_that_does_not_fit_its_columns_is_refused() -> None:
    """A table cannot be built crooked."""
    with pytest.raises(ValueError, match="does not have 1 cells"):
        Table(name="t", title="t", columns=(Column("a", Kind.TEXT),), rows=(("x", "y"),))
