"""How the local model is loaded and run: what [local] may say, and what follows from it on a machine.

Pure, and complete without vLLM installed.
"""

import os
from typing import Annotated, Final, Literal

import msgspec

from providers.smollm import MODEL

# Words by which /proc/cpuinfo says so, on x86 (AVX-512, AMX) and ARM.
NATIVE_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
CPU_SEQUENCES: Final = 64
GPU_SEQUENCES: Final = 256
CPU_CACHE_BYTES: Final = 2 << 30
# A sweep's need is reckoned from typical lengths, so a quarter is added; below this nothing is gained by holding to it.
SHORTEST_CONTEXT: Final = 2048

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["guidance", "xgrammar", "outlines", "auto"]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the local model is loaded and run.

    Attributes:
        model: a model folder, a hub name, or `smollm2-135m` for the embedded model.
        name: what requests call this model; `model` by default.
        dtype: `auto` is bfloat16 where the processor computes with it, float32 on processors that would only emulate
            it, and the model's own on GPUs. Only float32 makes an answer independent of what is computed beside it.
        max_model_len: most tokens of a prompt and its answer together, held to exactly; 0 takes what the sweep may need
            at most, cut to what the model can and to what the attention cache holds.
        max_num_seqs: requests that are computed together; 0 is 64 on the CPU, 256 on GPUs.
        kv_cache_bytes: memory for the attention cache; 0 is 2 GiB on the CPU, vLLM's share of the device on GPUs.
        tensor_parallel_size: devices that share the model. More than one starts a worker process for each.
        seed: seeds weights and sampling that no request seed covers.
        enforce_eager: run without compiling, which costs about a minute at the start and pays on long runs; by default
            on the CPU only.
        chunked_prefill: compute long prompts in pieces, which is vLLM's default; ours on GPUs only, since a seeded
            request whose prompt is cut kills vLLM 0.32 on the CPU ("CPU Generator does not use offset").
        load_format: `dummy` gives random weights, for exercises without a model.
        reasoning_parser: vLLM's name for the model's thinking format (`qwen3`), needed only where a request both thinks
            and has a schema: the schema then holds after the thinking.
        structured_backend: what holds answers to their schema.
        threads: OpenMP threads; the cores this process may use, by default.
        stall_seconds: without a finished step for so long, waiting requests are told that the engine is stuck.
        start_seconds: the same for loading the model.
        close_seconds: how long closing waits for the step that is being computed.
        restarts: deaths in a row, with nothing answered between them, after which the engine is not built again.
        context: the longest that the model's card allows, in tokens; 0 leaves that to the model's own configuration.
        longest_request: what the sweep may need at most, in tokens; 0 is unknown.
    """

    model: str = MODEL
    name: str = ""
    dtype: Dtype = "auto"
    max_model_len: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_num_seqs: Annotated[int, msgspec.Meta(ge=0)] = 0
    kv_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    seed: int = 0
    enforce_eager: bool | None = None
    chunked_prefill: bool | None = None
    load_format: str = "auto"
    quantization: str | None = None
    reasoning_parser: str = ""
    structured_backend: Backend = "guidance"
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stall_seconds: Seconds = 300.0
    start_seconds: Seconds = 1800.0
    close_seconds: Seconds = 30.0
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 2
    context: int = 0
    longest_request: int = 0

    @property
    def served_name(self) -> str:
        """Return what requests call this model."""
        return self.name or self.model


def engine_arguments(settings: VllmSettings, folder: str, cpuinfo: str | None) -> dict[str, object]:
    """Return the arguments of vLLM's `EngineArgs`, schemas and context length apart.

    Args:
        settings: what is asked for; the rest depends on the device.
        folder: the model's folder, or its hub name.
        cpuinfo: how Linux describes the processor, or None on GPUs.
    """
    cpu = cpuinfo is not None
    return {
        "model": folder,
        "served_model_name": settings.served_name,
        "dtype": settings.dtype if cpuinfo is None else cpu_dtype(settings, cpuinfo),
        "max_num_seqs": settings.max_num_seqs or (CPU_SEQUENCES if cpu else GPU_SEQUENCES),
        "kv_cache_memory_bytes": settings.kv_cache_bytes or (CPU_CACHE_BYTES if cpu else None),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "distributed_executor_backend": "uni" if settings.tensor_parallel_size == 1 else "mp",
        "seed": settings.seed,
        "enforce_eager": cpu if settings.enforce_eager is None else settings.enforce_eager,
        "load_format": settings.load_format,
        "quantization": settings.quantization,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": not cpu if settings.chunked_prefill is None else settings.chunked_prefill,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }


def context_length(settings: VllmSettings, own: int) -> int:
    """Return how many tokens a prompt and its answer may have together, as far as memory allows.

    Args:
        settings: what is asked for, held to; else the least of what the sweep needs, the card allows and the model can.
        own: what the model's own configuration allows.
    """
    if settings.max_model_len:
        return settings.max_model_len
    need = max(settings.longest_request * 5 // 4, SHORTEST_CONTEXT) if settings.longest_request else own
    return min(own, need, settings.context or own)


def cpu_dtype(settings: VllmSettings, cpuinfo: str) -> str:
    """Return the number format to compute in on the processor that Linux describes as `cpuinfo`."""
    if settings.dtype != "auto":
        return settings.dtype
    return "bfloat16" if NATIVE_BFLOAT16 & set(cpuinfo.split()) else "float32"


def structured_options(settings: VllmSettings) -> dict[str, object]:
    """Return the arguments of vLLM's `StructuredOutputsConfig`.

    White space between JSON's parts is ruled out: a weak model writes it without end.
    """
    options: dict[str, object] = {"backend": settings.structured_backend, "disable_any_whitespace": True}
    return options | {"reasoning_parser": settings.reasoning_parser} if settings.reasoning_parser else options


def environment(settings: VllmSettings, *, local: bool) -> dict[str, str]:
    """Return the variables that vLLM reads: no child process, quiet, no reports home, offline for a local folder."""
    values = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # A hub out of reach is told once, when it was tried often enough.
        "HF_HUB_VERBOSITY": "error",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(settings.threads or usable_cores()),
        # By default threads spin so long at every barrier that one busy neighbour on the machine halves the speed.
        "GOMP_SPINCOUNT": "3000",
    }
    return values | {"HF_HUB_OFFLINE": "1"} if local else values


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
