"""Checks that what a run's file names is there and used: a limit or a cap on nothing would hold nothing. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from bench.filewords import suggestion
from bench.sweepfile import LoadedFile, LoadedSweep
from engine.errors import UserError
from providers.card import ModelCard
from providers.catalog import Catalog

_ADD: Final = "remove it, or add the {} to the sweep"


def known_card(catalog: Catalog, alias: str, loaded: LoadedFile) -> ModelCard:
    """Return the card of a model that the file names.

    Raises:
        UserError: there is none; says on which line the file names it.
    """
    if alias in catalog.cards:
        return catalog.cards[alias]
    field = "models" if alias in loaded.sweep.models else "judges"
    raise UserError(
        f"the catalogue has no model `{alias}`",
        where=loaded.place(field, value=alias),
        mend=suggestion(
            alias, catalog.cards, f'`mirage models` lists them; [model."{alias}"] with provider and model adds one'
        ),
    )


def check_used(loaded: LoadedFile, cards: Mapping[str, ModelCard]) -> None:
    """Refuse limits and caps on models and accounts that the run does not use.

    A cap on a stage that the sweep does not have yet is none of these: stages are known words, and may be added.

    Args:
        loaded: the run's file.
        cards: the run's models by alias.

    Raises:
        UserError: names the first of them, and what was probably meant.
    """
    sweep, budget = loaded.sweep, loaded.sweep.budget
    providers = dict.fromkeys(card.provider for card in cards.values())
    _check(loaded, ("limits",), sweep.limits, cards, "model")
    _check(loaded, ("budget", "model"), budget.model, cards, "model")
    _check(loaded, ("budget", "provider"), budget.provider, providers, "account's models")
    if not isinstance(loaded, LoadedSweep):  # its one stage is none of those that can be named
        _check(loaded, ("budget", "stage"), [stage.value for stage in budget.stage], (), "stage")


def check_tables(loaded: LoadedFile, catalog: Catalog) -> None:
    """Refuse [provider] and [model] tables that change nothing of what the run uses.

    Accounts of the catalogue may stand in every file, and so may models that are defined whole: they are a stock to
    choose from. What changes a known model that the run does not use was meant for another one.

    Raises:
        UserError: names the first of them, and what was probably meant.
    """
    sweep = loaded.sweep
    accounts = dict.fromkeys(card.provider for card in catalog.cards.values())
    _check(loaded, ("provider",), sweep.provider, accounts, "account's models")
    changes = [alias for alias, table in sweep.model.items() if not {"provider", "model"} <= set(table)]
    _check(loaded, ("model",), changes, (*sweep.models, *sweep.judges), "model")


def _check(
    loaded: LoadedFile, table: tuple[str, ...], named: Iterable[str], used: Collection[str], kind: str
) -> None:  # fmt: skip
    for name in named:
        if name not in used:
            raise UserError(
                f"[{'.'.join(table)}] names `{name}`, which this sweep does not use",
                where=loaded.place(*table, name),
                mend=suggestion(name, used, _ADD.format(kind)),
            )
