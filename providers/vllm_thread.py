"""The engine's thread: takes requests from event loops, keeps the engine busy, and hands results back.

Everything the thread owns is changed by the thread alone; others give it orders through a queue. Results leave once per
step, in one call per event loop, so that a step that ends thirty requests wakes the loop once.

When a step raises, the engine is dead: the requests inside it are told so and may be tried again, those that still
wait stay, and a new engine is built for them or for whoever comes next. After `restarts` deaths in a row with nothing
answered between them, requests are refused. Knows nothing of vLLM: an engine is built by the function it is given.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from engine.errors import ErrorClass, ProviderError, UserError
from engine.provider import WITHDRAWN
from engine.request import Completion, Request
from providers.vllm_calls import PrefixQueue, prompt_order
from providers.vllm_engine import LocalEngine, Outcome
from providers.vllm_load import reason_of
from providers.vllm_settings import VllmSettings

logger = logging.getLogger(__name__)

# vLLM holds some requests beyond those it computes: their schemas are prepared while others are computed.
SPARE_SHARE: Final = 8
EXIT_SECONDS: Final = 10.0

Build = Callable[[VllmSettings], LocalEngine]


class Phase(StrEnum):
    """What the thread is doing."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Ticket:
    """A request on its way through the thread; without a request, someone who only waits for the engine to be up."""

    number: int
    request: Request | None
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[Outcome | None]
    order: str = field(init=False)

    def __post_init__(self) -> None:
        self.order = prompt_order(self.request) if self.request else ""


class EngineThread:
    """One thread, one engine at a time.

    Attributes:
        phase: what the thread is doing; written by it, read by anyone.
        progressed_at: when it last finished something, on `clock`'s scale.
        deaths: engines lost in a row, with nothing answered between them.
    """

    def __init__(self, settings: VllmSettings, build: Build, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase, self.deaths, self.progressed_at = Phase.IDLE, 0, clock()
        self._settings, self._build, self._clock = settings, build, clock
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._engine: LocalEngine | None = None
        self._tickets: dict[int, Ticket] = {}
        self._waiting = PrefixQueue()
        self._inside: set[int] = set()
        self._starters: list[Ticket] = []
        self._results: list[tuple[Ticket, Outcome | None]] = []
        self._last_death = ""
        self._halting = False
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)

    # What other threads call.

    def submit(self, ticket: Ticket) -> None:
        """Take `ticket`, from its own loop; its future gets a completion or an exception as its result."""
        if self._thread.ident is None:
            self._thread.start()
            atexit.register(self.end, EXIT_SECONDS)
        self._orders.put(partial(self._admit, ticket))
        if self.phase is Phase.ENDED:
            _hand_over([(ticket.outcome, closed_error())])

    def cancel(self, number: int) -> None:
        """Forget a request, wherever it is."""
        self._orders.put(partial(self._drop, number))

    def between_steps(self, work: Callable[[], None]) -> None:
        """Call `work`, which raises nothing, in the engine's thread, where alone the engine may be touched."""
        self._orders.put(work)

    def withdraw(self) -> None:
        """Give back, unanswered, every request that has not begun to be computed; those that have go on."""
        self._orders.put(self._withdraw)

    def halt(self) -> bool:
        """Ask the thread to end after the step it computes; return whether it has anything to end."""
        atexit.unregister(self.end)
        self._orders.put(self._stop)
        return self.alive

    def end(self, seconds: float) -> None:
        """Ask the thread to end, and wait for it so long."""
        if self.halt():
            self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def patience(self, since: float) -> float:
        """Return the seconds until someone who waits since `since` must call the engine stuck."""
        limit = self._settings.start_seconds if self.phase is Phase.STARTING else self._settings.stall_seconds
        return max(since, self.progressed_at) + limit - self._clock()

    # What the thread calls.

    def _run(self) -> None:
        try:
            while not self._halting:
                self._obey()
                if self._has_work():
                    self._advance()
                self._deliver()
        finally:
            self._lay_down()

    def _obey(self) -> None:
        """Carry out the orders that came; wait for one when there is nothing else to do."""
        if not self._has_work():
            self.phase = Phase.IDLE
            self._orders.get()()
            self.progressed_at = self._clock()
        with suppress(Empty):
            while not self._halting:
                self._orders.get_nowait()()

    def _has_work(self) -> bool:
        return not self._halting and bool(self._inside or self._waiting or self._starters)

    def _admit(self, ticket: Ticket) -> None:
        if ticket.request is None:
            self._starters.append(ticket)
        else:
            self._tickets[ticket.number] = ticket
            self._waiting.push(ticket.order, ticket.number)

    def _drop(self, number: int) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket and not self._waiting.discard(ticket.order, number):
            self._inside.discard(number)
            if self._engine:
                try:
                    self._engine.abort([number])
                except Exception as error:  # noqa: BLE001 - whatever it is, this engine is not to be trusted any more
                    self._bury(error)

    def _withdraw(self) -> None:
        begun = self._inside - self._unstarted()
        for number, ticket in list(self._tickets.items()):
            if number not in begun and number in self._tickets:
                self._drop(number)
                self._results.append((ticket, withdrawn_error()))

    def _unstarted(self) -> set[int]:
        try:
            return set(self._engine.unstarted()) if self._engine else set()
        except Exception as error:  # noqa: BLE001 - then all that is inside goes on, which is slower and not wrong
            logger.warning("the local engine does not say what it has begun: %s", reason_of(error))
            return set()

    def _stop(self) -> None:
        self._halting = True

    def _advance(self) -> None:
        """Fill the engine and compute one step."""
        engine = self._engine or self._start()
        if engine is None:
            return
        self.phase = Phase.RUNNING
        self._welcome()
        try:
            self._fill(engine)
            outcomes = engine.step() if self._inside else []
        except Exception as error:  # noqa: BLE001 - vLLM raises anything; the engine is dead then, and this thread is not
            self._bury(error)
        else:
            for number, outcome in outcomes:
                self._inside.discard(number)
                self._resolve(number, outcome)
        self.progressed_at = self._clock()

    def _start(self) -> LocalEngine | None:
        """Build the engine, or tell everyone why there is none."""
        if self.deaths > self._settings.restarts:
            reason = f"the local engine failed {self.deaths} times in a row and is not started again"
            self._refuse(ProviderError(ErrorClass.QUOTA, f"{reason}: {self._last_death}", code="engine_gone"))
            return None
        self.phase, self.progressed_at = Phase.STARTING, self._clock()
        try:
            self._engine = self._build(self._settings)
        except Exception as error:  # noqa: BLE001 - the user is told, whatever it was
            self.deaths, self._last_death = self.deaths + 1, str(error)
            known = isinstance(error, UserError)
            self._refuse(error if known else UserError(f"the local engine could not be built: {reason_of(error)}"))
        self.progressed_at = self._clock()
        return self._engine

    def _welcome(self) -> None:
        """Tell those who only waited for the engine, before a step holds them up."""
        self._results.extend((ticket, None) for ticket in self._starters)
        self._starters.clear()
        self._deliver()

    def _fill(self, engine: LocalEngine) -> None:
        room = engine.capacity + max(1, engine.capacity // SPARE_SHARE)
        while self._waiting and len(self._inside) < room:
            number = self._waiting.pop()
            request = self._tickets[number].request
            # It is inside from here on: should adding kill the engine, this request is told like the others.
            self._inside.add(number)
            try:
                if request:
                    engine.add(number, request)
            except ProviderError as error:
                self._inside.discard(number)
                self._resolve(number, error)

    def _bury(self, error: Exception) -> None:
        """Give the engine up; whoever was inside may try again."""
        self.deaths, self._last_death = self.deaths + 1, reason_of(error)
        logger.warning("the local engine died (%s); it is built again for the next request", self._last_death)
        died = ProviderError(ErrorClass.TRANSIENT, f"the local engine died: {self._last_death}", code="engine_died")
        for number in self._inside:
            self._resolve(number, died)
        self._inside.clear()
        self._close_engine()

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine:
            try:
                engine.close()
            except Exception as error:  # noqa: BLE001 - a dead engine may fail to close; its memory is gone either way
                logger.warning("the local engine did not close cleanly: %s", reason_of(error))

    def _resolve(self, number: int, outcome: Outcome) -> None:
        if isinstance(outcome, Completion):
            self.deaths = 0
        if ticket := self._tickets.pop(number, None):
            self._results.append((ticket, outcome))

    def _refuse(self, error: Exception) -> None:
        """Tell everyone who waits or is inside."""
        self._results.extend((ticket, error) for ticket in (*self._tickets.values(), *self._starters))
        self._tickets.clear()
        self._starters.clear()
        self._inside.clear()
        self._waiting = PrefixQueue()

    def _deliver(self) -> None:
        results, self._results = self._results, []
        for loop in {ticket.loop for ticket, _ in results}:
            batch = [(ticket.outcome, outcome) for ticket, outcome in results if ticket.loop is loop]
            # A loop that closed meanwhile has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_hand_over, batch)

    def _lay_down(self) -> None:
        """End: free the engine, and tell those who still wait."""
        self._close_engine()
        # In this order an order that comes meanwhile is either drained here or refused by `submit`.
        self.phase = Phase.ENDED
        with suppress(Empty):
            while True:
                self._orders.get_nowait()()
        self._refuse(closed_error())
        self._deliver()


def closed_error() -> ProviderError:
    """Return what a request learns that comes to a closed engine."""
    return ProviderError(ErrorClass.TRANSIENT, "the local engine was closed before it answered", code="engine_closed")


def withdrawn_error() -> ProviderError:
    """Return what a request learns that is given back before it was begun: it may be tried again, nothing failed."""
    return ProviderError(ErrorClass.RATE, "not begun: the run was stopped", code=WITHDRAWN)


def _hand_over(batch: list[tuple[asyncio.Future[Outcome | None], Outcome | None]]) -> None:
    for future, outcome in batch:
        if not future.done():
            future.set_result(outcome)
