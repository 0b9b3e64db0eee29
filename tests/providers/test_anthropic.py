"""Anthropic Messages: what is sent, what is read."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, Usage, chat
from providers.anthropic import CODEC, decode, encode
from providers.dialect import DIALECTS, Dialect

WIRE = Path(__file__).parent / "wire"
ADAPTIVE, BUDGET = DIALECTS["anthropic"], DIALECTS["anthropic-budget"]


def sent(dialect: Dialect = ADAPTIVE, **decoding: object) -> dict[str, object]:
    """Return the body that is sent for a decoding."""
    wanted = msgspec.convert({"max_tokens": 4096} | decoding, Decoding)
    turns = chat(
        (Role.SYSTEM, "One."), (Role.USER, "Hi"), (Role.ASSISTANT, "Yes?"), (Role.SYSTEM, "Two."), (Role.USER, "Go")
    )
    request = Request(provider="anthropic", model="claude-x", messages=turns, decoding=wanted)
    body: dict[str, object] = json.loads(encode(request, dialect))
    return body


def read(name: str, **headers: str) -> Completion:
    """Return the completion read from a stored reply."""
    return decode(200, headers, (WIRE / f"{name}.json").read_bytes(), ADAPTIVE)


def test_system_texts_stand_apart_from_the_turns() -> None:
    """The API has no system role; several system messages become one text."""
    assert sent() == {
        "model": "claude-x",
        "max_tokens": 4096,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Go"},
        ],
        "system": "One.\n\nTwo.",
    }


def test_sampling_parameters_are_sent_and_a_seed_is_not() -> None:
    """There is no seed in this API."""
    body = sent(temperature=0.0, top_p=0.5, stop=["END"], seed=3)
    assert (body["temperature"], body["top_p"], body["stop_sequences"]) == (0.0, 0.5, ["END"])
    assert "seed" not in body


@pytest.mark.parametrize(
    ("dialect", "thinking", "spelled"),
    [
        (ADAPTIVE, True, {"type": "adaptive"}),
        (BUDGET, True, {"type": "enabled", "budget_tokens": 2048}),
        (ADAPTIVE, False, {"type": "disabled"}),
        (BUDGET, False, {"type": "disabled"}),
    ],
)
def test_thinking_is_spelled_by_generation(dialect: Dialect, thinking: bool, spelled: dict[str, object]) -> None:
    """Models before 4.6 want a budget below the allowance, later ones reject it."""
    assert sent(dialect, thinking=thinking)["thinking"] == spelled


def test_schema_and_effort_share_one_object() -> None:
    """Both stand under output_config."""
    assert sent(schema='{"type":"object"}', effort="low")["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }
    assert "output_config" not in sent(BUDGET, effort="low")


def test_the_codec_calls_messages() -> None:
    """The path does not depend on the model."""
    assert CODEC.path("any") == "/v1/messages"


def test_cache_tokens_are_added_to_the_prompt() -> None:
    """Anthropic counts them beside input_tokens; we count the whole prompt."""
    completion = read("anthropic_message", **{"request-id": "req_5"})
    assert completion.usage == Usage(
        input_tokens=512, cached_tokens=400, cache_write_tokens=100, output_tokens=30, reasoning_tokens=11
    )
    assert (completion.text, completion.thinking) == ("A tidy studio.", "Stay with the facts.")
    assert (completion.finish, completion.provider_request_id) == (Finish.STOP, "req_5")
    assert completion.model_echo == "claude-opus-4-6-20260415"


def test_a_refusal_is_a_paid_completion_with_its_category() -> None:
    """HTTP 200, empty content, billed prompt."""
    completion = read("anthropic_refusal")
    assert (completion.text, completion.finish, completion.finish_raw) == (
        "",
        Finish.REFUSED,
        "refusal: general_harms",
    )
    assert completion.usage.input_tokens == 12


def test_a_paused_turn_is_kept_as_it_is() -> None:
    """What was generated is paid for; the word tells the reader that it is not an end."""
    assert (read("anthropic_paused").finish, read("anthropic_paused").finish_raw) == (Finish.OTHER, "pause_turn")


def test_an_error_object_with_status_200_is_classified() -> None:
    """It happens behind gateways; the work may have been billed."""
    with pytest.raises(ProviderError) as caught:
        read("anthropic_error")
    assert (caught.value.kind, caught.value.code, caught.value.maybe_billed) == (
        ErrorClass.TRANSIENT,
        "overloaded_error",
        True,
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"<html>", b'{"type":"message","content":[]}', b'{"type":"message","stop_reason":"end_turn"}'],
)
def test_a_success_that_is_no_message_may_have_been_billed(body: bytes) -> None:
    """Cut or foreign bodies are tried again."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, body, ADAPTIVE)
    assert (caught.value.code, caught.value.maybe_billed) == ("malformed_reply", True)


def test_an_answer_without_token_counts_stops_the_provider() -> None:
    """Its price is unknown."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, b'{"type":"message","content":[],"stop_reason":"end_turn"}', ADAPTIVE)
    assert caught.value.kind is ErrorClass.QUOTA


@given(st.binary(max_size=400))
def test_no_reply_breaks_the_reader(body: bytes) -> None:
    """Whatever arrives becomes a completion or a ProviderError."""
    with pytest.raises(ProviderError):
        decode(200, {}, body, ADAPTIVE)
