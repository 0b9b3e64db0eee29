"""What the catalogue knows about one model: identity, price, limits, and rules for parameters that it rejects.

Frozen records only. Must not know: files, keys, transports.
"""

from typing import Literal

import msgspec

from engine.money import Price
from providers.dialect import Dialect

Scalar = bool | int | float | str | None
Parameter = Literal["max_tokens", "temperature", "top_p", "seed", "stop", "schema", "thinking", "effort"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an account may do with a model; None leaves a limit to the provider's own headers.

    Attributes:
        rpm, rpd: requests per minute and per day.
        itpm, otpm, tpm: input, output and all tokens per minute.
        concurrency: most calls on the wire.
        enqueued_tokens: most prompt tokens waiting in all live batches.
    """

    rpm: int | None = None
    rpd: int | None = None
    itpm: int | None = None
    otpm: int | None = None
    tpm: int | None = None
    concurrency: int = 32
    enqueued_tokens: int | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one decoding parameter must be changed for a model.

    Attributes:
        action: drop it; fill `value` in where it is unset; clamp it to [low, high]; rename a word by `words`.
        why: one clause, kept with every change.
        when: the rule applies only where every named parameter has this value.
        unless: the rule does not apply where any named parameter has this value.
    """

    parameter: Parameter
    action: Literal["drop", "fill", "clamp", "rename"]
    why: str
    value: Scalar = None
    low: float | None = None
    high: float | None = None
    words: dict[str, str] = {}
    when: dict[Parameter, Scalar] = {}
    unless: dict[Parameter, Scalar] = {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One decoding parameter that a model could not be given as wanted; stored with the plan."""

    parameter: str
    wanted: Scalar
    used: Scalar
    why: str


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalogue, complete.

    Attributes:
        alias: the name that sweeps use.
        label: the name that tables print.
        family: models of one family are not independent of each other.
        provider: the account's name; all cards of a provider share address and key.
        model: the exact name or snapshot that is asked for.
        dialect_name, dialect: how requests are spelled.
        base_url: address of the account, empty for in-process models.
        key_env: environment variable that holds the key, empty where none is wanted.
        price: standard price, or None when unknown.
        batch_price: price of the batch API, or None when unknown or there is none.
        price_date, price_source: when and where the price was read; whose it is when it is a relative's.
        context: longest prompt plus output in tokens, or None when unknown.
        max_output: longest output in tokens, or None when unknown.
        thinking: the reasoning switch where a sweep does not set it; None leaves the model's own default.
        batch: True when the provider's batch API takes this model.
        retired: day (YYYY-MM-DD) on which the provider stops serving it.
        note: what a reader of the catalogue should know.
    """

    alias: str
    label: str
    family: str
    provider: str
    model: str
    dialect_name: str
    dialect: Dialect
    base_url: str = ""
    key_env: str = ""
    price: Price | None = None
    batch_price: Price | None = None
    price_date: str = ""
    price_source: str = ""
    context: int | None = None
    max_output: int | None = None
    limits: Limits = Limits()
    thinking: bool | None = None
    batch: bool = False
    rules: tuple[Rule, ...] = ()
    retired: str = ""
    note: str = ""
