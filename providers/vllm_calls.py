"""Requests in vLLM's terms and its results in ours: pure, and complete without vLLM installed.

What a request leaves open is taken from the model's own `generation_config.json`, as vLLM's server does; where that is
silent too, vLLM's neutral values hold (temperature 1, no nucleus). A sampled request always has a seed: its own, or one
derived from its key, so that the same request draws the same text again (exactly in float32; in bfloat16 the text also
depends on which requests share a batch).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Final

import msgspec

from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Decoding, Finish, Request, Usage, request_key

SEED_BITS: Final = 63
THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
FINISH: Final[Mapping[str, Finish]] = {"stop": Finish.STOP, "length": Finish.TRUNCATED, "repetition": Finish.OTHER}


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
