"""Records of simulated batches: jobs, lines, files, and what became of them. Knows no provider."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from bench.simulator.batchrules import Quirks
from bench.simulator.wire import Answer, Call, Json, Rejected, Reply, Tag, Trouble

WINDOW: Final = 86_400.0


class Stage(StrEnum):
    """Where a job stands."""

    VALIDATING = "validating"
    RUNNING = "running"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({Stage.COMPLETED, Stage.FAILED, Stage.EXPIRED, Stage.CANCELLED})


class Fate(StrEnum):
    """What became of one line."""

    ANSWERED = "answered"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Line(msgspec.Struct, frozen=True):
    """One request of a job, as it came."""

    custom_id: str
    body: Json


class Outcome(msgspec.Struct, frozen=True):
    """One line's end: for an answered line the provider's whole reply, for a refused one its error reply.

    `id` is the reply's, as it stands on the bill.
    """

    custom_id: str
    fate: Fate
    reply: Reply = Reply()
    id: str = ""


class Complaint(msgspec.Struct, frozen=True):
    """Why a job was refused; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class File(msgspec.Struct, kw_only=True):
    """A stored file.

    Attributes:
        hidden, late: looks, and downloads, that are answered as if it were not there.
        cut, short: downloads that break off, or end early without a word.
    """

    id: str
    owner: bytes
    name: str
    data: bytes
    created: float
    purpose: str = "batch"
    hidden: int = 0
    late: int = 0
    cut: int = 0
    short: int = 0


class Job(msgspec.Struct, kw_only=True):
    """One batch.

    Attributes:
        lines: only their ids are kept once it has ended.
        created: real seconds since the epoch.
        born, ordered: in the batches' seconds: when it was created, and its age when it was told to stop.
        label: what the client wrote on it.
        hidden, unlisted: looks, and lists, that are answered as if it were not there.
        running: its last requests are running.
        outcomes: None until it has ended; without their replies once these are in files.
        files: ids of its results files.
    """

    id: str
    provider: str
    owner: bytes
    model: str
    lines: list[Line]
    quirks: Quirks
    created: float
    born: float
    window: float = WINDOW
    label: Json = {}
    input_file: str = ""
    complaint: Complaint | None = None
    hidden: int = 0
    unlisted: int = 0
    running: bool = False
    ordered: float | None = None
    outcomes: list[Outcome] | None = None
    files: list[str] = []

    def filed(self, files: list[str]) -> None:
        """Note the results files; replies are in them now."""
        self.files = files
        self.outcomes = [Outcome(each.custom_id, each.fate, id=each.id) for each in self.outcomes or []]


class Clerk(msgspec.Struct, frozen=True):
    """How a wire format reads a line's body into a call, and words its answer or its trouble."""

    read: Callable[[Job, Line], Call]
    write: Callable[[Call, Answer, Tag], Reply]
    reject: Callable[[Rejected, Tag], Reply]
    trouble: Callable[[Trouble, Tag], Reply]
