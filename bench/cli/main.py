"""The `mirage` command itself: groups the commands and turns a user's mistake into one line and an exit code."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

import click

from bench.cli.exits import EXITS, Exit
from bench.text import one_line
from engine.errors import StoreRefused, UserError

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code):>3}  {meaning}" for code, meaning in EXITS.items())


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is named."""

    _homes: Mapping[str, tuple[str, str]] = MappingProxyType(
        {
            "plan": ("bench.cli.plan", "plan"),
            "run": ("bench.cli.run", "run"),
            "status": ("bench.cli.status", "status"),
            "watch": ("bench.cli.look", "watch"),
            "batches": ("bench.cli.batches", "batches"),
            "analyze": ("bench.cli.analyze", "analyze"),
            "report": ("bench.cli.report", "report"),
            "inspect": ("bench.cli.look", "inspect_request"),
            "errors": ("bench.cli.look", "errors"),
            "retry": ("bench.cli.look", "retry"),
            "doctor": ("bench.cli.doctor", "doctor"),
            "models": ("bench.cli.models", "models"),
            "reparse": ("bench.cli.reparse", "reparse"),
            "personas": ("bench.cli.personas", "personas"),
            "annotate": ("bench.cli.annotate", "annotate"),
            "rehearse": ("bench.cli.rehearse", "rehearse"),
            "simulate": ("bench.cli.simulate", "simulate"),
            "bench": ("bench.cli.benchmarks", "bench"),
        }
    )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order in which one uses them."""
        return list(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        home = self._homes.get(cmd_name)
        if home is None:
            return None
        module, name = home
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="miragebench", prog_name="mirage")
def mirage() -> None:
    """Run large LLM evaluation sweeps, pay for every call once, and get numbers one can publish.

    A sweep is described by a TOML file and kept in one SQLite store. Running it again goes on where it stopped.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _open_standard_streams()
    try:
        code = mirage.main(args=arguments, prog_name="mirage", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = Exit.USAGE
    except click.exceptions.Abort:
        code = Exit.INTERRUPTED
    except UserError as error:
        click.echo(f"mirage: {one_line(str(error))}", err=True)
        code = Exit.REFUSED if isinstance(error, StoreRefused) else Exit.USAGE
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`| head`) and has seen enough; say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.COMPLETE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"mirage: the output could not be written: {error.strerror}", err=True)
        code = Exit.REFUSED
    sys.exit(int(code) if isinstance(code, int) else 0)


def _open_standard_streams() -> None:
    """Give closed standard streams to /dev/null, or the next file that is opened takes their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - they live as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
