"""The page's first words: what was found, said plainly, and what these numbers cannot carry.

Every sentence is made from the tables and can be checked against them; a number that is missing has no sentence.
"""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Final

import numpy as np

from analysis.context import Context
from analysis.estimates import Estimate
from analysis.frames import Column, Kind, Table, Value
from analysis.judged import ALL_MODELS, CORRECTED_OI, MEAN_OF_MODELS
from analysis.leakage import Event
from analysis.notes import FEW_PERSONAS
from analysis.ratios import divided
from analysis.records import PENDING, TRUNCATED
from analysis.report.drawing import as_estimate
from analysis.show import cell_text, inert
from analysis.words import plural

FEW_MODELS: Final = 20
FEW_FAMILIES: Final = 10
FEW_MISSING: Final = 0.05
CHANCE: Final = 0.5
PERCENT: Final = 100
NANO: Final = 1_000_000_000

Tables = Mapping[str, Table]


def findings(context: Context, tables: Tables) -> Iterator[str]:
    """Yield what the tables say, in plain words, most important first."""
    yield from _scope(context)
    yield from _level(tables)
    yield from _tasks(tables)
    yield from _monitoring(context, tables)
    yield from _correlation(tables)
    yield from _ranking(tables)
    yield from _probe(tables)
    yield from _groups(tables)
    yield from _leakage(tables)
    yield from _memory(tables)
    yield from _money(tables)


def caveats(context: Context, tables: Tables) -> Iterator[str]:
    """Yield what a careful reader would object, apart from the report's own warnings."""
    records, subjects = context.records, context.subjects
    pending = int((records.state == PENDING).sum())
    due = len(records) - pending
    missing = due - len(context.read(records))
    if pending:
        yield f"The sweep is not finished: {plural(pending, 'task answers')} without a verdict so far."
    if due and missing / due > FEW_MISSING:
        yield (
            f"{PERCENT * missing / due:.1f} % of the task answers due are missing from the tables. If they are not like"
            " the others, the rates are biased; the last tables say which are missing and why."
        )
    cut = int((records.state == TRUNCATED).sum())
    if context.settings.truncated and due and cut / due > FEW_MISSING:
        yield (
            f"{PERCENT * cut / due:.1f} % of the task answers or their verdicts were cut short and are used as far as"
            " they go; `--truncated missing` shows the tables without them."
        )
    if 0 < len(context.personas) < FEW_PERSONAS:
        yield (
            f"{plural(len(context.personas), 'personas')} are too few for trustworthy intervals: percentile intervals"
            " over so few are too narrow."
        )
    yield from _judging(context)
    yield from _audits(context)
    families = {model.family for model in subjects if model.family}
    if len(subjects) > 1 and (len(subjects) < FEW_MODELS or len(families) < FEW_FAMILIES):
        kin = f" of {plural(len(families), 'families')}" if families else ""
        yield (
            f"Comparisons across models rest on {plural(len(subjects), 'models')}{kin}, which are not independent. Any"
            " correlation over them is exploratory: it suggests a question, it does not answer one."
        )
    if len(np.unique(context.records.sample)) == 1 and len(records):
        yield "Every answer was drawn once, so chance between repeated draws is not measured."
    yield from _few_conversations(tables)
    yield (
        "Intervals say how the numbers would vary with other personas of the same kind, not with other prompts or other"
        " judges."
    )


def _judging(context: Context) -> Iterator[str]:
    """Yield how far the labels can be trusted."""
    judge = inert(context.label(context.judge))
    if not context.judge:
        return
    others = [inert(context.label(other)) for other in context.data.axes.judges if other != context.judge]
    if context.human is None:
        yield (
            f"One judge, {judge}, decided every label, and nobody has checked a sample of them: the levels are this"
            " judge's opinion."
        )
    else:
        items = round(float(context.human.sum()))
        yield (
            f"One judge, {judge}, decided every label. People have labelled {items:,} of the claims; the tables under"
            " Judges and people say how far they agree."
        )
    if others:
        yield f"How far other judges agree ({', '.join(others)}) stands under Judges and people, too."


def _audits(context: Context) -> Iterator[str]:
    """Yield whose self-audits are missing so often that comparisons with them are in doubt."""
    rows = context.audits
    due = np.bincount(rows.model[rows.state != PENDING], minlength=len(context.subjects))
    read = np.bincount(context.read(rows).model, minlength=len(context.subjects))
    shares = divided(due - read, due)
    worst = max(range(len(shares)), key=lambda place: np.nan_to_num(shares[place]), default=None)
    if worst is not None and shares[worst] > FEW_MISSING:
        yield (
            f"Self-audits are missing for up to {PERCENT * shares[worst]:.0f} % of a model's answers"
            f" ({inert(context.labels[worst])}): what a model says of itself then rests on other answers than the"
            " judge's rate. Self-audit against judge gives the difference over the answers that both have, too."
        )


def _ranking(tables: Tables) -> Iterator[str]:
    """Yield how well self-audits rank a model's own answers."""
    table = tables["within_model"]
    known = [value for value in map(as_estimate, table.column("auroc")) if not isnan(value.value)]
    if len(known) > 1:
        low, high = min(known, key=_value), max(known, key=_value)
        unclear = sum(value.interval is None or value.interval.low <= CHANCE for value in known)
        doubt = f"; for {plural(unclear, 'models')} this is not told from chance" if unclear else ""
        yield (
            f"Within a model, an answer that the judge finds worse than the median has the higher self-audit rate in"
            f" {PERCENT * low.value:.0f} % to {PERCENT * high.value:.0f} % of comparisons (50 % is chance){doubt}."
        )


def _probe(tables: Tables) -> Iterator[str]:
    """Yield what models get wrong when asked directly, never without saying what the comparison is worth."""
    table = tables["probe"]
    mean = table.row(MEAN_OF_MODELS) if table.rows else {}
    error, probed = as_estimate(mean.get("error")), as_estimate(mean.get("probe_oi"))
    if not isnan(error.value) and not isnan(probed.value):
        yield (
            f"Asked directly what can be inferred, {'the average model' if error.n > 1 else 'the model'} contradicts"
            f" the user's profile in {_share(table, 'error', error)} of its claims, and over-infers"
            f" {_share(table, 'probe_oi', probed)}. Only the second of these rates is of the same kind as those of the"
            " tasks."
        )


def _leakage(tables: Tables) -> Iterator[str]:
    """Yield what repeated sampling brings out, where answers were drawn more than once."""
    table = tables["leakage_at_k"]
    last = table.columns[-2 if table.columns[-1].name == "sampling_error" else -1].name
    rows = [row for row in table.named_rows() if row["event"] == Event.OI_ABOVE.value]
    pairs = [(as_estimate(row["k1"]).value, as_estimate(row[last]).value) for row in rows]
    known = [pair for pair in pairs if not any(map(isnan, pair))]
    if last != "k1" and known:
        once, often = (PERCENT * sum(column) / len(known) for column in zip(*known, strict=True))
        yield (
            f"Of {last.removeprefix('k')} answers to the same request at least one has an OI rate above one half in"
            f" {often:.0f} % of cases{' on average over models' if len(known) > 1 else ''}, against {once:.0f} % for a"
            " single answer."
        )


def _correlation(tables: Tables) -> Iterator[str]:
    """Yield the rank correlation of self-audit and judge over models, never without what it hangs on."""
    first = next(tables["inversion"].named_rows(), None)
    rho = as_estimate(first["value"] if first else None)
    if first is None or isnan(rho.value):
        return
    ends = "" if rho.interval is None else f", 95 % interval {rho.interval.low:.2f} to {rho.interval.high:.2f}"
    test = f", p = {first['p']:.3f}" if isinstance(first["p"], float) else ""
    without = [as_estimate(value).value for value in tables["inversion_by_family"].column("rho")]
    known = [value for value in without if not isnan(value)]
    ends_without = [f"{end(known):.2f}" for end in (min, max)] if known else []
    moved = "leaves it at" if len(set(ends_without)) == 1 else "moves it between"
    hangs = f" Leaving out one family {moved} {' and '.join(dict.fromkeys(ends_without))}." if known else ""
    yield (
        f"Exploratory: over {plural(rho.n, 'models')}, what models report of themselves and what the judge finds are"
        f" rank-correlated with rho = {rho.value:.2f}{ends}{test}.{hangs}"
    )


def _scope(context: Context) -> Iterator[str]:
    kept = context.read(context.records)
    claims = int(kept.claims.sum())
    who = f"{plural(len(context.subjects), 'models')}, {plural(len(context.personas), 'personas')}"
    what = f"{who}, {plural(len(context.tasks), 'tasks')}" if context.tasks else who
    judge = inert(context.label(context.judge)) if context.judge else ""
    if judge and not claims:
        yield f"{what}. No claim has been labelled yet."
    elif judge:
        yield (
            f"{what}. {judge} found {claims:,} claims about the user in {len(kept):,} of"
            f" {plural(len(context.records), 'planned answers')} and labelled each."
        )
    else:
        yield f"{what}. No judge has labelled their answers."


def _level(tables: Tables) -> Iterator[str]:
    table = tables["leaderboard"]
    models = _models(table, "oi")
    if not models:
        return
    if len(models) == 1:
        ((name, estimate),) = models.items()
        yield f"{inert(name)} over-infers {_share(table, 'oi', estimate)} of its claims: stereotypes or fabrications."
        return
    mean = as_estimate(table.row(MEAN_OF_MODELS)["oi"])
    low, high = min(models, key=lambda name: models[name].value), max(models, key=lambda name: models[name].value)
    yield (
        f"The average model over-infers {_share(table, 'oi', mean)} of its claims: stereotypes or fabrications."
        f" The lowest rate is {inert(low)}'s with {_share(table, 'oi', models[low])}, the highest {inert(high)}'s with"
        f" {_share(table, 'oi', models[high])}."
    )
    yield from _people(table)


def _people(table: Table) -> Iterator[str]:
    """Yield what the mean becomes once the judge's errors are corrected by people's labels."""
    if CORRECTED_OI not in [column.name for column in table.columns]:
        return
    mean = as_estimate(table.row(MEAN_OF_MODELS)[CORRECTED_OI])
    if not isnan(mean.value):
        yield (
            f"Corrected for the judge's errors by people's labels of {plural(mean.n, 'claims')}, the average is"
            f" {_share(table, CORRECTED_OI, mean)}."
        )


def _tasks(tables: Tables) -> Iterator[str]:
    table = tables["task_composition"]
    rates = {str(row["task"]): as_estimate(row["oi"]) for row in list(table.named_rows())[:-1]}
    rates = {task: rate for task, rate in rates.items() if not isnan(rate.value)}
    if len(rates) > 1:
        low, high = min(rates, key=lambda task: rates[task].value), max(rates, key=lambda task: rates[task].value)
        yield (
            f"It depends on the task: from {_share(table, 'oi', rates[low])} for {inert(low)} to"
            f" {_share(table, 'oi', rates[high])} for {inert(high)}."
        )


def _monitoring(context: Context, tables: Tables) -> Iterator[str]:
    patterns = [str(row["pattern"]) for row in tables["self_audit"].named_rows() if row["model"] in context.labels]
    counted = {name: patterns.count(name) for name in ("Under", "Over", "Calib")}
    total = sum(counted.values())
    if total > 1:
        yield (
            f"Asked to audit themselves, {counted['Under']} of {plural(total, 'models')} report at least 5 percentage"
            f" points less over-inference than the judge finds, {counted['Over']} at least as much more, and"
            f" {counted['Calib']} less than 5 points either way."
        )


def _groups(tables: Tables) -> Iterator[str]:
    table = tables["group_breakdown"]
    pooled = [row for row in table.named_rows() if row["model"] == ALL_MODELS]
    for row in pooled:
        gap = as_estimate(row["delta"])
        if isnan(gap.value):
            continue
        shown = cell_text(gap, _column(table, "delta"))
        clear = gap.interval is not None and not gap.interval.low <= 0 <= gap.interval.high
        verdict = "" if clear else "; the data do not tell this from no difference"
        yield (
            f"Stereotypical against counter-stereotypical personas: {shown} percentage points of OI, all models pooled"
            f"{verdict}."
        )


def _memory(tables: Tables) -> Iterator[str]:
    table = tables["accumulation"]
    slopes = {str(row["model"]): as_estimate(row["per_round"]) for row in table.named_rows()}
    slopes = {name: slope for name, slope in slopes.items() if not isnan(slope.value)}
    if slopes:
        low, high = min(slopes.values(), key=_value), max(slopes.values(), key=_value)
        ends = f"{low.value:.1f}" if low is high else f"{low.value:.1f} to {high.value:.1f}"
        which = "" if low is high else ", depending on the model"
        yield f"In conversation, memories grow by {ends} inferred attributes a round{which}."


def _money(tables: Tables) -> Iterator[str]:
    table = tables["cost"]
    total = list(table.named_rows())[-1]
    if isinstance(total["requests"], int) and total["requests"]:
        shown = {name: cell_text(total[name], _column(table, name)) for name in ("requests", "answered")}
        paid = as_estimate(total["cost_nano"]).value
        money = f"{paid / NANO:,.2f} US dollars"
        what = f"{money} on the simulator's bill, which nobody pays" if table.simulated else money
        price = "" if isnan(paid) else f", for {what}"
        yield f"{shown['requests']} requests were planned, {shown['answered']} answered{price}."


def _few_conversations(tables: Tables) -> Iterator[str]:
    counts = [value for value in tables["accumulation"].column("personas") if isinstance(value, int)]
    if counts and max(counts) < FEW_PERSONAS:
        yield (
            f"Memory growth is a pilot: at most {plural(max(counts), 'personas')} a model, each in one kind of"
            " conversation."
        )


def _models(table: Table, column: str) -> dict[str, Estimate]:
    """Return the estimates of models, without means and totals and without what is missing."""
    rows = {str(row["model"]): as_estimate(row[column]) for row in table.named_rows()}
    return {
        name: value
        for name, value in rows.items()
        if name not in {MEAN_OF_MODELS, ALL_MODELS} and not isnan(value.value)
    }


def _share(table: Table, column: str, value: Value) -> str:
    """Return a share with its unit and, where there is one, its interval."""
    wanted = _column(table, column)
    middle, _, ends = cell_text(value, Column(wanted.name, Kind.SHARE)).partition(" [")
    return f"{middle} % [{ends}" if ends else f"{middle} %"


def _column(table: Table, name: str) -> Column:
    return next(column for column in table.columns if column.name == name)


def _value(estimate: Estimate) -> float:
    return estimate.value
