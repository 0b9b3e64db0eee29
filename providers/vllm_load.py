"""vLLM, imported and loaded: only when an engine is built, and in the thread that will step it.

Importing takes seconds, and OpenMP and torch keep state per thread. Knows settings and machine, no request.
"""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.errors import UserError
from providers import smollm
from providers.vllm_settings import VllmSettings, context_length, engine_arguments, structured_options

INSTALL: Final = 'run `make setup`, or `pip install ".[local-cpu]"` (or ".[local-gpu]") in the clone'
REASON_CHARACTERS: Final = 300


class Vllm(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of vLLM, once it is imported.

    Attributes:
        offline: the context in which vLLM's own `LLM` builds an engine; it sets the size of a step for throughput.
        refusals: errors that concern one request alone.
    """

    version: str
    EngineArgs: Any
    LLM: Any
    LLMEngine: Any
    SamplingParams: Any
    StructuredOutputsParams: Any
    StructuredOutputsConfig: Any
    RequestOutputKind: Any
    ChatParams: Any
    ModelRegistry: Any
    platform: Any
    offline: Any
    refusals: tuple[type[Exception], ...]


def import_vllm() -> Vllm:
    """Import vLLM, which takes seconds; once `environment` is set, in the thread that will step the engine.

    Raises:
        UserError: it cannot be imported.
    """
    # It warns that triton is missing, which the CPU does not need.
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    # It sets up its own logging, and its level, only when it builds an engine.
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        smollm.silence_progress()
        import jinja2  # noqa: PLC0415 - these imports take seconds and belong to the engine's thread
        import vllm  # noqa: PLC0415
        from vllm.config import StructuredOutputsConfig  # noqa: PLC0415
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.platforms import current_platform  # noqa: PLC0415
        from vllm.renderers.params import ChatParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams  # noqa: PLC0415
        from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415

        return Vllm(
            version=vllm.__version__,
            EngineArgs=vllm.EngineArgs,
            LLM=vllm.LLM,
            LLMEngine=vllm.LLMEngine,
            SamplingParams=SamplingParams,
            StructuredOutputsParams=StructuredOutputsParams,
            StructuredOutputsConfig=StructuredOutputsConfig,
            RequestOutputKind=RequestOutputKind,
            ChatParams=ChatParams,
            ModelRegistry=vllm.ModelRegistry,
            platform=current_platform,
            offline=UsageContext.LLM_CLASS,
            refusals=(ValueError, TypeError, LookupError, VLLMClientError, jinja2.TemplateError),
        )
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise UserError(f"vLLM cannot be imported: {reason_of(error)}", where=sys.prefix, mend=INSTALL) from error


def load_engine(vllm: Vllm, settings: VllmSettings, model: str) -> Any:
    """Return vLLM's `LLMEngine` for a model's folder or hub name.

    Raises:
        UserError: the model does not load.
    """
    arguments = arguments_of(vllm, settings, model)
    try:
        own = vllm.EngineArgs(**arguments).create_model_config().max_model_len
        arguments["max_model_len"] = _checked_length(settings, own)
        config = vllm.EngineArgs(**arguments).create_engine_config(vllm.offline)
        if not settings.max_model_len:
            # vLLM cuts a length that was left to it, and no other, to what the cache holds.
            config.model_config.original_max_model_len = -1
        return vllm.LLMEngine.from_vllm_config(config, vllm.offline, disable_log_stats=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the local model could not be loaded: {_why(error)}",
            where=model,
            mend="check the model (a folder, or a hub name and a network), the memory that is free (kv_cache_bytes) and"
            " max_model_len",
        ) from error


def _checked_length(settings: VllmSettings, own: int) -> int:
    if (length := context_length(settings, own)) > own:
        what = f"[local] max_model_len is {length}, {settings.served_name} takes {own} tokens at most"
        raise UserError(what, where=settings.model, mend=f"set at most {own}, or leave it out")
    return length


def arguments_of(vllm: Vllm, settings: VllmSettings, model: str) -> dict[str, object]:
    """Return the arguments of vLLM's `EngineArgs` on this machine, the context length apart."""
    cpu = vllm.platform.is_cpu()
    arguments = engine_arguments(settings, model, _cpuinfo() if cpu else None)
    arguments["structured_outputs_config"] = vllm.StructuredOutputsConfig(**structured_options(settings))
    if cpu:
        _import_model_class(vllm, Path(model))
    return arguments


def _why(error: Exception) -> str:
    """Return one line about why vLLM did not load; pydantic's first line only counts what the others say."""
    try:
        (first, *_) = error.errors()  # type: ignore[attr-defined]
        return str(first["msg"]).removeprefix("Value error, ").partition("\n")[0][:REASON_CHARACTERS]
    except (AttributeError, TypeError, ValueError, LookupError):
        return reason_of(error)


def _import_model_class(vllm: Vllm, folder: Path) -> None:
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


def model_place(model: str) -> str:
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


def shut_down(engine: Any) -> None:
    """End vLLM's engine: free the model's memory and end its helper threads."""
    structured = engine.engine_core.engine_core.structured_output_manager
    for pool in ("executor", "executor_for_fillmask"):
        if hasattr(structured, pool):
            getattr(structured, pool).shutdown()
    engine.renderer.shutdown()
    engine.engine_core.shutdown()


def reason_of(error: BaseException) -> str:
    """Return one short line about an `error` that nobody expected: its type and what it says."""
    return ": ".join(filter(None, (type(error).__name__, first_line(error))))


def first_line(error: BaseException) -> str:
    """Return the first line of what `error` says, shortened; empty when it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:REASON_CHARACTERS]
