"""Gemini generateContent: what is sent, what is read."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, Usage, chat
from providers.dialect import DIALECTS, Dialect
from providers.gemini import CODEC, decode, encode

WIRE = Path(__file__).parent / "wire"
LEVEL, BUDGET = DIALECTS["gemini"], DIALECTS["gemini-budget"]


def sent(dialect: Dialect = LEVEL, **decoding: object) -> dict[str, object]:
    """Return the body that is sent for a decoding."""
    wanted = msgspec.convert({"max_tokens": 256} | decoding, Decoding)
    turns = chat((Role.SYSTEM, "One."), (Role.USER, "Hi"), (Role.ASSISTANT, "Yes?"), (Role.USER, "Go"))
    request = Request(provider="gemini", model="g", messages=turns, decoding=wanted)
    body: dict[str, object] = json.loads(encode(request, dialect))
    return body


def read(name: str) -> Completion:
    """Return the completion read from a stored reply."""
    return decode(200, {}, (WIRE / f"{name}.json").read_bytes(), LEVEL)


def test_roles_and_texts_become_contents() -> None:
    """The assistant is called model, the system text stands apart."""
    assert sent() == {
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"text": "Yes?"}]},
            {"role": "user", "parts": [{"text": "Go"}]},
        ],
        "generationConfig": {"maxOutputTokens": 256},
        "systemInstruction": {"parts": [{"text": "One."}]},
    }


def test_generation_settings_are_spelled_in_camel_case() -> None:
    """Sampling, stop strings, seed and schema."""
    config = sent(temperature=0.7, top_p=0.9, seed=5, stop=list("abcdefg"), schema='{"type":"object"}')[
        "generationConfig"
    ]
    assert config == {
        "maxOutputTokens": 256,
        "temperature": 0.7,
        "topP": 0.9,
        "seed": 5,
        "stopSequences": list("abcde"),
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }


@pytest.mark.parametrize(
    ("dialect", "decoding", "spelled"),
    [
        (LEVEL, {"effort": "high"}, {"thinkingLevel": "HIGH"}),
        (BUDGET, {"thinking": False}, {"thinkingBudget": 0}),
        (BUDGET, {"thinking": True}, {"thinkingBudget": -1}),
    ],
)
def test_thinking_is_spelled_by_generation(
    dialect: Dialect, decoding: dict[str, object], spelled: dict[str, object]
) -> None:
    """Level and budget exclude each other."""
    config = sent(dialect, **decoding)["generationConfig"]
    assert isinstance(config, dict)
    assert config["thinkingConfig"] == spelled


@pytest.mark.parametrize("model", ["gemini-3-flash", "models/gemini-3-flash"])
def test_the_model_stands_in_the_path(model: str) -> None:
    """With or without Google's prefix."""
    assert CODEC.path(model) == "/models/gemini-3-flash:generateContent"


def test_a_model_name_cannot_leave_its_place_in_the_path() -> None:
    """Slashes and question marks are quoted."""
    assert CODEC.path("../x?y") == "/models/..%2Fx%3Fy:generateContent"


def test_thoughts_are_part_of_the_output() -> None:
    """Gemini counts them apart from candidates and bills both."""
    completion = read("gemini_thoughts")
    assert completion.usage == Usage(input_tokens=8, cached_tokens=4, output_tokens=840, reasoning_tokens=829)
    assert (completion.text, completion.thinking) == ("A loft by the river.", "Weighing it.")
    assert (completion.finish, completion.provider_request_id) == (Finish.STOP, "r-77")
    assert completion.model_echo == "gemini-3-flash-preview-2026-04"


def test_thinking_that_uses_the_whole_allowance_leaves_no_text() -> None:
    """Parts may be absent altogether."""
    completion = read("gemini_cut")
    assert (completion.text, completion.finish, completion.usage.output_tokens) == ("", Finish.TRUNCATED, 64)


@pytest.mark.parametrize(
    ("name", "word"), [("gemini_prompt_blocked", "prompt blocked: PROHIBITED_CONTENT"), ("gemini_safety", "SAFETY")]
)
def test_a_blocked_answer_is_a_filtered_completion(name: str, word: str) -> None:
    """With and without a candidate."""
    completion = read(name)
    assert (completion.text, completion.finish, completion.finish_raw) == ("", Finish.FILTERED, word)


def test_a_block_without_token_counts_is_a_content_error() -> None:
    """There is nothing to price; the request is over, the provider is not."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, b'{"promptFeedback":{"blockReason":"SAFETY"}}', LEVEL)
    assert caught.value.kind is ErrorClass.CONTENT


def test_an_error_inside_a_success_is_classified() -> None:
    """By its status word."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, b'{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}', LEVEL)
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.RATE, True)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"candidates":[]}', b"[]", b'{"candidates":[{"content":{"parts":[{"text"']
)
def test_a_success_that_is_no_answer_may_have_been_billed(body: bytes) -> None:
    """Cut or foreign bodies are tried again."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, body, LEVEL)
    assert (caught.value.code, caught.value.maybe_billed) == ("malformed_reply", True)


def test_an_answer_without_token_counts_stops_the_provider() -> None:
    """Its price is unknown."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, b'{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}]}', LEVEL)
    assert (caught.value.kind, caught.value.code) == (ErrorClass.QUOTA, "usage_missing")


@given(st.binary(max_size=400))
def test_no_reply_breaks_the_reader(body: bytes) -> None:
    """Whatever arrives becomes a completion or a ProviderError."""
    with pytest.raises(ProviderError):
        decode(200, {}, body, LEVEL)
