"""Parts for tests that ship with the code: a scripted provider, a clock moved by hand, small makers of records."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from engine.cell import Cell, Read, Reading, ReadingStatus
from engine.errors import ProviderError
from engine.lane import Leased, LeasedCell, Ticket
from engine.ledger import Amount, Budget
from engine.limits import Cost
from engine.provider import Reply
from engine.request import Completion, Decoding, Finish, Request, Role, Usage, chat, prompt_bytes, request_key
from engine.retry import Tries

Answer = str | Completion | ProviderError
Script = Callable[[Request, int], Answer]


class ManualClock:
    """A clock that stands still until moved."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now

    def wall_ms(self) -> int:
        """Return the time in milliseconds."""
        return round(self._now * 1000)

    def move(self, seconds: float) -> None:
        """Go forward."""
        self._now += seconds


class ScriptedProvider:
    """Answers by a function of the request and the number of times it has been seen; remembers every call."""

    def __init__(self, script: Script, *, name: str = "scripted", latency: float = 0.0) -> None:
        self._script = script
        self._name = name
        self._latency = latency
        self.seen: list[Request] = []
        self._times: Counter[Request] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = False

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._name

    async def complete(self, request: Request) -> Reply:
        """Answer as scripted."""
        times = self._times[request]
        self._times[request] += 1
        self.seen.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self._latency)
            answer = self._script(request, times)
        finally:
            self.in_flight -= 1
        if isinstance(answer, ProviderError):
            raise answer
        return Reply(completion=answer if isinstance(answer, Completion) else make_completion(answer))

    async def close(self) -> None:
        """Remember being closed."""
        self.closed = True


class EchoReader:
    """Reads every answer as complete and asks whatever `follow` returns for it."""

    def __init__(self, follow: Callable[[str, bytes, Completion], Sequence[Cell]] | None = None) -> None:
        self._follow = follow

    def read(self, stage: str, coords: bytes, completion: Completion) -> Read:
        """Return a reading whose body is empty."""
        follow_ups = self._follow(stage, coords, completion) if self._follow else ()
        return Read(reading=Reading(status=ReadingStatus.COMPLETE, version=1), follow_ups=follow_ups)


def make_request(text: str = "hello", *, sample: int = 0, max_tokens: int = 10, model: str = "m-1") -> Request:
    """Return a small request to the scripted provider."""
    return Request(
        provider="scripted",
        model=model,
        messages=chat((Role.USER, text)),
        decoding=Decoding(max_tokens=max_tokens),
        sample=sample,
    )


def make_completion(text: str = "hi", *, input_tokens: int = 5, output_tokens: int = 2) -> Completion:
    """Return a small completion."""
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    return Completion(
        text=text, finish=Finish.STOP, usage=usage, finish_raw="stop", raw=text.encode("utf-8", "surrogatepass")
    )


def make_leased(
    number: int, *, stage: str = "task", alias: str = "m", lane: str = "scripted/m-1", max_tokens: int = 10
) -> Leased:
    """Return a leased request that one cell waits for; its id and its cell's are `number`."""
    request = make_request(f"{stage} {number}", max_tokens=max_tokens)
    return Leased(
        id=number,
        key=request_key(request),
        lane=lane,
        stage=stage,
        alias=alias,
        request=request,
        cells=(LeasedCell(id=number, stage=stage, coords=b'{"n":%d}' % number),),
        attempts=0,
        tries=Tries(),
        size=prompt_bytes(request),
        messages=len(request.messages),
    )


def make_ticket(leased: Leased, *, nano: int = 1_000, tokens: int = 100) -> Ticket:
    """Return a ticket for a leased request with the given worst case, in no budget."""
    return Ticket(leased, Cost(input_tokens=0, output_tokens=0), Amount(nano, tokens), Budget((), ()))


def make_cell(number: int, *, stage: str = "task", alias: str = "m", request: Request | None = None) -> Cell:
    """Return the `number`-th cell of a stage with its own request."""
    return Cell(
        stage=stage,
        alias=alias,
        coords=b'{"n":%d}' % number,
        request=request or make_request(f"{stage} {number}"),
    )


def make_cells(numbers: Iterable[int], *, stage: str = "task") -> list[Cell]:
    """Return several cells."""
    return [make_cell(number, stage=stage) for number in numbers]


def batched(numbers: Iterable[int], *, stage: str = "task", alias: str = "m") -> list[Cell]:
    """Return several cells that go by batch."""
    return [msgspec.structs.replace(make_cell(number, stage=stage, alias=alias), batch=True) for number in numbers]
