"""Looking at batches from outside: stores of all versions, and what a batch's end means for requests without a row."""

import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from engine.batch.harvesting import absent
from engine.batch.provider import BatchState, RemoteBatch, Unpaid
from engine.batch.records import Batch
from engine.batch.stage import Stage
from engine.database import APPLICATION_ID
from engine.errors import ProviderError
from engine.inspection import read_batches, read_request
from engine.status import Batches, read_status
from engine.store import Store
from engine.testing import make_cell


@pytest.mark.parametrize(
    ("status", "ordered", "outcome"),
    [
        pytest.param("expired", False, Unpaid.EXPIRED, id="expired"),
        pytest.param("expired", True, Unpaid.CANCELLED, id="cancelled by this program"),
        pytest.param("cancelled", False, Unpaid.CANCELLED, id="cancelled by a person"),
        pytest.param("JOB_STATE_CANCELLED", False, Unpaid.CANCELLED, id="in other words"),
    ],
)
def test_requests_that_a_stopped_batch_did_not_run_are_not_to_blame(
    status: str, ordered: bool, outcome: Unpaid
) -> None:
    """Whoever ordered its cancellation."""
    remote = RemoteBatch(id="b", state=BatchState.ENDED, status=status, unpaid_rest=True)
    batch = Batch(
        id=1, lane="l", provider="p", model="m", stage=Stage.ENDED, remote_id="b", remote=remote, cancelled=ordered
    )
    assert absent(batch) is outcome


def test_without_the_providers_word_a_missing_row_may_have_been_billed() -> None:
    """Also of a cancelled batch."""
    remote = RemoteBatch(id="b", state=BatchState.ENDED, status="cancelled")
    found = absent(Batch(id=1, lane="l", provider="p", model="m", stage=Stage.ENDED, remote=remote))
    assert isinstance(found, ProviderError)
    assert found.maybe_billed


async def test_a_store_that_knows_no_batches_yet_can_be_looked_at(tmp_path: Path) -> None:
    """Readers do not migrate."""
    path = tmp_path / "old.sqlite"
    script = files("engine").joinpath("sql/migrations/0001_initial.sql").read_text(encoding="utf-8")
    connection = sqlite3.connect(path)
    connection.executescript(f"{script}; PRAGMA user_version = 1; PRAGMA application_id = {APPLICATION_ID};")
    with connection:
        connection.execute("INSERT INTO sweep VALUES (1, 's', 1, '{}', '', 1, 0)")
    connection.close()
    assert (await read_status(path)).batches == Batches()
    assert await read_batches(path) == []


async def test_an_attempt_that_went_alone_has_no_batch(tmp_path: Path, seat: object) -> None:
    """Nothing is made up."""
    async with await Store.open(tmp_path / "s.sqlite") as store:
        desk = await seat(store)  # type: ignore[operator]
        (ticket,) = await desk.on_wire(make_cell(1))
        (attempt,) = (await read_request(store.path, ticket.leased.key.hex())).attempts
    assert (attempt.batch, attempt.line, attempt.batch_stage, attempt.remote_id) == (None, None, "", "")
