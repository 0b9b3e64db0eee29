"""A store to work on, and a desk from which a test plays one worker of a sweep."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.errors import ErrorClass, ProviderError
from engine.lane import Leased, Ticket
from engine.ledger import ZERO, Amount, Scope
from engine.request import Completion
from engine.state import State
from engine.store import Store, Sweep
from engine.testing import make_completion, make_ticket

LANE = "scripted/m-1"


class Desk:
    """One run of one sweep, step by step."""

    def __init__(self, store: Store, sweep: Sweep, run_id: int) -> None:
        self.store, self.sweep, self.run_id = store, sweep, run_id

    async def plan(self, *cells: Cell) -> int:
        """Plan cells; return how many are new."""
        return (await self.store.plan(self.sweep.id, cells)).added

    async def lease(
        self,
        most: int = 100,
        *,
        now_ms: int = 0,
        lane: str = LANE,
        skip_stages: Sequence[str] = (),
        aliases: Sequence[str] | None = None,
    ) -> list[Leased]:
        """Lease planned requests."""
        return await self.store.lease(
            sweep_id=self.sweep.id,
            run_id=self.run_id,
            lane=lane,
            most=most,
            now_ms=now_ms,
            skip_stages=skip_stages,
            aliases=aliases,
        )

    async def send(self, leased: Leased, *, number: int | None = None, nano: int = 1_000) -> Ticket:
        """Make an attempt durable; return its ticket."""
        ticket = make_ticket(leased, nano=nano)
        if number is not None:
            ticket.attempt = number
        assert await self.store.send(ticket, self.run_id, 10)
        return ticket

    async def on_wire(self, *cells: Cell, nano: int = 1_000) -> list[Ticket]:
        """Plan, lease and send cells."""
        await self.plan(*cells)
        return [await self.send(leased, nano=nano) for leased in await self.lease()]

    async def settle(
        self,
        ticket: Ticket,
        *,
        text: str = "hi",
        paid: Amount = Amount(400, 7),  # noqa: B008 - immutable
        follow_ups: Sequence[Cell] = (),
        completion: Completion | None = None,
        read: bool = True,
    ) -> None:
        """Store an answer with a reading for each of its cells."""
        made = Read(
            reading=Reading(status=ReadingStatus.COMPLETE, version=1, body=b'{"text":"%s"}' % text.encode()),
            follow_ups=follow_ups,
        )
        await self.store.settle(
            ticket,
            completion or make_completion(text),
            [(cell.id, made) for cell in ticket.leased.cells] if read else [],
            sweep_id=self.sweep.id,
            paid=paid,
            latency_ms=5,
            now_ms=20,
        )

    async def fail(
        self,
        ticket: Ticket,
        kind: ErrorClass = ErrorClass.TRANSIENT,
        *,
        state: State = State.PLANNED,
        keep: bool = False,
        paid: Amount = ZERO,
        message: str = "oops",
    ) -> None:
        """Store a failed attempt."""
        ticket.tries = ticket.tries.after(kind)
        error = ProviderError(kind, message)
        await self.store.fail(ticket, error, state=state, keep=keep, paid=paid, now_ms=30)

    async def unread(self) -> list[tuple[int, str]]:
        """Return (cell, answer) of what is answered but not read."""
        found = await self.store.unread(self.sweep.id, 0, 1_000)
        return [(each.cell.id, each.completion.text) for each in found]

    async def spent(self) -> Amount:
        """Return what the sweep has used."""
        spent = await self.store.spent(self.sweep)
        return spent.get(Scope("sweep", self.sweep.name), ZERO)


async def sit_down(store: Store, name: str = "s") -> Desk:
    """Register a sweep, unless the store has it, and a new run of it."""
    sweep = await store.find_sweep(name)
    if sweep is None:
        await store.add_sweep(name, "{}", "h", simulated=True, now_ms=1)
        sweep = await store.find_sweep(name)
    assert sweep is not None
    return Desk(store, sweep, await store.begin_run(sweep.id, "{}", 1))


@pytest.fixture(scope="session")
def seat() -> object:
    """`sit_down`, for tests that need several desks."""
    return sit_down


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """An empty open store of every backend."""
    async with await Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


@pytest.fixture
async def desk(store: Store) -> Desk:
    """A desk with one sweep and one run."""
    return await sit_down(store)
