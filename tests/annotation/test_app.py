"""The page's server: who may talk to it, what it answers, and that nothing it sends depends on the judge."""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from instruments.annotation.app import Seat, build_app
from instruments.annotation.desk import Answer, Desk
from instruments.annotation.store import Sample, current_labels, open_annotations
from instruments.annotation.testing import JUDGE, REASONING, make_sample, make_store
from instruments.personas import load_personas

PORT = 8642
ORIGIN = f"http://127.0.0.1:{PORT}"
SEATS = (
    Seat(annotator="anna", token="token-of-anna", session="session-of-anna"),  # noqa: S106
    Seat(annotator="ben", token="token-of-ben", session="session-of-ben"),  # noqa: S106
)
MakeAnswer = Callable[..., Answer]


class Site:
    """A client of the page's server, and what the server has reported."""

    def __init__(self, client: httpx.AsyncClient, desk: Desk, reports: list[str]) -> None:
        self.client, self.desk, self.reports = client, desk, reports

    async def sign_in(self, token: str = SEATS[0].token) -> httpx.Response:
        """Exchange a link's token for a cookie."""
        return await self.post("/session", {"token": token})

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """Send JSON as the page does."""
        sent = {
            "Origin": ORIGIN,
            "Content-Type": "application/json",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        return await self.client.post(path, content=msgspec.json.encode(body), headers=sent)

    async def item(self) -> dict[str, Any]:
        """The item on the page."""
        item: dict[str, Any] = (await self.client.get("/item")).json()["item"]
        return item


@asynccontextmanager
async def open_site(store: Path, sample: Sample) -> AsyncIterator[Site]:
    """Serve a sample to a client in this process."""
    reports: list[str] = []
    with closing(Desk.open(store, sample.id)) as desk:
        hosts = {"127.0.0.1", "localhost"}
        app = build_app(desk, SEATS, hosts=hosts, port=PORT, now_ms=lambda: 5, report=reports.append)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
            yield Site(client, desk, reports)


@pytest.fixture
async def site(store: Path, sample: Sample) -> AsyncIterator[Site]:
    """A served sample."""
    async with open_site(store, sample) as served:
        yield served


async def test_a_link_is_exchanged_for_a_cookie_that_scripts_and_other_sites_cannot_use(site: Site) -> None:
    """HttpOnly and SameSite=Strict, named after the port, and not the token itself."""
    cookie = (await site.sign_in()).headers["set-cookie"]
    assert cookie.startswith(f"mirage_annotation_{PORT}=session-of-anna;")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()


@pytest.mark.parametrize("token", ["", "token-of-ann", "token-of-anna ", "session-of-anna", "tökèn"])
async def test_a_wrong_token_opens_nothing(site: Site, token: str) -> None:
    """No cookie, no item."""
    refused = await site.sign_in(token)
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    assert (await site.client.get("/item")).status_code == 401


async def test_a_label_without_cookie_is_refused(site: Site, answer: MakeAnswer) -> None:
    """And says how to sign in."""
    refused = await site.post("/label", answer("bcdfghjkmnpq"))
    assert refused.status_code == 401
    assert "mirage annotate serve" in refused.json()["error"]


async def test_a_label_is_saved_and_the_next_item_comes_back(site: Site, answer: MakeAnswer) -> None:
    """One round trip a label."""
    await site.sign_in()
    first = await site.item()
    view = (await site.post("/label", answer(first["id"], "S"))).json()
    assert (view["done"], view["total"], view["undo"]) == (1, 20, first["id"])
    assert view["item"]["id"] != first["id"]
    assert set(first) == {"id", "facts", "task", "claim", "skipped", "comment"}


async def test_undo_brings_the_item_back(site: Site, answer: MakeAnswer) -> None:
    """And the count goes down."""
    await site.sign_in()
    first = await site.item()
    await site.post("/label", answer(first["id"]))
    view = (await site.post("/undo", {"annotator": "anna", "item": first["id"]})).json()
    assert (view["item"]["id"], view["done"]) == (first["id"], 0)


async def test_two_tabs_are_told_what_happened(site: Site, answer: MakeAnswer) -> None:
    """The later press changes nothing; the page shows why it moved on."""
    await site.sign_in()
    item = (await site.item())["id"]
    await site.post("/label", answer(item, "G"))
    view = (await site.post("/label", answer(item, "F"))).json()
    assert "label already" in view["notice"]
    late = (await site.post("/undo", {"annotator": "anna", "item": view["item"]["id"]})).json()
    assert "Something else has happened" in late["notice"]
    assert late["done"] == 1


async def test_an_unknown_item_is_not_found(site: Site, answer: MakeAnswer) -> None:
    """Nothing is stored."""
    await site.sign_in()
    assert (await site.post("/label", answer("bcdfghjkmnpq"))).status_code == 404
    assert site.desk.view("anna").done == 0


async def test_a_page_loaded_for_one_annotator_cannot_label_as_another(site: Site, answer: MakeAnswer) -> None:
    """The browser was signed in as someone else meanwhile."""
    await site.sign_in()
    item = (await site.item())["id"]
    await site.sign_in(SEATS[1].token)
    refused = await site.post("/label", answer(item, annotator="anna"))
    assert refused.status_code == 409
    assert "signed in as ben" in refused.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Host": "evil.example:8642"}, id="rebound name"),
        pytest.param({"Host": "127.0.0.1"}, id="no port"),
        pytest.param({"Host": "127.0.0.1:8643"}, id="other port"),
        pytest.param({"Host": "127.0.0.1:8642.evil.example"}, id="port with a tail"),
        pytest.param({"Host": "10.0.0.1:8642"}, id="other address"),
        pytest.param({"Host": ""}, id="none"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, id="from another site"),
    ],
)
async def test_a_request_under_another_name_or_from_another_site_is_refused(
    site: Site, headers: dict[str, str]
) -> None:
    """DNS rebinding and cross-site reads end before the desk."""
    await site.sign_in()
    assert (await site.client.get("/item", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Origin": "http://evil.example"}, 403, id="other origin"),
        pytest.param({"Origin": "null"}, 403, id="opaque origin"),
        pytest.param({"Origin": ""}, 403, id="no origin"),
        pytest.param({"Origin": "https://127.0.0.1:8642"}, 403, id="other scheme"),
        pytest.param({"Content_Type": "text/plain"}, 415, id="form-like body"),
        pytest.param({"Content_Length": "65537"}, 413, id="too large"),
        pytest.param({"Content_Length": "1e3"}, 413, id="length that is no number"),
    ],
)
async def test_a_write_must_come_from_the_page(
    site: Site, answer: MakeAnswer, headers: dict[str, str], status: int
) -> None:
    """Cross-site request forgery ends before the desk."""
    await site.sign_in()
    item = (await site.item())["id"]
    assert (await site.post("/label", answer(item), **headers)).status_code == status
    assert site.desk.view("anna").done == 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([], id="not an object"),
        pytest.param({"annotator": "anna"}, id="fields missing"),
        pytest.param({"label": "X"}, id="no such label"),
        pytest.param({"elapsed_ms": -5}, id="negative time"),
        pytest.param({"comment": "x" * 2001}, id="long comment"),
        pytest.param({"submission": "short"}, id="short name of the press"),
        pytest.param({"judge_label": "G"}, id="unknown field"),
    ],
)
async def test_a_body_that_is_not_understood_is_refused(site: Site, answer: MakeAnswer, body: object) -> None:
    """With a reason, and nothing is stored."""
    await site.sign_in()
    item = (await site.item())["id"]
    whole = msgspec.to_builtins(answer(item)) | body if isinstance(body, dict) and len(body) == 1 else body
    refused = await site.post("/label", {"annotator": "anna"} if body == {"annotator": "anna"} else whole)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("not understood")


async def test_every_answer_is_kept_out_of_caches_frames_and_foreign_scripts(site: Site) -> None:
    """Strict headers on pages, data, refusals and what is not there."""
    for path in ("/", "/page.js", "/item", "/nothing"):
        headers = (await site.client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


async def test_a_defect_is_one_line_for_the_owner_and_a_sentence_for_the_annotator(site: Site) -> None:
    """No traceback reaches the page or the terminal."""
    await site.sign_in()
    site.desk._connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    broken = await site.client.get("/item")
    assert broken.status_code == 500
    assert broken.json() == {"error": "the server made a mistake; nothing was saved"}
    (line,) = site.reports
    assert line.startswith("GET /item: DatabaseError")
    assert "\n" not in line


async def test_a_store_that_does_not_take_the_label_is_explained_and_tried_again(
    site: Site, store: Path, answer: MakeAnswer
) -> None:
    """The same press goes through once the store is free."""
    await site.sign_in()
    press = answer((await site.item())["id"])
    site.desk._connection.set_authorizer(None)
    site.desk._connection.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = await site.post("/label", press)
        other.execute("ROLLBACK")
    assert refused.status_code == 503
    assert refused.json()["error"].startswith("not saved: the store cannot be used: another program is writing")
    assert str(store) not in refused.text
    assert (await site.post("/label", press)).json()["done"] == 1


async def label_everything(site: Site, answer: MakeAnswer) -> list[str]:
    """Do what an annotator does, with a skip and an undo, and return all that the server sent."""
    answers = [await site.client.get(path) for path in ("/", "/page.js", "/page.css", "/favicon.ico")]
    answers.append(await site.sign_in())
    for number in range(40):
        answers.append(await site.client.get("/item"))
        if (item := answers[-1].json()["item"]) is None:
            break
        label = None if number == 3 else "GRSF"[number % 4]
        answers.append(await site.post("/label", answer(item["id"], label, submission=f"press-number-{number:06}")))
        if number == 5:
            answers.append(await site.post("/undo", {"annotator": "anna", "item": item["id"]}))
    answers.append(await site.client.get("/item", params={"skipped": "1"}))
    return [f"{each.status_code} {sorted(each.headers.items())} {each.text}" for each in answers]


async def test_what_the_server_sends_does_not_depend_on_the_judge(
    store: Path, sample: Sample, answer: MakeAnswer
) -> None:
    """Two stores that differ in the judge's labels, models and readings only: the same bytes, in the same order."""
    async with open_site(store, sample) as site:
        first = await label_everything(site, answer)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER annotation_label_stays")
        connection.execute("DELETE FROM annotation_label")
        connection.execute(
            "UPDATE annotation_item SET model = 'other', persona = 'other', task_id = 'other', claim_index = position,"
            " judge_label = CASE judge_label WHEN 'G' THEN 'F' WHEN 'F' THEN 'S' WHEN 'S' THEN 'R' ELSE 'G' END"
        )
        connection.execute("UPDATE annotation_sample SET judge = 'other', population = '{}', strata = '[]'")
        connection.execute("UPDATE reading SET body = '{}'")
    async with open_site(store, sample) as site:
        second = await label_everything(site, answer)
    assert first == second
    assert len(first) > 40


async def test_nothing_that_unblinds_is_ever_sent(store: Path, sample: Sample, answer: MakeAnswer) -> None:
    """No model, judge, reasoning, persona id or ground truth in any answer."""
    async with open_site(store, sample) as site:
        sent = "\n".join(await label_everything(site, answer))
    with closing(sqlite3.connect(store)) as connection:
        used = {persona for (persona,) in connection.execute("SELECT persona FROM annotation_item")}
    people = [persona for persona in load_personas() if persona.id in used]
    profiles = [str(person.attributes.name or person.attributes.quirk) for person in people]
    quirks = [person.attributes.quirk for person in people if person.attributes.quirk]
    for secret in ("unblinding-model", JUDGE, REASONING, "UNVERIFIABLE", *used, *profiles, *quirks):
        assert secret not in sent
    assert len(quirks) > 3


async def test_hostile_text_arrives_as_text(tmp_path: Path) -> None:
    """JSON carries it; the type forbids anything else to be made of it."""
    evil = "</script><script>alert(1)</script>\u202e"
    store = make_store(tmp_path / "store.sqlite", models=1, personas=1, tasks=1, pattern="G", texts=[evil] * 4)
    async with open_site(store, make_sample(store, 4)) as site:
        await site.sign_in()
        answer = await site.client.get("/item")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["item"]["claim"] == "</script><script>alert(1)</script>\ufffd"


async def test_a_rehearsal_says_that_answers_are_simulated(tmp_path: Path) -> None:
    """Simulated and real labels are never mixed up."""
    store = make_store(tmp_path / "store.sqlite", models=1, personas=1, tasks=1, pattern="G", simulated=True)
    async with open_site(store, make_sample(store, 4)) as site:
        await site.sign_in()
        assert (await site.client.get("/item")).json()["simulated"] is True


async def test_labels_from_the_page_are_the_labels_in_the_store(
    site: Site, store: Path, sample: Sample, answer: MakeAnswer
) -> None:
    """Item by item."""
    await site.sign_in()
    given = {}
    for number in range(20):
        item = (await site.item())["id"]
        given[item] = "GRSF"[number % 4]
        await site.post("/label", answer(item, given[item], elapsed_ms=number))
    with closing(open_annotations(store)) as connection:
        assert {row.item: row.label for row in current_labels(connection, sample.id)} == given
    assert json.loads((await site.client.get("/item")).text)["item"] is None
