"""Batch providers for one contract: every adapter against the simulator, and the scripted one without a socket.

The simulator's batches stand still until a test moves their time; adapters do not wait between tries.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from bench.simulator.bill import Charge, read_bill
from bench.simulator.launch import Running, running
from bench.simulator.rehearsal import accounts
from engine.batch.ordering import lines_of
from engine.batch.provider import QUEUE_FULL, BatchLine, BatchProvider, Marker, RemoteBatch, Row, Shard
from engine.batch.testing import LIMITS, BatchAnswer, BatchFaults, ScriptedBatches
from engine.errors import ErrorClass, ProviderError
from engine.request import Decoding, Request, Role, chat
from providers.batch_registry import build_batch_providers
from providers.card import ModelCard
from providers.catalog import load_catalog

KEY = "SIMULATOR_KEY"
SETTINGS = """
[batches]
speed = 0.0
"""
DAY = 86_400
ALIASES = {
    "openai": "gpt-5.4-nano",
    "dashscope": "qwen3.6-plus",
    "zhipu": "glm-5.1",
    "moonshot": "kimi-k2.5",
    "anthropic": "claude-opus-4-6",
    "gemini": "gemini-3-flash",
}
SCRIPTED = {"scripted": True, "scripted without marker": False}
RUNS = iter(range(100_000))


async def no_wait(seconds: float) -> None:
    """Take a turn instead of waiting."""
    await asyncio.sleep(0)


class Desk:
    """A batch provider with a shard of work."""

    def __init__(self, provider: BatchProvider, folder: Path, *, account: str, model: str) -> None:
        self.provider, self.folder, self.account, self.model = provider, folder, account, model
        self.marker = Marker(run=f"t{next(RUNS)}", shard=1, attempt=0, digest=blake2b(b"", digest_size=8).hexdigest())

    @property
    def has_marker(self) -> bool:
        """Whether batches carry it."""
        return self.provider.limits(self.model).has_marker

    def lines(self, count: int = 4, *, text: str = "", **decoding: object) -> list[BatchLine]:
        """Return so many different lines."""
        settings = Decoding(max_tokens=64, **decoding)  # type: ignore[arg-type]
        return [
            BatchLine(
                self.marker.line_id(index),
                Request(
                    provider=self.account,
                    model=self.model,
                    messages=chat((Role.USER, f"{self.marker.run} {text} {index}")),
                    decoding=settings,
                ),
            )
            for index in range(count)
        ]

    def write(self, lines: Sequence[BatchLine]) -> Path:
        """Write an input file as the engine would."""
        path = self.folder / f"{self.marker.token}.jsonl"
        path.write_bytes(b"".join(self.provider.encode_line(line) + b"\n" for line in lines))
        return path

    async def submit(self, lines: Sequence[BatchLine]) -> RemoteBatch:
        """Write, upload and create."""
        path = self.write(lines)
        file_id = await self.provider.upload(self.marker, path)
        shard = Shard(count=len(lines), model=self.model)
        return await self.provider.create(self.marker, file_id, path, shard)

    async def lost(self, lines: Sequence[BatchLine]) -> ProviderError:
        """Submit and return the error."""
        with pytest.raises(ProviderError) as caught:
            await self.submit(lines)
        return caught.value

    async def harvest(self, batch: RemoteBatch) -> list[Row]:
        """Download all results, trying again while that is what they ask for, and return their rows."""
        paths = await self.patiently(lambda: self.provider.download(batch, self.folder / "results"))
        return [row for path in paths for row in self.provider.rows(lines_of(path))]

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what a call returns, trying again while it says that a later try may help."""
        for _ in range(20):
            try:
                return await call()
            except ProviderError as error:
                if error.kind is not ErrorClass.TRANSIENT:
                    raise
        return await call()

    async def ended(self, batch: RemoteBatch) -> RemoteBatch:
        """Let the batch come to its end and return it."""
        self.let_end()
        found: RemoteBatch = await self.patiently(lambda: self.provider.poll(batch.id))
        return found

    def indices(self, rows: Sequence[Row]) -> list[int]:
        """Return the index of every row, -1 for a stranger's."""
        found = [self.marker.line_index(row.custom_id) for row in rows]
        return [-1 if index is None else index for index in found]

    def let_end(self) -> None:
        """Let every batch come to its end."""
        raise NotImplementedError

    async def let_half_run(self, batch: RemoteBatch) -> None:
        """Let half of ten requests run."""
        raise NotImplementedError

    def plague(self, *, refuse: str = "", **faults: object) -> None:
        """Let things go wrong with the next batch, in words of `BatchFaults`, and with lines whose text is `refuse`."""
        raise NotImplementedError

    def charged(self, batch: RemoteBatch) -> int:
        """Return how many requests of a batch were charged."""
        raise NotImplementedError


class ScriptedDesk(Desk):
    """The scripted provider."""

    provider: ScriptedBatches

    def __init__(self, folder: Path, *, has_marker: bool) -> None:
        self._refused = "\0"
        provider = ScriptedBatches(self._answer, now=time.time, polls=2, limits=LIMITS, has_marker=has_marker)
        super().__init__(provider, folder, account="scripted", model="m-1")

    def let_end(self) -> None:
        """Do not wait for a poll."""
        self.provider.run_out()

    async def let_half_run(self, batch: RemoteBatch) -> None:
        """Look once of two times."""
        await self.provider.poll(batch.id)

    def plague(self, *, refuse: str = "", **faults: object) -> None:
        """Use the words as they are."""
        self._refused = refuse or self._refused
        if faults.pop("queue_full", False):
            faults["create_refused"] = ProviderError(ErrorClass.RATE, "full", status=429, code=QUEUE_FULL)
        self.provider.plague(BatchFaults(**faults))  # type: ignore[arg-type]

    def charged(self, batch: RemoteBatch) -> int:
        """Count the whole bill: there is one batch."""
        return self.provider.bill.total()

    def _answer(self, request: Request, times: int) -> BatchAnswer:
        refused = self._refused in request.messages[0].content
        return ProviderError(ErrorClass.BAD_REQUEST, "no", status=400) if refused else "Yes."


class Account(Desk):
    """One adapter, and the simulator behind it."""

    # How the simulator calls what goes wrong, and what takes no number there.
    WORDS = {
        "results_late": "late_results",
        "torn_downloads": "cut_downloads",
        "missing_rows": "lose_rows",
        "repeated_rows": "repeat_rows",
    }
    CALLS = {
        "create_lost_before": ("lose_create", "before"),
        "create_lost_after": ("lose_create", "after"),
        "upload_errors": ("lose_upload", "after"),
    }

    def __init__(self, simulator: Running, card: ModelCard, provider: BatchProvider, folder: Path, key: str) -> None:
        super().__init__(provider, folder, account=card.provider, model=card.model)
        self.simulator, self.card, self.key = simulator, card, key

    def let_end(self) -> None:
        """Almost a day."""
        self.advance(DAY - 1)

    async def let_half_run(self, batch: RemoteBatch) -> None:
        """Five seconds of validation, a second each."""
        self.advance(10)

    def plague(self, *, refuse: str = "", **faults: object) -> None:
        """Translate."""
        if refuse:
            self.fault("bad_request", f"{self.marker.run} {refuse}")
        told = [self.CALLS.get(name, (self.WORDS.get(name, name), value)) for name, value in faults.items()]
        self.quirks(**dict(told))

    def charged(self, batch: RemoteBatch) -> int:
        """Ask the bill."""
        return len(self.charges(batch.id))

    def advance(self, seconds: float) -> None:
        """Let the batches' time pass."""
        self._post("/advance", {"seconds": seconds})

    def quirks(self, **quirks: object) -> None:
        """Set what is odd about the next batches."""
        self._post("", {"provider": self.card.provider, **quirks})

    def fault(self, fault: str, contains: str) -> None:
        """Let a line whose prompt holds `contains` go wrong."""
        reply = httpx.post(f"{self.simulator.address}/_sim/faults", json={"fault": fault, "contains": contains})
        assert reply.status_code == 200, reply.text

    def charges(self, batch_id: str) -> list[Charge]:
        """Return what was charged for a batch."""
        return [line for line in read_bill(self.simulator.bill) if isinstance(line, Charge) and line.batch == batch_id]

    def jobs(self) -> int:
        """Return how many batches exist at the simulator."""
        return len(httpx.get(f"{self.simulator.address}/_sim/batches").json())

    def status(self, path: str) -> int:
        """Return the status that the account's `path` answers."""
        url = self.simulator.url(self.card.provider) + path
        return httpx.get(url, headers={"authorization": f"Bearer {self.key}"}).status_code

    def stranger(self) -> BatchProvider:
        """Return an adapter with another account's key."""
        (other,) = build_batch_providers([self.card], {KEY: "stranger"}, per_second=1000, sleep=no_wait).values()
        return other

    def _post(self, path: str, body: dict[str, object]) -> None:
        reply = httpx.post(f"{self.simulator.address}/_sim/batches{path}", json=body)
        assert reply.status_code == 200, reply.text


@pytest.fixture(scope="package")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One simulator for all."""
    folder = tmp_path_factory.mktemp("batches")
    (folder / "settings.toml").write_text(SETTINGS)
    with running(folder / "state", config=folder / "settings.toml") as found:
        yield found


async def opened(simulator: Running, name: str, folder: Path) -> AsyncIterator[Account]:
    """Yield an account of a provider; quirks and faults end with it."""
    found = load_catalog(accounts(simulator, KEY)).card(ALIASES[name])
    card = msgspec.structs.replace(found, batch=True)
    key = f"account-{next(RUNS)}"
    (adapter,) = build_batch_providers([card], {KEY: key}, per_second=1000, sleep=no_wait).values()
    yield Account(simulator, card, adapter, folder, key)
    await adapter.close()
    reset(simulator)


def reset(simulator: Running) -> None:
    """Forget quirks and faults."""
    for path in ("batches", "faults"):
        httpx.delete(f"{simulator.address}/_sim/{path}")


@pytest_asyncio.fixture(params=list(ALIASES))
async def desk(request: pytest.FixtureRequest, simulator: Running, tmp_path: Path) -> AsyncIterator[Account]:
    """Every provider with a batch API in turn."""
    async for found in opened(simulator, request.param, tmp_path):
        yield found


@pytest_asyncio.fixture
async def only(request: pytest.FixtureRequest, simulator: Running, tmp_path: Path) -> AsyncIterator[Account]:
    """The provider that the test names."""
    async for found in opened(simulator, request.param, tmp_path):
        yield found


@pytest_asyncio.fixture(params=[*SCRIPTED, *ALIASES])
async def batches(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """Every provider with a batch API in turn, the scripted ones first."""
    if request.param in SCRIPTED:
        yield ScriptedDesk(tmp_path, has_marker=SCRIPTED[request.param])
        return
    async for found in opened(request.getfixturevalue("simulator"), request.param, tmp_path):
        yield found
