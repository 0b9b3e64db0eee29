"""The bill: an append-only file with one line for every call that would have been charged.

A line is written (unbuffered, one system call) before the reply's first byte is sent, so killing the client loses
nothing and killing the simulator loses at most a line that was never written. What became of the reply is a second
line when it did not arrive. Opening an existing bill goes on with it; a torn last line is cut off.
"""

import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal

import msgspec
import orjson

from engine.errors import UserError
from engine.request import Usage

FILE: Final = "bill.jsonl"
HASH_BYTES: Final = 16
# Fields that change how an answer travels or who asks, not what is asked.
TRANSPORT: Final = frozenset(
    {
        "stream",
        "stream_options",
        "metadata",
        "user",
        "user_id",
        "request_id",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "labels",
    }
)

Outcome = Literal["delivered", "dropped"]


class Charge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="charge", tag_field="kind"):
    """One charged call.

    Attributes:
        n: line number among charges, from 1.
        hash: `content_hash` of the request.
        nano: price in nano-dollars.
        at: seconds since the epoch.
        outcome: `dropped` when the simulator cut the connection on purpose; see also `Lost`.
        batch: id of the provider's batch that it was part of.
        reply: the id that the reply carried (`wire.Tag.id`); a client's request id ends with it.
    """

    n: int
    at: float
    provider: str
    model: str
    hash: str
    stage: str
    usage: Usage
    nano: int
    outcome: Outcome
    fault: str = ""
    batch: str = ""
    reply: str = ""


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost", tag_field="kind"):
    """The client of charge `n` was gone when its reply was sent."""

    n: int


class Total(msgspec.Struct, kw_only=True):
    """Sums over charges."""

    calls: int = 0
    nano: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, charge: Charge) -> None:
        """Count one charge."""
        self.calls += 1
        self.nano += charge.nano
        self.input_tokens += charge.usage.input_tokens
        self.output_tokens += charge.usage.output_tokens


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole bill in sums.

    Attributes:
        distinct: number of different contents.
        repeated: charges beyond the first of their content: what was paid more than once.
        undelivered: charges whose reply did not arrive, as far as the simulator can tell.
        models, stages: sums by `provider/model` and by stage.
    """

    total: Total
    distinct: int
    repeated: Total
    undelivered: Total
    models: dict[str, Total]
    stages: dict[str, Total]


_Line = Charge | Lost
_decoder: Final = msgspec.json.Decoder(_Line)
_encoder: Final = msgspec.json.Encoder()


class Bill:
    """An open bill; closes with `close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._n = 0
        self._calls: dict[bytes, int] = {}
        _mend(self.path)
        for charge in self._charges():
            self._count(charge)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @property
    def calls(self) -> int:
        """Number of charges so far."""
        return self._n

    def times(self, content: str) -> int:
        """Return how often a content was charged."""
        return self._calls.get(bytes.fromhex(content), 0)

    def charge(
        self,
        *,
        at: float,
        provider: str,
        model: str,
        content: str,
        stage: str,
        usage: Usage,
        nano: int,
        outcome: Outcome = "delivered",
        fault: str = "",
        batch: str = "",
        reply: str = "",
    ) -> int:
        """Write a charge and return its number; it is in the file when this returns."""
        charge = Charge(
            n=self._n + 1,
            at=round(at, 3),
            provider=provider,
            model=model,
            hash=content,
            stage=stage,
            usage=usage,
            nano=nano,
            outcome=outcome,
            fault=fault,
            batch=batch,
            reply=reply,
        )
        self._write(charge)
        self._count(charge)
        return charge.n

    def lost(self, n: int) -> None:
        """Write that the reply of charge `n` found nobody."""
        self._write(Lost(n=n))

    def find(self, content: str) -> list[Charge]:
        """Return all charges of a content; reads the file."""
        return [charge for charge in self._charges() if charge.hash == content]

    def summary(self) -> Summary:
        """Return the sums; reads the file."""
        return summarize(self.path)

    def close(self) -> None:
        """Force the file to the disk and close it."""
        os.fsync(self._file)
        os.close(self._file)

    def _write(self, line: _Line) -> None:
        os.write(self._file, _encoder.encode(line) + b"\n")

    def _count(self, charge: Charge) -> None:
        self._n = max(self._n, charge.n)
        key = bytes.fromhex(charge.hash)
        self._calls[key] = self._calls.get(key, 0) + 1

    def _charges(self) -> Iterator[Charge]:
        return (line for line in read_bill(self.path) if isinstance(line, Charge))


def read_bill(path: Path) -> Iterator[_Line]:
    """Yield the lines of a bill file, also while a simulator writes it; a torn last line is left out.

    Raises:
        UserError: a line is no line of a bill.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _decoded(line, f"{path}, line {number}")


def summarize(path: Path) -> Summary:
    """Return the sums over a bill file; reads it twice, so that memory holds only what was lost or seen."""
    lost = {line.n for line in read_bill(path) if isinstance(line, Lost)}
    summary = Summary(total=Total(), distinct=0, repeated=Total(), undelivered=Total(), models={}, stages={})
    seen: set[str] = set()
    for charge in read_bill(path):
        if isinstance(charge, Lost):
            continue
        summary.total.add(charge)
        summary.models.setdefault(f"{charge.provider}/{charge.model}", Total()).add(charge)
        summary.stages.setdefault(charge.stage, Total()).add(charge)
        if charge.hash in seen:
            summary.repeated.add(charge)
        if charge.outcome == "dropped" or charge.n in lost:
            summary.undelivered.add(charge)
        seen.add(charge.hash)
    return msgspec.structs.replace(summary, distinct=len(seen))


def content_hash(model: str, body: Mapping[str, object]) -> str:
    """Return the hash of what a request asks: model and body without transport fields, whatever the order of fields.

    Batch lines and single calls of one provider hash alike. `model` is given apart, as one provider has it in the path.
    """
    asked = {name: value for name, value in body.items() if name not in TRANSPORT}
    asked["model"] = model
    canonical = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    return blake2b(canonical, digest_size=HASH_BYTES).hexdigest()


def _decoded(line: bytes, where: str) -> _Line:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"this is no bill: {error}", where=where, mend="give the simulator another folder") from None


def _mend(path: Path) -> None:
    """Cut off a last line that was not written whole."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        if whole < size:
            file.truncate(whole)
