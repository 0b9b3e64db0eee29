"""The explorer's data as the page holds it: an index of all responses shown, and their words in pieces.

The page parses a piece when it is wanted. All is JSON in which no character can end the element around it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analysis.report.readable import readable
from analysis.report.reading import Claim, Response, Sampled
from analysis.show import inert

PIECE: Final = 50
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """JSON texts for the page.

    Parameters
    ----------
    index : str
        What is known of every response without its words.
    pieces : tuple of str
        The words, `PIECE` responses each, in the order of the index.
    shown, total : int
        Responses in the page, and in the sweep.
    """

    index: str
    pieces: tuple[str, ...]
    shown: int
    total: int


def islands(
    sampled: Sampled, *, facts: Mapping[str, Sequence[str]], label: Callable[[str], str], simulated: bool
) -> Islands:
    """Return the explorer's data.

    Parameters
    ----------
    sampled : Sampled
    facts : mapping from persona to texts
        What the user has revealed: the only evidence there is. Empty for personas whose facts are not known.
    label : callable
        Gives a model's printed name.
    simulated : bool
    """
    responses = sampled.responses
    names = {
        "models": _distinct(response.model for response in responses),
        "tasks": _distinct(response.task for response in responses),
        "groups": _distinct(response.group for response in responses),
        "personas": _distinct(response.persona for response in responses),
    }
    places = {kind: {name: place for place, name in enumerate(known)} for kind, known in names.items()}
    index = {
        "simulated": simulated,
        "total": sampled.total,
        "piece": PIECE,
        "models": [inert(label(alias)) for alias in names["models"]],
        "tasks": list(map(inert, names["tasks"])),
        "groups": list(map(inert, names["groups"])),
        "personas": list(map(inert, names["personas"])),
        "facts": [[readable(fact) for fact in facts.get(persona, ())] for persona in names["personas"]],
        "rows": [_row(response, places) for response in responses],
    }
    pieces = tuple(json_island([_words(response) for response in piece]) for piece in _pieces(responses))
    return Islands(index=json_island(index), pieces=pieces, shown=len(responses), total=sampled.total)


def json_island(value: object) -> str:
    r"""Return JSON that may stand in a `<script>` element: it holds no `<`, and nothing but ASCII.

    Examples
    --------
    >>> json_island("</script>")
    '"\\u003c/script\\u003e"'
    """
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _row(response: Response, places: Mapping[str, Mapping[str, int]]) -> list[int | str]:
    return [
        places["models"][response.model],
        places["tasks"][response.task],
        places["groups"][response.group],
        places["personas"][response.persona],
        response.sample,
        response.state,
        "".join(claim.label or "?" for claim in response.claims),
    ]


def _words(response: Response) -> dict[str, object]:
    return {
        "key": inert(response.key),
        "reason": inert(response.reason),
        "text": readable(response.text),
        "cut": response.cut,
        "why": response.why_no_text,
        "claims": [_claim(claim) for claim in response.claims],
        "claimsCut": response.claims_cut,
    }


def _claim(claim: Claim) -> list[str]:
    return [claim.label, claim.accuracy, readable(claim.text), readable(claim.reasoning)]


def _pieces(responses: Sequence[Response]) -> Iterator[Sequence[Response]]:
    for start in range(0, len(responses), PIECE):
        yield responses[start : start + PIECE]


def _distinct(names: Iterator[str]) -> list[str]:
    return sorted(set(names))
