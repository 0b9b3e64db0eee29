"""How long a request may be follows from the memory that there is, and what does not fit is told in one line."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it"),
]

ROOT = Path(__file__).resolve().parents[2]
# Keys and values of two layers with one head of 32 numbers each, in float32: 512 bytes a token, blocks of 128 tokens.
CACHE_BYTES = 1 << 19
CHILD = """
import asyncio, json, sys
from engine.errors import ProviderError, UserError
from engine.request import Decoding, Request, Role, chat
from providers.vllm import VllmProvider, VllmSettings

async def ask(provider, text):
    decoding = Decoding(max_tokens=3000, temperature=1.0)
    request = Request(provider="vllm", model="tiny", messages=chat((Role.USER, text)), decoding=decoding)
    try:
        usage = (await provider.complete(request)).completion.usage
    except ProviderError as error:
        return [error.kind.value, str(error)]
    return ["answered", usage.input_tokens + usage.output_tokens]

async def run(model=sys.argv[1], **settings):
    provider = VllmProvider(VllmSettings(
        model=model, name="tiny", load_format="dummy", dtype="float32", max_num_seqs=4,
        kv_cache_bytes=int(sys.argv[2]), **settings))
    try:
        await provider.start()
        return [await ask(provider, text) for text in ("Hi", "x" * 900, "x" * 3000)]
    except UserError as error:
        return ["refused", str(error)]
    finally:
        await provider.close()

async def main():
    return {"fits": await run(longest_request=6000), "told": await run(max_model_len=4096),
            "beyond": await run(max_model_len=16384), "empty": await run(sys.argv[3])}

print(json.dumps(asyncio.run(main())))
"""


def test_the_context_is_cut_to_the_memory_and_what_is_longer_is_refused(qwen3: Path, tmp_path: Path) -> None:
    """A length that nobody asked for is cut, with a warning; one that was asked for is held to, or refused."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(qwen3), str(CACHE_BYTES), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    told = json.loads(done.stdout)
    (warning,) = done.stderr.splitlines()
    length = int(warning.split()[2])
    assert warning.startswith(f"tiny takes {length} tokens of prompt and answer together")
    assert 512 <= length < 1024
    short, cut, long = told["fits"]
    assert short[0] == "answered"
    assert cut == long == ["bad_request", cut[1]]
    assert cut[1] == (
        f"the prompt is too long for tiny: more than the {length} tokens that prompt and answer may have together;"
        " [local] max_model_len can raise them"
    )
    assert told["told"][0] == "refused"
    assert "max_model_len" in told["told"][1]
    assert told["beyond"] == [
        "refused",
        f"[local] max_model_len is 16384, tiny takes 8192 tokens at most ({qwen3}); set at most 8192, or leave it out",
    ]
    assert told["empty"][1].startswith("the local model could not be loaded: Invalid repository ID or local directory")
    assert all("\n" not in line for _, line in (told["told"], told["beyond"], told["empty"]))
