"""Starts the event loop: uvloop where it exists."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_loop(body: Coroutine[Any, Any, Result]) -> Result:
    """Run `body` to its end and return its result."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(body)
    return uvloop.run(body)
