"""OpenAI's official client, as it is, finds nothing wrong with the simulator."""

from collections.abc import Callable, Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from bench.simulator.launch import Running

Break = Callable[..., None]
ERRORS = [
    ("rate_limited", openai.RateLimitError, "rate_limit_exceeded"),
    ("rate_limited_tokens", openai.RateLimitError, "rate_limit_exceeded"),
    ("quota", openai.RateLimitError, "insufficient_quota"),
    ("auth", openai.AuthenticationError, "invalid_api_key"),
    ("bad_request", openai.BadRequestError, "invalid_value"),
    ("gone", openai.NotFoundError, "model_not_found"),
    ("server_error", openai.InternalServerError, None),
    ("bad_gateway", openai.InternalServerError, None),
    ("overloaded", openai.InternalServerError, "server_is_overloaded"),
    ("drop_before", openai.APIConnectionError, None),
    ("drop_after", openai.APIConnectionError, None),
]


@pytest.fixture
def client(simulator: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=simulator.url("openai"), api_key="good", max_retries=0) as found:
        yield found


def ask(client: OpenAI, text: str, model: str = "gpt-4o-mini") -> ChatCompletion:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])


def test_a_call_gives_text_usage_and_an_id(client: OpenAI) -> None:
    """The fields that a sweep needs, in the SDK's types."""
    completion = ask(client, "sdk hello")
    assert completion.choices[0].message.content
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    assert completion._request_id is not None
    assert completion._request_id.startswith("req_")


@pytest.mark.parametrize(("fault", "kind", "code"), ERRORS)
def test_errors_map_to_the_sdk_s_own(
    fault: str, kind: type[openai.APIError], code: str | None, client: OpenAI, break_next: Break
) -> None:
    """Class and code as for the real service."""
    break_next(fault, f"sdk {fault}")
    with pytest.raises(kind) as caught:
        ask(client, f"sdk {fault}")
    assert caught.value.code == code


def test_a_hint_is_obeyed_by_the_sdk_s_own_retry(simulator: Running, break_next: Break) -> None:
    """One 429 with a hint, then the answer; the SDK never tells."""
    break_next("rate_limited", "sdk retry", retry_after=0.1)
    with OpenAI(base_url=simulator.url("openai"), api_key="good", max_retries=1) as client:
        assert ask(client, "sdk retry").choices[0].message.content


def test_rate_limit_headers_can_be_read(client: OpenAI) -> None:
    """Limit, rest and reset of requests and tokens."""
    raw = client.chat.completions.with_raw_response.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "sdk headers"}]
    )
    assert raw.headers["x-ratelimit-limit-requests"] == "6000"
    assert int(raw.headers["x-ratelimit-remaining-requests"]) < 6000
    assert raw.headers["x-ratelimit-reset-tokens"] == "0s"
    assert raw.headers["x-simulated"] == "miragebench"


def test_a_refusal_is_a_field_of_the_message(client: OpenAI, break_next: Break) -> None:
    """No content, a refusal, and the finish of a normal answer."""
    break_next("refusal", "sdk refuse")
    choice = ask(client, "sdk refuse").choices[0]
    assert (choice.message.content, bool(choice.message.refusal), choice.finish_reason) == (None, True, "stop")


def test_a_filtered_answer_says_so(client: OpenAI, break_next: Break) -> None:
    """HTTP 200 is not success."""
    break_next("filtered", "sdk filter")
    assert ask(client, "sdk filter").choices[0].finish_reason == "content_filter"


def test_a_stream_adds_up_to_the_whole_answer(client: OpenAI) -> None:
    """Deltas, a finish and one chunk of usage."""
    whole = ask(client, "sdk stream")
    chunks = list(
        client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": "sdk stream"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_a_reasoning_model_refuses_the_old_allowance(client: OpenAI) -> None:
    """400 with the parameter's name."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="gpt-5.5", messages=[{"role": "user", "content": "x"}], max_tokens=5)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "unsupported_parameter")


@pytest.mark.parametrize("provider", ["deepseek", "dashscope", "zhipu", "moonshot"])
def test_compatible_endpoints_satisfy_the_same_sdk(provider: str, simulator: Running) -> None:
    """Text, reasoning and usage through another base address."""
    with OpenAI(base_url=simulator.url(provider), api_key="good", max_retries=0) as client:
        completion = client.chat.completions.create(
            model="some-model",
            messages=[{"role": "user", "content": "sdk dialect"}],
            extra_body={"thinking": {"type": "enabled"}, "enable_thinking": True},
        )
    message = completion.choices[0].message
    assert message.content
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 10


@pytest.mark.parametrize(
    ("provider", "kind", "code"),
    [
        ("deepseek", openai.APIStatusError, "invalid_request_error"),
        ("dashscope", openai.BadRequestError, "Arrearage"),
        ("zhipu", openai.RateLimitError, "1113"),
        ("moonshot", openai.RateLimitError, None),
    ],
)
def test_an_empty_account_has_a_different_face_everywhere(
    provider: str, kind: type[openai.APIStatusError], code: str | None, simulator: Running, break_next: Break
) -> None:
    """402, 400, and two kinds of 429."""
    break_next("quota", f"sdk broke {provider}")
    with (
        OpenAI(base_url=simulator.url(provider), api_key="good", max_retries=0) as client,
        pytest.raises(kind) as caught,
    ):
        ask(client, f"sdk broke {provider}", "some-model")
    assert caught.value.code == code


def test_models_can_be_listed(client: OpenAI) -> None:
    """Those that the settings name."""
    assert [model.id for model in client.models.list()] == ["gpt-4o-mini"]
