"""Parameters that a model cannot be given are changed when a sweep is planned, and every change is on record."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Decoding
from providers.adapt import adapt
from providers.card import Change, ModelCard, Rule
from providers.catalog import load_catalog
from providers.dialect import DIALECTS

CATALOG = load_catalog()
PAPER = Decoding(max_tokens=1024, temperature=0.7)


def card(dialect: str = "compatible", *rules: Rule, max_output: int | None = None) -> ModelCard:
    """Return a card with these rules."""
    return ModelCard(
        alias="a",
        label="A",
        family="F",
        provider="p",
        model="m",
        dialect_name=dialect,
        dialect=DIALECTS[dialect],
        rules=rules,
        max_output=max_output,
    )


def rule(parameter: str, action: str, **more: object) -> Rule:
    """Return a rule as the catalogue file would hold it."""
    return msgspec.convert({"parameter": parameter, "action": action, "why": "because"} | more, Rule)


@pytest.mark.parametrize(
    ("alias", "decoding", "temperature"),
    [
        ("gpt-5.5", {}, None),
        ("gpt-5.5", {"effort": "none"}, 0.7),
        ("gpt-5.5", {"thinking": False}, 0.7),
        ("gpt-5.5", {"effort": "low"}, None),
        ("gpt-5.4-nano", {}, None),
        ("gpt-4o-mini", {}, 0.7),
        ("claude-opus-4-6", {}, 0.7),
        ("claude-opus-4-6", {"thinking": True}, None),
        ("claude-opus-4-6", {"temperature": 1.4}, 1.0),
        ("claude-opus-4-7", {}, None),
        ("gemini-3.1-pro", {}, 0.7),
        ("deepseek-v4-pro", {}, None),
        ("deepseek-v4-pro", {"thinking": False}, 0.7),
        ("deepseek-v4-flash", {"thinking": True}, None),
        ("qwen3.6-plus", {}, 0.7),
        ("qwen3-8b", {}, 0.7),
        ("glm-5.1", {}, 0.7),
        ("glm-5.1", {"temperature": 0.0}, 0.01),
        ("glm-5.1", {"temperature": 1.0}, 0.99),
        ("kimi-k2.5", {}, None),
        ("smollm2-135m", {}, 0.7),
    ],
)
def test_each_model_gets_the_temperature_it_accepts(
    alias: str, decoding: dict[str, object], temperature: float | None
) -> None:
    """The paper asks for 0.7 everywhere; what is really sent is known and recorded."""
    wanted = msgspec.convert(msgspec.to_builtins(PAPER) | decoding, Decoding)
    used, changes = adapt(CATALOG.card(alias), wanted)
    assert used.temperature == temperature
    recorded = [change.used for change in changes if change.parameter == "temperature"]
    assert recorded == ([] if temperature == wanted.temperature else [temperature])


def test_a_dropped_parameter_says_why() -> None:
    """Wanted, used and the reason are kept together, and can be stored."""
    _, changes = adapt(CATALOG.card("claude-opus-4-7"), PAPER)
    assert changes == (Change(parameter="temperature", wanted=0.7, used=None, why="rejected from Claude Opus 4.7 on"),)
    assert msgspec.json.decode(msgspec.json.encode(changes), type=tuple[Change, ...]) == changes


def test_qwen_always_states_its_thinking_mode() -> None:
    """The provider's default is made explicit; an explicit wish stays."""
    used, changes = adapt(CATALOG.card("qwen3.6-plus"), PAPER)
    assert used.thinking is True
    assert [(change.parameter, change.wanted, change.used) for change in changes] == [("thinking", None, True)]
    assert adapt(CATALOG.card("qwen3.6-plus"), Decoding(max_tokens=9, thinking=False))[1] == ()


@pytest.mark.parametrize(
    ("dialect", "switch", "effort"),
    [("openai", False, "none"), ("openai", True, "medium"), ("gemini", False, "minimal"), ("gemini", True, "high")],
)
def test_a_switch_becomes_an_effort_where_there_is_none(dialect: str, switch: bool, effort: str) -> None:
    """The respelling is recorded."""
    used, changes = adapt(card(dialect), Decoding(max_tokens=9, thinking=switch))
    assert (used.thinking, used.effort) == (None, effort)
    assert [(change.wanted, change.used) for change in changes] == [(switch, f"effort={effort}")]


def test_an_explicit_effort_beats_the_switch() -> None:
    """Both given: the finer word counts."""
    assert adapt(card("openai"), Decoding(max_tokens=9, thinking=True, effort="low"))[0].effort == "low"


@pytest.mark.parametrize(
    ("dialect", "decoding", "parameter"),
    [
        ("anthropic", {"seed": 1}, "seed"),
        ("deepseek", {"seed": 1}, "seed"),
        ("dashscope", {"effort": "low"}, "effort"),
        ("compatible", {"thinking": True}, "thinking"),
        ("openai-plain", {"thinking": False}, "thinking"),
        ("anthropic-budget", {"thinking": True}, "thinking"),
    ],
)
def test_what_an_api_cannot_express_is_dropped(dialect: str, decoding: dict[str, object], parameter: str) -> None:
    """Seeds, efforts and switches that a dialect has no word for."""
    used, changes = adapt(card(dialect), msgspec.convert({"max_tokens": 1024} | decoding, Decoding))
    assert getattr(used, parameter) is None
    assert [change.parameter for change in changes] == [parameter]


def test_a_weaker_binding_is_noted_and_the_schema_kept() -> None:
    """DeepSeek can be bound to JSON only; the adapter still needs to know that a schema is wanted."""
    used, changes = adapt(card("deepseek"), Decoding(max_tokens=9, schema="{}"))
    assert used.schema == "{}"
    assert [(change.wanted, change.used) for change in changes] == [("json_schema", "json_object")]


def test_stop_strings_beyond_the_limit_are_cut() -> None:
    """Zhipu takes one."""
    used, changes = adapt(card("zhipu"), Decoding(max_tokens=9, stop=("a", "b")))
    assert used.stop == ("a",)
    assert [(change.wanted, change.used) for change in changes] == [('["a","b"]', '["a"]')]


def test_dropped_stop_strings_leave_none() -> None:
    """Reasoning models of OpenAI take none at all."""
    used, changes = adapt(CATALOG.card("gpt-5.5"), Decoding(max_tokens=9, stop=("a",)))
    assert used.stop == ()
    assert [change.parameter for change in changes] == ["stop"]


def test_the_allowance_is_cut_to_what_the_model_can_produce() -> None:
    """A larger one would be rejected, and would reserve money for nothing."""
    used, changes = adapt(CATALOG.card("gpt-4o-mini"), Decoding(max_tokens=100_000))
    assert used.max_tokens == 16_384
    assert [(change.wanted, change.used) for change in changes] == [(100_000, 16_384)]


def test_a_word_can_be_renamed() -> None:
    """Only words that are listed change."""
    words = card("deepseek", rule("effort", "rename", words={"minimal": "low"}))
    assert adapt(words, Decoding(max_tokens=9, effort="minimal"))[0].effort == "low"
    assert adapt(words, Decoding(max_tokens=9, effort="max"))[1] == ()


def test_rules_see_what_earlier_rules_made() -> None:
    """Order counts: a filled value can trigger the next rule."""
    both = card("deepseek", rule("thinking", "fill", value=True), rule("temperature", "drop", when={"thinking": True}))
    assert adapt(both, PAPER)[0].temperature is None


def test_unset_parameters_are_not_clamped() -> None:
    """The provider's default stays the provider's."""
    assert adapt(CATALOG.card("glm-5.1"), Decoding(max_tokens=9)) == (Decoding(max_tokens=9), ())


DECODINGS = st.builds(
    Decoding,
    max_tokens=st.integers(1, 1_000_000),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(0, 9),
    stop=st.lists(st.sampled_from(["a", "END", "\n"]), max_size=6).map(tuple),
    schema=st.none() | st.just("{}"),
    thinking=st.none() | st.booleans(),
    effort=st.none() | st.sampled_from(["none", "low", "high"]),
)


@given(DECODINGS, st.sampled_from(sorted(CATALOG.cards)))
def test_adapting_again_changes_nothing(decoding: Decoding, alias: str) -> None:
    """What was adapted is acceptable."""
    once, _ = adapt(CATALOG.card(alias), decoding)
    assert adapt(CATALOG.card(alias), once)[0] == once


@given(DECODINGS, st.sampled_from(sorted(CATALOG.cards)))
def test_every_difference_is_on_record(decoding: Decoding, alias: str) -> None:
    """No parameter changes in silence; effort may stand in for thinking."""
    used, changes = adapt(CATALOG.card(alias), decoding)
    named = {change.parameter for change in changes}
    changed = {name for name in Decoding.__struct_fields__ if getattr(used, name) != getattr(decoding, name)}
    assert changed <= named | ({"effort"} if "thinking" in named else set())


@pytest.mark.parametrize(
    ("dialect", "switch", "asked", "expected"),
    [
        pytest.param("in-process", True, {}, {"thinking": True}, id="a switch"),
        pytest.param("in-process", True, {"thinking": False}, {"thinking": False}, id="the sweep's own word wins"),
        pytest.param("openai", False, {}, {"effort": "none"}, id="an effort word where there is no switch"),
        pytest.param("openai", False, {"effort": "high"}, {"effort": "high"}, id="the sweep's own effort wins"),
        pytest.param("in-process", None, {}, {}, id="the model's own default"),
    ],
)
def test_the_card_says_whether_a_model_thinks(
    dialect: str, switch: bool | None, asked: dict[str, object], expected: dict[str, object]
) -> None:
    """Only where the sweep leaves it open, and with a record of it."""
    thinking = msgspec.structs.replace(card(dialect), thinking=switch)
    wanted = msgspec.structs.replace(PAPER, **asked)
    used, changes = adapt(thinking, wanted)
    assert used == msgspec.structs.replace(PAPER, **expected)
    assert bool(changes) is (used != wanted)
    assert adapt(thinking, used)[0] == used
