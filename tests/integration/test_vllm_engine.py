"""The local model for real: vLLM in this process, on the CPU, with the embedded SmolLM2-135M-Instruct."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Completion, Decoding, Finish, Message, Request, Role, chat
from providers.vllm import VllmProvider, VllmSettings

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it"),
]

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Za-z ]{1,16}$"},
        "people": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
BLOCK_TOKENS = 128
ALONE = """
import asyncio, json, os, signal, sys, threading
from pathlib import Path
from engine.request import Decoding, Request, Role, chat
from providers.vllm import VllmProvider, VllmSettings

def children() -> list[str]:
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]

async def main() -> dict[str, object]:
    provider = VllmProvider(VllmSettings(dtype="float32", max_model_len=512, max_num_seqs=4, kv_cache_bytes=64 << 20))
    decoding = Decoding(max_tokens=400, temperature=0.0)
    messages = chat((Role.USER, "Tell a very long story about a ship."))
    request = Request(provider="vllm", model="smollm2-135m", messages=messages, decoding=decoding)
    await provider.start()
    call = asyncio.ensure_future(provider.complete(request))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, call.cancel)
    running = children()
    print("ready", file=sys.stderr, flush=True)
    ended = "answered"
    try:
        await call
    except asyncio.CancelledError:
        ended = "cancelled"
    await provider.close()
    return {
        "ended": ended,
        "children": running + children(),
        "threads": [thread.name for thread in threading.enumerate()],
        "loader": os.environ.get("LD_PRELOAD", ""),
    }

print(json.dumps(asyncio.run(main())))
"""


def ask(text: str, **decoding: object) -> Request:
    """Return a request for the embedded model, greedy and short unless said otherwise."""
    return Request(
        provider="vllm",
        model="smollm2-135m",
        messages=chat((Role.USER, text)),
        decoding=msgspec.convert({"max_tokens": 24, "temperature": 0.0, **decoding}, Decoding),
    )


async def answer(local: VllmProvider, request: Request) -> Completion:
    """Return the completion of `request`."""
    return (await local.complete(request)).completion


async def failure(local: VllmProvider, request: Request) -> ProviderError:
    """Return the error that `request` ends with."""
    with pytest.raises(ProviderError) as caught:
        await local.complete(request)
    return caught.value


async def test_answers_a_chat(local: VllmProvider) -> None:
    """The chat template is applied, generation stops by itself, and tokens are counted."""
    completion = await answer(local, ask("What is the capital of France?"))
    assert "Paris" in completion.text
    assert completion.finish is Finish.STOP
    assert completion.usage.output_tokens < 24
    assert completion.usage.input_tokens > 20
    assert completion.model_echo == "smollm2-135m"
    assert json.loads(completion.raw)["text"] == completion.text


async def test_answer_that_reaches_its_allowance_is_truncated(local: VllmProvider) -> None:
    """The allowance is kept to the token, and said to have cut the answer."""
    completion = await answer(local, ask("Tell a long story.", max_tokens=5))
    assert completion.finish is Finish.TRUNCATED
    assert completion.usage.output_tokens == 5


async def test_structured_answers_parse(local: VllmProvider) -> None:
    """Even this model keeps to a bounded schema, at any temperature."""
    requests = [ask(f"Name city {n}", schema=json.dumps(CITY), max_tokens=60, temperature=1.5) for n in range(12)]
    completions = await asyncio.gather(*(answer(local, request) for request in requests))
    for completion in completions:
        assert completion.finish is Finish.STOP
        assert set(json.loads(completion.text)) == {"city", "people"}


async def test_seed_repeats_the_draw_whatever_is_computed_beside_it(local: VllmProvider) -> None:
    """The same request draws the same text alone and in company."""
    request = ask("Write one sentence about rain.", temperature=1.0, seed=11)
    alone = await answer(local, request)
    company = [ask(f"Write about {n} birds.", temperature=1.0) for n in range(6)]
    among, *_ = await asyncio.gather(*(answer(local, each) for each in [request, *company]))
    assert among.text == alone.text


async def test_samples_of_one_prompt_differ(local: VllmProvider) -> None:
    """Repeated draws without a seed are draws, and each can be repeated."""
    first = ask("Write one sentence about the sea.", temperature=1.2)
    second = msgspec.structs.replace(first, sample=1)
    texts = [(await answer(local, request)).text for request in (first, second, first)]
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param(ask("word " * 2000), "1024", id="too long"),
        pytest.param(ask("Hi", schema='{"type": "nonsense"}'), "nonsense", id="impossible schema"),
        pytest.param(ask("Hi", top_p=7.0), "top_p", id="parameter out of range"),
    ],
)
async def test_bad_request_fails_alone(local: VllmProvider, bad: Request, says: str) -> None:
    """It is refused for good, in one line; its neighbour is answered and the engine lives."""
    error, neighbour = await asyncio.gather(failure(local, bad), answer(local, ask("What is the capital of France?")))
    assert error.kind is ErrorClass.BAD_REQUEST
    assert says in str(error)
    assert "\n" not in str(error)
    assert "Paris" in neighbour.text


async def test_thirty_two_at_once_share_steps(local: VllmProvider, watched: Any) -> None:
    """A full batch costs about as many steps as its longest answer, not the sum of all."""
    engine = watched.built[-1]
    before = engine.steps
    completions = await asyncio.gather(*(answer(local, ask(f"Count from {n}.", max_tokens=16)) for n in range(32)))
    tokens = sum(completion.usage.output_tokens for completion in completions)
    assert len(completions) == 32
    assert engine.steps - before < tokens / 4


async def test_common_beginnings_are_read_from_the_cache(local: VllmProvider) -> None:
    """The second request with the same long system prompt pays only for what is new."""
    persona = Message(Role.SYSTEM, "You know this person. " + "Kim likes tea and long walks by the river. " * 30)
    requests = [
        msgspec.structs.replace(ask("x"), messages=(persona, Message(Role.USER, question)))
        for question in ("What does Kim like?", "Where does Kim walk?")
    ]
    first, second = [(await answer(local, request)).usage for request in requests]
    assert first.cached_tokens == 0
    assert second.cached_tokens >= BLOCK_TOKENS
    assert second.input_tokens > second.cached_tokens


async def test_cancelling_frees_the_engine(local: VllmProvider, watched: Any) -> None:
    """Forty long answers are cancelled; vLLM keeps none of them, and the next request is answered."""
    calls = [asyncio.ensure_future(local.complete(ask(f"Tell story {n}.", max_tokens=500))) for n in range(40)]
    await answer(local, ask("Hi", max_tokens=1))
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    await answer(local, ask("Hi", max_tokens=1))
    assert watched.built[-1].unfinished == 0


async def test_a_stopping_run_gets_back_what_vllm_has_not_begun(local: VllmProvider, watched: Any) -> None:
    """Of eighty answers those that are computed go on, the others come back, and vLLM keeps none of them."""
    calls = [asyncio.ensure_future(local.complete(ask(f"Tell story {n}.", max_tokens=12))) for n in range(80)]
    await asyncio.wait(calls, timeout=0.2)
    local.withdraw()
    results = await asyncio.gather(*calls, return_exceptions=True)
    withdrawn = [result for result in results if isinstance(result, ProviderError)]
    assert {error.code for error in withdrawn} == {"withdrawn"}
    assert len(results) - len(withdrawn) <= local.settings.max_num_seqs
    assert watched.built[-1].unfinished == 0


async def test_dead_engine_is_built_again(local: VllmProvider, watched: Any) -> None:
    """A step that raises loses those inside, who may try again; the next request has a new engine."""
    built = len(watched.built)
    watched.faults.append(RuntimeError("injected"))
    errors = await asyncio.gather(*(failure(local, ask(f"Tell story {n}.")) for n in range(3)))
    assert {error.kind for error in errors} == {ErrorClass.TRANSIENT}
    assert "the local engine died: RuntimeError: injected" in str(errors[0])
    assert "Paris" in (await answer(local, ask("What is the capital of France?"))).text
    assert len(watched.built) == built + 1


async def test_a_second_local_model_in_one_process_is_refused(local: VllmProvider) -> None:
    """Two engines in one process would corrupt each other's batches."""
    await local.start()
    other = VllmProvider(VllmSettings(max_num_seqs=2))
    with pytest.raises(UserError, match="runs a local model already"):
        await other.start()
    await other.close()


def test_ended_by_sigterm_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a fresh interpreter: quiet on both streams, no child process, no thread left, and gone on SIGTERM."""
    command = [sys.executable, "-W", "error", "-c", ALONE]
    environment = os.environ | {"VLLM_CACHE_ROOT": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        assert process.stderr
        first = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert first == "ready\n"
    assert err == ""
    told = json.loads(out)
    assert process.returncode == 0
    # With an empty cache vLLM would have inspected the model in a process of its own, and noted the result here.
    assert list(tmp_path.glob("modelinfos/*")) == []
    assert told == {"ended": "cancelled", "children": [], "threads": ["MainThread"], "loader": ""}


@pytest.mark.parametrize("model", ["/no/such/folder", "./missing"])
def test_missing_model_folder_is_the_user_s_to_mend(model: str) -> None:
    """A folder that is not there is named before vLLM is imported."""
    provider = VllmProvider(VllmSettings(model=model))

    async def start() -> None:
        try:
            await provider.start()
        finally:
            await provider.close()

    with pytest.raises(UserError, match="no such model folder"):
        asyncio.run(start())
