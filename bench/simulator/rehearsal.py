"""How a sweep meets the simulator instead of the providers: addresses for the catalogue, prices for the simulator."""

from collections.abc import Iterable, Mapping
from typing import Final

from bench.simulator.launch import Running
from engine.money import NANO, Price
from providers.card import ModelCard

# What each account's base address ends in, beyond the simulator's own prefix.
TAILS: Final[Mapping[str, str]] = {"gemini": "/v1beta"}
PROVIDERS: Final = ("openai", "anthropic", "gemini", "deepseek", "dashscope", "zhipu", "moonshot")


def accounts(simulator: Running, key_env: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the catalogue layer that leads every account to `simulator`; its key is read from `key_env`."""
    return {
        "provider": {
            name: {"base_url": simulator.url(name) + TAILS.get(name, ""), "key_env": key_env} for name in PROVIDERS
        }
    }


def price_settings(cards: Iterable[ModelCard]) -> str:
    """Return the part of the simulator's settings that gives every model of `cards` its prices."""
    priced = [("prices", card.model, card.price) for card in cards]
    priced += [("batch_prices", card.model, card.batch_price) for card in cards]
    return "\n".join(_table(kind, model, price) for kind, model, price in priced if price is not None)


def _table(kind: str, model: str, price: Price) -> str:
    known = {"input": price.input, "output": price.output, "cached": price.cached, "cache_write": price.cache_write}
    lines = [f'{name} = "{_dollars(nano)}"' for name, nano in known.items() if nano is not None]
    return "\n".join([f'[{kind}."{model}"]', *lines, ""])


def _dollars(nano: int) -> str:
    return f"{nano // NANO}.{nano % NANO:09d}"
