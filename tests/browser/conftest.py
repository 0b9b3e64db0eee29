"""A real browser (Debian's chromium, headless) and a real server process for the labelling page."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
COMMAND = (sys.executable, "-c", "from bench.cli import main; main()", "annotate", "serve")
LINK = re.compile(r"^(?P<annotator>.+): (?P<url>http://127\.0\.0\.1:\d+/#\S+)$")
PATIENCE_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running page: one private link for each annotator."""

    links: dict[str, str]
    process: subprocess.Popen[str]

    def stop(self) -> str:
        """Stop it as Ctrl-C would, and return what else it printed."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=PATIENCE_SECONDS)[0]


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium here: `apt-get install chromium` to test the labelling page in a browser")
    return path


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator["Browser"]:
    """One headless browser for a module's tests; each opens its own context.

    Playwright's plain interface keeps an event loop running in this thread for as long as it is open: past its own
    module, no other test could start one.
    """
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here: install the `dev` extra")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start `mirage annotate serve` for a store and some annotators; it is stopped at the end."""
    running: list[subprocess.Popen[str]] = []

    def start(store: Path, annotators: Sequence[str] = ("anna",), *options: str, port: int = 0) -> Served:
        named = [part for annotator in annotators for part in ("--annotator", annotator)]
        process = subprocess.Popen(
            [*COMMAND, str(store), *named, "--port", str(port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in annotators]
        links = {match["annotator"]: match["url"] for line in lines if (match := LINK.match(line))}
        assert len(links) == len(annotators), lines
        return Served(links=links, process=process)

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
