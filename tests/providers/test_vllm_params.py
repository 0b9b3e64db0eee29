"""Requests in vLLM's terms and its results in ours: nothing here needs vLLM."""

import json
import subprocess
import sys
from itertools import groupby

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ErrorClass, ProviderError
from engine.request import Decoding, Finish, Message, Request, Role, chat
from providers.vllm import VllmProvider, VllmSettings
from providers.vllm_calls import (
    EngineOutput,
    PrefixQueue,
    completion_of,
    prompt_messages,
    prompt_order,
    sampling_fields,
    sampling_seed,
    schema_object,
    split_thinking,
    template_options,
)
from providers.vllm_settings import cpu_dtype, engine_arguments, environment, structured_options


def make_request(text: str = "Hello", *, sample: int = 0, **decoding: object) -> Request:
    """Return a request for the embedded model."""
    settings = msgspec.convert({"max_tokens": 16, **decoding}, Decoding)
    messages = chat((Role.USER, text))
    return Request(provider="vllm", model="smollm2-135m", messages=messages, decoding=settings, sample=sample)


def make_output(text: str = "Paris.", **fields: object) -> EngineOutput:
    """Return a finished result."""
    return msgspec.convert({"text": text, "finish_reason": "stop", **fields}, EngineOutput)


def test_importing_and_making_a_provider_does_not_import_vllm() -> None:
    """Commands that never call the model do not pay for it."""
    code = (
        "import sys; from providers.vllm import VllmProvider; VllmProvider();"
        "print([name for name in ('vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_messages_keep_their_order_and_roles() -> None:
    """Chat templates read plain role and content pairs."""
    request = msgspec.structs.replace(
        make_request(), messages=chat((Role.SYSTEM, "Be brief."), (Role.USER, "Hi"), (Role.ASSISTANT, "Hello"))
    )
    assert prompt_messages(request) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]


@pytest.mark.parametrize(
    ("decoding", "defaults", "expected"),
    [
        pytest.param({}, {}, {"max_tokens": 16}, id="nothing said leaves vLLM's neutral values"),
        pytest.param(
            {}, {"temperature": 0.6, "top_k": 20}, {"max_tokens": 16, "temperature": 0.6, "top_k": 20}, id="model's own"
        ),
        pytest.param(
            {"temperature": 0.2, "top_p": 0.9},
            {"temperature": 0.6, "top_p": 0.95},
            {"max_tokens": 16, "temperature": 0.2, "top_p": 0.9},
            id="the request wins",
        ),
        pytest.param({}, {"max_tokens": 2048}, {"max_tokens": 16}, id="the request's allowance always counts"),
        pytest.param({"stop": ["END"]}, {}, {"max_tokens": 16, "stop": ["END"]}, id="stop strings"),
    ],
)
def test_sampling_fields(decoding: dict[str, object], defaults: dict[str, float], expected: dict[str, object]) -> None:
    """What the request leaves open comes from the model's generation configuration."""
    fields = sampling_fields(make_request(**decoding), defaults)
    fields.pop("seed")
    assert fields == expected


def test_greedy_requests_have_no_seed() -> None:
    """Nothing is drawn at temperature 0."""
    assert "seed" not in sampling_fields(make_request(temperature=0.0), {})


def test_the_request_s_own_seed_is_used_and_moves_with_the_sample_number() -> None:
    """Repeated draws of one prompt differ even when the sweep fixes a seed."""
    assert sampling_seed(make_request(seed=7)) == 7
    assert sampling_seed(make_request(seed=7, sample=3)) == 10


def test_a_seed_is_derived_from_what_is_asked() -> None:
    """The same request draws the same again; another sample or another prompt draws anew."""
    seeds = [sampling_seed(make_request(text, sample=n)) for text in ("a", "b") for n in (0, 1)]
    assert len(set(seeds)) == 4
    assert sampling_seed(make_request("a")) == seeds[0]


@given(seed=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), sample=st.integers(0, 2**40))
def test_every_seed_fits_torch(seed: int | None, sample: int) -> None:
    """Whatever the sweep says, the generator takes it."""
    request = msgspec.structs.replace(make_request(sample=sample), decoding=Decoding(max_tokens=1, seed=seed))
    assert 0 <= sampling_seed(request) < 2**63


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"thinking": True}, {"enable_thinking": True}, id="on"),
        pytest.param({"thinking": False}, {"enable_thinking": False}, id="off"),
        pytest.param({"effort": "low"}, {"reasoning_effort": "low"}, id="effort"),
    ],
)
def test_template_options(decoding: dict[str, object], expected: dict[str, object]) -> None:
    """The reasoning switch goes to the chat template, and only when it is set."""
    plain = {"add_generation_prompt": True, "tokenize": False}
    assert template_options(make_request(**decoding).decoding) == plain | expected


@pytest.mark.parametrize("schema", ["", "{", "[1]", '"object"', "null"], ids=["empty", "cut", "list", "word", "null"])
def test_schema_that_is_no_json_object_is_a_bad_request(schema: str) -> None:
    """Such a request can never work, and only it."""
    with pytest.raises(ProviderError) as caught:
        schema_object(make_request(schema=schema).decoding)
    assert caught.value.kind is ErrorClass.BAD_REQUEST


def test_schema_is_read() -> None:
    """JSON text becomes the object that vLLM compiles; no schema stays none."""
    assert schema_object(make_request(schema='{"type": "object"}').decoding) == {"type": "object"}
    assert schema_object(make_request().decoding) is None


def test_one_device_needs_no_process() -> None:
    """The engine runs in this process unless the model is spread over devices."""
    one = engine_arguments(VllmSettings(), "/models/m", None)
    two = engine_arguments(VllmSettings(tensor_parallel_size=2), "/models/m", None)
    assert (one["distributed_executor_backend"], two["distributed_executor_backend"]) == ("uni", "mp")


def test_what_is_left_open_depends_on_the_device() -> None:
    """On the CPU memory is bounded and nothing is compiled; on GPUs vLLM takes what it needs."""
    cpu = engine_arguments(VllmSettings(), "/models/m", "flags : avx2")
    gpu = engine_arguments(VllmSettings(), "/models/m", None)
    names = ("dtype", "max_num_seqs", "kv_cache_memory_bytes", "enforce_eager")
    assert [cpu[name] for name in names] == ["float32", 64, 2 << 30, True]
    assert [gpu[name] for name in names] == ["auto", 256, None, False]


def test_what_is_set_holds_on_every_device() -> None:
    """Settings win over what the device suggests."""
    settings = VllmSettings(dtype="bfloat16", max_num_seqs=5, kv_cache_bytes=7, enforce_eager=False)
    for cpuinfo in (None, "flags : avx2"):
        arguments = engine_arguments(settings, "/models/m", cpuinfo)
        assert (arguments["dtype"], arguments["max_num_seqs"]) == ("bfloat16", 5)
        assert (arguments["kv_cache_memory_bytes"], arguments["enforce_eager"]) == (7, False)


def test_structured_answers_have_no_free_white_space() -> None:
    """A weak model would write it without end; a reasoning format is passed on when there is one."""
    assert structured_options(VllmSettings()) == {"backend": "guidance", "disable_any_whitespace": True}
    assert structured_options(VllmSettings(reasoning_parser="qwen3"))["reasoning_parser"] == "qwen3"


def test_only_local_folders_are_run_offline() -> None:
    """A hub name must still be allowed to load."""
    assert environment(VllmSettings(), local=True)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(VllmSettings(), local=False)


def test_threads_may_be_set() -> None:
    """A machine that is shared can be left some cores."""
    assert environment(VllmSettings(threads=3), local=True)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("asked", "cpuinfo", "expected"),
    [
        pytest.param("auto", "flags : fpu avx2 avx512f avx512_bf16", "bfloat16", id="x86 with it"),
        pytest.param("auto", "flags : fpu avx2 fma", "float32", id="x86 without"),
        pytest.param("auto", "Features : fp asimd bf16 i8mm", "bfloat16", id="arm with it"),
        pytest.param("auto", "", "float32", id="unknown"),
        pytest.param("float16", "flags : avx512_bf16", "float16", id="asked for"),
    ],
)
def test_number_format_follows_the_processor(asked: str, cpuinfo: str, expected: str) -> None:
    """bfloat16 is emulated, several times slower, where the processor lacks it."""
    assert cpu_dtype(msgspec.convert({"dtype": asked}, VllmSettings), cpuinfo) == expected


def test_unknown_setting_is_refused() -> None:
    """A misspelt setting is an error, not a default."""
    with pytest.raises(msgspec.ValidationError, match="max_model_length"):
        msgspec.convert({"max_model_length": 1}, VllmSettings)


def test_completion_carries_counts_and_the_raw_reply() -> None:
    """Usage is what vLLM counted; the raw reply reads back as JSON."""
    output = make_output(prompt_tokens=40, cached_tokens=32, output_tokens=5, model="m", engine="vllm 1 float32")
    completion = completion_of(output, thinking=None)
    assert (completion.text, completion.finish, completion.finish_raw) == ("Paris.", Finish.STOP, "stop")
    usage = completion.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (40, 32, 5)
    assert completion.model_echo == "m"
    assert json.loads(completion.raw)["cached_tokens"] == 32


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", Finish.STOP), ("length", Finish.TRUNCATED), ("repetition", Finish.OTHER)],
)
def test_finish_reasons(reason: str, finish: Finish) -> None:
    """The words of vLLM in ours."""
    assert completion_of(make_output(finish_reason=reason), thinking=None).finish is finish


@pytest.mark.parametrize("reason", ["abort", "error", ""])
def test_a_request_that_vllm_gave_up_is_no_completion(reason: str) -> None:
    """Half an answer is not an answer; it may be tried again."""
    with pytest.raises(ProviderError) as caught:
        completion_of(make_output(finish_reason=reason), thinking=None)
    assert caught.value.kind is ErrorClass.TRANSIENT


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        pytest.param("Paris.", False, ("", "Paris."), id="none"),
        pytest.param("<think>\nhm\n</think>\n\nParis.", False, ("hm", "Paris."), id="thinking and answer"),
        pytest.param("hm\n</think>\n\nParis.", True, ("hm", "Paris."), id="opened by the template"),
        pytest.param("<think>\nhm", False, ("hm", ""), id="cut off while thinking"),
        pytest.param("hm", True, ("hm", ""), id="opened and cut off"),
        pytest.param("The tag </think> ends it.", False, ("", "The tag </think> ends it."), id="only talks about tags"),
        pytest.param("<think></think>Paris.", False, ("", "Paris."), id="empty"),
    ],
)
def test_thinking_is_split_from_the_answer(text: str, opened: bool, expected: tuple[str, str]) -> None:
    """An answer that never came is empty, never the thinking."""
    assert split_thinking(text, opened=opened) == expected


def test_text_stays_as_it_came_when_thinking_is_off() -> None:
    """A model told not to think may still write about the tag."""
    text = "<think> is a tag"
    assert completion_of(make_output(text), thinking=False).text == text
    assert completion_of(make_output("<think>a</think>b"), thinking=True).thinking == "a"


def test_waiting_requests_leave_by_common_beginnings() -> None:
    """Requests of two personas that came mixed leave in two runs."""
    queue = PrefixQueue()
    for number, text in enumerate(["B one", "A one", "B two", "A two", "B three"]):
        queue.push(text, number)
    order = [queue.pop() for _ in range(len(queue))]
    assert [key for key, _ in groupby("BABAB"[number] for number in order)] == ["A", "B"]


def test_newcomers_do_not_push_others_back_for_ever() -> None:
    """Leaving goes round: a late prompt that sorts first waits for its turn."""
    queue = PrefixQueue()
    for number, text in enumerate(["b", "c", "d"]):
        queue.push(text, number)
    first = queue.pop()
    queue.push("a", 9)
    assert [first, *(queue.pop() for _ in range(3))] == [0, 1, 2, 9]


def test_equal_prompts_leave_in_the_order_they_came() -> None:
    """Samples of one prompt keep their order."""
    queue = PrefixQueue()
    for number in (1, 2, 3):
        queue.push("same", number)
    assert [queue.pop() for _ in range(3)] == [1, 2, 3]


@given(st.lists(st.tuples(st.text(max_size=3), st.booleans())))
def test_everyone_leaves_once_or_is_taken_out(arrivals: list[tuple[str, bool]]) -> None:
    """Nobody is lost and nobody leaves twice, whatever is cancelled."""
    queue = PrefixQueue()
    for number, (text, _) in enumerate(arrivals):
        queue.push(text, number)
    gone = {number for number, (text, cancelled) in enumerate(arrivals) if cancelled and queue.discard(text, number)}
    left = [queue.pop() for _ in range(len(queue))]
    assert sorted([*left, *gone]) == list(range(len(arrivals)))


def test_discarding_someone_who_left_says_so() -> None:
    """A request that is already in the engine must be aborted there."""
    queue = PrefixQueue()
    queue.push("a", 1)
    queue.pop()
    assert not queue.discard("a", 1)


def test_order_tells_messages_apart() -> None:
    """The order is by what is said in which role, beginning with the first message."""
    messages = (Message(Role.SYSTEM, "Persona A"), Message(Role.USER, "Q1"))
    request = msgspec.structs.replace(make_request(), messages=messages)
    assert prompt_order(request).startswith("system\0Persona A\0user\0Q1")


async def test_a_request_for_another_model_is_refused_without_starting() -> None:
    """An answer is never attributed to a model that did not give it."""
    provider = VllmProvider(VllmSettings(model="/nowhere", name="mine"))
    with pytest.raises(ProviderError, match="serves mine, not smollm2-135m") as caught:
        await provider.complete(make_request())
    assert caught.value.kind is ErrorClass.BAD_REQUEST
    await provider.close()
