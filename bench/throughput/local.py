"""`mirage bench local`: our in-process provider beside vLLM's own `LLM.chat`, on the same prompts in the same process.

Other work on the machine slows both sides down by turns, so many short pairs of neighbouring repetitions are compared,
and the pair in the middle counts. A child does the measuring (`bench.throughput.sides`): vLLM changes a process too
much for it to share one with anything else.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import msgspec

from bench.run import user_catalog
from bench.throughput.process import in_child, load
from bench.throughput.sides import SIDES, Found, Order, Run, Side
from engine.errors import UserError
from providers.dialect import Wire
from providers.vllm import VllmSettings

LEAST_RATIO: Final = 0.95


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One side's fastest repetition, its processor time over all, and the output tokens per second of each."""

    side: Side
    tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    cpu_s_per_1000_tokens: float
    all_tokens_per_s: tuple[float, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides side by side.

    Attributes:
        ratio: our tokens per second over those of `LLM.chat`, the middle of all pairs of neighbouring repetitions.
        pair_ratios: of each pair.
        fastest_ratio: the same of the fastest repetition of each side.
        cpu_ratio: our processor time per output token over that of `LLM.chat`, all repetitions together.
        lag_*_ms: how late the event loop woke a task in one more repetition of ours.
    """

    model: str
    dtype: str
    prompts: int
    max_tokens: int
    repeats: int
    rows: tuple[Row, ...]
    ratio: float
    pair_ratios: tuple[float, ...]
    fastest_ratio: float
    cpu_ratio: float
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    peak_mb: float
    versions: dict[str, str]
    settings: VllmSettings
    load_before: float
    load_after: float

    @property
    def holds(self) -> bool:
        """Say whether ours is fast enough."""
        return self.ratio >= LEAST_RATIO


def local_model(name: str) -> VllmSettings:
    """Return the settings for a local model of the catalogue, a folder or a hub name.

    Raises:
        UserError: the catalogue knows the name as a model that is not local.
    """
    card = user_catalog(None).cards.get(name)
    if card is None:
        return VllmSettings(model=name)
    if card.dialect.wire is not Wire.IN_PROCESS:
        raise UserError(f"{name} is no local model", where="--model", mend="`mirage models` lists what there is")
    return VllmSettings(model=card.model, context=card.context or 0)


def measure_local(
    settings: VllmSettings,
    *,
    prompts: int,
    max_tokens: int,
    repeats: int,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure both sides in one child process.

    Raises:
        UserError: vLLM or the model is missing, or does not load.
    """
    before = load()
    told(f"{prompts} prompts, {repeats} times with mirage and with LLM.chat in turns")
    order = Order(settings=settings, prompts=prompts, max_tokens=max_tokens, repeats=repeats)
    found = in_child("bench.throughput.sides", order, Found)
    return report_of(order, found, before, load())


def report_of(order: Order, found: Found, load_before: float, load_after: float) -> Report:
    """Compare the sides."""
    sides = {side: [run for run in found.runs if run.side == side] for side in SIDES}
    ours, theirs = (max(run.tokens_per_s for run in sides[side]) for side in SIDES)
    rows = tuple(_row(side, runs) for side, runs in sides.items())
    pairs = [our.tokens_per_s / their.tokens_per_s for our, their in zip(*(sides[side] for side in SIDES), strict=True)]
    lags = sorted(found.lags_ms)
    return Report(
        model=order.settings.served_name,
        dtype=found.dtype,
        prompts=order.prompts,
        max_tokens=order.max_tokens,
        repeats=order.repeats,
        rows=rows,
        ratio=round(median(pairs), 4),
        pair_ratios=tuple(round(pair, 4) for pair in pairs),
        fastest_ratio=round(ours / theirs, 4),
        cpu_ratio=round(rows[0].cpu_s_per_1000_tokens / rows[1].cpu_s_per_1000_tokens, 4),
        lag_p50_ms=round(percentile(lags, 0.5), 2),
        lag_p99_ms=round(percentile(lags, 0.99), 2),
        lag_max_ms=round(percentile(lags, 1.0), 2),
        peak_mb=round(found.peak_mb, 1),
        versions=found.versions,
        settings=order.settings,
        load_before=load_before,
        load_after=load_after,
    )


def percentile(rising: Sequence[float], share: float) -> float:
    """Return the smallest of rising values that is not below `share` of them, or 0 of none."""
    return rising[min(len(rising) - 1, max(0, -(-round(share * 1000) * len(rising) // 1000) - 1))] if rising else 0.0


def _row(side: Side, runs: Sequence[Run]) -> Row:
    best = max(runs, key=lambda run: run.tokens_per_s)
    return Row(
        side=side,
        tokens_per_s=round(best.tokens_per_s, 1),
        prompt_tokens_per_s=round(best.input_tokens / best.seconds, 1),
        requests_per_s=round(best.requests / best.seconds, 2),
        cpu_s_per_1000_tokens=round(1000 * sum(run.cpu_s for run in runs) / sum(run.output_tokens for run in runs), 4),
        all_tokens_per_s=tuple(round(run.tokens_per_s, 1) for run in runs),
    )
