"""Where something stands in a TOML file."""

import pytest

from bench.filelines import line_of

TEXT = """\
name = "s"
models = [
  "a",  # not "b"
  "b",
]

[budget]
usd = 1
[budget.model."gpt-5.5"]
usd = 2
[budget.model.'odd.name']
tokens = 3
[modes]
model = { "a" = "batch" }
[[rules]]
words.deep = 1
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("name",), 1),
        (("budget",), 7),
        (("budget", "usd"), 8),
        (("budget", "model"), 9),
        (("budget", "model", "gpt-5.5", "usd"), 10),
        (("budget", "model", "odd.name"), 11),
        (("budget", "model", None, "tokens"), 12),
        (("budget", "model", "absent"), 7),
        (("modes", "model", "a"), 14),
        (("rules", "words", "deep"), 16),
        (("absent",), None),
        (("usd",), None),
    ],
)
def test_names_lead_to_the_line_on_which_they_stand(keys: tuple[str | None, ...], line: int | None) -> None:
    """Or to the table that they would stand in; a field of one table is none of another."""
    assert line_of(TEXT, keys) == line


@pytest.mark.parametrize(("value", "nth", "line"), [("a", 1, 3), ("b", 1, 3), ("b", 2, 4), ("c", 1, 2), ("a", 2, 2)])
def test_a_text_in_a_list_is_found_on_its_own_line(value: str, nth: int, line: int) -> None:
    """As often as it stands there; what is not there is the list's."""
    assert line_of(TEXT, ("models",), value=value, nth=nth) == line


def test_what_stands_behind_the_list_is_not_in_it() -> None:
    """The next assignment ends it."""
    assert line_of('a = ["x"]\nb = ["y"]\n', ("a",), value="y") == 1
