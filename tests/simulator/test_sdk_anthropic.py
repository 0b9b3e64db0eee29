"""Anthropic's official client, as it is, finds nothing wrong with the simulator."""

from collections.abc import Callable, Iterator

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message

from bench.simulator.launch import Running

Break = Callable[..., None]
ERRORS = [
    ("rate_limited", anthropic.RateLimitError, 429, "rate_limit_error"),
    ("quota", anthropic.RateLimitError, 429, "rate_limit_error"),
    ("auth", anthropic.AuthenticationError, 401, "authentication_error"),
    ("bad_request", anthropic.BadRequestError, 400, "invalid_request_error"),
    ("gone", anthropic.NotFoundError, 404, "not_found_error"),
    ("server_error", anthropic.InternalServerError, 500, "api_error"),
    ("overloaded", anthropic.APIStatusError, 529, "overloaded_error"),
    ("timeout", anthropic.APIStatusError, 504, "timeout_error"),
]


@pytest.fixture
def client(simulator: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=simulator.url("anthropic"), api_key="good", max_retries=0) as found:
        yield found


def ask(client: Anthropic, text: str, model: str = "claude-opus-4-6") -> Message:
    return client.messages.create(model=model, max_tokens=500, messages=[{"role": "user", "content": text}])


def test_a_call_gives_text_usage_and_an_id(client: Anthropic) -> None:
    """The fields that a sweep needs, in the SDK's types."""
    message = ask(client, "claude hello")
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


@pytest.mark.parametrize(("fault", "kind", "status", "word"), ERRORS)
def test_errors_map_to_the_sdk_s_own(
    fault: str,
    kind: type[anthropic.APIStatusError],
    status: int,
    word: str,
    client: Anthropic,
    break_next: Break,
) -> None:
    """Class, status and the envelope's type as for the real service."""
    break_next(fault, f"claude {fault}")
    with pytest.raises(kind) as caught:
        ask(client, f"claude {fault}")
    body = caught.value.body
    assert isinstance(body, dict)
    assert (caught.value.status_code, body["error"]["type"]) == (status, word)


def test_a_spend_limit_is_told_from_a_rate_limit_by_its_details(client: Anthropic, break_next: Break) -> None:
    """Both are 429 with the same type."""
    break_next("quota", "claude broke")
    with pytest.raises(anthropic.RateLimitError) as caught:
        ask(client, "claude broke")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["details"]["error_code"] == "enforced_spend_limit_reached"


def test_a_cut_connection_is_a_connection_error(client: Anthropic, break_next: Break) -> None:
    """Paid for, and lost."""
    break_next("drop_after", "claude cut")
    with pytest.raises(anthropic.APIConnectionError):
        ask(client, "claude cut")


def test_rate_limit_headers_can_be_read(client: Anthropic) -> None:
    """Requests, tokens, input and output tokens, with moments for resets."""
    raw = client.messages.with_raw_response.create(
        model="claude-opus-4-6", max_tokens=50, messages=[{"role": "user", "content": "claude headers"}]
    )
    assert raw.headers["anthropic-ratelimit-requests-limit"] == "6000"
    assert raw.headers["anthropic-ratelimit-input-tokens-reset"].endswith("Z")
    assert raw.headers["x-simulated"] == "miragebench"


def test_an_exhausted_limit_says_when_to_come_back(client: Anthropic) -> None:
    """`retry-after` in seconds."""
    ask(client, "claude tight", "tight-1")
    with pytest.raises(anthropic.RateLimitError) as caught:
        ask(client, "claude tight again", "tight-1")
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 60


def test_a_refusal_is_a_stop_reason_with_details(client: Anthropic, break_next: Break) -> None:
    """HTTP 200, no content, billed."""
    break_next("refusal", "claude refuse")
    message = ask(client, "claude refuse")
    assert (message.stop_reason, message.content) == ("refusal", [])
    assert message.stop_details is not None


def test_a_stream_adds_up_to_the_whole_answer(client: Anthropic) -> None:
    """Through the SDK's own accumulation of events."""
    whole = ask(client, "claude stream")
    with client.messages.stream(
        model="claude-opus-4-6", max_tokens=500, messages=[{"role": "user", "content": "claude stream"}]
    ) as stream:
        final = stream.get_final_message()
    assert [block.text for block in final.content if block.type == "text"] == [
        block.text for block in whole.content if block.type == "text"
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_client_s_own_version_refuses_a_temperature(client: Anthropic) -> None:
    """The SDK sends the newest API version, which takes none."""
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model="claude-opus-4-6",
            max_tokens=50,
            messages=[{"role": "user", "content": "x"}],
            extra_body={"temperature": 0.7},
        )


def test_models_can_be_listed(client: Anthropic) -> None:
    """Those that the settings name, through the SDK's own paging."""
    assert [model.id for model in client.models.list(limit=1)] == ["gpt-4o-mini"]
