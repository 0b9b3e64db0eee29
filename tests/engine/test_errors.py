"""Errors: a tree that its docstring draws, and one line for people."""

import re

import pytest

from engine import errors
from engine.errors import BudgetExhausted, ErrorClass, MirageError, ProviderError, StoreError, UserError


def test_the_docstring_draws_every_error_with_its_parent() -> None:
    """The tree in the module is the tree of the classes."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in str(errors.__doc__).splitlines():
        if found := re.match(r"([│├└─ ]*)([A-Z]\w+)(?: |$)", line):
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            if found[2].endswith("Error") or depth:
                drawn[found[2]] = path[depth - 1] if depth else "Exception"
    made = {
        name: each.__base__.__name__ for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, MirageError) and each.__base__ is not None
    }  # fmt: skip
    assert drawn == made


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(UserError("no such model"), "no such model", id="what"),
        pytest.param(UserError("no such model", where="a.toml:3"), "no such model (a.toml:3)", id="where"),
        pytest.param(UserError("no such model", mend="give another"), "no such model; give another", id="mend"),
        pytest.param(StoreError("full", where="x", mend="make space"), "full (x); make space", id="all three"),
        pytest.param(BudgetExhausted("sweep s", "tokens", 5, 3), "sweep s: needs 5 tokens, has 3", id="budget"),
        pytest.param(ProviderError(ErrorClass.RATE, "slow down"), "slow down", id="provider"),
    ],
)
def test_an_error_is_one_line(error: Exception, text: str) -> None:
    """What, where and how to mend."""
    assert str(error) == text


def test_an_error_of_a_provider_says_by_default_that_nothing_was_billed() -> None:
    """An adapter has to claim it."""
    error = ProviderError(ErrorClass.TRANSIENT, "x")
    assert (error.maybe_billed, error.retry_after, error.status, error.code) == (False, None, 0, "")
