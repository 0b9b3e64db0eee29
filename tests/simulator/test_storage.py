"""Files of simulated batch APIs on their way out: whole, from a place on, broken off."""

import httpx
import pytest

from bench.simulator.launch import Running

DATA = b"".join(b'{"n":%d}\n' % n for n in range(50))
KEY = {"authorization": "Bearer good"}


@pytest.fixture(scope="module")
def content(simulator: Running) -> str:
    """The address of an uploaded file's content."""
    form = {"files": {"file": ("in.jsonl", DATA)}, "data": {"purpose": "batch"}}
    reply = httpx.post(f"{simulator.url('openai')}/files", headers=KEY, **form)  # type: ignore[arg-type]
    return f"{simulator.url('openai')}/files/{reply.json()['id']}/content"


def test_a_download_can_begin_anywhere(content: str) -> None:
    """So that one that broke off can go on."""
    reply = httpx.get(content, headers=KEY | {"range": "bytes=100-"})
    assert (reply.status_code, reply.content) == (206, DATA[100:])
    assert reply.headers["content-range"] == f"bytes 100-{len(DATA) - 1}/{len(DATA)}"


@pytest.mark.parametrize("asked", ["", "bytes=0-", "bytes=99999-", "lines=1-", "bytes=x"])
def test_a_range_that_makes_no_sense_is_all_of_it(content: str, asked: str) -> None:
    """As servers do that know no ranges."""
    reply = httpx.get(content, headers=KEY | ({"range": asked} if asked else {}))
    assert (reply.status_code, reply.content) == (200, DATA)
