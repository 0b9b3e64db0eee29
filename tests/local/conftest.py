"""Sweeps on a local model: checked without loading one, or run for real on a Qwen3 of two small layers.

That model has random weights, which vLLM makes when it loads: the architecture, the chat template's thinking switch and
everything around them are exercised on the CPU without a download. Programs run in processes of their own, since a
process serves one local model, and the session's has one already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bench.run import Prepared, prepare
from bench.sweepfile import parse_sweep

Prepare = Callable[..., Prepared]
Mirage = Callable[..., subprocess.Popen[str]]

ROOT: Final = Path(__file__).resolve().parents[2]
QWEN3_SWEEP: Final = """
name = "qwen3"
store = "store.sqlite"
models = ["qwen3-8b"]
stages = ["task"]
personas = 1
tasks = ["apartment", "birthday_gift"]
"""
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINKING: Final = ("<think>", "</think>")
# As Qwen3's own template does: thinking switched off is an empty thought that the prompt has already written; switched
# on, the model is left to open one. Here the prompt opens it, since random weights never would.
TEMPLATE: Final = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is defined and enable_thinking is false %}
</think>

{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Qwen3."""
    return make_model(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def prepared() -> Prepare:
    """Return a function that checks a sweep on Qwen3-8B; further lines of the file follow each other as given."""

    def check(*lines: str, base: str = QWEN3_SWEEP) -> Prepared:
        return prepare(parse_sweep("\n".join([base, *lines]), Path("sweep.toml")))

    return check


@pytest.fixture(scope="session")
def run_mirage() -> Mirage:
    """Return a function that starts the command line in a folder; its errors go to `errors.txt` there."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
        with (folder / "errors.txt").open("a", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "bench", *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )

    return start


def make_model(folder: Path) -> Path:
    """Write configuration, tokenizer and chat template into `folder` and return it; weights are made when it loads.

    The tokenizer knows printable ASCII only, one token a character, so that every special token is drawn by uniform
    random weights about once in a hundred tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    letters = ["Ġ" if code == ord(" ") else "Ċ" if code == ord("\n") else chr(code) for code in (10, *range(32, 127))]
    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *_THINKING, *letters])}
    special = {token: vocabulary[token] for token in _SPECIAL}
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        ),
        encoding="utf-8",
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    ends = {"eos_token_id": special["<|im_end|>"], "pad_token_id": special["<|endoftext|>"]}
    (folder / "config.json").write_text(json.dumps(_config(len(vocabulary)) | ends), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return folder


def _config(words: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": words,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, object]:
    added = [
        {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": token in _SPECIAL}
        for token in (*_SPECIAL, *_THINKING)
    ]  # fmt: skip
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": bytes_as_letters,
        "post_processor": None,
        "decoder": bytes_as_letters,
        "model": {"type": "BPE", "dropout": None, "unk_token": "?", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": []},
    }  # fmt: skip
