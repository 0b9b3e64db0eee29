"""A provider over HTTP: a codec (pure, one per wire format) and an endpoint (one account) put together.

Must not know: any wire format, lanes, ledgers, retries.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from engine.errors import ErrorClass, ProviderError
from engine.provider import Reply
from engine.request import Completion, Request
from providers.dialect import Dialect
from providers.headers import rate_hints
from providers.http import HttpEndpoint

KEY_HINT: Final = "; check the key in {}"


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """One wire format as pure functions.

    Attributes:
        path: path of a model's call below the base address.
        encode: the body of a request.
        decode: the completion in a reply of this status, headers (lower-case names) and body, or ProviderError.
    """

    path: Callable[[str], str]
    encode: Callable[[Request, Dialect], bytes]
    decode: Callable[[int, Mapping[str, str], bytes, Dialect], Completion]


class HttpProvider:
    """Sends requests of one wire format to one account; implements `engine.provider.Provider`.

    Args:
        name: the provider's name in the catalogue.
        dialects: dialect by model name.
        key_env: environment variable of the key, named when the key is rejected.
    """

    def __init__(
        self, name: str, endpoint: HttpEndpoint, codec: Codec, *, dialects: Mapping[str, Dialect], key_env: str = ""
    ) -> None:
        self._name, self._endpoint, self._codec = name, endpoint, codec
        self._dialects, self._key_env = dict(dialects), key_env

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        return self._name

    async def complete(self, request: Request) -> Reply:
        """Send `request` once, without retrying, and return its completion.

        Raises:
            ProviderError: no completion came; says whether the call may have been billed.
        """
        try:
            return await self._exchange(request)
        except ProviderError as error:
            raise self._told(error) from None

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._endpoint.close()

    async def _exchange(self, request: Request) -> Reply:
        dialect = self._dialects.get(request.model)
        if dialect is None:
            raise ProviderError(ErrorClass.GONE, f"the catalogue has no model {request.model!r} at this provider")
        body = self._codec.encode(request, dialect)
        reply = await self._endpoint.post(self._codec.path(request.model), body)
        completion = self._codec.decode(reply.status, reply.headers, reply.body, dialect)
        return Reply(completion=completion, hints=rate_hints(reply.headers))

    def _told(self, error: ProviderError) -> ProviderError:
        """Return `error` with the provider's name, and the way to mend a rejected key."""
        mend = KEY_HINT.format(self._key_env) if error.kind is ErrorClass.AUTH and self._key_env else ""
        return ProviderError(
            error.kind,
            f"{self._name}: {self._endpoint.hide(error.message)}{mend}",
            status=error.status,
            code=error.code,
            retry_after=error.retry_after,
            maybe_billed=error.maybe_billed,
            hints=error.hints,
        )
