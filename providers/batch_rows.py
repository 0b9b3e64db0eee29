"""What the batch adapters share on rows: reading the lines of results files.

A results file is hostile text: a line that cannot be read becomes a row that says so, and nothing is raised for what a
line holds. Must not know: files, accounts, one provider's field names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from engine.batch.provider import Row
from engine.errors import ErrorClass, ProviderError
from providers.classify import ErrorTable, classify
from providers.dialect import Dialect
from providers.wire import read_reply

NO_STATUS: Final = 0

T = TypeVar("T")


class _Named(msgspec.Struct):
    custom_id: str | None = None
    key: str | None = None


_named: Final = msgspec.json.Decoder(_Named)


def read_rows(lines: Iterable[bytes], decoder: "msgspec.json.Decoder[T]", read: Callable[[T], Row]) -> Iterator[Row]:
    """Yield a row for every line; what cannot be read keeps its id, if that much can be read."""
    decode = decoder.decode
    for line in lines:
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            yield _mended(line, decoder, read)
        else:
            yield read(record)


def no_outcome() -> ProviderError:
    """Return the error of a row that holds neither an answer nor an error; it may have been charged."""
    text = "the row holds no answer and no error"
    return ProviderError(ErrorClass.TRANSIENT, text, code="malformed_reply", maybe_billed=True)


def row_error(table: ErrorTable, body: bytes, status: int = NO_STATUS) -> ProviderError:
    """Return the error that a row tells; it is not charged."""
    return classify(table, status, {}, body)


def row_dialect(dialects: Mapping[str, Dialect]) -> Dialect:
    """Return the dialect that reads the rows of any model of an account: absent usage passes only if all are free."""
    first = next(iter(dialects.values()))
    return msgspec.structs.replace(first, usage_optional=all(each.usage_optional for each in dialects.values()))


def dialect_of(dialects: Mapping[str, Dialect], model: str) -> Dialect:
    """Return a model's dialect; raises ProviderError (gone) for a model that the catalogue does not have."""
    found = dialects.get(model)
    if found is None:
        raise ProviderError(ErrorClass.GONE, f"the catalogue has no model {model!r} at this provider")
    return found


def _mended(line: bytes, decoder: "msgspec.json.Decoder[T]", read: Callable[[T], Row]) -> Row:
    try:
        return read(read_reply(decoder, line, {}))
    except ProviderError as error:
        return Row(_id_in(line), error)


def _id_in(line: bytes) -> str:
    try:
        found = _named.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found.custom_id or found.key or ""
