"""vLLM's v1 engine, in this process, for one thread only: the thread that builds must be the thread that steps.

No process is started (except one worker per device with tensor parallelism), nothing is written to standard output, and
what building changes in the process around it (warning filters, random state, loader variables) is put back.
"""

import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Completion, Request
from providers.vllm_calls import (
    THINK_CLOSE,
    THINK_OPEN,
    EngineOutput,
    completion_of,
    prompt_messages,
    sampling_fields,
    schema_object,
    split_thinking,
    template_options,
)
from providers.vllm_load import INSTALL, Vllm, first_line, import_vllm, load_engine, model_place, shut_down
from providers.vllm_settings import VllmSettings, environment

LOADER_VARIABLES: Final = ("LD_PRELOAD", "LD_LIBRARY_PATH")
# vLLM keeps the current batch and its device groups in module globals: two engines in one process corrupt each other.
ONE_PER_PROCESS: Final = threading.Lock()
# What vLLM calls the part of a request that makes a prompt too long.
_PROMPT_PARAMETERS: Final = frozenset({"input_tokens", "input_text"})

logger = logging.getLogger(__name__)

Outcome = Completion | Exception


class LocalEngine(Protocol):
    """What the engine's thread needs of an engine."""

    @property
    def capacity(self) -> int:
        """How many requests it computes together."""
        ...

    def add(self, number: int, request: Request) -> None:
        """Take a request, or raise a `ProviderError` that concerns this request alone."""
        ...

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        ...

    def unstarted(self) -> list[int]:
        """Return the requests that it holds and has not computed a token of."""
        ...

    def step(self) -> list[tuple[int, Outcome]]:
        """Compute a little; return what is finished."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class InProcessEngine:
    """The real engine. Raises `UserError` when it cannot be built; any other exception means that it died.

    Attributes:
        capacity: how many requests it computes together.
        length: how many tokens a prompt and its answer may have together.
    """

    def __init__(self, settings: VllmSettings) -> None:
        if find_spec("vllm") is None:
            raise UserError("vLLM is not installed", where=sys.prefix, mend=INSTALL)
        model = model_place(settings.model)
        if not ONE_PER_PROCESS.acquire(blocking=False):
            raise UserError("this process runs a local model already", where=settings.model, mend="close it first")
        try:
            for name, value in environment(settings, local=Path(model).is_dir()).items():
                os.environ.setdefault(name, value)
            with _surroundings_kept():
                self._vllm = import_vllm()
                self._engine = self.load(self._vllm, settings, model)
        except BaseException:
            ONE_PER_PROCESS.release()
            raise
        config = self._engine.model_config
        self.capacity: int = self._engine.vllm_config.scheduler_config.max_num_seqs
        self.length: int = config.max_model_len
        if self.length < settings.longest_request:
            logger.warning("%s", _short_of(settings, self.length))
        self._name = settings.served_name
        self._label = f"vllm {self._vllm.version} {str(config.dtype).removeprefix('torch.')}"
        self._defaults: dict[str, float] = config.get_diff_sampling_param()
        self._tokenizer = self._engine.get_tokenizer()
        self._close_token: int | None = self._tokenizer.get_vocab().get(THINK_CLOSE)
        self._thinking: dict[int, tuple[bool | None, bool]] = {}

    def load(self, vllm: Vllm, settings: VllmSettings, model: str) -> Any:
        """Return vLLM's engine; raises UserError when the model does not load."""
        return load_engine(vllm, settings, model)

    def add(self, number: int, request: Request) -> None:
        """Take a request under `number`.

        Raises:
            ProviderError: this request cannot be computed (too long, an impossible schema); the others can.
        """
        try:
            prompt = self._render(request)
            self._engine.add_request(str(number), prompt, self._sampling(request))
        except self._vllm.refusals as error:
            self.abort([number])
            reason = self._refusal(error)
            raise ProviderError(ErrorClass.BAD_REQUEST, reason, code=type(error).__name__) from error
        opened = str(prompt.get("prompt") or "").rstrip().endswith(THINK_OPEN)
        self._thinking[number] = (request.decoding.thinking, opened)

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests, whether or not they are known."""
        for number in numbers:
            self._thinking.pop(number, None)
        self._engine.abort_request([str(number) for number in numbers])

    def unstarted(self) -> list[int]:
        """Return the requests that vLLM has queued and not computed a token of."""
        scheduler = self._engine.engine_core.engine_core.scheduler
        return [int(name.partition("-")[0]) for name, each in scheduler.requests.items() if not each.num_output_tokens]

    def step(self) -> list[tuple[int, Outcome]]:
        """Compute one token for every request that is being worked on; return those that are finished."""
        return [self._finished(output) for output in self._engine.step() if output.finished]

    def close(self) -> None:
        """Free the model's memory and end vLLM's helper threads."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            shut_down(engine)
        finally:
            ONE_PER_PROCESS.release()

    def _render(self, request: Request) -> dict[str, Any]:
        renderer = self._engine.renderer
        chat = self._vllm.ChatParams(chat_template_kwargs=template_options(request.decoding))
        # The chat template writes the special tokens itself.
        tokenizing = renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False)
        _, prompts = renderer.render_chat([prompt_messages(request)], chat, tokenizing)
        rendered: dict[str, Any] = prompts[0]
        return rendered

    def _sampling(self, request: Request) -> object:
        schema = schema_object(request.decoding)
        structured = None if schema is None else self._vllm.StructuredOutputsParams(json=schema)
        return self._vllm.SamplingParams(
            **sampling_fields(request, self._defaults),
            structured_outputs=structured,
            output_kind=self._vllm.RequestOutputKind.FINAL_ONLY,
        )

    def _finished(self, output: Any) -> tuple[int, Outcome]:
        number = int(output.request_id)
        thinking, opened = self._thinking.pop(number, (None, False))
        answer = output.outputs[0]
        result = EngineOutput(
            text=answer.text,
            finish_reason=str(answer.finish_reason or ""),
            stop_reason=answer.stop_reason,
            prompt_tokens=len(output.prompt_token_ids or ()),
            cached_tokens=output.num_cached_tokens or 0,
            output_tokens=len(answer.token_ids),
            reasoning_tokens=0 if thinking is False else self._reasoning_tokens(answer, opened=opened),
            opened=opened,
            model=self._name,
            engine=self._label,
        )
        try:
            return number, completion_of(result, thinking=thinking)
        except ProviderError as error:
            return number, error

    def _reasoning_tokens(self, answer: Any, *, opened: bool) -> int:
        thought, text = split_thinking(answer.text, opened=opened)
        if not thought:
            return 0
        tokens = list(answer.token_ids)
        if self._close_token in tokens:
            return tokens.index(self._close_token) + 1
        return len(self._tokenizer.encode(thought, add_special_tokens=False)) if text else len(tokens)

    def _refusal(self, error: Exception) -> str:
        if getattr(error, "parameter", None) in _PROMPT_PARAMETERS or "maximum model length" in str(error):
            most = f"more than the {self.length} tokens that prompt and answer may have together"
            return f"the prompt is too long for {self._name}: {most}; [local] max_model_len can raise them"
        return first_line(error) or type(error).__name__


def _short_of(settings: VllmSettings, length: int) -> str:
    return (
        f"{settings.served_name} takes {length} tokens of prompt and answer together, the longest request of this run"
        f" may need {settings.longest_request}: longer answers are cut, longer prompts refused"
    )


@contextmanager
def _surroundings_kept() -> Iterator[None]:
    """Put back what importing and building change for everyone else in this process.

    Their warnings concern nobody here and must not fail a run in which warnings are errors. vLLM seeds the global
    random generators, and points the dynamic loader of later child processes at its own libraries.
    """
    drawn, numpy_drawn = random.getstate(), np.random.get_state()  # noqa: NPY002 - vLLM seeds the old global generator
    loader = {name: os.environ.get(name) for name in LOADER_VARIABLES}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(numpy_drawn)  # noqa: NPY002
        for name, value in loader.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
