"""`mirage simulate`: the simulator in the foreground, for any client that speaks a provider's wire format."""

from pathlib import Path

import click

KEY_ENV = "MIRAGE_SIMULATOR_KEY"


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8901, show_default=True, help="0 takes a free one.")
@click.option("--state", type=click.Path(file_okay=False, path_type=Path), default=Path("runs/simulator"),
              show_default=True, help="Folder of the bill; an existing bill is gone on with.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file of settings.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of answers, faults and latencies.")
def simulate(port: int, state: Path, config: Path | None, seed: int) -> int:
    """Start a simulator of the providers on this machine, print its addresses, and serve until Ctrl-C.

    Without --config it charges what the catalogue says, answers at once, lets nothing go wrong, and answers a task that
    is asked again anew, so that samples differ. Its answers are
    simulated: they say nothing about any model.
    """
    from bench.simulator.launch import start, stop

    simulator = start(state, config=config or _catalogue_prices(state), seed=seed, port=port)
    try:
        click.echo(_said(simulator.address, _overlay(simulator.port)))
        simulator.process.wait()
    except KeyboardInterrupt:
        click.echo("stopped")
    finally:
        stop(simulator)
    return 0


def _catalogue_prices(state: Path) -> Path:
    """Write settings that charge the catalogue's prices and draw answers anew, and return the file."""
    from bench.run import user_catalog
    from bench.simulator.rehearsal import price_settings
    from bench.storeplace import make_folder

    path = state / "simulator.toml"
    make_folder(path)
    path.write_text(f"draws = true\n\n{price_settings(user_catalog(None).cards.values())}", encoding="utf-8")
    return path


def _overlay(port: int) -> str:
    """Return the tables that lead a sweep file to the simulator."""
    from bench.simulator.launch import PREFIXES
    from bench.simulator.rehearsal import TAILS

    tables = (
        f'[provider.{name}]\nbase_url = "http://127.0.0.1:{port}{prefix}{TAILS.get(name, "")}"\nkey_env = "{KEY_ENV}"\n'
        for name, prefix in PREFIXES.items()
    )
    return "\n".join(tables)


def _said(address: str, overlay: str) -> str:
    return (
        f"simulating providers at {address} until Ctrl-C; answers are SIMULATED\n"
        f"bill: {address}/_sim/bill/summary   right answer: {address}/_sim/known\n\n"
        f"`mirage rehearse` tries a whole sweep by itself. To lead one here by hand, set {KEY_ENV} to any 16\n"
        "characters or more, and put this into the sweep file. The run notices who answers, and marks the sweep:\n\n"
        f"{overlay}"
    )
