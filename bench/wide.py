"""A console for tables of figures: as wide as the terminal, and wide enough for whole rows where there is none."""

import sys
from typing import Final

from rich.console import Console

ROW: Final = 140


def wide_console() -> Console:
    """Return a console that shows text as it is."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else ROW)
