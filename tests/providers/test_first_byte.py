"""When a reply begins: told to whoever measures, with its status."""

import httpx

from providers.http import HttpEndpoint


async def test_whoever_measures_hears_of_every_reply_once() -> None:
    """Seconds since the request went out, and the status, whatever it is."""
    statuses = iter((200, 429))
    heard: list[tuple[float, int]] = []
    endpoint = HttpEndpoint(
        "p",
        "http://127.0.0.1:1",
        transport=httpx.MockTransport(lambda _: httpx.Response(next(statuses), text="{}")),
        heard=lambda seconds, status: heard.append((seconds, status)),
    )
    await endpoint.post("/x", b"{}")
    await endpoint.get("/x")
    assert [status for _, status in heard] == [200, 429]
    assert all(0 <= seconds < 5 for seconds, _ in heard)
