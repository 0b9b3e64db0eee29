"""`mirage annotate`: a judge validated by people, who label a blind sample in the browser or in a sheet."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.text import one_line
from engine.errors import UserError

if TYPE_CHECKING:
    import sqlite3

    from instruments.annotation.sample import SamplePlan
    from instruments.annotation.store import Sample

_STORE = click.argument("store", type=click.Path(path_type=Path))
_SAMPLE = click.option("--sample", "name", default="", help="Name of the sample; needed when the store holds several.")


@click.group()
def annotate() -> None:
    """Have people label claims blindly, and see how far the judge agrees with them (paper, Appendix H).

    \b
    mirage annotate sample STORE       draw claims, the same number for each of the judge's labels
    mirage annotate serve STORE        label them in the browser
    mirage annotate agreement STORE    compare people with the judge and with each other
    """  # noqa: D301 - click reads the backspace


@annotate.command()
@_STORE
@click.option("--sweep", default="", help="Name of the sweep; needed when the store holds several.")
@click.option("--judge", default="", help="Alias of the judge to validate; the sweep's first by default.")
@click.option("--size", type=click.IntRange(1), default=400, show_default=True, help="Claims, a quarter a label.")
@click.option("--seed", type=int, default=42, show_default=True)
@click.option("--models", type=click.IntRange(0), default=8, show_default=True, help="Least models a label.")
@click.option("--tasks", type=click.IntRange(0), default=5, show_default=True, help="Least tasks a label.")
@click.option("--personas", type=click.IntRange(0), default=20, show_default=True, help="Least personas a label.")
@click.option("--name", default="", help="Name of the sample; SWEEP-JUDGE-SIZE-SEED by default.")
@click.option(
    "--persona-file",
    "persona_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="File of personas that the sweep used, once or more, if it has moved since.",
)
def sample(
    store: Path,
    sweep: str,
    judge: str,
    size: int,
    seed: int,
    models: int,
    tasks: int,
    personas: int,
    name: str,
    persona_files: tuple[Path, ...],
) -> int:
    """Draw a blind sample of judged claims from STORE. The same store, seed and size give the same sample.

    Imported and generated personas are read from the files that the sweep file names, from the current folder.
    """
    from instruments.annotation.sample import SamplePlan, Spread

    plan = SamplePlan(size=size, seed=seed, least=Spread(models=models, tasks=tasks, personas=personas))
    with _opened(store) as connection:
        drawn, is_new = _draw(connection, plan, sweep=sweep, judge=judge, name=name, persona_files=persona_files)
    _tell_sample(drawn, is_new=is_new)
    return 0


@annotate.command()
@_STORE
@_SAMPLE
@click.option("--annotator", "names", multiple=True, required=True, help="Who labels; give it again for more people.")
@click.option(
    "--overlap", default="all", show_default=True, help="Claims for everyone; whoever comes first gets the others."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8642, show_default=True, help="0 takes a free one.")
@click.option("--allow-remote", is_flag=True, help="Let --host be an address that other machines can reach.")
def serve(
    store: Path, name: str, names: tuple[str, ...], overlap: str, host: str, port: int, *, allow_remote: bool
) -> int:
    """Serve the labelling page for a sample in STORE, to this machine only; one private link for each annotator.

    Every label is in the store when the page moves on. Stop with Ctrl-C; the same command goes on where you left. Works
    also while a sweep writes to STORE.
    """
    from bench.annotating import Listening, serve_page
    from instruments.annotation.store import annotators_of, checked_annotator, find_sample

    with _opened(store) as connection:
        found = find_sample(connection, name)
        known = annotators_of(connection, found.id)
    people = list(dict.fromkeys(checked_annotator(each, known) for each in names))
    serve_page(
        store,
        found.id,
        people,
        _overlap(overlap),
        Listening(host=host, port=port, allow_remote=allow_remote),
        tell=click.echo,
        warn=lambda line: click.echo(f"mirage: {one_line(line)}", err=True),
    )
    with _opened(store) as connection:
        _tell_progress(connection, found.name, people)
    return 0


@annotate.command()
@_STORE
@_SAMPLE
@click.option("--annotator", "names", multiple=True, help="Whose sheet, once or more; by default all who labelled.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write instead of standard output."
)
def export(store: Path, name: str, names: tuple[str, ...], out: Path | None) -> int:
    """Write a sample of STORE as a CSV sheet, with the labels so far; as blind as the page.

    For people who label elsewhere: fill the column `label` and bring the file back with `mirage annotate import`.
    """
    from instruments.annotation.sheets import write_sheet
    from instruments.annotation.store import annotators_of, checked_annotator, current_labels, find_sample, shown_items

    with _opened(store) as connection:
        found = find_sample(connection, name)
        known = annotators_of(connection, found.id)
        people = [checked_annotator(each, known) for each in names] or known
        if not people:
            raise UserError("nobody has labelled yet", where="--annotator", mend="name whose sheet this will be")
        text = write_sheet(shown_items(connection, found.id), current_labels(connection, found.id), people)
    _write(text.encode(), out)
    return 0


@annotate.command(name="import")
@_STORE
@click.argument("sheet", type=click.Path(path_type=Path))
@_SAMPLE
@click.option("--annotator", default="", help="Who labelled, where the sheet does not say.")
@click.option("--replace", is_flag=True, help="Labels in the sheet win over those in the store.")
def import_(store: Path, sheet: Path, name: str, annotator: str, *, replace: bool) -> int:
    """Bring the labels of SHEET, a CSV file, into STORE: all of them, or none when any row is wrong."""
    from instruments.annotation.sheets import read_sheet
    from instruments.annotation.store import annotators_of, checked_annotator, find_sample, shown_items, write_labels

    data = _read(sheet)
    with _opened(store) as connection:
        found = find_sample(connection, name)
        known = annotators_of(connection, found.id)
        ids = {item for item, *_ in shown_items(connection, found.id)}
        whose = checked_annotator(annotator, known) if annotator else ""
        rows, blank = read_sheet(data, ids, annotator=whose, now_ms=_now_ms(), where=str(sheet))
        for each in {row.annotator for row in rows}:
            checked_annotator(each, known)
        added, same = write_labels(connection, rows, now_ms=_now_ms(), replace=replace)
    click.echo(f"{added} labels imported, {same} were there already, {blank} rows hold none")
    return 0


@annotate.command()
@_STORE
@_SAMPLE
@click.option("--annotator", default="", help="Compare the judge with this one; by default with all, item by item.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for CSV and JSON files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def agreement(store: Path, name: str, annotator: str, out: Path | None, *, as_json: bool) -> int:
    """Compare the labels in STORE with the judge's, and annotators with each other (Table 11, H.2 to H.4).

    It shows the judge's labels: whoever still labels should not look.
    """
    from analysis.export import ExportError, export, report_json
    from analysis.show import show
    from analysis.validation import ValidationError, make_validation_report, read_validation
    from engine.database import check_place

    check_place(store)
    try:
        report = make_validation_report(read_validation(store, name), annotator)
        if out is not None:
            export(report, out)
    except (ValidationError, ExportError) as error:
        raise UserError(str(error)) from error
    if as_json:
        click.echo(report_json(report), nl=False)
    else:
        show(report, sys.stdout)
    return 0


def _draw(
    connection: "sqlite3.Connection",
    plan: "SamplePlan",
    *,
    sweep: str,
    judge: str,
    name: str,
    persona_files: Sequence[Path],
) -> "tuple[Sample, bool]":
    """Return the sample of that name and whether it is new; an existing one is never drawn again."""
    from bench.personafiles import sweep_personas
    from instruments.annotation.judged import candidates, find_judged, items_of
    from instruments.annotation.sample import draw
    from instruments.annotation.store import add_sample, find_sample, list_samples
    from instruments.tasks import load_tasks

    judged = find_judged(connection, sweep, judge)
    name = name or f"{judged.name}-{judged.judge}-{plan.size}-{plan.seed}"
    for known in list_samples(connection):
        if known.name == name:
            if (known.sweep, known.judge, known.plan) != (judged.name, judged.judge, plan):
                raise UserError(f"sample {name!r} was drawn otherwise", where="--name", mend="give another name")
            return known, False
    drawn = draw(candidates(connection, judged), plan)
    personas = sweep_personas(_sweep_file(connection, judged.id), persona_files)
    items = items_of(connection, name, drawn.claims, judged, personas, load_tasks())
    add_sample(
        connection, items, drawn.strata, name=name, sweep_id=judged.id, judge=judged.judge, plan=plan, now_ms=_now_ms()
    )
    return find_sample(connection, name), True


def _sweep_file(connection: "sqlite3.Connection", sweep_id: int) -> str:
    """Return the text of the sweep file that the store keeps, or an empty one."""
    query = "SELECT manifest ->> '$.sweep_file' FROM sweep WHERE id = ?"
    return str(connection.execute(query, (sweep_id,)).fetchone()[0] or "")


def _tell_sample(drawn: "Sample", *, is_new: bool) -> None:
    from instruments.annotation.sample import shortfalls

    simulated = ", SIMULATED" if drawn.simulated else ""
    population = sum(drawn.population.values())
    state = "drawn" if is_new else "exists already and stays as it was drawn"
    click.echo(f"sample {one_line(drawn.name)} {state}: {drawn.items} of {population:,} claims{simulated}")
    for line in shortfalls(drawn.strata):
        click.echo(f"  {line}")
    if exchanged := sum(stratum.exchanged for stratum in drawn.strata):
        click.echo(f"  {exchanged} claims made room for rarer models, tasks or personas")


def _tell_progress(connection: "sqlite3.Connection", name: str, people: Sequence[str]) -> None:
    rows = connection.execute("SELECT annotator, labelled, skipped FROM annotation_progress WHERE sample = ?", (name,))
    counts = {annotator: (labelled, skipped) for annotator, labelled, skipped in rows}
    for annotator in people:
        labelled, skipped = counts.get(annotator, (0, 0))
        click.echo(f"{annotator}: {labelled} labelled, {skipped} skipped")


def _overlap(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{text!r} is no overlap", where="--overlap", mend="give a number of claims, or `all`")
    return int(text)


@contextmanager
def _opened(store: Path) -> "Iterator[sqlite3.Connection]":
    from engine.database import check_place, explained
    from instruments.annotation.store import open_annotations

    check_place(store)
    with explained(store), closing(open_annotations(store)) as connection:
        yield connection


def _write(data: bytes, out: Path | None) -> None:
    if out is None:
        click.echo(data, nl=False)
        return
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_bytes(data)
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        what = f"the sheet cannot be written: {error.strerror}"
        raise UserError(what, where=str(out), mend="choose another --out") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"the sheet cannot be read: {error.strerror}"
        raise UserError(what, where=str(path), mend="check the path") from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
