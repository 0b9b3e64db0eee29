"""Plans failed requests again, under the store's lock."""

from pathlib import Path

from engine.errors import ErrorClass, StoreError
from engine.status import read_status
from engine.store import Store


async def revive(path: Path, name: str, kind: ErrorClass | None) -> int:
    """Plan the failed requests of a sweep again, of one class or all; return how many.

    Raises:
        StoreError: no such store or sweep, or a run is working on it.
    """
    status = await read_status(path, name)
    async with await Store.open(path) as store:
        sweep = await store.find_sweep(status.sweep)
        if sweep is None:
            raise StoreError(f"the store has no sweep `{status.sweep}`", where=str(path))
        return await store.revive(sweep.id, kind)
