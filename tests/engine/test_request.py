"""Requests: their identity, and bounds on their tokens."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import (
    KEY_BYTES,
    Decoding,
    Message,
    Request,
    Role,
    Usage,
    chat,
    input_token_bound,
    input_token_estimate,
    prompt_bytes,
    request_key,
    total_usage,
    well_formed,
)
from engine.testing import make_request

BASE = make_request()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(msgspec.structs.replace(BASE, provider="elsewhere"), id="provider"),
        pytest.param(msgspec.structs.replace(BASE, model="m-2"), id="model"),
        pytest.param(msgspec.structs.replace(BASE, sample=1), id="sample"),
        pytest.param(msgspec.structs.replace(BASE, messages=chat((Role.USER, "hello "))), id="text"),
        pytest.param(msgspec.structs.replace(BASE, messages=chat((Role.SYSTEM, "hello"))), id="role"),
        pytest.param(msgspec.structs.replace(BASE, messages=BASE.messages * 2), id="messages"),
        pytest.param(msgspec.structs.replace(BASE, decoding=Decoding(max_tokens=11)), id="max_tokens"),
        pytest.param(
            msgspec.structs.replace(BASE, decoding=Decoding(max_tokens=10, temperature=0.0)), id="temperature"
        ),
        pytest.param(msgspec.structs.replace(BASE, decoding=Decoding(max_tokens=10, seed=0)), id="seed"),
        pytest.param(msgspec.structs.replace(BASE, decoding=Decoding(max_tokens=10, thinking=False)), id="thinking"),
    ],
)
def test_everything_that_is_asked_is_part_of_the_key(other: Request) -> None:
    """Two requests that differ in any field are two calls."""
    assert request_key(other) != request_key(BASE)


def test_equal_requests_have_equal_keys() -> None:
    """The key depends on content alone."""
    assert request_key(make_request()) == request_key(BASE)
    assert len(request_key(BASE)) == KEY_BYTES


def test_the_key_of_a_request_never_changes() -> None:
    """Stores of earlier versions hold it: a new value would pay for everything again."""
    request = Request(
        provider="p",
        model="m-2026",
        messages=chat((Role.SYSTEM, "Be brief."), (Role.USER, "Où?")),
        decoding=Decoding(max_tokens=64, temperature=0.5, stop=("\n",)),
        sample=2,
    )
    assert request_key(request).hex() == "be788acd9a496eab6e21af1e3cb61629"


@given(st.text(alphabet=st.characters(codec=None)))
def test_a_prompt_can_always_be_encoded(text: str) -> None:
    """Lone surrogates from hostile answers become U+FFFD; everything else stays."""
    message = Message(Role.USER, text)
    assert message.content.encode().decode() == message.content
    assert len(message.content) <= len(text)
    if well_formed(text) is text:
        assert message.content is text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ufeffé", "\ufeffé"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, clean: str) -> None:
    """As a UTF-16 reader would take them."""
    assert well_formed(text) == clean


@given(st.lists(st.text(), max_size=4), st.none() | st.text())
def test_the_token_bound_is_never_below_the_estimate_or_the_bytes(texts: list[str], schema: str | None) -> None:
    """A byte-level tokenizer makes at most one token of a byte."""
    request = Request(
        provider="p",
        model="m",
        messages=chat(*((Role.USER, text) for text in texts)),
        decoding=Decoding(max_tokens=1, schema=schema),
    )
    size = prompt_bytes(request)
    assert size == sum(len(text.encode()) for text in texts) + len((schema or "").encode())
    bound = input_token_bound(size, len(texts))
    assert bound >= size + len(texts)
    assert bound >= input_token_estimate(size, len(texts))


def test_usages_add_up_field_by_field() -> None:
    """Every field is counted."""
    one = Usage(input_tokens=1, cached_tokens=2, cache_write_tokens=3, output_tokens=4, reasoning_tokens=5)
    assert total_usage([one, one, Usage()]) == Usage(
        input_tokens=2, cached_tokens=4, cache_write_tokens=6, output_tokens=8, reasoning_tokens=10
    )
