"""The report in a real browser: foreign words do nothing, nothing leaves the page, and it can be used."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from analysis.context import Settings
from analysis.report.reading import MOST_CHARACTERS
from analysis.report.testing import Design, build_store
from analysis.report.writing import write

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

QUICK = Settings(resamples=200)
OWN = "window.owned = (window.owned || 0) + 1"
HOSTILE = (
    f"</script><script>{OWN}</script><img src=x onerror='{OWN}'>",
    "=cmd|' /C calc'!A0",
    f"<svg onload='{OWN}'><a href='javascript:{OWN}'>click</a>",
    "<!--<script>",
    "\x1b[31mred\x1b[0m \x07 \u202egnp.exe\u2066",
    "${7*7} {{7*7}} __proto__ constructor",
    "<style>*{display:none}</style><meta http-equiv=refresh content='0;url=https://example.org/'>",
    "<link rel=stylesheet href=https://example.org/x.css><iframe src=https://example.org/></iframe>",
)
#: Watches from before the page's first line on.
WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
for (const name of ["alert", "prompt", "confirm"]) window[name] = () => { window.owned = name; };
"""
# A reader of a report has no network; the tests let none be reached.
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
CARD = ".response"
PATIENCE_FRAMES = 1_000
ROOT = Path(__file__).parents[2]
REHEARSAL = """
name = "small"
models = ["gpt-4o-mini", "claude-opus-4-6", "qwen3-8b"]
judges = ["claude-opus-4-7"]
personas = 3
accum_personas = 1
"""


@dataclass(kw_only=True)
class Seen:
    """What a page did, besides showing itself."""

    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


Opened = tuple["Page", Seen]
OpenPage = Callable[..., Opened]


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose every foreign word attacks."""
    folder = tmp_path_factory.mktemp("hostile")
    design = Design(
        models={HOSTILE[place]: HOSTILE[-1 - place] for place in range(3)},
        labels={HOSTILE[place]: HOSTILE[place] for place in range(3)},
        tasks=HOSTILE[3:5],
        texts=HOSTILE,
        claim="\n".join(HOSTILE),
        reasoning=HOSTILE[2],
        facts=HOSTILE[:3],
        name=f"sweep {HOSTILE[0]}",
        simulated=True,
    )
    write(build_store(folder / "store.sqlite", design), folder / "report.html", QUICK)
    return folder / "report.html"


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a small sweep."""
    folder = tmp_path_factory.mktemp("plain")
    write(build_store(folder / "store.sqlite"), folder / "report.html", QUICK)
    return folder / "report.html"


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[OpenPage]:
    """Open a report from the disk and write down whatever it does."""
    contexts: list[BrowserContext] = []

    def opened(path: Path, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": DESK, "offline": True, **options})
        contexts.append(context)
        context.add_init_script(WATCH)
        page, seen = context.new_page(), Seen()
        page.on("console", lambda message: seen.console.append(message.text))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("requestfinished", lambda request: seen.finished.append(request.url))
        page.goto(path.as_uri())
        return page, seen

    yield opened
    for context in contexts:
        context.close()


def pages(page: "Page") -> Iterator[str]:
    """Turn all pages of the explorer; yield what the pager says."""
    forward = page.locator("[data-turn='1']").first
    yield page.inner_text("#count")
    while forward.get_attribute("aria-disabled") == "false":
        forward.click()
        yield page.inner_text("#count")


def cards(page: "Page") -> "Locator":
    return page.locator(CARD)


def assert_inert(page: "Page", seen: Seen, path: Path) -> None:
    assert page.evaluate("window.owned") is None
    assert page.evaluate("window.violations") == []
    assert (seen.console, seen.errors) == ([], [])
    assert seen.requests == [path.as_uri()]


def test_foreign_words_do_nothing(hostile_page: Path, open_page: OpenPage) -> None:
    """Names, answers, claims, reasons and facts that attack are read, page after page, and nothing happens."""
    page, seen = open_page(hostile_page)
    turns = len(list(pages(page)))
    for choice in range(page.locator("#by-label option").count()):
        page.select_option("#by-label", index=choice)
    assert turns == 8
    assert_inert(page, seen, hostile_page)


def test_foreign_words_are_shown_as_they_are(hostile_page: Path, open_page: OpenPage) -> None:
    """Markup stands there as text, and what hides or reorders as escapes."""
    page, _ = open_page(hostile_page)
    shown = set()
    for _ in pages(page):
        shown |= set(page.locator(f"{CARD} .text").all_text_contents())
    assert HOSTILE[0] in shown
    assert HOSTILE[6] in shown
    assert "\\x1b[31mred\\x1b[0m \\x07 \\u202egnp.exe\\u2066" in shown
    assert page.locator("body img, body iframe, body link, body meta, .response script, .response a").count() == 0


def test_the_policy_stops_what_would_slip_through(plain_page: Path, open_page: OpenPage) -> None:
    """Were markup ever to get in, no script of it would run and no address be asked."""
    page, seen = open_page(plain_page)
    page.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE[0])})")
    page.evaluate(f"""() => {{
        const script = document.createElement("script");
        script.textContent = {json.dumps(OWN)};
        document.body.append(script);
    }}""")
    # The browser reports after the fact, and the policy forbids it to evaluate a condition of ours in between.
    frames = 0
    while page.evaluate("violations.length") < 2 and (frames := frames + 1) < PATIENCE_FRAMES:
        page.evaluate("new Promise(requestAnimationFrame)")
    assert page.evaluate("window.owned") is None
    assert set(page.evaluate("violations")) >= {"img-src", "script-src-elem"}
    assert seen.finished == [plain_page.as_uri()]


def test_a_megabyte_of_answer_stays_usable(tmp_path: Path, open_page: OpenPage) -> None:
    """A giant answer is cut with a note, and a line without a space does not widen a phone's page."""
    design = Design(texts=("x" * 1_000_000, "<b>" * 400_000), claim="y" * 1_000_000, personas=2)
    written = write(build_store(tmp_path / "store.sqlite", design), tmp_path / "report.html", QUICK)
    page, seen = open_page(written.path, viewport=PHONE)
    assert written.size < 3_000_000
    lengths = {len(text) for text in page.locator(f"{CARD} .text").all_text_contents()}
    assert lengths == {MOST_CHARACTERS}
    assert page.get_by_text("980,000 more characters are in the store.").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert_inert(page, seen, written.path)


def test_filters_agree_with_what_is_shown(plain_page: Path, open_page: OpenPage) -> None:
    """Model, task, group and labels narrow the responses; Show all brings them back."""
    page, _ = open_page(plain_page)
    page.select_option("#by-model", label="m-2")
    page.select_option("#by-task", label="gift")
    page.select_option("#by-group", label="neutral")
    assert page.inner_text("#count") == "1\u20134 of 4"
    assert set(page.locator(f"{CARD} h3").all_inner_texts()) == {"m-2"}
    page.select_option("#by-label", "SF")
    assert page.locator(f"{CARD}:not(:has(.label-S, .label-F))").count() == 0
    page.get_by_role("button", name="Show all").click()
    page.locator("#count").filter(has_text="of 72").wait_for()


def test_no_match_is_said(plain_page: Path, open_page: OpenPage) -> None:
    """An empty result is a sentence, and turning pages does nothing."""
    page, seen = open_page(plain_page)
    page.fill("#by-words", "nobody wrote this")
    page.get_by_text("no response is like that").wait_for()
    page.locator("[data-turn='1']").first.click(force=True)
    assert cards(page).count() == 0
    assert seen.errors == []


def test_words_are_looked_for_in_answers_and_claims(plain_page: Path, open_page: OpenPage) -> None:
    """Case does not matter."""
    page, _ = open_page(plain_page)
    page.fill("#by-words", "BOOK ABOUT")
    page.locator("#count").filter(has_text="of 36").wait_for()
    assert set(page.locator(f"{CARD} .text").all_text_contents()) == {"A book about birds."}


def test_order_by_over_inference(plain_page: Path, open_page: OpenPage) -> None:
    """Most first: shares fall from one response to the next."""
    page, _ = open_page(plain_page)
    page.select_option("#order", "most")
    heads = page.locator(f"{CARD} .response-head").all_inner_texts()
    shares = []
    for head in heads:
        words = head.split()
        at = words.index("of")
        shares.append(int(words[at - 1]) / int(words[at + 1]))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1


def test_the_evidence_stands_beside_the_claims(plain_page: Path, open_page: OpenPage) -> None:
    """A card has the three facts, the answer, and one labelled line a claim."""
    page, _ = open_page(plain_page)
    card = cards(page).first
    assert card.locator(".facts-list li").all_text_contents() == ["I sing.", "I cycle.", "I have a cat."]
    assert card.locator(".claims li").count() >= 2
    facts, claims = (card.locator(part).bounding_box() for part in (".facts-list", ".claims"))
    assert facts is not None
    assert claims is not None
    assert facts["x"] + facts["width"] < claims["x"]


def test_the_keyboard_is_enough(plain_page: Path, open_page: OpenPage) -> None:
    """The first key leads to the results; a filter and a page are reached and worked without a mouse."""
    page, _ = open_page(plain_page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.focus("#by-model")
    page.keyboard.type("m-3")
    assert set(page.locator(f"{CARD} h3").all_inner_texts()) == {"m-3"}
    page.locator("[data-turn='1']").first.focus()
    page.keyboard.press("Enter")
    assert page.inner_text("#count") == "11\u201320 of 24"
    assert page.evaluate("document.activeElement.id") == "responses"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_is_never_wider_than_the_screen(
    view: dict[str, int], scheme: str, hostile_page: Path, open_page: OpenPage
) -> None:
    """Wide tables scroll in their own boxes, also with hostile names."""
    page, seen = open_page(hostile_page, viewport=view, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= view["width"]
    assert_inert(page, seen, hostile_page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_page(scheme: str, plain_page: Path, open_page: OpenPage) -> None:
    """Contrast of text and of quiet text to their ground is at least 4.5:1 (WCAG 2.2, 1.4.3)."""
    page, _ = open_page(plain_page, color_scheme=scheme)
    for name in (".words", "td", "summary", "figcaption", ".download", ".response .why", ".response .own"):
        colour, ground = page.locator(name).first.evaluate("""(element) => {
            const ground = (at) => {
                const found = getComputedStyle(at).backgroundColor;
                return found === "rgba(0, 0, 0, 0)" ? ground(at.parentElement) : found;
            };
            return [getComputedStyle(element).color, ground(element)];
        }""")
        assert contrast(colour, ground) >= 4.5, (name, colour, ground)


def test_figures_follow_the_scheme(plain_page: Path, open_page: OpenPage) -> None:
    """Names beside a drawing are dark on light and light on dark."""
    fills = []
    for scheme in ("light", "dark"):
        page, _ = open_page(plain_page, color_scheme=scheme)
        fills.append(
            page.locator("#leaderboard svg text.f-ink").first.evaluate("(text) => getComputedStyle(text).fill")
        )
    assert fills == ["rgb(28, 30, 34)", "rgb(236, 237, 240)"]


def test_tables_are_downloaded_as_csv(hostile_page: Path, open_page: OpenPage, tmp_path: Path) -> None:
    """The browser saves a file of a fixed name, in which formulas are inert."""
    page, seen = open_page(hostile_page, accept_downloads=True)
    with page.expect_download() as saving:
        page.locator("#leaderboard .download").first.click()
    assert saving.value.suggested_filename == "leaderboard.csv"
    saving.value.save_as(tmp_path / "saved.csv")
    lines = (tmp_path / "saved.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert lines[0].startswith("# SIMULATED: ")
    assert f"'{HOSTILE[1]}" in [row["model"] for row in rows]
    assert not [cell for row in rows for cell in row.values() if cell[:1] in set("=+@")]
    assert page.evaluate("window.owned") is None
    assert seen.errors == []


def test_without_scripts_everything_but_the_explorer_is_there(plain_page: Path, open_page: OpenPage) -> None:
    """Tables, figures and downloads need none; the explorer says that it does."""
    page, _ = open_page(plain_page, java_script_enabled=False)
    assert page.locator("figure svg").count() >= 9
    assert page.locator("#leaderboard table").first.is_visible()
    assert page.locator("noscript").is_visible()
    assert not page.locator("#filters").is_visible()


def test_paper_shows_folded_tables_and_no_controls(plain_page: Path, open_page: OpenPage) -> None:
    """What is folded on the screen is unfolded in print, in light colours, also for those who read in the dark."""
    page, _ = open_page(plain_page, color_scheme="dark")
    folded = page.locator("details.sheet table").first
    before = folded.is_visible()
    page.emulate_media(media="print")
    assert (before, folded.is_visible()) == (False, True)
    assert not page.locator("#filters").is_visible()
    assert not page.locator(".download").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 30, 34)"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_browsers_that_do_not_unfold_for_paper_are_helped(plain_page: Path, open_page: OpenPage) -> None:
    """Folded parts are opened before printing and folded again afterwards, but for what paper leaves out."""
    page, _ = open_page(plain_page)
    counts = []
    for event in ("", "beforeprint", "afterprint"):
        page.evaluate(f"dispatchEvent(new Event('{event}'))")
        counts.append(page.evaluate("document.querySelectorAll('details[open]').length"))
    assert counts == [0, page.locator("details:not(.screen-only)").count(), 0]


def test_every_card_of_a_simulated_sweep_says_so(hostile_page: Path, open_page: OpenPage) -> None:
    """Also when a card alone is photographed."""
    page, _ = open_page(hostile_page)
    assert page.locator(f"{CARD} .mark").all_inner_texts() == ["SIMULATED"] * cards(page).count()


def test_a_sweep_of_the_papers_size_stays_usable(tmp_path: Path, open_page: OpenPage) -> None:
    """With 10,800 responses embedded, a filter answers at once: only the words that are shown are parsed."""
    models = {f"m-{place}": f"f-{place % 7}" for place in range(12)}
    tasks = tuple(f"task-{place}" for place in range(6))
    design = replace(Design(), models=models, tasks=tasks, personas=150, samples=1, texts=("A loft. " * 100,), rounds=1)
    written = write(build_store(tmp_path / "store.sqlite", design), tmp_path / "report.html", QUICK, explore=None)
    page, _ = open_page(written.path)
    taken = page.evaluate("""() => {
        const control = document.getElementById("by-model");
        const start = performance.now();
        control.value = "3";
        control.dispatchEvent(new Event("change"));
        return performance.now() - start;
    }""")
    assert written.shown == written.total == 10_800
    assert page.inner_text("#count") == "1\u201310 of 900"
    assert taken < 2_000


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """What a rehearsal leaves: its store, its report as a page, and its tables as `analyze --json` prints them."""

    store: Path
    page: Path
    printed: dict[str, Any]


def mirage(folder: Path, *arguments: str) -> str:
    """Run the program as a user does, without keys or a network; return what it prints."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """Three models and three personas, rehearsed with one kill, reported and analysed."""
    folder = tmp_path_factory.mktemp("rehearsed")
    (folder / "sweep.toml").write_text(REHEARSAL, encoding="utf-8")
    mirage(folder, "rehearse", "sweep.toml", "--kills", "1", "--no-tables")
    store = folder / "runs" / "small-rehearsal" / "store.sqlite"
    said = mirage(folder, "report", str(store), "--resamples", "300")
    page = store.with_suffix(".report.html")
    assert said.startswith(f"report: {page}")
    return Rehearsed(
        store=store,
        page=page,
        printed=json.loads(mirage(folder, "analyze", str(store), "--json", "--resamples", "300")),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsals_report_opens_and_asks_nobody(rehearsed: Rehearsed, open_page: OpenPage) -> None:
    """From the sweep file to the page: no error, no request, all parts there, responses to be looked through."""
    page, seen = open_page(rehearsed.page)
    parts = page.locator("main > section").evaluate_all("(all) => all.map((each) => each.id)")
    assert {"summary", "leaderboard", "inversion", "accumulation", "cost", "missing", "explorer", "provenance"} <= {
        *parts
    }
    assert page.inner_text("#count") == "1\u201310 of 54"
    assert_inert(page, seen, rehearsed.page)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsals_report_is_marked_everywhere(rehearsed: Rehearsed, open_page: OpenPage) -> None:
    """Every part, figure, caption, table, download and response; and nobody believes to have spent the money."""
    page, _ = open_page(rehearsed.page)
    figures = page.locator("figure")
    assert figures.count() >= 8
    for place in range(figures.count()):
        figure = figures.nth(place)
        assert figure.locator("figcaption .mark").count() == 1
        assert "SIMULATED" in figure.locator("svg text").all_text_contents()
        assert str(figure.locator("svg").get_attribute("aria-label")).startswith("SIMULATED. ")
    titles = page.locator(".sheet > h3, .sheet > summary").all_inner_texts()
    assert len(titles) >= len(rehearsed.printed["tables"])
    assert all(title.startswith("SIMULATED: ") for title in titles)
    assert page.locator("main > section > h2, main > section > .lead > h2").count() == page.locator("h2 .mark").count()
    assert page.locator(f"{CARD} .mark").count() == page.locator(CARD).count() == 10
    assert "on the simulator's bill, which nobody pays" in page.inner_text("#summary")
    assert page.title().startswith("SIMULATED: ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsals_report_has_the_tables_that_are_printed(rehearsed: Rehearsed, open_page: OpenPage) -> None:
    """Every number of `mirage analyze --json` is in the page's downloads, digit for digit, and no table is missing."""
    page, _ = open_page(rehearsed.page)
    links = page.locator("a.download").evaluate_all("(all) => all.map((each) => [each.download, each.href])")
    held = {name.removesuffix(".csv"): rows_of(link) for name, link in links}
    compared = 0
    for table in rehearsed.printed["tables"]:
        rows = held[table["name"]]
        assert len(rows) == len(table["rows"]), table["name"]
        for row, wanted in zip(rows, table["rows"], strict=True):
            for column, value in wanted.items():
                for name, number in numbers_of(column, value):
                    assert row[name] == ("" if number is None else repr(number)), (table["name"], name)
                    compared += 1
    assert set(held) - {table["name"] for table in rehearsed.printed["tables"]} == {"accumulation_rounds", "throughput"}
    assert compared > 1_000


def rows_of(link: str) -> list[dict[str, str]]:
    """Read the CSV in a link."""
    lines = unquote(link.partition(",")[2]).splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def numbers_of(column: str, value: Any) -> Iterator[tuple[str, int | float | None]]:
    """Yield the numbers of a printed cell, by the names of the columns in which a download holds them."""
    if isinstance(value, dict):
        yield column, value["value"]
        yield f"{column}_low", value["low"]
        yield f"{column}_high", value["high"]
        yield f"{column}_n", value["n"]
    elif isinstance(value, int | float):
        yield column, value


def contrast(one: str, other: str) -> float:
    lights = sorted(luminance(colour) for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(", ")]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
