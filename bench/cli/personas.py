"""`mirage personas`: import, generate, validate, show and list the invented users of the benchmark."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.exits import EXITS, OF_OUTCOME, Exit
from bench.text import one_line, printable

if TYPE_CHECKING:
    from bench.generating import PreparedGeneration
    from bench.run import Result
    from instruments.generator import Chosen
    from instruments.personas import Persona, Problem

_FILE = click.Path(path_type=Path)
_SHOWN = 20


@click.group()
def personas() -> None:
    """Import, generate, check and look at personas: the invented users of whom three facts are revealed."""


@personas.command("import")
@click.argument("source", metavar="CSV", type=_FILE)
@click.option("--out", type=_FILE, help="File to write; `imported.toml` in your data folder by default.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Decides which rows are drawn.")
@click.option("--number", type=click.IntRange(1), default=70, show_default=True, help="How many personas to make.")
def import_csv(source: Path, out: Path | None, seed: int, number: int) -> int:
    """Make personas of PersonaMem-v2, a data set that you have downloaded as CSV (benchmark/text/*.csv).

    Facts are the occupation and two drawn preferences, put into the first person by rule; rows that are sensitive,
    outdated, about others, or that look like a secret are left out. The licence notice goes into the file.
    """
    from bench.personafiles import import_personas, personas_folder

    target = out or personas_folder() / "imported.toml"
    gathered, choice = import_personas(source, target, number=number, seed=seed)
    click.echo(f"{len(choice.personas)} personas from {gathered.records} rows: {one_line(str(target))}")
    for what, counts in (("rows left out", gathered.dropped), ("personas passed over", choice.passed_over)):
        if counts:
            click.echo(f"{what}: " + ", ".join(f"{count} {one_line(reason)}" for reason, count in counts.items()))
    if len(choice.personas) < number:
        click.echo(f"note: {number} were asked for; the file allows no more")
    click.echo(f'use them: imported_personas = "{one_line(str(target))}" in a sweep file')
    return 0


@personas.command()
@click.argument("sweep", type=_FILE)
@click.option("--store", type=_FILE, help="SQLite file to use instead of the file's own.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
def generate(sweep: Path, store: Path | None, *, plain: bool) -> int:
    """Have a model write personas with the paper's prompt (G.8), as the TOML file SWEEP says, or go on with it.

    Answers that break a constraint are drawn again. It keeps to its budget and resumes like any other sweep.
    """
    from bench.generating import collect, load_own, prepare_generation
    from bench.loop import run_loop
    from bench.simulated import marked
    from bench.storeplace import store_place
    from bench.usednames import check_tables

    loaded = load_own(sweep)
    prepared = run_loop(marked(prepare_generation(loaded, store=store_place(loaded, store))))
    check_tables(prepared.loaded, prepared.catalog)
    result = _run(prepared, plain=plain)
    end = OF_OUTCOME[result.outcome]
    where = f"store: {one_line(str(prepared.store_path))}"
    if end not in (Exit.COMPLETE, Exit.INCOMPLETE):
        click.echo(f"{EXITS[end]}. {where}")
        return int(end)
    chosen = run_loop(collect(prepared))
    click.echo(f"{'done, but not every persona was accepted' if chosen.empty else EXITS[end]}. {where}")
    _say_chosen(prepared, chosen)
    return int(Exit.INCOMPLETE if chosen.empty else end)


@personas.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--whole", is_flag=True, help="Ask of FILE what a whole benchmark has: all ages, groups of equal size.")
def validate(file: Path | None, *, whole: bool) -> int:
    """Check the personas of FILE, or the shipped ones with their conversations."""
    from instruments import personas as model

    problems: list[Problem]
    if file is None:
        everyone = model.load_personas()
        problems = [*model.validate(everyone), *model.validate_scripts(model.load_scripts(), everyone)]
    else:
        everyone = model.load_persona_file(file)
        problems = model.validate(everyone, whole=whole)
    for problem in problems:
        click.echo(one_line(str(problem)))
    counted = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}" if problems else "no problem"
    click.echo(f"{len(everyone)} personas, {counted}")
    return int(Exit.USAGE if problems else Exit.COMPLETE)


@personas.command()
@click.argument("name", metavar="ID")
@click.option("--file", type=_FILE, help="Look in this file instead of the shipped ones.")
def show(name: str, file: Path | None) -> int:
    """Show one persona: its facts, its profile with what the facts reveal marked, and its conversation."""
    from engine.errors import UserError
    from instruments.personas import load_scripts

    found = next((persona for persona in _load(file) if persona.id == name), None)
    if found is None:
        raise UserError(f"there is no persona `{name}`", where=str(file or "shipped"), mend="`mirage personas list`")
    click.echo(f"{found.id}  {found.group.value}, {found.source.value}")
    if found.provenance:
        click.echo(one_line(found.provenance))
    click.echo("facts")
    for number, fact in enumerate(found.facts, 1):
        click.echo(f"  {number}. {printable(fact)}")
    click.echo("profile (* given away by the facts)")
    for key, value in found.attributes.known().items():
        click.echo(f"  {'*' if key in found.reveals else ' '} {key.replace('_', ' ')}: {printable(str(value))}")
    script = None if file else load_scripts().get(name)
    if script is not None:
        click.echo("conversation")
        for number, said in enumerate(script.utterances, 1):
            click.echo(f"  {number}. {printable(said)}")
        if script.contradiction:
            overturned = script.contradiction
            click.echo(f"  round {overturned.round} contradicts: the user {printable(overturned.contradicts)}")
    return 0


@personas.command("list")
@click.option("--file", type=_FILE, help="List this file instead of the shipped ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_all(file: Path | None, *, as_json: bool) -> int:
    """List personas with group, source, age, occupation and what their facts reveal."""
    everyone = _load(file)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(everyone), indent=2).decode())
        return 0
    from rich.table import Column, Table

    from bench.wide import print_table

    table = Table(*(Column(head, no_wrap=True) for head in ("id", "group", "source", "age")), "occupation", "reveals")
    for each in everyone:
        age, occupation = str(each.attributes.age or "-"), one_line(each.attributes.occupation or "-", most=60)
        table.add_row(each.id, each.group.value, each.source.value, age, occupation, one_line(", ".join(each.reveals)))
    print_table(table, drop=("source", "reveals", "age"))
    return 0


def _load(file: Path | None) -> "tuple[Persona, ...]":
    from instruments.personas import load_persona_file, load_personas

    return load_persona_file(file) if file else load_personas()


def _run(prepared: "PreparedGeneration", *, plain: bool) -> "Result":
    from rich.console import Console

    from bench.display import Display
    from bench.generating import generation_job
    from bench.loop import run_loop
    from bench.run import run_job
    from bench.runlog import RunLog
    from engine.events import Notice

    console = Console(stderr=True, force_terminal=False if plain else None, markup=False)
    manifest = prepared.manifest

    async def body() -> "Result":
        log = RunLog(prepared.store_path)
        try:
            async with Display(console, f"personas {manifest.name}", simulated=manifest.simulated) as display:

                def listen(notice: Notice) -> None:
                    display.listen(notice)
                    log.write(notice)

                return await run_job(generation_job(prepared), listen=listen, watch=display.watch)
        finally:
            log.close()

    return run_loop(body())


def _say_chosen(prepared: "PreparedGeneration", chosen: "Chosen") -> None:
    total = len(prepared.generation.slots)
    click.echo(f"{len(chosen.personas)} of {total} personas accepted")
    for slot, reason in list(chosen.empty.items())[:_SHOWN]:
        click.echo(f"  {slot} stays empty: {one_line(reason, most=200)}")
    if len(chosen.empty) > _SHOWN:
        click.echo(f"  and {len(chosen.empty) - _SHOWN} more")
    if chosen.empty:
        click.echo("raise `tries` in [generate] and run again to draw more")
    if chosen.personas:
        click.echo(f'use them: generated_personas = "{one_line(str(prepared.out))}" in a sweep file')
