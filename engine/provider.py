"""What the engine asks of a provider, and what it learns from every reply. Protocols and records only."""

from typing import Final, Protocol

import msgspec

from engine.request import Completion, Request

WITHDRAWN: Final = "withdrawn"
"""`ProviderError.code` of a call that its provider had not begun when the run was stopped: it was never made."""


class RateHints(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a provider's reply announced; None where it said nothing.

    Attributes:
        *_limit: what the provider allows per window (requests or tokens per minute unless the adapter converted it).
        *_remaining: what is left of the current window.
        *_reset: seconds until that window is full again.
    """

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset: float | None = None
    input_tokens_limit: int | None = None
    input_tokens_remaining: int | None = None
    input_tokens_reset: float | None = None
    output_tokens_limit: int | None = None
    output_tokens_remaining: int | None = None
    output_tokens_reset: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset: float | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A completion with the limits that its headers announced."""

    completion: Completion
    hints: RateHints | None = None


class Provider(Protocol):
    """Sends one request at a time; called concurrently, up to the lane's concurrency."""

    @property
    def name(self) -> str:
        """The provider's name in the catalogue, e.g. `openai` or `vllm`."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Send `request` once, without retrying, and return its completion.

        Raises:
            ProviderError: no completion came; says whether the call may have been billed.
        """
        ...

    async def close(self) -> None:
        """Release connections, threads and model memory; safe to call twice."""
        ...
