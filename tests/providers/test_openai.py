"""Chat completions: what is sent in each dialect, what is read from each provider's reply."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Role, Usage, chat
from providers.dialect import DIALECTS, Dialect, Structured
from providers.openai import CODEC, decode, encode

WIRE = Path(__file__).parent / "wire"
OPENAI, PLAIN, DEEPSEEK = DIALECTS["openai"], DIALECTS["openai-plain"], DIALECTS["deepseek"]
SCHEMA = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
TURNS = chat(
    (Role.SYSTEM, "Be brief."), (Role.USER, 'Answer in JSON: "ü"?'), (Role.ASSISTANT, "{}"), (Role.USER, "Go.")
)


def sent(dialect: Dialect, **decoding: object) -> dict[str, object]:
    """Return the body that a dialect sends for a decoding."""
    wanted = msgspec.convert({"max_tokens": 64} | decoding, Decoding)
    request = Request(provider="p", model="m-1", messages=TURNS, decoding=wanted)
    body: dict[str, object] = json.loads(encode(request, dialect))
    return body


def read(name: str, dialect: Dialect = OPENAI, *, prefix: bytes = b"", **headers: str) -> Completion:
    """Return the completion read from a stored reply."""
    return decode(200, headers, prefix + (WIRE / f"{name}.json").read_bytes(), dialect)


def refused(body: bytes, dialect: Dialect = OPENAI) -> ProviderError:
    """Return the error that a 200 reply leads to."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {"content-type": "application/json"}, body, dialect)
    return caught.value


def test_a_request_carries_model_turns_and_allowance() -> None:
    """The smallest body; nothing that was not asked for is sent, streaming included."""
    assert sent(OPENAI) == {
        "model": "m-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": 'Answer in JSON: "ü"?'},
            {"role": "assistant", "content": "{}"},
            {"role": "user", "content": "Go."},
        ],
        "max_completion_tokens": 64,
    }


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("openai", "max_completion_tokens"),
        ("kimi", "max_completion_tokens"),
        ("deepseek", "max_tokens"),
        ("dashscope", "max_tokens"),
        ("zhipu", "max_tokens"),
        ("vllm-server", "max_tokens"),
        ("compatible", "max_tokens"),
    ],
)
def test_each_dialect_names_the_allowance_its_way(name: str, field: str) -> None:
    """OpenAI's newer models reject the old name, others do not know the new one."""
    body = sent(DIALECTS[name])
    assert body[field] == 64
    assert len({"max_tokens", "max_completion_tokens"} & body.keys()) == 1


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("dashscope", {"enable_thinking": True}, {"enable_thinking": False}),
        ("deepseek", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        ("zhipu", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        ("kimi", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
        (
            "vllm-server",
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ("compatible", {}, {}),
    ],
)
def test_each_dialect_spells_the_thinking_switch(name: str, on: dict[str, object], off: dict[str, object]) -> None:
    """Unset sends nothing; a dialect without a switch never sends one."""
    plain = sent(DIALECTS[name])
    assert sent(DIALECTS[name], thinking=True) == plain | on
    assert sent(DIALECTS[name], thinking=False) == plain | off


def test_sampling_parameters_are_sent() -> None:
    """Temperature, nucleus, seed, stop and effort stand under their own names."""
    body = sent(OPENAI, temperature=0.0, top_p=0.9, seed=7, stop=["\n", "END"], effort="none")
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"], body["reasoning_effort"]) == (
        0.0,
        0.9,
        7,
        ["\n", "END"],
        "none",
    )


def test_what_a_dialect_has_no_word_for_is_not_sent() -> None:
    """DeepSeek has no seed, the plain dialect no effort."""
    assert "seed" not in sent(DEEPSEEK, seed=7)
    assert "reasoning_effort" not in sent(PLAIN, effort="low")
    assert sent(DIALECTS["zhipu"], stop=["a", "b"])["stop"] == ["a"]


def test_a_schema_is_sent_as_it_is() -> None:
    """The schema's text is embedded, named and strict where strictness exists."""
    assert sent(OPENAI, schema=SCHEMA)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": json.loads(SCHEMA), "strict": True},
    }
    assert "strict" not in str(sent(DIALECTS["vllm-server"], schema=SCHEMA))


def test_a_dialect_without_schemas_asks_for_any_object() -> None:
    """DeepSeek and Zhipu bind answers to JSON, not to a schema."""
    assert sent(DEEPSEEK, schema=SCHEMA)["response_format"] == {"type": "json_object"}
    assert "response_format" not in sent(msgspec.structs.replace(OPENAI, structured=Structured.NONE), schema=SCHEMA)


def test_an_object_binding_needs_the_word_json_in_the_prompt() -> None:
    """The provider would answer with an error or with endless white space; nothing is sent instead."""
    request = Request(
        provider="p",
        model="m",
        messages=chat((Role.USER, "Describe it.")),
        decoding=Decoding(max_tokens=9, schema=SCHEMA),
    )
    with pytest.raises(ProviderError, match="json") as caught:
        encode(request, DEEPSEEK)
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.BAD_REQUEST, False)


def test_text_that_is_not_unicode_is_refused_before_sending() -> None:
    """Half a surrogate pair cannot be written as JSON."""
    decoding = Decoding(max_tokens=9, stop=("\ud83d",))
    request = Request(provider="p", model="m", messages=TURNS, decoding=decoding)
    with pytest.raises(ProviderError) as caught:
        encode(request, OPENAI)
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.BAD_REQUEST, False)


def test_the_codec_calls_chat_completions() -> None:
    """The path does not depend on the model."""
    assert CODEC.path("any") == "/chat/completions"


def test_a_completion_is_read_whole() -> None:
    """Text, finish, usage with its parts, the model's own name, the request id, the bytes as they came."""
    raw = (WIRE / "openai_chat.json").read_bytes()
    assert decode(200, {"x-request-id": "req_9"}, raw, OPENAI) == Completion(
        text="A small flat with two bicycles.",
        finish=Finish.STOP,
        finish_raw="stop",
        usage=Usage(input_tokens=120, cached_tokens=64, output_tokens=40, reasoning_tokens=24),
        model_echo="gpt-5.5-2026-06-01",
        provider_request_id="req_9",
        raw=raw,
    )


@pytest.mark.parametrize(
    ("name", "text", "thinking", "finish", "usage"),
    [
        (
            "deepseek_chat",
            "Ein Zimmer.",
            "Keep it short.",
            Finish.STOP,
            Usage(input_tokens=200, cached_tokens=128, output_tokens=30, reasoning_tokens=21),
        ),
        ("qwen_chat", "一间小公寓。", "想一想", Finish.STOP, Usage(input_tokens=90, output_tokens=25)),
        ("glm_sensitive", "", "", Finish.FILTERED, Usage(input_tokens=50)),
        (
            "kimi_chat",
            "Two rooms.",
            "Short.",
            Finish.STOP,
            Usage(input_tokens=80, cached_tokens=48, output_tokens=12),
        ),
        ("vllm_chat", "Paris.", "", Finish.STOP, Usage(input_tokens=38, output_tokens=3)),
        (
            "reasoning_outside",
            "Yes.",
            "",
            Finish.STOP,
            Usage(input_tokens=10, output_tokens=52, reasoning_tokens=50),
        ),
        (
            "openai_cut_while_thinking",
            "",
            "",
            Finish.TRUNCATED,
            Usage(input_tokens=120, output_tokens=64, reasoning_tokens=64),
        ),
        ("openai_refusal", "I will not guess that.", "", Finish.REFUSED, Usage(input_tokens=120, output_tokens=9)),
        ("openai_filtered", "A small", "", Finish.FILTERED, Usage(input_tokens=120, output_tokens=3)),
        ("openai_parts", "A small flat.", "", Finish.STOP, Usage(input_tokens=120, output_tokens=4)),
    ],
)
def test_each_providers_reply_means_the_same(name: str, text: str, thinking: str, finish: Finish, usage: Usage) -> None:
    """Reasoning, finish words and token counts are brought to one meaning."""
    completion = read(name)
    assert (completion.text, completion.thinking, completion.finish, completion.usage) == (
        text,
        thinking,
        finish,
        usage,
    )


def test_the_request_id_falls_back_to_the_body() -> None:
    """Zhipu names it in the body, others give at least the completion's id."""
    assert read("glm_sensitive").provider_request_id == "2026113000-r"
    assert read("kimi_chat").provider_request_id == "chatcmpl-k"


def test_keep_alive_blank_lines_are_skipped() -> None:
    """DeepSeek sends blank lines while a request waits, then the body."""
    assert read("deepseek_chat", DEEPSEEK, prefix=b"\n\n  \r\n\n").text == "Ein Zimmer."


def test_a_completion_that_broke_off_at_the_provider_is_tried_again() -> None:
    """DeepSeek's and Zhipu's own failures arrive as finish reasons; the piece may have been charged."""
    with pytest.raises(ProviderError) as caught:
        read("deepseek_broken_off", DEEPSEEK)
    error = caught.value
    assert (error.kind, error.code, error.maybe_billed) == (
        ErrorClass.TRANSIENT,
        "insufficient_system_resource",
        True,
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw.replace(b"two bicycles", b"two \xff\xfe bicycles"),
        lambda raw: raw.replace(b"two bicycles", b"two \\ud83d bicycles"),
        lambda raw: raw.replace(b"two bicycles", b"two\n\x01bicycles"),
    ],
    ids=["byte-order mark", "invalid utf-8", "half a surrogate pair", "raw control characters"],
)
def test_a_damaged_character_does_not_cost_a_paid_answer(damage: "object") -> None:
    """The answer is kept, the character replaced; the raw bytes stay as they came."""
    raw = damage((WIRE / "openai_chat.json").read_bytes())  # type: ignore[operator]
    completion = decode(200, {}, raw, OPENAI)
    assert completion.text.startswith("A small flat with two")
    assert completion.text.encode("utf-8")
    assert (completion.usage.output_tokens, completion.raw) == (40, raw)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   \n",
        b"<html><body>Welcome to our network, please log in</body></html>",
        b'{"id":"x","choices":[{"index":0,"message":{"role":"assis',
        b"[]",
        b"null",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":null,"error":null}',
        b'{"choices":[{"message":{"content":5}}],"usage":{"prompt_tokens":1}}',
        b"[" * 100_000,
    ],
)
def test_a_success_that_is_no_answer_may_have_been_billed(body: bytes) -> None:
    """A proxy's page, a cut body, another shape: tried again, and counted as perhaps paid."""
    error = refused(body)
    assert (error.kind, error.code, error.maybe_billed) == (ErrorClass.TRANSIENT, "malformed_reply", True)
    assert error.message.isprintable()


def test_an_error_inside_a_success_is_classified() -> None:
    """Some gateways answer 200 with an error object."""
    error = refused(b'{"error":{"message":"out of money","code":"insufficient_quota"}}')
    assert (error.kind, error.maybe_billed) == (ErrorClass.QUOTA, True)


@pytest.mark.parametrize(
    "usage",
    [
        "null",
        "{}",
        '{"prompt_tokens":0,"completion_tokens":5}',
        '{"prompt_tokens":-1,"completion_tokens":5}',
        '{"prompt_tokens":1.5,"completion_tokens":5}',
        '{"prompt_tokens":1e30,"completion_tokens":5}',
        '"twelve"',
    ],
)
def test_an_answer_without_token_counts_stops_the_provider(usage: str) -> None:
    """Its price is unknown, so no second one may be bought; a prompt of no tokens does not exist."""
    error = refused(b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":%s}' % usage.encode())
    assert (error.kind, error.code, error.maybe_billed) == (ErrorClass.QUOTA, "usage_missing", True)
    assert "usage_optional" in error.message


def test_a_free_endpoint_may_leave_token_counts_out() -> None:
    """Counts are zero and the completion says that they are absent."""
    free = msgspec.structs.replace(DIALECTS["compatible"], usage_optional=True)
    completion = decode(200, {}, b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}', free)
    assert (completion.text, completion.finish, completion.usage) == ("x", Finish.STOP, Usage())
    assert completion.finish_raw == "stop; usage absent"


def test_numbers_written_as_text_are_read() -> None:
    """Gateways in other languages write counts as floats or strings."""
    body = b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":12.0,"completion_tokens":"3"}}'
    assert decode(200, {}, body, OPENAI).usage == Usage(input_tokens=12, output_tokens=3)


def test_unknown_finish_words_are_kept() -> None:
    """A new word is no error: the answer is paid for."""
    body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"bored"}],"usage":{"prompt_tokens":1}}'
    completion = decode(200, {}, body, OPENAI)
    assert (completion.finish, completion.finish_raw) == (Finish.OTHER, "bored")


@given(
    st.integers(1, 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
    st.integers(0, 1 << 30),
)
def test_parts_of_usage_never_exceed_their_wholes(
    prompt: int, output: int, cached: int, reasoning: int, written: int
) -> None:
    """Inconsistent counts cannot make a cost negative."""
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    body = json.dumps({"choices": [{"message": {"content": ""}}], "usage": counts}).encode()
    usage = decode(200, {}, body, OPENAI).usage
    assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens == prompt
    assert min(usage.cached_tokens, usage.cache_write_tokens) >= 0
    assert usage.reasoning_tokens <= usage.output_tokens


@given(st.binary(max_size=400))
def test_no_reply_breaks_the_reader(body: bytes) -> None:
    """Whatever arrives that is no answer becomes a ProviderError, never another exception."""
    with pytest.raises(ProviderError) as caught:
        decode(200, {}, body, OPENAI)
    assert caught.value.maybe_billed


def test_an_error_status_is_classified_with_the_dialects_table() -> None:
    """The dialect brings its table."""
    reply = b'{"error":{"message":"m","code":"insufficient_quota"}}'
    for name, kind in (("openai", ErrorClass.QUOTA), ("dashscope", ErrorClass.RATE)):
        with pytest.raises(ProviderError) as caught:
            decode(429, {}, reply, DIALECTS[name])
        assert caught.value.kind is kind
