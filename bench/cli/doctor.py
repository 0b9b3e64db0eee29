"""`mirage doctor`: do keys, endpoints and model names work, and what does a first call say?"""

import os
from pathlib import Path

import click

from bench.text import one_line


@click.command()
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@click.option("--call", is_flag=True, help="Also make one tiny call to every model; says first what it may cost.")
@click.option("--yes", is_flag=True, help="Do not ask before calling.")
def doctor(sweep: Path | None, *, call: bool, yes: bool) -> int:
    """Check keys, endpoints and models of the sweep file SWEEP, or of the whole catalogue.

    Without --call nothing is spent: keys are looked for in the environment and accounts asked for their lists of
    models. Exit code 5 when something is wrong.
    """
    from bench.cli.exits import Exit
    from bench.doctor import examine, has_key, hosted, worst_nano
    from bench.loop import run_loop
    from bench.run import user_catalog
    from bench.sweepfile import load_sweep
    from engine.money import usd

    loaded = load_sweep(sweep) if sweep else None
    catalog = user_catalog(loaded)
    aliases = dict.fromkeys((*loaded.sweep.models, *loaded.sweep.judges)) if loaded else catalog.cards
    cards = hosted(catalog.card(alias) for alias in aliases)
    if call:
        ready = [card for card in cards if has_key(card, os.environ)]
        click.echo(f"{len(ready)} calls, at most {usd(worst_nano(ready))} together", err=True)
        if ready and not yes:
            click.confirm("Make them?", abort=True, err=True)
    findings = run_loop(examine(cards, os.environ, call=call))
    words = {True: "yes", False: "NO", None: "?"}
    for finding in findings:
        parts = [f"key {words[finding.key]}", f"listed {words[finding.listed]}"]
        if call and finding.key:
            parts.append(f"answered {words[finding.called]} for {usd(finding.nano)}")
        click.echo(f"{finding.alias:<20} {', '.join(parts)}  {one_line(finding.note, most=160)}".rstrip())
    bad = [each for each in findings if not each.key or not each.listed or each.called is False]
    return int(Exit.INCOMPLETE if bad else Exit.COMPLETE)
