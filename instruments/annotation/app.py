"""The page's server: hands out the page, signs annotators in, and passes what they do on to the desk.

It knows tokens and sessions but draws none: secrets, time and where to report come from the caller. Nothing that it
sends depends on what the judge said; the desk could not tell it.
"""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.errors import StoreError
from instruments.annotation.desk import Answer, Desk, Outcome, Undo, View
from instruments.annotation.guard import Guard

ASSETS: Final = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
NO_CONTENT: Final = 204
SIGNED_OUT: Final = "this page is not signed in; open the link that `mirage annotate serve` printed last"
NOTICES: Final = {
    Outcome.SAVED: "",
    Outcome.REPEATED: "",
    Outcome.TAKEN: "That item had a label already, perhaps from another tab. It was left as it is.",
    Outcome.MOVED: "Something else has happened since, perhaps in another tab. This is where you are now.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """An annotator with the secret of their link and the secret that their browser gets for it."""

    annotator: str
    token: str
    session: str


class _SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


Body = TypeVar("Body", bound=msgspec.Struct)
Own = TypeVar("Own", Answer, Undo)


def build_app(
    desk: Desk,
    seats: Iterable[Seat],
    *,
    hosts: Iterable[str],
    port: int,
    now_ms: Callable[[], int],
    report: Callable[[str], None],
) -> ASGIApp:
    """Return the ASGI application.

    Args:
        desk: the sample that is labelled.
        seats: who may label.
        hosts: names under which the page is reached (see `Guard`).
        port: the port it is reached under; also keeps two servers' cookies apart.
        now_ms: the wall clock in Unix milliseconds.
        report: takes one line for every error of the server.
    """
    page = _Page(desk, seats, cookie=f"mirage_annotation_{port}", now_ms=now_ms, report=report)
    routes = [
        *(Route(path, _asset(name, kind)) for path, (name, kind) in ASSETS.items()),
        Route("/favicon.ico", _nothing),
        Route("/session", page.sign_in, methods=["POST"]),
        Route("/item", page.item),
        Route("/label", page.label, methods=["POST"]),
        Route("/undo", page.undo, methods=["POST"]),
    ]
    handlers = {HTTPException: _explain, StoreError: page.explain_store, Exception: _apologize}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts=hosts, port=port, report=report)


class _Page:
    """The requests that need a desk."""

    def __init__(
        self,
        desk: Desk,
        seats: Iterable[Seat],
        *,
        cookie: str,
        now_ms: Callable[[], int],
        report: Callable[[str], None],
    ) -> None:
        self._desk, self._seats, self._cookie = desk, tuple(seats), cookie
        self._now_ms, self._report = now_ms, report

    async def sign_in(self, request: Request) -> Response:
        """Take the token of a link and give the browser a cookie for it."""
        given = _decoded(await request.body(), _SignIn).token
        # Every seat is compared, so that time tells nothing.
        found = [seat for seat in self._seats if _same(seat.token, given)]
        if not found:
            raise HTTPException(401, "this link is not valid; open the one that `mirage annotate serve` printed last")
        response = Response(status_code=NO_CONTENT)
        response.set_cookie(self._cookie, found[0].session, httponly=True, samesite="strict", path="/")
        return response

    async def item(self, request: Request) -> Response:
        """Return the next item."""
        annotator, skipped = self._annotator(request), request.query_params.get("skipped") == "1"
        return _sent(await run_in_threadpool(self._desk.view, annotator, skipped=skipped))

    async def label(self, request: Request) -> Response:
        """Store a label or a skip, and return the next item."""
        annotator, answer = await self._own(request, Answer)
        outcome = await run_in_threadpool(self._desk.answer, annotator, answer, self._now_ms())
        if outcome is Outcome.UNKNOWN:
            raise HTTPException(404, "the sample has no such item; load the page again")
        notice = NOTICES[outcome]
        return _sent(await run_in_threadpool(self._desk.view, annotator, skipped=answer.skipped, notice=notice))

    async def undo(self, request: Request) -> Response:
        """Take the last label or skip back, and return its item."""
        annotator, undo = await self._own(request, Undo)
        outcome = await run_in_threadpool(self._desk.undo, annotator, undo.item, self._now_ms())
        if outcome is Outcome.SAVED:
            return _sent(await run_in_threadpool(self._desk.view_of, annotator, undo.item))
        return _sent(await run_in_threadpool(self._desk.view, annotator, skipped=undo.skipped, notice=NOTICES[outcome]))

    async def explain_store(self, _request: Request, error: Exception) -> Response:
        """Tell the annotator that the store would not take it, and the server's owner why."""
        self._report(" ".join(str(error).split()))
        what = f"{error.what}; {error.mend}" if isinstance(error, StoreError) else "the store cannot be used"
        return JSONResponse({"error": f"not saved: {what}"}, status_code=503)

    async def _own(self, request: Request, kind: type[Own]) -> tuple[str, Own]:
        """Return the signed-in annotator and what they sent, if the page that sent it was loaded for them."""
        annotator = self._annotator(request)
        body = _decoded(await request.body(), kind)
        if body.annotator != annotator:
            raise HTTPException(409, f"this browser is signed in as {annotator} now; load the page again")
        return annotator, body

    def _annotator(self, request: Request) -> str:
        given = request.cookies.get(self._cookie, "")
        found = [seat.annotator for seat in self._seats if _same(seat.session, given)]
        if not found:
            raise HTTPException(401, SIGNED_OUT)
        return found[0]


def _same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode("utf-8", "replace"))


def _decoded(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f"not understood: {str(error)[:200]}") from None


def _sent(view: View) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


def _asset(name: str, kind: str) -> Callable[[Request], Response]:
    data = files("instruments.annotation").joinpath(name).read_bytes()

    def send(_request: Request) -> Response:
        return Response(data, media_type=kind)

    return send


def _nothing(_request: Request) -> Response:
    return Response(status_code=NO_CONTENT)


async def _explain(_request: Request, error: Exception) -> Response:
    status, what = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    return JSONResponse({"error": what}, status_code=status)


async def _apologize(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "the server made a mistake; nothing was saved"}, status_code=500)
