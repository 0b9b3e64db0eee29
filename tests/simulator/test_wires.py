"""Wire formats without a socket: what each endpoint refuses, how it words trouble, how it counts."""

import json
from collections.abc import Mapping

import pytest

from bench.simulator.anthropic import Anthropic
from bench.simulator.dialects import DashScope, DeepSeek, Moonshot, Zhipu
from bench.simulator.faults import CHARGED, Fault
from bench.simulator.gemini import Gemini
from bench.simulator.limits import Limit, Standing
from bench.simulator.openai import OpenAI, duration
from bench.simulator.wire import Answer, Finish, Json, Rejected, Tag, Trouble, Wire
from engine.request import Usage

TAG = Tag("0" * 24, 1_796_000_000)
CHAT = "/chat/completions"
MESSAGES = "/v1/messages"
GENERATE = "/v1beta/models/gemini-3-flash-preview:generateContent"
VERSION = {"anthropic-version": "2023-06-01"}
WIRES: tuple[Wire, ...] = (OpenAI(), Anthropic(), Gemini(), DeepSeek(), DashScope(), Zhipu(), Moonshot())
STRICT_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def chat(model: str, **more: object) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]} | more


def schema(**more: object) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": STRICT_SCHEMA | more}}


def message(model: str, **more: object) -> Json:
    return {"model": model, "max_tokens": 2000, "messages": [{"role": "user", "content": "hello"}]} | more


def generate(**more: object) -> Json:
    return {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]} | more


@pytest.mark.parametrize(
    ("wire", "body", "param"),
    [
        pytest.param(OpenAI(), {"messages": []}, None, id="no model"),
        pytest.param(OpenAI(), chat("gpt-4o-mini", messages=[]), "messages", id="no messages"),
        pytest.param(OpenAI(), chat("gpt-5.5", max_tokens=5), "max_tokens", id="old allowance on a reasoning model"),
        pytest.param(OpenAI(), chat("gpt-5-mini", temperature=0.7), "temperature", id="temperature on gpt-5-mini"),
        pytest.param(OpenAI(), chat("gpt-5.5", temperature=0.7), "temperature", id="temperature with reasoning"),
        pytest.param(OpenAI(), chat("gpt-4o-mini", temperature=3), "temperature", id="too hot"),
        pytest.param(OpenAI(), chat("gpt-5.5", stop="x"), "stop", id="stop on a reasoning model"),
        pytest.param(OpenAI(), chat("gpt-4o-mini", stop=list("abcde")), "stop", id="five stops"),
        pytest.param(
            OpenAI(), chat("gpt-4o-mini", response_format=schema(required=[])), "response_format", id="loose schema"
        ),
        pytest.param(DeepSeek(), chat("deepseek-flash", response_format=schema()), "response_format", id="no schemas"),
        pytest.param(
            DeepSeek(), chat("deepseek-flash", response_format={"type": "json_object"}), "messages", id="no word json"
        ),
        pytest.param(DashScope(), chat("qwen3.6-plus", seed=-1), "seed", id="negative seed"),
        pytest.param(DashScope(), chat("qwen3-8b"), None, id="open model thinking without a stream"),
        pytest.param(Zhipu(), chat("glm-5.1", temperature=0), None, id="zero temperature"),
        pytest.param(Zhipu(), chat("glm-5.1", temperature=1), None, id="temperature one"),
        pytest.param(Zhipu(), chat("glm-5.1", response_format=schema()), "response_format", id="no schemas at zhipu"),
        pytest.param(Moonshot(), chat("kimi-k2.6", temperature=0.7), "temperature", id="fixed sampling"),
    ],
)
def test_chat_endpoints_refuse_what_the_real_ones_refuse(wire: OpenAI, body: Json, param: str | None) -> None:
    """With the parameter's name where the endpoint gives one."""
    with pytest.raises(Rejected) as caught:
        wire.read(CHAT, {}, body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        pytest.param(
            OpenAI(), chat("gpt-5.5", temperature=0.7, reasoning_effort="none"), id="temperature, no reasoning"
        ),
        pytest.param(OpenAI(), chat("gpt-4o-mini", temperature=0.7, max_tokens=9), id="older model"),
        pytest.param(OpenAI(), chat("gpt-5.5", response_format=schema()), id="strict schema"),
        pytest.param(DashScope(), chat("qwen3-8b", enable_thinking=False), id="open model without thinking"),
        pytest.param(Moonshot(), chat("kimi-k2.6", temperature=1), id="default temperature"),
        pytest.param(Zhipu(), chat("glm-5.1", temperature=0.7), id="temperature inside"),
    ],
)
def test_chat_endpoints_take_what_the_real_ones_take(wire: OpenAI, body: Json) -> None:
    """The neighbours of the refused ones."""
    assert wire.read(CHAT, {}, body).model == body["model"]


def test_a_lenient_endpoint_takes_any_parameter() -> None:
    """`strict = false` is for clients that are not under test."""
    assert OpenAI(strict=False).read(CHAT, {}, chat("gpt-5.5", temperature=0.7)).model == "gpt-5.5"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        pytest.param(message("claude-opus-4-7", temperature=0), VERSION, id="temperature on a new model"),
        pytest.param(
            message("claude-opus-4-6", temperature=0),
            {"anthropic-version": "2026-10-21"},
            id="temperature, new version",
        ),
        pytest.param(message("claude-opus-4-6"), {}, id="no version"),
        pytest.param(message("claude-opus-4-6", max_tokens=None), VERSION, id="no allowance"),
        pytest.param(message("claude-opus-4-6", seed=1), VERSION, id="seed"),
        pytest.param(
            message("claude-opus-4-6", messages=[{"role": "system", "content": "x"}]), VERSION, id="system as a message"
        ),
        pytest.param(
            message("claude-opus-4-6", messages=[{"role": "assistant", "content": "x"}]), VERSION, id="prefill"
        ),
        pytest.param(
            message("claude-opus-4-7", thinking={"type": "enabled", "budget_tokens": 1024}), VERSION, id="budget"
        ),
        pytest.param(
            message("claude-haiku-4-5", thinking={"type": "adaptive"}), VERSION, id="adaptive on an old model"
        ),
        pytest.param(
            message("claude-haiku-4-5", thinking={"type": "enabled", "budget_tokens": 9}), VERSION, id="small budget"
        ),
    ],
)
def test_messages_refuses_what_the_real_one_refuses(body: Json, headers: Mapping[str, str]) -> None:
    """As a 400 with a reason."""
    with pytest.raises(Rejected, match=r".+"):
        Anthropic().read(MESSAGES, headers, body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="no contents"),
        pytest.param(generate(generationConfig={"maxOutputTokens": 0}), id="no room"),
        pytest.param(
            generate(generationConfig={"thinkingConfig": {"thinkingBudget": 0, "thinkingLevel": "LOW"}}), id="two"
        ),
        pytest.param(generate(generation_config={"temperature": 5}), id="too hot, in snake case"),
    ],
)
def test_generate_content_refuses_what_the_real_one_refuses(body: Json) -> None:
    """As INVALID_ARGUMENT."""
    with pytest.raises(Rejected, match=r".+"):
        Gemini().read(GENERATE, {}, body)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in CHARGED and fault is not Fault.DROP_BEFORE])
def test_every_wire_has_words_for_every_error(wire: Wire, fault: Fault) -> None:
    """An error status, a body that is JSON unless a proxy wrote it, and no hint where none was asked for."""
    reply = wire.trouble(Trouble(fault=fault, model="m"), TAG)
    assert reply.status >= 400
    assert "retry-after" not in reply.headers
    if fault is Fault.BAD_GATEWAY:
        assert (reply.content_type, reply.body[:6]) == ("text/html", b"<html>")
    else:
        assert "error" in json.loads(reply.body)


@pytest.mark.parametrize("wire", [OpenAI(), Anthropic()], ids=lambda wire: wire.name)
def test_hints_are_whole_seconds_rounded_up(wire: Wire) -> None:
    """A client that waits so long comes late enough."""
    trouble = Trouble(fault=Fault.RATE_LIMITED, retry_after=2.1)
    assert wire.trouble(trouble, TAG).headers["retry-after"] == "3"


def test_gemini_tells_the_moment_and_the_quota_in_details() -> None:
    """RetryInfo as a duration, QuotaFailure with the minute's quota."""
    trouble = Trouble(fault=Fault.RATE_LIMITED, retry_after=33.5, model="gemini-3-flash")
    details = json.loads(Gemini().trouble(trouble, TAG).body)["error"]["details"]
    assert details[1]["retryDelay"] == "33.5s"
    assert "PerMinute" in details[0]["violations"][0]["quotaId"]


def test_a_used_up_day_at_gemini_names_the_day_and_no_moment() -> None:
    """Only the calendar helps."""
    trouble = Trouble(fault=Fault.QUOTA, limit=Limit.DAY, retry_after=9.0)
    details = json.loads(Gemini().trouble(trouble, TAG).body)["error"]["details"]
    assert ["PerDay" in details[0]["violations"][0]["quotaId"], len(details)] == [True, 1]


USAGE = Usage(input_tokens=100, cached_tokens=64, output_tokens=30, reasoning_tokens=10)
ANSWER = Answer(text="hello", finish=Finish.STOP, usage=USAGE, thinking="hm")


def test_anthropic_counts_cached_tokens_beside_the_others() -> None:
    """100 tokens of prompt, 64 of them cached, are 36 and 64."""
    call = Anthropic().read(MESSAGES, VERSION, message("claude-opus-4-6"))
    usage = json.loads(Anthropic().write(call, ANSWER, TAG).body)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (36, 64, 30)


def test_gemini_counts_thoughts_beside_candidates() -> None:
    """30 tokens of output, 10 of them thought, are 20 and 10."""
    call = Gemini().read(GENERATE, {}, generate())
    usage = json.loads(Gemini().write(call, ANSWER, TAG).body)["usageMetadata"]
    assert (usage["promptTokenCount"], usage["candidatesTokenCount"], usage["thoughtsTokenCount"]) == (100, 20, 10)
    assert usage["totalTokenCount"] == 130


def test_deepseek_sends_blank_lines_first_and_splits_hits_from_misses() -> None:
    """Readers must strip white space; hits and misses sum to the prompt."""
    call = DeepSeek().read(CHAT, {}, chat("deepseek-flash"))
    body = DeepSeek().write(call, ANSWER, TAG).body
    usage = json.loads(body)["usage"]
    assert body.startswith(b"\n")
    assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"] == 100


@pytest.mark.parametrize("wire", [DeepSeek(), DashScope(), Zhipu(), Moonshot()], ids=lambda wire: wire.name)
def test_dialects_show_their_reasoning(wire: OpenAI) -> None:
    """As `reasoning_content` beside the content."""
    call = wire.read(CHAT, {}, chat("model"))
    shown = json.loads(wire.write(call, ANSWER, TAG).body)["choices"][0]["message"]
    assert (shown["content"], shown["reasoning_content"]) == ("hello", "hm")


@pytest.mark.parametrize(
    ("wire", "finish", "word"),
    [
        (OpenAI(), Finish.FILTERED, "content_filter"),
        (OpenAI(), Finish.LENGTH, "length"),
        (DeepSeek(), Finish.INTERRUPTED, "insufficient_system_resource"),
        (Zhipu(), Finish.FILTERED, "sensitive"),
        (Zhipu(), Finish.INTERRUPTED, "network_error"),
    ],
)
def test_chat_dialects_have_their_own_words_for_the_end(wire: OpenAI, finish: Finish, word: str) -> None:
    """`finish_reason` differs by provider."""
    call = wire.read(CHAT, {}, chat("model"))
    body = json.loads(wire.write(call, Answer(text="x", finish=finish, usage=USAGE), TAG).body)
    assert body["choices"][0]["finish_reason"] == word


def test_zhipu_repeats_the_id_that_the_client_chose() -> None:
    """The nearest thing to an idempotency key there."""
    call = Zhipu().read(CHAT, {}, chat("glm-5.1", request_id="mine-1"))
    assert json.loads(Zhipu().write(call, ANSWER, TAG).body)["request_id"] == "mine-1"


def test_zhipu_words_errors_as_digits() -> None:
    """Also when the refusal has another code."""
    assert json.loads(Zhipu().reject(Rejected("x", code="invalid"), TAG).body)["error"]["code"] == "1214"
    assert json.loads(Zhipu().trouble(Trouble(fault=Fault.QUOTA), TAG).body)["error"]["code"] == "1113"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0s"), (0.012, "12ms"), (8.64, "8.64s"), (103.053, "1m43.053s"), (360.0, "6m0s")]
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    """Recorded forms."""
    assert duration(seconds) == text


def test_anthropic_resets_are_moments_and_tokens_are_rounded() -> None:
    """RFC 3339 with whole seconds; thousands."""
    standing = {Limit.INPUT_TOKENS: Standing(50_000, 42_345, 9.2)}
    headers = Anthropic().headers(TAG, standing, 1_796_000_000.0)
    assert headers["anthropic-ratelimit-input-tokens-remaining"] == "42000"
    assert headers["anthropic-ratelimit-input-tokens-reset"] == "2026-11-30T00:53:30Z"


def test_only_the_last_user_turn_is_asked_and_all_turns_are_counted() -> None:
    """A conversation's earlier turns are prompt, not question."""
    turns: list[Json] = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    turns[-1] = {"role": "user", "content": [{"type": "text", "text": "last"}]}
    call = OpenAI().read(CHAT, {}, chat("gpt-4o-mini", messages=turns))
    assert (call.system, call.user, len(call.texts)) == ("system", "last", 4)
