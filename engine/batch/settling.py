"""Reads what a batch brought: rows become completions, readings and costs, or failures with their reasons.

Only rows count, whatever a provider's counters say. Rows are read and prepared by a thread, chunk by chunk, and a chunk
is one operation of one commit; where the store will not have it whole, its lines are settled one by one. A line that
has an outcome already is passed over, so a results file can be read again from its start.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.building import Purse
from engine.batch.ordering import in_order
from engine.batch.provider import BatchProvider, Row, Unpaid, index_behind
from engine.batch.records import Batch, OpenLine
from engine.batch.store import BatchStore
from engine.cell import Read
from engine.clock import Clock
from engine.codec import Codec
from engine.errors import ErrorClass, ProviderError, StoreError
from engine.ledger import ZERO, Amount, BudgetWarning, Reservation
from engine.money import cost_nano
from engine.progress import Progress
from engine.readings import Readings
from engine.request import Completion, Usage
from engine.retry import Chance, GiveUp, RetryAt, RetryPolicy, StopProvider, Tries, decide
from engine.rows import CompletionRow, ReadRows, Scalar, completion_row, failure_rows
from engine.state import State
from engine.telling import Telling
from engine.writes import Fail, Settle, SettleMany

CHUNK: Final = 1_000
# Long answers make smaller chunks.
CHUNK_BYTES: Final = 32 << 20

Outcome = Completion | ProviderError | Unpaid


class Harvest(NamedTuple):
    """What came of some lines.

    Attributes:
        completed, failed, left: lines with an answer, failed for good, and planned again.
        strange: rows of no line of the batch.
        stop: why the provider can do nothing more in this run, or empty.
    """

    completed: int = 0
    failed: int = 0
    left: int = 0
    strange: int = 0
    stop: str = ""

    def plus(self, other: "Harvest") -> "Harvest":
        """Return both together."""
        return Harvest(
            self.completed + other.completed,
            self.failed + other.failed,
            self.left + other.left,
            self.strange + other.strange,
            self.stop or other.stop,
        )


class Settler:
    """Settles lines of one sweep's batches; `leftovers` names the lane that sends again what a batch lane left."""

    def __init__(
        self, *, store: BatchStore, sweep_id: int, purse: Purse, policy: RetryPolicy, leftovers: Mapping[str, str],
        readings: Readings, progress: Progress, clock: Clock, rng: Chance, tell: Telling,
        requeued: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._store, self._sweep_id, self._purse, self._policy = store, sweep_id, purse, policy
        self._leftovers, self._readings, self._progress = leftovers, readings, progress
        self._clock, self._rng, self._tell, self._requeued = clock, rng, tell, requeued

    async def harvest(self, batch: Batch, provider: BatchProvider, paths: Sequence[Path]) -> Harvest:
        """Settle every row of a batch's results files.

        Answers come first: whatever other rows say of the same request, its answer has been paid for.
        """
        found, codec = Harvest(), Codec()
        kept: dict[int, Outcome] = {}
        async for chunk in _chunks(batch, provider, paths):
            found = found.plus(await self._settle(batch, chunk.answers, codec)).plus(Harvest(strange=chunk.strange))
            if len(kept) <= CHUNK:
                kept = {**chunk.others, **kept}
        if len(kept) <= CHUNK:
            return found.plus(await self._settle(batch, kept, codec))
        async for chunk in _chunks(batch, provider, paths):
            found = found.plus(await self._settle(batch, chunk.others, codec))
        return found

    async def close(self, batch: Batch, outcome: ProviderError | Unpaid) -> Harvest:
        """Give every line that has none this outcome."""
        found, codec, after = Harvest(), Codec(), -1
        while numbers := await self._store.open_numbers(batch, after, CHUNK):
            found = found.plus(await self._settle(batch, dict.fromkeys(numbers, outcome), codec))
            after = numbers[-1]
        return found

    async def refuse(self, batch: Batch, numbers: Sequence[int], error: ProviderError) -> Harvest:
        """Give some lines an error."""
        return await self._settle(batch, dict.fromkeys(numbers, error), Codec())

    def refused(self, stage: str, error: ProviderError) -> None:
        """Count and tell of a request that no batch can hold."""
        self._progress.errors[error.kind.value] += 1
        self._progress.failed(stage, 1)
        self._tell.failures(1, f"{stage} requests failed ({error.kind}): {error}")

    async def _settle(self, batch: Batch, outcomes: Mapping[int, Outcome], codec: Codec) -> Harvest:
        if not outcomes:
            return Harvest()
        # In the order of the lines, and so of the store's pages.
        lines = await self._store.open_lines(batch, sorted(outcomes))
        pairs = [(line, outcomes[number]) for number, line in lines.items()]
        answered = [(line, outcome) for line, outcome in pairs if isinstance(outcome, Completion)]
        answers = await asyncio.to_thread(self._prepare, batch, answered, codec)
        verdicts = [self._judge(line, each) for line, each in pairs if not isinstance(each, Completion)]
        await self._write(answers, verdicts, codec)
        self._account(answers, verdicts)
        await self._move(batch, verdicts)
        failed = sum(verdict.state is State.FAILED for verdict in verdicts)
        stop = next((verdict.stop for verdict in verdicts if verdict.stop), "")
        return Harvest(len(answers), failed, len(verdicts) - failed, 0, stop)

    # ----- answers

    def _prepare(self, batch: Batch, pairs: Sequence[tuple[OpenLine, Completion]], codec: Codec) -> list["_Answer"]:
        now_ms = self._clock.wall_ms()
        return [self._answer(batch, line, completion, codec, now_ms) for line, completion in pairs]

    def _answer(self, batch: Batch, line: OpenLine, completion: Completion, codec: Codec, now_ms: int) -> "_Answer":
        usage = completion.usage
        tokens = max(0, usage.input_tokens + usage.output_tokens)
        paid = Amount(cost_nano(self._purse.prices[line.alias], usage), tokens)
        row = completion_row(
            codec, line.request_id, line.number, completion,
            cost_nano=paid.nano, latency_ms=max(0, batch.ended_ms - batch.created_ms), now_ms=now_ms,
        )  # fmt: skip
        reads = [self._readings.read(cell, completion) for cell in line.cells]
        return _Answer(line, usage, paid, row, reads)

    def _rows(self, answers: Sequence["_Answer"], codec: Codec) -> ReadRows:
        rows = ReadRows()
        for answer in answers:
            for cell, read in zip(answer.line.cells, answer.reads, strict=True):
                rows.add(codec, self._sweep_id, cell.id, read)
        return rows

    def _judge(self, line: OpenLine, outcome: ProviderError | Unpaid) -> "_Verdict":
        return _verdict(line, outcome, self._policy, self._clock.now(), self._rng)

    # ----- the commit and the books

    async def _write(self, answers: list["_Answer"], verdicts: Sequence["_Verdict"], codec: Codec) -> None:
        now_ms = self._clock.wall_ms()
        fails = [each.rows(now_ms) for each in verdicts]
        try:
            rows = await asyncio.to_thread(self._rows, answers, codec)
            await self._store.store.put(SettleMany([each.completion for each in answers], rows, fails))
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - the database or the codec would not take one of them
            for place, answer in enumerate(answers):
                answers[place] = await self._write_one(answer, codec)
            for each, fail in zip(verdicts, fails, strict=True):
                await self._store.store.put(Fail(each.line.key, *fail))

    async def _write_one(self, answer: "_Answer", codec: Codec) -> "_Answer":
        """Store one answer; a reading that the database or the codec will not have is replaced, and that is said."""
        try:
            await self._store.store.put(_settle(answer, self._rows([answer], codec)))
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it was paid for
            answer = answer._replace(reads=[self._readings.defective(cell, error) for cell in answer.line.cells])
            await self._store.store.put(_settle(answer, self._rows([answer], codec)))
        return answer

    def _account(self, answers: Sequence["_Answer"], verdicts: Sequence["_Verdict"]) -> None:
        self._pay(chain(answers, verdicts))
        for answer in answers:
            self._progress.settled(answer.usage, answer.paid.nano)
            for cell, read in zip(answer.line.cells, answer.reads, strict=True):
                self._readings.count(cell, read)
        self._count_failures(verdicts)

    def _pay(self, ended: Iterable["_Answer | _Verdict"]) -> None:
        """Turn the reservations of lines into what was paid."""
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for each in ended:
            line, total = each.line, sums[each.line.alias, each.line.stage]
            total[0] += line.reserved.nano
            total[1] += line.reserved.tokens
            total[2] += each.paid.nano
            total[3] += each.paid.tokens
        warnings: list[BudgetWarning] = []
        for pair, (nano, tokens, paid_nano, paid_tokens) in sums.items():
            reservation = Reservation(self._purse.budget(*pair), Amount(nano, tokens))
            warnings += self._purse.ledger.commit(reservation, Amount(paid_nano, paid_tokens))
        self._tell.budget(warnings)

    def _count_failures(self, verdicts: Sequence["_Verdict"]) -> None:
        said: Counter[str] = Counter()
        for verdict in verdicts:
            self._progress.errors[verdict.error.kind.value] += 1
            self._progress.spent_nano += verdict.paid.nano
            if verdict.state is State.FAILED:
                said[f"{verdict.line.stage} requests failed ({verdict.error.kind}): {verdict.error}"] += 1
                for cell in verdict.line.cells:
                    self._progress.failed(cell.stage, 1)
        for text, number in said.items():
            self._tell.failures(number, text)

    async def _move(self, batch: Batch, verdicts: Sequence["_Verdict"]) -> None:
        again = [verdict.line.request_id for verdict in verdicts if verdict.state is State.PLANNED]
        if again:
            lane = self._leftovers[batch.lane]
            await self._store.move(lane, again)
            self._requeued(lane)


class _Answer(NamedTuple):
    line: OpenLine
    usage: Usage
    paid: Amount
    completion: CompletionRow
    reads: list[Read]


class _Verdict(NamedTuple):
    """What becomes of a line without an answer."""

    line: OpenLine
    error: ProviderError
    tries: Tries
    state: State
    paid: Amount
    stop: str

    def rows(self, now_ms: int) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        return failure_rows(
            self.line.request_id, self.line.number, self.error,
            state=self.state, keep=False, tries=self.tries, paid=self.paid, now_ms=now_ms,
        )  # fmt: skip


_STATUSES: Final = 1_000
_UNPAID: Final[Mapping[Unpaid, str]] = {
    Unpaid.EXPIRED: "the batch expired before this request was run",
    Unpaid.CANCELLED: "the batch was cancelled before this request was run",
}


def _verdict(line: OpenLine, outcome: ProviderError | Unpaid, policy: RetryPolicy, now: float, rng: Chance) -> _Verdict:
    error = ProviderError(ErrorClass.TRANSIENT, _UNPAID[outcome]) if isinstance(outcome, Unpaid) else outcome
    if not 0 <= error.status < _STATUSES:
        error.status = 0  # a row may claim a number that no database holds
    tries = line.tries.after(error.kind)
    if error.maybe_billed:
        # Whoever sends it again may pay twice: that is for the user to decide.
        return _Verdict(line, error, tries, State.FAILED, line.reserved if line.reserved.nano else ZERO, "")
    match decide(error, tries, policy, now, rng):
        case GiveUp():
            return _Verdict(line, error, tries, State.FAILED, ZERO, "")
        case StopProvider(reason):
            return _Verdict(line, error, tries, State.PLANNED, ZERO, reason)
        case RetryAt():
            return _Verdict(line, error, tries, State.PLANNED, ZERO, "")


def _settle(answer: _Answer, rows: ReadRows) -> Settle:
    return Settle(answer.line.key, answer.completion, rows, leaves_unread=False)


class _Chunk(NamedTuple):
    """Some rows: the first answer and the first other outcome by line, and how many are of no line of this batch."""

    answers: Mapping[int, Outcome]
    others: Mapping[int, Outcome]
    strange: int


async def _chunks(batch: Batch, provider: BatchProvider, paths: Sequence[Path]) -> AsyncIterator[_Chunk]:
    for path in paths:
        rows = provider.rows(in_order(path, batch.read_marker, batch.count))
        while (chunk := await asyncio.to_thread(_take, batch, rows)) is not None:
            yield chunk


def _take(batch: Batch, rows: Iterator[Row]) -> _Chunk | None:
    """Read the next rows; None when there are no more."""
    head = batch.read_marker.line_head
    answers: dict[int, Outcome] = {}
    others: dict[int, Outcome] = {}
    taken = strange = size = 0
    for row in islice(rows, CHUNK):
        taken += 1
        outcome, number = row.outcome, index_behind(head, row.custom_id)
        if number is None:
            strange += 1
        elif isinstance(outcome, Completion):
            answers.setdefault(number, outcome)
            size += len(outcome.raw)
        else:
            others.setdefault(number, outcome)
        if size >= CHUNK_BYTES:
            break
    return _Chunk(answers, others, strange) if taken else None
