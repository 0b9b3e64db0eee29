"""Parameter rules that chat completion dialects share: each refuses a request that the real endpoint would refuse."""

import re
from typing import Final

from bench.simulator.wire import Json, Rejected, is_number

SCHEMA_NAME: Final = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
HOT: Final = 2


def check_temperature(body: Json, *, low: float = 0, high: float = HOT) -> None:
    """Refuse a temperature outside the closed range."""
    value = body.get("temperature")
    if value is not None and (not is_number(value) or not low <= value <= high):
        raise Rejected(
            f"Invalid 'temperature': expected a number from {low} to {high}.", param="temperature", code="invalid_value"
        )


def check_fixed_sampling(body: Json) -> None:
    """Refuse every sampling value but the default."""
    for name, default in (("temperature", 1), ("top_p", 1), ("presence_penalty", 0), ("frequency_penalty", 0)):
        if body.get(name, default) not in (default, None):
            raise Rejected(
                f"Unsupported value: '{name}' does not support {body[name]} with this model. "
                f"Only the default ({default}) value is supported.",
                param=name,
                code="unsupported_value",
            )


def check_schema(body: Json) -> None:
    """Refuse a response format that strict mode refuses."""
    wanted = body.get("response_format")
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return
    named = wanted.get("json_schema")
    if not isinstance(named, dict) or not SCHEMA_NAME.match(str(named.get("name", ""))):
        raise Rejected("Invalid 'response_format.json_schema.name'.", param="response_format", code="invalid_value")
    if named.get("strict") is True:
        _check_strict(named.get("schema"))


def _check_strict(schema: object, root: bool = True) -> None:
    if not isinstance(schema, dict):
        return
    if root and schema.get("type") != "object":
        raise Rejected("Invalid schema: schema must be of type 'object'.", param="response_format", code=None)
    properties = schema.get("properties")
    if isinstance(properties, dict):
        required = schema.get("required")
        listed = set(map(str, required)) if isinstance(required, list) else set()
        if schema.get("additionalProperties") is not False or listed != set(properties):
            raise Rejected(
                "Invalid schema: 'additionalProperties' must be false and 'required' must list every property.",
                param="response_format",
                code=None,
            )
        for value in properties.values():
            _check_strict(value, root=False)
    _check_strict(schema.get("items"), root=False)


def check_says_json(body: Json) -> None:
    """Refuse a JSON answer that the prompt does not ask for by name."""
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object" and "json" not in str(body["messages"]).lower():
        raise Rejected(
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            param="messages",
            code="invalid_parameter_error",
        )


def check_no_schema(body: Json) -> None:
    """Refuse `json_schema` where only `text` and `json_object` exist."""
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") not in ("text", "json_object"):
        raise Rejected(
            "This response_format type is unavailable now.", param="response_format", code="invalid_request_error"
        )


def switch(body: Json, default: bool) -> bool:
    """Return whether reasoning is on: `thinking: {"type": ...}`, else the default."""
    wanted = body.get("thinking")
    if isinstance(wanted, dict):
        return wanted.get("type") in ("enabled", "adaptive")
    return default
