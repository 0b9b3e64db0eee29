"""Catalogue layers: raw tables read from files and laid over one another, field by field. No types, no checks.

Must not know: what the fields mean, except which of them belong to one exact model.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import UserError

SHIPPED: Final = "catalog.toml"
IDENTITY: Final = ("provider", "model")
OF_ONE_MODEL: Final = ("price", "batch_price", "price_date", "price_source", "retired", "note")

Table = Mapping[str, object]


class Layer(msgspec.Struct, frozen=True):
    """One source of tables; `name` is how messages call it."""

    name: str
    providers: dict[str, Table]
    models: dict[str, Table]


class Found(msgspec.Struct, frozen=True):
    """A merged table and the last layer that touched it."""

    table: Table
    layer: str


def shipped_layer() -> Layer:
    """Return the tables shipped with this package."""
    return layer(SHIPPED, _parse(files("providers").joinpath(SHIPPED).read_text("utf-8"), SHIPPED))


def file_layer(path: Path) -> Layer:
    """Return the tables of a user's file; raises UserError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the catalogue file: {error}", where=str(path)) from None
    return layer(str(path), _parse(text, str(path)))


def layer(name: str, tables: Table) -> Layer:
    """Return the tables of a parsed file; raises UserError."""
    unknown = sorted(set(tables) - {"provider", "model"})
    if unknown:
        raise UserError(
            f"unknown table [{unknown[0]}]", where=name, mend="the tables are [provider.NAME] and [model.ALIAS]"
        )
    return Layer(name, _tables(tables, "provider", name), _tables(tables, "model", name))


def merged(layers: Iterable[tuple[str, Mapping[str, Table]]]) -> dict[str, Found]:
    """Return every table with later layers laid over earlier ones."""
    found: dict[str, Found] = {}
    for name, tables in layers:
        for key, table in tables.items():
            under = found[key].table if key in found else {}
            found[key] = Found(_overlaid(under, table), name)
    return found


def _overlaid(under: Table, over: Table) -> Table:
    if any(field in under and field in over and under[field] != over[field] for field in IDENTITY):
        under = {field: value for field, value in under.items() if field not in OF_ONE_MODEL}
    low, high = under.get("limits"), over.get("limits")
    limits = {"limits": {**low, **high}} if isinstance(low, dict) and isinstance(high, dict) else {}
    return {**under, **over, **limits}


def _tables(tables: Table, kind: str, where: str) -> dict[str, Table]:
    try:
        found: dict[str, Table] = msgspec.convert(tables.get(kind, {}), dict[str, dict[str, object]])
    except msgspec.ValidationError:
        raise UserError(f"[{kind}] must hold tables", where=where, mend=f"write [{kind}.NAME]") from None
    return found


def _parse(text: str, where: str) -> Table:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"not valid TOML: {error}", where=where) from None
