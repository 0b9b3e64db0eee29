"""Foreign text cannot drive a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.text import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("naïve 日本語 🙂", "naïve 日本語 🙂", id="letters of the world"),
        pytest.param("\x1b[31mred", "\\x1b[31mred", id="colour escape"),
        pytest.param("\x1b]0;title\x07", "\\x1b]0;title\\x07", id="title escape"),
        pytest.param("\x9b2J", "\\x9b2J", id="eight-bit escape"),
        pytest.param("a\rb", "a\\x0db", id="carriage return"),
        pytest.param("abc\u202egnp", "abc\\u202egnp", id="right-to-left override"),
        pytest.param("a\nb\tc", "a\nb\tc", id="line and tab stay"),
    ],
)
def test_only_harmless_characters_pass(text: str, shown: str) -> None:
    """Control and format characters are shown as escapes."""
    assert printable(text) == shown


def test_long_text_is_cut() -> None:
    """And says so."""
    assert printable("x" * 20, most=5) == "xxxx…"


@given(st.text())
def test_one_line_is_one_line_without_controls(text: str) -> None:
    """Whatever comes in."""
    shown = one_line(text)
    assert "\n" not in shown
    assert all(char.isprintable() or ord(char) > 0xA0 for char in shown)
