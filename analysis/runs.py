"""Tables of how a sweep went: missing answers, parse failures, parameter changes, tokens and cost.

Counts, tokens and money are those of the whole sweep and no estimates. Shares say how likely a failure is, so they have
intervals over personas like any other share.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Row, Table
from analysis.notes import interval_note, missing_by_reason, missing_kinds, titled
from analysis.ratios import ratio_estimates
from analysis.records import PENDING, READ, TRUNCATED, UNREADABLE, Answers, Calls, Dataset, Ints, Mask
from analysis.resampling import resamples_of

STAGES: Final = ("probe", "probe_judge", "task", "audit", "judge", "accum")
ASKED_FIRST: Final = ("probe", "task", "accum")
TOTAL: Final = "total"
SHARES: Final = (
    "counts are those of the whole sweep; shares have intervals over personas, of the stage alone where these differ"
)
NO_ESTIMATE: Final = "counts of the whole sweep, no estimates: they have no interval"
# So many resamples of few personas are enumerated instead of drawn.
EXACT_LIMIT: Final = 10_000

_SPENT: Final[Mapping[str, tuple[str, str]]] = {
    "requests": ("calls", ""),
    "answered": ("calls", ""),
    "input_tokens": ("tokens", ""),
    "cached_tokens": ("tokens", ""),
    "output_tokens": ("tokens", ""),
    "reasoning_tokens": ("tokens", ""),
    "attempts": ("calls", ""),
    "cost_nano": ("nano-USD", "cost"),
    "assumed": ("calls", ""),
    "assumed_nano": ("nano-USD", "assumed cost"),
}
_PLACE: Final = (Column("model", Kind.TEXT), Column("stage", Kind.TEXT))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Planned:
    """The planned answers of one stage (and judge); `subject` is a position in the data's models."""

    stage: str
    judge: str = ""
    subject: Ints
    persona: Ints
    personas: tuple[str, ...]
    state: Ints
    reason: Ints
    reasons: tuple[str, ...]
    truncated: bool


def missing_answers(context: Context) -> Table:
    """Make the table of missing answers per model under test and stage, by reason.

    A verdict or an audit that could not be asked for because the task answer is missing counts as missing too.
    """
    found: list[Row] = []
    notes: list[str] = []
    for part in _planned(context):
        gone, judge = 0, context.label(part.judge)
        clusters = _Clusters(context, part.persona, part.personas)
        for place, model in enumerate(context.data.axes.models):
            mine = part.subject == place
            for (state, reason), rows in _missing(part, mine):
                gone += len(rows)
                share = clusters.share(rows, mine)
                row = (context.label(model), part.stage, judge, state, reason, len(rows), int(mine.sum()), share)
                found.append(row)
        by = f" by {judge}" if judge else ""
        notes.append(f"{part.stage}{by}: {len(part.state):,} planned, {gone:,} missing")
    return Table(
        name="missing_answers",
        title=titled(context, "Missing answers by model under test, stage and reason"),
        columns=(
            *_PLACE,
            Column("judge", Kind.TEXT),
            Column("state", Kind.TEXT),
            Column("reason", Kind.TEXT),
            Column("missing", Kind.COUNT, "answers"),
            Column("planned", Kind.COUNT, "answers"),
            Column("share", Kind.SHARE, "share"),
        ),
        rows=tuple(found),
        notes=(*notes, SHARES, interval_note(context)) if notes else ("no call is planned",),
        simulated=context.data.sweep.simulated,
    )


def parse_failures(context: Context) -> Table:
    """Make the table of answers that came but could not be read, per answering model and stage."""
    calls = context.data.calls
    clusters = _Clusters(context, calls.persona, calls.personas)
    rows: list[Row] = []
    for model, stage, mine in _by_model_and_stage(context, calls):
        states = np.bincount(calls.state[mine], minlength=PENDING + 1)
        answered = int(states[[READ, TRUNCATED, UNREADABLE]].sum())
        if answered:
            cut, unreadable = int(states[TRUNCATED]), int(states[UNREADABLE])
            broken = mine & (calls.state == UNREADABLE)
            share = clusters.share(np.flatnonzero(broken), mine & np.isin(calls.state, (READ, TRUNCATED, UNREADABLE)))
            rows.append((model, stage, answered, cut, unreadable, share, _most_frequent(calls, broken)))
    answers = sum(int(row[2]) for row in rows if isinstance(row[2], int))
    return Table(
        name="parse_failures",
        title=titled(context, "Answers that could not be read, by answering model and stage"),
        columns=(
            *_PLACE,
            Column("answered", Kind.COUNT, "answers"),
            Column("cut_short", Kind.COUNT, "answers"),
            Column("unreadable", Kind.COUNT, "answers"),
            Column("share_unreadable", Kind.SHARE, "share"),
            Column("most_frequent_reason", Kind.TEXT),
        ),
        rows=tuple(rows),
        notes=(
            f"{answers:,} answers came; of an answer that was cut short the whole elements are kept",
            SHARES,
            interval_note(context),
        ),
        simulated=context.data.sweep.simulated,
    )


def parameter_changes(context: Context) -> Table:
    """Make the table of parameters that were dropped or replaced because a model does not take them."""
    calls = context.data.calls
    rows: list[Row] = []
    for model, stage, mine in _by_model_and_stage(context, calls):
        changes: Counter[str] = Counter()
        for code, count in zip(*np.unique(calls.changes[mine], return_counts=True), strict=True):
            changes.update(dict.fromkeys(_change_texts(calls.changed[code]), int(count)))
        rows.extend((model, stage, change, count, int(mine.sum())) for change, count in sorted(changes.items()))
    return Table(
        name="parameter_changes",
        title=titled(context, "Parameters that were changed for a model"),
        columns=(
            *_PLACE,
            Column("change", Kind.TEXT),
            Column("calls", Kind.COUNT, "calls"),
            Column("planned", Kind.COUNT, "calls"),
        ),
        rows=tuple(rows),
        notes=(f"{len(calls):,} planned calls", NO_ESTIMATE),
        simulated=context.data.sweep.simulated,
    )


def cost(context: Context) -> Table:
    """Make the table of tokens and money per answering model and stage; each paid request counts once."""
    spending = sorted(context.data.spending, key=lambda spend: (spend.model, _stage_order(spend.stage)))
    rows: list[Row] = [
        (context.label(spend.model), spend.stage, *(getattr(spend, name) for name in _SPENT)) for spend in spending
    ]
    total: Row = (TOTAL, "", *(_sum(getattr(spend, name) for spend in spending) for name in _SPENT))
    kinds = {name: Kind.MONEY if name.endswith("_nano") else Kind.COUNT for name in _SPENT}
    return Table(
        name="cost",
        title=titled(context, "Tokens and cost by answering model and stage"),
        columns=(*_PLACE, *(Column(name, kinds[name], unit, label) for name, (unit, label) in _SPENT.items())),
        rows=(*rows, total),
        notes=(
            "tokens: of answers; cached tokens are part of input, reasoning tokens of output",
            "cost: as the ledger booked it, retries included; calls that another sweep has paid for are not here",
            "assumed: calls without an answer that may have been billed; what they may have cost is part of cost",
            NO_ESTIMATE,
        ),
        simulated=context.data.sweep.simulated,
    )


class _Clusters:
    """Shares of rows with intervals over their personas.

    The report's own resamples serve where they hold all personas of the rows; else those are resampled by themselves.
    """

    def __init__(self, context: Context, persona: Ints, names: Sequence[str]) -> None:
        place = {name: at for at, name in enumerate(context.personas)}
        there = np.unique(persona)
        if all(names[code] in place for code in there.tolist()):
            to_place = np.fromiter((place.get(name, 0) for name in names), np.int64, len(names))
            self._persona, self._resamples = to_place[persona], context.resamples
        else:
            rng, count = np.random.default_rng(context.settings.seed), context.settings.resamples
            self._persona = np.searchsorted(there, persona)
            self._resamples = resamples_of(len(there), rng, count=count, limit=EXACT_LIMIT)

    def share(self, rows: Ints, of: Mask) -> Estimate:
        """Return the share of the rows `of` that are in `rows`, with its interval; `n` is the number of all."""
        top, bottom = (np.bincount(self._persona[part], minlength=self._resamples.clusters) for part in (rows, of))
        return ratio_estimates(top, bottom, self._resamples, method="share of answers", empty="no answer")[()]


def _missing(part: _Planned, mine: Mask) -> list[tuple[tuple[str, str], Ints]]:
    """Return state and kind of reason with the rows of `mine` that are missing for it, the most frequent first."""
    gone = np.flatnonzero(mine & ~np.isin(part.state, (READ, TRUNCATED) if part.truncated else (READ,)))
    kinds: dict[tuple[str, str], list[Ints]] = {}
    for kind, rows in missing_kinds(part.state[gone], part.reason[gone], part.reasons):
        kinds.setdefault(kind, []).append(gone[rows])
    together = [(kind, np.concatenate(rows)) for kind, rows in kinds.items()]
    return sorted(together, key=lambda pair: -len(pair[1]))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _planned(context: Context) -> Iterator[_Planned]:
    """Yield what was planned, stage by stage; a follow-up stage that nobody was asked for is left out."""
    data, chosen = context.data, context.settings.truncated
    for stage in STAGES:
        if stage not in data.calls.stages:
            continue
        if stage in ASKED_FIRST:
            yield _planned_calls(data.calls, stage, chosen)
        elif stage == "audit":
            yield _planned_rows(data, data.audits, stage, "", chosen)
        else:
            labelled = data.records if stage == "judge" else data.probes
            for place, judge in enumerate(data.axes.judges):
                yield _planned_rows(data, labelled.where(labelled.judge == place), stage, judge, chosen)


def _planned_calls(calls: Calls, stage: str, truncated: bool) -> _Planned:
    mine = calls.where(calls.stage == calls.stages.index(stage))
    # The claims of a cut task answer can be judged; a cut memory would pass for one that forgot.
    return _Planned(
        stage=stage,
        subject=mine.subject,
        persona=mine.persona,
        personas=mine.personas,
        state=mine.state,
        reason=mine.reason,
        reasons=mine.reasons,
        truncated=truncated and stage != "accum",
    )


def _planned_rows(data: Dataset, rows: Answers, stage: str, judge: str, truncated: bool) -> _Planned:
    return _Planned(
        stage=stage,
        judge=judge,
        subject=rows.model,
        persona=rows.persona,
        personas=data.axes.personas,
        state=rows.state,
        reason=rows.reason,
        reasons=rows.reasons,
        truncated=truncated,
    )


def _by_model_and_stage(context: Context, calls: Calls) -> Iterator[tuple[str, str, Mask]]:
    """Yield answering model, stage and a mask, for every pair with a call."""
    for place, model in enumerate(context.data.axes.models):
        for stage in sorted(range(len(calls.stages)), key=lambda at: _stage_order(calls.stages[at])):
            mine = (calls.model == place) & (calls.stage == stage)
            if mine.any():
                yield context.label(model), calls.stages[stage], mine


def _stage_order(stage: str) -> tuple[int, str]:
    return (STAGES.index(stage) if stage in STAGES else len(STAGES)), stage


def _most_frequent(calls: Calls, mine: Mask) -> str:
    counts = missing_by_reason(calls.state[mine], calls.reason[mine], calls.reasons, truncated=True)
    return next((reason for (_, reason), _ in counts.most_common(1)), "")


def _change_texts(changes: str) -> list[str]:
    """Return the changes in a JSON array; a text that is none stands for itself."""
    try:
        items: object = json.loads(changes or "[]")
    except ValueError:
        return [changes]
    if not isinstance(items, list):
        items = [items]
    return [item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in items]
