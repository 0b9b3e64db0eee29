"""Anthropic's Message Batches: lines travel in the create call, and a batch carries nothing of ours but its rows' ids.

So a batch whose creation was not told can only be guessed at, by time and number of requests, until it has ended; then
the first row proves whose it is. A bad line fails alone. Lines and rows are those of the Messages adapter.
Must not know: stores, retries of requests, prices.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import orjson

from engine.batch.provider import BatchLimits, BatchLine, BatchState, Marker, RemoteBatch, Row, Shard, Unpaid
from engine.errors import ProviderError
from engine.request import Completion, Message, Request, Role
from providers import anthropic
from providers.batch_files import Expected, file_size, last_byte, pieces, results_file
from providers.batch_lines import Frame, LineWriter, split_at, without_messages, write_turns
from providers.batch_link import BatchLink, moment
from providers.batch_rows import (
    dialect_of,
    no_outcome,
    read_rows,
    row_dialect,
    row_error,
)
from providers.dialect import Dialect
from providers.errorbody import safe_line
from providers.headers import retry_after
from providers.http import HttpReply
from providers.wire import OK, malformed, read_reply

BATCHES: Final = "/v1/messages/batches"
PAGE: Final = 1000
MOST_PAGES: Final = 100
SKEW: Final = 900.0  # seconds that two clocks may differ
DAY: Final = 86_400.0
ENDED: Final = "ended"
SYSTEM: Final = Role.SYSTEM
BEFORE: Final = b'{"requests":['
AFTER: Final = b"]}"

LIMITS: Final = BatchLimits(
    max_requests=100_000,
    max_bytes=256_000_000 - len(BEFORE) - len(AFTER),
    enqueued_requests=200_000,  # of the lowest tier
    window=DAY,
    results_kept=29 * DAY,
    has_marker=False,
    one_model=False,
    isolates_bad_lines=True,
)
UNPAID: Final = {"expired": Unpaid.EXPIRED, "canceled": Unpaid.CANCELLED}
KINDS: Final = frozenset({"succeeded", "errored", *UNPAID})
NO_HEADERS: Final[Mapping[str, str]] = {}
# Error rows tell a type and no HTTP status.
STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class _Counts(msgspec.Struct):
    processing: int | None = 0
    succeeded: int | None = 0
    errored: int | None = 0
    canceled: int | None = 0
    expired: int | None = 0


class _Batch(msgspec.Struct):
    id: str
    processing_status: str = ""
    request_counts: _Counts | None = None
    created_at: str | None = None
    expires_at: str | None = None
    archived_at: str | None = None


class _Page(msgspec.Struct):
    data: list[_Batch] | None = None
    has_more: bool | None = False
    last_id: str | None = None


class _Kind(msgspec.Struct):
    type: str | None = ""


class _Error(msgspec.Struct):
    error: _Kind | None = None


class _Result(msgspec.Struct):
    type: str = ""
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class _Row(msgspec.Struct):
    custom_id: str = ""
    result: _Result | None = None


_batch: Final = msgspec.json.Decoder(_Batch, strict=False)
_page: Final = msgspec.json.Decoder(_Page, strict=False)
_row: Final = msgspec.json.Decoder(_Row, strict=False)
_error: Final = msgspec.json.Decoder(_Error, strict=False)


class AnthropicBatches:
    """Implements `engine.batch.provider.BatchProvider` for one account; `dialects` is by model, at least one."""

    def __init__(self, link: BatchLink, *, dialects: Mapping[str, Dialect]) -> None:
        self._link, self._dialects = link, dict(dialects)
        self._row_dialect = row_dialect(dialects)
        # By batch, the id of its first result: rows do not change, and every look at the list would read them again.
        self._first_ids: dict[str, str] = {}
        self._writer = LineWriter(self._frame, LIMITS)

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        return self._link.name

    def limits(self, model: str) -> BatchLimits:
        """Return what a batch may hold; the same for every model."""
        del model
        return LIMITS

    def encode_line(self, line: BatchLine) -> bytes:
        """Return one request of the create call; raises ProviderError (bad_request, gone)."""
        return self._writer.write(line)

    async def upload(self, marker: Marker, path: Path) -> str:
        """Do nothing: lines travel with the create call."""
        del marker, path
        return ""

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Create the batch from the file's lines: sent once; raises ProviderError, see `BatchProvider.create`."""
        del marker, file_id, shard
        size = await asyncio.to_thread(file_size, path)
        size -= await asyncio.to_thread(last_byte, path) == b"\n"
        length = len(BEFORE) + size + len(AFTER)
        return self._read(await self._link.create_streamed(BATCHES, _requests(path, size), length))

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the batches of about that time and exactly that many requests which are not proved to be another's."""
        found: list[RemoteBatch] = []
        async for page in self._pages():
            batches = [self._remote(batch, None) for batch in page]
            recent = [batch for batch in batches if batch.created_at >= since - SKEW]
            judged = [await self._judged(batch, marker) for batch in recent if batch.count == count]
            found += [batch for batch in judged if batch is not None]
            if len(recent) < len(batches):
                break
        return found

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it stands; raises ProviderError."""
        return self._read(await self._link.poll(_place(batch_id)))

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring the results into `folder`; every request has a row, so fewer rows are fetched again."""
        return [
            await self._link.bring(
                f"{_place(reference)}/results", results_file(folder, batch.id, "results"), Expected(lines=batch.count)
            )
            for reference in batch.results
        ]

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield what the lines of a results file say; never raises for what a line holds."""
        return read_rows(lines, _row, lambda row: Row(row.custom_id, self._said(row.result)))

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop the batch."""
        await self._link.order(f"{_place(batch_id)}/cancel")

    async def clean(self, batch: RemoteBatch) -> None:
        """Do nothing: there are no files, and results go by themselves."""

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Do nothing: there are no files."""
        del run, keep
        return 0

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._link.close()

    def _frame(self, request: Request) -> Frame:
        body = anthropic.encode(without_messages(request), dialect_of(self._dialects, request.model))
        before, after = split_at(body, "messages")
        return Frame(b'{"custom_id":"', b'","params":' + before, after + b"}", _prompt)

    async def _pages(self) -> AsyncIterator[list[_Batch]]:
        after = ""
        for _ in range(MOST_PAGES):
            cursor = f"&after_id={quote(after, safe='')}" if after else ""
            reply = await self._link.get(f"{BATCHES}?limit={PAGE}{cursor}")
            page = read_reply(_page, reply.body, reply.headers)
            yield page.data or []
            if not page.has_more or not page.data or page.last_id in (None, after):
                return
            after = page.last_id or ""

    async def _judged(self, batch: RemoteBatch, marker: Marker) -> RemoteBatch | None:
        """Return the batch as ours, as a candidate, or None when its first row is another's."""
        if batch.state is not BatchState.ENDED or not batch.results:
            return batch
        first = self._first_ids.get(batch.id)
        if first is None:
            try:
                line = await self._link.first_line(f"{_place(batch.id)}/results")
                first = self._first_ids[batch.id] = read_reply(_row, line, {}).custom_id
            except ProviderError:
                return batch  # not to be read yet: neither ours nor another's
        ours = marker.line_index(first) is not None
        return msgspec.structs.replace(batch, marker=marker.token) if ours else None

    def _read(self, reply: HttpReply) -> RemoteBatch:
        batch = read_reply(_batch, reply.body, reply.headers)
        if not batch.id:
            raise malformed("a batch without an id", reply.body, reply.headers)
        return self._remote(batch, retry_after(reply.headers))

    def _remote(self, batch: _Batch, wait: float | None) -> RemoteBatch:
        """Return the neutral record. `results_url` is not needed: it may be late, and its host need not be ours.

        Every request has a row, also the unpaid ones, so one without is never known to be unpaid.
        """
        counts = batch.request_counts
        total = sum(value or 0 for value in msgspec.structs.astuple(counts)) if counts else 0
        ended = batch.processing_status == ENDED
        return RemoteBatch(
            id=batch.id,
            state=BatchState.ENDED if ended else BatchState.OPEN,
            status=safe_line(batch.processing_status)[:64],
            created_at=moment(batch.created_at),
            expires_at=moment(batch.expires_at),
            count=total or None,
            results=(batch.id,) if ended and not batch.archived_at else (),
            retry_after=wait,
        )

    def _said(self, result: _Result | None) -> Completion | ProviderError | Unpaid:
        kind = result.type if result else ""
        if result is None or kind not in KINDS:
            return no_outcome()
        if kind == "succeeded":
            try:
                return anthropic.decode(OK, NO_HEADERS, bytes(result.message), self._row_dialect)
            except ProviderError as error:
                return error
        return UNPAID.get(kind) or self._refused(bytes(result.error))

    def _refused(self, error: bytes) -> ProviderError:
        try:
            named = read_reply(_error, error, {}).error
        except ProviderError:
            named = None
        status = STATUSES.get((named.type if named else None) or "", 0)
        return row_error(self._row_dialect.errors, error, status)


def _prompt(messages: Sequence[Message]) -> bytes:
    turns = write_turns([each for each in messages if each.role is not SYSTEM])
    system = [each.content for each in messages if each.role is SYSTEM]
    return turns + b',"system":' + orjson.dumps("\n\n".join(system)) if system else turns


async def _requests(path: Path, size: int) -> AsyncIterator[bytes]:
    """Yield the create call's body: the file's first `size` bytes with commas for line ends, which no line holds."""
    yield BEFORE
    async for piece in pieces(path):
        part = piece[:size]
        size -= len(part)
        if part:
            yield part.replace(b"\n", b",")
    yield AFTER


def _place(batch_id: str) -> str:
    return f"{BATCHES}/{quote(batch_id, safe='')}"
