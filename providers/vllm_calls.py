"""Requests in vLLM's terms and its results in ours: pure, and complete without vLLM installed.

What a request leaves open is taken from the model's own `generation_config.json`, as vLLM's server does; where that is
silent too, vLLM's neutral values hold (temperature 1, no nucleus). A sampled request always has a seed: its own, or one
derived from its key, so that the same request draws the same text again (exactly in float32; in bfloat16 the text also
depends on which requests share a batch).
"""

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Usage, request_key
from providers.smollm import MODEL

SEED_BITS: Final = 63
THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
FINISH: Final[Mapping[str, Finish]] = {"stop": Finish.STOP, "length": Finish.TRUNCATED, "repetition": Finish.OTHER}
# Words by which /proc/cpuinfo says so, on x86 (AVX-512, AMX) and ARM.
NATIVE_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
CPU_SEQUENCES: Final = 64
GPU_SEQUENCES: Final = 256
CPU_CACHE_BYTES: Final = 2 << 30

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["guidance", "xgrammar", "outlines", "auto"]


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the local model is loaded and run.

    Attributes:
        model: a model folder, a hub name, or `smollm2-135m` for the embedded model.
        name: what requests call this model; `model` by default.
        dtype: `auto` is bfloat16 where the processor computes with it, float32 on processors that would only emulate
            it, and the model's own on GPUs. Only float32 makes an answer independent of what is computed beside it.
        max_model_len: prompt and answer together, in tokens.
        max_num_seqs: requests that are computed together; 0 is 64 on the CPU, 256 on GPUs.
        kv_cache_bytes: memory for the attention cache; 0 is 2 GiB on the CPU, vLLM's share of the device on GPUs.
        tensor_parallel_size: devices that share the model. More than one starts a worker process for each.
        seed: seeds weights and sampling that no request seed covers.
        enforce_eager: run without compiling, which costs about a minute at the start and pays on long runs; by default
            on the CPU only.
        chunked_prefill: compute long prompts in pieces. Off, since a seeded request whose prompt is cut kills vLLM 0.32
            on the CPU ("CPU Generator does not use offset"); worth trying on GPUs.
        load_format: `dummy` gives random weights, for exercises without a model.
        reasoning_parser: vLLM's name for the model's thinking format (`qwen3`), needed only where a request both thinks
            and has a schema: the schema then holds after the thinking.
        structured_backend: what holds answers to their schema.
        threads: OpenMP threads; the cores this process may use, by default.
        stall_seconds: without a finished step for so long, waiting requests are told that the engine is stuck.
        start_seconds: the same for loading the model.
        close_seconds: how long closing waits for the step that is being computed.
        restarts: deaths in a row, with nothing answered between them, after which the engine is not built again.
    """

    model: str = MODEL
    name: str = ""
    dtype: Dtype = "auto"
    max_model_len: int = 2048
    max_num_seqs: int = 0
    kv_cache_bytes: int = 0
    tensor_parallel_size: int = 1
    seed: int = 0
    enforce_eager: bool | None = None
    chunked_prefill: bool = False
    load_format: str = "auto"
    quantization: str | None = None
    reasoning_parser: str = ""
    structured_backend: Backend = "guidance"
    threads: int | None = None
    stall_seconds: float = 300.0
    start_seconds: float = 1800.0
    close_seconds: float = 30.0
    restarts: int = 2

    @property
    def served_name(self) -> str:
        """Return what requests call this model."""
        return self.name or self.model


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What vLLM returned for one request, log-probabilities and token numbers aside; its JSON is kept as raw reply.

    Attributes:
        opened: the chat template had already opened the thinking part, so the text begins inside it.
        stop_reason: the stop string or token that ended the text, or None for the model's own end.
    """

    text: str
    finish_reason: str
    stop_reason: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    opened: bool = False
    model: str = ""
    engine: str = ""


def engine_arguments(settings: VllmSettings, folder: str, cpuinfo: str | None) -> dict[str, object]:
    """Return the arguments of vLLM's `EngineArgs`, schemas apart.

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
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs or (CPU_SEQUENCES if cpu else GPU_SEQUENCES),
        "kv_cache_memory_bytes": settings.kv_cache_bytes or (CPU_CACHE_BYTES if cpu else None),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "distributed_executor_backend": "uni" if settings.tensor_parallel_size == 1 else "mp",
        "seed": settings.seed,
        "enforce_eager": cpu if settings.enforce_eager is None else settings.enforce_eager,
        "load_format": settings.load_format,
        "quantization": settings.quantization,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": settings.chunked_prefill,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }


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


def prompt_messages(request: Request) -> list[dict[str, str]]:
    """Return the messages as chat templates read them."""
    return [{"role": str(message.role), "content": message.content} for message in request.messages]


def prompt_order(request: Request) -> str:
    """Return the text by which waiting requests are sorted, so that equal beginnings become neighbours."""
    return "\0".join(f"{message.role}\0{message.content}" for message in request.messages)


def template_options(decoding: Decoding) -> dict[str, object]:
    """Return what the chat template is told besides the messages; templates ignore what they do not know."""
    options: dict[str, object] = {"add_generation_prompt": True, "tokenize": False}
    if decoding.thinking is not None:
        options["enable_thinking"] = decoding.thinking
    if decoding.effort is not None:
        options["reasoning_effort"] = decoding.effort
    return options


def sampling_fields(request: Request, defaults: Mapping[str, float]) -> dict[str, object]:
    """Return the fields of vLLM's `SamplingParams`, the schema apart.

    Args:
        request: says what it wants; `max_tokens` always counts, also against the model's own default.
        defaults: the model's generation configuration.
    """
    decoding = request.decoding
    fields: dict[str, object] = dict(defaults)
    asked = {"temperature": decoding.temperature, "top_p": decoding.top_p}
    fields.update({name: value for name, value in asked.items() if value is not None})
    fields["max_tokens"] = decoding.max_tokens
    if decoding.stop:
        fields["stop"] = list(decoding.stop)
    if fields.get("temperature") != 0:
        fields["seed"] = sampling_seed(request)
    return fields


def sampling_seed(request: Request) -> int:
    """Return the request's own seed, moved on by its sample number, or one derived from its key."""
    if (seed := request.decoding.seed) is not None:
        return (seed + request.sample) % (1 << SEED_BITS)
    return int.from_bytes(request_key(request)[:8], "big") >> (64 - SEED_BITS)


def schema_object(decoding: Decoding) -> dict[str, object] | None:
    """Return the JSON Schema that the answer must follow, or None for free text.

    Raises:
        ProviderError: the schema is not a JSON object.
    """
    if decoding.schema is None:
        return None
    try:
        return msgspec.json.decode(decoding.schema, type=dict[str, object])
    except msgspec.DecodeError as error:
        message = f"the schema is not a JSON object: {error}"
        raise ProviderError(ErrorClass.BAD_REQUEST, message, code="schema") from error


def completion_of(output: EngineOutput, *, thinking: bool | None) -> Completion:
    """Return the completion that `output` amounts to.

    Args:
        output: a finished request's result.
        thinking: the request's switch; False leaves the text as it came.

    Raises:
        ProviderError: vLLM gave the request up.
    """
    if (finish := FINISH.get(output.finish_reason)) is None:
        reason = output.finish_reason or "no reason given"
        raise ProviderError(ErrorClass.TRANSIENT, f"the local engine gave this request up: {reason}", code=reason)
    thought, text = ("", output.text) if thinking is False else split_thinking(output.text, opened=output.opened)
    return Completion(
        text=text,
        finish=finish,
        finish_raw=output.finish_reason,
        thinking=thought,
        model_echo=output.model,
        usage=Usage(
            input_tokens=output.prompt_tokens,
            cached_tokens=output.cached_tokens,
            output_tokens=output.output_tokens,
            reasoning_tokens=output.reasoning_tokens,
        ),
        raw=msgspec.json.encode(output),
    )


def split_thinking(text: str, *, opened: bool) -> tuple[str, str]:
    """Return (thinking, answer). Thinking that never ends is all thinking; text without it is all answer."""
    body = text.lstrip()
    if body.startswith(THINK_OPEN):
        body = body.removeprefix(THINK_OPEN)
    elif not opened:
        return "", text
    thought, _, answer = body.partition(THINK_CLOSE)
    return thought.strip(), answer.lstrip()


class PrefixQueue:
    """Waiting requests in the order of their prompts, so that requests with a common beginning leave together.

    Leaving goes on upwards from the last prompt that left and starts again at the bottom, like a lift: neighbours
    follow each other, and none waits for longer than one round.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, int]] = []
        self._last = ("", -1)

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, order: str, number: int) -> None:
        """Let the request `number` wait under its prompt's text."""
        insort(self._waiting, (order, number))

    def pop(self) -> int:
        """Return the next request's number.

        Raises:
            IndexError: nobody waits.
        """
        place = bisect_right(self._waiting, self._last)
        self._last = self._waiting.pop(place if place < len(self._waiting) else 0)
        return self._last[1]

    def discard(self, order: str, number: int) -> bool:
        """Remove a request that waits; return whether it did."""
        place = bisect_left(self._waiting, (order, number))
        found = place < len(self._waiting) and self._waiting[place] == (order, number)
        if found:
            del self._waiting[place]
        return found
