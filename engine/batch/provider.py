"""What the engine asks of a provider's batch API: limits, lines, markers, remote batches, rows. Records and a Protocol.

A batch is paid work that outlives its sender, and no provider knows idempotency keys: a create whose answer was lost is
in doubt, and only `BatchProvider.find` may say what became of it. Hence the marker, which is durable before the first
byte leaves and comes back with the batch, in its metadata or, where there is none, in the ids of its rows.
Must not know: stores, clocks, wire formats, lanes.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.errors import ProviderError
from engine.request import Completion, Request

QUEUE_FULL: Final = "batch_queue_full"
"""`ProviderError.code` (class rate) of a create that was refused, and `LineError.code` of a batch that failed, because
too much is waiting at the provider: nothing ran; the shard goes back whole and none of its requests has failed."""

NOT_VISIBLE: Final = "batch_not_visible"
"""`ProviderError.code` (class transient) of a poll that met 404: some providers do not know fresh ids at once."""

RESULTS_NOT_READY: Final = "batch_results_not_ready"
"""`ProviderError.code` (class transient) of results that are announced and not there yet, or not any more."""

CUSTOM_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Nine digits: whatever a hostile row claims, its index is an integer that every database holds.
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_RUN: Final = re.compile(r"[a-z0-9]{1,12}")
_DIGEST: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN: Final = re.compile(rf"({_RUN.pattern})-(\d{{1,6}})-(\d{{1,3}})-({_DIGEST.pattern})")
_MOST_SHARDS: Final = 1_000_000
_MOST_ATTEMPTS: Final = 1_000


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch may hold, and how the provider behaves. None is no stated limit.

    Attributes:
        max_requests, max_bytes, max_line_bytes: of one batch; bytes as serialised, line ends included in the sum.
        live_batches: most batches that may be waiting or running.
        enqueued_tokens: most prompt tokens in all live batches of the model.
        enqueued_requests: most requests in all live batches.
        window: seconds in which the provider completes a batch or gives it up.
        results_kept: seconds, from creation, after which results may be gone.
        input_kept: seconds that an uploaded input file is kept.
        has_marker: a batch carries our token; without one only row ids prove whose it is.
        one_model, one_thinking_mode: all lines must agree.
        isolates_bad_lines: a bad line fails alone, not the batch.
    """

    max_requests: int | None
    max_bytes: int
    max_line_bytes: int | None = None
    live_batches: int | None = None
    enqueued_tokens: int | None = None
    enqueued_requests: int | None = None
    window: float
    results_kept: float
    input_kept: float | None = None
    has_marker: bool = True
    one_model: bool = True
    one_thinking_mode: bool = False
    isolates_bad_lines: bool = False


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch; `custom_id` (see `Marker.line_id`) comes back with its row."""

    custom_id: str
    request: Request


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a remote batch is.

    Attributes:
        run: lower-case letters and digits, at most 12, drawn once per store so that no two runs share it.
        shard, attempt: which part of the run's work, and which try at sending it, from 0.
        digest: first 16 hexadecimal digits of a hash over the shard's lines.

    Raises:
        ValueError: a part does not have this form.
    """

    run: str
    shard: int
    attempt: int
    digest: str

    def __post_init__(self) -> None:
        if not (
            _RUN.fullmatch(self.run)
            and _DIGEST.fullmatch(self.digest)
            and 0 <= self.shard < _MOST_SHARDS
            and 0 <= self.attempt < _MOST_ATTEMPTS
        ):
            raise ValueError(f"not a marker: {self.run!r}, {self.shard}, {self.attempt}, {self.digest!r}")

    @property
    def token(self) -> str:
        """The marker as text: at most 40 of lower-case letters, digits and inner dashes, legal wherever markers go."""
        return f"{self.line_head}{self.digest}"

    @property
    def line_head(self) -> str:
        """What the ids of all lines begin with; their index follows."""
        return f"{self.run}-{self.shard}-{self.attempt}-"

    def line_id(self, index: int) -> str:
        """Return the id of the line at `index`, from 0: unique in the whole run and proof of whose batch it is."""
        return f"{self.line_head}{index}"

    def line_index(self, custom_id: str) -> int | None:
        """Return the index that `line_id` was given, or None when the id is not of this batch."""
        return index_behind(self.line_head, custom_id)


def index_behind(head: str, custom_id: str) -> int | None:
    """Return the index behind a marker's `line_head`, or None when the id is not of its batch."""
    if not custom_id.startswith(head):
        return None
    found = _INDEX.fullmatch(custom_id, len(head))
    return int(found[0]) if found else None


def read_marker(token: str) -> Marker | None:
    """Return the marker whose token this is, or None when it is somebody else's text."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    run, shard, attempt, digest = found.groups()
    marker = Marker(run=run, shard=int(shard), attempt=int(attempt), digest=digest)
    return marker if marker.token == token else None


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What a create call must know of the lines beside their file: how many, and the model (empty when several)."""

    count: int
    model: str = ""


class BatchState(StrEnum):
    """Where a remote batch stands.

    open: it may still run. ended: no request of it will run any more; every file that exists must be read, and a
    request without a row has an unknown outcome. failed: it was refused whole, nothing ran and nothing is charged.
    """

    OPEN = "open"
    ENDED = "ended"
    FAILED = "failed"


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """One complaint about a failed batch; `line` counts from 1, None where the whole batch is meant."""

    code: str
    message: str
    line: int | None = None


class RemoteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as its provider last described it. Counters are hints: what is done is counted from rows.

    Attributes:
        status: the provider's own word, for people.
        marker: our token, empty where the provider stores none or the batch is somebody else's.
        input_file: id of the uploaded input, empty where there is none.
        created_at, expires_at: UNIX seconds by the provider's clock; 0.0 when not told.
        count: requests in it, None when not told.
        line_errors: why it failed.
        results: references that `download` understands; a completed batch may have none.
        unpaid_rest: True when, by the provider's documentation, a request of this ended batch that has no row in
            `results` was not run and is not charged; False when that is not known.
        retry_after: seconds the provider asks to wait before the next poll, or None.
    """

    id: str
    state: BatchState
    status: str = ""
    marker: str = ""
    input_file: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0
    count: int | None = None
    line_errors: tuple[LineError, ...] = ()
    results: tuple[str, ...] = ()
    unpaid_rest: bool = False
    retry_after: float | None = None

    @property
    def queue_full(self) -> bool:
        """True when it failed only because too much was waiting: the shard goes back whole."""
        return self.state is BatchState.FAILED and any(error.code == QUEUE_FULL for error in self.line_errors)


class Unpaid(StrEnum):
    """Why a request was never run: its row says so, and it costs nothing."""

    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Row(msgspec.Struct, frozen=True, gc=False):
    """What became of one request. A row that cannot be read is a ProviderError, its id empty if unreadable too."""

    custom_id: str
    outcome: Completion | ProviderError | Unpaid


class BatchProvider(Protocol):
    """One account's batch API. Errors are ProviderError with the class that says what to do.

    Creating is the one call that costs money. It is sent once; when it raises with `maybe_billed`, the batch is in
    doubt and `find` must have been asked, later than the provider's list lags, before the shard is sent again. Of any
    other call `maybe_billed` means nothing.
    """

    @property
    def name(self) -> str:
        """The provider's name in the catalogue."""
        ...

    def limits(self, model: str) -> BatchLimits:
        """Return what a batch of this model may hold."""
        ...

    def encode_line(self, line: BatchLine) -> bytes:
        """Return the line of the input file, without its line end. Pure.

        Whatever a line can do wrong by itself is found here: its id, its length, a parameter that batches do not take.
        What lines must agree on, how many they may be and how long together says `limits`; whoever makes shards keeps
        to it and gives every line an id of its own.

        Raises:
            ProviderError: class bad_request or gone; the line would sink every batch that it is in.
        """
        ...

    async def upload(self, marker: Marker, path: Path) -> str:
        """Upload the input file and return its id, or "" where lines travel with the create call. Costs nothing.

        An answer that was lost may leave a second copy at the provider, never a second batch.
        """
        ...

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Create the batch: sent once, never retried.

        Raises:
            ProviderError: code `QUEUE_FULL`: refused, put the shard back. `maybe_billed`: in doubt, see `find`.
        """
        ...

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the batches that are, or may be, `marker`'s, created at or after `since` (UNIX seconds).

        One whose `marker` is the token is proved. One whose `marker` is empty (only where `has_marker` is False) is a
        candidate by time and `count`; its rows prove it, by `Marker.line_index`, once it has ended.
        """
        ...

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it stands. Retried; a 404 is transient, code `NOT_VISIBLE`."""
        ...

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Bring every results file into `folder`, whole, forced to the disk, and return their paths.

        A file that is there already was brought before and is not fetched again. Memory does not grow with the size.

        Raises:
            ProviderError: transient; code `RESULTS_NOT_READY` when the provider does not have them (yet).
        """
        ...

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield what the lines of a results file say, one by one; never raises for what a line holds."""
        ...

    async def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop the batch, which must then be polled to its end; one that has ended stays so."""
        ...

    async def clean(self, batch: RemoteBatch) -> None:
        """Delete the remote files that this batch's input and results are; only after they were harvested."""
        ...

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Delete uploads that carry a marker of `run` and are not in `keep` (ids of files); return how many.

        Uploads whose answer was lost, or whose batch was refused, cost nothing but the account's room for files. One
        call walks the provider's whole list of files: for the end of a run, not for every batch.
        """
        ...

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        ...
