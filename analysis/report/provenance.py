"""Where the numbers come from: the sweep's manifest, laid out for people and whole for programs.

The manifest is read as what it is, a JSON object of another program's making: what is missing is left out, what is of
an unexpected kind is shown as JSON.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analysis.columns import texts_of
from analysis.report.readable import readable
from analysis.show import inert

MODEL_FIELDS: Final = ("label", "family", "provider", "model", "price", "price_date", "price_source", "note")
FIRST: Final = ("name", "simulated", "stages", "tasks", "samples", "seed", "subjects", "judges")
NANO: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The manifest for the page.

    Parameters
    ----------
    facts : tuple of (name, value)
        Single facts of the sweep, the program and the report.
    models : tuple of rows
        Alias, and what `MODEL_FIELDS` names, as texts.
    hashes : tuple of (kind, name, hash)
        Contents that the sweep was made with: prompts, personas, scripts.
    settings : str
        Decoding settings and the rest of what is fixed, as JSON.
    sweep_file : str
        The sweep's own file.
    manifest : str
        Everything, as JSON.
    """

    facts: tuple[tuple[str, str], ...]
    models: tuple[tuple[str, ...], ...]
    hashes: tuple[tuple[str, str, str], ...]
    settings: str
    sweep_file: str
    manifest: str


def provenance(manifest: Mapping[str, object], more: Mapping[str, object]) -> Provenance:
    """Lay out a manifest.

    Parameters
    ----------
    manifest : mapping
        As the store holds it.
    more : mapping
        What the report adds: its own settings.
    """
    fixed = _mapping(manifest.get("fixed"))
    hashed = ("prompts", "personas", "scripts")
    rest = {name: value for name, value in fixed.items() if name not in hashed}
    return Provenance(
        facts=tuple(_facts(manifest, more)),
        models=tuple(_models(_mapping(manifest.get("models")))),
        hashes=tuple(
            (kind, inert(name), inert(_text(value)))
            for kind in hashed
            for name, value in _mapping(fixed.get(kind)).items()
        ),
        settings=_json(rest) if rest else "",
        sweep_file=readable(_text(manifest.get("sweep_file", ""))),
        manifest=_json(manifest),
    )


def facts_of(manifest: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the revealed facts by persona, as far as the manifest has them."""
    return {persona: texts_of(facts) for persona, facts in _mapping(manifest.get("personas_facts")).items()}


def _facts(manifest: Mapping[str, object], more: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    known = {name: manifest[name] for name in FIRST if name in manifest}
    versions = {f"version of {name}": value for name, value in _mapping(manifest.get("versions")).items()}
    for name, value in {**known, **more, **versions}.items():
        yield inert(name.replace("_", " ")), readable(_text(value))


def _models(models: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    for alias, entry in models.items():
        fields = _mapping(entry)
        yield (
            inert(alias),
            *(
                _price(fields.get(name)) if name == "price" else readable(_text(fields.get(name, "")))
                for name in MODEL_FIELDS
            ),
        )


def _price(price: object) -> str:
    """Return prices in dollars per million tokens."""
    known = {name: value for name, value in _mapping(price).items() if isinstance(value, int)}
    return ", ".join(f"{inert(name)} ${value / NANO:g}" for name, value in known.items())


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


def _json(value: object) -> str:
    return readable(json.dumps(value, ensure_ascii=False, indent=2))
