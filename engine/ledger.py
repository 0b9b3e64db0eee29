"""The budget: reserve the worst case, then commit what was paid. Integers only, nested scopes, hard caps."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final, NamedTuple

import msgspec

from engine.errors import BudgetExhausted
from engine.money import dollars

WARN_AT_PERCENT: Final = (50, 80, 95)
_THRESHOLDS: Final = (0, *WARN_AT_PERCENT)
DOLLARS: Final = "nano-dollars"
TOKENS: Final = "tokens"


class Scope(NamedTuple):
    """Something that can be capped: `sweep`, `provider`, `model` or `stage`, and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Amount(NamedTuple):
    """Money in nano-dollars and tokens of both directions together."""

    nano: int
    tokens: int


ZERO: Final = Amount(0, 0)


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a scope may use; None is no cap."""

    nano: int | None = None
    tokens: int | None = None


UNCAPPED: Final = Cap()


class Shortage(NamedTuple):
    """A cap that a call may pass; all amounts in `unit`, nano-dollars or tokens.

    Attributes:
        needs: what the call may take at most.
        spent, reserved: what is used, and what is set aside for calls and batches under way.
    """

    scope: Scope
    unit: str
    needs: int
    spent: int
    reserved: int
    cap: int

    def __str__(self) -> str:
        said = _tokens if self.unit == TOKENS else dollars
        held = f", {said(self.reserved)} set aside for what is under way" if self.reserved else ""
        unit = " tokens" if self.unit == TOKENS else ""
        return (
            f"{self.scope}: {said(self.spent)} of {said(self.cap)}{unit} used{held}; "
            f"the next call may need {said(self.needs)}"
        )


class Account(msgspec.Struct, kw_only=True):
    """What one scope has used and set aside; `warned` is the last share of its cap that was warned of, in per cent."""

    cap: Cap = UNCAPPED
    spent_nano: int = 0
    spent_tokens: int = 0
    reserved_nano: int = 0
    reserved_tokens: int = 0
    warned: int = 0

    def room(self, amount: Amount) -> tuple[str, int, int] | None:
        """Return (unit, needed, left) of the first cap that `amount` would pass, or None when it fits."""
        if self.cap.nano is not None:
            left = self.cap.nano - self.spent_nano - self.reserved_nano
            if amount.nano > left:
                return DOLLARS, amount.nano, left
        if self.cap.tokens is not None:
            left = self.cap.tokens - self.spent_tokens - self.reserved_tokens
            if amount.tokens > left:
                return TOKENS, amount.tokens, left
        return None

    def shortages(self, scope: Scope, amount: Amount) -> list[Shortage]:
        """Return every cap of this account, which is `scope`'s, that `amount` would pass."""
        caps = (
            (DOLLARS, amount.nano, self.spent_nano, self.reserved_nano, self.cap.nano),
            (TOKENS, amount.tokens, self.spent_tokens, self.reserved_tokens, self.cap.tokens),
        )
        return [
            Shortage(scope, unit, needs, spent, reserved, cap)
            for unit, needs, spent, reserved, cap in caps
            if cap is not None and needs > cap - spent - reserved
        ]

    def passed(self) -> int:
        """Return the highest warning threshold that spending has passed, in per cent, or 0."""
        used = max(_percent(self.spent_nano, self.cap.nano), _percent(self.spent_tokens, self.cap.tokens))
        return _THRESHOLDS[bisect_right(WARN_AT_PERCENT, used)]


class Budget(NamedTuple):
    """The scopes that pay for a request, with their accounts."""

    scopes: tuple[Scope, ...]
    accounts: tuple[Account, ...]


class Reservation(NamedTuple):
    """Worst-case amount set aside in every scope of a budget."""

    budget: Budget
    amount: Amount


class BudgetWarning(NamedTuple):
    """A scope has passed a share of its cap."""

    scope: Scope
    percent: int


class Ledger:
    """Reservations and spending over nested scopes.

    Invariant: in every capped scope, spent + reserved <= cap after every call, as long as no attempt costs more than
    its reservation. What was spent before a cap was lowered can exceed it; then nothing more is reserved. `releases`
    counts how often something came back.
    """

    def __init__(
        self, caps: Mapping[Scope, Cap], spent: Mapping[Scope, Amount], reserved: Mapping[Scope, Amount] | None = None
    ) -> None:
        """Open the books with what earlier runs `spent`, and what is `reserved` for what they left under way."""
        self.releases = 0
        self._accounts: dict[Scope, Account] = {}
        held = reserved or {}
        for scope in {*caps, *spent, *held}:
            used, kept = spent.get(scope, ZERO), held.get(scope, ZERO)
            account = self._accounts[scope] = Account(
                cap=caps.get(scope, UNCAPPED),
                spent_nano=used.nano,
                spent_tokens=used.tokens,
                reserved_nano=kept.nano,
                reserved_tokens=kept.tokens,
            )
            account.warned = account.passed()

    def budget(self, scopes: tuple[Scope, ...]) -> Budget:
        """Return the budget of those scopes."""
        return Budget(scopes, tuple([self._account(scope) for scope in scopes]))

    def reserve(self, budget: Budget, amount: Amount) -> Reservation:
        """Set `amount` aside in every scope, or in none.

        Raises:
            BudgetExhausted: a cap would be passed; names the scope.
        """
        for scope, account in zip(*budget, strict=True):
            if account.cap is not UNCAPPED and (short := account.room(amount)):
                raise BudgetExhausted(str(scope), *short)
        for account in budget.accounts:
            account.reserved_nano += amount.nano
            account.reserved_tokens += amount.tokens
        return Reservation(budget, amount)

    def fits(self, budget: Budget, amount: Amount) -> bool:
        """Say whether `amount` could be reserved now."""
        return all(account.room(amount) is None for account in budget.accounts)

    def shortages(self, wanted: Iterable[tuple[Budget, Amount]]) -> tuple[Shortage, ...]:
        """Return the caps that stand in the way of some amounts, each once, with the least of what is wanted of it."""
        found: dict[tuple[Scope, str], Shortage] = {}
        for budget, amount in wanted:
            for scope, account in zip(*budget, strict=True):
                for short in account.shortages(scope, amount):
                    known = found.get((scope, short.unit))
                    if known is None or short.needs < known.needs:
                        found[scope, short.unit] = short
        return tuple(found.values())

    def commit(self, reservation: Reservation, actual: Amount) -> list[BudgetWarning]:
        """Turn a reservation into what was paid; return the warning thresholds that this passed."""
        self.release(reservation)
        warnings = []
        for scope, account in zip(*reservation.budget, strict=True):
            account.spent_nano += actual.nano
            account.spent_tokens += actual.tokens
            if account.cap is not UNCAPPED and (passed := account.passed()) > account.warned:
                account.warned = passed
                warnings.append(BudgetWarning(scope, passed))
        return warnings

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back: nothing was paid."""
        self.releases += 1
        for account in reservation.budget.accounts:
            account.reserved_nano -= reservation.amount.nano
            account.reserved_tokens -= reservation.amount.tokens

    def accounts(self) -> Mapping[Scope, Account]:
        """Return the accounts by scope, as they change."""
        return self._accounts

    def snapshot(self) -> dict[Scope, Account]:
        """Return copies of the accounts by scope, for looking at."""
        return {scope: copy(account) for scope, account in self._accounts.items()}

    def _account(self, scope: Scope) -> Account:
        account = self._accounts.get(scope)
        if account is None:
            account = self._accounts[scope] = Account()
        return account


def _tokens(number: int) -> str:
    return f"{number:,}"


def _percent(spent: int, cap: int | None) -> int:
    """Return how much of a cap is spent, in whole per cent."""
    if cap is None or spent == 0:
        return 0
    return spent * 100 // cap if cap else 100
