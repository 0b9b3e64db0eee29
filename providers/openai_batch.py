"""Batches of OpenAI's shape: OpenAI, Alibaba Model Studio, Zhipu and Moonshot, told apart by a `BatchDialect`.

An input file is uploaded, a batch is created from it and carries our marker in its metadata, results come as an output
and an error file, either of which may be missing, also when the batch is complete. Lines and rows are those of the chat
adapter, see `openai_batch_lines`. Must not know: stores, retries of requests, prices.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from engine.batch.provider import (
    QUEUE_FULL,
    BatchLimits,
    BatchLine,
    BatchState,
    LineError,
    Marker,
    RemoteBatch,
    Row,
    Shard,
)
from engine.errors import ErrorClass, ProviderError
from providers.batch_dialect import DAY, BatchDialect
from providers.batch_files import Expected, carries_run, file_size, form_of, results_file
from providers.batch_lines import LineWriter
from providers.batch_link import BatchLink
from providers.batch_rows import dialect_of, row_dialect
from providers.dialect import Dialect
from providers.errorbody import safe_line
from providers.headers import retry_after
from providers.http import HttpReply
from providers.openai_batch_lines import frame, read_lines
from providers.wire import dump, malformed, read_reply

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


class _Item(msgspec.Struct):
    id: str


T = TypeVar("T", bound=_Item)


class _File(_Item):
    bytes: int | None = None
    filename: str | None = None


class _Complaint(msgspec.Struct):
    code: str | int | None = None
    message: str | None = None
    line: int | None = None


class _Complaints(msgspec.Struct):
    data: list[_Complaint] | None = None


class _Counts(msgspec.Struct):
    total: int | None = 0


class _Batch(_Item):
    status: str = ""
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: float | None = None
    expires_at: float | None = None
    errors: msgspec.Raw = msgspec.Raw(b"null")
    request_counts: _Counts | None = None
    metadata: dict[str, msgspec.Raw] | None = None


class _Page(msgspec.Struct, Generic[T]):
    data: list[T] | None = None
    has_more: bool | None = False


_file: Final = msgspec.json.Decoder(_File, strict=False)
_files: Final = msgspec.json.Decoder(_Page[_File], strict=False)
_batch: Final = msgspec.json.Decoder(_Batch, strict=False)
_batches: Final = msgspec.json.Decoder(_Page[_Batch], strict=False)
_errors: Final = msgspec.json.Decoder(_Complaints | None, strict=False)
_string: Final = msgspec.json.Decoder(str | None)


class OpenAIBatches:
    """Implements `engine.batch.provider.BatchProvider` for one account.

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
        self._writer = LineWriter(
            lambda request: frame(request, dialect_of(self._dialects, request.model), batches),
            batches.limits,
            shortest_id=batches.shortest_id,
        )

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        return self._link.name

    def limits(self, model: str) -> BatchLimits:
        """Return what a batch of this model may hold."""
        return msgspec.structs.replace(self._batches.limits, enqueued_tokens=self._enqueued.get(model))

    def encode_line(self, line: BatchLine) -> bytes:
        """Return the line of the input file, without its line end; raises ProviderError (bad_request, gone)."""
        return self._writer.write(line)

    async def upload(self, marker: Marker, path: Path) -> str:
        """Upload the input file, wait until it can be seen, and return its id."""
        size = file_size(path)
        content, length, kind = form_of(marker.token, path, size)
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
        async for page in self._pages(BATCHES, self._query(marker, since), _batches):
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

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield what the lines of a results file say; never raises for what a line holds."""
        return read_lines(lines, self._row_dialect)

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop the batch."""
        await self._link.order(f"{BATCHES}/{_quoted(batch_id)}/cancel")

    async def clean(self, batch: RemoteBatch) -> None:
        """Delete input, output and error file."""
        for file_id in (batch.input_file, *batch.results):
            if file_id:
                await self._link.delete(f"{FILES}/{_quoted(file_id)}")

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Delete uploads named by a marker of `run`, except `keep`; return how many."""
        uploads = [file async for page in self._pages(FILES, {"purpose": "batch"}, _files) for file in page]
        left = [file.id for file in uploads if carries_run(file.filename or "", run) and file.id not in keep]
        for file_id in left:
            await self._link.delete(f"{FILES}/{_quoted(file_id)}")
        return len(left)

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._link.close()

    def _query(self, marker: Marker, since: float) -> dict[str, str]:
        if not self._batches.filters_by_marker:
            return {}
        # The time zone of this parameter is not documented: a day more covers all of them.
        start = datetime.fromtimestamp(max(0.0, since - SKEW - DAY), UTC)
        return {self._batches.marker_key: marker.token, "create_after": f"{start:%Y%m%d%H%M%S}"}

    async def _pages(
        self, path: str, query: Mapping[str, str], decoder: "msgspec.json.Decoder[_Page[T]]"
    ) -> AsyncIterator[list[T]]:
        asked = {"limit": str(PAGE), **query}
        for _ in range(MOST_PAGES):
            reply = await self._link.get(f"{path}?{urlencode(asked)}")
            page = read_reply(decoder, reply.body, reply.headers)
            items = page.data or []
            yield items
            if not page.has_more or not items or items[-1].id == asked.get("after"):
                return
            asked["after"] = items[-1].id

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
            unpaid_rest=batch.status in self._batches.unpaid_rest and bool(batch.output_file_id),
            retry_after=wait,
        )


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


def _quoted(text: str) -> str:
    return quote(text, safe="")
