"""What goes wrong with the next batch of a provider: as it was ordered, or by chance, seeded. Pure.

The n-th create call, upload or look of a provider meets the same trouble in every run with the same seed.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from bench.simulator.batchrules import Chances, Moment, Quirks
from bench.simulator.latency import uniform

MOMENTS: Final[tuple[Moment, ...]] = ("before", "after", "gateway")
COUNTED: Final = (
    "fresh_404",
    "list_lag",
    "late_results",
    "cut_downloads",
    "short_downloads",
    "repeat_rows",
    "lose_rows",
)
SWITCHED: Final = ("queue_full", "no_files", "lying_counts", "stuck", "expire")
INVALID: Final = "invalid_request"
MOST: Final = 3
KEEPS_ROWS: Final = "dashscope"


class Oddities:
    """Decides for each call; what was ordered for a provider goes before chance."""

    def __init__(self, chances: Chances, seed: int) -> None:
        self._chances, self._seed = chances, seed
        self._ordered: list[Quirks] = []
        self._numbers: Counter[str] = Counter()

    def order(self, quirks: Sequence[Quirks]) -> None:
        """Replace what is ordered."""
        self._ordered = list(quirks)

    def next(self, provider: str) -> Quirks:
        """Return what is odd about a provider's next batch."""
        ordered = next((each for each in self._ordered if each.provider in ("", provider)), None)
        return self._drawn(provider) if ordered is None else ordered

    def lose(self, provider: str, call: str) -> Moment:
        """Return when the connection of this call ("lose_upload", "lose_create") is to be cut; an order holds once."""
        for place, quirks in enumerate(self._ordered):
            moment: Moment = getattr(quirks, call)
            if quirks.provider in ("", provider) and moment:
                self._ordered[place] = msgspec.structs.replace(quirks, **{call: ""})
                return moment
        share = self._share(provider, call)
        return "" if share is None else MOMENTS[int(share * len(MOMENTS))]

    def stumbles(self, provider: str) -> bool:
        """Whether a look is answered by a proxy that has lost its way; what is ordered counts down."""
        for place, quirks in enumerate(self._ordered):
            if quirks.provider in ("", provider) and quirks.bad_gateways:
                self._ordered[place] = msgspec.structs.replace(quirks, bad_gateways=quirks.bad_gateways - 1)
                return True
        return self._share(provider, "bad_gateways") is not None

    def _drawn(self, provider: str) -> Quirks:
        counted = {name: share for name in COUNTED if (share := self._share(provider, name)) is not None}
        if provider == KEEPS_ROWS:
            counted.pop("lose_rows", None)
        switched = [name for name in SWITCHED if self._share(provider, name) is not None]
        refused = self._share(provider, "invalid") is not None
        drawn: dict[str, object] = {name: 1 + int(share * MOST) for name, share in counted.items()}
        drawn |= dict.fromkeys(switched, True)
        return msgspec.convert(drawn | ({"invalid": INVALID} if refused else {}), Quirks)

    def _share(self, provider: str, what: str) -> float | None:
        """Return None when it does not happen, else a number in [0, 1) that is spread evenly over the times it does."""
        chance: float = getattr(self._chances, what)
        if not chance:
            return None
        name = f"{provider}/{what}"
        self._numbers[name] += 1
        draw = uniform("batch", self._seed, name, self._numbers[name])
        return draw / chance if draw < chance else None
