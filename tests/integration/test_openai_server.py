"""The chat-completions adapter against a server that we did not write: vLLM's own, on the CPU, with the small model."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from engine.errors import ErrorClass, ProviderError
from engine.money import FREE
from engine.provider import Provider
from engine.request import Decoding, Finish, Request, Role, chat
from providers.adapt import adapt
from providers.card import ModelCard
from providers.catalog import load_catalog
from providers.control import check_models
from providers.registry import build_providers
from providers.smollm import model_folder

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.timeout(300),
]

MODEL = "smollm2-135m"
KEY = "sk-local-0123456789abcdef"
START_SECONDS = 180.0
STOP_SECONDS = 15.0
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Za-z]{1,20}$"}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one engine process instead of two
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_API_KEY": KEY,
    # One thread: on a busy machine several wait for each other at every step.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    """Return a loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def command(folder: Path, port: int) -> list[str]:
    """Return the command that starts the server."""
    flags = {
        "--model": str(folder),
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--max-model-len": "1024",
        "--max-num-seqs": "16",
        "--distributed-executor-backend": "uni",
    }
    words = [word for flag in flags.items() for word in flag]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *words]


def wait_until_healthy(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when the server answers; fail with the end of its log when it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def end_group(server: "subprocess.Popen[bytes]") -> None:
    """End the server and every process that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a running server."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            command(model_folder(), port),
            env=os.environ | ENVIRONMENT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        end_group(server)


def card_at(url: str, **fields: object) -> ModelCard:
    """Return a card as a user's sweep file would describe this server."""
    table: dict[str, object] = {
        "family": "SmolLM2",
        "provider": "local-server",
        "model": MODEL,
        "dialect": "vllm-server",
        "base_url": url,
        "key_env": "LOCAL_SERVER_KEY",
        "price": {"input": 0, "output": 0},
    }
    return load_catalog({"model": {"local": table | fields}}).card("local")


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Provider]:
    """Yield a provider for the server."""
    built = build_providers([card_at(url)], {"LOCAL_SERVER_KEY": KEY})["local-server"]
    yield built
    await built.close()


def request(text: str = "What is the capital of France?", *, model: str = MODEL, **decoding: object) -> Request:
    """Return a request to the small model."""
    fields = {"max_tokens": 24, "temperature": 0.0} | decoding
    turns = chat((Role.SYSTEM, "You answer in one sentence."), (Role.USER, text))
    return Request(provider="local-server", model=model, messages=turns, decoding=Decoding(**fields))  # type: ignore[arg-type]


async def refused(provider: Provider, asked: Request) -> ProviderError:
    """Return the error that a request leads to."""
    with pytest.raises(ProviderError) as caught:
        await provider.complete(asked)
    return caught.value


async def test_an_answer_comes_with_text_and_token_counts(provider: Provider) -> None:
    """Everything the ledger and the readers need is there."""
    completion = (await provider.complete(request())).completion
    assert "Paris" in completion.text
    assert completion.finish in (Finish.STOP, Finish.TRUNCATED)
    assert completion.usage.input_tokens > 10
    assert 0 < completion.usage.output_tokens <= 24
    assert completion.model_echo == MODEL
    assert completion.provider_request_id


async def test_a_short_allowance_truncates(provider: Provider) -> None:
    """The allowance is understood under the dialect's name."""
    completion = (await provider.complete(request("Tell me a long story.", max_tokens=3))).completion
    assert (completion.finish, completion.usage.output_tokens) == (Finish.TRUNCATED, 3)


async def test_a_schema_binds_the_answer(provider: Provider) -> None:
    """Left alone this model hardly ever writes JSON."""
    completion = (await provider.complete(request(max_tokens=40, schema=SCHEMA))).completion
    assert set(json.loads(completion.text)) == {"city"}


async def test_every_sampling_parameter_is_accepted(url: str, provider: Provider) -> None:
    """Seed, nucleus, stop strings and the thinking switch, as the card allows them."""
    wanted = Decoding(max_tokens=16, temperature=0.7, top_p=0.9, seed=7, stop=("\n",), thinking=False)
    used, changes = adapt(card_at(url), wanted)
    asked = Request(provider="local-server", model=MODEL, messages=request().messages, decoding=used)
    completion = (await provider.complete(asked)).completion
    assert changes == ()
    assert "\n" not in completion.text


async def test_many_calls_at_once_are_all_answered(provider: Provider) -> None:
    """One pool of connections serves them."""
    replies = await asyncio.gather(*[provider.complete(request(f"Name {n} fruits.", max_tokens=4)) for n in range(16)])
    assert all(reply.completion.usage.output_tokens > 0 for reply in replies)


async def test_a_model_that_is_not_served_is_gone(url: str) -> None:
    """Unbilled, and no retry helps."""
    other = build_providers([card_at(url, model="smollm9")], {"LOCAL_SERVER_KEY": KEY})["local-server"]
    error = await refused(other, request(model="smollm9"))
    await other.close()
    assert (error.kind, error.status, error.maybe_billed) == (ErrorClass.GONE, 404, False)


async def test_a_wrong_key_is_named_by_its_variable(url: str) -> None:
    """The key itself stays hidden."""
    wrong = "sk-wrong-0123456789abcdef"
    stranger = build_providers([card_at(url)], {"LOCAL_SERVER_KEY": wrong})["local-server"]
    error = await refused(stranger, request())
    await stranger.close()
    assert error.kind is ErrorClass.AUTH
    assert "LOCAL_SERVER_KEY" in error.message
    assert wrong not in error.message


@pytest.mark.parametrize(
    "asked",
    [
        request("word " * 3000),
        request(temperature=-1.0),
        request(schema='{"type": 5}'),
        request(max_tokens=100_000),
    ],
    ids=["too long", "negative temperature", "impossible schema", "allowance beyond the context"],
)
async def test_a_request_that_can_never_work_is_refused_for_good(provider: Provider, asked: Request) -> None:
    """It fails alone; the server goes on."""
    error = await refused(provider, asked)
    assert (error.kind, error.maybe_billed) == (ErrorClass.BAD_REQUEST, False)
    assert (await provider.complete(request(max_tokens=2))).completion.text


async def test_the_preflight_check_finds_the_served_model(url: str) -> None:
    """Before a sweep one asks what the account has."""
    checks = await check_models([card_at(url), card_at(url, model="smollm9")], {"LOCAL_SERVER_KEY": KEY})
    assert [check.found for check in checks] == [True, False]


def test_the_servers_card_is_free(url: str) -> None:
    """A price of zero is a price, not an unknown one."""
    assert card_at(url).price == FREE
