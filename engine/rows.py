"""The rows that a plan, a call and a reading write, as tuples in the order of their statement's parameters.

Each row names its fields as queries.sql names the parameters; that both agree is checked when a store is opened, so
that a column can never end up in another's place.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from engine.cell import Cell, Read, Reading
from engine.codec import Codec
from engine.errors import ProviderError
from engine.ledger import Amount
from engine.request import Completion, Request, prompt_bytes, request_key, well_formed
from engine.retry import Tries
from engine.state import State

IDENT_BYTES: Final = 16
ERROR_CHARACTERS: Final = 500
BATCH_SUFFIX: Final = " (batch)"
Scalar = str | int | bool | None


class RequestRow(NamedTuple):
    """A planned request."""

    key: bytes
    sweep_id: int
    lane: str
    provider: str
    model: str
    alias: str
    stage: str
    priority: int
    size: int
    messages: int


class PromptRow(NamedTuple):
    """A planned request's content."""

    key: bytes
    body: bytes


class CellRow(NamedTuple):
    """A planned cell."""

    ident: bytes
    sweep_id: int
    stage: str
    alias: str
    coords: str
    parent_id: int | None
    changes: str
    key: bytes


class AttemptRow(NamedTuple):
    """A new attempt with its reservation."""

    reserved_nano: int
    reserved_tokens: int
    sent_ms: int
    request_id: int
    run_id: int
    number: int


class EnlistRow(NamedTuple):
    """A request that becomes a line of a batch, with its reservation."""

    request_id: int
    line: int
    reserved_nano: int
    reserved_tokens: int


class PaidRow(NamedTuple):
    """What an answered attempt cost."""

    cost_nano: int
    tokens: int
    settled_ms: int
    request_id: int
    number: int


class CompletionRow(NamedTuple):
    """A completion as it is stored; long texts are frames."""

    request_id: int
    attempt: int
    text: str | bytes
    thinking: str | bytes
    finish: str
    finish_raw: str
    model_echo: str
    provider_request_id: str
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_nano: int
    latency_ms: int
    settled_ms: int
    raw: bytes

    @property
    def paid(self) -> PaidRow:
        """What its attempt cost."""
        tokens = max(0, self.input_tokens + self.output_tokens)
        return PaidRow(self.cost_nano, tokens, self.settled_ms, self.request_id, self.attempt)


class ReadingRow(NamedTuple):
    """How a cell's answer was read."""

    status: str
    reason: str
    version: int
    cell_id: int


class BodyRow(NamedTuple):
    """A reading's body."""

    cell_id: int
    body: str


# Of the statements that insert such rows.
INSERTS: Final[Mapping[str, tuple[str, ...]]] = {
    "plan_request": RequestRow._fields,
    "plan_prompt": PromptRow._fields,
    "plan_cell": CellRow._fields,
    "settle_completion": CompletionRow._fields,
    "read_body": BodyRow._fields,
}


class Planting:
    """The rows of cells to plan: their requests, prompts and the cells themselves."""

    __slots__ = ("cells", "prompts", "requests")

    def __init__(self) -> None:
        self.requests: list[RequestRow] = []
        self.prompts: list[PromptRow] = []
        self.cells: list[CellRow] = []

    def add(self, codec: Codec, sweep_id: int, cell: Cell, parent_id: int | None) -> None:
        """Append one cell."""
        request, stage, alias = cell.request, cell.stage, cell.alias
        key = request_key(request)
        size, messages = prompt_bytes(request), len(request.messages)
        lane, provider, model = lane_name(request, batch=cell.batch), request.provider, request.model
        body = codec.pack_request(request)
        ident = cell_ident(sweep_id, stage, cell.coords)
        coords, changes = cell.coords.decode(), cell.changes.decode()
        self.requests.append(
            RequestRow(key, sweep_id, lane, provider, model, alias, stage, cell.priority, size, messages)
        )
        self.prompts.append(PromptRow(key, body))
        self.cells.append(CellRow(ident, sweep_id, stage, alias, coords, parent_id, changes, key))

    def extend(self, other: "Planting") -> None:
        """Append everything of another one."""
        self.requests.extend(other.requests)
        self.prompts.extend(other.prompts)
        self.cells.extend(other.cells)


class ReadRows:
    """The rows of readings and of the cells that follow from them; made by any thread."""

    __slots__ = ("bodies", "follow_ups", "readings")

    def __init__(self) -> None:
        self.readings: list[ReadingRow] = []
        self.bodies: list[BodyRow] = []
        self.follow_ups = Planting()

    def add(self, codec: Codec, sweep_id: int, cell_id: int, read: Read) -> None:
        """Append one cell's reading and the cells that follow from it."""
        self.readings.append(reading_row(cell_id, read.reading))
        self.bodies.append(BodyRow(cell_id, read.reading.body.decode()))
        for cell in read.follow_ups:
            self.follow_ups.add(codec, sweep_id, cell, cell_id)

    def extend(self, other: "ReadRows") -> None:
        """Append everything of another one."""
        self.readings.extend(other.readings)
        self.bodies.extend(other.bodies)
        self.follow_ups.extend(other.follow_ups)


def lane_name(request: Request, *, batch: bool = False) -> str:
    """Return the lane of a request: one per provider account and model, and way to send."""
    return f"{request.provider}/{request.model}{BATCH_SUFFIX if batch else ''}"


def cell_ident(sweep_id: int, stage: str, coords: bytes) -> bytes:
    """Return the 16-byte identity of a cell."""
    return blake2b(b"%d\0%s\0%s" % (sweep_id, stage.encode(), coords), digest_size=IDENT_BYTES).digest()


def completion_row(
    codec: Codec, request_id: int, attempt: int, completion: Completion, *, cost_nano: int, latency_ms: int, now_ms: int
) -> CompletionRow:
    """Return a completion's row; what a provider calls things is hostile text too."""
    usage = completion.usage
    return CompletionRow(
        request_id,
        attempt,
        codec.pack_text(completion.text),
        codec.pack_text(completion.thinking),
        completion.finish.value,
        well_formed(completion.finish_raw),
        well_formed(completion.model_echo),
        well_formed(completion.provider_request_id),
        usage.input_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        cost_nano,
        latency_ms,
        now_ms,
        codec.pack_bytes(completion.raw),
    )


def reading_row(cell_id: int, reading: Reading) -> ReadingRow:
    """Return a reading's row."""
    return ReadingRow(reading.status.value, well_formed(reading.reason), reading.version, cell_id)


def failure_rows(
    request_id: int, number: int, error: ProviderError, *,
    state: State, keep: bool, tries: Tries, paid: Amount, now_ms: int,
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:  # fmt: skip
    """Return what a failed attempt and its request become; one that costs something without an answer is `assumed`."""
    text = well_formed(error.message[:ERROR_CHARACTERS])
    shared: dict[str, Scalar] = {
        "request_id": request_id, "number": number, "error_class": error.kind.value, "error": text,
    }  # fmt: skip
    attempt = shared | {
        "outcome": "assumed" if paid.nano else "error", "status": error.status, "cost_nano": paid.nano,
        "tokens": paid.tokens, "settled_ms": now_ms,
    }  # fmt: skip
    request = shared | {
        "state": state.value, "keep": keep, "failures": tries.failures, "throttles": tries.throttles,
    }  # fmt: skip
    return attempt, request
