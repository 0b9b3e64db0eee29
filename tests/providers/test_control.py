"""The control plane: reads are retried and spaced, creating calls are sent once, models are looked up."""

import json

import httpx
import pytest

from engine.errors import ErrorClass, ProviderError, UserError
from providers.catalog import load_catalog
from providers.classify import ErrorTable
from providers.control import ControlClient, ModelCheck, check_models
from providers.dialect import Wire
from providers.http import HttpEndpoint
from providers.pace import pace

CATALOG = load_catalog()
KEY = "sk-live-0123456789abcdef0123"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY, "ZAI_API_KEY": KEY}


class Waits:
    """Records waits instead of sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        """Note a wait."""
        self.seconds.append(seconds)


class Network(httpx.MockTransport):
    """Answers with the given replies in turn, the last one for ever, and keeps the calls."""

    def __init__(self, *replies: httpx.Response) -> None:
        self.calls: list[httpx.Request] = []
        self.replies = list(replies)
        super().__init__(self._answer)

    def _answer(self, call: httpx.Request) -> httpx.Response:
        self.calls.append(call)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return httpx.Response(reply.status_code, content=reply.content, headers=reply.headers)


def client(network: httpx.AsyncBaseTransport, waits: Waits, tries: int = 5) -> ControlClient:
    """Return a client on a scripted network."""
    endpoint = HttpEndpoint("p", "https://llm.example/v1", transport=network)
    return ControlClient(endpoint, ErrorTable.OPENAI, tries=tries, per_second=1000, sleep=waits)


def names(*models: str) -> httpx.Response:
    """Return a model list as OpenAI and Anthropic write it."""
    return httpx.Response(200, json={"object": "list", "data": [{"id": model} for model in models]})


async def test_a_read_is_tried_again_after_transient_trouble() -> None:
    """Two failures, then the answer."""
    network, waits = Network(httpx.Response(503), httpx.Response(429), httpx.Response(200, content=b"ok")), Waits()
    assert (await client(network, waits).get("/x")).body == b"ok"
    assert (len(network.calls), len(waits.seconds)) == (3, 2)


async def test_the_wait_asked_for_is_kept() -> None:
    """Retry-After goes before our own backoff."""
    network, waits = Network(httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(200)), Waits()
    await client(network, waits).get("/x")
    assert waits.seconds == [7.0]


async def test_waits_without_advice_stay_bounded() -> None:
    """They grow at random, to a minute at most."""
    network, waits = Network(httpx.Response(503)), Waits()
    with pytest.raises(ProviderError):
        await client(network, waits, tries=12).get("/x")
    assert len(waits.seconds) == 11
    assert all(0 <= seconds <= 60 for seconds in waits.seconds)


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(401),
        httpx.Response(404),
        httpx.Response(402),
        httpx.Response(429, headers={"retry-after": "3600"}),
    ],
    ids=["auth", "not found", "quota", "an hour"],
)
async def test_what_no_retry_can_help_fails_at_once(reply: httpx.Response) -> None:
    """Neither keys, names, money nor a wait of an hour."""
    network, waits = Network(reply), Waits()
    with pytest.raises(ProviderError):
        await client(network, waits).get("/x")
    assert (len(network.calls), waits.seconds) == (1, [])


async def test_the_last_error_is_raised_when_tries_run_out() -> None:
    """Not a retry library's own error."""
    network, waits = Network(httpx.Response(503)), Waits()
    with pytest.raises(ProviderError) as caught:
        await client(network, waits, tries=3).get("/x")
    assert (caught.value.kind, caught.value.status, len(network.calls)) == (ErrorClass.TRANSIENT, 503, 3)


async def test_a_creating_call_is_never_repeated() -> None:
    """A lost answer does not mean that nothing was created."""
    network, waits = Network(httpx.Response(503)), Waits()
    with pytest.raises(ProviderError):
        await client(network, waits).post("/batches", b"{}")
    assert len(network.calls) == 1


async def test_gemini_pages_are_followed() -> None:
    """Names lose Google's prefix."""
    first = httpx.Response(200, json={"models": [{"name": "models/a"}], "nextPageToken": "t 1"})
    network = Network(first, httpx.Response(200, json={"models": [{"name": "models/b"}]}))
    assert await client(network, Waits()).model_names(Wire.GEMINI) == {"a", "b"}
    assert [call.url.query for call in network.calls] == [b"pageSize=1000", b"pageSize=1000&pageToken=t%201"]


async def test_anthropic_pages_are_followed() -> None:
    """By the last id."""
    first = httpx.Response(200, json={"data": [{"id": "a"}], "has_more": True, "last_id": "a"})
    network = Network(first, names("b"))
    assert await client(network, Waits()).model_names(Wire.ANTHROPIC) == {"a", "b"}
    assert network.calls[1].url.params["after_id"] == "a"


async def test_a_list_that_points_at_itself_ends() -> None:
    """A server's mistake must not become an endless loop."""
    network = Network(httpx.Response(200, json={"data": [{"id": "a"}], "has_more": True, "last_id": "a"}))
    assert await client(network, Waits()).model_names(Wire.ANTHROPIC) == {"a"}
    assert len(network.calls) == 2


async def test_models_are_found_by_their_snapshot() -> None:
    """Listed, or not."""
    network = Network(names("gpt-5.5-2026-06-01", "gpt-4o-mini"))
    checks = await check_models([CATALOG.card("gpt-5.5"), CATALOG.card("gpt-4o-mini")], KEYS, transport=network)
    assert [(check.alias, check.found) for check in checks] == [("gpt-5.5", True), ("gpt-4o-mini", False)]


async def test_a_retired_model_says_so() -> None:
    """The date comes from the catalogue."""
    checks = await check_models([CATALOG.card("gpt-4o-mini")], KEYS, transport=Network(names("x")))
    assert "2027-01-14" in checks[0].note


async def test_an_account_that_cannot_be_asked_is_reported_not_raised() -> None:
    """Some endpoints have no list; a rejected key is told without showing it."""
    echo = json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()
    checks = await check_models([CATALOG.card("glm-5.1")], KEYS, transport=Network(httpx.Response(401, content=echo)))
    assert checks == (
        ModelCheck(alias="glm-5.1", provider="zhipu", found=None, note="could not ask: HTTP 401 bad key [key]"),
    )


async def test_checking_without_a_key_is_the_users_mistake() -> None:
    """The variable is named."""
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        await check_models([CATALOG.card("gpt-5.5")], {}, transport=Network(names()))


async def test_calls_within_the_pace_do_not_wait() -> None:
    """Three turns in a window of three."""
    spaced = pace(3, seconds=60.0)
    for _ in range(3):
        async with spaced:
            pass
