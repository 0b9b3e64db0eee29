"""Writes the page: from a store to one HTML file. `write` is the entry point for every command line."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from analysis.context import Context, Settings, prepare
from analysis.database import reading
from analysis.export import ExportError, write_whole
from analysis.human import find_validation
from analysis.load import load
from analysis.report.island import islands
from analysis.report.pace import throughput
from analysis.report.page import Contents, render
from analysis.report.provenance import facts_of, provenance
from analysis.report.reading import read_manifest, read_settled, sample_responses
from analysis.report.rounds import accumulation_rounds
from analysis.report.sections import sections
from analysis.report.summary import caveats, findings
from analysis.tables import report_of

EXPLORED: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written: where, how large in bytes, and how many responses of how many it holds."""

    path: Path
    size: int
    shown: int
    total: int


def write(store: Path, out: Path, settings: Settings, *, sweep: str = "", explore: int | None = EXPLORED) -> Written:
    """Write the report of one sweep.

    Parameters
    ----------
    store : Path
        The sweep's SQLite file, opened read-only.
    out : Path
        The HTML file; replaced whole or not at all.
    settings : Settings
        As for the tables.
    sweep : str
        Its name; may be left out when the store holds one sweep only.
    explore : int or None
        How many responses to embed; None for all.

    Raises
    ------
    StoreError, UnknownJudgeError, NothingToReportError
        As for the tables.
    ExportError
        The file cannot be written, or would replace the store.
    """
    if out.exists() and store.exists() and out.samefile(store):
        raise ExportError(f"{out}: is the store itself; choose another --out")
    if out.is_dir():
        raise ExportError(f"{out}: is a folder; give --out the name of an HTML file")
    contents = gather(store, settings, sweep=sweep, explore=explore)
    page = render(contents)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, page)
    except OSError as error:
        raise ExportError(f"{out}: cannot be written ({error.strerror or error}); choose another --out") from error
    return Written(path=out, size=out.stat().st_size, shown=contents.islands.shown, total=contents.islands.total)


def gather(store: Path, settings: Settings, *, sweep: str = "", explore: int | None = EXPLORED) -> Contents:
    """Return all that the page says; see `write`."""
    data = load(store, sweep)
    context = prepare(data, settings)
    context = replace(context, validation=find_validation(store, data.sweep.name, context.judge))
    report, info = report_of(context), data.sweep
    with reading(store) as connection:
        manifest = read_manifest(connection, info.sweep_id)
        settled = read_settled(connection, info.name)
        sampled = sample_responses(connection, info.sweep_id, context.judge, most=explore, seed=settings.seed)
    made = (accumulation_rounds(context), throughput(settled, context))
    tables = {table.name: table for table in (*report.tables, *made)}
    last = int(settled.settled_ms.max()) if len(settled.settled_ms) else 0
    return Contents(
        sweep=info.name,
        simulated=info.simulated,
        warnings=report.warnings,
        findings=tuple(findings(context, tables)),
        caveats=tuple(caveats(context, tables)),
        sections=tuple(sections(tables, context.labels)),
        islands=islands(sampled, facts=facts_of(manifest), label=context.label, simulated=info.simulated),
        provenance=provenance(manifest, _about(context, last)),
    )


def _about(context: Context, last_ms: int) -> dict[str, object]:
    """Return what the report adds to the manifest."""
    moment = datetime.fromtimestamp(last_ms / 1000, UTC)
    return {
        "last answer in this report": f"{moment:%Y-%m-%d %H:%M:%S} UTC" if last_ms else "none",
        "judge of this report": context.judge or "none",
        "resamples and seed of the intervals": f"{context.resamples.count:,}, seed {context.settings.seed}",
        "answers that were cut short": "used" if context.settings.truncated else "missing",
    }
