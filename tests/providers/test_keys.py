"""Keys come from the environment, never show themselves, and are masked where a reply echoes them."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from providers.keys import MASK, SHORTEST_FRAGMENT, Secret, read_key, redact

KEY = "sk-live-0123456789abcdef0123"


def test_a_missing_key_names_its_variable_and_the_mend() -> None:
    """The message tells what to type."""
    with pytest.raises(UserError) as caught:
        read_key("OPENAI_API_KEY", {}, provider="openai")
    assert "openai" in str(caught.value)
    assert "export OPENAI_API_KEY=" in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", "\n"], ids=["empty", "spaces", "newline"])
def test_an_empty_key_counts_as_missing(text: str) -> None:
    """A variable that is set to nothing is not a key."""
    with pytest.raises(UserError, match="no API key"):
        read_key("K", {"K": text}, provider="p")


@pytest.mark.parametrize("text", [f"{KEY}\nx", f"{KEY} x", f"{KEY}\u00fc", f"{KEY}\x00"])
def test_a_key_that_no_header_may_carry_is_refused_without_showing_it(text: str) -> None:
    """Line breaks would end the header; the HTTP layer's own complaint would quote the key."""
    with pytest.raises(UserError) as caught:
        read_key("K", {"K": text}, provider="p")
    assert KEY not in str(caught.value)


def test_surrounding_white_space_is_not_part_of_a_key() -> None:
    """A trailing line break from a file is common."""
    assert read_key("K", {"K": f" {KEY}\n"}, provider="p").reveal() == KEY


def test_a_secret_does_not_print_itself() -> None:
    """Neither str, repr, nor a format string shows the key."""
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {[secret]}"


def test_a_secret_is_not_pickled() -> None:
    """Pickles travel to other processes and caches."""
    with pytest.raises(TypeError):
        pickle.dumps(Secret(KEY))


def test_an_echoed_key_is_masked() -> None:
    """Every occurrence goes, the rest stays."""
    assert Secret(KEY).mask(f"a {KEY} b {KEY}".encode()) == b"a " + MASK + b" b " + MASK


def test_a_short_word_used_as_key_leaves_answers_alone() -> None:
    """Local servers are often given `EMPTY` as key; answers that contain the word must not change."""
    assert Secret("EMPTY").mask(b"The box is EMPTY.") == b"The box is EMPTY."


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"bad key {KEY}!", "bad key [key]!"),
        (f"the key that ends with {KEY[-12:]}", "the key that ends with [key]"),
        (f"the key that begins with {KEY[:10]}", "the key that begins with [key]"),
        (f"backwards {KEY[::-1]}", "backwards [key]"),
        (f"part of it backwards: {KEY[::-1][3:15]}", "part of it backwards: [key]"),
        (KEY.upper(), "[key]"),
        (f'{{"k":"{KEY[4:20]}"}}', '{"k":"[key]"}'),
        (f"twice {KEY[:12]}{KEY[9:]}", "twice [key]"),
        ("the key that ends with 0123", "the key that ends with 0123"),
        ("unsupported_parameter in /v1/chat/completions", "unsupported_parameter in /v1/chat/completions"),
    ],
    ids=["whole", "end", "start", "reversed", "reversed part", "upper case", "in JSON", "two pieces", "tail", "words"],
)
def test_pieces_of_a_key_are_masked_in_errors(text: str, left: str) -> None:
    """Ten characters in a row are too many; four are what providers show so that one knows which key was meant."""
    assert Secret(KEY).mask_fragments(text.encode()).decode() == left


@given(st.binary(max_size=200), st.integers(0, len(KEY) - SHORTEST_FRAGMENT), st.booleans())
def test_no_text_hides_a_piece_of_a_key(noise: bytes, start: int, backwards: bool) -> None:
    """Wherever it stands."""
    whole = KEY[::-1] if backwards else KEY
    piece = whole[start : start + SHORTEST_FRAGMENT].encode()
    assert piece not in Secret(KEY).mask_fragments(noise + piece + noise)


def test_a_short_key_is_masked_whole_in_errors() -> None:
    """It has no pieces worth hiding."""
    assert Secret("tok-1").mask_fragments(b"bad tok-1, not tok-2") == b"bad [key], not tok-2"


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-abcd1234********wxyz.",
        "Authorization: Bearer abcdef0123456789",
        "key AIzaSyA0123456789abcdefghij is not valid",
        "api_key=0123456789abcdef",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln",
    ],
    ids=["openai", "bearer", "google", "query", "jwt"],
)
def test_anything_like_a_key_is_redacted(text: str) -> None:
    """Keys of other shapes than ours are masked too, also when half hidden already."""
    assert MASK.decode() in redact(text)
    assert not any(piece in redact(text) for piece in ("1234", "0123456789", "eyJhb"))


def test_plain_words_are_not_redacted() -> None:
    """Ordinary error texts stay readable."""
    text = "Rate limit reached for gpt-5.5 on tokens per min; ask-me-later is fine"
    assert redact(text) == text
