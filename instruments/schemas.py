"""Bounded JSON Schemas for constrained answers, and the generation settings of a stage. Knows no prompt and no model.

A schema allows one finite set of texts: every list has `maxItems`, every string an ASCII pattern with a length, every
object exactly its fields. So the longest answer is known, and an allowance of one token per character of it, plus one
for the end, can never cut an answer off (one ASCII character is at most one token; white space must be disabled). The
root is an object, as strict modes of hosted providers demand. The price is an artefact to keep in mind: at least one
claim is forced, at most `maxItems` fit, and texts are short. It is meant for models that cannot keep a format at all.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from engine.errors import UserError
from engine.request import Decoding
from instruments.claims import Accuracy, Label
from instruments.instrument import Design, Stage
from instruments.lenient import Json

MEMORY_FIELDS: Final = ("observed", "preferences", "personality_traits", "demographics", "predictions")
PROBE_TYPES: Final = ("directly_stated", "inferred")
CHARACTERS: Final = "A-Za-z0-9 ,.'-"
_PATTERN: Final = re.compile(r"\^\[A-Za-z0-9 ,\.'-\]\{1,(\d+)\}\$")
_CLAIM_LENGTH: Final = 50
_REASON_LENGTH: Final = 24
_ENTRY_LENGTH: Final = 24
_MAX_CLAIMS: Final = 5
_MAX_ENTRIES: Final = 4


def max_schema_tokens(schema: Mapping[str, Json]) -> int:
    """Return the length in characters of the longest JSON text, without white space, that `schema` allows.

    Raises:
        ValueError: the schema is not bounded, or uses words beyond those of this module.
    """
    if (choices := schema.get("enum")) is not None:
        return max(len(msgspec.json.encode(choice)) for choice in _list(choices))
    kind = schema.get("type")
    if kind == "string":
        return _string_bound(schema)
    if kind == "array":
        return _array_bound(schema)
    if kind == "object":
        return _object_bound(schema)
    raise ValueError(f"no bound is known for a schema of type {kind!r}")


def stage_schema(stage: Stage) -> str | None:
    """Return the JSON Schema of a stage's answer as JSON text, or None where the answer is free text."""
    return _TEXTS.get(stage)


def decoding(design: Design, stage: Stage) -> Decoding:
    """Return how a stage's answers are generated; a schema brings its own allowance of tokens.

    Raises:
        UserError: the design has no settings for the stage.
    """
    if (settings := design.settings.get(stage)) is None:
        raise UserError(f"no settings for stage {stage}", where="sweep", mend=f"give {stage} a max_tokens")
    schema = stage_schema(stage) if design.structured else None
    if schema is None:
        return Decoding(max_tokens=settings.max_tokens, temperature=settings.temperature)
    return Decoding(max_tokens=_BOUNDS[stage] + 1, temperature=settings.temperature, schema=schema)


def _string_bound(schema: Mapping[str, Json]) -> int:
    pattern = schema.get("pattern")
    match = _PATTERN.fullmatch(pattern) if isinstance(pattern, str) else None
    if match is None:
        raise ValueError(f"a string needs the pattern ^[{CHARACTERS}]{{1,n}}$")
    return int(match[1]) + 2


def _array_bound(schema: Mapping[str, Json]) -> int:
    match schema:
        case {"items": dict(items), "maxItems": int(most)}:
            return 2 + most * max_schema_tokens(items) + max(0, most - 1)
        case _:
            raise ValueError("an array needs items and maxItems")


def _object_bound(schema: Mapping[str, Json]) -> int:
    match schema:
        case {"properties": dict(properties), "additionalProperties": False}:
            fields = [len(msgspec.json.encode(key)) + 1 + _child_bound(child) for key, child in properties.items()]
            return 2 + sum(fields) + max(0, len(fields) - 1)
        case _:
            raise ValueError("an object needs properties and additionalProperties: false")


def _child_bound(schema: Json) -> int:
    match schema:
        case dict():
            return max_schema_tokens(schema)
        case _:
            raise ValueError("a property needs a schema")


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list) or not value:
        raise ValueError("an enum needs choices")
    return value


def _text(length: int) -> dict[str, Json]:
    return {"type": "string", "pattern": f"^[{CHARACTERS}]{{1,{length}}}$"}


def _choice(*words: str) -> dict[str, Json]:
    return {"type": "string", "enum": list(words)}


def _object(**properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: dict[str, Json], *, least: int, most: int) -> dict[str, Json]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _claims(**fields: dict[str, Json]) -> dict[str, Json]:
    return _array(_object(claim=_text(_CLAIM_LENGTH), **fields), least=1, most=_MAX_CLAIMS)


def _judge() -> dict[str, Json]:
    return _object(claims=_claims(category=_choice(*Label), accuracy=_choice(*Accuracy)))


def _memory() -> dict[str, Json]:
    entries = _array(_text(_ENTRY_LENGTH), least=0, most=_MAX_ENTRIES)
    return _object(**dict.fromkeys(MEMORY_FIELDS, entries))


SCHEMAS: Final[Mapping[Stage, dict[str, Json]]] = MappingProxyType(
    {
        Stage.PROBE: _object(inferences=_claims(type=_choice(*PROBE_TYPES), reasoning=_text(_REASON_LENGTH))),
        Stage.AUDIT: _object(claims=_claims(category=_choice(*Label), reasoning=_text(_REASON_LENGTH))),
        Stage.JUDGE: _judge(),
        Stage.PROBE_JUDGE: _judge(),
        Stage.ACCUM: _memory(),
    }
)
_TEXTS: Final = {stage: msgspec.json.encode(schema).decode() for stage, schema in SCHEMAS.items()}
_BOUNDS: Final = {stage: max_schema_tokens(schema) for stage, schema in SCHEMAS.items()}
