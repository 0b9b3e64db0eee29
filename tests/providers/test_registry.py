"""Providers are built from cards and keys, and speak through one account each."""

import json

import httpx
import pytest

from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Decoding, Request, Role, chat
from providers.card import ModelCard
from providers.catalog import load_catalog
from providers.registry import build_providers, by_account, check_keys

CATALOG = load_catalog()
KEY = "sk-live-0123456789abcdef0123"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY, "DEEPSEEK_API_KEY": KEY}
ANSWERS = {
    "api.openai.com": b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}',
    "api.anthropic.com": b'{"type":"message","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn",'
    b'"usage":{"input_tokens":3,"output_tokens":1}}',
    "generativelanguage.googleapis.com": b'{"candidates":[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}],'
    b'"usageMetadata":{"promptTokenCount":3}}',
}


def cards(*aliases: str) -> list[ModelCard]:
    """Return cards by alias."""
    return [CATALOG.card(alias) for alias in aliases]


def request(alias: str) -> Request:
    """Return a small request to a model."""
    card = CATALOG.card(alias)
    turns = chat((Role.USER, "Hello"))
    return Request(provider=card.provider, model=card.model, messages=turns, decoding=Decoding(max_tokens=8))


@pytest.mark.parametrize(
    ("alias", "url", "header"),
    [
        ("gpt-5.5", "https://api.openai.com/v1/chat/completions", ("authorization", f"Bearer {KEY}")),
        ("claude-opus-4-6", "https://api.anthropic.com/v1/messages", ("x-api-key", KEY)),
        (
            "gemini-3-flash",
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-flash-preview-2026-04:generateContent",
            ("x-goog-api-key", KEY),
        ),
    ],
)
async def test_each_wire_format_is_called_its_way(alias: str, url: str, header: tuple[str, str]) -> None:
    """Address, key header, and an answer read back."""
    seen: list[httpx.Request] = []

    def network(call: httpx.Request) -> httpx.Response:
        seen.append(call)
        return httpx.Response(200, content=ANSWERS[call.url.host], headers={"x-ratelimit-limit-requests": "7"})

    card = CATALOG.card(alias)
    provider = build_providers([card], KEYS, transport=httpx.MockTransport(network))[card.provider]
    reply = await provider.complete(request(alias))
    await provider.close()
    assert (str(seen[0].url), seen[0].headers[header[0]], provider.name) == (url, header[1], card.provider)
    assert (reply.completion.text, reply.completion.usage.input_tokens) == ("hi", 3)
    assert reply.hints is not None
    assert reply.hints.requests_limit == 7


async def test_anthropic_is_asked_for_the_version_that_takes_temperatures() -> None:
    """The later one rejects them for every model."""
    seen: list[str] = []

    def network(call: httpx.Request) -> httpx.Response:
        seen.append(call.headers["anthropic-version"])
        return httpx.Response(200, content=ANSWERS[call.url.host])

    provider = build_providers(cards("claude-opus-4-6"), KEYS, transport=httpx.MockTransport(network))["anthropic"]
    await provider.complete(request("claude-opus-4-6"))
    assert seen == ["2023-06-01"]


async def test_models_of_one_account_keep_their_own_dialect() -> None:
    """One provider, two spellings."""
    seen: list[dict[str, object]] = []

    def network(call: httpx.Request) -> httpx.Response:
        seen.append(json.loads(call.content))
        return httpx.Response(200, content=ANSWERS[call.url.host])

    providers = build_providers(cards("gpt-5.5", "gpt-4o-mini"), KEYS, transport=httpx.MockTransport(network))
    assert list(providers) == ["openai"]
    for alias in ("gpt-5.5", "gpt-4o-mini"):
        wanted = Request(
            provider="openai",
            model=CATALOG.card(alias).model,
            messages=chat((Role.USER, "x")),
            decoding=Decoding(max_tokens=8, effort="low"),
        )
        await providers["openai"].complete(wanted)
    assert ["reasoning_effort" in body for body in seen] == [True, False]


def test_all_missing_keys_are_named_at_once() -> None:
    """One run, one complaint, with the way to mend it."""
    with pytest.raises(UserError) as caught:
        build_providers(cards("gpt-5.5", "claude-opus-4-6", "deepseek-v4-pro"), {"OPENAI_API_KEY": KEY})
    text = str(caught.value)
    assert "ANTHROPIC_API_KEY" in text
    assert "DEEPSEEK_API_KEY" in text
    assert "OPENAI_API_KEY" not in text
    assert "export ANTHROPIC_API_KEY=" in text


def test_in_process_models_need_no_key_and_no_endpoint() -> None:
    """They are built elsewhere."""
    local = cards("smollm2-135m", "qwen3-8b")
    check_keys(local, {})
    assert by_account(local) == {}
    assert build_providers(local, {}) == {}


async def test_a_local_server_works_without_a_key() -> None:
    """No key variable, no key header."""
    seen: list[httpx.Request] = []

    def network(call: httpx.Request) -> httpx.Response:
        seen.append(call)
        return httpx.Response(200, content=ANSWERS["api.openai.com"])

    table = {"family": "F", "provider": "mine", "model": "m", "base_url": "http://127.0.0.1:8000/v1"}
    card = load_catalog({"model": {"mine": table}}).card("mine")
    provider = build_providers([card], {}, transport=httpx.MockTransport(network))["mine"]
    turns = chat((Role.USER, "x"))
    await provider.complete(Request(provider="mine", model="m", messages=turns, decoding=Decoding(max_tokens=8)))
    assert "authorization" not in seen[0].headers


async def refused(status: int, body: bytes) -> ProviderError:
    """Return the error of a provider that answers so."""
    network = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    provider = build_providers(cards("gpt-5.5"), KEYS, transport=network)["openai"]
    with pytest.raises(ProviderError) as caught:
        await provider.complete(request("gpt-5.5"))
    return caught.value


async def test_a_rejected_key_names_its_variable_and_never_itself() -> None:
    """Providers echo keys, whole or half hidden."""
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}.", "code": KEY}}).encode()
    error = await refused(401, echo)
    assert error.kind is ErrorClass.AUTH
    assert "OPENAI_API_KEY" in error.message
    for text in (str(error), repr(error), error.code, repr(error.__context__), repr(error.__cause__)):
        assert KEY not in text


async def test_an_error_names_its_provider() -> None:
    """Many providers run side by side."""
    assert (await refused(500, b"")).message.startswith("openai: HTTP 500")


async def test_a_key_echoed_in_an_answer_is_not_stored() -> None:
    """Raw replies go into the store."""
    body = json.dumps(
        {"choices": [{"message": {"content": f"Your key is {KEY}"}}], "usage": {"prompt_tokens": 3}}
    ).encode()
    network = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    provider = build_providers(cards("gpt-5.5"), KEYS, transport=network)["openai"]
    completion = (await provider.complete(request("gpt-5.5"))).completion
    assert KEY.encode() not in completion.raw
    assert completion.text == "Your key is [key]"


async def test_a_model_outside_the_catalogue_is_not_sent() -> None:
    """The provider knows the dialects of its own models only."""
    network = httpx.MockTransport(lambda _: httpx.Response(200))
    provider = build_providers(cards("gpt-5.5"), KEYS, transport=network)["openai"]
    with pytest.raises(ProviderError) as caught:
        await provider.complete(request("gemini-3-flash"))
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.GONE, False)


async def test_a_piece_of_the_key_in_an_error_inside_an_answer_is_hidden() -> None:
    """HTTP says 200, the words are an error's all the same."""
    text = f"the key that ends with {KEY[-12:]}"
    error = await refused(200, json.dumps({"error": {"message": text, "code": "x"}}).encode())
    assert "the key that ends with [key]" in error.message


async def test_the_limits_that_a_refusal_announces_reach_whoever_called() -> None:
    """The lane learns from them."""
    headers = {"x-ratelimit-limit-requests": "60"}
    network = httpx.MockTransport(lambda _: httpx.Response(429, headers=headers, content=b"{}"))
    provider = build_providers(cards("gpt-5.5"), KEYS, transport=network)["openai"]
    with pytest.raises(ProviderError) as caught:
        await provider.complete(request("gpt-5.5"))
    assert caught.value.hints is not None
    assert caught.value.hints.requests_limit == 60
