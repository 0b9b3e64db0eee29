"""The command as tests call it, and how property tests search: the same examples every time, wider on request."""

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

from bench.cli import main

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("MIRAGE_HYPOTHESIS", "steady"))


@pytest.fixture
def mirage(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run
