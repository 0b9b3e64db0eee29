"""How texts are kept."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from engine.codec import LONG, MOST, Codec
from engine.errors import StoreError
from engine.testing import make_request

CODEC = Codec()
ANY_TEXT = st.text(alphabet=st.characters(codec=None))


@given(ANY_TEXT | ANY_TEXT.map(lambda text: text * 200))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    """Short or long, with NUL, with lone surrogates."""
    assert CODEC.unpack_text(CODEC.pack_text(text)) == text


@given(st.binary(max_size=3 * LONG))
def test_any_bytes_come_back_as_they_were(data: bytes) -> None:
    """Also those that are no text at all."""
    assert CODEC.unpack_bytes(CODEC.pack_bytes(data)) == data


@pytest.mark.parametrize("length", [0, 8, LONG, LONG + 1])
def test_bytes_that_look_like_a_frame_come_back_as_they_were(length: int) -> None:
    """A hostile reply can begin with the magic number; it is not inflated by mistake."""
    data = zstandard.FRAME_HEADER + b"x" * length
    assert CODEC.unpack_bytes(CODEC.pack_bytes(data)) == data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("", str, id="empty"),
        pytest.param("short", str, id="short"),
        pytest.param("é" * (LONG // 2), str, id="as many bytes as are short"),
        pytest.param("é" * (LONG // 2) + "x", bytes, id="a byte more"),
        pytest.param("a\0b", bytes, id="NUL"),
        pytest.param("a\ud800b", bytes, id="a lone surrogate"),
    ],
)
def test_short_plain_texts_stay_readable_and_the_rest_becomes_frames(text: str, kind: type) -> None:
    """SQL tools show the first and must not choke on the others."""
    assert isinstance(CODEC.pack_text(text), kind)


@given(ANY_TEXT)
def test_a_request_comes_back_as_it_was(text: str) -> None:
    """With its key unchanged."""
    request = make_request(text * 20)
    assert CODEC.unpack_request(CODEC.pack_request(request)) == request


FRAME = Codec().pack_bytes(b"x" * 5_000)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(FRAME[:-3], id="cut off"),
        pytest.param(FRAME[:6], id="only a header"),
        pytest.param(zstandard.FRAME_HEADER, id="only the magic number"),
        pytest.param(
            FRAME[:20] + bytes([FRAME[20] ^ 0xFF]) + FRAME[21:] if len(FRAME) > 21 else FRAME[:-1], id="flipped"
        ),
        pytest.param(zstandard.FRAME_HEADER + b"\xa0" + (MOST + 1).to_bytes(4, "little"), id="claims to be huge"),
    ],
)
@pytest.mark.parametrize("unpack", [CODEC.unpack_bytes, CODEC.unpack_text, CODEC.unpack_request])
def test_a_damaged_frame_is_an_error_for_people(stored: bytes, unpack: object) -> None:
    """One line, never garbage, never gigabytes."""
    assert callable(unpack)
    with pytest.raises(StoreError, match="a stored text is damaged") as caught:
        unpack(stored)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stored", [b"", b"{}", b"not json", b"\xff\xfe"])
def test_a_damaged_request_is_an_error_for_people(stored: bytes) -> None:
    """JSON that is no request."""
    with pytest.raises(StoreError, match="a stored text is damaged"):
        CODEC.unpack_request(stored)


def test_a_damaged_text_is_an_error_for_people() -> None:
    """Bytes that were never UTF-8."""
    with pytest.raises(StoreError, match="a stored text is damaged"):
        CODEC.unpack_text(b"\xff\xfe")
