"""What the batch adapters share on lines: reading results files line by line, and checking a shard before it is sent.

A results file is hostile text of any length: lines are bounded, a line that cannot be read becomes a row that says so,
and nothing is raised for what a line holds. Must not know: paths, accounts, one provider's field names.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from engine.batching import CUSTOM_ID, BatchLimits, BatchLine, Problem, Row
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion
from providers.classify import ErrorTable, classify
from providers.dialect import Dialect
from providers.wire import read_reply

LONGEST_LINE: Final = 64 << 20
NO_STATUS: Final = 0

T = TypeVar("T")


class _Named(msgspec.Struct):
    custom_id: str | None = None
    key: str | None = None


_named: Final = msgspec.json.Decoder(_Named)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends, blank ones left out; one that is too long comes in pieces."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            line = line.strip()
            if line:
                yield line


def read_rows(lines: Iterable[bytes], decoder: "msgspec.json.Decoder[T]", read: Callable[[T], Row]) -> Iterator[Row]:
    """Yield a row for every line; what cannot be read keeps its id, if that much can be read."""
    for line in lines:
        try:
            record = read_reply(decoder, line, {})
        except ProviderError as error:
            yield Row(_id_in(line), error)
            continue
        yield read(record)


def outcome_of(decode: Callable[[], Completion]) -> Completion | ProviderError:
    """Return what `decode` returns or raises."""
    try:
        return decode()
    except ProviderError as error:
        return error


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


def check_lines(
    lines: Sequence[BatchLine], limits: BatchLimits, encode: Callable[[BatchLine], bytes], *, shortest_id: int = 1
) -> list[Problem]:
    """Return what would sink a batch of these lines at any provider with such limits."""
    problems = [*_check_ids(lines, shortest_id), *_check_agreement(lines, limits)]
    total = 0
    for line in lines:
        try:
            size = len(encode(line)) + 1
        except ProviderError as error:
            problems.append(Problem(custom_id=line.custom_id, reason=error.message))
            continue
        total += size
        if limits.max_line_bytes is not None and size > limits.max_line_bytes:
            reason = f"the line has {size:,} bytes, the provider takes {limits.max_line_bytes:,}"
            problems.append(Problem(custom_id=line.custom_id, reason=reason))
    if total > limits.max_bytes:
        problems.append(Problem(reason=f"the file has {total:,} bytes, the provider takes {limits.max_bytes:,}"))
    if not lines:
        problems.append(Problem(reason="there are no lines"))
    if limits.max_requests is not None and len(lines) > limits.max_requests:
        problems.append(Problem(reason=f"there are {len(lines):,} lines, the provider takes {limits.max_requests:,}"))
    return problems


def _check_ids(lines: Sequence[BatchLine], shortest: int) -> Iterator[Problem]:
    for line in lines:
        if not CUSTOM_ID.fullmatch(line.custom_id) or len(line.custom_id) < shortest:
            reason = f"the id must be {shortest} to 64 letters, digits, dashes or underscores"
            yield Problem(custom_id=line.custom_id, reason=reason)
    for custom_id, times in Counter(line.custom_id for line in lines).items():
        if times > 1:
            yield Problem(custom_id=custom_id, reason=f"{times} lines have this id")


def _check_agreement(lines: Sequence[BatchLine], limits: BatchLimits) -> Iterator[Problem]:
    models = sorted({line.request.model for line in lines})
    if limits.one_model and len(models) > 1:
        yield Problem(reason=f"lines ask several models ({', '.join(models)}), a batch takes one")
    if limits.one_thinking_mode and len({line.request.decoding.thinking for line in lines}) > 1:
        yield Problem(reason="some lines think and some do not, a batch takes one thinking mode")


def _id_in(line: bytes) -> str:
    try:
        found = _named.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found.custom_id or found.key or ""
