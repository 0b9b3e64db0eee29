"""Makes decoding parameters acceptable to a model, and says what was changed and why. Pure.

Called when a sweep is planned, so that the parameters in a request (and in its key) are those that are sent, and every
deviation from what the sweep asked for is on record. Order: the reasoning switch is taken from the card where the sweep
leaves it open, and respelled as an effort word where the dialect has no switch; the card's rules, in their order; what
the dialect cannot express is dropped; the output allowance is cut to what the model can produce. Must not know:
requests, prices.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, cast

import msgspec

from engine.request import Decoding
from providers.card import Change, ModelCard, Parameter, Rule, Scalar
from providers.dialect import Dialect, Structured, Thinking

SMALLEST_THINKING_ALLOWANCE: Final = 1024
# (spelling, switch) -> (effort word, why)
_AS_EFFORT: Final = {
    (Thinking.EFFORT, False): ("none", "this model has no thinking switch, only an effort word"),
    (Thinking.EFFORT, True): ("medium", "this model has no thinking switch, only an effort word"),
    (Thinking.LEVEL, False): ("minimal", "this model's thinking can be lowered, not switched off"),
    (Thinking.LEVEL, True): ("high", "this model has no thinking switch, only a level"),
}

_Step = tuple[Decoding, Change | None]


def adapt(card: ModelCard, decoding: Decoding) -> tuple[Decoding, tuple[Change, ...]]:
    """Return the decoding that `card`'s model can be given, with every change from `decoding`.

    Adapting the result again returns it unchanged.
    """
    steps: list[Callable[[Decoding], _Step]] = [lambda now: _switch_thinking(now, card.thinking)]
    steps.append(lambda now: _respell_thinking(now, card.dialect))
    steps += [_applied(rule) for rule in card.rules]
    steps += [partial(check, dialect=card.dialect) for check in _CAPABILITIES]
    steps.append(lambda now: _cut_allowance(now, card.max_output))
    changes: list[Change] = []
    for step in steps:
        decoding, change = step(decoding)
        if change is not None:
            changes.append(change)
    return decoding, tuple(changes)


def _switch_thinking(decoding: Decoding, switch: bool | None) -> _Step:
    if switch is None or decoding.thinking is not None or decoding.effort is not None:
        return decoding, None
    return _set(decoding, "thinking", switch, "the model's card says so")


def _respell_thinking(decoding: Decoding, dialect: Dialect) -> _Step:
    switch = decoding.thinking
    if switch is None or (dialect.thinking, switch) not in _AS_EFFORT:
        return decoding, None
    word, why = _AS_EFFORT[dialect.thinking, switch]
    word = decoding.effort or word
    used = msgspec.structs.replace(decoding, thinking=None, effort=word)
    return used, Change(parameter="thinking", wanted=switch, used=f"effort={word}", why=why)


def _applied(rule: Rule) -> Callable[[Decoding], _Step]:
    def step(decoding: Decoding) -> _Step:
        if not _applies(rule, decoding):
            return decoding, None
        return _set(decoding, rule.parameter, _ruled(rule, _get(decoding, rule.parameter)), rule.why)

    return step


def _applies(rule: Rule, decoding: Decoding) -> bool:
    return all(_get(decoding, name) == value for name, value in rule.when.items()) and not any(
        _get(decoding, name) == value for name, value in rule.unless.items()
    )


def _ruled(rule: Rule, value: Scalar) -> Scalar:
    """Return what the rule makes of a value; an unset parameter stays unset unless the rule fills it."""
    match rule.action:
        case "fill":
            return rule.value if value is None else value
        case "drop":
            return None
        case "rename" if isinstance(value, str):
            return rule.words.get(value, value)
        case "clamp" if isinstance(value, (int, float)):
            raised = value if rule.low is None else max(value, rule.low)
            return raised if rule.high is None else min(raised, rule.high)
        case _:
            return value


def _drop_seed(decoding: Decoding, dialect: Dialect) -> _Step:
    return (decoding, None) if dialect.seed else _set(decoding, "seed", None, "the API has no seed")


def _drop_effort(decoding: Decoding, dialect: Dialect) -> _Step:
    return (decoding, None) if dialect.effort else _set(decoding, "effort", None, "the API has no reasoning effort")


def _drop_thinking(decoding: Decoding, dialect: Dialect) -> _Step:
    if dialect.thinking is Thinking.NONE:
        return _set(decoding, "thinking", None, "the API has no thinking switch")
    if dialect.thinking is Thinking.BUDGET and decoding.thinking and decoding.max_tokens <= SMALLEST_THINKING_ALLOWANCE:
        return _set(decoding, "thinking", None, "thinking needs an output allowance above 1024 tokens")
    return decoding, None


def _weaken_schema(decoding: Decoding, dialect: Dialect) -> _Step:
    """Note an answer that is bound less than asked for; bound to any JSON object, it keeps the schema for `encode`."""
    if decoding.schema is None or dialect.structured is Structured.SCHEMA:
        return decoding, None
    wanted, why = "json_schema", f"the API offers {dialect.structured.value}, not json_schema"
    if dialect.structured is Structured.OBJECT:
        return decoding, Change(parameter="schema", wanted=wanted, used="json_object", why=why)
    used = msgspec.structs.replace(decoding, schema=None)
    return used, Change(parameter="schema", wanted=wanted, used=None, why=why)


def _cut_stops(decoding: Decoding, dialect: Dialect) -> _Step:
    most = dialect.max_stop
    if most is None or len(decoding.stop) <= most:
        return decoding, None
    kept = decoding.stop[:most]
    change = Change(
        parameter="stop", wanted=_quoted(decoding.stop), used=_quoted(kept), why=f"the API takes {most} stop strings"
    )
    return msgspec.structs.replace(decoding, stop=kept), change


def _cut_allowance(decoding: Decoding, most: int | None) -> _Step:
    if most is None or decoding.max_tokens <= most:
        return decoding, None
    return _set(decoding, "max_tokens", most, "the model cannot produce more")


def _get(decoding: Decoding, parameter: Parameter) -> Scalar:
    value = getattr(decoding, parameter)
    return (_quoted(value) if value else None) if isinstance(value, tuple) else cast("Scalar", value)


def _set(decoding: Decoding, parameter: Parameter, used: Scalar, why: str) -> _Step:
    wanted = _get(decoding, parameter)
    if used == wanted:
        return decoding, None
    value = () if parameter == "stop" and used is None else used
    shown = "json_schema" if parameter == "schema" else wanted
    change = Change(parameter=parameter, wanted=shown, used=used, why=why)
    return msgspec.structs.replace(decoding, **{parameter: value}), change


def _quoted(stops: tuple[str, ...]) -> str:
    return msgspec.json.encode(stops).decode()


_CAPABILITIES: Final = (_drop_seed, _drop_effort, _drop_thinking, _weaken_schema, _cut_stops)
