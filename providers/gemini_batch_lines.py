"""Lines and rows of Gemini's batch files: the generateContent adapter's bodies and replies beside a key. Pure.

Must not know: transports, jobs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import orjson

from engine.batch.provider import Row
from engine.errors import ProviderError
from engine.request import Completion, Message, Request, Role
from providers import gemini
from providers.batch_lines import Frame, split_at, without_messages
from providers.batch_rows import no_outcome, read_rows, row_error
from providers.dialect import Dialect
from providers.wire import OK, dump, read_reply

# Error rows number their errors as HTTP does or as google.rpc does: code -> HTTP status and the word that goes with it.
RPC: Final = {
    1: (499, "CANCELLED"),
    2: (500, "UNKNOWN"),
    3: (400, "INVALID_ARGUMENT"),
    4: (504, "DEADLINE_EXCEEDED"),
    5: (404, "NOT_FOUND"),
    7: (403, "PERMISSION_DENIED"),
    8: (429, "RESOURCE_EXHAUSTED"),
    9: (400, "FAILED_PRECONDITION"),
    10: (409, "ABORTED"),
    13: (500, "INTERNAL"),
    14: (503, "UNAVAILABLE"),
    16: (401, "UNAUTHENTICATED"),
}
SYSTEM: Final = Role.SYSTEM
ASSISTANT: Final = Role.ASSISTANT
NO_HEADERS: Final[Mapping[str, str]] = {}
TRANSIENT_ROWS: Final = (499,)


class _Key(msgspec.Struct):
    key: str | None = None


class _Row(msgspec.Struct):
    key: str | None = None
    metadata: _Key | None = None
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Status(msgspec.Struct):
    code: int | None = 0


_row: Final = msgspec.json.Decoder(_Row, strict=False)
_status: Final = msgspec.json.Decoder(_Status, strict=False)


def frame(request: Request, dialect: Dialect) -> Frame:
    """Return what lines of the request's model and decoding share; raises ProviderError (bad_request)."""
    body = gemini.encode(without_messages(request), dialect)
    before, after = split_at(body, "contents")
    return Frame(b'{"key":"', b'","request":' + before, after + b"}", _prompt)


def read_lines(lines: Iterable[bytes], dialect: Dialect) -> Iterator[Row]:
    """Yield the rows in `lines`; never raises for what a line holds."""

    def read(row: _Row) -> Row:
        key = row.key or (row.metadata.key if row.metadata else None) or ""
        return Row(key, _said(bytes(row.response), bytes(row.error), dialect))

    return read_rows(lines, _row, read)


def _said(response: bytes, error: bytes, dialect: Dialect) -> Completion | ProviderError:
    if response != b"null":
        try:
            return gemini.decode(OK, NO_HEADERS, response, dialect)
        except ProviderError as failure:
            return failure
    return no_outcome() if error == b"null" else _refused(error, dialect)


def _refused(error: bytes, dialect: Dialect) -> ProviderError:
    """Return the error of a row; that it is not charged follows from the single call and is not documented."""
    try:
        code = read_reply(_status, error, {}).code or 0
    except ProviderError:
        return no_outcome()
    status, word = RPC.get(code, (code, ""))
    told = {"error": orjson.Fragment(error)} | ({"status": word} if word else {})
    return row_error(dialect.errors, dump(told), 0 if status in TRANSIENT_ROWS else status)


def _prompt(messages: Sequence[Message]) -> bytes:
    turns = [
        {"role": "model" if each.role is ASSISTANT else "user", "parts": [{"text": each.content}]}
        for each in messages
        if each.role is not SYSTEM
    ]
    system = [{"text": each.content} for each in messages if each.role is SYSTEM]
    written = orjson.dumps(turns)
    return written + b',"systemInstruction":' + orjson.dumps({"parts": system}) if system else written
