"""One simulator process for all tests of this folder that use a socket, and a population for those that do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from bench.simulator.answers import Speaker
from bench.simulator.cast import Cast, load_cast
from bench.simulator.launch import Running, running
from bench.simulator.phrases import Phrases, load_phrases
from bench.simulator.population import Population
from bench.simulator.tables import load_counts

CONFIG = """
keys = ["good", "slow", "busy"]
gone = ["retired-"]
reasoning_tokens = 10

[prices."*"]
input = "1.00"
output = "4.00"

[prices."gpt-4o-mini"]
input = "0.15"
output = "0.60"
cached = "0.075"

[limits."*"]
requests_per_minute = 6000

[limits."openai/tight-1"]
requests_per_minute = 1

[limits."anthropic/tight-1"]
requests_per_minute = 1

[limits."gemini/tight-1"]
requests_per_minute = 1

[limits."gemini/daily-1"]
requests_per_day = 1
"""


@pytest.fixture(scope="session")
def population() -> Population:
    return Population(load_counts())


@pytest.fixture(scope="session")
def cast() -> Cast:
    return load_cast()


@pytest.fixture(scope="session")
def phrases() -> Phrases:
    return load_phrases()


@pytest.fixture(scope="session")
def speaker(population: Population, cast: Cast, phrases: Phrases) -> Speaker:
    return Speaker(population, cast, phrases)


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("simulator")
    settings = folder / "settings.toml"
    settings.write_text(CONFIG)
    with running(folder / "state", config=settings) as found:
        yield found


@pytest.fixture
def break_next(simulator: Running) -> Iterator[Callable[..., None]]:
    """Let the next call whose prompt holds `contains` go wrong."""

    def rule(fault: str, contains: str, **more: object) -> None:
        reply = httpx.post(f"{simulator.address}/_sim/faults", json={"fault": fault, "contains": contains, **more})
        assert reply.status_code == 200, reply.text

    yield rule
    httpx.delete(f"{simulator.address}/_sim/faults")


@pytest.fixture
def settings_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return write
