"""Calls beside the sweep itself: which models does an account have, and later what has become of a batch.

Such calls are cheap, idempotent reads, so they are retried (tenacity) and spaced (asyncio-throttle); completions never
pass here. A call that creates something is sent once and never retried: its outcome after a lost answer is the caller's
question. Must not know: lanes, ledgers, requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final
from urllib.parse import quote

import httpx
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from engine.errors import ErrorClass, ProviderError
from providers.card import ModelCard
from providers.classify import ErrorTable, classify
from providers.dialect import Wire
from providers.http import HttpEndpoint, HttpReply, Timeouts
from providers.pace import pace
from providers.registry import build_endpoint, by_account
from providers.wire import read_reply

TRIES: Final = 5
CALLS_PER_SECOND: Final = 2
LONGEST_WAIT: Final = 60.0
MOST_PAGES: Final = 50
TIMEOUTS: Final = Timeouts(connect=10.0, silence=60.0, total=120.0)

FIRST_ERROR: Final = 300
_MODELS_PATH: Final = {Wire.OPENAI: "/models", Wire.ANTHROPIC: "/v1/models", Wire.GEMINI: "/models"}
_FIRST_PAGE: Final = {Wire.OPENAI: "", Wire.ANTHROPIC: "?limit=1000", Wire.GEMINI: "?pageSize=1000"}

Sleep = Callable[[float], Awaitable[None]]

_backoff: Final = wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT)


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What an account says about one model.

    Attributes:
        found: True or False by the account's list; None when it could not be asked.
        note: why not, or on which day the provider retires the model.
    """

    alias: str
    provider: str
    found: bool | None
    note: str = ""


class _Model(msgspec.Struct):
    id: str = ""
    name: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] | None = None
    models: list[_Model] | None = None
    has_more: bool = False
    last_id: str | None = None
    next_page_token: str | None = msgspec.field(default=None, name="nextPageToken")


_models: Final = msgspec.json.Decoder(_Models, strict=False)


class ControlClient:
    """Reads an account's control plane.

    Args:
        sleep: waits between tries; replaced in tests.
    """

    def __init__(
        self,
        endpoint: HttpEndpoint,
        errors: ErrorTable,
        *,
        tries: int = TRIES,
        per_second: int = CALLS_PER_SECOND,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._endpoint, self._errors = endpoint, errors
        self._tries, self._pace, self._sleep = tries, pace(per_second), sleep

    async def get(self, path: str) -> HttpReply:
        """Fetch `path`, trying again after rate limits and transient errors.

        Raises:
            ProviderError: the last error, or the first that no retry can help.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._tries),
            wait=_wait,
            retry=retry_if_exception(_worth_repeating),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(self._once, path)

    async def post(self, path: str, body: bytes) -> HttpReply:
        """Send `body` once; raises ProviderError, and `maybe_billed` says whether it may have had its effect."""
        return await self._once(path, body)

    async def model_names(self, wire: Wire) -> frozenset[str]:
        """Return the names of all models that the account may call; raises ProviderError."""
        names: set[str] = set()
        query = _FIRST_PAGE[wire]
        for _ in range(MOST_PAGES):
            reply = await self.get(f"{_MODELS_PATH[wire]}{query}")
            page = read_reply(_models, reply.body, reply.headers)
            names.update(_names(page))
            following = _next_page(page, query)
            if following is None:
                break
            query = following
        return frozenset(names)

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._endpoint.close()

    async def _once(self, path: str, body: bytes | None = None) -> HttpReply:
        async with self._pace:
            reply = await (self._endpoint.get(path) if body is None else self._endpoint.post(path, body))
        if reply.status >= FIRST_ERROR:
            raise classify(self._errors, reply.status, reply.headers, reply.body)
        return reply


async def check_models(
    cards: Iterable[ModelCard],
    environ: Mapping[str, str],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    sleep: Sleep = asyncio.sleep,
) -> tuple[ModelCheck, ...]:
    """Return, for every card called over HTTP, whether its account lists the model. Costs nothing.

    An account that cannot be asked (no such list, no connection, a rejected key) is reported, not raised.

    Raises:
        UserError: a key is missing.
    """
    checks: list[ModelCheck] = []
    for group in by_account(cards).values():
        endpoint = build_endpoint(group[0], environ, timeouts=TIMEOUTS, transport=transport)
        client = ControlClient(endpoint, group[0].dialect.errors, sleep=sleep)
        try:
            names, trouble = await client.model_names(group[0].dialect.wire), ""
        except ProviderError as error:
            names, trouble = frozenset(), f"could not ask: {error.message}"
        finally:
            await client.close()
        checks += [_checked(card, names, trouble) for card in group]
    return tuple(checks)


def _worth_repeating(error: BaseException) -> bool:
    return (
        isinstance(error, ProviderError)
        and error.kind in (ErrorClass.RATE, ErrorClass.TRANSIENT)
        and (error.retry_after or 0.0) <= LONGEST_WAIT
    )


def _wait(state: RetryCallState) -> float:
    """Return the wait asked for by the reply, else an exponentially growing, randomised one."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ProviderError) else None
    return _backoff(state) if asked is None else asked


def _names(page: _Models) -> Iterable[str]:
    for model in (*(page.data or ()), *(page.models or ())):
        yield model.id or model.name.removeprefix("models/")


def _next_page(page: _Models, query: str) -> str | None:
    """Return the query of the following page, or None; a page that points at itself is the last."""
    if page.next_page_token:
        following = f"?pageSize=1000&pageToken={quote(page.next_page_token, safe='')}"
    elif page.has_more and page.last_id:
        following = f"?limit=1000&after_id={quote(page.last_id, safe='')}"
    else:
        return None
    return following if following != query else None


def _checked(card: ModelCard, names: frozenset[str], trouble: str) -> ModelCheck:
    found = None if trouble or not names else card.model in names
    retired = f"retired by the provider on {card.retired}" if card.retired else ""
    note = trouble or retired or ("" if names else "the account lists no models")
    return ModelCheck(alias=card.alias, provider=card.provider, found=found, note=note)
