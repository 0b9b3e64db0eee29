"""Files of personas: where the user's own lie, how a data set's CSV is read, how a file is written whole or not."""

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from engine.errors import UserError
from instruments.personafile import persona_toml
from instruments.personamem import Choice, Gathered, choose, gather, header
from instruments.personas import Persona, Source, load_persona_file, load_personas

# Conversations stand in one field; the csv module's own limit is 128 kB.
LARGEST_FIELD: Final = 64 * 1024 * 1024
_BLOCK: Final = 1 << 20


class _OwnFiles(msgspec.Struct, frozen=True):
    """What a sweep file says about personas of its author's own."""

    imported_personas: str = ""
    generated_personas: str = ""


def sweep_personas(sweep_file: str, given: Sequence[Path] = ()) -> dict[str, Persona]:
    """Return the personas that a sweep may have used, by id: the shipped ones, its own files' and those of `given`.

    Args:
        sweep_file: the text of the sweep file, as the store keeps it; empty where it does not.
        given: files named by the user, for when the sweep's own have moved; they win, and then none is required.

    Raises:
        UserError: a file is not there, or is none of personas.
    """
    try:
        own = msgspec.toml.decode(sweep_file, type=_OwnFiles)
    except msgspec.DecodeError:
        own = _OwnFiles()
    named = [Path(file).expanduser() for file in (own.imported_personas, own.generated_personas) if file]
    if lost := [file for file in named if not given and not file.is_file()]:
        mend = "give it with --persona-file, or do this in the folder in which the sweep was run"
        raise UserError("the sweep's file of personas is not there", where=str(lost[0]), mend=mend)
    files = [file for file in named if file.is_file()]
    everyone = [*load_personas(), *(persona for file in (*files, *given) for persona in load_persona_file(file))]
    return {persona.id: persona for persona in everyone}


def personas_folder() -> Path:
    """Return the folder for the user's own personas."""
    return Path(platformdirs.user_data_dir("mirage")) / "personas"


def import_personas(source: Path, out: Path, *, number: int, seed: int) -> tuple[Gathered, Choice]:
    """Make personas of a CSV file of PersonaMem-v2 and write them to `out`; return what was found and made.

    Raises:
        UserError: the file is not one of the data set's, no persona can be made of it, or `out` cannot be written.
    """
    digest = _digest(source)
    with _rows(source) as rows:
        gathered = gather(rows)
    others = [persona for persona in load_personas() if persona.source is not Source.IMPORTED]
    choice = choose(gathered, number=number, seed=seed, others=others)
    if not choice.personas:
        reasons = ", ".join(f"{count} {reason}" for reason, count in choice.passed_over.items()) or "it has no rows"
        raise UserError(
            f"no persona can be made of this file: {reasons}", where=str(source), mend="give a larger CSV file"
        )
    write_personas(out, choice.personas, header(source.name, digest, gathered, choice, seed=seed))
    return gathered, choice


def write_personas(out: Path, personas: Iterable[Persona], head: Sequence[str]) -> None:
    """Write a file of personas; a crash leaves the old file or the new one.

    Raises:
        UserError: the file cannot be written.
    """
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            file.write(persona_toml(personas, head))
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UserError(
            f"the personas cannot be written: {error.strerror}", where=str(out), mend="choose another --out"
        ) from error


@contextmanager
def _rows(source: Path) -> Iterator[Iterator[Mapping[str, str]]]:
    before = csv.field_size_limit(LARGEST_FIELD)
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            yield csv.DictReader(file)
    except UnicodeDecodeError as error:
        raise UserError("the file is not UTF-8 text", where=str(source), mend="give the CSV file as it came") from error
    except csv.Error as error:
        raise UserError(f"this is not a CSV file: {error}", where=str(source), mend="give a CSV file") from error
    except OSError as error:
        raise _unreadable(source, error) from error
    finally:
        csv.field_size_limit(before)


def _digest(source: Path) -> str:
    """Return the hash that says which file it was."""
    total = blake2b(digest_size=16)
    try:
        with source.open("rb") as file:
            while block := file.read(_BLOCK):
                total.update(block)
    except OSError as error:
        raise _unreadable(source, error) from error
    return total.hexdigest()


def _unreadable(source: Path, error: OSError) -> UserError:
    return UserError(f"the file cannot be read: {error.strerror}", where=str(source), mend="check the path")
