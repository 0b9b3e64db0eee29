"""Prompts that do not fit into one step together: a seeded request must not be cut, which kills vLLM on the CPU."""

import asyncio
from importlib.util import find_spec

import pytest

from engine.request import Decoding, Request, Role, chat
from providers.vllm import VllmProvider

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it"),
]
WORDS = 500  # about as many tokens
STEP = 4096  # tokens that one step may read, in vLLM's own settings for the CPU
PROMPTS = 9


async def test_sampled_requests_survive_prompts_that_fill_several_steps(local: VllmProvider) -> None:
    """All are answered by the engine that was asked first."""
    requests = [
        Request(
            provider="vllm",
            model="smollm2-135m",
            messages=chat((Role.USER, f"{number} " + "ship " * WORDS)),
            decoding=Decoding(max_tokens=4, temperature=0.7),
        )
        for number in range(PROMPTS)
    ]
    replies = await asyncio.gather(*(local.complete(request) for request in requests))
    assert all(reply.completion.usage.output_tokens for reply in replies)
    assert sum(reply.completion.usage.input_tokens for reply in replies) > STEP
