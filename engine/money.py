"""Money as integers: nano-dollars, and prices in nano-dollars per million tokens. No floats enter the ledger."""

from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Final

import msgspec

from engine.request import Usage

NANO: Final = 1_000_000_000
PER_MILLION: Final = 1_000_000
# Enough digits for any amount; what does not fit is refused, never rounded.
_EXACT: Final = Context(prec=60, traps=[Inexact, InvalidOperation, Overflow])
# For people to read.
_PLACES: Final = 4
_DIGITS: Final = 3
_CENT: Final = Decimal("0.01")


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model charges, in nano-dollars per million tokens.

    `cached` prices input read from the provider's cache, `cache_write` input written to it; both fall back to `input`.
    """

    input: int
    output: int
    cached: int | None = None
    cache_write: int | None = None


FREE: Final = Price(input=0, output=0)


def cost_nano(price: Price, usage: Usage) -> int:
    """Return the cost of `usage` in nano-dollars, rounded up once for the whole call.

    Cached and written tokens are parts of the input; a reply that claims more of them than input pays for them all.
    """
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.cache_write is None else price.cache_write
    plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
    total = (
        plain * price.input
        + usage.cached_tokens * cached
        + usage.cache_write_tokens * written
        + usage.output_tokens * price.output
    )
    return max(0, -(-total // PER_MILLION))


def worst_cost_nano(price: Price, input_bound: int, max_tokens: int) -> int:
    """Return the most that a call with so many input tokens and this output allowance can cost, in nano-dollars."""
    dearest = max(price.input, price.cached or 0, price.cache_write or 0)
    return -(-(input_bound * dearest + max_tokens * price.output) // PER_MILLION)


def nano_from_usd(text: str | int | Decimal) -> int:
    """Return nano-dollars from an amount in US dollars, exactly.

    Raises:
        ValueError: not a number, negative, or finer than a nano-dollar.
    """
    try:
        nano = _EXACT.multiply(Decimal(text), NANO)
    except (Inexact, Overflow):
        nano = Decimal("NaN")
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not an amount in US dollars") from error
    if not nano.is_finite() or nano < 0 or nano != nano.to_integral_value():
        raise ValueError(f"{text!r} must be a non-negative amount of at most 9 decimals")
    return int(nano)


def usd(nano: int) -> str:
    """Return nano-dollars as a plain dollar figure, e.g. `$1.25` or `$0.000075`."""
    whole, fraction = divmod(abs(nano), NANO)
    digits = f"{fraction:09d}".rstrip("0")
    return f"{'-' if nano < 0 else ''}${whole}.{digits:0<2}"


def dollars(nano: int) -> str:
    """Return nano-dollars for people to read: four digits after the point, of less than a cent three that count.

    What is kept, sent to programs or reckoned with is exact: `usd`.
    """
    amount = Decimal(nano).scaleb(-9)
    places = _PLACES if abs(amount) >= _CENT or not nano else _DIGITS - 1 - amount.adjusted()
    whole, _, fraction = f"{abs(amount):,.{places}f}".partition(".")
    return f"{'-' if nano < 0 else ''}${whole}.{fraction.rstrip('0'):0<2}"
