"""Starts the simulator as the separate process that it is, waits until it serves, and stops it again."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import UserError

PREFIXES: Final = {
    "openai": "/openai/v1",
    "anthropic": "/anthropic",
    "gemini": "/gemini",
    "deepseek": "/deepseek",
    "dashscope": "/dashscope/compatible-mode/v1",
    "zhipu": "/zhipu/api/paas/v4",
    "moonshot": "/moonshot/v1",
}
STOP_SECONDS: Final = 10
LOG: Final = "simulator.log"


class Ready(msgspec.Struct, frozen=True):
    """The line that the simulator prints when it serves."""

    port: int
    bill: str


class Running(msgspec.Struct, frozen=True):
    """A simulator that serves."""

    port: int
    bill: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """`http://127.0.0.1:port`, for the paths under `/_sim`."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, provider: str) -> str:
        """Return a provider's base address."""
        return self.address + PREFIXES[provider]

    def kill(self) -> None:
        """End the process the hard way, as a power cut would."""
        self.process.kill()
        self.process.communicate()


def start(state: Path, *, config: Path | None = None, seed: int = 0, port: int = 0) -> Running:
    """Start a simulator whose bill is in `state`; it stops by itself when this process is gone.

    Raises:
        UserError: it did not come up; says what it printed.
    """
    command = [sys.executable, "-m", "bench.simulator", "--with-parent", "--port", str(port), "--seed", str(seed)]
    command += ["--state", str(state)] + (["--config", str(config)] if config else [])
    state.mkdir(parents=True, exist_ok=True)
    log = state / LOG
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        process.communicate()
        said = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise UserError("the simulator did not start", where=str(state), mend=said or "see its settings")
    ready = msgspec.json.decode(line, type=Ready)
    return Running(ready.port, Path(ready.bill), process)


def stop(running: Running) -> None:
    """End a simulator gently; its bill is forced to the disk."""
    running.process.send_signal(signal.SIGTERM)
    try:
        running.process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()


@contextmanager
def running(state: Path, *, config: Path | None = None, seed: int = 0) -> Iterator[Running]:
    """Run a simulator for the length of a block."""
    simulator = start(state, config=config, seed=seed)
    try:
        yield simulator
    finally:
        stop(simulator)
