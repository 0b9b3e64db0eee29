"""One life of the sweep that `mirage bench kills` kills: open the store, recover, plan if need be, run to the end.

A module of its own, so that a fresh process has imported it before it is let live.
"""

import sys
from pathlib import Path

import msgspec

from bench.loop import run_loop
from bench.throughput.lab import Quick, card_at, follow_up, make_runner, providers_at, questions, register
from engine.clock import SystemClock
from engine.events import Outcome
from engine.limits import RateLimits
from engine.retry import RetryPolicy
from engine.store import Store

# Failures are the faults' doing, not bad luck worth giving up for: a benchmark of losses must not fail requests.
POLICY = RetryPolicy(failures=50, throttles=1000, base=0.05, ceiling=2.0)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one life is told: where its store lies, whom to call, how many first questions there are."""

    store: str
    base_url: str
    roots: int
    concurrency: int


def live(order: bytes) -> None:
    """Run the sweep; the exit code is 0 when it is over."""
    outcome = run_loop(_run(msgspec.json.decode(order, type=Order)))
    sys.exit(0 if outcome in (Outcome.COMPLETE, Outcome.INCOMPLETE) else 1)


async def _run(order: Order) -> Outcome:
    card, clock = card_at(order.base_url), SystemClock()
    providers = providers_at(card)
    try:
        async with await Store.open(Path(order.store)) as store:
            sweep = await register(store, clock)
            await store.recover([], clock.wall_ms())
            runner = await make_runner(
                store, sweep, card, providers, Quick(follow=follow_up(card)),
                limits=RateLimits(concurrency=order.concurrency), listen=lambda _: None, clock=clock, policy=POLICY,
            )  # fmt: skip
            return await runner.run(() if sweep.planned else questions(card, order.roots))
    finally:
        for provider in providers.values():
            await provider.close()
