"""Tells a listener what happened, in sentences for people and fields for programs."""

import contextlib
from collections.abc import Iterable
from typing import Final

from engine.errors import ProviderError
from engine.events import Level, Listener, Notice
from engine.lane import Leased
from engine.ledger import BudgetWarning, Shortage

CAP_REACHED: Final = "cap_reached"


class Telling:
    """Makes notices."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._stopped: set[str] = set()
        self._met: set[tuple[str, str]] = set()

    def notify(self, kind: str, level: Level, text: str, **fields: str | float) -> None:
        """Pass one notice on; a listener with a defect must not be able to lose a paid answer."""
        with contextlib.suppress(Exception):
            self._listen(Notice(kind=kind, level=level, text=text, fields=fields))

    def defect(self, text: str, **fields: str | float) -> None:
        """Tell of an error in this program."""
        self.notify("defect", Level.ERROR, text, **fields)

    def budget(self, warnings: Iterable[BudgetWarning]) -> None:
        """Tell of budgets that are running out."""
        for warning in warnings:
            text = f"{warning.scope} has used {warning.percent} % of its budget"
            self.notify("budget", Level.WARNING, text, scope=str(warning.scope), percent=warning.percent)

    def short(self, shortages: Iterable[Shortage]) -> None:
        """Tell of the caps for which a run ends."""
        for each in shortages:
            self.notify(
                CAP_REACHED, Level.WARNING, str(each), scope=str(each.scope), unit=each.unit, needs=each.needs,
                spent=each.spent, reserved=each.reserved, cap=each.cap,
            )  # fmt: skip

    def tried_again(self, provider: str, error: ProviderError) -> None:
        """Tell of the first error of each class that a provider gave and that is tried again; the others are alike."""
        if (provider, error.kind.value) not in self._met:
            self._met.add((provider, error.kind.value))
            text = f"first {error.kind} error of {provider}, tried again: {error}"
            self.notify("first_error", Level.INFO, text, provider=provider, error_class=error.kind.value)

    def failed(self, leased: Leased, error: ProviderError) -> None:
        """Tell of a request that failed for good."""
        text = f"{leased.stage} request to {leased.request.model} failed ({error.kind}): {error}"
        self.notify("request_failed", Level.WARNING, text, request=leased.id, error_class=error.kind.value)

    def failures(self, number: int, text: str) -> None:
        """Tell of requests that failed for good, all of the same cause."""
        self.notify("request_failed", Level.WARNING, f"{number} {text}", requests=number)

    def stopped(self, provider: str, error: ProviderError) -> None:
        """Tell once of a provider that can do nothing more in this run; its calls on the wire will say so too."""
        if provider in self._stopped:
            return
        self._stopped.add(provider)
        text = f"{provider} takes no more calls in this run ({error.kind}): {error}"
        self.notify("provider_stopped", Level.ERROR, text, provider=provider, error_class=error.kind.value)
