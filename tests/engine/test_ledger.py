"""The budget: nothing passes a cap, in any scope, at any instant."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import BudgetExhausted
from engine.ledger import DOLLARS, WARN_AT_PERCENT, ZERO, Amount, BudgetWarning, Cap, Ledger, Reservation, Scope

SWEEP = Scope("sweep", "s")
MODELS = [Scope("model", "a"), Scope("model", "b")]
STAGES = [Scope("stage", "task"), Scope("stage", "judge")]
SCOPES = [SWEEP, *MODELS, *STAGES]
amounts = st.builds(Amount, st.integers(0, 60), st.integers(0, 60))
caps = st.builds(
    lambda nano, tokens: Cap(nano=nano, tokens=tokens), st.none() | st.integers(0, 300), st.none() | st.integers(0, 300)
)


def over_two_scopes(cap: int) -> tuple[Ledger, Scope]:
    """A ledger whose stage is capped and whose sweep is not."""
    return Ledger({STAGES[0]: Cap(nano=cap)}, {}), STAGES[0]


class LedgerMachine(RuleBasedStateMachine):
    """Reserves, commits and releases at random, and now and then starts again from what the store would know."""

    @initialize(caps=st.fixed_dictionaries(dict.fromkeys(SCOPES, caps)))
    def start(self, caps: dict[Scope, Cap]) -> None:
        """Open the books with random caps."""
        self.caps = caps
        self.ledger = Ledger(caps, {})
        self.open: list[Reservation] = []
        self.spent = dict.fromkeys(SCOPES, ZERO)
        self.warned: list[BudgetWarning] = []

    @rule(model=st.sampled_from(MODELS), stage=st.sampled_from(STAGES), amount=amounts)
    def reserve(self, model: Scope, stage: Scope, amount: Amount) -> None:
        """Promise the worst case, or refuse."""
        budget = self.ledger.budget((SWEEP, model, stage))
        before = self.ledger.snapshot()
        fits = self.ledger.fits(budget, amount)
        try:
            reservation = self.ledger.reserve(budget, amount)
        except BudgetExhausted:
            assert not fits
            assert self.ledger.snapshot() == before, "a refusal reserves nothing in any scope"
        else:
            assert fits
            self.open.append(reservation)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Pay at most what was promised."""
        reservation = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        most = reservation.amount
        paid = Amount(data.draw(st.integers(0, most.nano)), data.draw(st.integers(0, most.tokens)))
        self.warned += self.ledger.commit(reservation, paid)
        for scope in reservation.budget.scopes:
            self.spent[scope] = Amount(self.spent[scope].nano + paid.nano, self.spent[scope].tokens + paid.tokens)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Pay nothing."""
        self.ledger.release(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))

    @rule()
    def restart_after_a_crash(self) -> None:
        """Everything that was reserved counts as spent."""
        for reservation in self.open:
            for scope in reservation.budget.scopes:
                before, worst = self.spent[scope], reservation.amount
                self.spent[scope] = Amount(before.nano + worst.nano, before.tokens + worst.tokens)
        self.open.clear()
        self.ledger = Ledger(self.caps, self.spent)
        self.warned.clear()

    @invariant()
    def nothing_passes_a_cap(self) -> None:
        """In any scope, in money and in tokens."""
        for account in self.ledger.accounts().values():
            if account.cap.nano is not None:
                assert account.spent_nano + account.reserved_nano <= account.cap.nano
            if account.cap.tokens is not None:
                assert account.spent_tokens + account.reserved_tokens <= account.cap.tokens

    @invariant()
    def the_books_agree(self) -> None:
        """With what was reserved and paid."""
        for scope, account in self.ledger.accounts().items():
            held = [each.amount for each in self.open if scope in each.budget.scopes]
            assert (account.spent_nano, account.spent_tokens) == self.spent[scope]
            assert account.reserved_nano == sum(amount.nano for amount in held)
            assert account.reserved_tokens == sum(amount.tokens for amount in held)

    @invariant()
    def nobody_is_warned_twice(self) -> None:
        """Of the same thing."""
        assert len(self.warned) == len(set(self.warned))


TestLedger = LedgerMachine.TestCase


def test_a_refusal_names_the_scope_what_it_needs_and_what_is_left() -> None:
    """The message goes to people."""
    ledger, stage = over_two_scopes(10)
    with pytest.raises(BudgetExhausted, match="stage task: needs 11 nano-dollars, has 10"):
        ledger.reserve(ledger.budget((SWEEP, stage)), Amount(11, 0))


def test_a_cap_on_tokens_holds_where_money_is_free() -> None:
    """Local models cost nothing and can be capped all the same."""
    ledger = Ledger({SWEEP: Cap(tokens=100)}, {})
    budget = ledger.budget((SWEEP,))
    ledger.reserve(budget, Amount(0, 60))
    with pytest.raises(BudgetExhausted, match="needs 60 tokens, has 40"):
        ledger.reserve(budget, Amount(0, 60))


def test_warnings_come_once_at_each_threshold() -> None:
    """At 50, 80 and 95 per cent of what is spent, not of what is reserved."""
    ledger, stage = over_two_scopes(100)
    budget = ledger.budget((SWEEP, stage))
    seen = []
    for spent in range(1, 101):
        reservation = ledger.reserve(budget, Amount(1, 0))
        seen += [(spent, warning) for warning in ledger.commit(reservation, Amount(1, 0))]
    assert seen == [(percent, BudgetWarning(stage, percent)) for percent in WARN_AT_PERCENT]


def test_one_call_that_passes_several_thresholds_is_one_warning() -> None:
    """The highest."""
    ledger, stage = over_two_scopes(100)
    reservation = ledger.reserve(ledger.budget((stage,)), Amount(97, 0))
    assert ledger.commit(reservation, Amount(97, 0)) == [BudgetWarning(stage, 95)]


def test_a_restart_does_not_warn_of_the_past_again() -> None:
    """What earlier runs spent was told then."""
    ledger = Ledger({SWEEP: Cap(nano=100)}, {SWEEP: Amount(85, 0)})
    budget = ledger.budget((SWEEP,))
    assert ledger.commit(ledger.reserve(budget, Amount(1, 0)), Amount(1, 0)) == []
    assert ledger.commit(ledger.reserve(budget, Amount(9, 0)), Amount(9, 0)) == [BudgetWarning(SWEEP, 95)]


def test_a_cap_below_what_is_spent_lets_nothing_more_through() -> None:
    """Lowering a cap between runs is allowed; it does not take money back."""
    ledger = Ledger({SWEEP: Cap(nano=50)}, {SWEEP: Amount(80, 0)})
    with pytest.raises(BudgetExhausted, match="has -30"):
        ledger.reserve(ledger.budget((SWEEP,)), Amount(1, 0))


def test_a_call_dearer_than_its_reservation_is_booked_as_it_was() -> None:
    """The books tell the truth even when a bound was wrong; then nothing more is reserved."""
    ledger, stage = over_two_scopes(100)
    budget = ledger.budget((stage,))
    ledger.commit(ledger.reserve(budget, Amount(90, 0)), Amount(120, 0))
    assert ledger.accounts()[stage].spent_nano == 120
    assert not ledger.fits(budget, Amount(1, 0))


def test_a_snapshot_does_not_change_afterwards() -> None:
    """Who draws it must not see half a step."""
    ledger, stage = over_two_scopes(100)
    before = ledger.snapshot()
    ledger.reserve(ledger.budget((stage,)), Amount(10, 0))
    assert before[stage].reserved_nano == 0


def test_what_stands_in_the_way_is_said_with_what_is_used_and_what_is_wanted() -> None:
    """In the unit of the cap."""
    stage = Scope("stage", "audit")
    ledger = Ledger({stage: Cap(tokens=20_000), SWEEP: Cap(nano=10_000_000)}, {stage: Amount(0, 19_812)})
    ledger.reserve(ledger.budget((SWEEP,)), Amount(4_000_000, 0))
    shortages = ledger.shortages([(ledger.budget((SWEEP, stage)), Amount(8_000_000, 640))])
    assert [str(each) for each in shortages] == [
        "sweep s: $0.00 of $0.01 used, $0.004 set aside for what is under way; the next call may need $0.008",
        "stage audit: 19,812 of 20,000 tokens used; the next call may need 640",
    ]


def test_a_cap_is_named_once_with_the_least_that_is_wanted_of_it() -> None:
    """The cheapest of all calls that wait would go first if it could; caps with room are not named."""
    stage = Scope("stage", "audit")
    ledger = Ledger({SWEEP: Cap(nano=10, tokens=1_000), stage: Cap(nano=1_000)}, {})
    budget = ledger.budget((SWEEP, stage))
    found = ledger.shortages([(budget, Amount(30, 5)), (budget, Amount(20, 5)), (budget, Amount(9, 5))])
    assert [(each.scope, each.unit, each.needs, each.cap) for each in found] == [(SWEEP, DOLLARS, 20, 10)]
