"""The published figures come back from counts that agree with them, within rounding or the paper's own disagreement."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from analysis.context import Settings
from analysis.estimates import Estimate
from analysis.frames import Table, Value
from analysis.load import load
from analysis.tables import make_report
from analysis.testing import StoreBuilder

GROUPS = {"stereotypical": "stereotypical", "counter-stereotypical": "counter", "neutral": "neutral"}
PERSONAS_PER_GROUP = 50
QUICK = Settings(resamples=200, seed=1)
LEVEL_PP = 0.0501
DIFFERENCE_PP = 0.11
PATTERNS = {
    "Under": {"Qwen3-8B", "GPT-4o-mini", "DeepSeek-v4-flash"},
    "Calib": {"DeepSeek-v4-pro", "Gemini-3-flash", "Qwen3.6-plus"},
    "Over": {"Claude-Opus-4-6", "GPT-5.5", "Gemini-3.1-pro", "GLM-5.1", "GPT-5.4-nano", "Kimi-K2.5"},
}


def persona(group: str, number: int) -> str:
    """Name one of a group's fifty personas."""
    return f"{group}-{number:02d}"


def dealt(counts: Mapping[str, int], hands: int) -> list[str]:
    """Deal so many letters of each kind into equal hands."""
    deck = "".join(letter * count for letter, count in counts.items())
    return [deck[hand::hands] for hand in range(hands)]


def split(total: int, weights: Sequence[float]) -> list[int]:
    """Split a whole number in given proportions, exactly."""
    edges = [round(total * sum(weights[:end]) / sum(weights)) for end in range(len(weights) + 1)]
    return [end - start for start, end in pairwise(edges)]


def group_counts(row: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Find claims by group and label that give one model's published shares and its rate in every group."""
    claims = int(row["claims"])
    # Rounded shares need not add up to the rounded rate: what is missing is shared among the three.
    lacking = row["oi_pct"] - row["stereotype_pct"] - row["fabricated_pct"]
    grounded, over = round(claims * row["grounded_pct"] / 100), round(claims * (row["oi_pct"] - lacking / 3) / 100)
    sizes = dict(zip(GROUPS, split(claims, [1, 1, 1]), strict=True))
    rate = {group: rates[f"{column}_pct"] / 100 for group, column in GROUPS.items()}
    surplus = over - sum(rate[group] * sizes[group] for group in GROUPS)
    moved = round(surplus / (rate["stereotypical"] - rate["counter-stereotypical"]))
    sizes["stereotypical"], sizes["counter-stereotypical"] = (
        sizes["stereotypical"] + moved,
        sizes["counter-stereotypical"] - moved,
    )
    overs = {group: round(rate[group] * sizes[group]) for group in GROUPS}
    overs["neutral"] += over - sum(overs.values())
    stereotypes = split(round(claims * (row["stereotype_pct"] + lacking / 3) / 100), list(overs.values()))
    restated = split(grounded, [sizes[group] - overs[group] for group in GROUPS])
    return {
        group: {
            "G": restated[at],
            "R": sizes[group] - overs[group] - restated[at],
            "S": stereotypes[at],
            "F": overs[group] - stereotypes[at],
        }
        for at, group in enumerate(GROUPS)
    }


def add_models(store: StoreBuilder, paper: Mapping[str, Any]) -> None:
    """Add a sweep that agrees with Tables 1, 2, 4, 6 (its n) and 7."""
    tasks = list(paper["table5_task_claims"])
    store.sweep("models", subjects=paper["family"])
    store.calls(*({"model": model, "stage": "audit"} for model in paper["family"]))
    for model, row in paper["table1_leaderboard"].items():
        records: list[dict[str, Any]] = []
        for group, counts in group_counts(row, paper["table7_persona_group"][model]).items():
            places = [(number, task) for number in range(PERSONAS_PER_GROUP) for task in tasks]
            for (number, task), labels in zip(places, dealt(counts, len(places)), strict=True):
                place = {"model": model, "persona": persona(group, number), "persona_group": group, "task": task}
                records.append({**place, "labels": labels})
        store.records(*records)
        store.audits(*audits(paper, model, records))
        first, last = paper["table4_accumulation"][model]["r1"], paper["table4_accumulation"][model]["r8"]
        for number, extra in enumerate((-0.5, 0.5)):
            sizes = [int(first + (last - first) * step / 7 + extra) for step in range(8)]
            if first == int(first):
                sizes[0] = int(first)
            if last == int(last):
                sizes[-1] = int(last)
            held = [[f"attribute {at}" for at in range(size)] for size in sizes]
            store.memory(model, persona("neutral", number), held, persona_group="neutral")


def audits(paper: Mapping[str, Any], model: str, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make ten audited claims for every valid self-audit that the paper counts; the others are unreadable."""
    valid = int(paper["table6_within_model"][model]["n_records"])
    over = round(10 * valid * paper["table2_self_vs_judge"][model]["self_pct"] / 100)
    hands = dealt({"R": 10 * valid - over, "F": over}, valid)
    places = [{key: value for key, value in record.items() if key != "labels"} for record in records]
    read = [{**place, "labels": labels} for place, labels in zip(places, hands, strict=False)]
    return [*read, *({**place, "state": "unreadable", "reason": "no JSON array"} for place in places[valid:])]


def add_tasks(store: StoreBuilder, paper: Mapping[str, Any]) -> None:
    """Add a sweep that agrees with Tables 3 and 5, and one with Table 10."""
    models = list(paper["family"])
    everyone = [persona(group, number) for group in GROUPS for number in range(PERSONAS_PER_GROUP)]
    store.sweep("tasks", subjects=paper["family"])
    for task, row in paper["table3_task_composition"].items():
        claims = int(paper["table5_task_claims"][task]["claims"])
        parts = split(claims, [row[f"{name}_pct"] for name in ("grounded", "reasonable", "stereotype", "fabricated")])
        places = [(model, name) for model in models for name in everyone]
        hands = dealt(dict(zip("GRSF", parts, strict=True)), len(places))
        store.records(
            *(
                {"model": model, "persona": name, "task": task, "labels": labels}
                for (model, name), labels in zip(places, hands, strict=True)
            )
        )
    store.sweep("matrix", subjects=paper["family"])
    for model in models:
        for task in paper["table5_task_claims"]:
            over = round(10 * paper["table10_model_by_task"][model][task])
            hands = dealt({"G": 1000 - over, "F": over}, 50)
            place = {"model": model, "task": task}
            store.records(*({**place, "persona": f"{at:02d}", "labels": hand} for at, hand in enumerate(hands)))


@pytest.fixture(scope="module")
def published(paper: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Table]:
    """Find a table of one of three sweeps that were built from the published figures."""
    path = tmp_path_factory.mktemp("paper") / "paper.db"
    with StoreBuilder(path) as store:
        add_models(store, paper)
        add_tasks(store, paper)
    reports = {name: make_report(load(path, name), QUICK) for name in ("models", "tasks", "matrix")}
    return lambda sweep, name: reports[sweep].table(name)


def percent(value: Value) -> float:
    """Return a share in percent."""
    number = value.value if isinstance(value, Estimate) else value
    assert isinstance(number, float)
    return 100 * number


def number(value: Value) -> float:
    """Return an estimate's value."""
    assert isinstance(value, Estimate)
    return value.value


def test_table_1_comes_back(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Claims are exact and shares agree within rounding, model by model and in both means."""
    table = published("models", "leaderboard")
    for model, wanted in paper["table1_leaderboard"].items():
        row = table.row(model)
        assert row["claims"] == wanted["claims"]
        for name in ("grounded", "stereotype", "fabricated", "oi"):
            assert percent(row[name]) == pytest.approx(wanted[f"{name}_pct"], abs=LEVEL_PP), (model, name)
    mean, whole = paper["table1_mean"], table.row("all models")
    assert whole["claims"] == mean["total_claims"]
    assert percent(whole["oi"]) == pytest.approx(mean["oi_pct_micro"], abs=LEVEL_PP)
    assert percent(table.row("mean of models")["oi"]) == pytest.approx(mean["oi_pct_macro"], abs=LEVEL_PP)


def test_table_1_is_sorted_as_published(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """The worst model comes first."""
    models = published("models", "leaderboard").column("model")
    assert list(models[:-2]) == list(paper["table1_leaderboard"])


def test_table_2_comes_back(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Both rates, their difference, the pattern and the order of models agree."""
    table = published("models", "self_audit")
    for model, wanted in paper["table2_self_vs_judge"].items():
        row = table.row(model)
        assert percent(row["self_oi"]) == pytest.approx(wanted["self_pct"], abs=LEVEL_PP), model
        assert percent(row["judge_oi"]) == pytest.approx(wanted["judge_pct"], abs=LEVEL_PP), model
        assert percent(row["delta"]) == pytest.approx(wanted["delta_pp"], abs=DIFFERENCE_PP), model
        assert model in PATTERNS[str(row["pattern"])]
    assert list(table.column("model")) == list(paper["table2_self_vs_judge"])


def test_table_3_and_5_come_back(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Claims are exact and the four shares agree within rounding, task by task, in the published order."""
    table = published("tasks", "task_composition")
    assert list(table.column("task")[:-1]) == list(paper["table3_task_composition"])
    for task, wanted in paper["table3_task_composition"].items():
        row = table.row(task)
        assert row["claims"] == paper["table5_task_claims"][task]["claims"]
        for name in ("grounded", "reasonable", "stereotype", "fabricated", "oi"):
            assert percent(row[name]) == pytest.approx(wanted[f"{name}_pct"], abs=DIFFERENCE_PP), (task, name)


def test_table_3_contradicts_table_1_as_stated(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Table 3 weighted by Table 5 has fewer grounded claims than Table 1: the paper's own inconsistency, not ours."""
    by_task = published("tasks", "task_composition").row("all tasks")
    by_model = published("models", "leaderboard").row("all models")
    for name, table in (("table3_x_table5", by_task), ("table1", by_model)):
        wanted = paper["recomputed"][name]
        assert percent(table["grounded"]) == pytest.approx(wanted["grounded_micro"], abs=LEVEL_PP)
        assert percent(table["reasonable"]) == pytest.approx(wanted["reasonable_micro"], abs=LEVEL_PP)


def test_table_4_comes_back(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Sizes at both ends, growth and the accumulation rate agree, in the published order."""
    table = published("models", "accumulation")
    for model, wanted in paper["table4_accumulation"].items():
        row = table.row(model)
        assert number(row["first"]) == wanted["r1"]
        assert number(row["last"]) == wanted["r8"]
        assert number(row["growth"]) == wanted["growth"]
        assert number(row["per_round"]) == pytest.approx(wanted["per_round"], abs=0.0501)
    growths = [number(value) for value in table.column("growth")]
    assert growths == sorted(growths, reverse=True)


def test_table_6_has_the_published_n(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Records with both a verdict and a self-audit are counted, and the others are missing with their reason."""
    rows = {row["model"]: row for row in published("models", "self_audit").named_rows()}
    assert {model: row["paired"] for model, row in rows.items()} == {
        model: wanted["n_records"] for model, wanted in paper["table6_within_model"].items()
    }
    (gone,) = (row for row in published("models", "missing_answers").named_rows() if row["model"] == "Gemini-3.1-pro")
    assert (gone["stage"], gone["reason"], gone["missing"], gone["planned"]) == ("audit", "no JSON array", 283, 900)


def test_table_7_comes_back(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Rates by persona group and their difference agree, pooled ones within the published figures' own disagreement."""
    table = published("models", "group_breakdown")
    for model, wanted in paper["table7_persona_group"].items():
        row = table.row("all models" if model == "Pooled" else model)
        for group, column in GROUPS.items():
            level = DIFFERENCE_PP if model == "Pooled" else LEVEL_PP
            assert percent(row[group]) == pytest.approx(wanted[f"{column}_pct"], abs=level), (model, group)
        assert percent(row["delta"]) == pytest.approx(wanted["delta_pp"], abs=DIFFERENCE_PP), model


def test_table_10_comes_back_but_for_its_mean(paper: dict[str, Any], published: Callable[[str, str], Table]) -> None:
    """Every cell agrees; the published Mean row is not the mean of its columns, ours is."""
    table = published("matrix", "model_by_task")
    for model in paper["family"]:
        for task in paper["table5_task_claims"]:
            wanted = paper["table10_model_by_task"][model][task]
            assert percent(table.row(model)[task]) == pytest.approx(wanted, abs=1e-9), (model, task)
    means = [percent(table.row("mean of models")[task]) for task in paper["table5_task_claims"]]
    assert means == pytest.approx(paper["recomputed"]["table10"]["column_means"], abs=0.005)


def test_published_gaps_between_groups_are_clear_of_zero(published: Callable[[str, str], Table]) -> None:
    """Every interval is around its value; whole personas were resampled."""
    for row in published("models", "group_breakdown").named_rows():
        delta = row["delta"]
        assert isinstance(delta, Estimate)
        assert delta.interval is not None
        assert delta.interval.low < delta.value < delta.interval.high
        assert "persona" in delta.interval.method
