"""How endpoints differ in spelling one and the same request: one frozen record per dialect, no code.

Sources: the providers' API references as of November 2026 (chat completions of OpenAI, DeepSeek, Alibaba Model Studio,
Zhipu/Z.ai, Moonshot and vLLM; Anthropic Messages; Gemini generateContent). Must not know: keys, prices, transports.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from providers.classify import ErrorTable


class Wire(StrEnum):
    """Which adapter speaks it; IN_PROCESS has no wire at all."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    IN_PROCESS = "in-process"


class Thinking(StrEnum):
    """How the reasoning switch is spelled.

    enable: top-level `enable_thinking`. type: `thinking: {"type": "enabled" | "disabled"}`. effort: no switch, only
    `reasoning_effort`. template: `chat_template_kwargs.enable_thinking`. adaptive, budget: Anthropic's two forms.
    level, tokens: Gemini's `thinkingLevel` and `thinkingBudget`.
    """

    NONE = "none"
    ENABLE = "enable"
    TYPE = "type"
    EFFORT = "effort"
    TEMPLATE = "template"
    ADAPTIVE = "adaptive"
    BUDGET = "budget"
    LEVEL = "level"
    TOKENS = "tokens"


class Structured(StrEnum):
    """How an answer can be bound to a JSON Schema."""

    SCHEMA = "json_schema"
    OBJECT = "json_object"
    NONE = "none"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One way of spelling requests and reading replies.

    Attributes:
        wire: the adapter.
        errors: the table that reads its errors.
        max_tokens: name of the output allowance field (chat completions only).
        system_role: name of the system role.
        structured: strongest binding to a schema; `json_object` needs the word "json" in the prompt.
        strict_schema: send `strict: true` with a schema.
        thinking: spelling of the reasoning switch.
        effort: True when a reasoning effort word is accepted.
        seed: True when a seed is accepted.
        max_stop: most stop strings, or None.
        usage_optional: True when replies without token counts are accepted, as zero; only for models without a price.
    """

    wire: Wire = Wire.OPENAI
    errors: ErrorTable = ErrorTable.OPENAI
    max_tokens: str = "max_tokens"
    system_role: str = "system"
    structured: Structured = Structured.SCHEMA
    strict_schema: bool = True
    thinking: Thinking = Thinking.NONE
    effort: bool = False
    seed: bool = True
    max_stop: int | None = None
    usage_optional: bool = False


DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "openai": Dialect(max_tokens="max_completion_tokens", thinking=Thinking.EFFORT, effort=True, max_stop=4),
        "openai-plain": Dialect(max_tokens="max_completion_tokens", max_stop=4),
        "compatible": Dialect(),
        "deepseek": Dialect(
            errors=ErrorTable.DEEPSEEK,
            structured=Structured.OBJECT,
            thinking=Thinking.TYPE,
            effort=True,
            seed=False,
            max_stop=16,
        ),
        "dashscope": Dialect(errors=ErrorTable.DASHSCOPE, thinking=Thinking.ENABLE),
        "zhipu": Dialect(errors=ErrorTable.ZHIPU, structured=Structured.OBJECT, thinking=Thinking.TYPE, max_stop=1),
        "kimi": Dialect(errors=ErrorTable.KIMI, max_tokens="max_completion_tokens", thinking=Thinking.TYPE, seed=False),
        "vllm-server": Dialect(errors=ErrorTable.VLLM, thinking=Thinking.TEMPLATE, strict_schema=False),
        "anthropic": Dialect(
            wire=Wire.ANTHROPIC, errors=ErrorTable.ANTHROPIC, thinking=Thinking.ADAPTIVE, effort=True, seed=False
        ),
        "anthropic-budget": Dialect(
            wire=Wire.ANTHROPIC, errors=ErrorTable.ANTHROPIC, thinking=Thinking.BUDGET, seed=False
        ),
        "gemini": Dialect(wire=Wire.GEMINI, errors=ErrorTable.GEMINI, thinking=Thinking.LEVEL, effort=True, max_stop=5),
        "gemini-budget": Dialect(wire=Wire.GEMINI, errors=ErrorTable.GEMINI, thinking=Thinking.TOKENS, max_stop=5),
        "in-process": Dialect(wire=Wire.IN_PROCESS, errors=ErrorTable.VLLM, thinking=Thinking.TEMPLATE),
    }
)
