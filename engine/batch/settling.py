"""Reads what a batch brought: rows become completions, readings and costs, or failures with their reasons.

Only rows count, whatever a provider's counters say. Rows are read and prepared by a thread, chunk by chunk, and a chunk
is one commit. A line that has an outcome already is passed over, so a results file can be read again from its start.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from engine.batch.building import Purse
from engine.batch.records import Batch, OpenLine
from engine.batch.store import BatchStore
from engine.batching import BatchProvider, Row, Unpaid
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
from engine.rows import CompletionRow, PaidRow, ReadRows, Scalar, completion_row, failure_rows
from engine.state import State
from engine.telling import Telling
from engine.writes import Fail, Settle

CHUNK: Final = 500

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
        """Settle every row of a batch's results files."""
        found, codec = Harvest(), Codec()
        for path in paths:
            rows = provider.rows(path)
            while chunk := await asyncio.to_thread(_take, rows):
                outcomes, strange = _by_line(batch, chunk)
                found = found.plus(await self._settle(batch, outcomes, codec)).plus(Harvest(strange=strange))
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
        lines = await self._store.open_lines(batch, list(outcomes))
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
        cost = PaidRow(paid.nano, tokens, now_ms, line.request_id, line.number)
        return _Answer(line, usage, paid, cost, row, reads, self._rows(line, reads, codec))

    def _rows(self, line: OpenLine, reads: Sequence[Read], codec: Codec) -> ReadRows:
        rows = ReadRows()
        for cell, read in zip(line.cells, reads, strict=True):
            rows.add(codec, self._sweep_id, cell.id, read)
        return rows

    def _judge(self, line: OpenLine, outcome: ProviderError | Unpaid) -> "_Verdict":
        return _verdict(line, outcome, self._policy, self._clock.now(), self._rng)

    # ----- the commit and the books

    async def _write(self, answers: list["_Answer"], verdicts: Sequence["_Verdict"], codec: Codec) -> None:
        fails = [Fail(each.line.key, *each.rows(self._clock.wall_ms())) for each in verdicts]
        puts = [self._store.store.put(operation) for operation in (*map(_settle, answers), *fails)]
        results = await asyncio.gather(*puts, return_exceptions=True)
        for place, result in enumerate(results):
            if not isinstance(result, BaseException):
                continue
            if isinstance(result, StoreError) or not isinstance(result, Exception) or place >= len(answers):
                raise result
            # The database or the codec would not take a reading: keep what was paid for, and say so.
            answer = answers[place]
            reads = [self._readings.defective(cell, result) for cell in answer.line.cells]
            answers[place] = answer._replace(reads=reads, rows=self._rows(answer.line, reads, codec))
            await self._store.store.put(_settle(answers[place]))

    def _account(self, answers: Sequence["_Answer"], verdicts: Sequence["_Verdict"]) -> None:
        self._pay([*((each.line, each.paid) for each in answers), *((each.line, each.paid) for each in verdicts)])
        for answer in answers:
            self._progress.settled(answer.usage, answer.paid.nano)
            for cell, read in zip(answer.line.cells, answer.reads, strict=True):
                self._readings.count(cell, read)
        self._count_failures(verdicts)

    def _pay(self, paid: Sequence[tuple[OpenLine, Amount]]) -> None:
        """Turn the reservations of lines into what was paid."""
        sums: dict[tuple[str, str], list[int]] = {}
        for line, amount in paid:
            total = sums.setdefault((line.alias, line.stage), [0, 0, 0, 0])
            for place, part in enumerate((*line.reserved, *amount)):
                total[place] += part
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
    cost: PaidRow
    completion: CompletionRow
    reads: list[Read]
    rows: ReadRows


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


_UNPAID: Final[Mapping[Unpaid, str]] = {
    Unpaid.EXPIRED: "the batch expired before this request was run",
    Unpaid.CANCELLED: "the batch was cancelled before this request was run",
}


def _verdict(line: OpenLine, outcome: ProviderError | Unpaid, policy: RetryPolicy, now: float, rng: Chance) -> _Verdict:
    error = ProviderError(ErrorClass.TRANSIENT, _UNPAID[outcome]) if isinstance(outcome, Unpaid) else outcome
    if outcome is Unpaid.CANCELLED:
        return _Verdict(line, error, line.tries, State.PLANNED, ZERO, "")
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


def _settle(answer: _Answer) -> Settle:
    return Settle(answer.line.key, answer.cost, answer.completion, answer.rows, leaves_unread=False)


def _take(rows: Iterator[Row]) -> list[Row]:
    return list(islice(rows, CHUNK))


def _by_line(batch: Batch, rows: Sequence[Row]) -> tuple[dict[int, Outcome], int]:
    """Return the first outcome of every line, and how many rows are of no line of this batch."""
    marker = batch.read_marker
    outcomes: dict[int, Outcome] = {}
    strange = 0
    for row in rows:
        number = marker.line_index(row.custom_id)
        if number is None:
            strange += 1
        else:
            outcomes.setdefault(number, row.outcome)
    return outcomes, strange
