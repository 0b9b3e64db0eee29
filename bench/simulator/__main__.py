"""`python -m bench.simulator`: run the simulator until it is told to stop.

Prints one line of JSON with the port when it is ready. Stops on SIGTERM, SIGINT, or when its standard input ends if
`--with-parent` is given, so that it does not outlive whoever started it.
"""

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from bench.simulator.app import serve
from bench.simulator.assembly import build
from bench.simulator.config import Config, load_config
from engine.errors import UserError

USAGE_ERROR: Final = 2


async def run(config: Config, *, port: int, state: Path, seed: int, with_parent: bool = False) -> None:
    """Serve until told to stop."""
    app = build(config, state, seed)
    runner, found = await serve(app, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), lambda: stop.set() if _ended() else None)
    gc.freeze()  # the population lives for ever; the collector need not look at it again
    _say({"port": found, "seed": seed, "bill": str(app.desk.bill.path), "simulated": True})
    await stop.wait()
    await runner.cleanup()
    app.desk.bill.close()


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description="A simulator of model providers.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--config", type=Path, help="TOML file of settings")
    parser.add_argument("--state", type=Path, required=True, help="folder that holds the bill")
    parser.add_argument("--seed", type=int, default=0, help="seed of the population, of faults and latencies")
    parser.add_argument("--with-parent", action="store_true", help="stop when standard input ends")
    options = parser.parse_args()
    try:
        job = run(
            load_config(options.config),
            port=options.port,
            state=options.state,
            seed=options.seed,
            with_parent=options.with_parent,
        )
        with asyncio.Runner(loop_factory=_loop()) as runner:
            runner.run(job)
    except (UserError, OSError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return USAGE_ERROR
    return 0


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it exists."""
    try:
        import uvloop  # noqa: PLC0415 - absent on one system
    except ImportError:
        return None
    return uvloop.new_event_loop


def _ended() -> bool:
    return not os.read(sys.stdin.fileno(), 1)


def _say(value: dict[str, object]) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
