"""Google's official client, as it is, finds nothing wrong with the simulator."""

from collections.abc import Callable, Iterator

import pytest
from google import genai
from google.genai import errors, types

from bench.simulator.launch import Running

Break = Callable[..., None]
MODEL = "gemini-3-flash-preview"
ERRORS = [
    ("rate_limited", errors.ClientError, 429, "RESOURCE_EXHAUSTED"),
    ("quota", errors.ClientError, 429, "RESOURCE_EXHAUSTED"),
    ("auth", errors.ClientError, 400, "INVALID_ARGUMENT"),
    ("bad_request", errors.ClientError, 400, "INVALID_ARGUMENT"),
    ("gone", errors.ClientError, 404, "NOT_FOUND"),
    ("server_error", errors.ServerError, 500, "INTERNAL"),
    ("overloaded", errors.ServerError, 503, "UNAVAILABLE"),
    ("timeout", errors.ServerError, 504, "DEADLINE_EXCEEDED"),
]


@pytest.fixture
def client(simulator: Running) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=simulator.url("gemini"), retry_options=types.HttpRetryOptions(attempts=1))
    with genai.Client(api_key="good", http_options=options) as found:
        yield found


def ask(client: genai.Client, text: str, model: str = MODEL) -> types.GenerateContentResponse:
    return client.models.generate_content(model=model, contents=text)


def test_a_call_gives_text_usage_and_an_id(client: genai.Client) -> None:
    """The fields that a sweep needs, in the SDK's types."""
    response = ask(client, "gemini hello")
    assert response.text
    assert response.candidates is not None
    assert response.candidates[0].finish_reason is types.FinishReason.STOP
    usage = response.usage_metadata
    assert usage is not None
    parts = (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count)
    assert usage.total_token_count == sum(part or 0 for part in parts)
    assert response.response_id


@pytest.mark.parametrize(("fault", "kind", "status", "word"), ERRORS)
def test_errors_map_to_the_sdk_s_own(
    fault: str, kind: type[errors.APIError], status: int, word: str, client: genai.Client, break_next: Break
) -> None:
    """Class, code and status name as for the real service."""
    break_next(fault, f"gemini {fault}")
    with pytest.raises(kind) as caught:
        ask(client, f"gemini {fault}")
    assert (caught.value.code, caught.value.status) == (status, word)


def test_an_exhausted_minute_tells_the_moment_in_its_details(client: genai.Client) -> None:
    """RetryInfo and the minute's quota."""
    ask(client, "gemini tight", "tight-1")
    with pytest.raises(errors.ClientError) as caught:
        ask(client, "gemini tight again", "tight-1")
    assert isinstance(caught.value.details, dict)
    kinds = {detail["@type"].rpartition(".")[2]: detail for detail in caught.value.details["error"]["details"]}
    assert 0 < float(kinds["RetryInfo"]["retryDelay"].removesuffix("s")) <= 60
    assert "PerMinute" in kinds["QuotaFailure"]["violations"][0]["quotaId"]


def test_an_exhausted_day_names_the_day(client: genai.Client) -> None:
    """No RetryInfo; the calendar helps."""
    ask(client, "gemini daily", "daily-1")
    with pytest.raises(errors.ClientError) as caught:
        ask(client, "gemini daily again", "daily-1")
    assert isinstance(caught.value.details, dict)
    (failure,) = caught.value.details["error"]["details"]
    assert "PerDay" in failure["violations"][0]["quotaId"]


def test_a_blocked_answer_has_a_reason_and_no_text(client: genai.Client, break_next: Break) -> None:
    """HTTP 200 with SAFETY."""
    break_next("filtered", "gemini filter")
    response = ask(client, "gemini filter")
    assert response.candidates is not None
    assert response.candidates[0].finish_reason is types.FinishReason.SAFETY
    assert not response.text


def test_settings_reach_the_model_in_the_sdk_s_spelling(client: genai.Client) -> None:
    """System instruction, allowance and schema."""
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        max_output_tokens=12,
        thinking_config=types.ThinkingConfig(thinking_budget=0),
        response_mime_type="application/json",
        response_json_schema={"type": "object", "properties": {"claims": {"type": "array"}}},
    )
    response = client.models.generate_content(model=MODEL, contents="gemini settings", config=config)
    assert response.candidates is not None
    assert response.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
    assert response.usage_metadata is not None
    assert response.usage_metadata.candidates_token_count == 12


def test_a_stream_adds_up_to_the_whole_answer(client: genai.Client) -> None:
    """Parts, then usage and a finish."""
    whole = ask(client, "gemini stream")
    chunks = list(client.models.generate_content_stream(model=MODEL, contents="gemini stream"))
    assert "".join(chunk.text or "" for chunk in chunks) == whole.text
    assert chunks[-1].usage_metadata == whole.usage_metadata


def test_models_can_be_listed(client: genai.Client) -> None:
    """Those that the settings name, through the SDK's own paging."""
    assert [model.name for model in client.models.list(config={"page_size": 1})] == ["models/gpt-4o-mini"]
