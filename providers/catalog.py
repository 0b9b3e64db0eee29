"""The model catalogue: the shipped file, the user's own, and the sweep file's tables, merged, typed and checked.

A later layer adds models and accounts, or changes single fields of known ones. A layer that changes which model an
alias means drops the old price with it: a price belongs to a model, not to a name. Every complaint names file, table
and key.
Must not know: keys themselves, transports, sweeps.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from engine.errors import UserError
from engine.money import FREE, Price, nano_from_usd
from providers.address import check_base_url
from providers.card import Limits, ModelCard, Rule
from providers.dialect import DIALECTS, Wire
from providers.layers import Table, file_layer, layer, merged, shipped_layer

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[\w.:/@+-]+")
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `([^`]*)`")
_KEY_FIELDS: Final = frozenset({"key", "api_key", "token", "secret", "password"})
_NUMERIC: Final = ("temperature", "top_p", "max_tokens")

T = TypeVar("T", bound=msgspec.Struct)
Amount = str | int | float


class _PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: Amount
    output: Amount
    cached: Amount | None = None
    cache_write: Amount | None = None


class _ProviderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dialect: str = "compatible"
    base_url: str = ""
    key_env: str = ""


class _ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    family: str
    provider: str
    model: str
    label: str = ""
    dialect: str = ""
    base_url: str = ""
    key_env: str = ""
    price: _PriceTable | None = None
    batch_price: _PriceTable | None = None
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
    usage_optional: bool = False


class Catalog(msgspec.Struct, frozen=True):
    """Every known model by alias."""

    cards: dict[str, ModelCard]

    def card(self, alias: str) -> ModelCard:
        """Return the card of `alias`.

        Raises:
            UserError: there is no such alias; close ones are named.
        """
        if alias in self.cards:
            return self.cards[alias]
        close = get_close_matches(alias, self.cards, n=3)
        mend = f"did you mean {' or '.join(close)}?" if close else "add a [model] table for it, with provider and model"
        raise UserError(f"the catalogue has no model {alias!r}", mend=mend)


def load_catalog(
    extra: Table | None = None, *, extra_name: str = "sweep file", user_file: Path | None = None
) -> Catalog:
    """Return the shipped catalogue with the user's layers over it.

    Args:
        extra: `{"provider": {name: {...}}, "model": {alias: {...}}}` as read from the sweep file.
        extra_name: how messages call that file.
        user_file: a TOML file with the same tables; ignored when it does not exist.

    Raises:
        UserError: a file, table or field is wrong; says which, and how to mend it.
    """
    layers = [shipped_layer()]
    if user_file is not None and user_file.exists():
        layers.append(file_layer(user_file))
    if extra:
        layers.append(layer(extra_name, extra))
    providers = merged((each.name, each.providers) for each in layers)
    accounts = {
        name: _provider(found.table, f'{found.layer}, [provider."{name}"]') for name, found in providers.items()
    }
    models = merged((each.name, each.models) for each in layers)
    cards = {
        alias: _card(alias, found.table, accounts, f'{found.layer}, [model."{alias}"]')
        for alias, found in models.items()
    }
    _check_accounts(cards)
    return Catalog(cards)


def _provider(table: Table, where: str) -> _ProviderTable:
    account = _converted(table, _ProviderTable, where)
    _check_names(account.dialect, account.base_url, account.key_env, where)
    return account


def _card(alias: str, table: Table, accounts: Mapping[str, _ProviderTable], where: str) -> ModelCard:
    entry = _converted(table, _ModelTable, where)
    account = accounts.get(entry.provider, _ProviderTable())
    dialect_name = entry.dialect or account.dialect
    base_url, key_env = entry.base_url or account.base_url, entry.key_env or account.key_env
    _check_names(dialect_name, base_url, key_env, where)
    card = ModelCard(
        alias=alias,
        label=entry.label or alias,
        family=entry.family,
        provider=entry.provider,
        model=entry.model,
        dialect_name=dialect_name,
        dialect=msgspec.structs.replace(DIALECTS[dialect_name], usage_optional=entry.usage_optional),
        base_url=base_url,
        key_env=key_env,
        price=_price(entry.price, where, "price"),
        batch_price=_price(entry.batch_price, where, "batch_price"),
        price_date=entry.price_date,
        price_source=entry.price_source,
        context=entry.context,
        max_output=entry.max_output,
        limits=entry.limits,
        thinking=entry.thinking,
        batch=entry.batch,
        rules=entry.rules,
        retired=entry.retired,
        note=entry.note,
    )
    _check_card(card, where)
    return card


def _price(table: _PriceTable | None, where: str, field: str) -> Price | None:
    if table is None:
        return None
    amounts: dict[str, int] = {}
    for part in _PriceTable.__struct_fields__:
        amount: Amount | None = getattr(table, part)
        if amount is not None:
            amounts[part] = _nano(amount, f"{where} {field}.{part}")
    return Price(**amounts)


def _nano(amount: Amount, where: str) -> int:
    """Return nano-dollars per million tokens; a float counts as its shortest decimal, which is what was typed."""
    try:
        return nano_from_usd(str(amount))
    except ValueError as error:
        raise UserError(
            f"not a price: {error}", where=where, mend='US dollars per million tokens, e.g. "1.25"'
        ) from None


def _converted(table: Table, kind: type[T], where: str) -> T:
    exposed = sorted(_KEY_FIELDS & set(table))
    if exposed:
        mend = "set key_env to the name of an environment variable that holds it, and delete the key from the file"
        raise UserError(f"keys must not stand in files (field {exposed[0]})", where=where, mend=mend)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise UserError(str(error).replace("`$.", "`"), where=where, mend=_mend(str(error), kind)) from None


def _mend(reason: str, kind: type[msgspec.Struct]) -> str:
    found = _UNKNOWN_FIELD.search(reason)
    if found is None:
        return ""
    fields = (
        *kind.__struct_fields__,
        *Limits.__struct_fields__,
        *Rule.__struct_fields__,
        *_PriceTable.__struct_fields__,
    )
    close = get_close_matches(found.group(1), fields, n=1)
    return f"did you mean {close[0]}?" if close else f"the fields are {', '.join(kind.__struct_fields__)}"


def _check_names(dialect: str, base_url: str, key_env: str, where: str) -> None:
    if dialect not in DIALECTS:
        raise UserError(f"unknown dialect {dialect!r}", where=where, mend=f"one of {', '.join(DIALECTS)}")
    if base_url:
        check_base_url(base_url, where=where)
    if key_env and not _ENV_NAME.fullmatch(key_env):
        mend = "it is the name of an environment variable, e.g. OPENAI_API_KEY, not the key itself"
        raise UserError("key_env is not a variable's name", where=where, mend=mend)


def _check_card(card: ModelCard, where: str) -> None:
    for kind, name in (("model name", card.model), ("alias", card.alias), ("provider name", card.provider)):
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} cannot be a {kind}", where=where, mend="use letters, digits and . _ : / @ + -")
    if card.dialect.wire is not Wire.IN_PROCESS and not card.base_url:
        mend = f'add base_url here or in [provider."{card.provider}"]'
        raise UserError(f"no address for provider {card.provider!r}", where=where, mend=mend)
    if card.dialect.usage_optional and card.price != FREE:
        mend = (
            'a model that is paid for must report its tokens; for a free one set price = { input = "0", output = "0" }'
        )
        raise UserError("usage_optional needs a price of zero", where=where, mend=mend)
    for number, rule in enumerate(card.rules, start=1):
        if rule.action == "clamp" and rule.parameter not in _NUMERIC:
            raise UserError(f"rule {number}: only {', '.join(_NUMERIC)} can be clamped", where=where)
        if rule.action in ("drop", "fill") and rule.parameter == "max_tokens":
            raise UserError(f"rule {number}: max_tokens can be clamped only", where=where)


def _check_accounts(cards: Mapping[str, ModelCard]) -> None:
    """One provider name is one account, and one of its models is spelled one way."""
    accounts: dict[str, ModelCard] = {}
    models: dict[tuple[str, str], ModelCard] = {}
    for card in cards.values():
        other = accounts.setdefault(card.provider, card)
        if (card.base_url, card.key_env, card.dialect.wire) != (other.base_url, other.key_env, other.dialect.wire):
            raise _clash(other, card, f"provider {card.provider!r}", "base_url, key_env or wire format")
        other = models.setdefault((card.provider, card.model), card)
        if card.dialect != other.dialect:
            raise _clash(other, card, f"model {card.model!r} of {card.provider!r}", "dialect or usage_optional")


def _clash(first: ModelCard, second: ModelCard, what: str, fields: str) -> UserError:
    return UserError(
        f"models {first.alias!r} and {second.alias!r} both mean {what} but differ in {fields}",
        where=f'[model."{second.alias}"]',
        mend="make them agree, or give one of them another provider name",
    )
