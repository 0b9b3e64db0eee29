"""What the store keeps of a batch, its lines and its results, as records. Pure."""

import msgspec

from engine.batch.provider import Marker, RemoteBatch, read_marker
from engine.batch.stage import Stage
from engine.lane import LeasedCell
from engine.ledger import Amount
from engine.retry import Tries


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a sweep.

    Attributes:
        count, bytes, tokens: requests, size of the input file, estimated prompt tokens.
        file_id, remote_id: the provider's names of the input and of the batch, empty while there are none.
        remote: the batch as the provider last described it, or None.
        cancelled: its cancellation was ordered.
        created_ms, ended_ms: Unix milliseconds of the create call and of the end, 0 while they have not come.
    """

    id: int
    lane: str
    provider: str
    model: str
    stage: Stage
    marker: str = ""
    count: int = 0
    bytes: int = 0
    tokens: int = 0
    file_id: str = ""
    remote_id: str = ""
    remote: RemoteBatch | None = None
    cancelled: bool = False
    created_ms: int = 0
    ended_ms: int = 0

    @property
    def read_marker(self) -> Marker:
        """The marker as a record.

        Raises:
            ValueError: the batch has none yet, or the store was tampered with.
        """
        found = read_marker(self.marker)
        if found is None:
            raise ValueError(f"batch {self.id} has no marker")
        return found


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A planned request that could go into a batch; `body` is its stored form."""

    id: int
    key: bytes
    stage: str
    alias: str
    attempts: int
    size: int
    messages: int
    priority: int
    body: bytes


class OpenLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of a batch that has no outcome yet, with the cells that wait for its answer."""

    line: int
    request_id: int
    number: int
    key: bytes
    stage: str
    alias: str
    tries: Tries
    reserved: Amount
    cells: tuple[LeasedCell, ...] = ()


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What the open lines of a batch that one budget pays for have set aside."""

    alias: str
    stage: str
    lines: int
    reserved: Amount
