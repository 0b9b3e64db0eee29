"""What providers were measured to do, kept from run to run: one JSON object a line, only ever appended.

A line that cannot be read (cut off by a full disk, of a later version) is counted and passed over, never guessed.
"""

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
import platformdirs

from bench.modes import Mode
from engine.errors import UserError
from providers.card import ModelCard

FILE: Final = "providers.jsonl"
# Fewer answers say little about a rate.
FEWEST: Final = 10
_VERSION: Final = 1


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of some calls: median, percentiles and the slowest; `n` calls."""

    n: int
    p50: float
    p90: float
    p99: float
    most: float


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the ramp: calls at once, answers per second, and the share of calls that got a 429."""

    concurrency: int
    calls_per_s: float
    throttled_share: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one mode, measured once. Money in nano-dollars, times in seconds unless a name says otherwise.

    Attributes:
        at: Unix seconds.
        base_url: the account's address; figures of another address are of another service.
        simulated: what answered was a program, not a model.
        calls, completed, failed, left_out: wanted, answered, failed for good, and never sent, as under a cap.
        attempts, retries: calls on the wire, and those of them that repeated a request.
        throttled_share: attempts that got a 429 or the like.
        errors: attempts that went wrong, by class.
        calls_per_s, tokens_per_s, output_tokens_per_s: streamed, while the lane was full; in batches, from creation to
            end. None where too little was answered.
        input_tokens, output_tokens: mean of a call.
        first_byte_ms, latency_ms: of answered calls at the best concurrency; None for batches.
        cost_nano, cost_nano_per_1000: of everything; per 1,000 answers.
        concurrency: the best number of calls at once that the ramp found; 0 for batches.
        rising: more at once might have been better: the ramp ended for other reasons.
        turnaround: from the creation of the first batch to the end of the last; None for calls.
        cut: why it is incomplete, empty when it is whole.
    """

    version: int = _VERSION
    at: float
    alias: str
    provider: str
    model: str
    base_url: str
    mode: Mode
    simulated: bool
    calls: int
    completed: int
    failed: int
    left_out: int = 0
    attempts: int
    retries: int
    throttled_share: float
    errors: dict[str, int] = {}
    calls_per_s: float | None
    tokens_per_s: float | None
    output_tokens_per_s: float | None
    input_tokens: float
    output_tokens: float
    first_byte_ms: Spread | None = None
    latency_ms: Spread | None = None
    cost_nano: int
    cost_nano_per_1000: int | None
    concurrency: int = 0
    rising: bool = False
    ramp: tuple[Step, ...] = ()
    turnaround: float | None = None
    cut: str = ""

    @property
    def day(self) -> str:
        """The day of it, in UTC, as YYYY-MM-DD."""
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d")

    def of(self, card: ModelCard) -> bool:
        """Say whether this is what a card's account and model were measured to do."""
        return (self.provider, self.model, self.base_url) == (card.provider, card.model, card.base_url)


class Kept(msgspec.Struct, frozen=True):
    """What a file of measurements holds, the oldest first, and how many of its lines cannot be read."""

    measurements: tuple[Measurement, ...]
    unreadable: int = 0


class _Line(Measurement, frozen=True, kw_only=True):
    version: Literal[1]


_line: Final = msgspec.json.Decoder(_Line)


def results_file() -> Path:
    """Return where measurements are kept unless one says otherwise."""
    return Path(platformdirs.user_data_dir("mirage")) / FILE


def keep(path: Path, measurements: Iterable[Measurement]) -> None:
    """Append measurements.

    Raises:
        UserError: the file cannot be written.
    """
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in measurements)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # A line that was cut off stays alone.
            if file.tell() and not _ends_well(file.fileno(), file.tell()):
                lines = b"\n" + lines
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"the measurements cannot be kept: {error.strerror}", where=str(path), mend="choose another --results"
        ) from error


def kept(path: Path) -> Kept:
    """Return what a file of measurements holds; nothing where there is none.

    Raises:
        UserError: it cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise UserError(f"the measurements cannot be read: {error.strerror}", where=str(path)) from error
    found, unreadable = [], 0
    for line in filter(None, map(bytes.strip, lines)):
        try:
            found.append(_line.decode(line))
        except msgspec.DecodeError:
            unreadable += 1
    return Kept(tuple(found), unreadable)


def pace_of(card: ModelCard, measurements: Sequence[Measurement]) -> Measurement | None:
    """Return the newest measurement that says how fast a model really answers calls, or None."""
    usable = [
        each
        for each in measurements
        if each.of(card)
        and each.mode is Mode.STREAM
        and not each.simulated
        and each.completed >= FEWEST
        and each.calls_per_s
    ]
    return max(usable, key=lambda each: each.at, default=None)


def _ends_well(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
