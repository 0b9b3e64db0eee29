"""Local models as a provider: vLLM inside this process, on the CPU or on GPUs.

A local model has capacity instead of rate limits: it computes `max_num_seqs` requests together, and sending more at
once lets those that wait be sorted by common prompt beginnings. Importing this module is cheap and needs no vLLM; the
engine is built by `start()` or by the first request, in its own thread. One provider serves one model, and one process
runs one local model at a time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from engine.errors import ErrorClass, ProviderError, UserError
from engine.provider import Reply
from engine.request import Completion, Request
from providers.vllm_engine import InProcessEngine, Outcome
from providers.vllm_settings import VllmSettings
from providers.vllm_thread import Build, EngineThread, Ticket, closed_error

__all__ = ["VllmProvider", "VllmSettings"]

logger = logging.getLogger(__name__)

CLOSE_POLL_SECONDS: Final = 0.01


class VllmProvider:
    """A local model behind the provider protocol; may be used from several event loops."""

    name: Final = "vllm"

    def __init__(self, settings: VllmSettings | None = None, *, build: Build = InProcessEngine) -> None:
        self.settings = settings or VllmSettings()
        self._thread = EngineThread(self.settings, build)
        self._numbers = count(1)
        self._closed = False

    async def start(self) -> None:
        """Build the engine now, to learn of a missing model or package before any work is planned.

        Raises:
            UserError: vLLM or the model is missing, or does not load.
        """
        await self._wait_for(None)

    async def complete(self, request: Request) -> Reply:
        """Compute `request`; cancelling frees its place in the engine.

        Raises:
            ProviderError: bad_request for this request alone (another model, too long, an impossible schema); transient
                when the engine died or is stuck; quota when it cannot be started, until someone mends it.
        """
        if request.model != self.settings.served_name:
            what = f"this engine serves {self.settings.served_name}, not {request.model}"
            raise ProviderError(ErrorClass.BAD_REQUEST, what, code="model")
        try:
            completion = await self._wait_for(request)
        except UserError as error:
            raise ProviderError(ErrorClass.QUOTA, str(error), code="engine_start") from error
        if completion is None:
            raise closed_error()
        return Reply(completion=completion)

    def between_steps(self, work: Callable[[], None]) -> None:
        """Call `work` in the engine's thread, where alone the engine may be touched, e.g. to measure it."""
        self._thread.between_steps(work)

    def withdraw(self) -> None:
        """Give back what is queued and not begun, when a run stops; what is being computed may finish.

        Whoever waits for such a request gets a `ProviderError` of class rate: it counts as not sent, not as failed.
        """
        self._thread.withdraw()

    async def close(self) -> None:
        """End the engine and its thread after the step that is being computed; safe to call twice."""
        self._closed = True
        deadline = time.monotonic() + self.settings.close_seconds
        self._thread.halt()
        while self._thread.alive and time.monotonic() < deadline:  # noqa: ASYNC110 - a thread's end sets no event
            await asyncio.sleep(CLOSE_POLL_SECONDS)
        if self._thread.alive:
            logger.warning("the local engine is stuck and ends with this process")

    async def _wait_for(self, request: Request | None) -> Completion | None:
        if self._closed:
            raise closed_error()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome | None] = loop.create_future()
        ticket = Ticket(number=next(self._numbers), request=request, loop=loop, outcome=future)
        self._thread.submit(ticket)
        try:
            outcome = await self._patiently(future)
        finally:
            if not future.done():
                future.cancel()
                self._thread.cancel(ticket.number)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _patiently(self, future: asyncio.Future[Outcome | None]) -> Outcome | None:
        since = time.monotonic()
        while not future.done():
            if (patience := self._thread.patience(since)) <= 0:
                doing = self._thread.phase
                silence = f"the local engine is stuck: {doing} for {time.monotonic() - since:.0f} s without a step"
                raise ProviderError(ErrorClass.TRANSIENT, silence, code="engine_stuck")
            await asyncio.wait({future}, timeout=patience)
        return future.result()
