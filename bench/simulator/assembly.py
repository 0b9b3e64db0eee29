"""Puts the simulator together from its parts; used by the command and by tests that run it in their own process."""

import time
from pathlib import Path

from bench.simulator import batchcontrol, listing
from bench.simulator.answers import Speaker
from bench.simulator.anthropic import Anthropic
from bench.simulator.app import App
from bench.simulator.batches import Batches
from bench.simulator.bill import Bill
from bench.simulator.cast import load_cast
from bench.simulator.config import Config
from bench.simulator.control import Control
from bench.simulator.desk import Desk
from bench.simulator.dialects import DashScope, DeepSeek, Moonshot, Zhipu
from bench.simulator.gemini import Gemini
from bench.simulator.openai import OpenAI
from bench.simulator.phrases import load_phrases
from bench.simulator.population import Population
from bench.simulator.tables import load_counts
from bench.simulator.wire import Wire


def build(config: Config, state: Path, seed: int) -> App:
    """Return a simulator that is ready to serve; its bill is `state/bill.jsonl`."""
    population = Population(load_counts(), seed)
    cast = load_cast(_path(config.personas), _path(config.scripts))
    speaker = Speaker(population, cast, load_phrases(), disagreement=config.disagreement)
    wires: tuple[Wire, ...] = (
        OpenAI(strict=config.strict),
        Anthropic(strict=config.strict),
        Gemini(strict=config.strict),
        DeepSeek(strict=config.strict),
        DashScope(strict=config.strict),
        Zhipu(strict=config.strict),
        Moonshot(strict=config.strict),
    )
    app = App(config, Desk(config, speaker, Bill(state), time.time), wires, seed=seed)
    jobs = Batches(config.batches, app.desk, app.faults, time.time, seed=seed)
    batches = batchcontrol.routes(config, wires, jobs)
    for route in (Control(app, seed).route(), *listing.routes(config, wires), *batches):
        app.add(route)
    return app


def _path(text: str) -> Path | None:
    return Path(text) if text else None
