"""An in-memory batch provider that ships with the code: answers by script, goes wrong on request, keeps a bill.

It outlives whoever sends to it, as a provider does: a test that simulates a crash drops the engine and starts another
one with the same `ScriptedBatches`. A batch ends at its n-th poll, or by `run_out`; until then nothing is charged.
Must not know: stores, the engine's own life cycle.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from engine.batch.policy import BatchPolicy
from engine.batch.provider import (
    NOT_VISIBLE,
    QUEUE_FULL,
    RESULTS_NOT_READY,
    BatchLimits,
    BatchLine,
    BatchState,
    Marker,
    RemoteBatch,
    Row,
    Shard,
    read_marker,
)
from engine.batch.script import BatchAnswer, BatchFaults, BatchScript, Job, Tally, decode, encode
from engine.errors import ErrorClass, ProviderError

__all__ = ["LIMITS", "QUICK", "BatchAnswer", "BatchFaults", "BatchScript", "ScriptedBatches", "Tap"]

Tap = Callable[[str, bool], None]

LIMITS: Final = BatchLimits(max_requests=1_000, max_bytes=10_000_000, window=86_400.0, results_kept=86_400.0)
QUICK: Final = BatchPolicy(flush_after=60.0, first_poll=0.01, longest_poll=0.05, grace=0.2, results_patience=0.3)


class _Made(msgspec.Struct):
    """A batch as the provider keeps it."""

    id: str
    token: str
    file_id: str
    created_at: float
    job: Job
    cleaned: bool = False


class ScriptedBatches:
    """Implements `engine.batch.provider.BatchProvider` in memory, with real files for input and results.

    Args:
        script: what a request is answered, given how many times it ran before; None leaves it without a row.
        now: UNIX seconds.
        polls: the poll at which a batch ends.
        limits: kept: a batch beyond its own fails, one beyond the queue's is refused.
        has_marker: False: like Anthropic's, without markers and uploads.
        faults: one record per create call, in their order; more by `plague`.
        tap: told the name of every call, with False before it takes effect and True after; what it raises is a crash.

    Attributes:
        bill: by `request_key`, how many times it was charged.
        calls: by method, how many times it was called.
        created: the token and the number of requests of every batch that was made, whole or failed.
        files: uploads that were not deleted, by id.
    """

    def __init__(
        self,
        script: BatchScript,
        *,
        now: Callable[[], float],
        polls: int = 1,
        limits: BatchLimits = LIMITS,
        has_marker: bool = True,
        faults: Iterable[BatchFaults] = (),
        tap: Tap | None = None,
        name: str = "scripted",
    ) -> None:
        self._script, self._now, self._polls, self._name = script, now, polls, name
        self._limits = msgspec.structs.replace(limits, has_marker=has_marker)
        self._faults, self._broken_uploads = list(faults), 0
        self._made: dict[str, _Made] = {}
        self._tally = Tally()
        self.tap = tap
        self.bill = self._tally.bill
        self.calls: Counter[str] = Counter()
        self.created: list[tuple[str, int]] = []
        self.files: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._name

    def plague(self, *faults: BatchFaults) -> None:
        """Let these go wrong with coming create calls, after those that wait already."""
        self._faults += faults

    def run_out(self) -> None:
        """Bring every open batch that is not stuck to its end, as a provider does whether anybody looks or not."""
        for made in self._made.values():
            made.job.finish(self._script, self._tally)

    def limits(self, model: str) -> BatchLimits:
        """Return the limits; the same for every model."""
        del model
        return self._limits

    def encode_line(self, line: BatchLine) -> bytes:
        """Return the line as JSON."""
        encoded = encode(line)
        most = min(self._limits.max_bytes, self._limits.max_line_bytes or self._limits.max_bytes)
        if len(encoded) >= most:
            raise ProviderError(ErrorClass.BAD_REQUEST, f"the line has {len(encoded) + 1:,} bytes, of {most:,}")
        return encoded

    async def upload(self, marker: Marker, path: Path) -> str:
        """Keep a copy of the file, unless lines travel with the create call."""
        await self._called("upload")
        if not self._limits.has_marker:
            return ""
        if self._faults and self._broken_uploads < self._faults[0].upload_errors:
            self._broken_uploads += 1
            raise _passing("the upload broke off")
        file_id = f"{marker.token}.{self.calls['upload']}"
        self.files[file_id] = path.read_bytes()
        self._done("upload")
        return file_id

    async def create(self, marker: Marker, file_id: str, path: Path, shard: Shard) -> RemoteBatch:
        """Make a batch, or do what the next faults say."""
        await self._called("create")
        faults = self._faults.pop(0) if self._faults else BatchFaults()
        self._broken_uploads = 0
        if faults.create_lost_before:
            raise _passing("the connection broke off", maybe_billed=True)
        if faults.create_refused is not None:
            raise faults.create_refused
        data = self.files.get(file_id) if self._limits.has_marker else path.read_bytes()
        job = Job(data, faults, polls=self._polls)
        self._admit(job)
        job.validate(self._limits, shard.count)
        made = _Made(f"batch-{len(self._made) + 1}", marker.token, file_id, self._now(), job)
        self._made[made.id] = made
        self.created.append((marker.token, len(job.lines)))
        if faults.create_lost_after:
            raise _passing("the answer was lost", maybe_billed=True)
        self._done("create")
        return self._remote(made)

    async def find(self, marker: Marker, since: float, count: int) -> list[RemoteBatch]:
        """Return the marker's batches, or candidates where there is none."""
        await self._called("find")
        listed = [each for each in self._made.values() if each.created_at >= since and not each.job.strikes("list_lag")]
        if self._limits.has_marker:
            return [self._remote(each) for each in listed if each.token == marker.token]
        candidates = [each for each in listed if len(each.job.lines) == count]
        return [
            msgspec.structs.replace(self._remote(each), marker=marker.token if each.job.results else "")
            for each in candidates
            if not each.job.results or each.token == marker.token
        ]

    async def poll(self, batch_id: str) -> RemoteBatch:
        """Return the batch as it stands; it ends at the last poll of `polls`, or at the first after a cancellation."""
        await self._called("poll")
        made = self._find(batch_id)
        if made.job.strikes("fresh_404"):
            raise _unknown()
        if made.job.strikes("poll_errors"):
            raise _passing("bad gateway", status=502)
        made.job.look(self._script, self._tally)
        return self._remote(made)

    async def download(self, batch: RemoteBatch, folder: Path) -> list[Path]:
        """Write the results into `folder`, unless they are there; not forced to the disk."""
        await self._called("download")
        made, target = self._find(batch.id), folder / f"{batch.id}.jsonl"
        if not batch.results or target.exists():
            return [target] if batch.results else []
        if made.cleaned or made.job.strikes("results_late"):
            raise ProviderError(ErrorClass.TRANSIENT, "no such file", status=404, code=RESULTS_NOT_READY)
        text = made.job.text()
        torn = made.job.strikes("torn_downloads")
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{batch.id}.jsonl.part"
        part.write_bytes(text[: len(text) // 2] if torn else text)
        if torn:
            raise _passing("the download broke off")
        part.replace(target)
        self._done("download")
        return [target]

    def rows(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yield what the lines of a results file say; one that cannot be read is a row without an id."""
        return map(decode, lines)

    async def cancel(self, batch_id: str) -> None:
        """Stop a running batch: what ran by now is kept, the rest is cancelled at the next poll."""
        await self._called("cancel")
        self._find(batch_id).job.cancel()
        self._done("cancel")

    async def clean(self, batch: RemoteBatch) -> None:
        """Forget input and results."""
        await self._called("clean")
        self.files.pop(batch.input_file, None)
        self._find(batch.id).cleaned = True
        self._done("clean")

    async def tidy(self, run: str, keep: Collection[str]) -> int:
        """Forget every upload of a run that is not in `keep`."""
        await self._called("tidy")
        markers = {file_id: read_marker(file_id.partition(".")[0]) for file_id in self.files}
        left = [file_id for file_id, marker in markers.items() if marker and marker.run == run and file_id not in keep]
        for file_id in left:
            del self.files[file_id]
        return len(left)

    async def close(self) -> None:
        """Count the call."""
        await self._called("close")

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await asyncio.sleep(0)
        if self.tap is not None:
            self.tap(name, False)

    def _done(self, name: str) -> None:
        if self.tap is not None:
            self.tap(name, True)

    def _find(self, batch_id: str) -> _Made:
        if batch_id not in self._made:
            raise _unknown()
        return self._made[batch_id]

    def _admit(self, job: Job) -> None:
        """Refuse a batch for which the queue has no room."""
        live = [each.job for each in self._made.values() if each.job.state is BatchState.OPEN]
        limits, waiting = self._limits, [job, *live]
        loads = (
            (limits.live_batches, len(waiting)),
            (limits.enqueued_requests, sum(len(each.lines) for each in waiting)),
            (limits.enqueued_tokens, sum(each.tokens for each in waiting if each.model == job.model)),
        )
        if any(most is not None and load > most for most, load in loads):
            raise ProviderError(ErrorClass.RATE, "the queue is full", status=429, code=QUEUE_FULL)

    def _remote(self, made: _Made) -> RemoteBatch:
        job = made.job
        ended = job.state is BatchState.ENDED
        return RemoteBatch(
            id=made.id,
            state=job.state,
            status=job.status,
            marker=made.token if self._limits.has_marker else "",
            input_file=made.file_id,
            created_at=made.created_at,
            expires_at=made.created_at + self._limits.window,
            count=len(job.lines),
            line_errors=job.errors if job.state is BatchState.FAILED else (),
            results=("results",) if ended and (job.results or job.faults.garbled_rows) else (),
            unpaid_rest=ended and job.faults.unpaid_rest,
        )


def _unknown() -> ProviderError:
    return ProviderError(ErrorClass.TRANSIENT, "no such batch", status=404, code=NOT_VISIBLE)


def _passing(text: str, *, status: int = 0, maybe_billed: bool = False) -> ProviderError:
    return ProviderError(ErrorClass.TRANSIENT, text, status=status, maybe_billed=maybe_billed)
