"""How prompts, replies and texts are kept: as they are when short, as zstd frames when long."""

from typing import Final

import msgspec
import zstandard

from engine.request import Request

LONG: Final = 1024
LEVEL: Final = 3
# A reply larger than this was never written by us; refuse to inflate a damaged frame without bound.
MOST: Final = 256 * 1024 * 1024


class Codec:
    """Packs and unpacks; one per thread, since zstd contexts are not shared between threads."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor()
        self._encode = msgspec.json.Encoder(order="deterministic").encode
        self._decode = msgspec.json.Decoder(Request).decode

    def pack_bytes(self, data: bytes) -> bytes:
        """Return `data`, compressed when long."""
        return self._compress(data) if len(data) > LONG else data

    def unpack_bytes(self, data: bytes) -> bytes:
        """Return what `pack_bytes` was given."""
        if data[:4] == zstandard.FRAME_HEADER:
            return self._decompress.decompress(data, max_output_size=MOST)
        return data

    def pack_text(self, text: str) -> str | bytes:
        """Return `text` itself when short, so that SQL tools can read it, else a compressed frame."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > LONG:
            return self._compress(data)
        # SQLite's TEXT ends at NUL for many tools, and cannot hold lone surrogates: keep such texts as a frame too.
        return text if _plain(text) else self._compress(data)

    def unpack_text(self, stored: str | bytes) -> str:
        """Return what `pack_text` was given."""
        if isinstance(stored, str):
            return stored
        return self.unpack_bytes(stored).decode("utf-8", "surrogatepass")

    def pack_request(self, request: Request) -> bytes:
        """Return the stored form of a request."""
        return self.pack_bytes(self._encode(request))

    def unpack_request(self, stored: bytes) -> Request:
        """Return the request that `pack_request` was given."""
        return self._decode(self.unpack_bytes(stored))


def _plain(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
