"""Prints and exports the tables of a sweep: `python -m analysis STORE`.

`analyze` is the entry point for every command line; it returns an exit code:

0. Done.
2. Wrong arguments, or a store, sweep or judge that is not there.
3. The sweep has no answer yet.
4. The files of `--out` cannot be written.
130. Interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn, TextIO

from analysis.context import NothingToReportError, Settings, UnknownJudgeError, prepare
from analysis.export import ExportError, export, report_json
from analysis.headline import headline
from analysis.human import find_validation
from analysis.load import StoreError, load
from analysis.published import PAPER
from analysis.resampling import RESAMPLES
from analysis.rowfiles import FORMATS, Format, export_rows
from analysis.show import show, visible
from analysis.tables import report_of

FEWEST_RESAMPLES: Final = 100
MOST_RESAMPLES: Final = 1_000_000


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    WRONG = 2
    NOTHING = 3
    NOT_WRITTEN = 4
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for.

    Parameters
    ----------
    store : Path
        The sweep's SQLite file.
    sweep : str
        Empty when the store holds one sweep only.
    judge : str
        Empty for the manifest's first.
    out : Path or None
        Folder for the tables as CSV, JSON and LaTeX.
    rows : tuple of {"csv", "parquet"}
        Formats in which to write the sweep's rows into the folder's `rows`; with "parquet" the tables too.
    against : {"", "paper"}
        Set the tables beside the paper's.
    warned : bool
        The manifest's own notes have been said already where the tables are printed: they are not said again there.
    json : bool
        Print one JSON document instead of tables.
    truncated : bool
        Use the claims of answers that were cut short.
    resamples, seed : int
        Of the bootstrap.
    """

    store: Path
    sweep: str = ""
    judge: str = ""
    out: Path | None = None
    json: bool = False
    truncated: bool = True
    resamples: int = RESAMPLES
    seed: int = 0
    rows: tuple[Format, ...] = ()
    against: str = ""
    warned: bool = False


def analyze(options: Options, stdout: TextIO | None = None, stderr: TextIO | None = None) -> int:
    """Print the tables of one sweep and export them if asked to; a user's mistake is one line on `stderr`.

    Parameters
    ----------
    options : Options
    stdout, stderr : TextIO, optional
        The process's own when left out.

    Returns
    -------
    int
        An `Exit` code.
    """
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    try:
        return _analyze(options, stdout)
    except (StoreError, UnknownJudgeError) as error:
        code = Exit.WRONG
        message = str(error)
    except NothingToReportError as error:
        code = Exit.NOTHING
        message = str(error)
    except ExportError as error:
        code = Exit.NOT_WRITTEN
        message = str(error)
    stderr.write(f"{visible(message)}\n")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    try:
        return analyze(_options(arguments))
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough.
        with suppress(OSError):
            sys.stdout.close()
        return Exit.DONE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _analyze(options: Options, stdout: TextIO) -> int:
    settings = Settings(
        judge=options.judge, truncated=options.truncated, resamples=options.resamples, seed=options.seed
    )
    if options.rows and options.out is None:
        raise StoreError("--rows needs a folder: give --out DIR")
    data = load(options.store, options.sweep)
    judge = settings.judge or next(iter(data.sweep.judges), "")
    context = prepare(data, settings, find_validation(options.store, data.sweep.name, judge))
    report = report_of(context, against_paper=options.against == PAPER)
    if options.out is not None:
        export(report, options.out, parquet="parquet" in options.rows)
        if options.rows:
            export_rows(options.store, options.out, options.rows, data.sweep.name)
    if options.json:
        stdout.write(report_json(report))
    else:
        notes = data.sweep.notes if options.warned else ()
        show(replace(report, warnings=tuple(each for each in report.warnings if each not in notes)), stdout)
        stdout.write(f"\n{headline(context, report)}\n")
    return Exit.DONE


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake without the usage lines."""
        self.exit(Exit.WRONG, f"{self.prog}: {visible(message)}; see {self.prog} --help\n")


def _options(arguments: Sequence[str] | None) -> Options:
    parser = _Parser(
        prog="python -m analysis",
        description="Print the tables of a sweep from its store, or from a folder of its rows as Parquet.",
        epilog="exit codes: 0 done; 2 wrong arguments, store, sweep or judge; 3 no answer yet; 4 --out not writable",
    )
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="the sweep's SQLite file, opened read-only; or exported Parquet"
    )
    parser.add_argument("--sweep", default="", metavar="NAME", help="which sweep, when the store holds several")
    parser.add_argument("--judge", default="", metavar="ALIAS", help="whose labels to use (default: the first judge)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write tables as CSV, JSON and LaTeX")
    parser.add_argument(
        "--rows",
        action="append",
        choices=FORMATS,
        default=[],
        help="also write requests, records, claims and all other rows into DIR/rows; may be given twice",
    )
    parser.add_argument("--against", choices=(PAPER,), default="", help="set tables beside the paper's published ones")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument(
        "--truncated",
        choices=("use", "missing"),
        default="use",
        help="claims of answers that were cut short are used, or such answers are missing (default: use)",
    )
    parser.add_argument("--resamples", type=_resamples, default=RESAMPLES, metavar="N", help="of the bootstrap")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the bootstrap")
    found = parser.parse_args(arguments)
    return Options(
        store=found.store,
        sweep=found.sweep,
        judge=found.judge,
        out=found.out,
        json=found.json,
        truncated=found.truncated == "use",
        resamples=found.resamples,
        seed=found.seed,
        rows=tuple(dict.fromkeys(found.rows)),
        against=found.against,
    )


def _resamples(text: str) -> int:
    number = _whole(text)
    if not FEWEST_RESAMPLES <= number <= MOST_RESAMPLES:
        raise argparse.ArgumentTypeError(f"{text} is not between {FEWEST_RESAMPLES:,} and {MOST_RESAMPLES:,}")
    return number


def _seed(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error
