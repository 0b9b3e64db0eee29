"""vLLM's v1 engine, in this process: the only module that touches vLLM, and it is for one thread only.

vLLM is imported when the engine is built, not before: importing takes seconds, and OpenMP and torch keep state per
thread, so the thread that builds must be the thread that steps. No process is started (except one worker per device
with tensor parallelism), nothing is written to standard output, and what building changes in the process around it
(warning filters, random state, loader variables) is put back.
"""

import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Completion, Request
from providers import smollm
from providers.vllm_calls import (
    THINK_CLOSE,
    THINK_OPEN,
    EngineOutput,
    VllmSettings,
    completion_of,
    engine_arguments,
    environment,
    prompt_messages,
    sampling_fields,
    schema_object,
    split_thinking,
    structured_options,
    template_options,
)

INSTALL: Final = 'pip install "miragebench[local-cpu]" (or [local-gpu]), or run `make setup`'
REASON_CHARACTERS: Final = 300
LOADER_VARIABLES: Final = ("LD_PRELOAD", "LD_LIBRARY_PATH")
# vLLM keeps the current batch and its device groups in module globals: two engines in one process corrupt each other.
ONE_PER_PROCESS: Final = threading.Lock()

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
    """

    def __init__(self, settings: VllmSettings) -> None:
        if find_spec("vllm") is None:
            raise UserError("vLLM is not installed", where=sys.prefix, mend=INSTALL)
        model = _model_place(settings.model)
        if not ONE_PER_PROCESS.acquire(blocking=False):
            raise UserError("this process runs a local model already", where=settings.model, mend="close it first")
        try:
            for name, value in environment(settings, local=Path(model).is_dir()).items():
                os.environ.setdefault(name, value)
            with _surroundings_kept():
                self._vllm = _import_vllm()
                self._engine = _build(self._vllm, settings, model)
        except BaseException:
            ONE_PER_PROCESS.release()
            raise
        config = self._engine.model_config
        self.capacity: int = self._engine.vllm_config.scheduler_config.max_num_seqs
        self._name = settings.served_name
        self._label = f"vllm {self._vllm.version} {str(config.dtype).removeprefix('torch.')}"
        self._defaults: dict[str, float] = config.get_diff_sampling_param()
        self._tokenizer = self._engine.get_tokenizer()
        self._close_token: int | None = self._tokenizer.get_vocab().get(THINK_CLOSE)
        self._thinking: dict[int, tuple[bool | None, bool]] = {}

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
            reason = first_line(error) or type(error).__name__
            raise ProviderError(ErrorClass.BAD_REQUEST, reason, code=type(error).__name__) from error
        opened = str(prompt.get("prompt") or "").rstrip().endswith(THINK_OPEN)
        self._thinking[number] = (request.decoding.thinking, opened)

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests, whether or not they are known."""
        for number in numbers:
            self._thinking.pop(number, None)
        self._engine.abort_request([str(number) for number in numbers])

    def step(self) -> list[tuple[int, Outcome]]:
        """Compute one token for every request that is being worked on; return those that are finished."""
        return [self._finished(output) for output in self._engine.step() if output.finished]

    def close(self) -> None:
        """Free the model's memory and end vLLM's helper threads."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            structured = engine.engine_core.engine_core.structured_output_manager
            for pool in ("executor", "executor_for_fillmask"):
                if hasattr(structured, pool):
                    getattr(structured, pool).shutdown()
            engine.renderer.shutdown()
            engine.engine_core.shutdown()
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


def reason_of(error: BaseException) -> str:
    """Return one short line about an `error` that nobody expected: its type and what it says."""
    return ": ".join(filter(None, (type(error).__name__, first_line(error))))


def first_line(error: BaseException) -> str:
    """Return the first line of what `error` says, shortened; empty when it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:REASON_CHARACTERS]


class _Vllm(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of vLLM, once it is imported; `refusals` are its errors that concern one request alone."""

    version: str
    EngineArgs: Any
    LLMEngine: Any
    SamplingParams: Any
    StructuredOutputsParams: Any
    StructuredOutputsConfig: Any
    RequestOutputKind: Any
    ChatParams: Any
    ModelRegistry: Any
    platform: Any
    refusals: tuple[type[Exception], ...]


def _import_vllm() -> _Vllm:
    # It warns that triton is missing, which the CPU does not need.
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    try:
        smollm.silence_progress()
        import jinja2  # noqa: PLC0415 - these imports take seconds and belong to the engine's thread
        import vllm  # noqa: PLC0415
        from vllm.config import StructuredOutputsConfig  # noqa: PLC0415
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.platforms import current_platform  # noqa: PLC0415
        from vllm.renderers.params import ChatParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams  # noqa: PLC0415

        return _Vllm(
            version=vllm.__version__,
            EngineArgs=vllm.EngineArgs,
            LLMEngine=vllm.LLMEngine,
            SamplingParams=SamplingParams,
            StructuredOutputsParams=StructuredOutputsParams,
            StructuredOutputsConfig=StructuredOutputsConfig,
            RequestOutputKind=RequestOutputKind,
            ChatParams=ChatParams,
            ModelRegistry=vllm.ModelRegistry,
            platform=current_platform,
            refusals=(ValueError, TypeError, LookupError, VLLMClientError, jinja2.TemplateError),
        )
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise UserError(f"vLLM cannot be imported: {reason_of(error)}", where=sys.prefix, mend=INSTALL) from error


def _build(vllm: _Vllm, settings: VllmSettings, model: str) -> Any:
    cpu = vllm.platform.is_cpu()
    arguments = engine_arguments(settings, model, _cpuinfo() if cpu else None)
    arguments["structured_outputs_config"] = vllm.StructuredOutputsConfig(**structured_options(settings))
    try:
        if cpu:
            _import_model_class(vllm, Path(model))
        return vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
    except Exception as error:
        raise UserError(
            f"the local model could not be loaded: {reason_of(error)}",
            where=model,
            mend="check the model, the memory that is free (kv_cache_bytes) and max_model_len",
        ) from error


def _import_model_class(vllm: _Vllm, folder: Path) -> None:
    """Import the model's class here, since vLLM would start a process to look at it (to keep CUDA out of this one)."""
    with suppress(OSError, msgspec.DecodeError, AttributeError, ImportError):
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
        names = config.get("architectures")
        for name in names if isinstance(names, list) else []:
            if known := vllm.ModelRegistry.models.get(name):
                vllm.ModelRegistry.register_model(name, known.load_model_cls())


def _cpuinfo() -> str:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text()
    return ""


def _model_place(model: str) -> str:
    """Return the folder of `model`, or its hub name as it is.

    Raises:
        UserError: it reads as a folder, but there is none; or the embedded model cannot be prepared.
    """
    if model == smollm.MODEL:
        return str(smollm.model_folder())
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.startswith((".", "/", "~")):
        raise UserError("no such model folder", where=model, mend=f"name a model folder, a hub name or {smollm.MODEL}")
    return str(folder) if folder.is_dir() else model


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
