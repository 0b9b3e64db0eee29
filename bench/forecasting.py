"""Feeds the forecast: the design's questions, the catalogue's tariffs, and what the store has seen."""

from contextlib import suppress
from pathlib import Path

from bench.estimate import Line, Seen, Tariff, forecast
from bench.modes import choose_modes, lacks, sweep_steps
from bench.run import Prepared, routes
from engine.database import open_reader
from engine.errors import StoreError
from instruments.reader import plan


async def forecast_sweep(prepared: Prepared) -> list[Line]:
    """Return the forecast of a prepared sweep."""
    limits = {alias: route.limits for alias, route in routes(prepared).items()}
    tariffs = {
        alias: Tariff(price=card.price, batch_price=None if lacks(card) else card.batch_price, limits=limits[alias])
        for alias, card in prepared.catalog.cards.items()
        if alias in limits
    }
    seen: dict[tuple[str, str], Seen] = {}
    with suppress(StoreError):
        seen = await _seen(prepared.store_path)
    choices = choose_modes(prepared.loaded, sweep_steps(prepared.design), prepared.catalog.cards)
    return forecast(prepared.design, plan(prepared.design), tariffs, seen, choices)


async def _seen(path: Path) -> dict[tuple[str, str], Seen]:
    connection = await open_reader(path)
    try:
        rows = await connection.execute_fetchall(
            "SELECT r.stage, r.alias, count(*), avg(d.input_tokens), avg(d.output_tokens)"
            " FROM request r JOIN completion d ON d.request_id = r.id GROUP BY r.stage, r.alias"
        )
    finally:
        await connection.close()
    return {(row[0], row[1]): Seen(calls=row[2], input_tokens=row[3], output_tokens=row[4]) for row in rows}
