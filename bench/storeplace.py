"""Where a run's store is, and whether it may be there. Looks at the file system, opens and makes nothing by itself.

A relative `store` is taken from the current folder, so that the same file, run from two folders, would have two stores
and pay twice. Two things protect against that: a store of the same path beside the sweep file, or above it, is found
and named instead of beginning another one; and a run says where it begins a new store.
"""

import os
from pathlib import Path

from bench.sweepfile import DEFAULT_FOLDER, LoadedFile
from engine.errors import UserError


def store_place(loaded: LoadedFile, given: Path | None) -> Path:
    """Return the path of a run's store.

    Args:
        loaded: the run's file.
        given: the path to use instead of the file's; then nothing is looked for elsewhere.

    Raises:
        UserError: no store can be there, or the same file was run from another folder.
    """
    path = given or loaded.store_path
    where = loaded.place("store") if given is None and loaded.sweep.store else str(path)
    if path.is_dir():
        raise UserError(f"the store {path} is a folder", where=where, mend="give the path of an SQLite file")
    if not path.parent.is_dir() and not _is_default(path.parent):
        raise UserError(
            f"there is no folder {path.parent} for the store",
            where=where,
            mend=f"correct `store`, or make the folder: mkdir -p {path.parent}",
        )
    if given is None and not path.exists() and (other := _elsewhere(loaded)):
        raise UserError(
            f"there is no store {path} here, but there is {other}, where another folder was the current one",
            where=where,
            mend=f"go on with it: --store {other}; or begin another one, which pays again: --store {path}",
        )
    return path


def make_folder(store: Path) -> None:
    """Make the folder that a store is to lie in.

    Raises:
        UserError: it cannot be made.
    """
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the store's folder cannot be made: {error.strerror}",
            where=str(store.parent),
            mend="choose another `store`",
        ) from error


def _is_default(folder: Path) -> bool:
    """Say whether a folder that is not there is one that runs make: `runs`, in a folder that is there."""
    return folder.name == DEFAULT_FOLDER and folder.parent.is_dir()


def _elsewhere(loaded: LoadedFile) -> Path | None:
    """Return the store that the same words mean beside the sweep file, or in a folder above it."""
    words = loaded.store_path
    if words.is_absolute() or not loaded.path.is_file():
        return None
    places = (folder / words for folder in Path(os.path.abspath(loaded.path)).parents)  # noqa: PTH100 - links stay
    return next((place for place in places if place.is_file()), None)
