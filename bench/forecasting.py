"""Feeds the forecast: the design's questions, the catalogue's tariffs, what the store has seen, what was measured."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from bench.design import composer
from bench.estimate import Done, Line, Pace, Seen, Shortfall, Tariff, forecast, shortfalls
from bench.generating import generation_job, prepare_generation
from bench.manifest import Manifest, check_unchanged, modes_of
from bench.modes import choose_modes, lacks, sweep_steps
from bench.run import Prepared, routes
from bench.simulated import agreed, check_marks, marked
from bench.storeplace import store_place
from bench.sweepfile import LoadedGeneration, caps
from bench.throughput.measurements import Measurement, kept, pace_of, results_file
from bench.usednames import check_tables
from engine.database import explained, load_queries, open_reader
from engine.errors import UserError
from engine.ledger import UNCAPPED, Amount, Scope
from engine.money import FREE, worst_cost_nano
from engine.request import input_token_bound, prompt_bytes, request_key
from engine.store import Sweep
from instruments.instrument import Design
from instruments.reader import plan
from providers.card import ModelCard

_SWEEP: Final = "SELECT id, name, simulated, manifest, plan_hash, planned FROM sweep WHERE name = ?"
_SEEN: Final = (
    "SELECT r.stage, r.alias, count(*), avg(d.input_tokens), avg(d.output_tokens)"
    " FROM request r JOIN completion d ON d.request_id = r.id GROUP BY r.stage, r.alias"
)
# Cells of the design as it is now; a sweep may have had more personas, models or samples once.
_DONE: Final = (
    "SELECT c.stage, c.alias, sum(r.state IN ('planned', 'sent', 'in_doubt')), sum(r.state = 'settled'),"
    " sum(c.reading_status IS NOT NULL), sum(r.state = 'failed') FROM cell c JOIN request r ON r.id = c.request_id"
    " WHERE c.sweep_id = :sweep_id"
    " AND c.coords ->> 'model' IN (SELECT value FROM json_each(:subjects))"
    " AND c.coords ->> 'persona' IN (SELECT value FROM json_each(:personas))"
    " AND coalesce(c.coords ->> 'task', '') IN (SELECT value FROM json_each(:tasks))"
    " AND coalesce(c.coords ->> 'judge', '') IN (SELECT value FROM json_each(:judges))"
    " AND coalesce(c.coords ->> 'sample', 0) < :samples"
    " AND (coalesce(c.coords ->> 'round', 0) = 0 OR c.coords ->> 'persona' IN (SELECT value FROM json_each(:scripts)))"
    " GROUP BY c.stage, c.alias"
)
_SPENT: Final = (
    "SELECT provider, alias, stage, cost_nano + reserved_nano, tokens + reserved_tokens, cost_nano FROM spend"
    " WHERE sweep_id = ?"
)
_SHARED: Final = "SELECT key FROM request WHERE state = 'settled'"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep will ask, take and cost, and which caps will not do for it."""

    lines: tuple[Line, ...]
    short: tuple[Shortfall, ...]
    simulated: bool


class GenerationForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What having a model write personas may take.

    Attributes:
        calls, most_calls: if every first answer is accepted, and if every slot is drawn as often as it may.
        worst_nano: the most that one call can cost; 0 where the price is not known.
        cap_nano: the cap of the whole run, if it has one.
    """

    alias: str
    calls: int
    most_calls: int
    worst_nano: int
    cap_nano: int | None


class _Past(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds already: of any sweep, of this one by (stage, alias), and what this one's scopes have used."""

    seen: Mapping[tuple[str, str], Seen] = {}
    done: Mapping[tuple[str, str], Done] = {}
    used: Mapping[Scope, Amount] = {}


async def forecast_sweep(prepared: Prepared) -> Forecast:
    """Return the forecast of a prepared sweep.

    Raises:
        UserError: a run would refuse the sweep in its store, for the same reason.
    """
    prepared = await marked(prepared)
    past = await _past(prepared)
    limits = {alias: route.limits for alias, route in routes(prepared).items()}
    cards = {alias: card for alias, card in prepared.catalog.cards.items() if alias in limits}
    paces = _paces(cards.values())
    tariffs = {
        alias: Tariff(
            price=card.price,
            batch_price=None if lacks(card) else card.batch_price,
            limits=limits[alias],
            pace=paces.get(alias),
        )
        for alias, card in cards.items()
    }
    design = prepared.design
    choices = choose_modes(prepared.loaded, sweep_steps(design), prepared.catalog.cards)
    lines = forecast(design, plan(design), tariffs, past.seen, choices, past.done)
    providers = {alias: card.provider for alias, card in cards.items()}
    short = shortfalls(lines, providers, prepared.manifest.name, caps(prepared.loaded), past.used)
    return Forecast(lines=tuple(lines), short=tuple(short), simulated=prepared.manifest.simulated)


def forecast_generation(loaded: LoadedGeneration, store: Path | None) -> GenerationForecast:
    """Return what a generation of personas may take; it does not look into a store.

    Raises:
        UserError: anything in the file that cannot work.
    """
    prepared = prepare_generation(loaded, store=store_place(loaded, store))
    check_tables(loaded, prepared.catalog)
    generation = prepared.generation
    price = prepared.catalog.card(generation.subject).price or FREE
    requests = (cell.request for cell in generation_job(prepared).roots())
    worst = [
        worst_cost_nano(price, input_token_bound(prompt_bytes(each), len(each.messages)), each.decoding.max_tokens)
        for each in requests
    ]
    cap = caps(loaded).get(Scope("sweep", loaded.sweep.name), UNCAPPED)
    return GenerationForecast(
        alias=generation.subject,
        calls=len(worst),
        most_calls=len(worst) * generation.tries,
        worst_nano=max(worst, default=0),
        cap_nano=cap.nano,
    )


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


# ----- what the store holds


async def _past(prepared: Prepared) -> _Past:
    """Return what is in the store, nothing where there is none yet; refuse what a run would refuse."""
    path = prepared.store_path
    if not path.exists() or not path.stat().st_size:
        return _Past()
    connection = await open_reader(path)
    try:
        with explained(path):
            known = await _check_store(connection, prepared, path)
            seen = {
                (stage, alias): Seen(calls=calls, input_tokens=into, output_tokens=out)
                for stage, alias, calls, into, out in await _rows(connection, _SEEN)
            }
            if known is None:
                return _Past(seen=seen, done=await _shared(connection, prepared))
            used, paid = await _spent(connection, known)
            return _Past(seen=seen, done=await _done(connection, known, prepared.design, paid), used=used)
    finally:
        await connection.close()


async def _check_store(connection: aiosqlite.Connection, prepared: Prepared, path: Path) -> Sweep | None:
    """Return the sweep as the store knows it, None if it is new there."""
    rows = await _rows(connection, _SWEEP, (prepared.manifest.name,))
    fields = Sweep.__struct_fields__
    known = msgspec.convert(dict(zip(fields, rows[0], strict=True)), Sweep, strict=False) if rows else None
    if known is not None and known.simulated != prepared.manifest.simulated:
        prepared, known = await agreed(prepared, known)
    manifest: Manifest = prepared.manifest
    otherwise = load_queries()["answered_otherwise"]
    check_marks(await _rows(connection, otherwise, {"simulated": manifest.simulated}), manifest, path)
    if known is not None:
        check_unchanged(known, manifest, str(prepared.loaded.path))
    return known


async def _spent(
    connection: aiosqlite.Connection, known: Sweep
) -> tuple[dict[Scope, Amount], dict[tuple[str, str], int]]:
    """Return what every scope has used or set aside, and what was paid by (stage, alias)."""
    used: dict[Scope, Amount] = {}
    paid: dict[tuple[str, str], int] = {}
    for provider, alias, stage, nano, tokens, cost in await _rows(connection, _SPENT, (known.id,)):
        names = {"sweep": known.name, "provider": provider, "model": alias, "stage": stage}
        for scope in (Scope(kind, name) for kind, name in names.items()):
            before = used.get(scope, Amount(0, 0))
            used[scope] = Amount(before.nano + nano, before.tokens + tokens)
        paid[stage, alias] = paid.get((stage, alias), 0) + cost
    return used, paid


async def _done(
    connection: aiosqlite.Connection, known: Sweep, design: Design, paid: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], Done]:
    lists: dict[str, Iterable[str]] = {
        "subjects": design.subjects,
        "personas": design.personas,
        "scripts": design.scripts,
        "tasks": ("", *design.tasks),
        "judges": ("", *design.judges),
    }
    texts = {name: msgspec.json.encode(list(words)).decode() for name, words in lists.items()}
    rows = await _rows(connection, _DONE, {"sweep_id": known.id, "samples": design.samples, **texts})
    return {
        (stage, alias): Done(
            pending=pending, answered=answered, read=read, failed=failed, nano=paid.get((stage, alias), 0)
        )
        for stage, alias, pending, answered, read, failed in rows
    }


async def _shared(connection: aiosqlite.Connection, prepared: Prepared) -> dict[tuple[str, str], Done]:
    """Return which first questions of a new sweep other sweeps of the store have answered: these are not paid again."""
    answered = {row[0] for row in await _rows(connection, _SHARED)}
    if not answered:
        return {}
    compose = composer(prepared.design, prepared.catalog, modes_of(prepared.manifest))
    counts: dict[tuple[str, str], int] = {}
    for ask in plan(prepared.design):
        if request_key(compose(ask).request) in answered:
            counts[ask.stage.value, ask.alias] = counts.get((ask.stage.value, ask.alias), 0) + 1
    return {key: Done(answered=number) for key, number in counts.items()}


async def _rows(
    connection: aiosqlite.Connection, sql: str, values: Sequence[object] | Mapping[str, object] = ()
) -> list[Any]:
    return list(await connection.execute_fetchall(sql, values))
