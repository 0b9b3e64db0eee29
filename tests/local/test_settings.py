"""What a sweep file says about its local model reaches the engine and the requests; what cannot work is one line."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.generating import generation_job, prepare_generation
from bench.localmodel import BY_PROGRAM, engine_settings
from bench.run import Prepared, sweep_job
from bench.sweepfile import parse_generation
from engine.errors import UserError
from engine.request import Request, request_key
from providers.catalog import load_catalog
from providers.vllm_calls import template_options
from providers.vllm_settings import VllmSettings, context_length, engine_arguments, environment

HAS_AVX2 = "flags : avx2"
GPU = None
FREE = "price = { input = 0, output = 0 }"
NOT_THINKING = ('[model."qwen3-8b"]', "thinking = false")


def engine_of(prepared: Prepared) -> VllmSettings:
    """Return the settings of a sweep's local engine."""
    job = sweep_job(prepared)
    cards = {alias: prepared.catalog.card(alias) for alias in prepared.manifest.models}
    (settings,) = engine_settings(job.loaded, cards, job.design, job.roots).values()
    return settings


def requests_of(prepared: Prepared) -> list[Request]:
    """Return what a sweep asks first."""
    return [cell.request for cell in sweep_job(prepared).roots()]


def test_a_model_is_spread_over_devices_by_configuration(prepared: Any) -> None:
    """Two devices have one worker process each; vLLM is told of both."""
    settings = engine_of(prepared("[local]", "tensor_parallel_size = 2"))
    arguments = engine_arguments(settings, "Qwen/Qwen3-8B", GPU)
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (2, "mp")


@pytest.mark.parametrize(
    ("line", "place", "offline"),
    [
        pytest.param("", "Qwen/Qwen3-8B", False, id="hub name of the catalogue"),
        pytest.param('model = "mirror/Qwen3-8B-FP8"', "mirror/Qwen3-8B-FP8", False, id="another hub name"),
        pytest.param('model = "{folder}"', "{folder}", True, id="folder"),
    ],
)
def test_the_model_comes_from_a_folder_or_the_hub(
    prepared: Any, tmp_path: Path, line: str, place: str, *, offline: bool
) -> None:
    """Requests keep the catalogue's name wherever the weights lie, so that their answers are found again."""
    place = place.format(folder=tmp_path)
    settings = engine_of(prepared("[local]", line.format(folder=tmp_path)))
    assert (settings.model, settings.served_name) == (place, "Qwen/Qwen3-8B")
    assert {request.model for request in requests_of(prepared())} == {settings.served_name}
    assert ("HF_HUB_OFFLINE" in environment(settings, local=Path(settings.model).is_dir())) is offline


@pytest.mark.parametrize("structured", [False, True], ids=["free", "held to a schema"])
def test_structured_answers_are_optional(prepared: Any, *, structured: bool) -> None:
    """Without the word no request has a schema."""
    probes = requests_of(prepared(f"structured = {str(structured).lower()}", base=probing()))
    assert {request.decoding.schema is not None for request in probes} == {structured}


def test_the_catalogue_lets_qwen3_think(prepared: Any) -> None:
    """As its own default does, made explicit in every request and for the chat template."""
    (first, *_) = requests_of(prepared())
    assert first.decoding.thinking is True
    assert template_options(first.decoding)["enable_thinking"] is True


def test_thinking_is_switched_off_by_configuration(prepared: Any) -> None:
    """The template is told so, and an answer that was thought about is not taken for one that was not."""
    (thought, *_) = requests_of(prepared())
    (plain, *_) = requests_of(prepared(*NOT_THINKING))
    assert template_options(plain.decoding)["enable_thinking"] is False
    assert request_key(plain) != request_key(thought)


def test_thinking_has_room_beside_a_schema(prepared: Any) -> None:
    """A schema's allowance is for the answer; what is thought before it comes on top."""
    lines = ("structured = true", "[settings.probe]", "max_tokens = 5000")
    thought, plain = (
        requests_of(prepared(*lines, *more, base=probing()))[0].decoding.max_tokens for more in ((), NOT_THINKING)
    )
    assert thought == plain + 5000


def test_every_model_of_the_catalogue_can_be_told_to_think() -> None:
    """Cards of hosted models take the same word."""
    tables = {"model": {"deepseek-v4-pro": {"thinking": False}}}
    assert load_catalog(tables).card("deepseek-v4-pro").thinking is False


def test_the_context_is_what_the_sweep_needs(prepared: Any) -> None:
    """Not the 40,960 tokens that Qwen3-8B could: room for them would be taken from the requests beside."""
    settings = engine_of(prepared("[settings.task]", "max_tokens = 6000"))
    assert 6000 < settings.longest_request < 7000
    assert context_length(settings, own=40960) == settings.longest_request * 5 // 4


@pytest.mark.parametrize(
    ("stages", "least", "most"),
    [
        pytest.param(["task"], 2100, 2500, id="an answer"),
        pytest.param(["task", "audit"], 8100, 8800, id="an answer about an answer"),
        pytest.param(["task", "judge"], 8400, 9400, id="its judgement, with the profile"),
        pytest.param(["probe", "probe_judge"], 9400, 10400, id="a probe's judgement"),
        pytest.param(["accum"], 12100, 12700, id="a memory, and the memory that follows"),
    ],
)
def test_the_longest_request_follows_from_the_stages(prepared: Any, stages: list[str], least: int, most: int) -> None:
    """With the paper's allowances: 2,000 tokens for a task, 3,000 for a probe, 6,000 for the rest."""
    base = f"""
        name = "long"
        models = ["qwen3-8b"]
        judges = ["qwen3-8b"]
        stages = {stages}
        personas = "all"
    """
    assert least <= engine_of(prepared(base=base)).longest_request <= most


@pytest.mark.parametrize(
    ("settings", "own", "length"),
    [
        pytest.param({}, 8192, 8192, id="nothing known: what the model can"),
        pytest.param({"longest_request": 4000}, 40960, 5000, id="what the sweep needs, and a quarter"),
        pytest.param({"longest_request": 100}, 40960, 2048, id="never very little"),
        pytest.param({"longest_request": 9000}, 4096, 4096, id="never more than the model can"),
        pytest.param({"longest_request": 9000, "context": 2048}, 8192, 2048, id="nor than its card allows"),
        pytest.param({"longest_request": 9000, "context": 2048, "max_model_len": 4096}, 8192, 4096, id="as told"),
    ],
)
def test_context_length(settings: dict[str, object], own: int, length: int) -> None:
    """Told, or the least of need, card and model."""
    assert context_length(msgspec.convert(settings, VllmSettings), own) == length


def test_the_demo_keeps_its_context(prepared: Any) -> None:
    """Everything that it may ask fits into 2,048 tokens."""
    text = (Path(__file__).resolve().parents[2] / "sweeps" / "demo.toml").read_text(encoding="utf-8")
    settings = engine_of(prepared(base=text))
    assert settings.longest_request <= 2048
    assert context_length(settings, own=8192) == 2048


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(["[local]", "max_model_len = 128"], "a prompt of stage task has about", id="prompts too long"),
        pytest.param(["[local]", "max_model_length = 1"], "max_model_length", id="misspelt"),
        pytest.param(["[local]", "max_model_len = -1"], "max_model_len", id="negative"),
        pytest.param(["[local]", "tensor_parallel_size = 0"], "tensor_parallel_size", id="no device"),
        pytest.param(["[local]", 'name = "mine"'], "`name` is for the program to say", id="another name"),
        pytest.param(["[local]", 'structured_backend = "none"'], "structured_backend", id="unknown word"),
        pytest.param(
            ["[model.other]", 'family = "F"', 'provider = "vllm"', 'model = "other/model"', FREE],
            "one run can serve one local model, this sweep has Qwen/Qwen3-8B, other/model",
            id="two models",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_line_before_anything_runs(prepared: Any, lines: list[str], says: str) -> None:
    """Also `mirage plan` says it."""
    base = QWEN3_AND_OTHER if "other/model" in says else None
    with pytest.raises(UserError) as caught:
        prepared(*lines, **({"base": base} if base else {}))
    assert says in str(caught.value)
    assert "sweep.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_local_model_may_write_personas() -> None:
    """Its longest request is measured at the first questions; `[generate] max_tokens` is 3,000 by default."""
    text = 'name = "own"\nmodels = ["qwen3-8b"]\n[generate]\nnumber = 3\nout = "own.toml"'
    job = generation_job(prepare_generation(parse_generation(text, Path("own.toml"))))
    cards = {alias: job.catalog.card(alias) for alias in job.manifest.models}
    (settings,) = engine_settings(job.loaded, cards, job.design, job.roots).values()
    assert 3300 < settings.longest_request < 5000


def test_two_aliases_of_one_model_share_its_engine(prepared: Any) -> None:
    """The same weights with and without thinking, side by side."""
    lines = ["[model.plain]", 'family = "Qwen"', 'provider = "vllm"', 'model = "Qwen/Qwen3-8B"', "thinking = false",
             FREE]  # fmt: skip
    base = QWEN3_AND_OTHER.replace('"other"', '"plain"')
    sweep = prepared(*lines, base=base)
    assert engine_of(sweep).served_name == "Qwen/Qwen3-8B"
    assert {request.decoding.thinking for request in requests_of(sweep)} == {True, False}


def test_the_readme_lists_all_that_local_may_say() -> None:
    """An error sends people there."""
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    table = text.partition("| `[local]` | meaning | default |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == set(VllmSettings.__struct_fields__) - BY_PROGRAM


def test_long_prompts_are_computed_in_pieces_on_gpus_only() -> None:
    """On the CPU a seeded request whose prompt is cut kills vLLM; whoever wants it otherwise says so."""
    names = [engine_arguments(VllmSettings(), "m", device)["enable_chunked_prefill"] for device in (GPU, HAS_AVX2)]
    told = [
        engine_arguments(VllmSettings(chunked_prefill=value), "m", device)["enable_chunked_prefill"]
        for value in (True, False)
        for device in (GPU, HAS_AVX2)
    ]
    assert (names, told) == ([True, False], [True, True, False, False])


def probing() -> str:
    """Return a sweep that only probes."""
    return 'name = "probing"\nmodels = ["qwen3-8b"]\nstages = ["probe"]\npersonas = 1'


QWEN3_AND_OTHER = """
name = "two"
models = ["qwen3-8b", "other"]
stages = ["task"]
personas = 1
"""
