r"""A tolerant JSON grammar, read iteratively from a given place in a text. Knows nothing of replies or their meaning.

It reads what models write when they mean JSON: trailing commas, Python and typographic quotes, Python constants,
unquoted keys and one-word values, raw line breaks in strings, `//` comments. What cannot be read is a fault with a
place; the containers that were open there are given as they stood, holding whole children only.

Time: a scanner takes at most `MAX_STEPS` steps, one for a token and some for every value, and looks again at no more
than `MAX_RESCAN` characters, so that no reply, however hostile, costs more than its length times a constant. Nothing
recurses.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

MAX_DEPTH: Final = 64
MAX_STEPS: Final = 100_000
STEPS_PER_VALUE: Final = 4
MAX_RESCAN: Final = 65_536
CUT_OFF: Final = "cut off"
_CONSTANTS: Final[dict[str, Json]] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_SPACE: Final = r"(?:\s++|//[^\n]*+)*+"
# Possessive quantifiers: no token is ever tried twice.
_TOKEN: Final = re.compile(
    _SPACE
    + r"""(?:
    (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<comma>,) | (?P<colon>:)
    | "(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"
    | '(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'
    | [\u201c\u201d\u201e](?P<curly>[^\u201c\u201d\\]*+(?:\\.[^\u201c\u201d\\]*+)*+)[\u201c\u201d]
    | [\u2018\u2019\u201a](?P<curl>[^\u2018\u2019\\]*+(?:\\.[^\u2018\u2019\\]*+)*+)[\u2018\u2019]
    | (?P<number>-?\d[\w.+-]*+)
    | (?P<word>[A-Za-z_$][\w$]*+)
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_BLANK: Final = re.compile(_SPACE)
_QUOTES: Final = "\"'\u201c\u201d\u201e\u2018\u2019\u201a"
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PLAIN_ESCAPES: Final = "\"'\\/`\u201c\u201d\u2018\u2019\n"


class _State(Enum):
    """What the grammar allows next."""

    ITEM = auto()  # in an array: a value or the end
    KEY = auto()  # in an object: a key or the end
    COLON = auto()
    VALUE = auto()  # in an object, after the colon
    AFTER = auto()  # a comma or the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value that begins at `start`, or as much of it as there is.

    Attributes:
        value: the whole value; None when there is a fault.
        end: index after its last character, or of the fault.
        resume: index where the search for further values goes on.
        fault: empty, `CUT_OFF`, or what is wrong and where.
        serious: the fault lies in what was meant as JSON (a quoted key or a whole object was seen), not in prose.
        path: on a fault the containers that were open, outermost first, with their whole children.
        keys: for each container of `path` the key whose value was open; empty in arrays.
    """

    value: Json
    start: int
    end: int
    resume: int
    fault: str = ""
    serious: bool = False
    path: tuple[list[Json] | dict[str, Json], ...] = ()
    keys: tuple[str, ...] = ()


class Scanner:
    """Reads values from one text within one allowance of time.

    Attributes:
        stopped: why no further value will be read, or empty.
    """

    def __init__(self, text: str) -> None:
        self._text, self._steps, self._rescan = text, MAX_STEPS, MAX_RESCAN
        self.stopped = ""

    def read(self, start: int) -> Candidate:
        """Read the value whose opening bracket stands at `start`."""
        attempt = _Attempt(self._text, start)
        self._steps -= STEPS_PER_VALUE + attempt.run(self._steps)
        if attempt.stopped:
            self.stopped = attempt.stopped
        resume = attempt.position
        if attempt.fault and not attempt.serious and (again := resume - start) <= self._rescan:
            self._rescan -= again
            resume = start + 1
        return Candidate(
            value=attempt.value,
            start=start,
            end=attempt.position,
            resume=resume,
            fault=attempt.fault,
            serious=attempt.serious,
            path=tuple(attempt.stack),
            keys=tuple(attempt.keys),
        )


class _Attempt:
    """One run of the grammar; `position` is the end of the value, or the place of the fault."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.position = text, start
        self.stack: list[list[Json] | dict[str, Json]] = []
        self.keys: list[str] = []
        self.state = _State.ITEM
        self.value: Json = None
        self.fault = self.stopped = ""
        self.serious = self.done = False

    def run(self, allowance: int) -> int:
        """Read until the value is whole or at fault; return the number of tokens it took."""
        match, position = _TOKEN.match, self.position
        for step in range(1, allowance + 1):
            token = match(self.text, position)
            if token is None:
                self._unknown(position)
            elif not self._take(token):
                self.position = token.end() if self.done else self._place(token)
            else:
                position = token.end()
                continue
            return step
        self.position = position
        self.fault = self.stopped = f"more than {MAX_STEPS} pieces of JSON"
        return allowance

    def _take(self, token: re.Match[str]) -> bool:
        """Return True when reading goes on."""
        kind = token.lastgroup
        if kind == "end":
            self.fault = CUT_OFF
        elif kind == "open":
            self._open(token["open"])
        elif kind == "close":
            self._close(token["close"])
        elif kind in ("comma", "colon"):
            self._separate(kind)
        else:
            self._scalar(kind or "", token)
        if self.fault == "wrong":
            self.fault = f"broken at character {self._place(token) + 1}"
        return not (self.fault or self.done)

    def _open(self, bracket: str) -> None:
        if self.state not in (_State.ITEM, _State.VALUE):
            self.fault = "wrong"
        elif len(self.stack) == MAX_DEPTH:
            self.fault = self.stopped = f"nested deeper than {MAX_DEPTH} levels"
        else:
            self.stack.append([] if bracket == "[" else {})
            self.keys.append("")
            self.state = _State.ITEM if bracket == "[" else _State.KEY

    def _close(self, bracket: str) -> None:
        matches = isinstance(self.stack[-1], list) == (bracket == "]")
        if not matches or self.state in (_State.COLON, _State.VALUE):
            self.fault = "wrong"
            return
        whole = self.stack.pop()
        self.keys.pop()
        if self.stack:
            self._put(whole)
        else:
            self.value, self.done = whole, True

    def _separate(self, kind: str) -> None:
        if kind == "colon" and self.state is _State.COLON:
            self.state = _State.VALUE
        elif kind == "comma" and self.state is _State.AFTER:
            self.state = _State.ITEM if isinstance(self.stack[-1], list) else _State.KEY
        else:
            self.fault = "wrong"

    def _scalar(self, kind: str, token: re.Match[str]) -> None:
        raw = token[kind]
        if self.state is _State.KEY:
            self.keys[-1] = raw if kind in ("number", "word") else _unescape(raw)
            self.serious = self.serious or kind == "double"
            self.state = _State.COLON
        elif self.state is _State.VALUE or self.state is _State.ITEM:
            self._literal(kind, raw)
        else:
            self.fault = "wrong"

    def _literal(self, kind: str, raw: str) -> None:
        if kind == "number":
            number = _number(raw)
            if number is None:
                self.fault = "wrong"
            else:
                self._put(number)
        elif kind != "word":
            self._put(_unescape(raw))
        elif raw in _CONSTANTS:
            self._put(_CONSTANTS[raw])
        elif self.state is _State.VALUE:
            self._put(raw)
        else:
            self.fault = "wrong"

    def _put(self, value: Json) -> None:
        holder = self.stack[-1]
        if isinstance(holder, list):
            holder.append(value)
            self.serious = self.serious or (len(self.stack) == 1 and isinstance(value, dict))
        else:
            holder[self.keys[-1]] = value
        self.state = _State.AFTER

    def _unknown(self, position: int) -> None:
        blank = _BLANK.match(self.text, position)
        place = blank.end() if blank else position
        if self.text[place] in _QUOTES:
            self.serious = self.serious or (self.state is _State.KEY and self.text[place] == '"')
            self.fault, self.position = CUT_OFF, len(self.text)
        else:
            self.fault, self.position = f"broken at character {place + 1}", place

    def _place(self, token: re.Match[str]) -> int:
        """Return where a token begins, the space before it left out."""
        blank = _BLANK.match(self.text, token.start())
        return blank.end() if blank else token.start()


def _number(raw: str) -> int | float | None:
    try:
        return int(raw)
    except ValueError:
        try:
            return float(raw)
        except ValueError:
            return None


def _unescape(raw: str) -> str:
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(_escaped, raw)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(match: re.Match[str]) -> str:
    code, char = match.groups()
    if code:
        return chr(int(code, 16))
    return _ESCAPED.get(char) or (char if char in _PLAIN_ESCAPES else match[0])
