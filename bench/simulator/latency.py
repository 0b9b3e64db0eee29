"""How long a simulated call takes. Pure: the same settings and draw give the same time."""

from enum import StrEnum
from hashlib import blake2b
from math import exp, log
from statistics import NormalDist
from typing import Final

import msgspec

_NORMAL: Final = NormalDist()


class Shape(StrEnum):
    """Form of the distribution: a fixed time, or one with a long right tail (log-normal), or a memoryless one."""

    FIXED = "fixed"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time until a reply, in milliseconds: a draw with this median, plus a share per generated token, up to `most_ms`.

    Attributes:
        sigma: spread of the logarithm, for `lognormal`.
    """

    shape: Shape = Shape.FIXED
    median_ms: float = 0.0
    sigma: float = 0.5
    token_ms: float = 0.0
    most_ms: float = 600_000.0


def seconds(latency: Latency, draw: float, output_tokens: int) -> float:
    """Return the time of one call; `draw` is uniform in [0, 1)."""
    start = latency.median_ms
    if start and latency.shape is Shape.LOGNORMAL:
        start *= exp(latency.sigma * _NORMAL.inv_cdf(min(max(draw, 1e-9), 1 - 1e-9)))
    elif start and latency.shape is Shape.EXPONENTIAL:
        start *= -log(max(1 - draw, 1e-9)) / log(2)
    return min(latency.most_ms, start + latency.token_ms * output_tokens) / 1000


def uniform(*parts: object) -> float:
    """Return a number in [0, 1) that depends on `parts` alone."""
    digest = blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53
