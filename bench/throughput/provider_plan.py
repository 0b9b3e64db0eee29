"""What `mirage bench providers` asks of whom, and what that may cost; everything that is known before the first call.

The questions are the benchmark's own tasks, so that answers are as long as those of a sweep.
"""

import os
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Final

import msgspec

from bench.modes import Mode, lacks
from bench.run import Job, prepare, sweep_job, user_catalog
from bench.simulator.wire import MARK
from bench.sweepfile import LimitTable, LoadedSweep, parse_sweep
from engine.cell import Cell
from engine.errors import ProviderError, UserError
from engine.money import FREE, NANO, worst_cost_nano
from engine.request import input_token_bound, prompt_bytes
from providers.card import ModelCard
from providers.dialect import Wire
from providers.registry import build_endpoint, check_keys

WHERE: Final = "mirage bench providers"
# The shipped personas, each with six tasks.
QUESTIONS: Final = 900
SWEEP: Final = """
name = "providers"
models = {models}
stages = ["task"]
mode = "{mode}"
samples = {samples}
[settings.task]
max_tokens = {max_tokens}
[budget]
usd = "{usd}"
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured.

    Attributes:
        models: aliases.
        calls: of each model and mode, a ramp included.
        cap_nano: the most that all of it together may cost.
        max_tokens: allowance of an answer.
        file: a sweep file whose accounts, limits, retries and batch settings count, or None.
    """

    models: tuple[str, ...]
    calls: int
    modes: tuple[Mode, ...]
    cap_nano: int
    max_tokens: int = 400
    file: LoadedSweep | None = None


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be measured.

    Attributes:
        simulated: a simulator answers at its address.
        worst_nano: what its calls in one mode cost at most, if each is answered once and uses up its allowance.
    """

    card: ModelCard
    simulated: bool
    worst_nano: int


async def look(plan: Plan) -> list[Subject]:
    """Check whatever can be checked for nothing; return what is to be measured.

    Raises:
        UserError: an unknown model, price or key, a model of this process, or an address that does not answer.
    """
    catalog = user_catalog(plan.file)
    cards = [catalog.card(alias) for alias in plan.models]
    for card in cards:
        if card.dialect.wire is Wire.IN_PROCESS:
            mend = "`mirage bench local` measures it"
            raise UserError(f"{card.alias} runs in this process", where="--models", mend=mend)
    check_keys(cards, os.environ)
    return [Subject(card=card, simulated=await _is_simulated(card), worst_nano=_worst(plan, card)) for card in cards]


def worst_nano(plan: Plan, subjects: Iterable[Subject]) -> int:
    """Return what everything could cost at most without a cap, retries aside."""
    return sum(
        each.worst_nano for each in subjects for mode in plan.modes if mode is Mode.STREAM or not lacks(each.card)
    )


def job_of(plan: Plan, aliases: tuple[str, ...], mode: Mode, left_nano: int, *, simulated: bool = False) -> Job:
    """Return the benchmark's tasks to these models as something to run, within what is left of the cap."""
    text = SWEEP.format(
        models=msgspec.json.encode(aliases).decode(),
        mode=mode.value,
        samples=ceil(plan.calls / QUESTIONS),
        max_tokens=plan.max_tokens,
        usd=_dollars(left_nano),
    )
    loaded = parse_sweep(text, Path(WHERE))
    if plan.file is not None:
        given = plan.file.sweep
        sweep = msgspec.structs.replace(
            loaded.sweep,
            provider=given.provider,
            model=given.model,
            limits={alias: table for alias, table in given.limits.items() if alias in aliases},
            batch=given.batch,
            retry=given.retry,
        )
        loaded = msgspec.structs.replace(loaded, sweep=sweep)
    return sweep_job(prepare(loaded, simulated=simulated))


def asking(job: Job, cells: list[Cell], store: Path) -> Job:
    """Return a job that asks just these questions."""
    return msgspec.structs.replace(job, store_path=store, roots=lambda: cells, expected={"task": len(cells)})


def limited(job: Job, alias: str, concurrency: int, left_nano: int) -> Job:
    """Return the job with so many calls at once, and with what is left of the cap."""
    sweep = job.loaded.sweep
    limits = msgspec.structs.replace(sweep.limits.get(alias, LimitTable()), concurrency=concurrency)
    budget = msgspec.structs.replace(sweep.budget, usd=_dollars(left_nano))
    changed = msgspec.structs.replace(sweep, limits={**sweep.limits, alias: limits}, budget=budget)
    return msgspec.structs.replace(job, loaded=msgspec.structs.replace(job.loaded, sweep=changed))


def questions(job: Job, calls: int) -> dict[str, list[Cell]]:
    """Return so many different questions to every model of a job, by alias."""
    found: dict[str, list[Cell]] = {}
    for cell in job.roots():
        mine = found.setdefault(cell.alias, [])
        if len(mine) < calls:
            mine.append(cell)
    return found


async def _is_simulated(card: ModelCard) -> bool:
    """Say whether a simulator answers at a model's address; it marks every reply, and never speaks TLS.

    Raises:
        UserError: nothing answers there, so that this cannot be known.
    """
    if not card.base_url.startswith("http://"):
        return False
    endpoint = build_endpoint(card, os.environ)
    try:
        reply = await endpoint.get("/models")
    except ProviderError as error:
        raise UserError(f"{card.provider} cannot be reached: {error}", where=card.base_url) from error
    finally:
        await endpoint.close()
    return reply.headers.get(MARK[0]) == MARK[1]


def _worst(plan: Plan, card: ModelCard) -> int:
    price = card.price or FREE
    cells = questions(job_of(plan, (card.alias,), Mode.STREAM, plan.cap_nano), plan.calls)[card.alias]
    requests = [cell.request for cell in cells]
    return sum(
        worst_cost_nano(price, input_token_bound(prompt_bytes(each), len(each.messages)), each.decoding.max_tokens)
        for each in requests
    )


def _dollars(nano: int) -> str:
    left = max(0, nano)
    return f"{left // NANO}.{left % NANO:09d}"
