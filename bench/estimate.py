"""What a sweep will ask, take and cost, before anything is sent. Pure: numbers in, a forecast out.

Prompts of root stages are measured as they will be sent. What follows from answers is estimated from answers: from what
the store has already seen of that model and stage where there is something, else from typical lengths. Rounds of
accumulation carry a memory that grows by about one answer's additions a round, so their prompts grow with the round.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from bench.modes import Choice, Key, Mode
from engine.ledger import DOLLARS, TOKENS, ZERO, Amount, Cap, Scope
from engine.limits import DAY, MINUTE, RateLimits
from engine.money import FREE, Price, cost_nano
from engine.request import TYPICAL_BYTES_PER_TOKEN, Usage, input_token_estimate
from instruments.instrument import Ask, Design, Stage
from instruments.reader import FOLLOWS, count_asks

SAMPLED_PROMPTS: Final = 200
# Typical tokens where a store has seen nothing yet; answers of current chat models to these prompts (our assumption).
TYPICAL_OUTPUT: Final[Mapping[Stage, int]] = {
    Stage.PROBE: 700,
    Stage.PROBE_JUDGE: 1100,
    Stage.TASK: 420,
    Stage.AUDIT: 900,
    Stage.JUDGE: 1000,
    Stage.ACCUM: 500,
}
# What a follow-up's prompt holds besides the answer that it is about (instructions, facts, profile).
FIXED_INPUT: Final[Mapping[Stage, int]] = {Stage.PROBE_JUDGE: 900, Stage.AUDIT: 300, Stage.JUDGE: 850}
MEMORY_GROWTH: Final = 120


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has seen of one stage and model: calls, and mean tokens of a call."""

    calls: int
    input_tokens: float
    output_tokens: float


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a store has of one stage and model of the sweep; counts are cells.

    Attributes:
        pending: planned or under way; answered: answered, read or not; read: read; failed: failed for good.
        nano: paid for them.
    """

    pending: int = 0
    answered: int = 0
    read: int = 0
    failed: int = 0
    nano: int = 0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of one stage on one model.

    Attributes:
        calls: of the whole design; answered and failed of them will not be sent again, and left can still be sent.
        paid_nano: what has been paid for the stage on the model.
        worst_tokens, worst_nano: about what one call sets aside of every cap before it is sent.
        input_tokens, output_tokens: of all calls that are left, together; so are cost and time.
        learned: the figures come from `learned` calls that the store has seen; 0 is an assumption.
        stream_nano, batch_nano: cost of sending one by one and through the batch API; None where there is no price.
        seconds: what the rate limits make it take at least when it is streamed; where none are known, what it takes at
            the measured pace; None without either.
        measured: day on which that pace was measured, empty where the rate limits count.
        mode, why: how it is sent, and in a few words why, where the sweep file does not say it itself.
        waves: batches one after the other until its last has ended, those that it waits for included; 0 if streamed.
        batch_seconds: what the providers may take at most for these; None if streamed.
    """

    stage: str
    alias: str
    calls: int
    input_tokens: int
    output_tokens: int
    learned: int
    stream_nano: int | None
    batch_nano: int | None
    seconds: float | None
    mode: Mode
    why: str
    waves: int
    batch_seconds: float | None
    measured: str = ""
    answered: int = 0
    failed: int = 0
    left: int = 0
    paid_nano: int = 0
    worst_tokens: int = 0
    worst_nano: int = 0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a model was measured to answer, and on which day."""

    calls_per_s: float
    output_tokens_per_s: float
    day: str


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """What a model charges and allows, and how fast it was measured to be."""

    price: Price | None
    batch_price: Price | None
    limits: RateLimits
    pace: Pace | None = None


def forecast(
    design: Design,
    asks: Iterable[Ask],
    tariffs: Mapping[str, Tariff],
    seen: Mapping[tuple[str, str], Seen],
    choices: Mapping[Key, Choice],
    done: Mapping[tuple[str, str], Done] | None = None,
) -> list[Line]:
    """Return one line per stage and model, in the order of the stages.

    Args:
        design: the sweep's design.
        tariffs: what every model charges and allows, by alias.
        asks: root questions; the first `SAMPLED_PROMPTS` of each stage and model are measured.
        seen: what the store knows, by (stage, alias).
        choices: how every stage is sent on every model, by (alias, stage).
        done: what the store has of this sweep, by (stage, alias).
    """
    measured, had = _measure(asks), done or {}
    counts = count_asks(design)
    lines = []
    for (stage, alias), calls in sorted(counts.items(), key=lambda item: (list(Stage).index(item[0][0]), item[0][1])):
        mine, left = had.get((stage.value, alias), Done()), calls_left(design, stage, alias, counts, had)
        known = seen.get((stage.value, alias))
        each_input, each_output = _tokens(design, stage, alias, measured, seen)
        usage = Usage(input_tokens=round(each_input * left), output_tokens=round(each_output * left))
        tariff, choice = tariffs[alias], choices[alias, stage.value]
        worst = _worst(each_input, design.settings[stage].max_tokens)
        seconds, day = _time(tariff, left, usage)
        lines.append(
            Line(
                stage=stage.value,
                alias=alias,
                calls=calls,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                learned=known.calls if known else 0,
                stream_nano=_cost(tariff.price, usage),
                batch_nano=_cost(tariff.batch_price, usage),
                seconds=seconds,
                mode=choice.mode,
                why=choice.why,
                waves=choice.waves,
                batch_seconds=choice.seconds if choice.mode is Mode.BATCH else None,
                measured=day if choice.mode is Mode.STREAM else "",
                answered=mine.answered,
                failed=mine.failed,
                left=left,
                paid_nano=mine.nano,
                worst_tokens=worst.input_tokens + worst.output_tokens,
                worst_nano=_cost(tariff.price, worst) or 0,
            )
        )
    return lines


def calls_left(
    design: Design,
    stage: Stage,
    alias: str,
    counts: Mapping[tuple[Stage, str], int],
    done: Mapping[tuple[str, str], Done],
) -> int:
    """Return how many calls of a stage on a model a run can still send.

    A question about an answer is asked when that answer is read: it is left if it is planned already, or if the answer
    is still to be read.
    """
    mine = done.get((stage.value, alias), Done())
    left = max(0, counts[stage, alias] - mine.answered - mine.failed)
    if stage in FOLLOWS:
        parents = [(FOLLOWS[stage], subject) for subject in _subjects(design, stage, alias)]
        open_parents = sum(_open(counts.get(key, 0), done.get((key[0].value, key[1]), Done())) for key in parents)
        return min(left, mine.pending + open_parents)
    return left


def _open(calls: int, done: Done) -> int:
    return max(0, calls - done.read - done.failed)


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """A cap that will not do for what is left of its scope; amounts in nano-dollars, or tokens.

    Attributes:
        used: so far; set aside for batches, too. needed: forecast of what is left.
        call: about what one call sets aside before it is sent; the last one must still find so much.
    """

    scope: str
    unit: str
    cap: int
    used: int
    needed: int
    call: int


def shortfalls(
    lines: Sequence[Line], providers: Mapping[str, str], sweep: str, caps: Mapping[Scope, Cap],
    used: Mapping[Scope, Amount],
) -> list[Shortfall]:  # fmt: skip
    """Return the caps under which a run will end: too low for what is forecast, or for what the last call sets aside.

    Args:
        lines: the forecast.
        providers: of every model, by alias.
        sweep: the sweep's name.
        caps: the file's.
        used: what has been used of every scope so far.
    """
    found = []
    for scope, cap in caps.items():
        mine = [line for line in lines if line.left and scope in _scopes(line, providers, sweep)]
        had = used.get(scope, ZERO)
        found += [
            short
            for short in (_in_dollars(scope, cap, had, mine), _in_tokens(scope, cap, had, mine))
            if short is not None and short.used + max(short.needed, short.call) > short.cap
        ]
    return found


def _in_dollars(scope: Scope, cap: Cap, used: Amount, lines: Sequence[Line]) -> Shortfall | None:
    needed, call = total_nano(lines, chosen_nano), max((line.worst_nano for line in lines), default=0)
    if cap.nano is None or not needed:
        return None
    return Shortfall(scope=str(scope), unit=DOLLARS, cap=cap.nano, used=used.nano, needed=needed, call=call)


def _in_tokens(scope: Scope, cap: Cap, used: Amount, lines: Sequence[Line]) -> Shortfall | None:
    needed = sum(line.input_tokens + line.output_tokens for line in lines)
    call = max((line.worst_tokens for line in lines), default=0)
    if cap.tokens is None or not needed:
        return None
    return Shortfall(scope=str(scope), unit=TOKENS, cap=cap.tokens, used=used.tokens, needed=needed, call=call)


def _scopes(line: Line, providers: Mapping[str, str], sweep: str) -> set[Scope]:
    names = {"sweep": sweep, "provider": providers[line.alias], "model": line.alias, "stage": line.stage}
    return {Scope(kind, name) for kind, name in names.items()}


def total_nano(lines: Iterable[Line], cost: Callable[[Line], int | None]) -> int:
    """Return the sum of a cost over lines, lines without a price left out."""
    return sum(cost(line) or 0 for line in lines)


def chosen_nano(line: Line) -> int | None:
    """Return what a line costs as it is sent; a batch whose price is not known counts as if it were streamed."""
    return line.batch_nano if line.mode is Mode.BATCH and line.batch_nano is not None else line.stream_nano


def stream_seconds(lines: Iterable[Line]) -> float | None:
    """Return what the streamed lines take, most often at least: models work beside each other, stages not."""
    sums: dict[str, float] = {}
    for line in lines:
        if line.mode is Mode.STREAM and line.seconds is not None:
            sums[line.alias] = sums.get(line.alias, 0.0) + line.seconds
    return max(sums.values(), default=None)


def _measure(asks: Iterable[Ask]) -> dict[tuple[Stage, str], float]:
    """Return the mean estimated input tokens of the first prompts of every stage and model."""
    sums: dict[tuple[Stage, str], tuple[int, int]] = {}
    for ask in asks:
        number, tokens = sums.get((ask.stage, ask.alias), (0, 0))
        if number < SAMPLED_PROMPTS:
            size = sum(len(message.content.encode()) for message in ask.messages)
            sums[ask.stage, ask.alias] = (number + 1, tokens + input_token_estimate(size, len(ask.messages)))
    return {key: tokens / number for key, (number, tokens) in sums.items()}


def _tokens(
    design: Design,
    stage: Stage,
    alias: str,
    measured: Mapping[tuple[Stage, str], float],
    seen: Mapping[tuple[str, str], Seen],
) -> tuple[float, float]:
    """Return mean input and output tokens of one call."""
    if known := seen.get((stage.value, alias)):
        return known.input_tokens, known.output_tokens
    output = _output(design, stage, alias, seen)
    if stage is Stage.ACCUM:
        # Round t reads what t - 1 rounds have written and writes it all again.
        growth = MEMORY_GROWTH * (design.rounds - 1) / 2
        return measured.get((stage, alias), 0.0) + growth, output + growth
    if stage in FOLLOWS:
        answers = [_output(design, FOLLOWS[stage], subject, seen) for subject in _subjects(design, stage, alias)]
        return FIXED_INPUT[stage] + sum(answers) / len(answers), output
    return measured.get((stage, alias), 0.0), output


def _subjects(design: Design, stage: Stage, alias: str) -> tuple[str, ...]:
    return (alias,) if stage is Stage.AUDIT else design.subjects


def _output(design: Design, stage: Stage, alias: str, seen: Mapping[tuple[str, str], Seen]) -> float:
    if known := seen.get((stage.value, alias)):
        return known.output_tokens
    return min(TYPICAL_OUTPUT[stage], design.settings[stage].max_tokens)


def _worst(each_input: float, allowance: int) -> Usage:
    """Return what one call may use: every byte of its prompt a token, and its whole allowance."""
    return Usage(input_tokens=round(each_input * TYPICAL_BYTES_PER_TOKEN), output_tokens=allowance)


def _cost(price: Price | None, usage: Usage) -> int | None:
    if price is None:
        return None
    return 0 if price == FREE else cost_nano(price, usage)


def _time(tariff: Tariff, calls: int, usage: Usage) -> tuple[float | None, str]:
    """Return the seconds of some calls, and the day of the measurement that they rest on."""
    seconds, pace = _seconds(tariff.limits, calls, usage), tariff.pace
    if seconds is not None or pace is None:
        return seconds, ""
    # Longer answers than those that were measured take longer; of shorter ones that is not known.
    return max(calls / pace.calls_per_s, usage.output_tokens / pace.output_tokens_per_s), pace.day


def _seconds(limits: RateLimits, calls: int, usage: Usage) -> float | None:
    """Return the least time that the tightest limit allows."""
    used = (
        (limits.requests, calls, MINUTE),
        (limits.requests_per_day, calls, DAY),
        (limits.input_tokens, usage.input_tokens, MINUTE),
        (limits.output_tokens, usage.output_tokens, MINUTE),
        (limits.tokens, usage.input_tokens + usage.output_tokens, MINUTE),
    )
    return max((amount / limit * window for limit, amount, window in used if limit is not None), default=None)
