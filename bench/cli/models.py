"""`mirage models`: what the catalogue knows, with the user's own layer over it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.money import Price
    from providers.card import Limits, ModelCard


@click.command()
@click.option("--sweep", type=click.Path(path_type=Path), help="Include the models that this sweep file adds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def models(sweep: Path | None, *, as_json: bool) -> int:
    """List the models one can name in a sweep: provider, snapshot, prices and their date, limits.

    Limits are those that the catalogue knows; providers' replies and [limits] in a sweep file say more.
    """
    import msgspec

    from bench.run import user_catalog
    from bench.sweepfile import load_sweep

    catalog = user_catalog(load_sweep(sweep) if sweep else None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(list(catalog.cards.values())), indent=2).decode())
        return 0
    _show(list(catalog.cards.values()))
    return 0


def _show(cards: "Sequence[ModelCard]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    from bench.text import one_line
    from bench.wide import print_table

    heads = ("alias", "provider", "model", "USD/M in / out", "limits", "price of", "family")
    caption = "USD/M: US dollars for a million tokens"
    columns = (Column(head, no_wrap=True) for head in heads)
    table = Table(*columns, "note", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    for card in cards:
        money = (_price(card.price), _limits(card.limits), card.price_date)
        cells = (card.alias, card.provider, card.model, *money, card.family)
        table.add_row(*(one_line(cell) for cell in (*cells, card.note)))
    print_table(table, drop=("note", "family", "price of", "limits", "provider"))


def _price(known: "Price | None") -> str:
    from engine.money import usd

    return f"{usd(known.input)} / {usd(known.output)}" if known else "unknown"


def _limits(known: "Limits") -> str:
    """Return what an account may do with a model, as far as the catalogue knows."""
    minute = {"requests": known.rpm, "tokens in": known.itpm, "tokens out": known.otpm, "tokens": known.tpm}
    parts = [f"{_short(number)} {what} a minute" for what, number in minute.items() if number]
    parts += [f"{_short(known.rpd)} requests a day"] if known.rpd else []
    return ", ".join((*parts, f"{known.concurrency:,} at once"))


def _short(number: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return str(number)
