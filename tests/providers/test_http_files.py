"""Files through the HTTP gate, on real sockets: streamed up and down, masked, never taken for whole unduly."""

import asyncio
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.batch.provider import NOT_VISIBLE, RESULTS_NOT_READY
from engine.errors import ErrorClass, ProviderError, UserError
from providers import batch_files
from providers.batch_files import TRUNCATED, Expected, pieces, results_file
from providers.batch_link import BatchLink
from providers.classify import ErrorTable
from providers.http import ABOVE, HttpEndpoint
from providers.keys import Secret

KEY = "sk-live-0123456789abcdef0123"
LINES = b'{"a":1}\n{"a":2}\n'
Reply = Callable[[bytes], bytes]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def take(reader: asyncio.StreamReader) -> bytes:
    """Read one request whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(size[0]) if size else 0)


def head(length: int | None, status: str = "200 OK") -> bytes:
    """Return the head of a reply; without a length it ends with the connection."""
    size = "Connection: close" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status}\r\n{size}\r\n\r\n".encode()


@asynccontextmanager
async def served(*replies: bytes | Reply, path: str = "/v1") -> AsyncIterator[tuple[HttpEndpoint, list[bytes]]]:
    """Yield an endpoint whose server gives one reply per connection, and the requests it has seen."""
    left, seen = list(replies), []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await take(reader))
        reply = left.pop(0) if len(left) > 1 else left[0]
        writer.write(reply if isinstance(reply, bytes) else reply(seen[-1]))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = HttpEndpoint("p", f"http://127.0.0.1:{port}{path}", secret=Secret(KEY))
    try:
        yield endpoint, seen
    finally:
        await endpoint.close()
        server.close()


def link(endpoint: HttpEndpoint) -> BatchLink:
    """Return a link that does not wait between tries."""

    async def no_wait(seconds: float) -> None:
        await asyncio.sleep(0)

    return BatchLink(endpoint, ErrorTable.OPENAI, key_env="KEY", per_second=1000, sleep=no_wait)


async def brought(folder: Path, *replies: bytes, expected: Expected | None = None) -> bytes:
    """Return what a download leaves on the disk."""
    async with served(*replies) as (endpoint, _):
        path = await link(endpoint).bring("/f", folder / "r.jsonl", expected)
    return path.read_bytes()


async def failure(folder: Path, *replies: bytes, expected: Expected | None = None) -> ProviderError:
    """Return the error that a download ends with; nothing is left that looks whole."""
    with pytest.raises(ProviderError) as caught:
        await brought(folder, *replies, expected=expected)
    assert not (folder / "r.jsonl").exists()
    return caught.value


async def test_a_body_is_sent_piece_by_piece_with_its_length(tmp_path: Path) -> None:
    """Not chunked: some services want to know the size; our content type goes before the endpoint's."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINES)
    async with served(head(2) + b"{}") as (endpoint, seen):
        content = pieces(path, before=b"[", after=b"]")
        reply = await endpoint.send("/files", content, length=len(LINES) + 2, headers={"content-type": "x/y"})
    text = seen[0].lower()
    assert reply.status == 200
    assert text.startswith(b"post /v1/files http/1.1\r\n")
    assert text.count(b"content-type") == 1
    assert b"content-type: x/y" in text
    assert f"authorization: bearer {KEY}".encode() in text
    assert text.endswith(b"[" + LINES + b"]")


@pytest.mark.parametrize(
    ("base", "sent"), [("/v1beta", b"GET /up "), ("/gemini/v1beta", b"GET /gemini/up "), ("/x", b"GET /x/up ")]
)
async def test_a_path_may_lie_beside_the_version(base: str, sent: bytes) -> None:
    """Uploads and downloads of one provider do."""
    async with served(head(2) + b"{}", path=base) as (endpoint, seen):
        await endpoint.get(ABOVE + "/up")
    assert seen[0].startswith(sent)


async def test_a_file_arrives_as_it_was_sent(tmp_path: Path) -> None:
    """With and without a promised length."""
    assert await brought(tmp_path / "a", head(len(LINES)) + LINES) == LINES
    assert await brought(tmp_path / "b", head(None) + LINES) == LINES


async def test_our_key_is_masked_where_it_lies_across_pieces(tmp_path: Path) -> None:
    """A reply that echoes it must not bring it to the disk."""
    body = b'{"a":"' + b"x" * (16 * 1024 - 16) + KEY.encode() + b'"}\n'
    found = await brought(tmp_path, head(len(body)) + body)
    assert KEY.encode() not in found
    assert found.endswith(b'x[key]"}\n')


async def test_a_length_that_is_not_kept_is_fetched_again(tmp_path: Path) -> None:
    """The connection broke off."""
    assert await brought(tmp_path, head(len(LINES)) + LINES[:9], head(len(LINES)) + LINES) == LINES


LONG = b"".join(b'{"a":%d}\n' % n for n in range(99))


def place(request: bytes) -> int | None:
    """Return from where a request wants a file."""
    found = re.search(rb"\nrange: bytes=(\d+)-\r", request.lower())
    return int(found[1]) if found else None


def rest(*, shift: int = 0, size: int | None = None) -> Reply:
    """Return a reply with what follows the place that was asked for, or with what lies beside it, or less of it."""

    def reply(request: bytes) -> bytes:
        start = (place(request) or 0) + shift
        return head(len(LONG) - start, "206 Partial Content") + LONG[start:][:size]

    return reply


@pytest.mark.parametrize(
    ("replies", "asked"),
    [
        ([rest()], "R"),
        ([head(len(LONG)) + LONG], "R"),
        ([head(4, "502 Bad Gateway") + b"<h1>", rest()], "RR"),
        ([rest(size=300), rest()], "RR"),
        ([rest(shift=1), head(len(LONG)) + LONG], "R-"),
        ([head(2, "416 Range Not Satisfiable") + b"{}", head(len(LONG)) + LONG], "R-"),
    ],
    ids=["the rest", "all of it", "a proxy's page", "less of the rest", "another file", "nothing there"],
)
async def test_a_download_goes_on_where_it_broke_off(
    replies: list[bytes | Reply], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bytes are fetched again and compared; a server that starts over costs time only."""
    monkeypatch.setattr(batch_files, "SHORTEST_RESUMED", 20)
    monkeypatch.setattr(batch_files, "OVERLAP", 4)
    async with served(head(len(LONG)) + LONG[:200], *replies) as (endpoint, seen):
        path = await link(endpoint).bring("/f", tmp_path / "r.jsonl")
    assert path.read_bytes() == LONG
    places = [place(request) for request in seen[1:]]
    assert "".join("-" if start is None else "R" for start in places) == asked
    started = [start for start in places if start is not None]
    assert started == sorted(started)
    assert 100 < started[0] <= 196


async def test_a_short_download_begins_again(tmp_path: Path) -> None:
    """It is not worth a comparison."""
    async with served(head(len(LONG)) + LONG[:200], head(len(LONG)) + LONG) as (endpoint, seen):
        path = await link(endpoint).bring("/f", tmp_path / "r.jsonl")
    assert (path.read_bytes(), b"range:" in seen[1].lower()) == (LONG, False)


async def test_a_last_line_that_is_cut_is_fetched_again(tmp_path: Path) -> None:
    """No length was promised, so only the line tells."""
    assert await brought(tmp_path, head(None) + LINES[:-5], head(None) + LINES) == LINES


async def test_a_last_line_without_its_end_is_whole_when_it_reads(tmp_path: Path) -> None:
    """Some services write none."""
    assert await brought(tmp_path, head(None) + LINES.rstrip()) == LINES.rstrip()


async def test_a_file_shorter_than_the_provider_says_never_counts_as_whole(tmp_path: Path) -> None:
    """Where its word is sure."""
    error = await failure(tmp_path, head(None) + LINES, expected=Expected(size=99, sure=True))
    assert (error.kind, error.code, error.maybe_billed) == (ErrorClass.TRANSIENT, TRUNCATED, False)


@pytest.mark.parametrize("expected", [Expected(size=99), Expected(lines=3)], ids=["size", "lines"])
async def test_a_doubtful_length_yields_to_two_downloads_that_agree(expected: Expected, tmp_path: Path) -> None:
    """Or a wrong counter would keep paid rows from us for ever."""
    async with served(head(None) + LINES) as (endpoint, seen):
        path = await link(endpoint).bring("/f", tmp_path / "r.jsonl", expected)
        assert (path.read_bytes(), len(seen)) == (LINES, 2)


async def test_nothing_is_no_file_unless_nothing_was_promised(tmp_path: Path) -> None:
    """An empty body without a length is a broken one."""
    assert (await failure(tmp_path, head(None))).code == TRUNCATED
    assert await brought(tmp_path, head(0)) == b""


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden"])
async def test_results_that_are_not_there_are_not_ready(status: str, tmp_path: Path) -> None:
    """Tried a few times, then told as transient: the deadline is the engine's business."""
    error = await failure(tmp_path, head(2, status) + b"{}")
    assert (error.kind, error.code) == (ErrorClass.TRANSIENT, RESULTS_NOT_READY)


async def test_a_rejected_key_is_not_tried_again(tmp_path: Path) -> None:
    """And names what to check."""
    async with served(head(2, "401 Unauthorized") + b"{}") as (endpoint, seen):
        with pytest.raises(ProviderError, match=r"p: .*check the key in KEY"):
            await link(endpoint).bring("/f", tmp_path / "r.jsonl")
    assert len(seen) == 1


async def test_a_server_error_page_is_tried_again(tmp_path: Path) -> None:
    """502s of large downloads are known."""
    assert await brought(tmp_path, head(4, "502 Bad Gateway") + b"<h1>", head(len(LINES)) + LINES) == LINES


async def test_a_look_that_broke_off_was_not_billed() -> None:
    """Only a create call can be."""
    async with served(head(99) + b"{}") as (endpoint, _):
        with pytest.raises(ProviderError) as caught:
            await link(endpoint).get("/batches/b1")
    assert (caught.value.kind, caught.value.maybe_billed) == (ErrorClass.TRANSIENT, False)


async def test_a_folder_that_cannot_be_written_is_the_user_s_to_mend(tmp_path: Path) -> None:
    """Not a broken connection."""
    (tmp_path / "taken").write_text("")
    async with served(head(len(LINES)) + LINES) as (endpoint, _):
        with pytest.raises(UserError, match="batch file"):
            await link(endpoint).bring("/f", tmp_path / "taken" / "r.jsonl")


async def test_the_first_line_is_read_without_the_rest() -> None:
    """Enough to see whose results they are."""
    body = LINES + b"x" * 100_000
    async with served(head(len(body)) + body) as (endpoint, _):
        assert await link(endpoint).first_line("/f") == b'{"a":1}'


async def test_an_order_that_nobody_has_heard_is_given_again() -> None:
    """A 404 of a fresh id is no cancellation; a refusal by one that has ended is as good as one."""
    async with served(head(2, "404 Not Found") + b"{}") as (endpoint, _):
        with pytest.raises(ProviderError) as caught:
            await link(endpoint).order("/cancel")
    assert (caught.value.kind, caught.value.code) == (ErrorClass.TRANSIENT, NOT_VISIBLE)
    async with served(head(2, "400 Bad Request") + b"{}") as (endpoint, seen):
        await link(endpoint).order("/cancel")
    assert len(seen) == 1


async def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    """32 MiB down and up again in a few."""
    body = b'{"a":"' + b"x" * 1014 + b'"}\n'
    size = len(body) * (32 << 10)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"POST"):
            read = 0
            while read < size:
                read += len(await reader.read(1 << 16))
            writer.write(head(2) + b"{}")
        else:
            writer.write(head(size))
            for _ in range(32):
                writer.write(body * (1 << 10))
                await writer.drain()
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    endpoint = HttpEndpoint("p", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    tracemalloc.start()
    try:
        path = await link(endpoint).bring("/f", tmp_path / "r.jsonl", Expected(size=size, sure=True))
        await link(endpoint).send("/f", pieces(path), length=size, headers={})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await endpoint.close()
        server.close()
    assert path.stat().st_size == size
    assert peak < 12 << 20


@pytest.mark.parametrize("batch_id", ["../../etc/passwd", "batches/abc", "a\0b", "ä" * 300, ""])
def test_a_batch_id_cannot_lead_out_of_its_folder(batch_id: str, tmp_path: Path) -> None:
    """Ids are the provider's text."""
    path = results_file(tmp_path, batch_id, batch_id)
    assert path.parent == tmp_path
    assert path.name.endswith(".jsonl")
    assert len(path.name) < 220
