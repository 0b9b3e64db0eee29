"""The command line. One module a command group; heavy imports happen inside the commands, so `--help` is quick."""

from bench.cli.main import main

__all__ = ["main"]
