"""The simulator's settings: frozen records, read from TOML. Every default is the harmless one: fast, free of faults."""

from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from bench.simulator.batchrules import BatchSettings
from bench.simulator.faults import Fault, Rule
from bench.simulator.latency import Latency
from bench.simulator.limits import Rates
from engine.errors import UserError
from engine.money import Price, nano_from_usd

ANY: Final = "*"


class PriceText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price as people write it: US dollars per million tokens, as text so that no digit is lost."""

    input: str
    output: str
    cached: str | None = None
    cache_write: str | None = None

    def price(self) -> Price:
        """Return the exact price; raises ValueError for what is no amount."""
        return Price(
            input=nano_from_usd(self.input),
            output=nano_from_usd(self.output),
            cached=None if self.cached is None else nano_from_usd(self.cached),
            cache_write=None if self.cache_write is None else nano_from_usd(self.cache_write),
        )


DEFAULT_PRICE: Final = PriceText(input="1", output="4", cached="0.1", cache_write="1.25")
BATCH_SHARE: Final = {ANY: "0.5", "moonshot": "0.6", "deepseek": "1"}


class FaultSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scripted faults, and chances of random ones by kind."""

    rules: tuple[Rule, ...] = ()
    random: dict[Fault, float] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings.

    Attributes:
        keys: API keys that are let in; empty lets every non-empty one in.
        strict: refuse parameters that the real model would refuse.
        gone: models that do not exist any more, matched by their beginning.
        prices: by model, or by the beginning of its name, or `*`.
        batch_discount: share of the price that batches pay, by provider.
        batch_prices: what batches pay instead, by model, or by the beginning of its name.
        limits: rates by `provider/model`, by provider, or `*`.
        latency: by provider, or `*`.
        batches: how fast simulated batches pass.
        prefix_cache: whether repeated system prompts are partly read from a cache.
        draws: a task that is asked again is answered anew, so that samples differ; else always alike.
        reasoning_tokens: length of the reasoning of models that reason.
        disagreement: by judge model, the share of claims that it labels one step off.
        personas: file that replaces the imported personas; scripts: file of conversations.
    """

    keys: tuple[str, ...] = ()
    strict: bool = True
    gone: tuple[str, ...] = ()
    prices: dict[str, PriceText] = msgspec.field(default_factory=lambda: {ANY: DEFAULT_PRICE})
    batch_discount: dict[str, str] = msgspec.field(default_factory=lambda: dict(BATCH_SHARE))
    batch_prices: dict[str, PriceText] = {}
    limits: dict[str, Rates] = {}
    latency: dict[str, Latency] = {}
    faults: FaultSettings = FaultSettings()
    batches: BatchSettings = BatchSettings()
    prefix_cache: bool = True
    draws: bool = False
    reasoning_tokens: int = 24
    disagreement: dict[str, float] = {}
    personas: str = ""
    scripts: str = ""

    def price(self, model: str) -> Price:
        """Return what a model costs: the price of the longest beginning of its name, else that of `*`, else nothing."""
        return _longest(self.prices, model) or Price(input=0, output=0)

    def batch_price(self, model: str) -> Price | None:
        """Return what a model costs in batches, None where they pay a share of the price."""
        return _longest(self.batch_prices, model)

    def discounted(self, provider: str, nano: int) -> int:
        """Return what a batch pays for a call that costs `nano`, rounded up."""
        share = Decimal(self.batch_discount.get(provider, self.batch_discount.get(ANY, "1")))
        return int(-(-(nano * share) // 1))

    def latency_of(self, provider: str) -> Latency:
        """Return the latency of a provider."""
        return self.latency.get(provider) or self.latency.get(ANY) or Latency()


def _longest(prices: dict[str, PriceText], model: str) -> Price | None:
    named = [name for name in prices if model.startswith(name)]
    best = max(named, key=len, default=ANY)
    return prices[best].price() if best in prices else None


def load_config(path: Path | None) -> Config:
    """Return the settings in a TOML file, or the defaults.

    Raises:
        UserError: the file cannot be read or says something that has no meaning here.
    """
    if path is None:
        return Config()
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config)
        for text in (*config.prices.values(), *config.batch_prices.values()):
            text.price()
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UserError(
            f"the simulator's settings cannot be used: {error}", where=str(path), mend="correct it"
        ) from None
    return config
