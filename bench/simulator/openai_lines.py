"""How four providers spell files and batches of OpenAI's shape, and which input files they refuse whole. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec
import orjson

from bench.simulator.batchjobs import Complaint, Line

MOST_LINES: Final = 50_000


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How one provider spells files and batches.

    Attributes:
        file, output, failures: beginnings of file ids.
        endpoint: the URL of lines and batches.
        hours: shortest and longest completion window.
        most_bytes: of an input file.
        lists_per_minute: most lists of an account.
        filtered: lists can be asked for `ds_name` and times.
        deletes_input: the input file goes when the batch ends, unless the create call says otherwise.
        no_sampling: a sampling parameter in a line sinks the batch.
        bare_rows: rows have no `error` key; echo_ids: the id of a row is its custom id; silent: leftovers have no rows.
    """

    file: str = "file-"
    output: str = "file-"
    failures: str = "file-"
    endpoint: str = "/v1/chat/completions"
    hours: tuple[int, int] = (24, 24)
    most_bytes: int = 200_000_000
    lists_per_minute: int = 0
    filtered: bool = False
    deletes_input: bool = False
    no_sampling: bool = False
    bare_rows: bool = False
    echo_ids: bool = False
    silent: bool = False


SPELLINGS: Final[Mapping[str, Spelling]] = {
    "openai": Spelling(),
    "dashscope": Spelling(
        file="file-batch-",
        output="file-batch_output-",
        failures="file-batch_error-",
        hours=(24, 336),
        most_bytes=500_000_000,
        lists_per_minute=100,
        filtered=True,
        silent=True,
    ),
    "zhipu": Spelling(endpoint="/v4/chat/completions", most_bytes=100_000_000, deletes_input=True, bare_rows=True),
    "moonshot": Spelling(
        file="file_",
        output="file_",
        failures="file_",
        hours=(12, 168),
        most_bytes=100_000_000,
        no_sampling=True,
        echo_ids=True,
    ),
}


def complain(lines: list[Line], urls: list[str], endpoint: str) -> Complaint | None:
    """Return the first thing that is wrong with lines that a service refuses whole."""
    seen: set[str] = set()
    for number, (line, url) in enumerate(zip(lines, urls, strict=True), 1):
        found = _fault(line, url, lines[0], endpoint, seen)
        if found is not None:
            return msgspec.structs.replace(found, line=number)
        seen.add(line.custom_id)
    if len(lines) > MOST_LINES:
        return Complaint("invalid_request", f"More than {MOST_LINES} lines.", None, None)
    return None


def _fault(line: Line, url: str, first: Line, endpoint: str, seen: set[str]) -> Complaint | None:
    if not line.custom_id:
        return Complaint("missing_required_parameter", "Missing required parameter: 'custom_id'.", "custom_id")
    if line.custom_id in seen:
        return Complaint("duplicate_custom_id", f"Duplicate custom_id: {line.custom_id}.", "custom_id")
    if url != endpoint:
        return Complaint("invalid_url", "The URL of a line must be the endpoint of the batch.", "url")
    if model_of(line) != model_of(first):
        return Complaint("mismatched_model", "All lines must ask the same model.", "body.model")
    if line.body.get("stream"):
        return Complaint("streaming_unsupported", "Streaming is not supported.", "body.stream")
    return None


def read_lines(data: bytes) -> tuple[list[Line], list[str], Complaint | None]:
    """Return the lines of an input file with their URLs, or what is wrong with its first bad line."""
    lines: list[Line] = []
    urls: list[str] = []
    for number, text in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("body"), dict):
            return [], [], Complaint("invalid_json_line", "This line is not valid JSON.", None, number)
        lines.append(Line(str(found.get("custom_id") or ""), found["body"]))
        urls.append(str(found.get("url")))
    return lines, urls, None


def model_of(line: Line) -> str:
    """Return the model that a line asks."""
    return str(line.body.get("model"))
