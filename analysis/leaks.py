"""Tables of what repeated sampling of the same question brings out: leakage@k, all@k, worst@k.

`k` is a number of samples of one task for one persona; it is no rank cut-off.

References
----------
.. [1] "The Personalization Mirage", Eq. 1 (the OI rate that the first event is about).
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final, TypeAlias

import numpy as np

from analysis.context import Context
from analysis.estimates import Estimates, missing
from analysis.frames import Column, Kind, Row, Table
from analysis.judged import MODEL, falling, judged_notes
from analysis.leakage import (
    THRESHOLD,
    Event,
    Samples,
    all_estimates,
    leakage_estimates,
    sampling_errors,
    worst_estimates,
)
from analysis.notes import titled
from analysis.records import CORRECT, INCORRECT, NOT_GIVEN, STEREOTYPE, Counts
from analysis.words import plural

MOST_COLUMNS: Final = 20
LARGE_K: Final = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000)
SAME: Final = "of one sample all leak as often as one: see leakage_at_k"
NOT_ASSESSED: Final = "no claim was checked against the ground truth"
WORDS: Final = {
    Event.OI_ABOVE: f"OI rate above {THRESHOLD:g}",
    Event.ANY_OI: "any over-inferred claim",
    Event.DISCLOSES: "over-inferred and true",
    Event.CONTRADICTS: "contradicts the ground truth",
}
_BY_TRUTH: Final = {Event.DISCLOSES, Event.CONTRADICTS}
Formula: TypeAlias = Callable[..., Estimates]


def leakage_at_k(context: Context) -> Table:
    """Make the table of leakage@k: the chance that at least one of k samples leaks, by event and model."""
    return _by_event(
        context,
        leakage_estimates,
        name="leakage_at_k",
        title="leakage@k: chance that at least one of k samples of an answer leaks",
        errors=True,
    )


def all_at_k(context: Context) -> Table:
    """Make the table of all@k: the chance that all of k samples leak, by event and model; empty with one sample."""
    found = _by_event(
        context,
        all_estimates,
        name="all_at_k",
        title="all@k: chance that all of k samples of an answer leak",
        errors=False,
        least=2,
    )
    return found if found.rows else replace(found, notes=(SAME, *found.notes))


def worst_at_k(context: Context) -> Table:
    """Make the table of worst@k: the expected largest OI rate among k samples, by model."""
    ks, samples = _ks(context), samples_of(context)
    found = worst_estimates(samples, ks, context.resamples)
    rows: list[Row] = [
        (model.label, model.family, *_counts(samples, place), *(found[place, at] for at in range(len(ks))))
        for place, model in enumerate(context.subjects)
    ]
    return Table(
        name="worst_at_k",
        title=titled(context, "worst@k: expected largest OI rate among k samples of an answer"),
        columns=(*MODEL, *_COUNTS, *_columns(ks)),
        rows=tuple(falling(rows, by=_FIRST - 1)),
        notes=_notes(context, ks),
        simulated=context.data.sweep.simulated,
    )


def samples_of(context: Context) -> Samples:
    """Return all samples, as arrays of shape (personas, tasks, models, samples): statistics keep the models apart."""
    kept = context.read(context.records)
    draws = int(np.max(context.records.sample, initial=0)) + 1
    shape = (len(context.personas), len(context.tasks), len(context.subjects), draws)
    place = (kept.persona, kept.task, kept.model, kept.sample)
    columns: dict[str, Counts] = {
        "claims": kept.claims,
        "over_inferred": kept.over_inferred,
        "confirmed": kept.crossed[:, STEREOTYPE:, CORRECT].sum(axis=1, dtype=np.int64),
        "contradicted": kept.crossed[:, :, INCORRECT].sum(axis=1, dtype=np.int64),
    }
    filled = {name: np.zeros(shape, np.int64) for name in columns}
    for name, column in columns.items():
        filled[name][place] = column
    present = np.zeros(shape, np.bool_)
    present[place] = True
    return Samples(present=present, **filled)


_COUNTS: Final = (Column("instances", Kind.COUNT, "instances"), Column("samples", Kind.COUNT, "answers"))
# Event, model, family, instances and samples stand before the first estimate.
_FIRST: Final = 5


def _by_event(context: Context, formula: Formula, *, name: str, title: str, errors: bool, least: int = 1) -> Table:
    ks, samples, checked = _ks(context), samples_of(context), _checked(context)
    errors = errors and max(ks) > 1
    rows: list[Row] = []
    for event in Event if max(ks) >= least else ():
        found = formula(samples, event, ks, context.resamples)
        known = [event not in _BY_TRUTH or bool(count) for count in checked]
        part: list[Row] = [
            (
                event.value,
                model.label,
                model.family,
                *_counts(samples, place),
                *(found[place, at] if known[place] else missing(NOT_ASSESSED, method=name) for at in range(len(ks))),
                *([_error(samples, place, event) if known[place] else None] if errors else []),
            )
            for place, model in enumerate(context.subjects)
        ]
        rows.extend(falling(part, by=_FIRST))
    extra = (Column("sampling_error", Kind.SHARE, "share", "sampling error, k=1"),) if errors else ()
    return Table(
        name=name,
        title=titled(context, title),
        columns=(Column("event", Kind.TEXT), *MODEL, *_COUNTS, *_columns(ks), *extra),
        rows=tuple(rows),
        notes=(
            *(f"{event}: {words}" for event, words in WORDS.items()),
            *_truth_note(context),
            *(["sampling error: of the mean over these instances, from drawing answers alone"] if errors else []),
            *_notes(context, ks),
        ),
        simulated=context.data.sweep.simulated,
    )


def _ks(context: Context) -> tuple[int, ...]:
    """Return the numbers of samples that get a column: all of them, or a selection where there are many."""
    most = int(np.max(context.records.sample, initial=0)) + 1
    if most <= MOST_COLUMNS:
        return tuple(range(1, most + 1))
    return (*(k for k in LARGE_K if k < most), most)


def _columns(ks: tuple[int, ...]) -> Iterator[Column]:
    for k in ks:
        yield Column(f"k{k}", Kind.SHARE, "share", f"k={k}", brief=len(ks) > 1)


def _counts(samples: Samples, model: int) -> Row:
    present = samples.present[:, :, model]
    return int(present.any(axis=-1).sum()), int(present.sum())


def _error(samples: Samples, model: int, event: Event) -> float:
    """Return the standard error of one model's leakage@1 from sampling alone."""
    arrays = {field.name: getattr(samples, field.name)[:, :, model] for field in fields(samples)}
    return float(sampling_errors(Samples(**arrays), event, (1,))[0])


def _checked(context: Context) -> list[int]:
    """Return per model how many of its claims were checked against the ground truth."""
    claims = context.records.crossed[:, :, :NOT_GIVEN].sum(axis=(1, 2))
    counts = np.bincount(context.records.model, weights=claims, minlength=len(context.subjects))
    return [int(count) for count in counts]


def _truth_note(context: Context) -> tuple[str, ...]:
    kept = context.read(context.records)
    not_given, unread = int(kept.accuracy[:, NOT_GIVEN].sum()), int(kept.unread_accuracy.sum())
    if not not_given:
        return ()
    odd = f", {unread:,} of them in words that mean nothing" if unread else ""
    return (f"{plural(not_given, 'claims')} not checked against the ground truth{odd}: no leak by the last two events",)


def _notes(context: Context, ks: tuple[int, ...]) -> tuple[str, ...]:
    one = ["one sample per answer: nothing is known of k above 1"] if ks == (1,) else []
    return (
        "instances: pairs of persona and task; those with fewer than k samples are left out of column k",
        "a sample without a claim does not leak; one without a verdict is missing, it shrinks its instance",
        *one,
        *judged_notes(context),
    )
