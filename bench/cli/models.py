"""`mirage models`: what the catalogue knows, with the user's own layer over it."""

from pathlib import Path

import click


@click.command()
@click.option("--sweep", type=click.Path(path_type=Path), help="Include the models that this sweep file adds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def models(sweep: Path | None, *, as_json: bool) -> int:
    """List the models one can name in a sweep: provider, snapshot, prices and their date, limits."""
    import msgspec

    from bench.run import user_catalog
    from bench.sweepfile import load_sweep

    catalog = user_catalog(load_sweep(sweep) if sweep else None)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(list(catalog.cards.values())), indent=2).decode())
        return 0
    from rich.table import Column, Table

    from bench.text import one_line, wide_console
    from engine.money import Price, usd

    def price(known: Price | None) -> str:
        return f"{usd(known.input)} / {usd(known.output)}" if known else "unknown"

    table = Table(
        Column("alias", no_wrap=True), "family", "provider", "model", "USD per million in / out", "price of", "note"
    )
    for alias, card in catalog.cards.items():
        cells = (alias, card.family, card.provider, card.model, price(card.price), card.price_date, card.note)
        table.add_row(*(one_line(cell) for cell in cells))
    wide_console().print(table)
    return 0
