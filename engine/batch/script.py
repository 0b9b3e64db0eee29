"""The batches of `engine.batch.testing`: what can go wrong with one, what runs in it and when, and its results as text.

A job is pure: it is told when it is looked at, cancelled or brought to its end. Must not know: files, markers, calls.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from engine.batch.provider import BatchLimits, BatchLine, BatchState, LineError, Row, Unpaid
from engine.errors import ErrorClass, ProviderError
from engine.request import Completion, Request, input_token_estimate, prompt_bytes, request_key
from engine.testing import make_completion

BatchAnswer = str | Completion | ProviderError | Unpaid | None
BatchScript = Callable[[Request, int], BatchAnswer]

ENDED: Final = frozenset({"ended", "expired", "cancelled"})
RUNNING: Final = "running"
CANCELLING: Final = "cancelling"
FAILED: Final = "failed"


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with one create call, the uploads before it and the batch that it makes; counts count down.

    Attributes:
        upload_errors: so many uploads fail.
        create_lost_before, create_lost_after: the call's answer is lost and it did not, or did, take effect.
        create_refused: the create call raises this, code `QUEUE_FULL` for a full queue.
        fails: the batch is refused whole, for these reasons; nothing runs.
        list_lag: so many `find` calls do not show the batch.
        fresh_404, poll_errors: so many polls find no such batch, or a bad gateway.
        results_late, torn_downloads: so many downloads find no file, or leave half of one.
        missing_rows, repeated_rows: so many of the first requests run and have no row, or of the first rows come twice.
        garbled_rows: so many lines of results cannot be read, after all others.
        shuffled: rows come in another order.
        stuck: the batch never ends unless it is cancelled.
        expires: only so many of its requests run; the others expire.
        unpaid_rest: the batch says so once it has ended, see `RemoteBatch`.
    """

    upload_errors: int = 0
    create_lost_before: bool = False
    create_lost_after: bool = False
    create_refused: ProviderError | None = None
    fails: tuple[LineError, ...] = ()
    list_lag: int = 0
    fresh_404: int = 0
    poll_errors: int = 0
    results_late: int = 0
    torn_downloads: int = 0
    missing_rows: int = 0
    repeated_rows: int = 0
    garbled_rows: int = 0
    shuffled: bool = False
    stuck: bool = False
    expires: int | None = None
    unpaid_rest: bool = False


class Tally(msgspec.Struct):
    """By `request_key`: how many times a request ran, and how many times it was charged."""

    ran: Counter[bytes] = msgspec.field(default_factory=Counter)
    bill: Counter[bytes] = msgspec.field(default_factory=Counter)


class _Error(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: ErrorClass
    message: str
    status: int = 0
    code: str = ""
    maybe_billed: bool = False


class _Result(msgspec.Struct, frozen=True, omit_defaults=True):
    custom_id: str
    completion: Completion | None = None
    error: _Error | None = None
    unpaid: Unpaid | None = None


_line: Final = msgspec.json.Decoder(BatchLine)
_result: Final = msgspec.json.Decoder(_Result)
_encoder: Final = msgspec.json.Encoder()


class Job:
    """One batch at the provider.

    Args:
        data: the input file, or None when the provider has no such file.
        polls: the look at which the batch ends.
    """

    def __init__(self, data: bytes | None, faults: BatchFaults, *, polls: int) -> None:
        self.faults, self.known = faults, data is not None
        self.lines = [_line.decode(text) for text in (data or b"").splitlines()]
        self.size = len(data or b"")
        self.status, self.errors = RUNNING, faults.fails
        self.results: list[_Result] = []
        self._left: dict[str, int] = {}
        self._polls, self._looks, self._ran = max(1, polls), 0, 0

    @property
    def state(self) -> BatchState:
        """Where it stands."""
        if self.status == FAILED:
            return BatchState.FAILED
        return BatchState.ENDED if self.status in ENDED else BatchState.OPEN

    @property
    def tokens(self) -> int:
        """Prompt tokens, estimated."""
        requests = [line.request for line in self.lines]
        return sum(input_token_estimate(prompt_bytes(each), len(each.messages)) for each in requests)

    @property
    def model(self) -> str:
        """The first line's model."""
        return self.lines[0].request.model if self.lines else ""

    def strikes(self, fault: str) -> bool:
        """Whether a fault that is counted strikes once more."""
        left: int = self._left.get(fault, getattr(self.faults, fault))
        self._left[fault] = left - 1
        return left > 0

    def validate(self, limits: BatchLimits, count: int) -> None:
        """Fail when it was told to, or when the lines are not what they should be."""
        self.errors = self.errors or tuple(self._complaints(limits, count))
        self.status = FAILED if self.errors else RUNNING

    def look(self, script: BatchScript, tally: Tally) -> None:
        """Count a poll, and end when it was the last."""
        self._looks += 1
        if self.status == CANCELLING or self._looks >= self._polls:
            self.finish(script, tally)

    def cancel(self) -> None:
        """Run no more than what ran by now."""
        if self.status == RUNNING:
            self.status = CANCELLING
            self._ran = len(self.lines) * min(self._looks, self._polls) // self._polls

    def finish(self, script: BatchScript, tally: Tally) -> None:
        """Run what runs before the end, and charge what is answered; nothing if it has ended or is stuck."""
        if self.state is not BatchState.OPEN or (self.status == RUNNING and self.faults.stuck):
            return
        ran, left, self.status = self._ending()
        found = [_run(line, script, tally) for line in self.lines[:ran]]
        found += [_Result(line.custom_id, unpaid=left) for line in self.lines[ran:]]
        self.results = [result for result in found[self.faults.missing_rows :] if result is not None]

    def text(self) -> bytes:
        """Return the results file."""
        rows = [*self.results, *self.results[: self.faults.repeated_rows]]
        if self.faults.shuffled:
            random.Random(len(rows)).shuffle(rows)  # noqa: S311 - any fixed order will do
        return b"".join(_encoder.encode(row) + b"\n" for row in rows) + b'{"custom_id":\n' * self.faults.garbled_rows

    def _ending(self) -> tuple[int, Unpaid, str]:
        if self.status == CANCELLING:
            return self._ran, Unpaid.CANCELLED, "cancelled"
        if self.faults.expires is not None:
            return self.faults.expires, Unpaid.EXPIRED, "expired"
        return len(self.lines), Unpaid.EXPIRED, "ended"

    def _complaints(self, limits: BatchLimits, count: int) -> Iterator[LineError]:
        lines, requests = self.lines, [line.request for line in self.lines]
        found = {
            "no_such_file": not self.known,
            "wrong_count": len(lines) != count,
            "too_many_requests": limits.max_requests is not None and len(lines) > limits.max_requests,
            "too_many_bytes": self.size > limits.max_bytes,
            "duplicate_custom_id": len({line.custom_id for line in lines}) < len(lines),
            "mismatched_model": limits.one_model and len({each.model for each in requests}) > 1,
            "mismatched_thinking": limits.one_thinking_mode and len({each.decoding.thinking for each in requests}) > 1,
        }
        yield from (LineError(code=code, message=f"{len(lines)} lines") for code, wrong in found.items() if wrong)


def encode(line: BatchLine) -> bytes:
    """Return a line of the input file."""
    return _encoder.encode(line)


def decode(text: bytes) -> Row:
    """Return the row that a line of the results file is; one that cannot be read has no id and may be charged."""
    try:
        found = _result.decode(text)
    except msgspec.DecodeError:
        return Row("", ProviderError(ErrorClass.TRANSIENT, "a row cannot be read", maybe_billed=True))
    if found.error is None:
        return Row(found.custom_id, found.completion or found.unpaid or Unpaid.CANCELLED)
    error = found.error
    outcome = ProviderError(
        error.kind, error.message, status=error.status, code=error.code, maybe_billed=error.maybe_billed
    )
    return Row(found.custom_id, outcome)


def _run(line: BatchLine, script: BatchScript, tally: Tally) -> _Result | None:
    key = request_key(line.request)
    answer = script(line.request, tally.ran[key])
    tally.ran[key] += 1
    match answer:
        case None:
            return None
        case Unpaid():
            return _Result(line.custom_id, unpaid=answer)
        case ProviderError():
            error = _Error(answer.kind, answer.message, answer.status, answer.code, answer.maybe_billed)
            return _Result(line.custom_id, error=error)
    tally.bill[key] += 1
    return _Result(line.custom_id, answer if isinstance(answer, Completion) else make_completion(answer))
