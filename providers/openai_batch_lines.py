"""Lines and rows of batches of OpenAI's shape: the chat adapter's bodies and replies in their envelopes. Pure.

Must not know: transports, batch objects.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import orjson

from engine.batch.provider import Row, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Message, Request, Role
from providers import openai
from providers.batch_dialect import BatchDialect
from providers.batch_lines import Frame, split_at, without_messages, write_turns
from providers.batch_rows import no_outcome, read_rows, row_error
from providers.dialect import Dialect, Structured
from providers.wire import OK, dump

HEAD: Final = b'{"custom_id":"'
NULL: Final = b"null"
SYSTEM: Final = Role.SYSTEM
UNPAID: Final = {"batch_expired": Unpaid.EXPIRED, "batch_cancelled": Unpaid.CANCELLED}


class _Answer(msgspec.Struct):
    status_code: int | None = OK
    request_id: str | None = ""
    body: msgspec.Raw = msgspec.Raw(b"")


class _Trouble(msgspec.Struct):
    code: str | int | None = None
    message: str | None = None
    error_code: str | int | None = None
    error_message: str | None = None


class _Row(msgspec.Struct):
    custom_id: str | int | None = None
    response: _Answer | None = None
    error: _Trouble | str | None = None


_row: Final = msgspec.json.Decoder(_Row, strict=False)


def frame(request: Request, dialect: Dialect, batches: BatchDialect) -> Frame:
    """Return what lines of the request's model and decoding share; raises ProviderError (bad_request)."""
    given = [name for name in batches.forbidden if getattr(request.decoding, name) is not None]
    if given:
        reason = f"batches of this provider take no {' and no '.join(given)}"
        raise ProviderError(ErrorClass.BAD_REQUEST, reason, code="batch_parameter")
    middle = b'","method":"POST","url":%b,"body":' % orjson.dumps(batches.endpoint)
    if request.decoding.schema is not None and dialect.structured is Structured.OBJECT:
        return Frame(HEAD, middle, b"}", _body_of(request, dialect))  # the prompt decides whether that can be asked
    before, after = split_at(openai.encode(without_messages(request), dialect), "messages")
    return Frame(HEAD, middle + before, after + b"}", _turns_in(dialect))


def read_lines(lines: Iterable[bytes], dialect: Dialect) -> Iterator[Row]:
    """Yield the rows in `lines`; never raises for what a line holds."""

    def read(row: _Row) -> Row:
        custom_id = row.custom_id
        return Row(custom_id if isinstance(custom_id, str) else str(custom_id or ""), _said(row, dialect))

    return read_rows(lines, _row, read)


def _said(row: _Row, dialect: Dialect) -> Completion | ProviderError | Unpaid:
    if row.response is not None:
        body = bytes(row.response.body)
        if body and body != NULL:
            return _answered(row.response, body, dialect)
    status = (row.response.status_code or 0) if row.response else 0
    if row.error is None:
        return row_error(dialect.errors, b"", status) if status not in (0, OK) else no_outcome()
    error = _Trouble(message=row.error) if isinstance(row.error, str) else row.error
    code = error.code if error.code is not None else error.error_code
    unpaid = UNPAID.get(str(code))
    if unpaid is not None:
        return unpaid
    told = {"error": {"code": str(code or ""), "message": error.message or error.error_message or ""}}
    return row_error(dialect.errors, dump(told), status)


def _answered(answer: _Answer, body: bytes, dialect: Dialect) -> Completion | ProviderError:
    headers = {"x-request-id": answer.request_id} if answer.request_id else {}
    try:
        return openai.decode(answer.status_code or OK, headers, body, dialect)
    except ProviderError as error:
        return error


def _turns_in(dialect: Dialect) -> Callable[[Sequence[Message]], bytes]:
    if dialect.system_role == SYSTEM.value:
        return write_turns
    roles = {role: role.value for role in Role} | {SYSTEM: dialect.system_role}
    return lambda messages: orjson.dumps([{"role": roles[each.role], "content": each.content} for each in messages])


def _body_of(request: Request, dialect: Dialect) -> Callable[[Sequence[Message]], bytes]:
    return lambda messages: openai.encode(msgspec.structs.replace(request, messages=tuple(messages)), dialect)
