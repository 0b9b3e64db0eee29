"""A line that was put together from pieces says what the single call's encoder would have said."""

import json
from collections.abc import Callable

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.provider import BatchLimits, BatchLine, BatchProvider
from engine.errors import ErrorClass, ProviderError
from engine.request import Decoding, Message, Request, Role
from providers import anthropic, gemini, openai
from providers.anthropic_batch import AnthropicBatches
from providers.batch_dialect import BATCH_DIALECTS
from providers.batch_lines import MOST_FRAMES, Frame, LineWriter, split_at
from providers.batch_link import BatchLink
from providers.classify import ErrorTable
from providers.dialect import DIALECTS, Dialect, Wire
from providers.gemini_batch import GeminiBatches
from providers.http import HttpEndpoint
from providers.openai_batch import OpenAIBatches

MODELS = ("m", 'a"messages":[]b', '"contents":[]')
NAMES = ("openai", "openai-plain", "dashscope", "zhipu", "kimi", "anthropic", "anthropic-budget", "gemini")
DEVELOPER = msgspec.structs.replace(DIALECTS["openai"], system_role="developer")
SPELLINGS: dict[str, Dialect] = {name: DIALECTS[name] for name in NAMES} | {"developer": DEVELOPER}

texts = st.text(max_size=30) | st.sampled_from(['"messages":[]', "json", "a\nb\u2028"])
messages = st.lists(st.builds(Message, st.sampled_from(Role), texts), max_size=4).map(tuple)
decodings = st.builds(
    Decoding,
    max_tokens=st.integers(1, 9_000),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(0, 9),
    stop=st.lists(texts, max_size=2).map(tuple),
    schema=st.none() | st.sampled_from(['{"type":"object"}', '{"const":{"messages":[],"contents":[]}}']),
    thinking=st.none() | st.booleans(),
    effort=st.none() | st.just("low"),
)


def adapter(name: str) -> BatchProvider:
    """Return an adapter that talks to nobody; parameters that its batches forbid are allowed."""
    dialect = SPELLINGS[name]
    network = httpx.MockTransport(lambda call: pytest.fail(str(call.url)))
    link = BatchLink(HttpEndpoint("p", "https://llm.example/v1", transport=network), dialect.errors)
    dialects = dict.fromkeys(MODELS, dialect)
    match dialect.wire:
        case Wire.ANTHROPIC:
            return AnthropicBatches(link, dialects=dialects)
        case Wire.GEMINI:
            return GeminiBatches(link, dialects=dialects)
        case _:
            batches = BATCH_DIALECTS.get(dialect.errors, BATCH_DIALECTS[ErrorTable.OPENAI])
            return OpenAIBatches(link, msgspec.structs.replace(batches, forbidden=()), dialects=dialects)


ADAPTERS = {name: adapter(name) for name in SPELLINGS}
PLACES: dict[Wire, tuple[str, str, Callable[[Request, Dialect], bytes]]] = {
    Wire.OPENAI: ("custom_id", "body", openai.encode),
    Wire.ANTHROPIC: ("custom_id", "params", anthropic.encode),
    Wire.GEMINI: ("key", "request", gemini.encode),
}


@pytest.mark.parametrize("name", SPELLINGS)
@given(model=st.sampled_from(MODELS), prompt=messages, decoding=decodings)
def test_a_line_holds_the_single_call(name: str, model: str, prompt: tuple[Message, ...], decoding: Decoding) -> None:
    """Member by member; what one refuses the other refuses with the same words."""
    key, place, encode = PLACES[SPELLINGS[name].wire]
    request = Request(provider="p", model=model, messages=prompt, decoding=decoding)
    try:
        expected = json.loads(encode(request, SPELLINGS[name]))
    except ProviderError as error:
        with pytest.raises(ProviderError) as caught:
            ADAPTERS[name].encode_line(BatchLine("run-0-0-1", request))
        assert (caught.value.kind, caught.value.message) == (error.kind, error.message)  # noqa: PT017
        return
    for index in range(2):
        found = json.loads(ADAPTERS[name].encode_line(BatchLine(f"run-0-0-{index}", request)))
        assert (found[key], found[place]) == (f"run-0-0-{index}", expected)


@pytest.mark.parametrize("limits", [{"max_bytes": 9}, {"max_bytes": 99, "max_line_bytes": 9}], ids=["file", "line"])
def test_a_line_may_be_as_long_as_a_batch_or_its_lines_may_be(limits: dict[str, int]) -> None:
    """Its end counts."""
    text = b"12345678"
    wide = BatchLimits(max_requests=None, window=1.0, results_kept=1.0, **limits)  # type: ignore[arg-type]
    line = BatchLine("a", Request(provider="p", model="m", messages=(), decoding=Decoding(max_tokens=1)))
    assert LineWriter(lambda _: Frame(b"", b"", b"", lambda _: text[1:]), wide).write(line) == b"a2345678"
    with pytest.raises(ProviderError, match="takes 10 bytes in a batch, the provider takes 9"):
        LineWriter(lambda _: Frame(b"", b"", b"", lambda _: text), wide).write(line)


def test_frames_are_kept_for_the_latest_decodings_only() -> None:
    """Seeds may make every request's another one."""
    made: list[Decoding] = []

    def frame(request: Request) -> Frame:
        made.append(request.decoding)
        return Frame(b"", b"", b"", lambda messages: b"x")

    writer = LineWriter(frame, BatchLimits(max_requests=None, max_bytes=99, window=1.0, results_kept=1.0))
    for seed in [*range(MOST_FRAMES + 1), MOST_FRAMES, 0]:
        decoding = Decoding(max_tokens=1, seed=seed)
        writer.write(BatchLine("a", Request(provider="p", model="m", messages=(), decoding=decoding)))
    assert [decoding.seed for decoding in made] == [*range(MOST_FRAMES + 1), 0]


def test_a_text_without_the_empty_list_is_a_defect() -> None:
    """An encoder that names its messages otherwise must not lose them."""
    with pytest.raises(ValueError, match="no empty messages"):
        split_at(b"{}", "messages")


def test_a_parameter_that_batches_do_not_take_is_refused_every_time() -> None:
    """A refusal is no frame."""
    dialect = DIALECTS["kimi"]
    link = BatchLink(HttpEndpoint("p", "https://llm.example/v1"), ErrorTable.KIMI)
    found = OpenAIBatches(link, BATCH_DIALECTS[ErrorTable.KIMI], dialects={"m": dialect})
    request = Request(provider="p", model="m", messages=(), decoding=Decoding(max_tokens=1, temperature=1.0))
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            found.encode_line(BatchLine("a", request))
        assert caught.value.kind is ErrorClass.BAD_REQUEST
