"""A request is on its way as soon as it is made, and one that a connection does not take at once arrives all the same.

On real sockets, through the endpoint that everybody uses.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.errors import ErrorClass, ProviderError
from providers.http import HttpEndpoint
from providers.troubles import DROPPED

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
# More than the system's buffers take; aiohttp warns of such bodies.
LARGE = b"x" * (16 << 20)
PIECE = 1 << 16

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[HttpEndpoint, socket.socket]]:
    """Yield an endpoint with a connection that has served once, and the server's end of it."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        endpoint = HttpEndpoint("p", f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        first = asyncio.create_task(endpoint.post("/x", b"{}"))
        server, _ = await loop.sock_accept(listener)
        with server:
            server.setblocking(False)
            while not (await loop.sock_recv(server, PIECE)).endswith(b"{}"):
                pass
            await loop.sock_sendall(server, REPLY)
            await first
            try:
                yield endpoint, server
            finally:
                await endpoint.close()


async def received(server: socket.socket, size: int) -> int:
    """Read at least `size` bytes; return how many."""
    loop, read = asyncio.get_running_loop(), 0
    while read < size:
        read += len(await loop.sock_recv(server, PIECE))
    return read


async def test_a_request_has_left_in_the_turn_in_which_it_was_made() -> None:
    """No turn of the loop lies between, in which it would queue behind every reply that came meanwhile."""
    async with connected() as (endpoint, server):
        call = asyncio.create_task(endpoint.post("/x", b'{"a":1}'))
        await asyncio.sleep(0)
        assert server.recv(PIECE, socket.MSG_DONTWAIT).endswith(b'{"a":1}')
        await asyncio.get_running_loop().sock_sendall(server, REPLY)
        assert (await call).body == b"{}"


async def test_a_request_larger_than_the_connection_takes_arrives_whole() -> None:
    """What did not leave at once follows as the server reads."""
    async with connected() as (endpoint, server):
        call = asyncio.create_task(endpoint.post("/x", LARGE))
        await asyncio.sleep(0)
        assert await received(server, len(LARGE)) > len(LARGE)
        await asyncio.get_running_loop().sock_sendall(server, REPLY)
        assert (await call).status == 200


async def test_a_server_that_hangs_up_while_a_request_is_written_may_have_billed_it() -> None:
    """Part of it has arrived."""
    async with connected() as (endpoint, server):
        call = asyncio.create_task(endpoint.post("/x", LARGE))
        await received(server, PIECE)
        server.close()
        with pytest.raises(ProviderError) as caught:
            await call
    assert (caught.value.kind, caught.value.code, caught.value.maybe_billed) == (ErrorClass.TRANSIENT, DROPPED, True)


async def test_cancelling_a_request_that_is_being_written_closes_its_connection() -> None:
    """Half a request must not be followed by another one."""
    async with connected() as (endpoint, server):
        call = asyncio.create_task(endpoint.post("/x", LARGE))
        await received(server, PIECE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(2.0):
            while await asyncio.get_running_loop().sock_recv(server, PIECE):
                pass
