"""Writing the lines of an input file fast, and refusing the line that would sink a batch.

All lines of one model and one decoding are alike but for their id and their prompt. What is alike is written once, by
the single call's own encoder, and kept as a `Frame`; then a line is five pieces of bytes put together.
Must not know: paths, accounts, one provider's field names.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from engine.batch.provider import CUSTOM_ID, BatchLimits, BatchLine
from engine.errors import ErrorClass, ProviderError
from engine.request import Decoding, Message, Request
from providers.errorbody import safe_line

BAD_ID: Final = "batch_line_id"
TOO_LONG: Final = "batch_line_too_long"
# Seeds may make every decoding another one.
MOST_FRAMES: Final = 512

_encoder: Final = msgspec.json.Encoder()


class Frame(msgspec.Struct, frozen=True):
    """What lines of one model and decoding share.

    Attributes:
        head, middle, tail: the bytes before the id, between id and prompt, and after the prompt.
        prompt: writes the messages, whose texts are Unicode (`Message` sees to it); raises ProviderError.
    """

    head: bytes
    middle: bytes
    tail: bytes
    prompt: Callable[[Sequence[Message]], bytes]


class LineWriter:
    """Writes lines; `frame` gives the frame of a request's model and decoding, or raises ProviderError."""

    def __init__(self, frame: Callable[[Request], Frame], limits: BatchLimits, *, shortest_id: int = 1) -> None:
        self._frame, self._shortest_id = frame, shortest_id
        self._most = min(limits.max_bytes, limits.max_line_bytes or limits.max_bytes)
        self._frames: dict[tuple[str, Decoding], Frame] = {}

    def write(self, line: BatchLine) -> bytes:
        """Return the line without its line end.

        Raises:
            ProviderError: class bad_request or gone.
        """
        custom_id, request = line.custom_id, line.request
        frame = self._frames.get((request.model, request.decoding)) or self._new_frame(request)
        if not CUSTOM_ID.fullmatch(custom_id) or len(custom_id) < self._shortest_id:
            raise self._odd_id(custom_id)
        written = b"".join(
            (frame.head, custom_id.encode(), frame.middle, frame.prompt(request.messages), frame.tail),
        )
        if len(written) >= self._most:
            raise self._too_long(len(written) + 1)
        return written

    def _new_frame(self, request: Request) -> Frame:
        frame = self._frame(request)
        if len(self._frames) >= MOST_FRAMES:
            self._frames.clear()
        self._frames[request.model, request.decoding] = frame
        return frame

    def _odd_id(self, custom_id: str) -> ProviderError:
        shown, least = safe_line(custom_id)[:64], self._shortest_id
        reason = f"the id {shown!r} is not {least} to 64 letters, digits, dashes, underscores"
        return ProviderError(ErrorClass.BAD_REQUEST, reason, code=BAD_ID)

    def _too_long(self, size: int) -> ProviderError:
        reason = f"the request takes {size:,} bytes in a batch, the provider takes {self._most:,}"
        return ProviderError(ErrorClass.BAD_REQUEST, reason, code=TOO_LONG)


def without_messages(request: Request) -> Request:
    """Return the request with an empty prompt."""
    return msgspec.structs.replace(request, messages=())


def split_at(body: bytes, member: str) -> tuple[bytes, bytes]:
    """Return a JSON object's text before and after the value of `member`, which is an empty list.

    Strings in it cannot look like the member: their quotes are escaped.
    """
    before, found, after = body.partition(f'"{member}":[]'.encode())
    if not found:
        raise ValueError(f"no empty {member}: {body[:80]!r}")
    return before + found[:-2], after


def write_turns(messages: Sequence[Message]) -> bytes:
    """Return messages as chat completions and Anthropic Messages spell them."""
    return _encoder.encode(messages)
