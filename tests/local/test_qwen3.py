"""A sweep on the Qwen3 architecture: with and without thinking, free and held to a schema, in one run on the CPU."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.codec import Codec
from providers.vllm_calls import EngineOutput

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make setup` installs it"),
]

SWEEP = """
name = "qwen3"
store = "store.sqlite"
models = ["qwen3-8b", "plain"]
stages = ["probe", "task"]
personas = ["seed_001"]
tasks = ["apartment", "birthday_gift"]
samples = 6
structured = true               # probes; a task's answer is free text

[settings]
probe = {{ temperature = 1.0, max_tokens = 600 }}
task = {{ temperature = 1.0, max_tokens = 300 }}

[model.plain]                   # the same model, told not to think
family = "Qwen"
provider = "vllm"
model = "Qwen/Qwen3-8B"
thinking = false
price = {{ input = 0, output = 0 }}

[local]
model = "{folder}"
load_format = "dummy"
dtype = "float32"
reasoning_parser = "qwen3"
max_num_seqs = 32
kv_cache_bytes = 67108864
"""
ANSWERS = "SELECT r.alias, r.stage, d.text, d.thinking, d.reasoning_tokens, d.raw FROM request r JOIN completion d"


class Answer(msgspec.Struct, frozen=True):
    """What the store keeps of an answer."""

    alias: str
    stage: str
    text: str
    thinking: str
    reasoning_tokens: int
    raw: EngineOutput


@pytest.fixture(scope="module")
def answers(qwen3: Path, tmp_path_factory: pytest.TempPathFactory, run_mirage: Any) -> list[Answer]:
    """Run the sweep and return what was answered."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "sweep.toml").write_text(SWEEP.format(folder=qwen3), encoding="utf-8")
    process = run_mirage(folder, "run", "sweep.toml", "--plain", "--no-tables")
    process.wait(240)
    # An answer of random words may be unreadable, which is a reading; a failed request would end otherwise.
    assert process.returncode == 0, (folder / "errors.txt").read_text()
    return list(_answers(folder / "store.sqlite"))


def test_every_request_is_answered(answers: Sequence[Answer]) -> None:
    """Six probes and twelve tasks of each alias, by the model that the catalogue names."""
    counts = {alias: sum(answer.alias == alias for answer in answers) for alias in ("qwen3-8b", "plain")}
    assert counts == {"qwen3-8b": 18, "plain": 18}
    assert {answer.raw.model for answer in answers} == {"Qwen/Qwen3-8B"}


def test_thinking_is_kept_apart_from_the_answer(answers: Sequence[Answer]) -> None:
    """What stands before `</think>` is thinking, the rest is the answer; thinking that never ends leaves none."""
    thought = [answer for answer in answers if (answer.alias, answer.stage) == ("qwen3-8b", "task")]
    assert any(answer.thinking and answer.text for answer in thought)
    for answer in thought:
        before, _, after = answer.raw.text.partition("</think>")
        assert answer.thinking == before.strip().removeprefix("<think>").strip()
        assert answer.text == after.lstrip()
        assert answer.raw.opened
        assert answer.reasoning_tokens <= answer.raw.output_tokens
        assert bool(answer.reasoning_tokens) is bool(answer.thinking)


def test_without_thinking_all_is_answer(answers: Sequence[Answer]) -> None:
    """The prompt has closed the thought already, and what looks like one stays text."""
    plain = [answer for answer in answers if answer.alias == "plain"]
    assert {(answer.thinking, answer.reasoning_tokens, answer.raw.opened) for answer in plain} == {("", 0, False)}
    assert all(answer.text == answer.raw.text for answer in plain)


def test_a_schema_holds_with_and_without_thinking(answers: Sequence[Answer]) -> None:
    """Random weights answer in JSON as soon as their thinking has ended."""
    probes = [answer for answer in answers if answer.stage == "probe" and answer.text]
    assert {answer.alias for answer in probes} == {"qwen3-8b", "plain"}
    assert all(set(json.loads(answer.text)) == {"inferences"} for answer in probes)


def _answers(store: Path) -> Iterator[Answer]:
    codec = Codec()
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        for alias, stage, text, thinking, tokens, raw in connection.execute(f"{ANSWERS} ON d.request_id = r.id"):
            yield Answer(
                alias,
                stage,
                codec.unpack_text(text),
                codec.unpack_text(thinking),
                tokens,
                msgspec.json.decode(codec.unpack_bytes(raw), type=EngineOutput),
            )
