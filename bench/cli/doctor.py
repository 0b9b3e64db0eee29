"""`mirage doctor`: do keys, endpoints and model names work, and what does a first call say?"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.text import one_line

if TYPE_CHECKING:
    from bench.doctor import Finding
    from bench.sweepfile import LoadedFile
    from providers.catalog import Catalog

_WORDS = {True: "yes", False: "NO", None: "?"}


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@click.option("--call", is_flag=True, help="Also make one tiny call to every model; says first what it may cost.")
@click.option("--yes", is_flag=True, help="Do not ask before calling.")
def doctor(sweep: Path | None, *, call: bool, yes: bool) -> int:
    """Check keys, endpoints and models of the sweep file SWEEP, or of the whole catalogue.

    Without --call nothing is spent: keys are looked for in the environment and accounts asked for their lists of
    models. Of local models it says where they are, and loads nothing. SWEEP may also be a file of `mirage personas
    generate`. Exit code 2 when there is something to mend.
    """
    from bench.cli.exits import Exit
    from bench.doctor import examine, has_key, hosted, look_for_local, worst_nano
    from bench.loop import run_loop
    from bench.run import user_catalog
    from bench.sweepfile import load_file
    from engine.money import dollars

    loaded = load_file(sweep) if sweep else None
    catalog = user_catalog(loaded)
    aliases = list(catalog.cards) if loaded is None else _named(loaded, catalog)
    everyone = [catalog.cards[alias] for alias in aliases]
    cards = hosted(everyone)
    if call:
        ready = [card for card in cards if has_key(card, os.environ)]
        click.echo(f"{len(ready)} calls, at most {dollars(worst_nano(ready))} together", err=True)
        if ready and not yes:
            click.confirm("Make them?", abort=True, err=True)
    found = {each.alias: each for each in run_loop(examine(cards, os.environ, call=call))}
    place = str(loaded.sweep.local.get("model", "")) if loaded else ""
    findings = [found.get(card.alias) or look_for_local(card, place) for card in everyone]
    for finding in findings:
        click.echo(f"{one_line(finding.alias):<20} {_said(finding)}  {one_line(finding.note, most=200)}".rstrip())
    return int(Exit.COMPLETE if all(each.good for each in findings) else Exit.USAGE)


def _named(loaded: "LoadedFile", catalog: "Catalog") -> list[str]:
    """Return the models of a run's file, once its names are checked."""
    from bench.localmodel import check_words
    from bench.usednames import check_tables, check_used, known_card

    aliases = dict.fromkeys((*loaded.sweep.models, *loaded.sweep.judges))
    check_used(loaded, {alias: known_card(catalog, alias, loaded) for alias in aliases})
    check_tables(loaded, catalog)
    check_words(loaded)
    return list(aliases)


def _said(finding: "Finding") -> str:
    from engine.money import dollars

    if finding.local:
        return f"local model {'yes' if finding.listed else 'NO'}"
    if not finding.key:
        return "key NO"
    parts = ["key yes", f"listed {_WORDS[finding.listed]}"]
    if finding.called is not None:
        parts.append(f"answered {_WORDS[finding.called]} for {dollars(finding.nano)}")
    if finding.simulated:
        parts.append("SIMULATED")
    return ", ".join(parts)
