"""The wiring of `mirage personas generate`: a file becomes a job of the engine, its answers a file of personas."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from bench.design import check_model
from bench.manifest import Manifest, generation_manifest, modes_of
from bench.modes import Key, Mode
from bench.personafiles import personas_folder, write_personas
from bench.run import Checked, Job, routes, user_catalog
from bench.sweepfile import GenerateFile, LoadedGeneration, SweepFile, batch_policy, caps, load_generation
from engine.cell import Cell
from engine.database import open_reader
from engine.errors import UserError
from engine.request import Request
from engine.store import Store, Sweep
from instruments.generator import (
    PROMPT,
    STAGE,
    Answer,
    Chosen,
    GeneratedBody,
    Generation,
    GeneratorReader,
    Question,
    choose,
    load_occupations,
    make_slots,
    plan,
)
from instruments.instrument import StageSettings
from instruments.personas import Persona, load_personas
from instruments.prompts import load_prompts
from providers.adapt import adapt
from providers.catalog import Catalog

# A persona's id holds the run's name and a number.
LONGEST_NAME: Final = 48
# A rejected draw leads to another one of the same stage.
FEEDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType({STAGE: frozenset({STAGE})})
# What only a sweep file says; judges have no place in a generation either.
ONLY_SWEEPS: Final = frozenset({*SweepFile.__struct_fields__} - {*GenerateFile.__struct_fields__} | {"judges"})
_ANSWERS: Final = (
    "SELECT a.persona, a.sample, a.state, a.reason, a.reading FROM answers a JOIN sweeps s ON s.sweep_id = a.sweep_id"
    " WHERE s.sweep = ? AND a.stage = ? ORDER BY a.persona, a.sample"
)


class PreparedGeneration(Checked, frozen=True, kw_only=True):
    """A generation that is checked and resolved; nothing has been sent, nothing written."""

    loaded: LoadedGeneration
    generation: Generation
    out: Path


def prepare_generation(
    loaded: LoadedGeneration, *, store: Path | None = None, simulated: bool = False
) -> PreparedGeneration:
    """Check a generation wholly before anything happens.

    Raises:
        UserError: anything in it that cannot work.
    """
    catalog = user_catalog(loaded)
    generation = build_generation(loaded, catalog)
    given = loaded.sweep.generate.out
    prepared = PreparedGeneration(
        loaded=loaded,
        catalog=catalog,
        manifest=generation_manifest(loaded, generation, catalog, simulated=simulated),
        store_path=store or loaded.store_path,
        generation=generation,
        out=Path(given).expanduser() if given else personas_folder() / f"{loaded.sweep.name}.toml",
    )
    routes(prepared)
    caps(loaded)
    batch_policy(loaded)
    return prepared


def load_own(path: Path) -> LoadedGeneration:
    """Read a file for `mirage personas generate`; a file of another kind is called what it is.

    Raises:
        UserError: the file cannot be read, is of another kind, or does not say what a generation needs.
    """
    try:
        named = tomllib.loads(path.read_text("utf-8")).keys()
    except (OSError, ValueError, RecursionError):
        named = {}.keys()  # what is wrong is said below
    if "persona" in named:
        raise UserError(
            "this is a file of personas, not one that has a model write them",
            where=str(path),
            mend=f"`mirage personas validate {path}` checks it, `generated_personas` in a sweep file uses it",
        )
    if "generate" not in named and named & ONLY_SWEEPS:
        raise UserError(
            "this is a sweep file; a file that has a model write personas has a [generate] table instead of"
            f" {', '.join(sorted(named & ONLY_SWEEPS))}",
            where=str(path),
            mend="`mirage run` runs sweeps; see sweeps/personas.toml for an example of the other kind",
        )
    return load_generation(path)


def build_generation(loaded: LoadedGeneration, catalog: Catalog) -> Generation:
    """Return the generation that a file describes.

    Raises:
        UserError: it names no known model, or asks for more personas than its occupations allow.
    """
    sweep, table = loaded.sweep, loaded.sweep.generate
    (alias,) = sweep.models
    check_model(catalog.card(alias), loaded)
    occupations = load_occupations() if isinstance(table.occupations, str) else table.occupations
    slots = make_slots(table.number, table.groups, occupations, seed=table.seed, prefix=_prefix(loaded))
    return Generation(
        slots=slots,
        subject=alias,
        prompts=load_prompts(),
        settings=StageSettings(temperature=table.temperature, max_tokens=table.max_tokens),
        tries=table.tries,
        seed=table.seed,
    )


def question_composer(
    generation: Generation, catalog: Catalog, modes: Mapping[Key, Mode]
) -> Callable[[Question], Cell]:
    """Return the function that turns a question into a cell with its request, fitted to the model that writes."""
    card = catalog.card(generation.subject)
    batch = modes.get((generation.subject, STAGE)) is Mode.BATCH
    encode = msgspec.json.encode

    def compose(question: Question) -> Cell:
        decoding, changes = adapt(card, question.decoding)
        return Cell(
            stage=STAGE,
            alias=generation.subject,
            coords=encode(question.coords),
            request=Request(
                provider=card.provider,
                model=card.model,
                messages=question.messages,
                decoding=decoding,
                sample=question.sample,
            ),
            changes=encode(changes) if changes else b"",
            batch=batch,
            priority=question.slot.number,
        )

    return compose


def generation_job(prepared: PreparedGeneration) -> Job:
    """Return a prepared generation as something to run; slots whose persona resembles another's are drawn again."""
    generation = prepared.generation
    expected = {STAGE: len(generation.slots)}
    compose = _counting(question_composer(generation, prepared.catalog, modes_of(prepared.manifest)), expected)

    async def more(store: Store, sweep: Sweep) -> Sequence[Cell]:
        chosen = choose(generation, await read_answers(store.path, sweep.name))
        return [compose(question) for question in chosen.again]

    return Job(
        feeds=FEEDS,
        loaded=prepared.loaded,
        catalog=prepared.catalog,
        manifest=prepared.manifest,
        store_path=prepared.store_path,
        reader=GeneratorReader(generation, compose),
        roots=lambda: (compose(question) for question in plan(generation)),
        expected=expected,
        more=more,
    )


def _counting(compose: Callable[[Question], Cell], expected: dict[str, int]) -> Callable[[Question], Cell]:
    """Return `compose`, which also keeps count of the draws, of which every rejected one leads to another."""
    known: set[bytes] = set()

    def counted(question: Question) -> Cell:
        cell = compose(question)
        known.add(cell.coords)
        expected[STAGE] = max(expected[STAGE], len(known))
        return cell

    return counted


async def read_answers(path: Path, sweep: str) -> dict[str, list[Answer]]:
    """Return what became of the draws of every slot, by rising attempt."""
    connection = await open_reader(path)
    try:
        rows = await connection.execute_fetchall(_ANSWERS, (sweep, STAGE))
    finally:
        await connection.close()
    answers: dict[str, list[Answer]] = {}
    for slot, attempt, state, reason, reading in rows:
        persona = msgspec.json.decode(reading, type=GeneratedBody).persona if state == "read" else None
        answers.setdefault(slot, []).append(Answer(attempt=attempt, state=state, reason=reason, persona=persona))
    return answers


async def collect(prepared: PreparedGeneration) -> Chosen:
    """Write the personas that a finished run has accepted, with where they come from; return them.

    Raises:
        UserError: the file cannot be written.
    """
    generation = prepared.generation
    chosen = choose(generation, await read_answers(prepared.store_path, prepared.manifest.name))
    if chosen.personas:
        personas = [_with_provenance(prepared, persona, attempt) for persona, attempt in chosen.personas]
        write_personas(prepared.out, personas, _header(prepared.manifest, generation, chosen))
    return chosen


def _prefix(loaded: LoadedGeneration) -> str:
    """Return the beginning of the personas' ids: the run's name, unless shipped personas are called so."""
    name = loaded.sweep.name
    taken = {persona.id.rpartition("_")[0] for persona in load_personas()}
    if name in taken or len(name) > LONGEST_NAME:
        raise UserError(
            f"personas of a run called `{name}` would have the ids of shipped ones, or too long ones",
            where=f"{loaded.path}: name",
            mend=f"give the run another name of at most {LONGEST_NAME} characters",
        )
    return name


def _with_provenance(prepared: PreparedGeneration, persona: Persona, attempt: int) -> Persona:
    generation, manifest = prepared.generation, prepared.manifest
    model = manifest.models[generation.subject]
    target = generation.slots[persona.id].occupation
    said = (
        f"{'SIMULATED: ' if manifest.simulated else ''}written by {model.provider}/{model.model} in run"
        f" {manifest.name}, prompt {generation.prompts.tag(PROMPT)}, target '{target}', draw {attempt + 1}"
    )
    return msgspec.structs.replace(persona, provenance=said)


def _header(manifest: Manifest, generation: Generation, chosen: Chosen) -> list[str]:
    model = manifest.models[generation.subject]
    groups: Mapping[str, int] = {
        group: sum(persona.group == group for persona, _ in chosen.personas)
        for group in dict.fromkeys(slot.group.value for slot in generation.slots.values())
    }
    sizes = ", ".join(f"{count} {group}" for group, count in groups.items())
    prompt = f"the paper's prompt (G.8, {generation.prompts.tag(PROMPT)})"
    filled = f"{len(chosen.personas)} of {len(generation.slots)} slots filled, {sizes}"
    return [
        *(["SIMULATED: no model has written these personas."] if manifest.simulated else []),
        f"Personas written by {model.provider}/{model.model} with {prompt}.",
        f"Run {manifest.name}, seed {generation.seed}: {filled}.",
        "`reveals` lists the occupation and the attributes that share a telling word with a fact; look them through.",
    ]
