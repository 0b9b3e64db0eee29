"""The work behind every wire format: answer a call, count its tokens, price it, write it on the bill. No socket.

Batches use the same desk, with a discount and a batch id, so that a call costs and says the same however it was sent.
"""

from collections.abc import Callable
from typing import Final

from bench.simulator.answers import Speaker, Spoken, render
from bench.simulator.bill import Bill
from bench.simulator.config import Config
from bench.simulator.faults import Fault
from bench.simulator.tokens import PrefixCache, count, count_prompt, cut
from bench.simulator.wire import REFUSAL_TEXT, Answer, Call, Finish
from engine.money import Price, cost_nano
from engine.request import Usage

MUSING: Final = "Weighing what was said against what was not. "


class Desk:
    """Answers and charges; `clock` tells seconds since the epoch."""

    def __init__(self, config: Config, speaker: Speaker, bill: Bill, clock: Callable[[], float]) -> None:
        self.bill = bill
        self._config, self._speaker, self._clock = config, speaker, clock
        self._cache = PrefixCache()
        self._prices: dict[str, Price] = {}
        self._batch_prices: dict[str, Price | None] = {}
        self._drawn: dict[str, int] = {}

    def stage(self, call: Call) -> str:
        """Return the stage of the benchmark that a call belongs to."""
        return self._speaker.stage(call.system, call.user)

    def answer(self, call: Call, fault: Fault | None = None) -> Answer:
        """Return what is said to a call, within its allowance; some faults change what is said."""
        spoken = self._speaker.say(call.model, call.system, call.user, lambda: self._draw(call.hash))
        thinking = self._think(call)
        text, finish = _worded(spoken, call, fault)
        room = None if call.allowance is None else call.allowance - count(thinking)
        if room is not None and count(text) > room:
            text, finish = cut(text, room), Finish.LENGTH
        return Answer(
            text=text, finish=finish, thinking=thinking, usage=self._usage(call, text, thinking), stage=spoken.stage
        )

    def charge(
        self,
        call: Call,
        answer: Answer,
        *,
        dropped: bool = False,
        fault: str = "",
        batch: str = "",
        reply: str = "",
    ) -> int:
        """Write a call on the bill and return the number of the charge."""
        nano = self._batch_nano(call, answer.usage) if batch else cost_nano(self.price(call.model), answer.usage)
        return self.bill.charge(
            at=self._clock(),
            provider=call.provider,
            model=call.model,
            content=call.hash,
            stage=answer.stage,
            usage=answer.usage,
            nano=nano,
            outcome="dropped" if dropped else "delivered",
            fault=fault,
            batch=batch,
            reply=reply,
        )

    def price(self, model: str) -> Price:
        """Return what a model costs."""
        if model not in self._prices:
            self._prices[model] = self._config.price(model)
        return self._prices[model]

    def _batch_nano(self, call: Call, usage: Usage) -> int:
        if call.model not in self._batch_prices:
            self._batch_prices[call.model] = self._config.batch_price(call.model)
        price = self._batch_prices[call.model]
        if price is not None:
            return cost_nano(price, usage)
        return self._config.discounted(call.provider, cost_nano(self.price(call.model), usage))

    def gone(self, model: str) -> bool:
        """Whether a model does not exist any more."""
        return any(model.startswith(name) for name in self._config.gone)

    def _draw(self, content: str) -> int:
        """Return how often a content was answered before, in this process or by its bill; 0 where draws are off."""
        if not self._config.draws:
            return 0
        draw = max(self._drawn.get(content, 0), self.bill.times(content))
        self._drawn[content] = draw + 1
        return draw

    def _think(self, call: Call) -> str:
        if not call.thinking:
            return ""
        tokens = self._config.reasoning_tokens
        if call.allowance is not None:
            tokens = min(tokens, call.allowance)
        return cut(MUSING * (tokens * 4 // len(MUSING) + 1), tokens)

    def _usage(self, call: Call, text: str, thinking: str) -> Usage:
        reasoning = count(thinking)
        cached = 0
        if self._config.prefix_cache and call.cached_unit and call.system:
            cached = self._cache.cached(f"{call.provider}/{call.model}", call.system, call.cached_unit)
        return Usage(
            input_tokens=count_prompt(call.texts),
            cached_tokens=cached,
            output_tokens=reasoning + count(text),
            reasoning_tokens=reasoning,
        )


def _worded(spoken: Spoken, call: Call, fault: Fault | None) -> tuple[str, Finish]:
    text = render(spoken, call.shape)
    match fault:
        case Fault.EMPTY:
            return "", Finish.STOP
        case Fault.CUT:
            return cut(text, count(text) // 2), Finish.LENGTH
        case Fault.REFUSAL:
            return REFUSAL_TEXT, Finish.REFUSAL
        case Fault.FILTERED:
            return "", Finish.FILTERED
        case Fault.INTERRUPTED:
            return cut(text, count(text) // 2), Finish.INTERRUPTED
        case _:
            return text, Finish.STOP
