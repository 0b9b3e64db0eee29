"""Feeds the forecast: the design's questions, the catalogue's tariffs, what the store has seen, what was measured."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bench.estimate import Line, Pace, Seen, Tariff, forecast
from bench.modes import choose_modes, lacks, sweep_steps
from bench.run import Prepared, routes
from bench.throughput.measurements import Measurement, kept, pace_of, results_file
from engine.database import open_reader
from engine.errors import StoreError, UserError
from instruments.reader import plan
from providers.card import ModelCard


async def forecast_sweep(prepared: Prepared) -> list[Line]:
    """Return the forecast of a prepared sweep."""
    limits = {alias: route.limits for alias, route in routes(prepared).items()}
    paces = _paces([card for alias, card in prepared.catalog.cards.items() if alias in limits])
    tariffs = {
        alias: Tariff(
            price=card.price,
            batch_price=None if lacks(card) else card.batch_price,
            limits=limits[alias],
            pace=paces.get(alias),
        )
        for alias, card in prepared.catalog.cards.items()
        if alias in limits
    }
    seen: dict[tuple[str, str], Seen] = {}
    with suppress(StoreError):
        seen = await _seen(prepared.store_path)
    choices = choose_modes(prepared.loaded, sweep_steps(prepared.design), prepared.catalog.cards)
    return forecast(prepared.design, plan(prepared.design), tariffs, seen, choices)


def _paces(cards: Iterable[ModelCard]) -> dict[str, Pace]:
    """Return how fast models really were when they were last measured, by alias."""
    measurements: tuple[Measurement, ...] = ()
    with suppress(UserError):  # a forecast does without
        measurements = kept(results_file()).measurements
    found = {card.alias: pace_of(card, measurements) for card in cards}
    return {
        alias: Pace(calls_per_s=each.calls_per_s, output_tokens_per_s=each.output_tokens_per_s, day=each.day)
        for alias, each in found.items()
        if each is not None and each.calls_per_s and each.output_tokens_per_s
    }


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
