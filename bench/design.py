"""From a sweep file to a design: which personas, tasks, scripts and models; and from a question to a request."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from bench.filewords import suggestion
from bench.modes import Key, Mode
from bench.sweepfile import LoadedFile, LoadedSweep, SweepFile
from bench.usednames import known_card
from engine.cell import Cell
from engine.errors import UserError
from engine.request import Decoding, Request
from instruments.instrument import Ask, Design, Stage, StageSettings
from instruments.personas import Persona, Script, load_personas, load_scripts
from instruments.prompts import load_prompts
from instruments.reader import count_asks
from instruments.tasks import load_tasks
from providers.adapt import adapt
from providers.card import ModelCard
from providers.catalog import Catalog

# Temperatures are the paper's (G.9); it says nothing of lengths, these leave room for the longest replies.
PAPER_SETTINGS: Final[Mapping[Stage, StageSettings]] = {
    Stage.PROBE: StageSettings(temperature=0.7, max_tokens=3000),
    Stage.PROBE_JUDGE: StageSettings(temperature=0.0, max_tokens=6000),
    Stage.TASK: StageSettings(temperature=0.7, max_tokens=2000),
    Stage.AUDIT: StageSettings(temperature=0.7, max_tokens=6000),
    Stage.JUDGE: StageSettings(temperature=0.0, max_tokens=6000),
    Stage.ACCUM: StageSettings(temperature=0.7, max_tokens=6000),
}
# A chain of rounds takes longest, so it starts first; personas then follow each other, since their prompts begin alike.
_ACCUM_FIRST: Final = -1
_NAMED_IN_ERRORS: Final = 8
ACCUM_PERSONAS: Final = 2
"""Personas of accumulation where the file does not say how many."""

Thing = TypeVar("Thing")


def build_design(loaded: LoadedSweep, catalog: Catalog) -> Design:
    """Return the design that a sweep file describes.

    Raises:
        UserError: it names a model, persona or task that does not exist.
    """
    sweep = loaded.sweep
    for alias in (*sweep.models, *sweep.judges):
        check_model(known_card(catalog, alias, loaded), loaded)
    personas = _chosen_personas(loaded)
    return Design(
        personas=personas,
        tasks=_chosen("task", load_tasks(), sweep.tasks, loaded, "tasks"),
        scripts=_chosen_scripts(loaded, personas),
        prompts=load_prompts(),
        subjects=sweep.models,
        judges=sweep.judges,
        stages=frozenset(sweep.stages),
        settings={stage: _settings(sweep, stage) for stage in Stage},
        samples=sweep.samples,
        rounds=sweep.rounds,
        structured=sweep.structured,
        memory_prompt=sweep.memory_prompt,
    )


def check_asks(design: Design, loaded: LoadedSweep) -> None:
    """Refuse a sweep that asks nothing at all, which would be done at once.

    Raises:
        UserError: it does.
    """
    if not count_asks(design):
        raise UserError(
            "the stages that the file names ask nothing of these personas",
            where=loaded.place("stages"),
            mend="accum needs personas with a conversation script: `mirage personas show ID` shows whether one has it",
        )


def left_out(design: Design) -> str:
    """Return in one line which stage asks nothing, although the sweep has it, and why; empty where all ask."""
    if Stage.ACCUM in design.stages and not design.scripts:
        return "accum asks nothing: none of the chosen personas has a conversation script, or accum_personas is 0"
    return ""


def composer(design: Design, catalog: Catalog, modes: Mapping[Key, Mode]) -> Callable[[Ask], Cell]:
    """Return the function that turns a question into a cell with its request, fitted to the model that answers.

    How it is sent is read from `modes`, where what is missing streams; the request does not depend on it.
    """
    order = {persona: number for number, persona in enumerate(design.personas)}
    encode = msgspec.json.encode

    def compose(ask: Ask) -> Cell:
        card = catalog.card(ask.alias)
        decoding, changes = adapt(card, asked_decoding(design, card, ask))
        return Cell(
            stage=ask.stage.value,
            alias=ask.alias,
            coords=encode(ask.coords),
            request=Request(
                provider=card.provider,
                model=card.model,
                messages=ask.messages,
                decoding=decoding,
                sample=ask.coords.sample,
            ),
            changes=encode(changes) if changes else b"",
            batch=modes.get((ask.alias, ask.stage.value)) is Mode.BATCH,
            priority=_ACCUM_FIRST if ask.stage is Stage.ACCUM else order[ask.coords.persona],
        )

    return compose


def asked_decoding(design: Design, card: ModelCard, ask: Ask) -> Decoding:
    """Return a question's decoding; a schema's allowance is for the answer alone, so what thinks gets more on top."""
    decoding = ask.decoding
    if decoding.schema is None or not card.thinking:
        return decoding
    return msgspec.structs.replace(decoding, max_tokens=decoding.max_tokens + design.settings[ask.stage].max_tokens)


def check_model(card: ModelCard, loaded: LoadedFile) -> None:
    """Refuse a model whose price is not known, unless the file allows it.

    Raises:
        UserError: no budget could hold.
    """
    if card.price is None and not loaded.sweep.allow_unknown_price:
        raise UserError(
            f"the price of {card.alias} is not known, so no budget could hold",
            where=loaded.place("judges" if card.alias in loaded.sweep.judges else "models", value=card.alias),
            mend=f'give it as [model."{card.alias}".price] input and output in USD per million tokens, '
            "or set allow_unknown_price = true to count it as free",
        )


def _settings(sweep: SweepFile, stage: Stage) -> StageSettings:
    paper = PAPER_SETTINGS[stage]
    given = sweep.settings.get(stage)
    if given is None:
        return paper
    return StageSettings(
        temperature=paper.temperature if given.temperature is None else given.temperature,
        max_tokens=given.max_tokens or paper.max_tokens,
    )


def _chosen_personas(loaded: LoadedSweep) -> dict[str, Persona]:
    everyone = {persona.id: persona for persona in _everyone(loaded)}
    if isinstance(loaded.sweep.personas, int):
        return _balanced(everyone, loaded.sweep.personas, loaded)
    return _chosen("persona", everyone, loaded.sweep.personas, loaded, "personas")


def _everyone(loaded: LoadedSweep) -> tuple[Persona, ...]:
    """Return all personas, the sweep's own files in place of the shipped ones that they replace."""
    files = (loaded.sweep.imported_personas, loaded.sweep.generated_personas)
    imported, generated = (Path(file).expanduser() if file else None for file in files)
    personas = load_personas(imported=imported, generated=generated)
    repeated = [name for name, count in Counter(persona.id for persona in personas).items() if count > 1]
    if repeated:
        raise UserError(
            f"two personas have the id {repeated[0]}",
            where=loaded.place("imported_personas" if loaded.sweep.imported_personas else "generated_personas"),
            mend="give the personas of your own file other ids",
        )
    return personas


def _balanced(everyone: Mapping[str, Persona], number: int, loaded: LoadedSweep) -> dict[str, Persona]:
    """Return the first `number` personas, taking one of each stereotype group in turn."""
    if number > len(everyone):
        raise UserError(f"there are only {len(everyone)} personas", where=loaded.place("personas"), mend='write "all"')
    groups: dict[str, list[Persona]] = {}
    for persona in everyone.values():
        groups.setdefault(persona.group.value, []).append(persona)
    turns = chain.from_iterable(zip_longest(*groups.values()))
    return {persona.id: persona for persona in [each for each in turns if each is not None][:number]}


def _chosen_scripts(loaded: LoadedSweep, personas: Mapping[str, Persona]) -> dict[str, Script]:
    sweep, everything = loaded.sweep, load_scripts()
    scripts = {name: script for name, script in everything.items() if name in personas}
    wanted = min(ACCUM_PERSONAS, len(scripts)) if sweep.accum_personas is None else sweep.accum_personas
    if not isinstance(wanted, int):
        return _chosen("script of persona", scripts, wanted, loaded, "accum_personas")
    wanted = wanted if Stage.ACCUM in sweep.stages else 0
    if wanted > len(scripts):
        raise UserError(
            f"only {len(scripts)} of the chosen personas have a conversation script",
            where=loaded.place("accum_personas"),
            mend=f"ask for at most {len(scripts)}, or choose others: {_some(everything)} have one",
        )
    return dict(list(scripts.items())[:wanted])


def _chosen(
    kind: str, known: Mapping[str, Thing], wanted: str | tuple[str, ...], loaded: LoadedSweep, field: str
) -> dict[str, Thing]:  # fmt: skip
    if isinstance(wanted, str):
        return dict(known)
    for name in wanted:
        if name not in known:
            mend = suggestion(name, known, f"there are {_some(known)}")
            raise UserError(f"there is no {kind} `{name}`", where=loaded.place(field, value=name), mend=mend)
    return {name: known[name] for name in wanted}


def _some(names: Iterable[str]) -> str:
    """Return the first of some names."""
    listed = list(names)
    return ", ".join(listed[:_NAMED_IN_ERRORS]) + (" ..." if len(listed) > _NAMED_IN_ERRORS else "") or "none"
