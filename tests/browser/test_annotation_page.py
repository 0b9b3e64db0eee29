"""The labelling page in a real browser: by keyboard, by touch, in two tabs, in the dark, and with hostile claims."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instruments.annotation.store import current_labels, find_sample, open_annotations
from instruments.annotation.testing import make_sample, make_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

LETTERS = dict(zip("abcd", "GRSF", strict=True))
CLAIMS = (
    "The user repairs old things at home and keeps a small workshop for it.",
    "The user is patient and takes pride in getting details exactly right.",
    "The user lives alone in a quiet part of town, close to work.",
    "The user would rather stay in with a good podcast than go out dancing.",
)
EVIL = "</p><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e<b>bold</b>"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
SCREENSHOT = "MIRAGE_ANNOTATION_SCREENSHOT"

Serve = Callable[..., Any]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a sample of 20 claims; made once and copied."""
    path = tmp_path_factory.mktemp("template") / "store.sqlite"
    make_store(path, models=3, personas=12, texts=[CLAIMS[number % 4] for number in range(3 * 12 * 6 * 4)])
    make_sample(path, 20)
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    """A store of one's own."""
    return Path(shutil.copy(template, tmp_path / "store.sqlite"))


@pytest.fixture
def context(browser: "Browser") -> Iterator["BrowserContext"]:
    """A fresh browser profile at a desk; the page may not log anything to its console."""
    opened = browser.new_context(viewport=DESK)  # type: ignore[arg-type]
    opened.set_default_timeout(15_000)
    yield opened
    opened.close()


def watched(context: "BrowserContext") -> tuple["Page", list[str]]:
    """A new tab, and what goes wrong in it."""
    page, wrong = context.new_page(), []  # type: ignore[var-annotated]
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    return page, wrong


def opened(context: "BrowserContext", url: str) -> "Page":
    """A tab with the page and its first item."""
    page, _ = watched(context)
    page.goto(url)
    page.wait_for_selector("#claim:not(:empty)")
    return page


def progress(page: "Page") -> str:
    """What stands beside the progress bar."""
    return page.inner_text("#progress-text")


def settle(page: "Page") -> None:
    """Wait until an item is there and has been there long enough for the page to take keys."""
    page.wait_for_selector("main[aria-busy=false]")
    page.wait_for_timeout(320)


def press(page: "Page", key: str, then: str) -> None:
    """Press a key once the page takes keys, and wait for the progress that follows."""
    settle(page)
    page.keyboard.press(key)
    page.wait_for_function("then => document.getElementById('progress-text').textContent === then", arg=then)


def labels_in(store: Path, annotator: str = "") -> list[tuple[str, str | None]]:
    """(item, label) in the store, by position."""
    with closing(open_annotations(store)) as connection:
        rows = current_labels(connection, find_sample(connection).id, annotator)
    return [(row.item, row.label) for row in rows]


def positions(store: Path) -> list[str]:
    """Items of the sample in order."""
    with closing(sqlite3.connect(store)) as connection:
        return [item for (item,) in connection.execute("SELECT id FROM annotation_item ORDER BY position")]


def test_twenty_items_are_labelled_by_keyboard_with_a_reload_and_an_undo(
    serve: Serve, context: "BrowserContext", store: Path
) -> None:
    """Exactly those labels are in the store at the end, and nothing went wrong in the browser."""
    served = serve(store)
    page, wrong = watched(context)
    page.goto(served.links["anna"])
    page.wait_for_selector("#claim:not(:empty)")
    assert "#" not in page.url
    keys = "abcddcbaabcdacbdbcda"
    for number, key in enumerate(keys[:8]):
        press(page, key, f"{number + 1} of 20 labelled")
    page.reload()
    page.wait_for_selector("#claim:not(:empty)")
    assert progress(page) == "8 of 20 labelled"
    press(page, "d", "9 of 20 labelled")
    press(page, "u", "8 of 20 labelled")
    for number, key in enumerate(keys[8:], 8):
        press(page, key, f"{number + 1} of 20 labelled")
    page.wait_for_selector("#finished:not([hidden])")
    assert page.inner_text("#finished-title") == "All done. Thank you."
    assert labels_in(store) == [(item, LETTERS[key]) for item, key in zip(positions(store), keys, strict=True)]
    assert wrong == []
    assert "anna: 20 labelled, 0 skipped" in served.stop()


def test_time_and_comment_are_saved_with_the_label(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """Keys write into the comment while one is typing there; Escape leaves it."""
    page = opened(context, serve(store).links["anna"])
    page.keyboard.press("m")
    page.keyboard.type("a bad cast, usual")
    assert page.input_value("#comment") == "a bad cast, usual"
    assert progress(page) == "0 of 20 labelled"
    page.keyboard.press("Escape")
    press(page, "c", "1 of 20 labelled")
    assert page.input_value("#comment") == ""
    with closing(sqlite3.connect(store)) as connection:
        row = connection.execute(
            "SELECT label, comment, elapsed_ms, annotator, source FROM annotation_label"
        ).fetchone()
    assert (row[0], row[1], row[3], row[4]) == ("S", "a bad cast, usual", "anna", "page")
    assert 300 < row[2] < 60_000


def test_a_comment_being_written_survives_a_reload_and_an_undo(
    serve: Serve, context: "BrowserContext", store: Path
) -> None:
    """Nothing that was typed is lost."""
    page = opened(context, serve(store).links["anna"])
    page.fill("#comment", "half a thought")
    page.reload()
    page.wait_for_selector("#claim:not(:empty)")
    assert page.input_value("#comment") == "half a thought"
    press(page, "a", "1 of 20 labelled")
    press(page, "u", "0 of 20 labelled")
    assert page.input_value("#comment") == "half a thought"


def test_a_held_or_doubled_key_labels_one_item(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """A second press that meant the item before does not label the next one unseen."""
    page = opened(context, serve(store).links["anna"])
    settle(page)
    page.evaluate(
        "() => { for (let i = 0; i < 5; i++)"
        " document.dispatchEvent(new KeyboardEvent('keydown', {key: 'a', bubbles: true, repeat: i > 1})); }"
    )
    page.wait_for_function("() => document.getElementById('progress-text').textContent !== '0 of 20 labelled'")
    page.keyboard.press("a")
    page.wait_for_timeout(400)
    assert progress(page) == "1 of 20 labelled"
    assert len(labels_in(store)) == 1


@pytest.mark.parametrize("chord", ["Control+a", "Alt+b", "Meta+c"])
def test_the_browsers_own_shortcuts_label_nothing(
    serve: Serve, context: "BrowserContext", store: Path, chord: str
) -> None:
    """Select all is not Grounded."""
    page = opened(context, serve(store).links["anna"])
    settle(page)
    page.keyboard.press(chord)
    page.wait_for_timeout(100)
    assert labels_in(store) == []


def test_single_key_shortcuts_can_be_turned_off(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """For people who speak to their computer; the choice survives a reload, and buttons still work."""
    page = opened(context, serve(store).links["anna"])
    page.click("#keys")
    page.reload()
    page.wait_for_selector("#claim:not(:empty)")
    settle(page)
    page.keyboard.press("a")
    page.wait_for_timeout(100)
    assert labels_in(store) == []
    assert page.get_attribute("#keys", "aria-pressed") == "false"
    page.click("button[data-label=F]")
    page.wait_for_function("() => document.getElementById('progress-text').textContent === '1 of 20 labelled'")
    assert labels_in(store) == [(positions(store)[0], "F")]


def test_skipped_items_come_back_at_the_end(
    serve: Serve, context: "BrowserContext", template: Path, tmp_path: Path
) -> None:
    """Skip, finish the rest, look again, label."""
    store = make_store(tmp_path / "small.sqlite", models=1, personas=1, tasks=1, pattern="GRSF")
    make_sample(store, 4)
    page = opened(context, serve(store).links["anna"])
    press(page, "s", "0 of 4 labelled, 1 skipped")
    for number in (1, 2, 3):
        press(page, "b", f"{number} of 4 labelled, 1 skipped")
    assert page.inner_text("#finished-title") == "Only skipped items are left."
    page.click("#review")
    page.wait_for_selector("#seen-before:not([hidden])")
    press(page, "d", "4 of 4 labelled")
    assert page.inner_text("#finished-title") == "All done. Thank you."
    assert labels_in(store)[0] == (positions(store)[0], "F")


def test_the_second_of_two_tabs_is_told_and_moves_on(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """The label of the first tab stays."""
    url = serve(store).links["anna"]
    first, second = opened(context, url), opened(context, url)
    press(first, "a", "1 of 20 labelled")
    press(second, "d", "1 of 20 labelled")
    assert "had a label already" in second.inner_text("#status")
    assert labels_in(store) == [(positions(store)[0], "G")]
    press(second, "d", "2 of 20 labelled")


def test_a_server_that_comes_back_takes_the_label_that_did_not_get_through(
    serve: Serve, context: "BrowserContext", store: Path
) -> None:
    """The page says what is wrong, keeps the choice, and a new link goes on where one left."""
    served = serve(store)
    page = opened(context, served.links["anna"])
    served.stop()
    settle(page)
    page.keyboard.press("b")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "does not answer" in page.inner_text("#trouble-text")
    assert page.evaluate("document.activeElement.id") == "retry"
    port = int(re.findall(r":(\d+)/", page.url)[0])
    again = serve(store, port=port)
    page.click("#retry")
    page.wait_for_function("() => document.getElementById('trouble-text').textContent.includes('signed in')")
    page.goto(again.links["anna"])
    page.wait_for_selector("#trouble", state="hidden")
    press(page, "b", "1 of 20 labelled")
    assert labels_in(store) == [(positions(store)[0], "R")]


def test_a_wrong_link_says_what_to_do(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """And shows no item."""
    url = serve(store).links["anna"]
    page, _ = watched(context)
    page.goto(f"{url[:-1]}{'x' if url[-1] != 'x' else 'y'}")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "open the one that `mirage annotate serve` printed last" in page.inner_text("#trouble-text")
    assert page.is_hidden("#item")


def test_another_site_can_neither_read_nor_write(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """A page from elsewhere in the same browser, with the annotator's cookie at hand."""
    url = serve(store).links["anna"]
    opened(context, url)
    origin = url.split("/#")[0]
    other, _ = watched(context)
    other.route(
        "http://evil.example/**", lambda route: route.fulfill(body="<title>evil</title>", content_type="text/html")
    )
    other.goto("http://evil.example/")
    attack = """async (origin) => {
        const results = [];
        for (const [path, options] of [
            ["/item", {}],
            ["/label", {method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"}],
            ["/undo", {method: "POST", body: "{}", mode: "no-cors"}],
        ]) {
            try {
                const response = await fetch(origin + path, {credentials: "include", ...options});
                results.push(response.type === "opaque" ? "opaque" : await response.text());
            } catch { results.push("blocked"); }
        }
        return results;
    }"""
    assert set(other.evaluate(attack, origin)) <= {"blocked", "opaque"}
    assert labels_in(store) == []


def test_two_annotators_label_the_same_items_from_two_links(serve: Serve, browser: "Browser", store: Path) -> None:
    """One server, two browsers; neither sees the other's labels."""
    served = serve(store, ("anna", "ben"))
    for annotator, key in (("anna", "a"), ("ben", "c")):
        context = browser.new_context(viewport=DESK)  # type: ignore[arg-type]
        page = opened(context, served.links[annotator])
        assert page.inner_text("#annotator") == annotator
        assert progress(page) == "0 of 20 labelled"
        press(page, key, "1 of 20 labelled")
        context.close()
    assert labels_in(store) == [(positions(store)[0], "G"), (positions(store)[0], "S")]


def test_a_hostile_claim_stays_text(serve: Serve, context: "BrowserContext", tmp_path: Path) -> None:
    """No element is made of it, nothing runs, and the request goes nowhere."""
    store = make_store(tmp_path / "evil.sqlite", models=1, personas=1, tasks=1, pattern="GRSF", texts=[EVIL] * 4)
    make_sample(store, 4)
    page, wrong = watched(context)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    url = serve(store).links["anna"]
    page.goto(url)
    page.wait_for_selector("#claim:not(:empty)")
    assert page.text_content("#claim") == EVIL.replace("\u202e", "\ufffd")
    assert page.evaluate("document.querySelectorAll('#claim *').length") == 0
    assert page.title() == "Label claims · MirageBench"
    assert wrong == []
    assert {each.removeprefix(url.split("/#")[0]) for each in asked} <= {
        f"/#{url.split('#')[1]}", "/", "/page.css", "/page.js", "/session", "/item", "/favicon.ico",
    }  # fmt: skip


def test_a_screen_reader_finds_names_for_everything(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """Buttons, fields and regions have names; what happened is announced; the new claim has the focus."""
    page = opened(context, serve(store).links["anna"])
    for name in ("A Grounded", "B Reasonable", "C Stereotype", "D Fabricated", "Undo the last one", "Skip for now"):
        assert page.get_by_role("button", name=name).count() == 1
    assert page.get_by_role("group", name="Label for this claim").count() == 1
    assert page.get_by_role("textbox", name="Comment").count() == 1
    assert page.get_by_role("progressbar", name="0 of 20 labelled").count() == 1
    assert page.get_by_role("region", name=re.compile("What the user asked for.*not evidence")).count() == 1
    press(page, "a", "1 of 20 labelled")
    assert page.get_by_role("status").inner_text() == "Saved as Grounded. Item 2 of 20."
    assert page.evaluate("document.activeElement.id") == "claim"


def test_every_control_is_reached_by_tab_and_shows_it(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """In the order of the page, each with a visible outline."""
    page = opened(context, serve(store).links["anna"])
    reached, outlines = [], set()
    for _ in range(8):
        page.keyboard.press("Tab")
        at = "document.activeElement"
        reached.append(page.evaluate(f"{at}.dataset.label || {at}.id"))
        outlines.add(page.evaluate(f"getComputedStyle({at}).outlineStyle + ' ' + getComputedStyle({at}).outlineWidth"))
    assert reached == ["G", "R", "S", "F", "comment", "undo", "skip", "keys"]
    assert outlines == {"solid 3px"}


CONTRAST = """() => {
    const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return parse(getComputedStyle(document.body).backgroundColor);
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility() || element.matches("noscript, .skip-link")) continue;
        const [one, two] = [luminance(parse(getComputedStyle(element).color)), luminance(ground(element))];
        const name = element.id || element.className || element.tagName;
        found.push([(Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05), name]);
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_text_has_contrast_and_nothing_runs_over_the_edge(
    serve: Serve, browser: "Browser", store: Path, scheme: str, viewport: dict[str, int]
) -> None:
    """WCAG AA: 4.5 to 1 for all text, in light and dark; no sideways scrolling on a phone."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    page = opened(context, serve(store).links["anna"])
    press(page, "a", "1 of 20 labelled")
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert [entry for entry in ratios if entry[0] < 4.5] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    context.close()


def test_a_phone_labels_by_touch_with_the_buttons_in_reach(serve: Serve, browser: "Browser", tmp_path: Path) -> None:
    """Also under a very long claim; every target is at least 44 pixels high."""
    store = make_store(
        tmp_path / "long.sqlite", models=1, personas=1, tasks=1, pattern="GRSF", texts=["long " * 400] * 4
    )
    make_sample(store, 4)
    context = browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True)  # type: ignore[arg-type]
    page = opened(context, serve(store).links["anna"])
    for label in "GRSF":
        box = page.locator(f"button[data-label={label}]").bounding_box()
        assert box is not None
        assert box["height"] >= 44
        assert box["y"] + box["height"] <= PHONE["height"]
    settle(page)
    page.tap("button[data-label=R]")
    page.wait_for_function("() => document.getElementById('progress-text').textContent === '1 of 4 labelled'")
    assert labels_in(store) == [(positions(store)[0], "R")]
    context.close()


def test_the_page_looks_as_it_does_in_the_documentation(serve: Serve, context: "BrowserContext", store: Path) -> None:
    """Takes the documentation's screenshot where the environment names a file for it."""
    page = opened(context, serve(store).links["anna"])
    for number, key in enumerate("abcdab"):
        press(page, key, f"{number + 1} of 20 labelled")
    picture = page.screenshot()
    assert picture.startswith(b"\x89PNG")
    if target := os.environ.get(SCREENSHOT):
        Path(target).write_bytes(picture)
