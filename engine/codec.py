"""How prompts, replies and texts are kept: as they are when short, as zstd frames when long."""

from typing import Final

import msgspec
import zstandard

from engine.errors import StoreError
from engine.request import Request, is_well_formed

LONG: Final = 1024
LEVEL: Final = 3
# A reply larger than this was never written by us; refuse to inflate a damaged frame without bound.
MOST: Final = 256 * 1024 * 1024


class Codec:
    """Packs and unpacks; one per thread, since zstd contexts are not shared between threads."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress
        self._encode = msgspec.json.Encoder(order="deterministic").encode
        self._decode = msgspec.json.Decoder(Request).decode

    def pack_bytes(self, data: bytes) -> bytes:
        """Return `data`, compressed when long or when it looks like a frame itself."""
        return self._compress(data) if len(data) > LONG or data.startswith(zstandard.FRAME_HEADER) else data

    def unpack_bytes(self, data: bytes) -> bytes:
        """Return what `pack_bytes` was given.

        Raises:
            StoreError: the frame is damaged.
        """
        if not data.startswith(zstandard.FRAME_HEADER):
            return data
        try:
            if not 0 <= zstandard.frame_content_size(data) <= MOST:
                raise _damaged()
            return self._decompress(data, max_output_size=MOST)
        except zstandard.ZstdError as error:
            raise _damaged() from error

    def pack_text(self, text: str) -> str | bytes:
        """Return `text` itself when short, so that SQL tools can read it, else a compressed frame."""
        # SQLite's TEXT ends at NUL for many tools and cannot hold lone surrogates: such texts are kept as frames too.
        if len(text) <= LONG and "\0" not in text and (text.isascii() or _fits(text)):
            return text
        return self._compress(text.encode("utf-8", "surrogatepass"))

    def unpack_text(self, stored: str | bytes) -> str:
        """Return what `pack_text` was given.

        Raises:
            StoreError: the frame is damaged.
        """
        if isinstance(stored, str):
            return stored
        try:
            return self.unpack_bytes(stored).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise _damaged() from error

    def pack_request(self, request: Request) -> bytes:
        """Return the stored form of a request."""
        return self.pack_bytes(self._encode(request))

    def unpack_request(self, stored: bytes) -> Request:
        """Return the request that `pack_request` was given.

        Raises:
            StoreError: the frame or the JSON in it is damaged.
        """
        try:
            return self._decode(self.unpack_bytes(stored))
        except msgspec.DecodeError as error:
            raise _damaged() from error


def _fits(text: str) -> bool:
    return is_well_formed(text) and len(text.encode()) <= LONG


def _damaged() -> StoreError:
    return StoreError(
        "a stored text is damaged", mend="restore a copy of the store, or recover it with `sqlite3 STORE .recover`"
    )
