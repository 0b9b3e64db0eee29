"""Compares a store with the bill of the simulator that answered it: every answer with its charge, to the nano-dollar.

The bill is the provider's word on what was paid, the store is the engine's. A reply carries an id that stands in both.
Reads files only; knows nothing of how a sweep is run.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from bench.simulator.bill import Charge, read_bill

# Faults that are charged and spoil the answer to a single call: it cannot be read, so the call is made and paid again.
SPOILED: Final = frozenset({"drop_after", "truncated_body", "malformed_json", "html", "stall"})
# The ids that replies carry end in so many hexadecimal digits that are not repeated.
REPLY_DIGITS: Final = 24
# What the engine writes on an attempt that a killed run left on the wire.
CUT_OFF: Final = "interrupted%"


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """Store and bill side by side; money in nano-dollars.

    Attributes:
        completions: answers in the store; matched: those whose charge is on the bill for exactly the same amount.
        wrong: ids of answers without a charge, or with another amount; the first few.
        completed_nano: cost of all answers in the store.
        billed_nano, charges: the whole bill.
        spoiled, spoiled_nano: charges whose answer a fault made unusable.
        twice, twice_nano: charges for usable answers that the store does not have although it has another answer to
            the same content: paid twice.
        absent, absent_nano: charges for usable answers to contents that the store has no answer to.
        absent_contents: content hashes of those.
        assumed, assumed_nano: attempts that the ledger counts as billed without knowing.
        cut_off, cut_off_nano: attempts that were on the wire when a run was killed, of models that cost nothing too.
        batched, batched_twice: those of `charges`, and of `twice`, that batches caused.
        ledger_nano: everything that the ledger has spent.
    """

    completions: int
    matched: int
    wrong: tuple[str, ...]
    completed_nano: int
    charges: int
    billed_nano: int
    spoiled: int
    spoiled_nano: int
    twice: int
    twice_nano: int
    absent: int
    absent_nano: int
    absent_contents: frozenset[str]
    assumed: int
    assumed_nano: int
    cut_off: int
    cut_off_nano: int
    batched: int
    batched_twice: int
    ledger_nano: int

    @property
    def exact(self) -> bool:
        """Say whether ledger and bill agree to the nano-dollar.

        Every answer costs what the bill says, the bill is made of answers, spoiled ones and repeated ones, and what
        the ledger only assumes is not less than what was charged without an answer.
        """
        unanswered = self.spoiled_nano + self.twice_nano + self.absent_nano
        return (
            self.matched == self.completions
            and self.billed_nano == self.completed_nano + unanswered
            and self.ledger_nano == self.completed_nano + self.assumed_nano
            and unanswered <= self.assumed_nano
        )


class _Answer(msgspec.Struct, frozen=True):
    """An answer as the store has it."""

    nano: int
    request_id: str


def reconcile(store: Path, bill: Path, sweep: str = "") -> Reconciled:
    """Compare the answers of `sweep` (all sweeps, if empty) in `store` with `bill`."""
    with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        answers = {each.request_id[-REPLY_DIGITS:]: each for each in _answers(connection, sweep)}
        assumed, assumed_nano, cut_off, cut_off_nano, ledger = _assumed(connection, sweep)
        completions, completed = _completed(connection, sweep)
    charges = [line for line in read_bill(bill) if isinstance(line, Charge)]
    matched = {name: each for each in charges if (name := each.reply[-REPLY_DIGITS:]) in answers}
    right = {name for name, charge in matched.items() if charge.nano == answers[name].nano}
    answered = {charge.hash for charge in matched.values()}
    others = [each for each in charges if each.reply[-REPLY_DIGITS:] not in answers]
    spoiled = [each for each in others if _is_spoiled(each)]
    usable = [each for each in others if not _is_spoiled(each)]
    twice = [each for each in usable if each.hash in answered]
    absent = [each for each in usable if each.hash not in answered]
    return Reconciled(
        completions=completions,
        matched=len(right),
        wrong=tuple(sorted(answer.request_id for name, answer in answers.items() if name not in right))[:5],
        completed_nano=completed,
        charges=len(charges),
        billed_nano=_sum(charges),
        spoiled=len(spoiled),
        spoiled_nano=_sum(spoiled),
        twice=len(twice),
        twice_nano=_sum(twice),
        absent=len(absent),
        absent_nano=_sum(absent),
        absent_contents=frozenset(each.hash for each in absent),
        assumed=assumed,
        assumed_nano=assumed_nano,
        cut_off=cut_off,
        cut_off_nano=cut_off_nano,
        batched=sum(bool(each.batch) for each in charges),
        batched_twice=sum(bool(each.batch) for each in twice),
        ledger_nano=ledger,
    )


def _answers(connection: sqlite3.Connection, sweep: str) -> Iterator[_Answer]:
    rows = connection.execute(
        "SELECT d.cost_nano, d.provider_request_id FROM completion d JOIN request r ON r.id = d.request_id"
        " JOIN sweep s ON s.id = r.sweep_id WHERE ? IN ('', s.name)",
        (sweep,),
    )
    return (_Answer(*row) for row in rows)


def _completed(connection: sqlite3.Connection, sweep: str) -> tuple[int, int]:
    count, nano = connection.execute(
        "SELECT count(*), coalesce(sum(d.cost_nano), 0) FROM completion d JOIN request r ON r.id = d.request_id"
        " JOIN sweep s ON s.id = r.sweep_id WHERE ? IN ('', s.name)",
        (sweep,),
    ).fetchone()
    return count, nano


def _assumed(connection: sqlite3.Connection, sweep: str) -> tuple[int, int, int, int, int]:
    """Return number and cost of assumed attempts, the same of those that a kill cut off, and all that was spent."""
    found: tuple[int, int, int, int] = connection.execute(
        "SELECT coalesce(sum(outcome = 'assumed'), 0), coalesce(sum(iif(outcome = 'assumed', cost_nano, 0)), 0),"
        " coalesce(sum(error LIKE ?1), 0), coalesce(sum(iif(error LIKE ?1, cost_nano, 0)), 0)"
        " FROM attempts WHERE ?2 IN ('', sweep)",
        (CUT_OFF, sweep),
    ).fetchone()
    spent = connection.execute(
        "SELECT coalesce(sum(cost_nano), 0) FROM spending WHERE ? IN ('', sweep)", (sweep,)
    ).fetchone()
    return (*found, spent[0])


def _is_spoiled(charge: Charge) -> bool:
    return not charge.batch and charge.fault in SPOILED


def _sum(charges: list[Charge]) -> int:
    return sum(charge.nano for charge in charges)
