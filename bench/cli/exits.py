"""Exit codes, and what each tells a script."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from engine.events import Outcome


class Exit(IntEnum):
    """What the process says when it ends."""

    COMPLETE = 0
    DEFECT = 1
    USAGE = 2
    BUDGET = 3
    STOPPED = 4
    INCOMPLETE = 5
    REFUSED = 6
    INTERRUPTED = 130


EXITS: Final[Mapping[Exit, str]] = {
    Exit.COMPLETE: "everything asked for is done",
    Exit.DEFECT: "a defect of this program",
    Exit.USAGE: "something you can mend: a wrong file, option, key, model or path",
    Exit.BUDGET: "a cap was reached; raise it and run again to go on",
    Exit.STOPPED: "a provider refused the key or its quota; mend that and run again to go on",
    Exit.INCOMPLETE: "done, but some requests failed for good (`mirage status` counts them)",
    Exit.REFUSED: "the disk took no more writes",
    Exit.INTERRUPTED: "stopped by you; run again to go on",
}

OF_OUTCOME: Final[Mapping[Outcome, Exit]] = {
    Outcome.COMPLETE: Exit.COMPLETE,
    Outcome.INCOMPLETE: Exit.INCOMPLETE,
    Outcome.BUDGET: Exit.BUDGET,
    Outcome.STOPPED: Exit.STOPPED,
    Outcome.INTERRUPTED: Exit.INTERRUPTED,
    Outcome.REFUSED: Exit.REFUSED,
}
