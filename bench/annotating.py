"""Serves the labelling page: binds the address, draws the secrets, prints the links, and runs until it is stopped."""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from engine.errors import UserError
from instruments.annotation.app import Seat, build_app
from instruments.annotation.desk import Desk

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the page is served.

    Attributes:
        host: an address of this machine, or a name of one.
        port: 0 takes a free one.
        allow_remote: the address may be one that other machines can reach.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False


def serve_page(
    store: Path,
    sample_id: int,
    annotators: Sequence[str],
    overlap: int | None,
    listening: Listening,
    *,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve one sample until Ctrl-C.

    Args:
        store: the store that holds the sample and takes the labels.
        sample_id: which sample.
        annotators: one private link is made for each.
        overlap: how many items everyone gets, None for all (see `Desk.open`).
        listening: where.
        tell: takes a line for the user.
        warn: takes a line for every error of the server.

    Raises:
        UserError: the address cannot be used, or would be open to others without `allow_remote`.
    """
    with closing(_bound(listening)) as bound, closing(Desk.open(store, sample_id, overlap)) as desk:
        port = bound.getsockname()[1]
        seats = [_seat(annotator) for annotator in annotators]
        names = hosts_of(bound.getsockname()[0], listening.host)
        app = build_app(desk, seats, hosts=names, port=port, now_ms=lambda: time.time_ns() // 1_000_000, report=warn)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", proxy_headers=False)
        for seat in seats:
            tell(f"{seat.annotator}: http://{_in_url(bound, listening.host)}:{port}/#{seat.token}")
        if not _is_loopback(bound.getsockname()[0]):
            tell("Others can reach this page, without encryption: give each link to its annotator only.")
        tell("Each link is a key: keep it private. Labels are saved as they are given; stop with Ctrl-C.")
        # uvicorn shuts down in order, then raises the signal again.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])


def hosts_of(address: str, asked: str) -> frozenset[str]:
    """Return the names under which a page on that address may be asked for.

    Args:
        address: what the socket is bound to.
        asked: what the user wrote.
    """
    if _is_loopback(address):
        return frozenset({"127.0.0.1", "localhost", "::1", address, asked.lower()})
    if ip_address(address).is_unspecified:
        return frozenset({"*", "localhost", socket.gethostname().lower(), socket.getfqdn().lower()})
    return frozenset({address, asked.lower()})


def _bound(listening: Listening) -> socket.socket:
    where = f"{listening.host}:{listening.port}"
    try:
        found = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"no such address: {error.strerror}", where=where, mend="use --host 127.0.0.1") from error
    family, _, _, _, address = found[0]
    if not _is_loopback(str(address[0])) and not listening.allow_remote:
        mend = "leave --host away, or add --allow-remote if that is what you want"
        raise UserError("other machines could reach this address", where=where, mend=mend)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # From here on a browser that is quicker than the server waits instead of being refused.
        bound.listen()
    except OSError as error:
        bound.close()
        raise UserError(f"cannot listen: {error.strerror}", where=where, mend="choose another --port, or 0") from error
    return bound


def _seat(annotator: str) -> Seat:
    return Seat(
        annotator=annotator, token=secrets.token_urlsafe(TOKEN_BYTES), session=secrets.token_urlsafe(TOKEN_BYTES)
    )


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback


def _in_url(bound: socket.socket, asked: str) -> str:
    address = bound.getsockname()[0]
    if ip_address(address).is_unspecified:
        return socket.gethostname()
    return f"[{asked}]" if ":" in asked else asked
