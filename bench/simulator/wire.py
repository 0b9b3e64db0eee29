"""What all wire formats share: a call as understood, an answer to be worded, a reply to be sent, and trouble.

A wire format turns bytes into a `Call` and an `Answer` into bytes. It knows no population, bill or clock.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec
import orjson

from bench.simulator.answers import Shape
from bench.simulator.faults import Fault
from bench.simulator.limits import Limit, Standing
from engine.request import Usage

JSON: Final = "application/json"
REFUSAL_TEXT: Final = "I'm sorry, but I can't help with that request."
MARK: Final = ("x-simulated", "miragebench")
BAD_GATEWAY_PAGE: Final = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    b"<hr><center>proxy</center>\r\n</body>\r\n</html>\r\n"
)

# JSON that a client sent: looked at key by key, never trusted to have a type.
Json = dict[str, Any]


class Finish(StrEnum):
    """Why an answer ends; each wire format has its own word."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    FILTERED = "filtered"
    INTERRUPTED = "interrupted"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One understood request.

    Attributes:
        hash: `bill.content_hash` of it.
        system, user: all system text, and the last thing that the user said.
        texts: every message's text, for counting tokens.
        allowance: output tokens that the request allows, reasoning included; None where it says nothing.
        thinking: whether the model reasons before it answers.
        shape: what a schema asks of the answer's JSON, None for free text.
        cached_unit: tokens in a unit of the provider's prompt cache, 0 for none.
        client_id: an id that the client chose and the reply repeats.
    """

    provider: str
    model: str
    hash: str
    system: str
    user: str
    texts: list[str]
    allowance: int | None = None
    thinking: bool = False
    shape: Shape | None = None
    stream: bool = False
    include_usage: bool = False
    cached_unit: int = 0
    client_id: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is said to a call."""

    text: str
    finish: Finish
    usage: Usage
    thinking: str = ""
    stage: str = "other"


class Tag(msgspec.Struct, frozen=True):
    """Identity of one reply: a hexadecimal id unique in a run, and the time in whole seconds."""

    id: str
    created: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to send; `frames` instead of a body for an event stream."""

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    frames: tuple[bytes, ...] = ()
    content_type: str = JSON


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """An error to be worded: its kind, which limit ran out, and when a retry can succeed (None: nothing is said)."""

    fault: Fault
    limit: Limit = Limit.REQUESTS
    retry_after: float | None = None
    model: str = ""


class Rejected(Exception):
    """A request that this wire format refuses, in neutral terms."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class Wire(Protocol):
    """One provider's wire format."""

    @property
    def name(self) -> str:
        """The provider, as bills and settings call it."""
        ...

    @property
    def prefix(self) -> str:
        """Beginning of all paths of this provider."""
        ...

    def key(self, headers: Mapping[str, str]) -> str:
        """Return the API key that a request carries, empty if it carries none."""
        ...

    def read(self, path: str, headers: Mapping[str, str], body: Json) -> Call:
        """Understand a request whose path follows the prefix; raises Rejected."""
        ...

    def write(self, call: Call, answer: Answer, tag: Tag) -> Reply:
        """Word an answer, whole or as an event stream, as the call asks."""
        ...

    def trouble(self, trouble: Trouble, tag: Tag) -> Reply:
        """Word an error."""
        ...

    def reject(self, rejected: Rejected, tag: Tag) -> Reply:
        """Word a refusal of the request itself."""
        ...

    def headers(self, tag: Tag, standing: Mapping[Limit, Standing], now: float) -> dict[str, str]:
        """Return the headers of every reply: ids, and limits where this provider shows them."""
        ...


def dump(value: object) -> bytes:
    """Return compact JSON."""
    return orjson.dumps(value)


def parse(body: bytes, method: str = "POST") -> Json:
    """Return the JSON object of a request body; raises Rejected."""
    if method != "POST":
        raise Rejected("Only POST is served here.", status=405)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Rejected("We could not parse the JSON body of your request.") from None
    if not isinstance(value, dict):
        raise Rejected("The body of a request must be a JSON object.")
    return value


def digest(key: str) -> bytes:
    """Return what stands for an API key inside the simulator."""
    return blake2b(key.encode(), digest_size=8).digest()


def shape_of(schema: object) -> Shape:
    """Return where a schema wants a list: under its only array property if its root is an object, else at the root."""
    if not isinstance(schema, dict):
        return Shape()
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return Shape()
    arrays = [
        name
        for name, value in properties.items()
        if isinstance(value, dict) and value.get("type") in ("array", "ARRAY")
    ]
    return Shape(arrays[0] if len(arrays) == 1 else "")


def content_text(content: object) -> str:
    """Return the text of a message's content: a string, or a list of parts that have a `text`."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def pieces(text: str, size: int = 48) -> Sequence[str]:
    """Return a text cut up for an event stream, never empty."""
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def is_number(value: object) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
