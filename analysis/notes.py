"""The lines below a table: how many answers it rests on, what is missing and why, and how its intervals were made."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from analysis.context import Context
from analysis.estimates import LEVEL
from analysis.records import ANSWER_CUT, READ, STATES, TRUNCATED, Answers, Ints, Memories
from analysis.words import plural

FEW_PERSONAS: Final = 10
REASONS_SHOWN: Final = 3
REASON_CHARACTERS: Final = 60
_NUMBER: Final = re.compile(r"(?<!\d)(?![45]\d\d(?!\d))\d+")
SIMULATED: Final = "SIMULATED: "


def titled(context: Context, title: str) -> str:
    """Return a title that names the sweep and says when its answers are simulated."""
    sweep = context.data.sweep
    return f"{SIMULATED if sweep.simulated else ''}{title} (sweep {sweep.name})"


def coverage(context: Context, rows: Answers, noun: str) -> tuple[str, ...]:
    """Say how many answers were planned, read and missing, and why; and how many claims they hold."""
    kept = context.read(rows)
    lines = [f"{len(kept):,} of {len(rows):,} {noun} read, {kept.claims.sum():,} claims"]
    if empty := int((kept.claims == 0).sum()):
        lines.append(f"{plural(empty, noun)} without a claim: no rate of their own")
    lines += _cuts(rows, noun, truncated=context.settings.truncated)
    if unread := int(kept.unread.sum()):
        share = unread / (unread + int(kept.claims.sum()))
        lines.append(f"{plural(unread, 'elements')} of read {noun} left out ({share:.1%}): no claim or no known label")
    return (*lines, *missing_note(rows, noun, truncated=context.settings.truncated))


def _cuts(rows: Answers, noun: str, *, truncated: bool) -> Iterator[str]:
    """Say what was cut short: the answers that were labelled, which is no fault of the labelling, or the labelling."""
    cut, reasons = rows.state == TRUNCATED, np.array([*rows.reasons, ""])
    of_cut = cut & (reasons[rows.reason] == ANSWER_CUT)
    if number := int(of_cut.sum()):
        answers, go = ("an answer that was", "it goes") if number == 1 else ("answers that were", "they go")
        yield f"{plural(number, noun)} of {answers} cut short: {f'counted as far as {go}' if truncated else 'missing'}"
    if number := int((cut & ~of_cut).sum()):
        use = "the claims before the cut are counted" if truncated else "missing"
        yield f"{plural(number, noun)} whose labelling was cut short: {use}"


def missing_note(rows: Answers | Memories, noun: str, *, truncated: bool) -> tuple[str, ...]:
    """Say how many rows are missing and the most frequent reasons, or nothing when none is."""
    counts = missing_by_reason(rows.state, rows.reason, rows.reasons, truncated=truncated)
    if not counts:
        return ()
    shown = [f"{count:,} {reason_text(state, reason)}" for (state, reason), count in counts.most_common(REASONS_SHOWN)]
    rest = counts.total() - sum(count for _, count in counts.most_common(REASONS_SHOWN))
    others = [f"{rest:,} for other reasons"] if rest else []
    return (f"{plural(counts.total(), noun)} missing: {'; '.join([*shown, *others])}",)


def missing_by_reason(
    state: Ints, reason: Ints, reasons: Sequence[str], *, truncated: bool
) -> Counter[tuple[str, str]]:
    """Count rows that were not read by state and by kind of reason."""
    there = (READ, TRUNCATED) if truncated else (READ,)
    gone = ~np.isin(state, there)
    found: Counter[tuple[str, str]] = Counter()
    for kind, rows in missing_kinds(state[gone], reason[gone], reasons):
        found[kind] += len(rows)
    return found


def missing_kinds(state: Ints, reason: Ints, reasons: Sequence[str]) -> Iterator[tuple[tuple[str, str], Ints]]:
    """Yield state and kind of reason of missing rows with the positions of these rows; a kind may come repeatedly."""
    pairs, kinds = np.unique(np.stack([state, reason]), axis=1, return_inverse=True)
    order = np.argsort(kinds, kind="stable")
    ends = np.searchsorted(kinds[order], np.arange(pairs.shape[1] + 1))
    for place, (state_code, reason_code) in enumerate(pairs.T.tolist()):
        yield (STATES[state_code], reason_kind(reasons[reason_code])), order[ends[place] : ends[place + 1]]


def missing_by_state(state: Ints, *, truncated: bool) -> dict[str, int]:
    """Count rows that were not read by state; states without a row are left out."""
    counts = np.bincount(state, minlength=len(STATES)).tolist()
    there = {READ, TRUNCATED} if truncated else {READ}
    return {name: counts[code] for code, name in enumerate(STATES) if counts[code] and code not in there}


def reason_kind(reason: str) -> str:
    """Return a reason without what differs from call to call: numbers other than status codes, and further lines.

    Examples
    --------
    >>> reason_kind("rate: 429, retry after 31 s")
    'rate: 429, retry after N s'
    """
    first = next(iter(reason.strip().splitlines()), "")
    short = _NUMBER.sub("N", first)
    return short if len(short) <= REASON_CHARACTERS else f"{short[:REASON_CHARACTERS]}..."


def reason_text(state: str, reason: str) -> str:
    """Return a state with its reason."""
    return f"{state} ({reason})" if reason else state


def denominators_note(context: Context, *parts: tuple[str, Answers]) -> tuple[str, ...]:
    """Say for each kind of answer how many were read per model, where models differ."""
    lines = []
    for noun, rows in parts:
        kept = rows.present(truncated=context.settings.truncated)
        counts = np.bincount(rows.model[kept], minlength=len(context.subjects))
        if len(counts) and np.ptp(counts):
            lines.append(f"denominators differ: {int(counts.min()):,} to {int(counts.max()):,} {noun} read per model")
    return tuple(lines)


def interval_note(context: Context) -> str:
    """Say how the intervals of a report were made."""
    resamples = context.resamples
    few = f"; {few_personas(resamples.clusters)}" if resamples.clusters < FEW_PERSONAS else ""
    return (
        f"intervals: {LEVEL:.0%}, {resamples.method}, {resamples.count:,} resamples of"
        f" {plural(resamples.clusters, 'personas')}, seed {resamples.seed}{few}"
    )


def few_personas(count: int) -> str:
    """Say that so few personas give no precise interval."""
    return f"{plural(count, 'personas')} only: indicative, not precise"
