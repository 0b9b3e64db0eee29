"""Builds a batch: planned requests become lines of a file, each with an attempt on disk before anything is sent.

Work goes in chunks, encoded and written by a thread, so that neither memory nor the event loop feels the size.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final, NamedTuple

from engine.batch.lane import BatchLane, Room
from engine.batch.provider import BatchLine, BatchProvider, Marker
from engine.batch.records import Batch, Candidate
from engine.batch.stage import Step
from engine.batch.store import BEGINNING, BatchStore
from engine.clock import Clock
from engine.codec import Codec
from engine.errors import BudgetExhausted, ErrorClass, ProviderError
from engine.ledger import Amount, Budget, Ledger, Reservation
from engine.money import Price, worst_cost_nano
from engine.request import input_token_bound, input_token_estimate

CHUNK: Final = 1_000
DIGEST_BYTES: Final = 8
INPUT: Final = "input.jsonl"

Refused = Callable[[Candidate, ProviderError], None]


class Line(NamedTuple):
    """An encoded line; `tokens` is the estimate of its prompt."""

    candidate: Candidate
    number: int
    data: bytes
    tokens: int
    worst: Amount
    thinking: bool | None


Encoded = Line | tuple[Candidate, ProviderError]


class Built(NamedTuple):
    """A batch whose input is on disk, or None when no line went in; `more` says whether requests were left waiting."""

    batch: Batch | None
    more: bool


class Purse(NamedTuple):
    """Who pays: prices of batches by model alias, the ledger, and the budget of (alias, stage)."""

    prices: Mapping[str, Price]
    ledger: Ledger
    budget: Callable[[str, str], Budget]


class Builder:
    """Builds the batches of one lane, one at a time; `run` is the first part of its markers."""

    def __init__(
        self, *, store: BatchStore, provider: BatchProvider, lane: BatchLane, purse: Purse, folder: Path, run: str,
        clock: Clock, refused: Refused,
    ) -> None:  # fmt: skip
        self._store, self._provider, self._lane, self._purse = store, provider, lane, purse
        self._folder, self._run, self._clock, self._refused = folder, run, clock, refused
        self._codec = Codec()

    async def build(self, room: Room) -> Built:
        """Build one batch that fits `room`.

        Raises:
            OSError: the folder takes no files; nothing is lost, the batch is found unfinished at the next start.
            StoreError: the store takes no writes; as above.
        """
        lane = self._lane
        batch = await self._store.add(lane.name, lane.provider, lane.model, self._clock.wall_ms())
        form = _Form(room, one_thinking_mode=lane.limits.one_thinking_mode, must_take_one=lane.live == 0)
        file = await asyncio.to_thread(_Input.open, folder_of(self._folder, batch.id))
        try:
            more = await self._fill(batch, form, file)
            digest = await asyncio.to_thread(file.finish)
        finally:
            file.close()
        if not form.count:
            await self._store.drop(batch, "nothing to send", self._clock.wall_ms())
            await asyncio.to_thread(shutil.rmtree, folder_of(self._folder, batch.id), ignore_errors=True)
            return Built(None, more)
        marker = Marker(run=self._run, shard=batch.id, attempt=0, digest=digest)
        sealed = await self._store.advance(
            batch, Step.SEAL, self._clock.wall_ms(),
            marker=marker.token, count=form.count, bytes=file.size, tokens=form.tokens,
        )  # fmt: skip
        return Built(sealed, more)

    async def _fill(self, batch: Batch, form: "_Form", file: "_Input") -> bool:
        """Enlist what fits; return whether anything that could go was left."""
        place, number = BEGINNING, 0
        while (most := min(CHUNK, form.left())) > 0:
            skip = self._lane.exhausted
            candidates = await self._store.candidates(self._lane.name, skip, place, most)
            if not candidates:
                return form.skipped
            place = (candidates[-1].priority, candidates[-1].id)
            lines = await asyncio.to_thread(self._encode, batch, candidates, number)
            number += len(candidates)
            chosen = form.choose(await self._sound(lines))
            went = await self._enlist(batch, [line for line in chosen if self._affordable(line)])
            form.add(went)
            await asyncio.to_thread(file.write, [line.data for line in went])
            if len(candidates) < most and not form.full:
                return form.skipped
        return True

    def _encode(
        self, batch: Batch, candidates: Sequence[Candidate], number: int
    ) -> list[Line | tuple[Candidate, ProviderError]]:
        marker = Marker(run=self._run, shard=batch.id, attempt=0, digest="0" * (2 * DIGEST_BYTES))
        return [self._line(candidate, number + place, marker) for place, candidate in enumerate(candidates)]

    def _line(self, candidate: Candidate, number: int, marker: Marker) -> Encoded:
        request = self._codec.unpack_request(candidate.body)
        try:
            data = self._provider.encode_line(BatchLine(marker.line_id(number), request))
        except ProviderError as error:
            return candidate, error
        allowance = request.decoding.max_tokens
        bound = input_token_bound(candidate.size, candidate.messages)
        price = self._purse.prices[candidate.alias]
        worst = Amount(worst_cost_nano(price, bound, allowance), bound + allowance)
        tokens = input_token_estimate(candidate.size, candidate.messages)
        return Line(candidate, number, data, tokens, worst, request.decoding.thinking)

    async def _sound(self, lines: Iterable[Encoded]) -> list[Line]:
        """Return the lines that can be sent, and fail the requests of the others: one must not sink a whole batch."""
        sound = []
        most = self._lane.limits.max_line_bytes
        for line in lines:
            if isinstance(line, Line) and (most is None or len(line.data) < most):
                sound.append(line)
                continue
            candidate, error = (line.candidate, _too_long(len(line.data))) if isinstance(line, Line) else line
            await self._store.refuse(candidate.id, error.kind, error.message)
            self._refused(candidate, error)
        return sound

    def _affordable(self, line: Line) -> bool:
        """Reserve a line's worst case; where a budget refuses, the rest of its model and stage waits too."""
        candidate = line.candidate
        pair = (candidate.alias, candidate.stage)
        if pair in self._lane.exhausted:
            return False
        try:
            self._purse.ledger.reserve(self._purse.budget(*pair), line.worst)
        except BudgetExhausted:
            self._lane.exhaust(pair, line.worst, self._purse.ledger.releases)
            return False
        return True

    async def _enlist(self, batch: Batch, lines: Sequence[Line]) -> list[Line]:
        if not lines:
            return []
        rows = [(line.candidate, line.number, line.worst) for line in lines]
        try:
            went = await self._store.enlist(rows, batch, self._clock.wall_ms())
        except BaseException:
            self._give_back(lines)
            raise
        self._give_back([line for line in lines if line.number not in went])
        return [line for line in lines if line.number in went]

    def _give_back(self, lines: Iterable[Line]) -> None:
        for line in lines:
            budget = self._purse.budget(line.candidate.alias, line.candidate.stage)
            self._purse.ledger.release(Reservation(budget, line.worst))


class _Form:
    """What a batch holds so far, and what it still may."""

    def __init__(self, room: Room, *, one_thinking_mode: bool, must_take_one: bool) -> None:
        self.count = self.bytes = self.tokens = 0
        self.full = self.skipped = False
        self._room, self._one_mode, self._must_take_one = room, one_thinking_mode, must_take_one
        self._mode: bool | None = None
        self._mode_known = False

    def left(self) -> int:
        return 0 if self.full else self._room.requests - self.count

    def choose(self, lines: Iterable[Line]) -> list[Line]:
        """Return the first lines that fit beside what is there."""
        chosen: list[Line] = []
        size, tokens = self.bytes, self.tokens
        for line in lines:
            if self._one_mode and self._mode_known and line.thinking is not self._mode:
                self.skipped = True
                continue
            size, tokens = size + len(line.data) + 1, tokens + line.tokens
            over = size > self._room.bytes or (self._room.tokens is not None and tokens > self._room.tokens)
            if over and not (self._must_take_one and not self.count and not chosen):
                self.full = True
                break
            chosen.append(line)
            self._mode, self._mode_known = line.thinking, True
        return chosen

    def add(self, lines: Sequence[Line]) -> None:
        self.count += len(lines)
        self.bytes += sum(len(line.data) + 1 for line in lines)
        self.tokens += sum(line.tokens for line in lines)


class _Input:
    """The input file of a batch on its way to the disk. Used by one thread at a time."""

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        self.size = 0
        self._file, self._folder = file, folder
        self._digest = blake2b(digest_size=DIGEST_BYTES)

    @classmethod
    def open(cls, folder: Path) -> "_Input":
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls((folder / INPUT).open("wb"), folder)

    def write(self, lines: Sequence[bytes]) -> None:
        if lines:
            data = b"\n".join(lines) + b"\n"
            self._file.write(data)
            self._digest.update(data)
            self.size += len(data)

    def finish(self) -> str:
        """Force the file and its name to the disk; return the digest of its content."""
        self._file.flush()
        os.fsync(self._file.fileno())
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()


def folder_of(root: Path, batch_id: int) -> Path:
    """Return where the files of a batch lie."""
    return root / f"{batch_id:06d}"


def _too_long(size: int) -> ProviderError:
    return ProviderError(
        ErrorClass.BAD_REQUEST, f"its line of {size:,} bytes is longer than the provider's batches take"
    )
