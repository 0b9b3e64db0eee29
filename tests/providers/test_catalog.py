"""The shipped catalogue holds the paper's models; users' tables are merged over it and checked."""

import re
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.money import FREE, Price
from providers.card import ModelCard
from providers.catalog import Catalog, load_catalog
from providers.dialect import Wire

PAPER = {
    "gpt-5.5": ("GPT-5.5", "GPT", "gpt-5.5-2026-06-01"),
    "gpt-5.4-nano": ("GPT-5.4-nano", "GPT", "gpt-5.4-nano-2026-05-20"),
    "gpt-4o-mini": ("GPT-4o-mini", "GPT", "gpt-4o-mini-2024-07-18"),
    "claude-opus-4-6": ("Claude-Opus-4-6", "Claude", "claude-opus-4-6-20260415"),
    "gemini-3.1-pro": ("Gemini-3.1-pro", "Gemini", "gemini-3.1-pro-preview-2026-05"),
    "gemini-3-flash": ("Gemini-3-flash", "Gemini", "gemini-3-flash-preview-2026-04"),
    "deepseek-v4-pro": ("DeepSeek-v4-pro", "DeepSeek", "deepseek-v4-pro-2026-05"),
    "deepseek-v4-flash": ("DeepSeek-v4-flash", "DeepSeek", "deepseek-v4-flash-2026-05"),
    "qwen3.6-plus": ("Qwen3.6-plus", "Qwen", "qwen3.6-plus"),
    "qwen3-8b": ("Qwen3-8B", "Qwen", "Qwen/Qwen3-8B"),
    "glm-5.1": ("GLM-5.1", "GLM", "glm-5.1"),
    "kimi-k2.5": ("Kimi-K2.5", "Kimi", "moonshot-v1-k2.5"),
}
MINE = {"family": "F", "provider": "mine", "model": "m-1", "base_url": "https://llm.example/v1", "key_env": "MINE_KEY"}


def with_model(alias: str = "mine", **fields: object) -> Catalog:
    """Return the catalogue with one more model."""
    return load_catalog({"model": {alias: MINE | fields}})


def complaint(extra: dict[str, object]) -> str:
    """Return the message that a sweep file's tables lead to."""
    with pytest.raises(UserError) as caught:
        load_catalog(extra)
    return str(caught.value)


@pytest.mark.parametrize("alias", PAPER)
def test_the_papers_models_are_there_with_their_snapshots(alias: str) -> None:
    """Table 9, name by name."""
    card = load_catalog().card(alias)
    assert (card.label, card.family, card.model) == PAPER[alias]


def test_the_twelve_models_span_seven_families() -> None:
    """As the paper counts them; the judge belongs to one of the seven."""
    cards = load_catalog().cards
    assert len({cards[alias].family for alias in PAPER}) == 7
    assert cards["claude-opus-4-7"].model == "claude-opus-4-7-20260610"


def test_prices_are_exact_integers() -> None:
    """0.02 dollars a million tokens are 20 million nano-dollars, not a float beside it."""
    card = load_catalog().card("gpt-5.4-nano")
    assert card.price == Price(input=200_000_000, cached=20_000_000, output=1_250_000_000)
    assert card.batch_price == Price(input=100_000_000, output=625_000_000)


@pytest.mark.parametrize("card", load_catalog().cards.values(), ids=lambda card: card.alias)
def test_every_price_has_a_date_and_a_source(card: ModelCard) -> None:
    """A price without its origin cannot be checked; local models are free."""
    assert card.price_source
    if card.price != FREE:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", card.price_date)


@pytest.mark.parametrize("card", load_catalog().cards.values(), ids=lambda card: card.alias)
def test_every_model_on_the_wire_uses_tls_and_a_key(card: ModelCard) -> None:
    """No shipped address is plain http, none goes without a key."""
    if card.dialect.wire is not Wire.IN_PROCESS:
        assert card.base_url.startswith("https://")
        assert card.key_env.endswith("_API_KEY")


def test_a_batch_price_is_never_above_the_standard_price() -> None:
    """And batch prices belong to models that can be batched."""
    for card in load_catalog().cards.values():
        if card.batch_price is not None and card.price is not None:
            assert card.batch
            assert (card.batch_price.input, card.batch_price.output) < (card.price.input, card.price.output)


def test_the_embedded_model_is_free_and_local() -> None:
    """The demo needs no key and no network."""
    card = load_catalog().card("smollm2-135m")
    assert (card.provider, card.model, card.family, card.price) == ("vllm", "smollm2-135m", "SmolLM2", FREE)
    assert (card.dialect.wire, card.limits.concurrency, card.key_env) == (Wire.IN_PROCESS, 96, "")


def test_a_model_of_ones_own_needs_few_words() -> None:
    """Any compatible endpoint: address, key variable, model, price as text or number."""
    card = with_model(price={"input": "0.5", "output": 1.5}).card("mine")
    assert (card.base_url, card.key_env, card.dialect_name, card.label) == (
        "https://llm.example/v1",
        "MINE_KEY",
        "compatible",
        "mine",
    )
    assert card.price == Price(input=500_000_000, output=1_500_000_000)
    assert with_model().card("mine").price is None


def test_a_float_price_means_the_decimal_that_was_typed() -> None:
    """0.1 is a tenth of a dollar, not its binary neighbour."""
    assert with_model(price={"input": 0.1, "output": 0.3}).card("mine").price == Price(
        input=100_000_000, output=300_000_000
    )


def test_a_later_layer_changes_single_fields(tmp_path: Path) -> None:
    """Limits are merged one by one; the sweep file goes before the user's file."""
    path = tmp_path / "catalog.toml"
    path.write_text('[model."gpt-5.5"]\nlabel = "mine"\nlimits = { rpm = 500, tpm = 1000 }\n')
    card = load_catalog({"model": {"gpt-5.5": {"limits": {"rpm": 900}}}}, user_file=path).card("gpt-5.5")
    assert (card.label, card.limits.rpm, card.limits.tpm) == ("mine", 900, 1000)
    assert card.price is not None


def test_another_model_under_an_old_alias_has_no_price() -> None:
    """A price belongs to a model; the new one's must be given."""
    assert load_catalog({"model": {"gpt-5.5": {"model": "gpt-9"}}}).card("gpt-5.5").price is None


def test_a_missing_user_file_is_no_error(tmp_path: Path) -> None:
    """It is optional."""
    assert load_catalog(user_file=tmp_path / "none.toml") == load_catalog()


def test_a_provider_can_be_moved_to_another_region() -> None:
    """One table changes the address of all its models."""
    moved = load_catalog({"provider": {"moonshot": {"base_url": "https://api.moonshot.cn/v1"}}})
    assert moved.card("kimi-k2.5").base_url == "https://api.moonshot.cn/v1"


def test_an_unknown_alias_names_close_ones() -> None:
    """A typing error is answered with the right spelling."""
    with pytest.raises(UserError, match=r"did you mean .*gpt-5\.5"):
        load_catalog().card("gpt5.5")


@pytest.mark.parametrize(
    ("extra", "pieces"),
    [
        ({"models": {}}, ["[models]", "[model.ALIAS]"]),
        ({"model": 5}, ["[model]"]),
        ({"model": {"a": 5}}, ["[model]"]),
        ({"model": {"a": MINE | {"pirce": 1}}}, ['[model."a"]', "pirce", "did you mean price"]),
        ({"model": {"a": MINE | {"limits": {"rpn": 5}}}}, ['[model."a"]', "rpn", "limits", "did you mean rpm"]),
        ({"model": {"a": {"provider": "p", "model": "m"}}}, ['[model."a"]', "family"]),
        ({"model": {"a": MINE | {"context": "long"}}}, ['[model."a"]', "context"]),
        ({"model": {"a": MINE | {"price": {"input": "cheap", "output": 1}}}}, ["price.input", "cheap", "1.25"]),
        ({"model": {"a": MINE | {"price": {"input": -1, "output": 1}}}}, ["price.input"]),
        ({"model": {"a": MINE | {"price": {"input": "0.0000000001", "output": 1}}}}, ["price.input", "9 decimals"]),
        ({"model": {"a": MINE | {"price": {"input": float("nan"), "output": 1}}}}, ["price.input"]),
        ({"model": {"a": MINE | {"dialect": "klingon"}}}, ["klingon", "compatible"]),
        ({"model": {"a": MINE | {"base_url": "llm.example/v1"}}}, ['[model."a"]', "absolute"]),
        ({"model": {"a": MINE | {"base_url": "https://user:pw@llm.example/v1"}}}, ["user, password"]),
        ({"model": {"a": MINE | {"base_url": "ftp://llm.example"}}}, ["http"]),
        ({"model": {"a": MINE | {"base_url": ""}}}, ["no address", "base_url"]),
        ({"model": {"a": MINE | {"model": "bad name\n"}}}, ["model name"]),
        ({"model": {"a": MINE | {"usage_optional": True}}}, ["price of zero"]),
        (
            {"model": {"a": MINE | {"rules": [{"parameter": "stop", "action": "clamp", "why": "w"}]}}},
            ["rule 1", "clamped"],
        ),
        (
            {"model": {"a": MINE | {"rules": [{"parameter": "max_tokens", "action": "drop", "why": "w"}]}}},
            ["rule 1", "max_tokens"],
        ),
        (
            {"model": {"a": MINE | {"rules": [{"parameter": "heat", "action": "drop", "why": "w"}]}}},
            ["heat", "rules"],
        ),
        ({"model": {"a": MINE, "b": MINE | {"base_url": "https://other.example"}}}, ["'a'", "'b'", "base_url"]),
        ({"model": {"a": MINE, "b": MINE | {"dialect": "vllm-server"}}}, ["'a'", "'b'", "dialect"]),
        ({"model": {"a\x1b": MINE}}, ["alias"]),
        ({"model": {"a": MINE | {"provider": "my lab"}}}, ["provider name"]),
        ({"provider": {"p": {"dialect": "klingon"}}}, ['[provider."p"]', "klingon"]),
        ({"model": {"a": MINE | {"base_url": "https://[oops"}}}, ['[model."a"]', "base_url"]),
    ],
)
def test_a_mistake_is_named_with_its_place_and_mend(extra: dict[str, object], pieces: list[str]) -> None:
    """One line, no traceback: file, table, key, and what to do."""
    text = complaint(extra)
    assert "\n" not in text
    for piece in pieces:
        assert piece in text


@pytest.mark.parametrize("field", ["api_key", "key", "token"])
def test_a_key_in_a_file_is_refused_without_showing_it(field: str) -> None:
    """Files are shared and committed; keys live in the environment."""
    text = complaint({"model": {"a": MINE | {field: "sk-0123456789abcdef"}}})
    assert "key_env" in text
    assert "sk-0123" not in text


def test_a_key_in_place_of_its_variable_is_refused_without_showing_it() -> None:
    """The commonest mistake."""
    text = complaint({"model": {"a": MINE | {"key_env": "sk-0123456789abcdef"}}})
    assert "environment variable" in text
    assert "sk-0123" not in text


@pytest.mark.parametrize(
    ("content", "piece"), [(b"[model.a\n", "line 1"), (b"\xff\xfe", "cannot read"), (b"a = 1\n", "[a]")]
)
def test_an_unreadable_user_file_is_named(tmp_path: Path, content: bytes, piece: str) -> None:
    """Not TOML, not text, or not a catalogue."""
    path = tmp_path / "catalog.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_catalog(user_file=path)
    assert str(path) in str(caught.value)
    assert piece in str(caught.value)
