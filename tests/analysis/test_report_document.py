"""The page as a document: what it holds, what it never holds, and what it admits."""

import csv
import io
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from analysis.annotations import ClaimItem, SampleInfo, Validation
from analysis.context import Context, NothingToReportError, Settings, UnknownJudgeError, prepare
from analysis.database import reading
from analysis.estimates import Estimate
from analysis.export import ExportError
from analysis.frames import Column, Kind, Table
from analysis.load import StoreError, load
from analysis.memory import accumulation
from analysis.records import TRUNCATED, UNREADABLE
from analysis.report import comparisons
from analysis.report.pace import busy_ms, throughput
from analysis.report.page import Contents, csv_link, render
from analysis.report.provenance import provenance
from analysis.report.reading import read_settled
from analysis.report.rounds import accumulation_rounds
from analysis.report.sections import PARTS, sections
from analysis.report.summary import caveats, findings
from analysis.report.testing import Design, build_store
from analysis.report.writing import gather, write
from analysis.tables import report_of
from bench.cli.report import report as command
from engine.errors import UserError

QUICK = Settings(resamples=200)
EVIL = '</script><img src=x onerror="window.owned=1"><b>{{ 7*7 }}'
HOSTILE = Design(
    models={"m-1": EVIL, "m-2": "=1+1"},
    labels={"m-1": EVIL, "m-2": "=cmd|' /C calc'!A0"},
    tasks=(EVIL, "javascript:alert(1)"),
    texts=(EVIL, "\x1b[31m\u202eabc"),
    claim=EVIL,
    facts=(EVIL, "b", "c"),
    name=f"sweep {EVIL}",
    simulated=True,
)


class Document(HTMLParser):
    """What tests want to know of a document."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.style = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        self._inside = tag
        if tag == "script":
            self.scripts.append((found, ""))

    def handle_endtag(self, tag: str) -> None:
        """Note an end."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if self._inside == "script":
            attributes, before = self.scripts.pop()
            self.scripts.append((attributes, before + data))
        elif self._inside == "style":
            self.style += data
        else:
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """The words of the page, with single spaces."""
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return gather(build_store(tmp_path_factory.mktemp("plain") / "store.sqlite"), QUICK)


@pytest.fixture(scope="module")
def page(contents: Contents) -> Document:
    return Document(render(contents))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return Document(render(gather(build_store(tmp_path_factory.mktemp("evil") / "store.sqlite", HOSTILE), QUICK)))


def context_of(path: Path, design: Design | None = None) -> Context:
    return prepare(load(build_store(path, design)), QUICK)


def hash_of(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def said(context: Context) -> tuple[str, str]:
    tables = {table.name: table for table in (*report_of(context).tables, accumulation_rounds(context))}
    return " ".join(findings(context, tables)), " ".join(caveats(context, tables))


@pytest.mark.parametrize("which", ["page", "hostile"])
def test_only_the_pages_own_style_and_script_may_act(which: str, request: pytest.FixtureRequest) -> None:
    """The content policy forbids everything and names one style and one script by their hashes."""
    document: Document = request.getfixturevalue(which)
    policy = next(meta for meta in document.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    active = [text for attributes, text in document.scripts if attributes.get("type") != "application/json"]
    assert len(active) == len(document.all("style")) == 1
    assert policy["content"].split("; ") == [
        "default-src 'none'",
        f"style-src '{hash_of(document.style)}'",
        f"script-src '{hash_of(active[0])}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


@pytest.mark.parametrize("which", ["page", "hostile"])
def test_nothing_on_the_page_leads_outside(which: str, request: pytest.FixtureRequest) -> None:
    """Addresses are parts of the page and downloads that it holds; no element loads anything."""
    document: Document = request.getfixturevalue(which)
    addresses = [value for _, found in document.elements for name, value in found.items() if name in {"href", "src"}]
    assert addresses
    assert all(value.startswith(("#", "data:text/csv;charset=utf-8,")) or value == "data:," for value in addresses)
    assert not {name for _, found in document.elements for name in found if name.startswith("on") or name == "style"}
    assert not {tag for tag, _ in document.elements} & {"img", "iframe", "object", "embed", "base", "audio", "video"}


def test_foreign_words_become_no_element(hostile: Document, page: Document) -> None:
    """A page of hostile names and answers has the elements of any other page."""
    assert {tag for tag, _ in hostile.elements} == {tag for tag, _ in page.elements}
    assert EVIL in hostile.text
    assert "49" not in {text.strip() for text in hostile.texts if "{{" in text}


def test_downloads_are_named_after_tables(hostile: Document) -> None:
    """Their names are fixed words, whatever the sweep is called."""
    names = [link["download"] for link in hostile.all("a") if "download" in link]
    assert len(names) == len(set(names)) > 20
    assert all(re.fullmatch(r"[a-z_]+\.csv", name) for name in names)


def test_every_table_can_be_downloaded_as_it_is_exported(contents: Contents, page: Document) -> None:
    """The link holds the CSV that `--out` writes."""
    links = {link["download"]: link["href"] for link in page.all("a") if "download" in link}
    tables = [table for section in contents.sections for table in section.tables]
    assert {f"{table.name}.csv" for table in tables} == set(links)
    for table in tables:
        assert links[f"{table.name}.csv"] == csv_link(table, contents.warnings)


def test_downloaded_formulas_are_inert(hostile: Document) -> None:
    """No cell begins as a spreadsheet's formula does."""
    for link in hostile.all("a"):
        if "download" in link:
            text = unquote(link["href"].partition(",")[2])
            lines = [line for line in io.StringIO(text) if not line.startswith("#")]
            for row in csv.reader(lines):
                assert not [cell for cell in row if cell[:1] in set("=+@") or re.match(r"-[^\d]", cell)], row


def test_every_part_figure_and_table_of_a_simulated_sweep_says_so(hostile: Document, page: Document) -> None:
    """Parts, captions, table titles, downloads and the document's own title carry the mark; real ones nowhere."""
    figures, parts = len(hostile.all("figure")), len(hostile.all("section"))
    badges = [found for _, found in hostile.elements if found.get("class") == "mark"]
    titles = [text.strip() for text in hostile.texts if "(sweep " in text and not text.startswith("SIMULATED")]
    assert len(badges) == figures + parts + 1
    assert titles == []
    assert all(
        link["href"].startswith("data:text/csv;charset=utf-8,%23%20SIMULATED")
        for link in hostile.all("a")
        if "download" in link
    )
    assert "SIMULATED" not in page.text


def test_every_table_is_on_the_page(contents: Contents, tmp_path: Path) -> None:
    """Tables that no part names come last."""
    table = Table(name="brand_new", title="New (sweep sweep)", columns=(Column("a", Kind.TEXT),), rows=(("b",),))
    context = context_of(tmp_path / "store.sqlite")
    tables = {each.name: each for each in (*report_of(context).tables, accumulation_rounds(context))}
    found = list(sections({**tables, table.name: table}, context.labels))
    shown = [each.name for section in found for each in section.tables]
    assert sorted(shown) == sorted([*tables, "brand_new"])
    assert found[-1].tables == (table,)


def test_parts_name_no_table_twice() -> None:
    """A table stands in one place."""
    names = [name for part in PARTS for name in part.tables]
    assert len(names) == len(set(names))


def test_the_page_says_how_many_responses_it_holds(tmp_path: Path) -> None:
    """A sample is called one, and how to get the rest."""
    store = build_store(tmp_path / "store.sqlite")
    some, every, none = (Document(render(gather(store, QUICK, explore=most))).text for most in (12, None, 0))
    assert "12 of 72 responses are in this page." in some
    assert "--explore all embeds every one." in some
    assert "72 of 72 responses are in this page." in every
    assert "drawn by chance" not in every
    assert "None of 72 responses is in this page" in none


def test_the_manifest_is_on_the_page(page: Document) -> None:
    """Versions, seed, prompt hashes, models and the sweep's own file."""
    for piece in ("version of python 3.11", "seed 7", "task_system 0123abcd", "m-1-snapshot", 'name = "sweep"'):
        assert piece in page.text, piece


def test_a_manifest_of_another_kind_is_shown_as_it_is() -> None:
    """Missing and unexpected entries are no error."""
    found = provenance({"models": {"m": {"price": {"input": 5_000_000_000, "cached": None}}}, "seed": [1]}, {"more": 1})
    assert dict(found.facts) == {"seed": "[1]", "more": "1"}
    assert found.models[0][5] == "input $5"
    assert provenance({"models": 3, "fixed": "x", "versions": None}, {}).hashes == ()


def test_headings_and_parts_hang_together(page: Document) -> None:
    """Every link within the page leads to an element, ids are unique, and every part is named by its heading."""
    ids = [found["id"] for _, found in page.elements if "id" in found]
    targets = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert len(ids) == len(set(ids))
    assert targets <= set(ids)
    assert {section["aria-labelledby"] for section in page.all("section")} <= set(ids)


def test_what_scrolls_can_be_reached_by_keyboard(page: Document) -> None:
    """Boxes that scroll take the focus and have a name."""
    boxes = [found for _, found in page.elements if found.get("class", "").startswith("scroll")]
    assert boxes
    assert all(
        box["tabindex"] == "0" and box["role"] == "region" and box["aria-label"]
        for box in boxes
        if "aria-labelledby" not in box
    )


def test_the_summary_says_what_the_tables_say(tmp_path: Path) -> None:
    """Levels come with their intervals."""
    context = context_of(tmp_path / "store.sqlite")
    table = report_of(context).table("leaderboard")
    mean = table.row("mean of models")["oi"]
    assert isinstance(mean, Estimate)
    assert mean.interval is not None
    shown = f"{100 * mean.value:.1f} % [{100 * mean.interval.low:.1f}, {100 * mean.interval.high:.1f}]"
    assert f"The average model over-infers {shown} of its claims" in said(context)[0]


def test_a_correlation_is_called_exploratory(tmp_path: Path) -> None:
    """Rho never stands without that word, nor without what one family moves."""
    found, doubts = said(
        context_of(tmp_path / "store.sqlite", Design(models={f"m{at}": f"f{at % 3}" for at in range(5)}))
    )
    assert re.search(
        r"Exploratory: over 5 models, .* rho = -?\d\.\d\d.*Leaving out one family (moves|leaves) it", found
    )
    assert "rest on 5 models of 3 families, which are not independent" in doubts


@pytest.mark.parametrize(
    ("design", "doubt"),
    [
        (Design(personas=3), "3 personas are too few for trustworthy intervals"),
        (Design(samples=1), "Every answer was drawn once"),
        (Design(), "nobody has checked a sample of them"),
        (Design(), "Memory growth is a pilot: at most 6 personas a model"),
    ],
    ids=["few personas", "one sample", "no people", "few conversations"],
)
def test_the_summary_admits_what_is_weak(design: Design, doubt: str, tmp_path: Path) -> None:
    """What a careful reader would object stands beside the findings."""
    assert doubt in said(context_of(tmp_path / "store.sqlite", design))[1]


def test_an_unfinished_sweep_says_so(tmp_path: Path) -> None:
    """Verdicts that are still to come are counted."""
    context = context_of(tmp_path / "store.sqlite")
    state = context.records.state.copy()
    state[:30] = 4
    doubts = said(replace(context, records=replace(context.records, state=state)))[1]
    assert "not finished: 30 task answers without a verdict so far" in doubts
    assert "are missing from the tables" not in doubts


def test_many_missing_answers_are_a_doubt(tmp_path: Path) -> None:
    """Of 72 answers, 36 that failed are half of what was due."""
    context = context_of(tmp_path / "store.sqlite")
    state = context.records.state.copy()
    state[:36] = 3
    doubts = said(replace(context, records=replace(context.records, state=state)))[1]
    assert "50.0 % of the task answers due are missing from the tables" in doubts
    assert "not finished" not in doubts


def test_other_judges_are_named_where_there_are_some(tmp_path: Path) -> None:
    """A reader learns where to look for their agreement."""
    context = context_of(tmp_path / "store.sqlite")
    assert "How far other judges agree" not in said(context)[1]
    axes = replace(context.data.axes, judges=(*context.data.axes.judges, "second"))
    assert "How far other judges agree (second)" in said(replace(context, data=replace(context.data, axes=axes)))[1]


def test_many_answers_cut_short_are_a_doubt(tmp_path: Path) -> None:
    """As long as they are used."""
    context = context_of(tmp_path / "store.sqlite")
    state = context.records.state.copy()
    state[:18] = TRUNCATED
    cut = replace(context, records=replace(context.records, state=state))
    assert "25.0 % of the task answers or their verdicts were cut short" in said(cut)[1]
    without = replace(cut, settings=replace(cut.settings, truncated=False))
    assert "were cut short" not in said(without)[1]


def test_missing_self_audits_are_a_doubt(tmp_path: Path) -> None:
    """Of the model that lacks most; what was never due does not count."""
    context = context_of(tmp_path / "store.sqlite")
    state = context.audits.state.copy()
    state[np.flatnonzero(context.audits.model == 1)[:6]] = UNREADABLE
    doubts = said(replace(context, audits=replace(context.audits, state=state)))[1]
    assert "Self-audits are missing for up to 25 % of a model's answers (m-2)" in doubts
    assert "Self-audits are missing" not in said(context)[1]


def test_the_summary_says_what_models_do_when_asked(tmp_path: Path) -> None:
    """Two rates, and which of them may be compared; several samples; how audits rank within a model."""
    context = context_of(tmp_path / "store.sqlite")
    found = said(context)[0]
    mean = report_of(context).table("probe").row("mean of models")["error"]
    assert isinstance(mean, Estimate)
    assert f"the average model contradicts the user's profile in {100 * mean.value:.1f} %" in found
    assert "Of 2 answers to the same request at least one has an OI rate above one half in" in found
    assert re.search(r"the higher self-audit rate in \d+ % to \d+ % of comparisons \(50 % is chance\)", found)


def test_peoples_labels_correct_the_average(tmp_path: Path) -> None:
    """The corrected rate stands behind the judge's, in words, in the table and in the figure."""
    context = context_of(tmp_path / "store.sqlite")
    human = np.array([0, 1, 1, 2, 2, 3, 3, 3])
    judged = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    sample = SampleInfo(
        name="s", sweep="sweep", judge="judge", simulated=False, size=8, population=np.full(4, 9, np.int64)
    )
    items = tuple(ClaimItem(item=f"i{at}", claim="c", model="m-1", persona="p", task="t") for at in range(8))
    people = Validation(sample=sample, items=items, judged=judged, annotators=("a",), human=human[None], comments={})
    labelled = replace(context, validation=people)
    found, doubts = said(labelled)
    assert re.search(r"Corrected for the judge's errors by people's labels of 8 claims, the average is \d", found)
    assert "People have labelled 8 of the claims" in doubts
    tables = {table.name: table for table in report_of(labelled).tables}
    drawing = comparisons.leaderboard(tables, labelled.labels)
    assert drawing is not None
    assert "Hollow marks: corrected" in drawing.caption
    assert "Corrected by people: Lowest" in drawing.svg
    assert "Corrected" not in said(context)[0]


def test_one_model_alone_has_no_comparison(tmp_path: Path) -> None:
    """Neither an average nor a correlation is made of one model."""
    found, doubts = said(context_of(tmp_path / "store.sqlite", Design(models={"m": ""})))
    assert "m over-infers" in found
    assert "average model" not in found
    assert "Comparisons across models" not in doubts


def test_rounds_agree_with_the_accumulation_table(tmp_path: Path) -> None:
    """The first and the last round are those of the table of growth: 4.5 and 8.5 attributes."""
    context = context_of(tmp_path / "store.sqlite")
    ends, between = accumulation(context), accumulation_rounds(context)
    for row in between.named_rows():
        for name, other in (("round_1", "first"), ("round_3", "last")):
            mine, theirs = row[name], ends.row(str(row["model"]))[other]
            assert isinstance(mine, Estimate)
            assert isinstance(theirs, Estimate)
            assert mine.value == pytest.approx(theirs.value)
            assert mine.interval == theirs.interval
    assert [between.column(f"round_{at}")[0].value for at in (1, 2, 3)] == [4.5, 6.5, 8.5]  # type: ignore[union-attr]


def test_throughput_counts_busy_time(tmp_path: Path) -> None:
    """24 answers of half a second, settled every quarter: 6.25 busy seconds."""
    context = context_of(tmp_path / "store.sqlite")
    with reading(tmp_path / "store.sqlite") as connection:
        row = throughput(read_settled(connection, "sweep"), context).row("m-1")
    assert (row["answers"], row["median_latency"]) == (24, 0.5)
    assert row["answers_per_minute"] == pytest.approx(24 * 60 / 6.25)
    assert row["tokens_per_second"] == pytest.approx(24 * 20 / 6.25)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12))
def test_busy_time_is_the_measure_of_the_union(spans: list[tuple[int, int]]) -> None:
    """As counted second by second."""
    start = np.array([first for first, _ in spans], dtype=np.int64)
    end = start + np.array([length for _, length in spans], dtype=np.int64)
    counted = {second for first, length in spans for second in range(first, first + length)}
    assert busy_ms(start, end) == len(counted)


def test_a_report_replaces_the_old_one_whole(tmp_path: Path) -> None:
    """The same store and seed give the same bytes; nothing else is left in the folder."""
    store, out = build_store(tmp_path / "store.sqlite"), tmp_path / "new" / "report.html"
    first = write(store, out, QUICK)
    before = out.read_bytes()
    second = write(store, out, QUICK)
    assert first == second
    assert first.size == len(before)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_the_store_is_never_overwritten(tmp_path: Path) -> None:
    """Not even when asked to."""
    store = build_store(tmp_path / "store.sqlite")
    before = store.read_bytes()
    with pytest.raises(ExportError, match="is the store itself; choose another --out"):
        write(store, store, QUICK)
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "sweep", "error"),
    [(QUICK, "other", StoreError), (replace(QUICK, judge="nobody"), "", UnknownJudgeError)],
    ids=["sweep", "judge"],
)
def test_wrong_names_are_told(settings: Settings, sweep: str, error: type[Exception], tmp_path: Path) -> None:
    """As for tables; no file appears."""
    store, out = build_store(tmp_path / "store.sqlite"), tmp_path / "report.html"
    with pytest.raises(error):
        write(store, out, settings, sweep=sweep)
    assert not out.exists()


def test_a_folder_of_exported_files_is_no_store(tmp_path: Path) -> None:
    """The page needs the responses, which only a store has."""
    with pytest.raises((StoreError, NothingToReportError), match=str(tmp_path)):
        write(tmp_path, tmp_path / "report.html", QUICK)


def test_the_command_writes_beside_the_store(tmp_path: Path) -> None:
    """And says where, how large, and how many responses of how many."""
    store = build_store(tmp_path / "store.sqlite")
    result = CliRunner().invoke(command, [str(store), "--resamples", "200", "--explore", "5"])
    assert result.exit_code == 0, result.output
    assert re.fullmatch(
        rf"report: {re.escape(str(tmp_path))}/store\.report\.html, 0\.\d MB, 5 of 72 responses embedded\n",
        result.output,
    )
    assert (tmp_path / "store.report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("explore", ["-1", "some", "", "1.5", "²"])
def test_the_command_refuses_numbers_that_are_none(explore: str, tmp_path: Path) -> None:
    """In one line."""
    result = CliRunner().invoke(command, [str(build_store(tmp_path / "store.sqlite")), "--explore", explore])
    assert result.exit_code == 2
    assert "is neither a whole number nor `all`" in result.output


def test_the_command_tells_mistakes_as_mistakes(tmp_path: Path) -> None:
    """A missing store is one line, not a traceback."""
    result = CliRunner().invoke(command, [str(tmp_path / "none.sqlite")])
    assert isinstance(result.exception, UserError)
    assert "no such store" in str(result.exception)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_one_line(package: str, tmp_path: Path) -> None:
    """It names the package and how to get it."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from bench.cli.report import report\nfrom engine.errors import UserError\n"
        "try:\n    report([sys.argv[1]], standalone_mode=False)\nexcept UserError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == f"the report needs {package}, which is not installed; pip install {package}\n"


def test_parts_without_tables_are_left_out(contents: Contents) -> None:
    """No table at all is no error either."""
    assert list(sections({}, ())) == []
    assert "<main" in render(replace(contents, sections=()))
