"""The calls that every batch adapter makes: polls, one create, files up and down. Knows no provider's paths or fields.

Reads are retried and spaced by the control client. A create is sent once; whatever leaves its outcome open (a broken
connection, a 5xx, an unreadable success) says `maybe_billed`. Files are streamed from and to the disk by threads, so
that neither memory nor the event loop feels their size. Must not know: lanes, ledgers, what a line means.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from engine.batch.provider import NOT_VISIBLE, QUEUE_FULL, RESULTS_NOT_READY
from engine.errors import ErrorClass, ProviderError
from providers.adapter import KEY_HINT
from providers.batch_files import PIECE, TRUNCATED, Expected, Writer, open_part, put_in_place, truncated, whole_lines
from providers.classify import ErrorTable, classify
from providers.control import CALLS_PER_SECOND, ControlClient, Sleep
from providers.http import FIRST_ERROR, HttpEndpoint, HttpReply
from providers.troubles import DROPPED, TIMEOUT

FETCHES: Final = 4
LONGEST_WAIT: Final = 30.0
NOT_FOUND: Final = 404
ABSENT: Final = (403, NOT_FOUND)  # Gemini says 403 of a file that is not there
NOT_SO_LONG: Final = 416
TOO_MANY: Final = 429
IN_DOUBT: Final = (408, 409)
FIRST_SERVER_ERROR: Final = 500
BROKEN_OFF: Final = (DROPPED, TIMEOUT)

T = TypeVar("T")

_backoff: Final = wait_random_exponential(multiplier=0.5, max=LONGEST_WAIT)


class BatchLink:
    """One account's batch calls.

    Args:
        per_second: most polls and lists a second.
        key_env: environment variable of the key, named when the key is rejected.
        sleep: waits between tries; replaced in tests.
    """

    def __init__(
        self,
        endpoint: HttpEndpoint,
        errors: ErrorTable,
        *,
        key_env: str = "",
        per_second: int = CALLS_PER_SECOND,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._endpoint, self._errors, self._key_env, self._sleep = endpoint, errors, key_env, sleep
        self._control = ControlClient(endpoint, errors, per_second=per_second, sleep=sleep)

    @property
    def name(self) -> str:
        """The account's name."""
        return self._endpoint.name

    @property
    def root(self) -> str:
        """The account's base address without its version."""
        return self._endpoint.root

    async def get(self, path: str) -> HttpReply:
        """Fetch `path`, retried; raises ProviderError."""
        return await self._told(self._control.get(path), free=True)

    async def poll(self, path: str) -> HttpReply:
        """Fetch a batch, retried; a 404 is transient, code `NOT_VISIBLE`."""
        try:
            return await self.get(path)
        except ProviderError as error:
            if error.status == NOT_FOUND:
                raise recoded(error, ErrorClass.TRANSIENT, NOT_VISIBLE) from None
            raise

    async def visible(self, path: str, tries: int = 6) -> HttpReply | None:
        """Return `path` once a fresh id is known there, or None when it stays unknown."""
        for step in range(tries):
            try:
                return await self.get(path)
            except ProviderError as error:
                if error.status not in ABSENT:
                    raise
            await self._sleep(0.5 * 2**step)
        return None

    async def create(self, path: str, body: bytes) -> HttpReply:
        """Send `body` once; a refusal for the rate has code `QUEUE_FULL`, an open outcome says `maybe_billed`."""
        return await self._told(self._created(self._endpoint.post(path, body)))

    async def create_streamed(self, path: str, content: AsyncIterator[bytes], length: int) -> HttpReply:
        """Do as `create` with a body that is not held in memory."""
        headers = {"content-type": "application/json"}
        return await self._told(self._created(self._endpoint.send(path, content, length=length, headers=headers)))

    async def send(
        self, path: str, content: AsyncIterator[bytes], *, length: int, headers: Mapping[str, str]
    ) -> HttpReply:
        """Upload a body once; raises ProviderError, never `maybe_billed`: uploads are free."""
        return await self._told(self._free(self._endpoint.send(path, content, length=length, headers=headers)))

    async def order(self, path: str, body: bytes = b"") -> None:
        """Post an order that may come too late, such as a cancellation: a refusal of the order itself is no error.

        A 404 is transient, code `NOT_VISIBLE`: an order that nobody has heard must be given again.
        """
        try:
            await self._told(self._free(self._endpoint.post(path, body)))
        except ProviderError as error:
            if error.status == NOT_FOUND:
                raise recoded(error, ErrorClass.TRANSIENT, NOT_VISIBLE) from None
            if error.kind is not ErrorClass.BAD_REQUEST and error.status not in IN_DOUBT:
                raise

    async def delete(self, path: str) -> None:
        """Delete `path`; one that is gone already is no error."""
        try:
            await self._told(self._free(self._endpoint.delete(path)))
        except ProviderError as error:
            if error.status not in ABSENT:
                raise

    async def bring(self, path: str, target: Path, expected: Expected | None = None) -> Path:
        """Download JSON lines to `target`, whole and forced to the disk; a target that exists is whole already.

        What broke off goes on where it ended, where the server can do that; after a crash it begins anew.

        Args:
            path: where the lines are.
            target: the file; `.part` is added to its name until it is whole.
            expected: what is known about its length.

        Raises:
            ProviderError: transient, code `TRUNCATED` or `RESULTS_NOT_READY`.
            UserError: the folder cannot be written.
        """
        if not await asyncio.to_thread(target.exists):
            part = target.with_name(target.name + ".part")
            await self._told(self._brought(path, part, expected or Expected()))
            await asyncio.to_thread(put_in_place, part, target)
        return target

    async def first_line(self, path: str, most: int = PIECE) -> bytes:
        """Return the first line at `path`, at most `most` bytes of it, and hang up."""
        found = bytearray()

        async def sink(piece: bytes) -> bool:
            found.extend(piece)
            return b"\n" not in piece and len(found) < most

        await self._told(self._free(self._endpoint.fetch(path, sink)))
        return bytes(found).partition(b"\n")[0][:most]

    async def close(self) -> None:
        """Release the connections; safe to call twice."""
        await self._endpoint.close()

    async def _brought(self, path: str, part: Path, expected: Expected) -> None:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(FETCHES),
            wait=_wait,
            retry=retry_if_exception(_worth_repeating),
            sleep=self._sleep,
            reraise=True,
        )
        before: int | None = None
        resume = False
        async for attempt in retrying:
            with attempt:
                try:
                    size, lines = await self._fetch(path, part, resume=resume)
                except ProviderError as error:
                    resume = error.code in BROKEN_OFF or (resume and error.code != TRUNCATED)
                    raise
                resume = False
                if expected.misses(size, lines) and (expected.sure or size != before):
                    before = size
                    raise truncated(f"{size:,} bytes in {lines:,} lines")

    async def _fetch(self, path: str, part: Path, *, resume: bool) -> tuple[int, int]:
        file, again = await asyncio.to_thread(open_part, part, resume=resume)
        with file:
            start, writer = file.tell() - len(again), Writer(file, again)
            try:
                reply = await self._answered(self._endpoint.fetch(path, writer.take, start=start))
            except ProviderError:
                await writer.flush()
                raise
            await writer.finish()
            size = start + len(again) + writer.size
        if not size and reply.headers.get("content-length") != "0":
            raise truncated("no bytes")
        return size, await asyncio.to_thread(whole_lines, part)

    async def _answered(self, call: Awaitable[HttpReply]) -> HttpReply:
        try:
            return await self._free(call)
        except ProviderError as error:
            if error.status in ABSENT:
                raise recoded(error, ErrorClass.TRANSIENT, RESULTS_NOT_READY) from None
            if error.status == NOT_SO_LONG:
                raise recoded(error, ErrorClass.TRANSIENT, TRUNCATED) from None
            raise

    async def _created(self, call: Awaitable[HttpReply]) -> HttpReply:
        reply = await call
        if reply.status < FIRST_ERROR:
            return reply
        error = classify(self._errors, reply.status, reply.headers, reply.body)
        if error.kind is ErrorClass.RATE or (reply.status == TOO_MANY and b"enqueued" in reply.body.lower()):
            raise recoded(error, ErrorClass.RATE, QUEUE_FULL)
        raise recoded(error, error.kind, error.code, maybe_billed=_open_outcome(reply.status))

    async def _free(self, call: Awaitable[HttpReply]) -> HttpReply:
        try:
            reply = await call
        except ProviderError as error:
            raise recoded(error, error.kind, error.code) from None
        if reply.status >= FIRST_ERROR:
            raise classify(self._errors, reply.status, reply.headers, reply.body)
        return reply

    async def _told(self, call: Awaitable[T], *, free: bool = False) -> T:
        """Await `call`; its errors name the account, and the way to mend a rejected key. Nothing free is billed."""
        try:
            return await call
        except ProviderError as error:
            mend = KEY_HINT.format(self._key_env) if error.kind is ErrorClass.AUTH and self._key_env else ""
            raise recoded(
                error,
                error.kind,
                error.code,
                maybe_billed=error.maybe_billed and not free,
                message=f"{self.name}: {error.message}{mend}",
            ) from None


def recoded(
    error: ProviderError, kind: ErrorClass, code: str, *, maybe_billed: bool = False, message: str = ""
) -> ProviderError:
    """Return `error` with another class, code and word about money."""
    return ProviderError(
        kind,
        message or error.message,
        status=error.status,
        code=code,
        retry_after=error.retry_after,
        maybe_billed=maybe_billed,
    )


def moment(text: str | None) -> float:
    """Return UNIX seconds of an RFC 3339 moment, 0.0 for none or an unreadable one; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text or "")
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _open_outcome(status: int) -> bool:
    return status >= FIRST_SERVER_ERROR or status in IN_DOUBT


def _worth_repeating(error: BaseException) -> bool:
    return (
        isinstance(error, ProviderError)
        and error.kind in (ErrorClass.RATE, ErrorClass.TRANSIENT)
        and (error.retry_after or 0.0) <= LONGEST_WAIT
    )


def _wait(state: RetryCallState) -> float:
    """Return the wait asked for by the reply, else an exponentially growing, randomised one."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ProviderError) else None
    return _backoff(state) if asked is None else asked
