"""What an exception of the HTTP layers means for a call, in plain words. Pure: exceptions in, errors out.

What it says about money: before the connection stood, nothing was sent, so nothing was billed. After that an answer may
have been made, and charged, without reaching us. Must not know: requests, replies, keys.
"""

import errno
from typing import Final

import aiohttp
import httpx

from engine.errors import ErrorClass, ProviderError
from providers.errorbody import safe_line

# TimeoutError, the bound on the whole exchange, is an OSError.
FOREIGN: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, aiohttp.ClientError, OSError)

TIMEOUT: Final = "timeout"
DROPPED: Final = "dropped"

_UNSENT_CAUSES: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
_UNSENT: Final = (httpx.ConnectError, httpx.ProxyError, httpx.PoolTimeout, httpx.ConnectTimeout)
_ADDRESS: Final = (httpx.UnsupportedProtocol, httpx.InvalidURL, aiohttp.InvalidURL)
# aiohttp's exceptions, the special before the general ones, in words for people who do not know aiohttp.
_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "no host is known by the name {host}; check base_url and the network"),
    (aiohttp.ClientProxyConnectionError, "the proxy {host}:{port} cannot be reached"),
    (aiohttp.ClientHttpProxyError, "the proxy refused with HTTP {status}"),
    (aiohttp.ClientConnectorCertificateError, "the certificate of {host} cannot be trusted"),
    (aiohttp.ClientSSLError, "{host}:{port} does not speak TLS as it should"),
    (aiohttp.ClientConnectorError, "{host}:{port} {system}"),
    (aiohttp.ConnectionTimeoutError, "the host did not take the connection in time"),
    (aiohttp.ServerDisconnectedError, "the server hung up"),
    (aiohttp.ClientPayloadError, "the reply ended early"),
    (aiohttp.ClientResponseError, "what came is no HTTP reply"),
    (httpx.DecodingError, "the reply's compression is damaged"),
)
_RESET: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


def explained(error: Exception) -> ProviderError:
    """Return the error that an exception of the HTTP layers amounts to; it must be one of `FOREIGN`."""
    if isinstance(error, _ADDRESS):
        return ProviderError(ErrorClass.BAD_REQUEST, f"the address cannot be called: {_reason(error)}", code="address")
    if _unsent(error):
        return ProviderError(ErrorClass.TRANSIENT, f"could not connect: {_reason(error)}", code="connect")
    if isinstance(error, (TimeoutError, httpx.TimeoutException)) and not _dropped(error):
        return ProviderError(ErrorClass.TRANSIENT, "no answer within the time allowed", code=TIMEOUT, maybe_billed=True)
    return ProviderError(
        ErrorClass.TRANSIENT,
        f"the connection broke before the answer was whole: {_reason(error)}",
        code=DROPPED,
        maybe_billed=True,
    )


def _unsent(error: Exception) -> bool:
    """Return whether the connection never stood.

    The transport reports a connection dropped while waiting as ConnectTimeout too, hence the look at aiohttp's own.
    """
    own = _own(error)
    return isinstance(error, _UNSENT) if own is None else isinstance(own, _UNSENT_CAUSES)


def _dropped(error: Exception) -> bool:
    own = _own(error)
    return own is not None and not isinstance(own, aiohttp.ServerTimeoutError)


def _own(error: Exception) -> aiohttp.ClientError | None:
    """Return aiohttp's exception, which came by itself or inside httpx's."""
    return next((each for each in (error, error.__cause__) if isinstance(each, aiohttp.ClientError)), None)


def _reason(error: Exception) -> str:
    own = _own(error)
    plain = _plain(error if own is None else own)
    return safe_line(plain or str(error)) or type(error).__name__


def _plain(error: Exception) -> str:
    """Return what happened in plain words, empty where the exception's own must do."""
    if isinstance(error, OSError) and error.errno in _RESET:
        return "the server cut the connection"
    words = next((words for kind, words in _WORDS if isinstance(error, kind)), "")
    facts = {name: getattr(error, name, "") for name in ("host", "port", "status")}
    return words.format(**facts, system=_system(getattr(error, "os_error", error)))


def _system(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", 0) == errno.ECONNREFUSED:
        return "takes no connections; is a server running there?"
    return f"cannot be reached: {getattr(error, 'strerror', '') or type(error).__name__}"
