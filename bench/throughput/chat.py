"""vLLM's own way beside ours: one engine, built by vLLM's `LLM`, that the provider and `LLM.chat` use in turns.

So both sides have the same weights in the same memory, the same settings, threads and cache, and only what is around
the engine differs. `LLM.chat` is called in the engine's thread, since OpenMP and torch keep state per thread.
"""

from collections.abc import Sequence
from typing import Any

from engine.request import Request
from providers.vllm_calls import prompt_messages, template_options
from providers.vllm_engine import InProcessEngine
from providers.vllm_load import Vllm, arguments_of
from providers.vllm_settings import VllmSettings, context_length


class PairedEngine(InProcessEngine):
    """The provider's engine, which also answers as `LLM.chat` does while the provider asks nothing."""

    def load(self, vllm: Vllm, settings: VllmSettings, model: str) -> Any:
        """Return the engine of vLLM's own `LLM`, built with the arguments that the provider would give."""
        arguments = arguments_of(vllm, settings, model)
        own = vllm.EngineArgs(**arguments).create_model_config().max_model_len
        self._llm = vllm.LLM(**arguments, max_model_len=context_length(settings, own))
        return self._llm.llm_engine

    @property
    def dtype(self) -> str:
        """The number format that it computes in."""
        return str(self._llm.model_config.dtype).removeprefix("torch.")

    def forget(self) -> None:
        """Empty the prefix cache, so that whoever comes second reads no prompt from it."""
        self._llm.reset_prefix_cache()

    def chat(self, requests: Sequence[Request]) -> list[tuple[int, int]]:
        """Compute `requests` with one call of `LLM.chat`; return the tokens that each had read and written.

        Sampling parameters are those that the provider would give, seeds included.
        """
        outputs = self._llm.chat(
            [prompt_messages(request) for request in requests],
            [self._sampling(request) for request in requests],
            use_tqdm=False,
            chat_template_kwargs=template_options(requests[0].decoding) if requests else None,
        )
        return [(len(each.prompt_token_ids), len(each.outputs[0].token_ids)) for each in outputs]
