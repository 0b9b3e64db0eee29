"""`mirage bench batch` and `bench kills --mode batch`: what batches cost this program, and that they are safe."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.benchmarks import end_benchmark, measured, show_figures, tell

if TYPE_CHECKING:
    from bench.throughput.batch import Phase


@click.command()
@click.option("--requests", type=click.IntRange(100), default=100_000, show_default=True, help="In the large batch.")
@click.option("--small", type=click.IntRange(100), default=10_000, show_default=True, help="In the small one.")
@click.option(
    "--provider",
    type=click.Choice(("openai", "anthropic", "gemini", "dashscope", "zhipu", "moonshot")),
    default="anthropic",
    show_default=True,
    help="Whose batch API is spoken.",
)
@measured
def batch(requests: int, small: int, provider: str, as_json: Path | None, folder: Path | None) -> int:
    """Measure building, sending, and settling a batch: processor time of this program, memory, and the event loop.

    The provider is simulated, by a process of its own, and brings rows in any order. Memory of the small batch and of
    the large one should be about the same.
    """
    from bench.throughput.batch import run_batch

    report = run_batch(requests=requests, small=small, provider=provider, folder=folder, told=tell)
    rows = [
        (
            f"{step.requests:,} in {step.batches}",
            name,
            *_phase(phase),
            f"{step.peak_mb:.0f}",
            f"{step.busy_ms:.1f}",
            f"{step.stall_ms:.0f}",
        )
        for step in (report.small, report.large)
        for name, phase in (("build", step.build), ("send and wait", step.send), ("settle", step.settle))
    ]
    heads = ("requests", "part", "CPU s / 1,000", "per CPU s", "per s", "peak MB", "loop busy ms", "loop late ms")
    show_figures(f"batches of {provider} · SIMULATED", heads, rows, report.load_before, report.load_after)
    return end_benchmark("batch", report, as_json, holds=report.holds)


def _phase(phase: "Phase | None") -> tuple[str, str, str]:
    if phase is None:
        return "", "", ""
    return f"{phase.cpu_s_per_1000:.4f}", f"{phase.per_cpu_s:,.0f}", f"{phase.per_s:,.0f}"


def batch_kills(times: int, calls: int, seed: int, as_json: Path | None, folder: Path | None) -> int:
    """Run `mirage bench kills --mode batch`."""
    from bench.throughput.kills_batches import run_batch_kills
    from engine.money import dollars

    report = run_batch_kills(kills=times, calls=calls, seed=seed, folder=folder, told=tell)
    lines = sum(report.providers.values())
    rows = [
        ("planned calls", f"{report.calls:,}", f"{report.batches:,} batches at {len(report.providers)} providers"),
        ("kills", f"{report.kills:,}", f"median life {report.life_s:.2f} s"),
        ("of them where aimed", f"{report.aimed:,}", f"{report.steps} of {report.of_steps} steps"),
        ("completed", f"{report.completed:,}", ""),
        ("failed", f"{report.failed:,}", f"{report.unknown:,} of them with unknown outcome: no row tells"),
        ("lost", f"{report.lost:,}", "must be 0"),
        ("billed twice", f"{report.billed_twice:,}", "must be 0"),
        ("charged without an answer", f"{report.charged_without_answer:,}", "rows that the provider lost"),
        ("cut off and sent again", f"{report.expired:,}", "expired or cancelled: not charged"),
        ("batches that never ran", f"{report.dropped:,}", f"of {lines:,}"),
        ("bill", dollars(report.billed_nano), "the providers'"),
        ("ledger", dollars(report.ledger_nano), f"the engine's, {dollars(report.assumed_nano)} of it assumed"),
        ("agree to the nano-dollar", "yes" if report.exact else "NO", ""),
    ]
    heads = ("what", "number", "")
    show_figures("batches that are killed · SIMULATED providers", heads, rows, report.load_before, report.load_after)
    return end_benchmark("kills by batch", report, as_json, holds=report.holds)
