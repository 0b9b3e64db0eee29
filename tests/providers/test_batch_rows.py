"""Results files are hostile text: whatever a line holds, every line gives one row and nothing is raised."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.provider import BatchProvider, Unpaid
from engine.errors import ProviderError
from engine.request import Completion
from providers.anthropic_batch import AnthropicBatches
from providers.batch_dialect import BATCH_DIALECTS
from providers.batch_link import BatchLink
from providers.batch_rows import row_dialect
from providers.classify import ErrorTable
from providers.dialect import DIALECTS
from providers.gemini_batch import GeminiBatches
from providers.http import HttpEndpoint
from providers.openai_batch import OpenAIBatches

WORDS = [
    *(
        "custom_id",
        "key",
        "id",
        "response",
        "error",
        "result",
        "body",
        "status_code",
        "message",
        "type",
        "code",
        "choices",
    ),
    *("content", "usage", "candidates", "errored", "succeeded", "expired", "batch_expired", "metadata", "request_id"),
]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)
rows = st.dictionaries(st.sampled_from(WORDS), values, max_size=6)


def link(table: ErrorTable) -> BatchLink:
    """Return a link to nobody."""
    network = httpx.MockTransport(lambda call: pytest.fail(str(call.url)))
    return BatchLink(HttpEndpoint("p", "https://llm.example/v1", transport=network), table)


ADAPTERS: dict[str, OpenAIBatches | AnthropicBatches | GeminiBatches] = {
    "openai": OpenAIBatches(
        link(ErrorTable.OPENAI), BATCH_DIALECTS[ErrorTable.OPENAI], dialects={"m": DIALECTS["openai"]}
    ),
    "anthropic": AnthropicBatches(link(ErrorTable.ANTHROPIC), dialects={"m": DIALECTS["anthropic"]}),
    "gemini": GeminiBatches(link(ErrorTable.GEMINI), dialects={"m": DIALECTS["gemini"]}),
}


@pytest.mark.parametrize("name", ADAPTERS)
@given(lines=st.lists(rows.map(lambda row: json.dumps(row).encode()) | st.binary(max_size=40), max_size=4))
def test_every_line_gives_one_row(name: str, lines: list[bytes]) -> None:
    """Bytes that are no JSON, JSON that is no row, rows with anything in any field."""
    found = list(ADAPTERS[name].rows(iter(lines)))
    assert len(found) == len(lines)
    for row in found:
        assert isinstance(row.custom_id, str)
        assert isinstance(row.outcome, (Completion, ProviderError, Unpaid))


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_line_nested_without_end_is_a_row(name: str) -> None:
    """The parser's depth is not the reader's problem."""
    (row,) = ADAPTERS[name].rows(iter([b'{"error":' + b"[" * 100_000]))
    assert isinstance(row.outcome, ProviderError)


@pytest.mark.parametrize(("name", "field"), [("openai", "custom_id"), ("anthropic", "custom_id"), ("gemini", "key")])
def test_a_row_of_an_unknown_shape_keeps_its_id(name: str, field: str) -> None:
    """So that its request is known to have come back, and perhaps been charged."""
    text = json.dumps({field: "a", "response": [1], "error": 7, "result": "odd", "metadata": 3}).encode()
    (row,) = ADAPTERS[name].rows(iter([text]))
    assert isinstance(row.outcome, ProviderError)
    assert (row.custom_id, row.outcome.maybe_billed) == ("a", True)


@pytest.mark.parametrize(("second", "optional"), [(True, True), (False, False)])
def test_usage_may_be_absent_only_if_every_model_is_free(second: bool, optional: bool) -> None:
    """A row does not say under which of our names its model was asked."""
    free = DIALECTS["compatible"].__class__(usage_optional=True)
    other = DIALECTS["compatible"].__class__(usage_optional=second)
    assert row_dialect({"a": free, "b": other}).usage_optional is optional


def test_the_adapters_are_what_the_engine_asks_for() -> None:
    """Structurally: names and signatures."""
    asked: list[BatchProvider] = list(ADAPTERS.values())
    assert all(provider.limits("m").window >= 86_400 for provider in asked)
