"""Batches of OpenAI's shape: OpenAI, Alibaba Model Studio, Zhipu and Moonshot, told apart by a `BatchDialect`.

An input file is uploaded, a batch is created from it and carries our marker in its metadata, results come as an output
and an error file, either of which may be missing, also when the batch is complete. Lines and rows are those of the chat
adapter. Must not know: stores, retries of requests, prices.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
import orjson

from engine.batching import (
    QUEUE_FULL,
    BatchLimits,
    BatchLine,
    BatchState,
    LineError,
    Marker,
    Problem,
    RemoteBatch,
    Row,
    Shard,
    Unpaid,
)
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion
from providers import openai
from providers.batch_dialect import DAY, BatchDialect
from providers.batch_files import Expected, file_size, pieces, results_file
from providers.batch_link import BatchLink
from providers.batch_rows import (
    check_lines,
    dialect_of,
    lines_of,
    no_outcome,
    outcome_of,
    read_rows,
    row_dialect,
    row_error,
)
from providers.dialect import Dialect
from providers.errorbody import safe_line
from providers.headers import retry_after
from providers.http import HttpReply
from providers.wire import OK, dump, malformed, read_reply

FILES: Final = "/files"
BATCHES: Final = "/batches"
PAGE: Final = 100
MOST_PAGES: Final = 500
SKEW: Final = 900.0  # seconds that two clocks may differ
WINDOW: Final = "24h"
QUEUE_CODES: Final = frozenset({"token_limit_exceeded"})
STATES: Final = {
    "completed": BatchState.ENDED,
    "expired": BatchState.ENDED,
    "cancelled": BatchState.ENDED,
    "failed": BatchState.FAILED,
}
UNPAID: Final = {"batch_expired": Unpaid.EXPIRED, "batch_cancelled": Unpaid.CANCELLED}


class _File(msgspec.Struct):
    id: str
    bytes: int | None = None


class _Complaint(msgspec.Struct):
    code: str | int | None = None
    message: str | None = None
    line: int | None = None


class _Complaints(msgspec.Struct):
    data: list[_Complaint] | None = None


class _Counts(msgspec.Struct):
    total: int | None = 0


class _Batch(msgspec.Struct):
    id: str
    status: str = ""
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: float | None = None
    expires_at: float | None = None
    errors: msgspec.Raw = msgspec.Raw(b"null")
    request_counts: _Counts | None = None
    metadata: dict[str, msgspec.Raw] | None = None


class _Page(msgspec.Struct):
    data: list[_Batch] | None = None
    has_more: bool | None = False


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


_file: Final = msgspec.json.Decoder(_File, strict=False)
_batch: Final = msgspec.json.Decoder(_Batch, strict=False)
_page: Final = msgspec.json.Decoder(_Page, strict=False)
_row: Final = msgspec.json.Decoder(_Row, strict=False)
_errors: Final = msgspec.json.Decoder(_Complaints | None, strict=False)
_string: Final = msgspec.json.Decoder(str | None)


class OpenAIBatches:
    """Implements `engine.batching.BatchProvider` for one account.

    Args:
        dialects: of the chat adapter, by model; at least one.
        enqueued_tokens: most prompt tokens waiting, by model, where the catalogue knows.
    """

    def __init__(
        self,
        link: BatchLink,
        batches: BatchDialect,
        *,
        dialects: Mapping[str, Dialect],
        enqueued_tokens: Mapping[str, int | None] | None = None,
    ) -> None:
        self._link, self._batches, self._dialects = link, batches, dict(dialects)
        self._enqueued = dict(enqueued_tokens or {})
        self._row_dialect = row_dialect(dialects)

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        return self._link.name

    def limits(self, model: str) -> BatchLimits:
        """Return what a batch of this model may hold."""
        return msgspec.structs.replace(self._batches.limits, enqueued_tokens=self._enqueued.get(model))

    def encode_line(self, line: BatchLine) -> bytes:
        """Return the line of the input file, without its line end; raises ProviderError (bad_request, gone)."""
        body = openai.encode(line.request, dialect_of(self._dialects, line.request.model))
        return dump(
            {
                "custom_id": line.custom_id,
                "method": "POST",
                "url": self._batches.endpoint,
                "body": orjson.Fragment(body),
            }
        )

    def check(self, lines: Sequence[BatchLine]) -> list[Problem]:
        """Return everything known here that would sink a batch of these lines."""
        problems = check_lines(lines, self._batches.limits, self.encode_line, shortest_id=self._batches.shortest_id)
        for line in lines:
            given = [name for name in self._batches.forbidden if getattr(line.request.decoding, name) is not None]
            if given:
                reason = f"batches of this provider take no {' and no '.join(given)}"
                problems.append(Problem(custom_id=line.custom_id, reason=reason))
        return problems

    async def upload(self, marker: Marker, path: Path) -> str:
        """Upload the input file, wait until it can be seen, and return its id."""
        size = file_size(path)
        content, length, kind = _form(marker.token, path, size)
        reply = await self._link.send(FILES, content, length=length, headers={"content-type": kind})
        found = read_reply(_file, reply.body, reply.headers)
        seen = await self._link.visible(f"{FILES}/{_quoted(found.id)}")
        arrived = (read_reply(_file, seen.body, seen.headers) if seen else found).bytes
        if self._batches.tells_size and arrived is not None and arrived != size:
            await self._link.delete(f"{FILES}/{_quoted(found.id)}")
            text = f"{self.name}: of the {size:,} bytes of the input file, {arrived:,} arrived"
            raise ProviderError(ErrorClass.TRANSIENT, text, code="truncated_upload")
        return found.id

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Create the batch from an uploaded file: sent once; raises ProviderError, see `BatchProvider.create`."""
        del path, shard
        body = {
            "input_file_id": file_id,
            "endpoint": self._batches.endpoint,
            "completion_window": WINDOW,
            "metadata": {self._batches.marker_key: marker.token},
            **self._batches.create,
        }
        return self._read(await self._link.create(BATCHES, dump(body)))

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the batches whose metadata is exactly `marker`, newest first."""
        del count
        found: list[RemoteBatch] = []
        async for page in self._pages(marker, since):
            batches = [self._remote(batch, None) for batch in page]
            found += [batch for batch in batches if batch.marker == marker.token]
            if batches and all(0 < batch.created_at < since - SKEW for batch in batches):
                break
        return found

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it stands; raises ProviderError."""
        return self._read(await self._link.poll(f"{BATCHES}/{_quoted(batch_id)}"))

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring output and error file, whichever exist, into `folder`."""
        return [
            await self._link.bring(
                f"{FILES}/{_quoted(file_id)}/content",
                results_file(folder, batch.id, file_id),
                await self._expected(file_id),
            )
            for file_id in batch.results
        ]

    def rows(self, path: Path) -> Iterator[Row]:
        """Yield what a results file says; never raises for what a line holds."""
        return self.read_lines(lines_of(path))

    def read_lines(self, lines: Iterator[bytes]) -> Iterator[Row]:
        """Yield the rows in `lines`."""
        return read_rows(lines, _row, self._outcome)

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop the batch."""
        await self._link.order(f"{BATCHES}/{_quoted(batch_id)}/cancel")

    async def clean(self, batch: RemoteBatch) -> None:
        """Delete input, output and error file."""
        for file_id in (batch.input_file, *batch.results):
            if file_id:
                await self._link.delete(f"{FILES}/{_quoted(file_id)}")

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._link.close()

    async def _pages(self, marker: Marker, since: float) -> AsyncIterator[list[_Batch]]:
        query: dict[str, str] = {"limit": str(PAGE)}
        if self._batches.filters_by_marker:
            # The time zone of this parameter is not documented: a day more covers all of them.
            start = datetime.fromtimestamp(max(0.0, since - SKEW - DAY), UTC)
            query |= {self._batches.marker_key: marker.token, "create_after": f"{start:%Y%m%d%H%M%S}"}
        for _ in range(MOST_PAGES):
            reply = await self._link.get(f"{BATCHES}?{urlencode(query)}")
            page = read_reply(_page, reply.body, reply.headers)
            batches = page.data or []
            yield batches
            if not page.has_more or not batches or batches[-1].id == query.get("after"):
                return
            query["after"] = batches[-1].id

    async def _expected(self, file_id: str) -> Expected:
        seen = await self._link.visible(f"{FILES}/{_quoted(file_id)}", tries=2)
        size = read_reply(_file, seen.body, seen.headers).bytes if seen else None
        return Expected(size=size, sure=self._batches.tells_size)

    def _read(self, reply: HttpReply) -> RemoteBatch:
        batch = read_reply(_batch, reply.body, reply.headers)
        if not batch.id:
            raise malformed("a batch without an id", reply.body, reply.headers)
        return self._remote(batch, retry_after(reply.headers))

    def _remote(self, batch: _Batch, wait: float | None) -> RemoteBatch:
        created = batch.created_at or 0.0
        return RemoteBatch(
            id=batch.id,
            state=STATES.get(batch.status, BatchState.OPEN),
            status=safe_line(batch.status)[:64],
            marker=_text((batch.metadata or {}).get(self._batches.marker_key)),
            input_file=batch.input_file_id or "",
            created_at=created,
            expires_at=batch.expires_at or (created + self._batches.limits.window if created else 0.0),
            count=(batch.request_counts.total if batch.request_counts else None) or None,
            line_errors=_complaints(bytes(batch.errors)),
            results=tuple(each for each in (batch.output_file_id, batch.error_file_id) if each),
            retry_after=wait,
        )

    def _outcome(self, row: _Row) -> Row:
        return Row(str(row.custom_id or ""), self._said(row))

    def _said(self, row: _Row) -> Completion | ProviderError | Unpaid:
        if row.response is not None and bytes(row.response.body) not in (b"", b"null"):
            return self._answered(row.response)
        status = (row.response.status_code or 0) if row.response else 0
        if row.error is None:
            return row_error(self._row_dialect.errors, b"", status) if status not in (0, OK) else no_outcome()
        error = _Trouble(message=row.error) if isinstance(row.error, str) else row.error
        code = error.code if error.code is not None else error.error_code
        unpaid = UNPAID.get(str(code))
        if unpaid is not None:
            return unpaid
        told = {"error": {"code": str(code or ""), "message": error.message or error.error_message or ""}}
        return row_error(self._row_dialect.errors, dump(told), status)

    def _answered(self, answer: _Answer) -> Completion | ProviderError:
        headers = {"x-request-id": answer.request_id} if answer.request_id else {}
        status, body = answer.status_code or OK, bytes(answer.body)
        return outcome_of(lambda: openai.decode(status, headers, body, self._row_dialect))


def _complaints(errors: bytes) -> tuple[LineError, ...]:
    """Return why a batch failed; what has another shape than OpenAI's is kept as text."""
    try:
        found = _errors.decode(errors)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (LineError(code="", message=safe_line(errors.decode(errors="replace"))),)
    return tuple(_complaint(each) for each in (found.data if found else None) or ())


def _text(value: msgspec.Raw | None) -> str:
    """Return a JSON string's text, nothing for anything else."""
    try:
        return _string.decode(value or b"null") or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _complaint(found: _Complaint) -> LineError:
    code = safe_line(str(found.code or ""))[:64]
    return LineError(
        code=QUEUE_FULL if code in QUEUE_CODES else code, message=safe_line(found.message or ""), line=found.line
    )


def _form(token: str, path: Path, size: int) -> tuple[AsyncIterator[bytes], int, str]:
    """Return a multipart form with the file, its length and its content type; no JSON line begins with a boundary."""
    boundary = f"mirage-{token}"
    before = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{token}.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    ).encode()
    after = f"\r\n--{boundary}--\r\n".encode()
    length = len(before) + size + len(after)
    return pieces(path, before=before, after=after), length, f"multipart/form-data; boundary={boundary}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
