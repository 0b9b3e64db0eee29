"""The data dictionary: it explains every view, file, table and column that there is, and none that there is not."""

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from analysis.annotations import ClaimItem, SampleInfo, Validation
from analysis.context import Context, Settings, prepare
from analysis.frames import Table
from analysis.load import load
from analysis.published import MATCHES, PAPER
from analysis.report.pace import throughput
from analysis.report.reading import Settled
from analysis.report.rounds import accumulation_rounds
from analysis.rowfiles import CLAIMS, ROWS
from analysis.tables import report_of
from analysis.testing import StoreBuilder
from analysis.validation import make_validation_tables

ROOT = Path(__file__).parents[2]
DICTIONARY = (ROOT / "analysis/DICTIONARY.md").read_text(encoding="utf-8")
TASKS = ("task-1", "task-2")
GROUPS = ("stereotypical", "counter-stereotypical", "neutral")
# Columns that are named by what a sweep holds.
OWN = {
    "model_by_task": re.compile("|".join(TASKS)),
    "group_breakdown": re.compile("|".join(GROUPS)),
    "leakage_at_k": re.compile(r"k\d+"),
    "all_at_k": re.compile(r"k\d+"),
    "worst_at_k": re.compile(r"k\d+"),
    "accumulation_rounds": re.compile(r"round_\d+"),
}
PART = re.compile(r"^## (.*)$", re.MULTILINE)


def documented(*titles: str) -> dict[str, set[str]]:
    """Return the columns that the parts with these titles explain, by view, file or table."""
    _, *pieces = PART.split(DICTIONARY)
    parts = dict(zip(pieces[::2], pieces[1::2], strict=True))
    found = {}
    for title in titles:
        for section in parts[title].split("\n### ")[1:]:
            cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
            found[section.split("`")[1]] = set(re.findall(r"`(\w+)`", " ".join(cells)))
    return found


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A sweep that has everything: samples, tasks, groups, judges, memories, and two people's labels."""
    path = tmp_path_factory.mktemp("dictionary") / "store.db"
    with StoreBuilder(path) as store:
        store.sweep(
            subjects={"m1": "x", "m2": "y"},
            judges=("judge", "other"),
            contradictions={"neutral": {"round": 2, "contradicts": "likes city life"}},
        )
        for model in ("m1", "m2"):
            for group in GROUPS:
                place = {"model": model, "persona": group, "persona_group": group}
                for task in TASKS:
                    for sample in (0, 1):
                        for judge in ("judge", "other"):
                            store.records({**place, "task": task, "sample": sample, "judge": judge, "labels": "GRSF"})
                        store.audits({**place, "task": task, "sample": sample, "labels": "GGSF"})
                store.probes({**place, "labels": "GF", "accuracy": "CI"})
            store.memory(model, "neutral", [["likes city life"], ["tea"]])
            store.calls({"model": model, "changes": '["no seed"]', "persona": "neutral"})
    human = np.array([[0, 1, 2, 3], [0, 1, 2, 2]])
    items = tuple(ClaimItem(item=f"i{at}", claim="c", model="m1", persona="p", task="t") for at in range(4))
    info = SampleInfo(
        name="s", sweep="sweep", judge="judge", simulated=False, size=4, population=np.full(4, 9, np.int64)
    )
    people = Validation(sample=info, items=items, judged=np.arange(4), annotators=("a", "b"), human=human, comments={})
    return prepare(load(path), Settings(resamples=100), people)


def columns_of(tables: tuple[Table, ...]) -> dict[str, set[str]]:
    """Return the columns of tables by name, without those that are named by what a sweep holds."""
    found = {}
    for table in tables:
        own = OWN.get(table.name)
        names = {column.name for column in table.columns}
        found[table.name] = {name for name in names if own is None or not own.fullmatch(name)}
        assert own is None or names != found[table.name], table.name
    return found


def test_every_column_of_every_view_is_explained_and_no_other() -> None:
    """Nobody has to guess, and nothing is explained that is not there."""
    connection = sqlite3.connect(":memory:")
    for script in sorted((ROOT / "engine/sql/migrations").glob("*.sql")):
        connection.executescript(script.read_text(encoding="utf-8"))
    connection.executescript((ROOT / "instruments/sql/views.sql").read_text(encoding="utf-8"))
    views = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    columns = {view: {name for _, name, *_ in connection.execute(f"PRAGMA table_info({view})")} for view in views}
    connection.close()
    assert documented("Views") == columns


def test_every_column_of_every_table_is_explained_and_no_other(context: Context) -> None:
    """Columns named after a sweep's own tasks, groups, samples and rounds are explained as such."""
    people = {table.name for table in make_validation_tables(context.validation)}  # type: ignore[arg-type]
    made = columns_of(report_of(context).tables)
    assert documented("Tables") == {name: columns for name, columns in made.items() if name not in people}


def test_every_column_of_peoples_labels_is_explained_and_no_other(context: Context) -> None:
    """Also of the list that only the command for annotators prints."""
    assert context.validation is not None
    assert documented("Tables of people's labels") == columns_of(make_validation_tables(context.validation))


def test_every_column_of_the_reports_own_tables_is_explained_and_no_other(context: Context) -> None:
    """The report adds two."""
    nothing = np.zeros(0, np.int64)
    settled = Settled(
        models=(), model=nothing, settled_ms=nothing, latency_ms=nothing, output_tokens=nothing
    )  # fmt: skip
    made = (accumulation_rounds(context), throughput(settled, context))
    assert documented("Tables of the report only") == columns_of(made)


def test_every_comparison_with_the_paper_is_named() -> None:
    """The tables beside the paper's are listed, from the first to the last."""
    text = DICTIONARY.partition("## Beside the paper")[2]
    named = set(re.findall(rf"`({PAPER}_\w+)`", text))
    numbered = {f"{PAPER}_table{number}" for number in range(1, 12)}
    assert named | numbered >= {f"{PAPER}_{name}" for name in MATCHES}
    assert named - numbered <= {f"{PAPER}_{name}" for name in MATCHES}


def test_every_file_of_rows_is_explained() -> None:
    """Files are named by views, but for claims, whose columns are explained beside them."""
    assert set(ROWS) <= documented("Views").keys()
    assert documented("Rows") == {"claims": set(CLAIMS)}
