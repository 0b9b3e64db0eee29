"""The examples in the docstrings say what the functions do."""

import doctest
import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

import analysis

NAMES = sorted(
    module.name
    for module in pkgutil.walk_packages(analysis.__path__, "analysis.")
    if not module.name.endswith("__main__")
)


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """Return a module's docstrings that hold examples."""
    return [found for found in doctest.DocTestFinder().find(module) if found.examples]


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_true(name: str) -> None:
    """Run line by line, as a reader would."""
    runner = doctest.DocTestRunner()
    said: list[str] = []
    for example in examples(import_module(name)):
        runner.run(example, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_there_are_examples() -> None:
    """An empty search would pass everything."""
    assert sum(len(examples(import_module(name))) for name in NAMES) >= 60


@pytest.mark.parametrize(
    "name",
    [
        "accumulation", "agreement", "auroc", "comparison", "correction", "correlation", "leakage", "permutation",
        "rates", "ratios", "resampling",
    ],
)  # fmt: skip
def test_what_one_would_import_shows_how(name: str) -> None:
    """Of every module of statistics, most public functions have an example."""
    module = import_module(f"analysis.{name}")
    public = [
        function
        for function in vars(module).values()
        if getattr(function, "__module__", "") == module.__name__
        and callable(function)
        and not isinstance(function, type)
        and not function.__name__.startswith("_")
    ]
    shown = [function for function in public if ">>>" in (function.__doc__ or "")]
    assert len(shown) * 2 > len(public), sorted({function.__name__ for function in public if function not in shown})
