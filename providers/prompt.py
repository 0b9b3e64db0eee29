"""aiohttp's request for Python 3.11, written at once; from Python 3.12 on, aiohttp's own is.

There, aiohttp leaves the writing to a task, which waits for its turn behind all replies that came meanwhile. So calls
leave together, are answered together, and such a clump never dissolves. Must not know: what is written.
"""

import sys
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection

Writing = Coroutine[object, object, None]


class PromptRequest(aiohttp.ClientRequest):
    """Has written what goes without waiting before its task begins."""

    def write_bytes(self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None) -> Writing:
        """Write as much as the connection takes now; return what is left to do."""
        writing: Writing = super().write_bytes(writer, conn, content_length)
        try:
            awaited = writing.send(None)
        except StopIteration:
            return _nothing()
        return _go_on(writing, awaited)


REQUEST_CLASS: Final = PromptRequest if sys.version_info < (3, 12) else aiohttp.ClientRequest


async def _nothing() -> None:
    return


async def _go_on(writing: Writing, awaited: object) -> None:
    await _rest(writing, awaited)


@coroutine
def _rest(writing: Writing, awaited: object) -> Generator[object, object, None]:
    """Drive a coroutine that has begun, and waits for `awaited`, to its end."""
    while True:
        try:
            sent = yield awaited
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the coroutine's
            resume = partial(writing.throw, error)
        else:
            resume = partial(writing.send, sent)
        try:
            awaited = resume()
        except StopIteration:
            return
