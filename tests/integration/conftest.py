"""One local engine for the whole session, in float32, where an answer does not depend on what is computed beside it."""

import asyncio
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from providers.vllm import VllmProvider, VllmSettings
from providers.vllm_engine import InProcessEngine, Outcome

LOCAL_SETTINGS = VllmSettings(dtype="float32", max_model_len=1024, max_num_seqs=32, kv_cache_bytes=256 << 20)


class WatchedEngine(InProcessEngine):
    """The real engine, which also counts its steps and dies of the next fault that a test has laid ready."""

    faults: deque[Exception] = deque()
    built: list["WatchedEngine"] = []

    def __init__(self, settings: VllmSettings) -> None:
        super().__init__(settings)
        self.steps = 0
        self.built.append(self)

    @property
    def unfinished(self) -> int:
        """Return how many requests vLLM itself still knows."""
        number: int = self._engine.get_num_unfinished_requests()
        return number

    def step(self) -> list[tuple[int, Outcome]]:
        """Compute one token for everyone, or die."""
        self.steps += 1
        outcomes = super().step()
        if self.faults:
            raise self.faults.popleft()
        return outcomes


@pytest.fixture(scope="session")
def local_settings() -> VllmSettings:
    """Return the settings of the session's engine."""
    return LOCAL_SETTINGS


@pytest.fixture(scope="session")
def local() -> Iterator[VllmProvider]:
    """Return the session's local model; its engine starts with the first request and is shared by all tests."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed; `make setup` installs it")
    provider = VllmProvider(LOCAL_SETTINGS, build=WatchedEngine)
    yield provider
    asyncio.run(provider.close())


@pytest.fixture
async def watched(local: VllmProvider) -> type[WatchedEngine]:
    """Return the class that knows the session's engines, with one running."""
    await local.start()
    return WatchedEngine
