"""Batch providers are built from cards and keys, one per account that has a batch API."""

from pathlib import Path

import httpx
import msgspec
import pytest

from engine.batch.provider import BatchLine, Marker
from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Decoding, Request, Role, chat
from providers.batch_registry import build_batch_providers, has_batches
from providers.card import ModelCard
from providers.catalog import load_catalog
from providers.dialect import DIALECTS

CATALOG = load_catalog()
KEY = "sk-live-0123456789abcdef0123"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY, "DASHSCOPE_API_KEY": KEY}
MARKER = Marker(run="r1", shard=0, attempt=0, digest="0123456789abcdef")


def cards(*aliases: str, batch: bool = True) -> list[ModelCard]:
    """Return cards, with batches on or off."""
    return [msgspec.structs.replace(CATALOG.card(alias), batch=batch) for alias in aliases]


def test_there_is_one_for_every_account_with_a_batch_api() -> None:
    """Two models of an account share it."""
    found = build_batch_providers(cards("gpt-5.5", "gpt-5.4-nano", "claude-opus-4-6", "gemini-3-flash"), KEYS)
    assert {name: provider.name for name, provider in found.items()} == {name: name for name in found}
    assert set(found) == {"openai", "anthropic", "gemini"}


def test_there_is_none_where_there_is_no_batch_api_or_the_model_is_not_in_it() -> None:
    """DeepSeek has none; a card may say that its model is left out."""
    assert build_batch_providers([*cards("deepseek-v4-pro"), *cards("gpt-5.5", batch=False)], {}) == {}


@pytest.mark.parametrize(
    ("dialect", "has"),
    [
        ("openai", True),
        ("dashscope", True),
        ("zhipu", True),
        ("kimi", True),
        ("anthropic", True),
        ("gemini", True),
        ("deepseek", False),
        ("vllm-server", False),
        ("in-process", False),
    ],
)
def test_which_dialects_have_a_batch_api(dialect: str, has: bool) -> None:
    """By the providers' documents."""
    assert has_batches(DIALECTS[dialect]) is has


def test_every_model_that_the_catalogue_offers_in_batches_has_an_adapter() -> None:
    """Or a sweep would plan what cannot be sent."""
    assert [alias for alias, card in CATALOG.cards.items() if card.batch and not has_batches(card.dialect)] == []


def test_a_missing_key_is_named() -> None:
    """Before anything is sent."""
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        build_batch_providers(cards("gpt-5.5"), {})


@pytest.mark.parametrize("alias", ["gpt-5.5", "claude-opus-4-6", "gemini-3-flash", "qwen3.6-plus"])
def test_every_adapter_writes_lines_of_its_catalogue_model(alias: str) -> None:
    """One line of JSON each."""
    card = CATALOG.card(alias)
    (provider,) = build_batch_providers(cards(alias), KEYS).values()
    request = Request(
        provider=card.provider, model=card.model, messages=chat((Role.USER, "a\nb")), decoding=Decoding(max_tokens=9)
    )
    assert b"\n" not in provider.encode_line(BatchLine(MARKER.line_id(0), request))


@pytest.mark.parametrize("alias", ["gpt-5.5", "claude-opus-4-6", "gemini-3-flash", "qwen3.6-plus"])
async def test_a_rejected_key_names_the_variable_and_never_shows_itself(alias: str) -> None:
    """On every call, also when the reply echoes it."""
    bodies = {"error": {"message": f"Incorrect API key provided: {KEY}", "type": "authentication_error"}}
    network = httpx.MockTransport(lambda _: httpx.Response(401, json=bodies))
    (provider,) = build_batch_providers(cards(alias), KEYS, transport=network).values()
    with pytest.raises(ProviderError) as caught:
        await provider.poll("b1")
    assert caught.value.kind is ErrorClass.AUTH
    assert CATALOG.card(alias).key_env in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("alias", ["gpt-5.5", "gemini-3-flash"])
async def test_an_input_file_that_is_gone_is_the_user_s_to_mend(alias: str, tmp_path: Path) -> None:
    """One line with its path; nothing is sent."""
    network = httpx.MockTransport(lambda call: pytest.fail(str(call.url)))
    (provider,) = build_batch_providers(cards(alias), KEYS, transport=network).values()
    with pytest.raises(UserError, match=r"gone\.jsonl"):
        await provider.upload(MARKER, tmp_path / "gone.jsonl")
