"""One life of a rehearsed sweep: `python -m bench.rehearsed ORDER` runs it as `mirage run` does, led to the simulator.

A process of its own, so that it can be killed; what leads it to the simulator comes with the order.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from bench.cli.exits import OF_OUTCOME, Exit
from bench.display import Display
from bench.loop import run_loop
from bench.run import Prepared, Result, prepare, run_sweep, user_catalog
from bench.runlog import RunLog
from bench.sweepfile import BatchTable, BudgetTable, LoadedSweep, load_sweep
from bench.text import one_line
from engine.errors import UserError
from engine.events import Notice

KEY_ENV: Final = "MIRAGE_REHEARSAL_KEY"
KEY: Final = "sk-rehearsal-0123456789abcdef"

Tables = dict[str, dict[str, object]]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: the sweep file, the store to use instead of its own, and tables laid over its catalogue.

    `batch` is what is wanted of batches at the simulator, where days are short; how each stage is sent is decided by
    the file's own table.
    """

    sweep: str
    store: str
    provider: Tables
    model: Tables
    batch: BatchTable | None = None


def rehearsed(
    loaded: LoadedSweep, store: Path, provider: Tables, model: Tables, batch: BatchTable | None = None
) -> Prepared:
    """Return the sweep as it is rehearsed: the same but for the addresses, and marked as simulated.

    Raises:
        UserError: anything in it that cannot work.
    """
    sweep = msgspec.structs.replace(loaded.sweep, provider=provider, model=model, budget=_budget(loaded, model))
    prepared = prepare(msgspec.structs.replace(loaded, sweep=sweep), store=store, simulated=True)
    if batch is None:
        return prepared
    hurried = msgspec.structs.replace(prepared.loaded.sweep, batch=batch)
    return msgspec.structs.replace(prepared, loaded=msgspec.structs.replace(prepared.loaded, sweep=hurried))


def _budget(loaded: LoadedSweep, model: Tables) -> BudgetTable:
    """Return the file's caps; one on an account whose models another one answers for holds for that one."""
    cards, budget = user_catalog(loaded).cards, loaded.sweep.budget
    led = {cards[alias].provider: str(table["provider"]) for alias, table in model.items() if "provider" in table}
    return msgspec.structs.replace(budget, provider={led.get(name, name): cap for name, cap in budget.provider.items()})


async def run(prepared: Prepared) -> Result:
    """Run it, telling what happens in plain lines."""
    console = Console(stderr=True, force_terminal=False, markup=False)
    log = RunLog(prepared.store_path)
    try:
        async with Display(console, f"rehearsal of {prepared.manifest.name}", simulated=True) as display:

            def listen(notice: Notice) -> None:
                display.listen(notice)
                log.write(notice)

            return await run_sweep(prepared, listen=listen, watch=display.watch)
    finally:
        log.close()


def main() -> int:
    """Run the order on the command line and return an exit code of `mirage run`."""
    order = msgspec.json.decode(sys.argv[1].encode(), type=Order)
    try:
        loaded = load_sweep(Path(order.sweep))
        prepared = rehearsed(loaded, Path(order.store), order.provider, order.model, order.batch)
        result = run_loop(run(prepared))
    except UserError as error:
        sys.stderr.write(f"mirage: {one_line(str(error))}\n")
        return Exit.USAGE
    return OF_OUTCOME[result.outcome]


if __name__ == "__main__":
    sys.exit(main())
