"""What the user wants of batches: how long to wait, and what becomes of what a batch left over. A record."""

from typing import Literal

import msgspec


class BatchPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How batches are formed and watched; times in seconds.

    Attributes:
        flush_after: a request waits at most so long for its batch to fill.
        most_requests: the user's own bound on the size of a batch, or None for the provider's.
        deadline: age at which a batch is cancelled, its finished part read and the rest sent again; None: the
            provider's own window.
        leftovers: where requests go that a batch did not run.
        first_poll, longest_poll: bounds on the time between two looks at a batch; it grows with the batch's age.
        grace: a list of the provider's may lag so far behind a create whose answer was lost.
        results_patience: results that are announced and not there, and requests without a row, are waited for so long.
    """

    flush_after: float = 1800.0
    most_requests: int | None = None
    deadline: float | None = None
    leftovers: Literal["stream", "batch"] = "stream"
    first_poll: float = 5.0
    longest_poll: float = 300.0
    grace: float = 300.0
    results_patience: float = 3600.0
