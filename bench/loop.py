"""Starts the event loop: uvloop where it exists."""

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

# Calls wait for the store's thread, which needs the interpreter between any two statements. By default a busy event
# loop lets it in only after 5 ms.
SWITCH_SECONDS: Final = 0.0005
# Python looks for cycles after every 700 new objects by default; rows of answers make many, and no cycles.
COLLECT_AFTER: Final = (10_000, 20, 20)

Result = TypeVar("Result")


def run_loop(body: Coroutine[Any, Any, Result]) -> Result:
    """Run `body` to its end and return its result."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*COLLECT_AFTER)
    gc.freeze()  # modules are not garbage: a look at all of them would stop every thread for a tenth of a second
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(body)
    return uvloop.run(body)
