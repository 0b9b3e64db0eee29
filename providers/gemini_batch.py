"""Gemini's batches (AI Studio keys): a file uploaded under a name of our own, a job that carries our display name.

A repeated create call makes a second job; a repeated upload finds the name taken, which is as good as done. One bad row
refuses the create call. An expired or cancelled job has no results, and the documents do not say whether the requests
that had run by then are charged: such a job has ended without rows, its `status` says why, and the rest is not known to
be unpaid. Lines and rows are those of the generateContent adapter, see `gemini_batch_lines`.
Must not know: stores, retries of requests, prices.

Results are always files: inlined ones are sent twice in every look at the job and cannot be had when they are large.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from engine.batch.provider import BatchLimits, BatchLine, BatchState, LineError, Marker, RemoteBatch, Row, Shard
from engine.errors import ErrorClass, ProviderError
from providers.batch_files import Expected, carries_run, file_size, pieces, results_file
from providers.batch_lines import LineWriter
from providers.batch_link import BatchLink, moment
from providers.batch_rows import dialect_of, row_dialect
from providers.dialect import Dialect
from providers.errorbody import safe_line
from providers.gemini_batch_lines import frame, read_lines
from providers.headers import retry_after
from providers.http import ABOVE, HttpReply
from providers.wire import dump, malformed, read_reply

UPLOAD: Final = f"{ABOVE}/upload/v1beta/files"
DOWNLOAD: Final = f"{ABOVE}/download/v1beta/"
FILES: Final = "files/"
PAGE: Final = 100
MOST_PAGES: Final = 200
SKEW: Final = 900.0  # seconds that two clocks may differ
TWO_DAYS: Final = 2 * 86_400.0
TAKEN: Final = (400, 409)  # which of them a taken name is answered with is not documented
STATE_PREFIX: Final = re.compile(r"^(?:BATCH|JOB)_STATE_")
ENDED: Final = frozenset({"SUCCEEDED", "PARTIALLY_SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"})
LIMITS: Final = BatchLimits(
    max_requests=None,
    max_bytes=2_000_000_000,
    live_batches=100,
    window=TWO_DAYS,
    results_kept=TWO_DAYS,  # not documented: nothing is counted on beyond the window
    input_kept=TWO_DAYS,
)


class _File(msgspec.Struct, rename="camel"):
    name: str = ""
    size_bytes: int | None = None
    state: str | None = None


class _Uploaded(msgspec.Struct):
    file: _File


class _Output(msgspec.Struct, rename="camel"):
    responses_file: str | None = None


class _Input(msgspec.Struct, rename="camel"):
    file_name: str | None = None


class _Stats(msgspec.Struct, rename="camel"):
    request_count: int | None = 0


class _Metadata(msgspec.Struct, rename="camel"):
    display_name: str | None = None
    state: str | None = None
    create_time: str | None = None
    input_config: _Input | None = None
    batch_stats: _Stats | None = None
    output: _Output | None = None


class _Status(msgspec.Struct):
    code: int | None = 0
    message: str | None = ""


class _Operation(msgspec.Struct):
    name: str = ""
    done: bool | None = False
    metadata: _Metadata | None = None
    response: _Output | None = None
    error: _Status | None = None


class _Page(msgspec.Struct, rename="camel"):
    operations: list[_Operation] | None = None
    next_page_token: str | None = None


class _FilePage(msgspec.Struct, rename="camel"):
    files: list[_File] | None = None
    next_page_token: str | None = None


_file: Final = msgspec.json.Decoder(_File, strict=False)
_uploaded: Final = msgspec.json.Decoder(_Uploaded, strict=False)
_file_page: Final = msgspec.json.Decoder(_FilePage, strict=False)
_operation: Final = msgspec.json.Decoder(_Operation, strict=False)
_page: Final = msgspec.json.Decoder(_Page, strict=False)


class GeminiBatches:
    """Implements `engine.batch.provider.BatchProvider` for one account.

    Args:
        dialects: of the single-call adapter, by model; at least one.
        enqueued_tokens: most prompt tokens waiting, by model, where the catalogue knows.
    """

    def __init__(
        self,
        link: BatchLink,
        *,
        dialects: Mapping[str, Dialect],
        enqueued_tokens: Mapping[str, int | None] | None = None,
    ) -> None:
        self._link, self._dialects, self._enqueued = link, dict(dialects), dict(enqueued_tokens or {})
        self._row_dialect = row_dialect(dialects)
        self._writer = LineWriter(lambda request: frame(request, dialect_of(self._dialects, request.model)), LIMITS)

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        return self._link.name

    def limits(self, model: str) -> BatchLimits:
        """Return what a batch of this model may hold."""
        return msgspec.structs.replace(LIMITS, enqueued_tokens=self._enqueued.get(model))

    def encode_line(self, line: BatchLine) -> bytes:
        """Return the line of the input file, without its line end; raises ProviderError (bad_request, gone)."""
        return self._writer.write(line)

    async def upload(self, marker: Marker, path: Path) -> str:
        """Upload the input file as `files/<token>`; a file of that name and size that is there already is ours."""
        size = file_size(path)
        try:
            name = await self._uploaded(marker, path, size)
        except ProviderError as error:
            if error.status not in TAKEN:
                raise
            name = f"{FILES}{marker.token}"
            if not await self._is_there(name, size):
                raise
        seen = await self._link.visible(_place(name))
        if seen is not None and read_reply(_file, seen.body, seen.headers).state == "FAILED":
            await self._link.delete(_place(name))
            raise ProviderError(ErrorClass.TRANSIENT, f"{self.name}: the input file failed", code="failed_upload")
        return name

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Create the job from an uploaded file: sent once; raises ProviderError, see `BatchProvider.create`."""
        del path
        batch = {"batch": {"displayName": marker.token, "inputConfig": {"fileName": file_id}}}
        where = f"/models/{quote(shard.model.removeprefix('models/'), safe='')}:batchGenerateContent"
        return self._read(await self._link.create(where, dump(batch)))

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the jobs whose display name is exactly `marker`: two of them after a repeated create call."""
        del count
        found: list[RemoteBatch] = []
        async for page in self._pages():
            batches = [self._remote(operation, None) for operation in page]
            found += [batch for batch in batches if batch.marker == marker.token]
            if batches and all(0 < batch.created_at < since - SKEW for batch in batches):
                break
        return found

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the job as it stands; raises ProviderError."""
        return self._read(await self._link.poll(_place(batch_id)))

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring the results file into `folder`, if there is one."""
        return [
            await self._link.bring(
                f"{DOWNLOAD}{_place(reference)[1:]}:download?alt=media",
                results_file(folder, batch.id, reference),
                Expected(lines=batch.count),
            )
            for reference in batch.results
        ]

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield what the lines of a results file say; never raises for what a line holds."""
        return read_lines(lines, self._row_dialect)

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop the job."""
        await self._link.order(f"{_place(batch_id)}:cancel", b"{}")

    async def clean(self, batch: RemoteBatch) -> None:
        """Delete the input file; the results file can be deleted with the job only, and goes by itself."""
        if batch.input_file:
            await self._link.delete(_place(batch.input_file))

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Delete uploads named by a marker of `run`, except `keep`; return how many. They go by themselves in time."""
        uploads = [file async for page in self._files() for file in page]
        left = [file.name for file in uploads if carries_run(file.name.removeprefix(FILES), run)]
        left = [name for name in left if name not in keep]
        for name in left:
            await self._link.delete(_place(name))
        return len(left)

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._link.close()

    async def _uploaded(self, marker: Marker, path: Path, size: int) -> str:
        named = dump({"file": {"name": f"{FILES}{marker.token}", "displayName": marker.token}})
        start = {
            "x-goog-upload-protocol": "resumable",
            "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(size),
            "x-goog-upload-header-content-type": "application/jsonl",
        }
        opened = await self._link.send(UPLOAD, _one(named), length=len(named), headers=start)
        where = opened.headers.get("x-goog-upload-url", "")
        if not where:
            raise ProviderError(ErrorClass.TRANSIENT, f"{self.name}: no address to upload to", code="upload_refused")
        finish = {
            "x-goog-upload-offset": "0",
            "x-goog-upload-command": "upload, finalize",
            "content-type": "application/jsonl",
        }
        reply = await self._link.send(self._beside(where), pieces(path), length=size, headers=finish)
        return read_reply(_uploaded, reply.body, reply.headers).file.name

    def _beside(self, url: str) -> str:
        """Return the path of an upload's address at our own endpoint: no reply may send the key to another host."""
        parts = urlsplit(url)
        path = parts.path.removeprefix(urlsplit(self._link.root).path)
        return f"{ABOVE}{path}?{parts.query}"

    async def _is_there(self, name: str, size: int) -> bool:
        try:
            reply = await self._link.get(_place(name))
        except ProviderError:
            return False
        return read_reply(_file, reply.body, reply.headers).size_bytes == size

    async def _pages(self) -> AsyncIterator[list[_Operation]]:
        token = ""
        for _ in range(MOST_PAGES):
            cursor = f"&pageToken={quote(token, safe='')}" if token else ""
            reply = await self._link.get(f"/batches?pageSize={PAGE}{cursor}")
            page = read_reply(_page, reply.body, reply.headers)
            yield page.operations or []
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    async def _files(self) -> AsyncIterator[list[_File]]:
        token = ""
        for _ in range(MOST_PAGES):
            cursor = f"&pageToken={quote(token, safe='')}" if token else ""
            reply = await self._link.get(f"/files?pageSize={PAGE}{cursor}")
            page = read_reply(_file_page, reply.body, reply.headers)
            yield page.files or []
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    def _read(self, reply: HttpReply) -> RemoteBatch:
        operation = read_reply(_operation, reply.body, reply.headers)
        if not operation.name:
            raise malformed("a job without a name", reply.body, reply.headers)
        return self._remote(operation, retry_after(reply.headers))

    def _remote(self, operation: _Operation, wait: float | None) -> RemoteBatch:
        job = operation.metadata or _Metadata()
        created = moment(job.create_time)
        state = STATE_PREFIX.sub("", job.state or "")
        ended = state in ENDED or (bool(operation.done) and not state)
        places = (operation.response, job.output)
        output = next((place.responses_file for place in places if place and place.responses_file), None)
        return RemoteBatch(
            id=operation.name,
            state=BatchState.ENDED if ended else BatchState.OPEN,
            status=safe_line(state)[:64],
            marker=job.display_name or "",
            input_file=(job.input_config.file_name if job.input_config else "") or "",
            created_at=created,
            expires_at=created + LIMITS.window if created else 0.0,
            count=(job.batch_stats.request_count if job.batch_stats else None) or None,
            line_errors=_complaints(operation.error),
            results=(output,) if ended and output else (),
            retry_after=wait,
        )


def _complaints(error: _Status | None) -> tuple[LineError, ...]:
    if error is None:
        return ()
    return (LineError(code=str(error.code or ""), message=safe_line(error.message or "")),)


def _place(name: str) -> str:
    """Return the path of a resource, whose name has two parts."""
    return "/" + quote(name, safe="/")


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
