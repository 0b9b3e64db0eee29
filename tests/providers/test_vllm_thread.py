"""The engine's thread, with an engine that follows a script: deaths, stalls, cancellation, closing, several loops."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from engine.errors import ErrorClass, ProviderError, UserError
from engine.request import Completion, Decoding, Finish, Request, Role, Usage, chat
from providers.vllm import VllmProvider, VllmSettings
from providers.vllm_engine import Outcome

SETTINGS = VllmSettings(max_num_seqs=8, restarts=2)


class ScriptedEngine:
    """Answers each request with its own text after one step.

    Attributes:
        capacity: how many requests are said to be computed together.
        gate: steps wait for it.
        entered: set when a step has begun.
        overfull: set when it holds more than it computes together.
        fault: the next step raises it.
        refuse: prompts that are refused when they are added.
        endless: prompts that no step finishes.
        unforgetting: aborting raises.
        untold: it does not say what it has begun.
    """

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self.gate, self.entered, self.overfull = threading.Event(), threading.Event(), threading.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.refuse: set[str] = set()
        self.endless: set[str] = set()
        self.unforgetting = self.untold = False
        self.inside: dict[int, str] = {}
        self.added: list[str] = []
        self.aborted: list[int] = []
        self.most_inside = self.steps = self.closed = 0

    def add(self, number: int, request: Request) -> None:
        """Take a request."""
        text = request.messages[-1].content
        if text in self.refuse:
            raise ProviderError(ErrorClass.BAD_REQUEST, f"refused {text}")
        self.added.append(text)
        self.inside[number] = text
        if len(self.inside) > self.capacity:
            self.overfull.set()

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        if self.unforgetting:
            raise RuntimeError("lost count")
        self.aborted += numbers
        for number in numbers:
            del self.inside[number]

    def unstarted(self) -> list[int]:
        """Return those that came after the others filled the engine."""
        if self.untold:
            raise AttributeError("scheduler")
        return list(self.inside)[self.capacity :]

    def step(self) -> list[tuple[int, Outcome]]:
        """Finish everybody, or raise."""
        self.steps += 1
        self.most_inside = max(self.most_inside, len(self.inside))
        self.entered.set()
        self.gate.wait(10)
        fault, self.fault = self.fault, None
        if fault:
            raise fault
        done = {number: text for number, text in self.inside.items() if text not in self.endless}
        self.inside = {number: text for number, text in self.inside.items() if number not in done}
        return [(number, Completion(text=text, finish=Finish.STOP, usage=Usage())) for number, text in done.items()]

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Workshop:
    """Builds scripted engines and remembers them; `prepare` changes each before it is handed over."""

    def __init__(self, prepare: Callable[[ScriptedEngine], None] = lambda engine: None) -> None:
        self.engines: list[ScriptedEngine] = []
        self.prepare = prepare

    def __call__(self, settings: VllmSettings) -> ScriptedEngine:
        """Build the next engine."""
        engine = ScriptedEngine(settings.max_num_seqs)
        self.engines.append(engine)
        self.prepare(engine)
        return engine


def ask(text: str) -> Request:
    """Return a request with this prompt."""
    decoding = Decoding(max_tokens=8)
    return Request(provider="vllm", model="smollm2-135m", messages=chat((Role.USER, text)), decoding=decoding)


def closing(engine: ScriptedEngine) -> None:
    """Let the engine's steps wait."""
    engine.gate.clear()


def failing(engine: ScriptedEngine) -> None:
    """Let the engine die in its first step."""
    engine.fault = RuntimeError("out of memory\nwith details")


async def until(event: threading.Event) -> None:
    """Wait for another thread's event without holding up the loop."""
    assert await asyncio.to_thread(event.wait, 10)


async def outcome(call: Awaitable[Any]) -> ProviderError:
    """Return the error that `call` ends with."""
    with pytest.raises(ProviderError) as caught:
        await call
    return caught.value


async def test_answers_reach_those_who_asked() -> None:
    """Results that come together are told apart."""
    provider = VllmProvider(SETTINGS, build=Workshop())
    texts = [f"question {n}" for n in range(40)]
    replies = await asyncio.gather(*(provider.complete(ask(text)) for text in texts))
    assert [reply.completion.text for reply in replies] == texts
    await provider.close()


async def test_engine_is_never_overfilled_and_takes_prompts_in_order() -> None:
    """It holds what it computes and a little more; those who wait are sorted by prompt."""
    workshop = Workshop(closing)
    provider = VllmProvider(SETTINGS, build=workshop)
    first = asyncio.ensure_future(provider.complete(ask("0")))
    await provider.start()
    await until(workshop.engines[0].entered)
    others = [asyncio.ensure_future(provider.complete(ask(text))) for text in "zyxwvutsrqponmlkjihgfedcba"]
    await asyncio.sleep(0)
    workshop.engines[0].gate.set()
    await asyncio.gather(first, *others)
    assert workshop.engines[0].most_inside == SETTINGS.max_num_seqs + 1
    assert "".join(workshop.engines[0].added[1:]) == "abcdefghijklmnopqrstuvwxyz"
    await provider.close()


async def test_one_step_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight answers of one step come in one call."""
    workshop = Workshop(closing)
    provider = VllmProvider(SETTINGS, build=workshop)
    calls = [asyncio.ensure_future(provider.complete(ask(str(n)))) for n in range(8)]
    await provider.start()
    loop, wakes = asyncio.get_running_loop(), []
    original = loop.call_soon_threadsafe

    def counting(callback: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        if callback.__name__ == "_hand_over":
            wakes.append(len(args[0]))
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    workshop.engines[0].gate.set()
    await asyncio.gather(*calls)
    monkeypatch.undo()
    assert sum(wakes) == 8
    assert len(wakes) == workshop.engines[0].steps
    await provider.close()


async def test_refused_request_fails_alone() -> None:
    """Its neighbours in the same step are answered."""
    workshop = Workshop(lambda engine: engine.refuse.add("bad"))
    provider = VllmProvider(SETTINGS, build=workshop)
    good, bad = await asyncio.gather(
        provider.complete(ask("good")), provider.complete(ask("bad")), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert good.completion.text == "good"
    assert isinstance(bad, ProviderError)
    assert bad.kind is ErrorClass.BAD_REQUEST
    await provider.close()


async def test_dead_engine_fails_those_inside_and_is_built_again(caplog: pytest.LogCaptureFixture) -> None:
    """They may try again; the next request gets a new engine, and the old one is closed."""
    workshop = Workshop()
    workshop.prepare = lambda engine: failing(engine) if len(workshop.engines) == 1 else None
    provider = VllmProvider(SETTINGS, build=workshop)
    with caplog.at_level(logging.WARNING):
        errors = await asyncio.gather(*(outcome(provider.complete(ask(str(n)))) for n in range(3)))
    assert {error.kind for error in errors} == {ErrorClass.TRANSIENT}
    assert str(errors[0]) == "the local engine died: RuntimeError: out of memory"
    assert "the local engine died" in caplog.text
    assert (await provider.complete(ask("again"))).completion.text == "again"
    assert [engine.closed for engine in workshop.engines] == [1, 0]
    await provider.close()


async def test_those_who_still_wait_survive_a_death() -> None:
    """Only what was inside the engine is lost."""
    workshop = Workshop()
    workshop.prepare = lambda engine: failing(engine) if len(workshop.engines) == 1 else None
    provider = VllmProvider(msgspec.structs.replace(SETTINGS, max_num_seqs=1), build=workshop)
    results = await asyncio.gather(*(provider.complete(ask(str(n))) for n in range(6)), return_exceptions=True)
    assert sum(isinstance(result, ProviderError) for result in results) == 2
    await provider.close()


async def test_engine_that_keeps_dying_stops_the_provider() -> None:
    """After the allowed restarts nothing is built any more, and the reason is named."""
    workshop = Workshop(failing)
    provider = VllmProvider(SETTINGS, build=workshop)
    errors = [await outcome(provider.complete(ask("x"))) for _ in range(5)]
    assert [error.kind for error in errors] == [ErrorClass.TRANSIENT] * 3 + [ErrorClass.QUOTA] * 2
    assert "failed 3 times in a row" in str(errors[-1])
    assert "out of memory" in str(errors[-1])
    assert len(workshop.engines) == 3
    await provider.close()


async def test_an_answer_forgives_earlier_deaths() -> None:
    """Deaths count only in a row: a sweep of weeks survives more than a few."""
    workshop = Workshop()
    provider = VllmProvider(SETTINGS, build=workshop)
    for _ in range(6):
        await provider.complete(ask("fine"))
        workshop.engines[-1].fault = RuntimeError("now and then")
        assert (await outcome(provider.complete(ask("x")))).kind is ErrorClass.TRANSIENT
    await provider.close()


async def test_start_tells_the_user_why_there_is_no_engine() -> None:
    """A missing model is the user's to mend, before work begins; a request then stops the provider."""

    def build(settings: VllmSettings) -> ScriptedEngine:
        raise UserError("no such model folder", where="/nowhere", mend="name one")

    provider = VllmProvider(SETTINGS, build=build)
    with pytest.raises(UserError, match="no such model folder"):
        await provider.start()
    error = await outcome(provider.complete(ask("x")))
    assert error.kind is ErrorClass.QUOTA
    assert "name one" in str(error)
    await provider.close()


async def test_unexpected_failure_to_build_is_one_line() -> None:
    """Whatever the builder raises, the user reads a sentence."""

    def build(settings: VllmSettings) -> ScriptedEngine:
        raise RuntimeError("first line\nsecond line")

    provider = VllmProvider(SETTINGS, build=build)
    with pytest.raises(UserError, match=r"could not be built: RuntimeError: first line$"):
        await provider.start()
    await provider.close()


async def test_stuck_engine_is_reported_as_transient() -> None:
    """When no step ends for so long, the request is given back to be tried again."""
    workshop = Workshop(closing)
    provider = VllmProvider(msgspec.structs.replace(SETTINGS, stall_seconds=0.05), build=workshop)
    error = await outcome(provider.complete(ask("x")))
    assert error.kind is ErrorClass.TRANSIENT
    assert "stuck" in str(error)
    workshop.engines[0].gate.set()
    await provider.close()


async def test_slow_loading_is_not_taken_for_a_stall() -> None:
    """Loading a model has its own, longer allowance."""
    loading = threading.Event()

    def build(settings: VllmSettings) -> ScriptedEngine:
        loading.wait(10)
        return ScriptedEngine()

    provider = VllmProvider(msgspec.structs.replace(SETTINGS, stall_seconds=0.05), build=build)
    call = asyncio.ensure_future(provider.complete(ask("x")))
    done, _ = await asyncio.wait({call}, timeout=0.3)
    assert not done
    loading.set()
    assert (await call).completion.text == "x"
    await provider.close()


async def test_cancelling_frees_the_place_in_the_engine() -> None:
    """A request inside is aborted, one that waits is forgotten, and the others go on."""
    workshop = Workshop(lambda engine: engine.endless.add("0"))
    provider = VllmProvider(msgspec.structs.replace(SETTINGS, max_num_seqs=1), build=workshop)
    calls = [asyncio.ensure_future(provider.complete(ask(text))) for text in ("0", "0", "0", "1")]
    await provider.start()
    engine = workshop.engines[0]
    await until(engine.entered)
    for call in calls[:3]:
        call.cancel()
    assert (await calls[3]).completion.text == "1"
    assert len(engine.aborted) == engine.added.count("0") > 0
    assert not engine.inside
    await provider.close()


@pytest.mark.parametrize(("untold", "begun"), [(False, 8), (True, 9)], ids=["the engine says", "it does not"])
async def test_what_is_not_begun_is_given_back(caplog: pytest.LogCaptureFixture, *, untold: bool, begun: int) -> None:
    """Eight are computed and get their answer; the one in reserve and all that wait come back as not sent."""
    texts = [f"{n:02}" for n in range(30)]

    def prepare(engine: ScriptedEngine) -> None:
        engine.endless.update(texts)
        engine.untold = untold

    workshop = Workshop(prepare)
    provider = VllmProvider(SETTINGS, build=workshop)
    calls = [asyncio.ensure_future(provider.complete(ask(text))) for text in texts]
    await provider.start()
    await until(workshop.engines[0].overfull)
    with caplog.at_level(logging.WARNING):
        provider.withdraw()
        withdrawn, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert len(withdrawn) == len(texts) - begun
    errors = [await outcome(call) for call in withdrawn]
    assert {(error.kind, error.code, error.maybe_billed) for error in errors} == {(ErrorClass.RATE, "withdrawn", False)}
    assert ("does not say" in caplog.text) is untold
    workshop.engines[0].endless.clear()
    await asyncio.gather(*(call for call in calls if call not in withdrawn))
    await provider.close()


async def test_giving_back_before_anything_is_asked_is_free() -> None:
    """A run that stops before its first request has nothing to give back, and the provider goes on to serve."""
    workshop = Workshop()
    provider = VllmProvider(SETTINGS, build=workshop)
    provider.withdraw()
    assert (await provider.complete(ask("later"))).completion.text == "later"
    await provider.close()


async def test_closing_ends_the_thread_and_tells_who_waits() -> None:
    """Nobody is left waiting, the engine is freed, and closing twice is fine."""
    workshop = Workshop(closing)
    provider = VllmProvider(msgspec.structs.replace(SETTINGS, max_num_seqs=1), build=workshop)
    calls = [asyncio.ensure_future(outcome(provider.complete(ask(str(n))))) for n in range(4)]
    await provider.start()
    await until(workshop.engines[0].entered)
    ending = asyncio.gather(provider.close(), provider.close())
    await asyncio.sleep(0)
    workshop.engines[0].gate.set()
    await ending
    await provider.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {error.code for error in results if isinstance(error, ProviderError)} == {"engine_closed"}
    assert workshop.engines[0].closed == 1
    assert "local-engine" not in [thread.name for thread in threading.enumerate()]
    assert (await outcome(provider.complete(ask("late")))).code == "engine_closed"


async def test_closing_does_not_wait_for_ever() -> None:
    """A step that never ends cannot hold up the end of the program."""
    workshop = Workshop(closing)
    provider = VllmProvider(msgspec.structs.replace(SETTINGS, close_seconds=0.05), build=workshop)
    call = asyncio.ensure_future(outcome(provider.complete(ask("x"))))
    await provider.start()
    await until(workshop.engines[0].entered)
    await provider.close()
    workshop.engines[0].gate.set()
    await asyncio.gather(call, return_exceptions=True)
    await provider.close()


async def test_closing_an_engine_that_never_started_is_free() -> None:
    """A provider that was only made has nothing to end."""
    workshop = Workshop()
    await VllmProvider(SETTINGS, build=workshop).close()
    assert workshop.engines == []


def test_one_provider_serves_several_loops() -> None:
    """Each answer goes to the loop that asked, one after the other or at once."""
    provider = VllmProvider(SETTINGS, build=Workshop())

    async def one(text: str) -> str:
        return (await provider.complete(ask(text))).completion.text

    assert [asyncio.run(one(text)) for text in "ab"] == ["a", "b"]
    asyncio.run(provider.close())


async def test_abort_that_fails_buries_the_engine() -> None:
    """An engine that cannot forget a request is not to be trusted with the others."""
    workshop = Workshop(lambda engine: engine.endless.update("01"))
    provider = VllmProvider(SETTINGS, build=workshop)
    calls = [asyncio.ensure_future(provider.complete(ask(text))) for text in "01"]
    await provider.start()
    await until(workshop.engines[0].entered)
    workshop.engines[0].unforgetting = True
    calls[0].cancel()
    assert "lost count" in str(await outcome(calls[1]))
    assert workshop.engines[0].closed == 1
    await provider.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_thread_that_broke_down_refuses_at_once() -> None:
    """Should the thread end by itself, nobody waits for an answer that cannot come."""
    workshop = Workshop()
    workshop.prepare = lambda engine: setattr(engine, "step", interrupted)
    provider = VllmProvider(SETTINGS, build=workshop)
    assert (await outcome(provider.complete(ask("x")))).code == "engine_closed"
    assert (await outcome(provider.complete(ask("y")))).code == "engine_closed"
    await provider.close()


def interrupted() -> list[tuple[int, Outcome]]:
    """End the thread as nothing but the interpreter would."""
    raise SystemExit
