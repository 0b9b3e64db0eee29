"""Whatever a client or a model writes, the simulator answers or refuses; it never breaks."""

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.simulator.answers import Speaker, render
from bench.simulator.anthropic import Anthropic
from bench.simulator.dialects import DashScope, DeepSeek, Moonshot, Zhipu
from bench.simulator.gemini import Gemini
from bench.simulator.openai import OpenAI
from bench.simulator.recognise import recognise
from bench.simulator.wire import Rejected, Wire, parse

WORDS = st.sampled_from(
    ["user", "model", "system", "object", "json_schema", "enabled", "array", "text", "gpt-5.5", "claude-opus-4-7", "a"]
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | WORDS | st.text(max_size=8)
)
NAMES = st.sampled_from(
    ["role", "content", "type", "text", "parts", "schema", "json_schema", "name", "strict", "properties", "required"]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
TURNS = st.lists(st.fixed_dictionaries({"role": WORDS, "content": VALUES}), min_size=1, max_size=2)
FIELDS = st.sampled_from(
    [
        "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed", "response_format", "thinking",
        "enable_thinking", "reasoning_effort", "stream_options", "system", "systemInstruction", "generationConfig",
        "output_config", "request_id", "contents", "messages",
    ]
)  # fmt: skip
BODIES = st.builds(
    lambda base, more: base | more,
    st.fixed_dictionaries({"model": WORDS, "messages": TURNS, "max_tokens": st.just(9), "contents": TURNS}),
    st.dictionaries(FIELDS, VALUES, max_size=4),
)
CALLS: list[tuple[Wire, str]] = [
    (Anthropic(), "/v1/messages"),
    (Gemini(), "/v1beta/models/gemini-3:generateContent"),
    *((wire, "/chat/completions") for wire in (OpenAI(), DeepSeek(), DashScope(), Zhipu(), Moonshot())),
]


@pytest.mark.parametrize(("wire", "path"), CALLS, ids=[wire.name for wire, _ in CALLS])
@given(body=BODIES)
@settings(max_examples=60)
def test_any_json_is_understood_or_refused(wire: Wire, path: str, body: dict[str, Any]) -> None:
    """No field can hold a value that ends in anything but a call or a 4xx."""
    with suppress(Rejected):
        call = wire.read(path, {"anthropic-version": "2023-06-01"}, parse(orjson.dumps(body)))
        assert call.allowance is None or call.allowance > 0
        assert all(isinstance(text, str) for text in (call.system, call.user, *call.texts))


PIECES = st.sampled_from(
    [
        "Current memory of the user:", "{observed: [", '"x"]', "}", "New user message (round 9999999):", '"hi"\n\n',
        "Update the memory", "## AI Response to Evaluate", "Your response was:", '"""', "\n## Instructions", "dating",
        "dating profile bio", ", in an amber, brisk, coastal way", ", in a teal, steady, western way",
        "[[[", "\x00", "é",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join)


@given(system=TEXTS, user=TEXTS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_prompt_is_answered_and_always_alike(system: str, user: str, speaker: Speaker) -> None:
    """Whatever marks it holds, in whatever order."""
    first, second = (render(speaker.say("gpt-5.5", system, user), None) for _ in range(2))
    assert first == second
    assert recognise(system, user) == recognise(system, user)
